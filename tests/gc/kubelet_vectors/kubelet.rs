//! Image rows against the kubelet's collector, on a runtime of made-up images.

use jiff::{SignedDuration, Timestamp};
use layersweep::model::deletion::plan::Reason;
use layersweep::policy::kubelet::{
    CollectorReport, FsStats, KubeletFailure, KubeletPolicy, KubeletRecord, ListedContainer, ListedImage,
    Manager, Runtime,
};

use super::rows::{Container, Counters, Expect, Fs, Image, ImagesRow, Operation, PolicyFields, RecordFields};
use super::same;

pub fn run(row: &ImagesRow) -> Result<(), String> {
    if !row.layers.is_empty() {
        return Err("the kubelet does not know layers".into());
    }
    let by_handler = row.gates.runtime_class_in_image_cri;
    let records = row.initial_records.iter().map(|record| {
        let (id, handler) = record.key.split_once(',').unwrap_or((&record.key, ""));
        let known = KubeletRecord {
            id: id.into(),
            handler: handler.into(),
            first_detected: record.first_detected_ms.map(time),
            last_used: record.last_used_ms.map(time),
            ..KubeletRecord::default()
        };
        (record.key.clone(), known)
    });
    let policy = KubeletPolicy { by_handler, ..policy(&row.policy) };
    let mut manager = Manager { policy, began: time(row.gc_began_ms), records: records.collect() };
    let mut fake = Fake { by_handler, image_volumes: row.gates.image_volume, ..Fake::default() };
    for (number, step) in row.steps.iter().enumerate() {
        if let Some(images) = &step.images {
            fake.images = images.clone();
        }
        if let Some(containers) = &step.containers {
            fake.containers = containers.clone();
        }
        fake.fs = step.fs.or(fake.fs);
        (fake.images_fail, fake.pods_fail) = (step.list_images_error, step.list_pods_error);
        fake.attempted.clear();
        let now = time(step.at_ms);
        let report = match (step.operation, step.bytes_to_free) {
            (Operation::Detect, None) => {
                let first_detected = step.detect_time_ms.map_or(Some(now), |ms| ms.map(time));
                detect(&mut manager, &mut fake, first_detected, now)
            }
            (Operation::FreeSpace, Some(bytes)) => {
                make_space(&mut manager, &mut fake, bytes.try_into().unwrap_or(0), now)
            }
            (Operation::DeleteUnused, None) => make_space(&mut manager, &mut fake, EVERYTHING, now),
            (Operation::GarbageCollect, None) => manager.garbage_collect(&mut fake, now),
            (operation, bytes) => return Err(format!("{operation:?} with bytes_to_free {bytes:?}")),
        };
        check(&step.expect, &report, &manager, &fake)
            .map_err(|error| format!("step {}: {error}", number + 1))?;
    }
    Ok(())
}

/// Bytes that the eviction manager requests under disk pressure: more than there are.
pub const EVERYTHING: u64 = u64::MAX - 1;

/// Runs the space pass alone: without an age, on a disk that lacks this many bytes.
pub fn make_space(manager: &mut Manager, fake: &mut Fake, bytes: u64, now: Timestamp) -> CollectorReport {
    let report = run_on(manager, fake, (0, 0), (bytes + 1, 1), now);
    let failure = report.failure.filter(|failure| !matches!(failure, KubeletFailure::NotEnoughFreed { .. }));
    CollectorReport { freed: report.freed, failure, ..CollectorReport::default() }
}

/// Runs the loop that only detects: without an age, on a disk with enough space.
fn detect(
    manager: &mut Manager,
    fake: &mut Fake,
    first_detected: Option<Timestamp>,
    now: Timestamp,
) -> CollectorReport {
    let known = manager.records.clone();
    let report = run_on(manager, fake, (101, 0), (1, 1), now);
    for (_, record) in manager.records.iter_mut().filter(|(key, _)| !known.contains_key(*key)) {
        record.first_detected = first_detected;
    }
    CollectorReport { failure: report.failure, ..CollectorReport::default() }
}

/// Runs by space alone, with other thresholds and on another disk.
fn run_on(
    manager: &mut Manager,
    fake: &mut Fake,
    (high_percent, low_percent): (i64, i64),
    (capacity, available): (u64, u64),
    now: Timestamp,
) -> CollectorReport {
    let requested =
        KubeletPolicy { high_percent, low_percent, max_age: SignedDuration::ZERO, ..manager.policy };
    let policy = std::mem::replace(&mut manager.policy, requested);
    let fs = Fs { capacity_bytes: Some(capacity), available_bytes: Some(available), error: false };
    let disk = fake.fs.replace(fs);
    let report = manager.garbage_collect(fake, now);
    (manager.policy, fake.fs) = (policy, disk);
    report
}

pub fn policy(fields: &PolicyFields) -> KubeletPolicy {
    KubeletPolicy {
        high_percent: fields.high_percent,
        low_percent: fields.low_percent,
        min_age: SignedDuration::from_millis(fields.min_age_ms),
        max_age: SignedDuration::from_millis(fields.max_age_ms),
        by_handler: false,
    }
}

pub fn time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

