//! Metrics for Prometheus: the result of the last scans, the sums of all deletions, and the current usage of
//! the filesystems. `docs/metrics.md` describes them.

mod exposition;
mod families;
mod image_gc;
mod textfile;

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use exposition::{Exposition, Family, Type};
pub use families::FAMILIES;
pub use textfile::{FILE_NAME, WriteError, file, write};

use families as family;

use crate::app::metrics::MetricsData;
use crate::history::counters::{BYPRODUCT, Counter, KILLED, LastRun};
use crate::history::figures::{Figures, StoreFigures};
use crate::history::runs::{Command, OutcomeKind, TargetKind};
use crate::model::refs::Standing;
use crate::model::{ARTIFACTS, ContainerState, Filesystem, StoreId};
use crate::policy::Targets;
use crate::policy::Thresholds;
use crate::policy::forecast::Forecast;

pub fn text(facts: &MetricsData) -> String {
    let mut page = Exposition::default();
    page.add(family::BUILD_INFO, &[facts.version], 1);
    let filesystems = facts.filesystems.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    // All scans measure what is outside the stores of a filesystem: the last one counts.
    let mut newest: BTreeMap<String, &StoreFigures> = BTreeMap::new();
    for (store, filesystem) in facts.remembered.stores.iter().zip(filesystems) {
        let mount = mount_of(store, filesystem);
        add_store(&mut page, store, (&mount, filesystem), &facts.targets);
        let known = newest.entry(mount).or_insert(store);
        if known.scanned < store.scanned {
            *known = store;
        }
    }
    for (mount, store) in newest {
        add_outside(&mut page, &mount, &store.figures);
    }
    for (filesystem, forecast) in facts.filesystems.iter().zip(&facts.forecasts) {
        if let (Some(filesystem), Some(forecast)) = (filesystem, forecast) {
            add_forecast(&mut page, filesystem, forecast);
        }
    }
    for image in &facts.remembered.biggest {
        let (root, driver) = labels(&image.key);
        let labels = [&*root, driver, &image.id, &image.name];
        page.add(family::IMAGE_EXCLUSIVE, &labels, image.exclusive_bytes);
    }
    add_targets(&mut page, &facts.targets);
    for (path, bytes) in &facts.reserve_files {
        page.add(family::RESERVE_FILE, &[&path.to_string_lossy()], *bytes);
    }
    if let Some(counters) = &facts.remembered.counters {
        add_counters(&mut page, counters);
    }
    for run in &facts.remembered.last_runs {
        add_last_run(&mut page, run);
    }
    let database = &facts.database;
    page.add(family::DATABASE_OK, &[], u8::from(database.ok));
    for (family, number) in [
        (family::DATABASE_SIZE, database.bytes),
        (family::DATABASE_SET_ASIDE, database.set_aside),
        (family::WAITING, database.waiting),
    ] {
        number.into_iter().for_each(|number| page.add(family, &[], number));
    }
    page.text(FAMILIES)
}

fn labels(key: &StoreId) -> (String, &str) {
    (key.root().to_string_lossy().into_owned(), key.driver())
}

/// Returns the mount point of a store's filesystem: the present one, or else that of the scan.
fn mount_of(store: &StoreFigures, filesystem: Option<&Filesystem>) -> String {
    filesystem.map_or_else(
        || store.figures.mount.clone(),
        |filesystem| filesystem.mount.to_string_lossy().into_owned(),
    )
}

