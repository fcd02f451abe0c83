//! The kubelet's collector: one run, step by step.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::deletion::plan::Reason;
use crate::policy::kubelet::detect::{KubeletRecords, detect};
use crate::policy::kubelet::failure::{KubeletEvent, KubeletFailure};
use crate::policy::kubelet::runtime::Runtime;
use crate::policy::kubelet::settings::KubeletPolicy;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreedImages {
    /// Keys of the images that the runtime reports as removed, in order, with the reason.
    pub deleted: Vec<(String, Reason)>,
    /// Sum of the listed sizes of the images deleted for space: the bytes that the kubelet believes it freed.
    pub freed_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectorReport {
    pub freed: FreedImages,
    /// Percentage used as the kubelet rounds it; `None` if the run ended before that.
    pub usage_percent: Option<i64>,
    /// Bytes that the run wanted to free; `None` if the threshold was not reached.
    pub wanted_bytes: Option<i128>,
    pub events: Vec<KubeletEvent>,
    pub failure: Option<KubeletFailure>,
}

#[derive(Clone, Debug)]
pub struct Manager {
    pub policy: KubeletPolicy,
    /// Start of its loop. No image is too old before the maximum age has passed since then.
    pub began: Timestamp,
    /// Its memory. A kubelet that has just started remembers nothing.
    pub records: KubeletRecords,
}

impl Manager {
    /// Runs the collection once: by age, then by space.
    pub fn garbage_collect(&mut self, runtime: &mut dyn Runtime, now: Timestamp) -> CollectorReport {
        let mut report = CollectorReport::default();
        report.failure = self.run(runtime, now, &mut report).err();
        report
    }

    fn run(
        &mut self,
        runtime: &mut dyn Runtime,
        now: Timestamp,
        report: &mut CollectorReport,
    ) -> Result<(), KubeletFailure> {
        let images = self.eviction_order(runtime, now)?;
        let images = self.free_old(runtime, images, now, &mut report.freed)?;
        let stats = runtime.image_filesystem().map_err(KubeletFailure::FsStats)?;
        let capacity = i128::from(stats.capacity_bytes.unwrap_or(0));
        // Missing numbers count as full, impossible ones as empty.
        let available = i128::from(stats.available_bytes.unwrap_or(0)).min(capacity);
        if capacity == 0 {
            report.events.push(KubeletEvent::InvalidDiskCapacity);
            return Err(KubeletFailure::InvalidCapacity);
        }
        // Used is rounded up, since available is rounded down.
        let used = 100 - available * 100 / capacity;
        report.usage_percent = i64::try_from(used).ok();
        if used < i128::from(self.policy.high_percent) {
            return Ok(());
        }
        let wanted_bytes = capacity * i128::from(100 - self.policy.low_percent) / 100 - available;
        report.wanted_bytes = Some(wanted_bytes);
        let freed_bytes = self.free_space(runtime, &images, wanted_bytes, now, &mut report.freed)?;
        if i128::from(freed_bytes) < wanted_bytes {
            report.events.push(KubeletEvent::FreeDiskSpaceFailed);
            return Err(KubeletFailure::NotEnoughFreed { wanted_bytes, freed_bytes });
        }
        Ok(())
    }

    /// Returns the keys of all images that nothing uses or pins: least recently used first, then first detected
    /// first. Never is before every time. The kubelet leaves the order of equal images to chance; here it is that
    /// of the keys.
    fn eviction_order(
        &mut self,
        runtime: &mut dyn Runtime,
        now: Timestamp,
    ) -> Result<Vec<String>, KubeletFailure> {
        let in_use: BTreeSet<_> = detect(&mut self.records, self.policy.by_handler, runtime, now)?;
        let mut images: Vec<_> =
            self.records.iter().filter(|(key, record)| !record.pinned && !in_use.contains(*key)).collect();
        images.sort_by_key(|(_, record)| (record.last_used, record.first_detected));
        Ok(images.into_iter().map(|(key, _)| key.clone()).collect())
    }

    fn free_old(
        &mut self,
        runtime: &mut dyn Runtime,
        images: Vec<String>,
        now: Timestamp,
        freed: &mut FreedImages,
    ) -> Result<Vec<String>, KubeletFailure> {
        let limit = self.policy.max_age;
        if limit.is_zero() || now.duration_since(self.began) <= limit {
            return Ok(images);
        }
        let (mut rest, mut failed) = (Vec::new(), Vec::new());
        for key in images {
            let last_used = self.records.get(&key).and_then(|record| record.last_used);
            if since(last_used, now) <= limit {
                rest.push(key);
            } else if let Err(error) = self.remove(runtime, &key, Reason::Age, freed) {
                failed.push((key, error));
            }
        }
        if failed.is_empty() { Ok(rest) } else { Err(KubeletFailure::AgeDeletion(failed)) }
    }

    fn free_space(
        &mut self,
        runtime: &mut dyn Runtime,
        images: &[String],
        wanted_bytes: i128,
        now: Timestamp,
        freed: &mut FreedImages,
    ) -> Result<u64, KubeletFailure> {
        let mut failed = Vec::new();
        for key in images {
            let Some(record) = self.records.get(key) else { continue };
            if record.last_used.is_some_and(|used| used >= now) {
                continue;
            }
            if since(record.first_detected, now) < self.policy.min_age {
                continue;
            }
            let size = record.size_bytes;
            if let Err(error) = self.remove(runtime, key, Reason::Space, freed) {
                failed.push((key.clone(), error));
                continue;
            }
            freed.freed_bytes = freed.freed_bytes.saturating_add(size);
            // The check is after the deletion, so that one image is deleted even if nothing is wanted.
            if i128::from(freed.freed_bytes) >= wanted_bytes {
                break;
            }
        }
        if failed.is_empty() { Ok(freed.freed_bytes) } else { Err(KubeletFailure::Deletion(failed)) }
    }

    fn remove(
        &mut self,
        runtime: &mut dyn Runtime,
        key: &str,
        reason: Reason,
        freed: &mut FreedImages,
    ) -> Result<(), String> {
        let Some(record) = self.records.get(key) else { return Ok(()) };
        runtime.remove_image(&record.id, &record.handler)?;
        self.records.remove(key);
        freed.deleted.push((key.to_owned(), reason));
        Ok(())
    }
}

/// Returns the duration since a time. `None` means never, which is longer ago than any time.
fn since(time: Option<Timestamp>, now: Timestamp) -> SignedDuration {
    time.map_or(SignedDuration::MAX, |time| now.duration_since(time))
}