fn check(expect: &Expect, report: &CollectorReport, manager: &Manager, fake: &Fake) -> Result<(), String> {
    if expect.outcome.is_some() || expect.kept.is_some() {
        return Err("the kubelet has no outcome and no rule".into());
    }
    let deleted: Vec<_> = report.freed.deleted.iter().map(|(key, _)| key.clone()).collect();
    let remaining: Vec<_> = fake.images.iter().map(|image| fake.key(image)).collect();
    if let Some(error) = &expect.error {
        same("error", error, &report.failure.as_ref().map(code))?;
    }
    lists(expect, &deleted, &remaining)?;
    if let Some(attempted) = &expect.attempted {
        same("attempted", attempted, &fake.attempted)?;
    }
    if let Some(freed) = expect.freed_bytes {
        same("freed_bytes", &freed, &report.freed.freed_bytes)?;
    }
    if expect.usage_percent.is_some() {
        same("usage_percent", &expect.usage_percent, &report.usage_percent)?;
    }
    if let Some(wanted) = expect.amount_to_free {
        same("amount_to_free", &Some(i128::from(wanted)), &report.wanted_bytes)?;
    }
    if let Some(events) = &expect.events {
        let told: Vec<_> = report.events.iter().map(|event| event.as_str().to_owned()).collect();
        same("events", events, &told)?;
    }
    if let Some(counters) = &expect.counters {
        let count = |reason| report.freed.deleted.iter().filter(|(_, why)| *why == reason).count();
        same("counters", counters, &Counters { age: count(Reason::Age), space: count(Reason::Space) })?;
    }
    if let Some(records) = &expect.records {
        let known = manager.records.iter().map(|(key, record)| {
            let fields = RecordFields {
                first_detected_ms: record.first_detected.map(Timestamp::as_millisecond),
                last_used_ms: record.last_used.map(Timestamp::as_millisecond),
            };
            (key.clone(), fields)
        });
        same("records", records, &known.collect())?;
    }
    Ok(())
}

fn sorted(list: &[String]) -> Vec<String> {
    let mut list = list.to_vec();
    list.sort();
    list
}

/// Checks the lists of images, of either policy.
pub fn lists(expect: &Expect, deleted: &[String], remaining: &[String]) -> Result<(), String> {
    if let Some(expected) = &expect.deleted {
        match expect.deleted_order.as_deref() {
            Some("any") => same("deleted", &sorted(expected), &sorted(deleted))?,
            None | Some("strict") => same("deleted", expected, &deleted.to_vec())?,
            Some(other) => return Err(format!("unknown order {other}")),
        }
    }
    if let Some(one_of) = &expect.deleted_one_of
        && !(deleted.len() == 1 && one_of.contains(&deleted[0]))
    {
        return Err(format!("deleted: expected one of {one_of:?}, found {deleted:?}"));
    }
    if let Some(expected) = &expect.remaining {
        same("remaining", &sorted(expected), &sorted(remaining))?;
    }
    if let Some(count) = expect.remaining_count {
        same("remaining_count", &count, &remaining.len())?;
    }
    Ok(())
}

fn code(failure: &KubeletFailure) -> String {
    match failure {
        KubeletFailure::ListImages(_) => "list_images_failed",
        KubeletFailure::ListPods(_) => "list_pods_failed",
        KubeletFailure::FsStats(_) => "fs_stats_unavailable",
        KubeletFailure::InvalidCapacity => "invalid_capacity",
        KubeletFailure::AgeDeletion(_) => "age_deletion_errors",
        KubeletFailure::Deletion(_) => "deletion_errors",
        KubeletFailure::NotEnoughFreed { .. } => "not_enough_freed",
    }
    .into()
}

/// A runtime with the objects of a row.
#[derive(Default)]
pub struct Fake {
    pub by_handler: bool,
    /// True if containers may have images mounted.
    pub image_volumes: bool,
    pub images: Vec<Image>,
    pub containers: Vec<Container>,
    pub fs: Option<Fs>,
    /// Keys of the images that the kubelet tried to remove.
    pub attempted: Vec<String>,
    pub images_fail: bool,
    pub pods_fail: bool,
}

impl Fake {
    fn key(&self, image: &Image) -> String {
        if self.by_handler && !image.runtime_handler.is_empty() {
            format!("{},{}", image.id, image.runtime_handler)
        } else {
            image.id.clone()
        }
    }
}

fn failed() -> String {
    "the row says so".into()
}

impl Runtime for Fake {
    fn list_images(&mut self) -> Result<Vec<ListedImage>, String> {
        if self.images_fail {
            return Err(failed());
        }
        let listed = self.images.iter().map(|image| ListedImage {
            id: image.id.clone(),
            size_bytes: image.size,
            pinned: image.pinned,
            handler: image.runtime_handler.clone(),
        });
        Ok(listed.collect())
    }

    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, String> {
        if self.pods_fail {
            return Err(failed());
        }
        let listed = self.containers.iter().map(|container| ListedContainer {
            image_id: container.image_id.clone(),
            handler: container.runtime_handler.clone(),
            mounted_images: if self.image_volumes { container.image_mounts.clone() } else { Vec::new() },
        });
        Ok(listed.collect())
    }

    fn image_filesystem(&mut self) -> Result<FsStats, String> {
        match self.fs {
            Some(fs) if !fs.error => {
                Ok(FsStats { capacity_bytes: fs.capacity_bytes, available_bytes: fs.available_bytes })
            }
            _ => Err(failed()),
        }
    }

    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), String> {
        let keyed = self.by_handler;
        self.attempted.push(if handler.is_empty() { id.to_owned() } else { format!("{id},{handler}") });
        let is_removed = |image: &Image| image.id == id && (!keyed || image.runtime_handler == handler);
        if !self.images.iter().any(is_removed) {
            return Err(format!("there is no image {id}"));
        }
        if self.images.iter().any(|image| is_removed(image) && image.remove_error) {
            return Err(failed());
        }
        self.images.retain(|image| !is_removed(image));
        Ok(())
    }
}