fn add_store(
    page: &mut Exposition,
    store: &StoreFigures,
    (mount, filesystem): (&str, Option<&Filesystem>),
    targets: &Targets,
) {
    let (root, driver) = labels(&store.key);
    let figures = &store.figures;
    let store_labels = [&*root, driver];
    let is_of_artifacts = driver == ARTIFACTS;
    page.add(family::STORE_INFO, &[store_labels[0], store_labels[1], store.key.kind().as_str(), mount], 1);
    page.add(family::SCAN_TIMESTAMP, &store_labels, seconds(store.scanned));
    page.add(family::SCAN_DURATION, &store_labels, store.seconds);
    page.add(family::SCAN_COMPLETE, &store_labels, u8::from(figures.complete));
    for (kind, bytes) in &figures.bytes {
        // A store of artifacts has no images.
        let kind = if is_of_artifacts && kind == "images" { ARTIFACTS } else { kind };
        page.add(family::STORAGE_BYTES, &[store_labels[0], store_labels[1], kind], *bytes);
    }
    for (owner, bytes) in &figures.fair {
        page.add(family::STORAGE_FAIR, &[store_labels[0], store_labels[1], owner], *bytes);
    }
    for (namespace, bytes) in &figures.namespaces {
        page.add(family::STORAGE_NAMESPACE, &[store_labels[0], store_labels[1], namespace], *bytes);
    }
    page.add(family::STORAGE_RECLAIMABLE, &store_labels, figures.reclaimable_bytes);
    page.add(family::STORAGE_INODES, &store_labels, figures.inodes);
    for standing in Standing::ALL {
        let count = figures.images.get(standing.as_str()).copied().unwrap_or(0);
        if is_of_artifacts {
            page.add(family::ARTIFACTS, &[store_labels[0], standing.as_str()], count)
        } else {
            page.add(family::IMAGES, &[store_labels[0], store_labels[1], standing.as_str()], count)
        }
    }
    page.add(family::LAYERS, &store_labels, figures.layers);
    for state in ContainerState::ALL {
        let count = figures.containers.get(state.as_str()).copied().unwrap_or(0);
        page.add(family::CONTAINERS, &[store_labels[0], store_labels[1], state.as_str()], count);
    }
    for leaks in &figures.leaks {
        let labels = [store_labels[0], store_labels[1], &leaks.class, &leaks.verdict];
        page.add(family::LEAKS, &labels, leaks.count);
        page.add(family::LEAK_BYTES, &labels, leaks.bytes);
    }
    // Figures that contradict each other are not published.
    if let Some(filesystem) = filesystem.filter(|filesystem| filesystem.used_percent().is_some()) {
        page.add(family::FILESYSTEM_SIZE, &[mount], filesystem.capacity_bytes);
        page.add(family::FILESYSTEM_AVAIL, &[mount], filesystem.available_bytes);
        if filesystem.inodes > 0 {
            page.add(family::FILESYSTEM_FILES, &[mount], filesystem.inodes);
            page.add(family::FILESYSTEM_FILES_FREE, &[mount], filesystem.inodes_free);
        }
        add_wanted(page, mount, filesystem, targets);
    }
}

fn add_outside(page: &mut Exposition, mount: &str, figures: &Figures) {
    for (kind, bytes) in &figures.outside {
        page.add(family::OUTSIDE, &[mount, kind], *bytes);
    }
    for place in &figures.places {
        let labels = [mount, &place.kind, &place.namespace, &place.name];
        page.add(family::PLACE_BYTES, &labels, place.bytes);
        page.add(family::PLACE_INODES, &labels, place.inodes);
    }
}

fn add_wanted(page: &mut Exposition, mount: &str, filesystem: &Filesystem, targets: &Targets) {
    let Ok(space) = filesystem.space() else { return };
    let Ok(started) = targets.start(&space) else { return };
    let wanted = targets.wanted(started, &space);
    page.add(family::WANTED_BYTES, &[mount], wanted.bytes);
    if space.inodes > 0 {
        page.add(family::WANTED_INODES, &[mount], wanted.inodes);
    }
}

fn add_forecast(page: &mut Exposition, filesystem: &Filesystem, forecast: &Forecast) {
    let full = forecast.until_full();
    let mount = filesystem.mount.to_string_lossy();
    for (bound, after) in [("expected", full.after), ("earliest", full.earliest), ("latest", full.latest)] {
        page.add(
            family::FILESYSTEM_FULL,
            &[&mount, bound],
            u64::try_from(after.as_secs()).unwrap_or_default(),
        );
    }
}

fn add_targets(page: &mut Exposition, targets: &Targets) {
    for (resource, thresholds) in [("bytes", targets.used), ("inodes", targets.inodes)] {
        if let Some(Thresholds { high, low }) = thresholds {
            page.add(family::HIGH_MARK, &[resource], f64::from(high) / 100.0);
            page.add(family::LOW_MARK, &[resource], f64::from(low) / 100.0);
        }
    }
    if let Some(floor) = targets.free {
        page.add(family::MIN_FREE, &[], floor.start_below);
    }
}

/// Commands that delete, with the outcomes of their runs and the kinds of objects that they delete. These
/// counters begin at 0, so that the first increase is visible.
const DELETING: [(Command, &[OutcomeKind], &[TargetKind]); 3] = [
    (
        Command::Gc,
        &[
            OutcomeKind::NotNeeded,
            OutcomeKind::Reached,
            OutcomeKind::NotReached,
            OutcomeKind::Failed,
            OutcomeKind::Refused,
        ],
        &[TargetKind::Image, TargetKind::Container, TargetKind::Sandbox, TargetKind::Log, TargetKind::Leak],
    ),
    (
        Command::Rm,
        &[OutcomeKind::NotNeeded, OutcomeKind::Reached, OutcomeKind::Failed, OutcomeKind::Refused],
        &[TargetKind::Image],
    ),
    (
        Command::Sweep,
        &[
            OutcomeKind::NotNeeded,
            OutcomeKind::Done,
            OutcomeKind::Incomplete,
            OutcomeKind::Failed,
            OutcomeKind::Refused,
        ],
        &[TargetKind::Leak],
    ),
];

fn add_counters(page: &mut Exposition, counters: &[Counter]) {
    for counter in counters {
        let labels = [&*counter.command, &*counter.label];
        let family = match (&*counter.name, &*counter.command) {
            ("runs", "scan") => {
                page.add(family::SCANS, &labels[1..], counter.value);
                continue;
            }
            ("runs", _) => family::RUNS,
            ("deletions", _) => family::DELETIONS,
            ("failures", _) => family::FAILURES,
            ("freed_bytes", _) => family::FREED,
            ("predicted_bytes", _) => family::PREDICTED,
            _ => continue,
        };
        page.add(family, &labels, counter.value);
    }
    image_gc::add_attempts(page, counters);
    // A sample that exists already is not replaced.
    for outcome in [OutcomeKind::Done, OutcomeKind::Incomplete] {
        page.add(family::SCANS, &[outcome.as_str()], 0);
    }
    for (command, outcomes, kinds) in DELETING {
        let command = command.as_str();
        for outcome in outcomes.iter().map(|outcome| outcome.as_str()).chain([KILLED]) {
            page.add(family::RUNS, &[command, outcome], 0);
        }
        for kind in kinds.iter().map(|kind| kind.as_str()) {
            for family in [family::DELETIONS, family::FAILURES, family::FREED, family::PREDICTED] {
                page.add(family, &[command, kind], 0);
            }
        }
        page.add(family::FREED, &[command, BYPRODUCT], 0);
    }
}

fn add_last_run(page: &mut Exposition, run: &LastRun) {
    let command = run.command.as_str();
    page.add(family::LAST_RUN, &[command], seconds(run.time));
    let outcome = run.outcome.map_or(UNFINISHED, OutcomeKind::as_str);
    page.add(family::LAST_OUTCOME, &[command, outcome], 1);
    let known = DELETING.iter().filter(|(of, ..)| *of == run.command).flat_map(|(_, outcomes, _)| *outcomes);
    for other in known.map(|outcome| outcome.as_str()).chain([UNFINISHED]) {
        page.add(family::LAST_OUTCOME, &[command, other], 0);
    }
    for change in &run.usage {
        for (family, percent) in [
            (family::USAGE_BEFORE, change.usage_before_percent),
            (family::USAGE_AFTER, change.usage_after_percent),
        ] {
            if let Some(percent) = percent {
                page.add(family, &[command, &change.mount], (percent * 100.0).round() / 10_000.0);
            }
        }
    }
    if let Some(seconds) = run.seconds {
        page.add(family::LAST_DURATION, &[command], (seconds * 1000.0).round() / 1000.0);
    }
    for (family, bytes) in [(family::LAST_WANTED, run.wanted_bytes), (family::LAST_FREED, run.measured_bytes)]
    {
        if let Some(bytes) = bytes {
            page.add(family, &[command], bytes);
        }
    }
    if run.command == Command::Gc {
        image_gc::add_last_attempt(page, run);
    }
}

/// Outcome of a run that did not end.
const UNFINISHED: &str = "unfinished";

/// Converts a time to seconds with three decimals.
fn seconds(time: Timestamp) -> f64 {
    (time.as_duration().as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_a_millisecond() {
        for (millis, text) in
            [(1_772_366_400_007, "1772366400.007"), (1_772_366_400_000, "1772366400"), (-1, "-0.001")]
        {
            assert_eq!(seconds(Timestamp::from_millisecond(millis).unwrap()).to_string(), text);
        }
    }
}
