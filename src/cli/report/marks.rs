//! The shares in use at which something happens, on each filesystem.

use std::path::PathBuf;

use crate::app::diagnosis::{Counted, Mark};
use crate::config::Config;
use crate::model::words::bytes;
use crate::model::{Filesystem, FilesystemIx};
use crate::node::kubelet::Kubelet;
use crate::node::thresholds::{IMAGEFS, IMAGEFS_INODES, NODEFS, NODEFS_INODES, Thresholds};
use crate::node::{places, thresholds};
use crate::policy::space::Targets;
use crate::stores::Survey;
use crate::stores::other_usage::filesystem_of;
use crate::sys::processes::Processes;

/// By filesystem, the lowest first.
pub(super) fn marks(config: &Config, survey: &Survey) -> Vec<Vec<Mark>> {
    let kubelet = match Processes::read_with_kubelet() {
        Ok(processes) if !survey.sysroot.is_foreign() => Kubelet::read_running(&survey.sysroot, &processes),
        _ => Kubelet::read(&survey.sysroot),
    };
    let nodefs = kubelet.is_here().then(|| nodefs(config, &kubelet, survey)).flatten();
    let thresholds = kubelet.is_here().then(|| thresholds::read(&kubelet).0);
    let inventory = &survey.inventory;
    let of = |at: FilesystemIx| {
        let facts = &inventory.filesystems[at.get()];
        let images = inventory.stores.iter().any(|store| store.filesystem == at && !store.read_only);
        let mut marks = Vec::new();
        if images {
            marks.extend(ours(&config.images.targets, facts));
        }
        if let Some(thresholds) = &thresholds {
            marks.extend(theirs(thresholds, facts, images, nodefs == Some(at)));
        }
        marks.sort_by(|a, b| a.percent.total_cmp(&b.percent).then_with(|| a.name.cmp(&b.name)));
        marks
    };
    (0..inventory.filesystems.len()).map(|at| of(at.into())).collect()
}

/// Filesystems for which a mark of ours cannot be meant, and why.
pub(super) fn doubts(config: &Config, survey: &Survey) -> Vec<(FilesystemIx, String)> {
    let Some(free) = config.images.targets.free else { return Vec::new() };
    let stores = || survey.inventory.stores.iter().filter(|store| !store.read_only);
    let all = survey.inventory.filesystems.iter().enumerate();
    let small = all.filter(|(_, facts)| facts.capacity_bytes < free.until);
    small
        .map(|(at, facts)| (FilesystemIx::from(at), facts))
        .filter(|(at, _)| stores().any(|store| store.filesystem == *at))
        .map(|(at, facts)| {
            let why = format!(
                "images.min_free (or free_until) wants {} free, and it has only {} in all: `layersweep gc` \
                 refuses to decide anything here",
                bytes(free.until),
                bytes(facts.capacity_bytes)
            );
            (at, why)
        })
        .collect()
}

fn ours(targets: &Targets, facts: &Filesystem) -> Vec<Mark> {
    let capacity = facts.capacity_bytes;
    let mark = |name: &str, percent: f64| Mark {
        name: name.into(),
        percent,
        source: "layersweep",
        of: Counted::Bytes,
    };
    let mut marks = Vec::new();
    if let Some(used) = targets.used {
        marks.push(mark("gc high", f64::from(used.high)));
        marks.push(mark("gc low", f64::from(used.low)));
    }
    // More than there is can never be free: that is told of, and no mark.
    if let Some(free) = targets.free
        && free.until <= capacity
        && capacity > 0
    {
        #[allow(clippy::cast_precision_loss)] // shown in percent
        let percent = 100.0 - free.start_below as f64 * 100.0 / capacity as f64;
        marks.push(mark("gc high (free bytes)", percent.max(0.0)));
    }
    if let Some(inodes) = targets.inodes.filter(|_| facts.inodes > 0) {
        for (name, percent) in [("gc by inodes high", inodes.high), ("gc by inodes low", inodes.low)] {
            marks.push(Mark { of: Counted::Inodes, ..mark(name, f64::from(percent)) });
        }
    }
    marks
}

fn theirs(thresholds: &Thresholds, facts: &Filesystem, images: bool, nodefs: bool) -> Vec<Mark> {
    let mut marks = Vec::new();
    #[allow(clippy::cast_precision_loss)] // a percentage
    let mut image_gc = |name: &str, percent: i64| {
        marks.push(Mark {
            name: name.into(),
            percent: percent as f64,
            source: "kubelet",
            of: Counted::Bytes,
        });
    };
    if images {
        image_gc("image GC high", thresholds.image_high.value);
        image_gc("image GC low", thresholds.image_low.value);
    }
    for (name, signals) in
        [("hard eviction", &thresholds.hard.value), ("soft eviction", &thresholds.soft.value)]
    {
        for (signal, counts, of) in [
            (IMAGEFS, images, Counted::Bytes),
            (NODEFS, nodefs, Counted::Bytes),
            (IMAGEFS_INODES, images && facts.inodes > 0, Counted::Inodes),
            (NODEFS_INODES, nodefs && facts.inodes > 0, Counted::Inodes),
        ] {
            let whole = if of == Counted::Bytes { facts.capacity_bytes } else { facts.inodes };
            let percent =
                signals.get(signal).filter(|_| counts).and_then(|amount| amount.used_percent(whole));
            marks.extend(percent.map(|percent| Mark {
                name: format!("{name} ({signal})"),
                percent: (percent * 100.0).round() / 100.0,
                source: "eviction",
                of,
            }));
        }
    }
    marks
}

/// The filesystem of the kubelet's own directory.
fn nodefs(config: &Config, kubelet: &Kubelet, survey: &Survey) -> Option<FilesystemIx> {
    let said = kubelet.flag_in_effect("--root-dir").map(|setting| PathBuf::from(setting.value));
    let root = config.kubelet.root_dir.clone().or(said).unwrap_or_else(|| places::ROOT.into());
    let path = root.ancestors().find_map(|path| survey.sysroot.resolve(path).ok())?;
    filesystem_of(survey, &path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::space::{FreeFloor, Marks};

    #[test]
    fn what_cannot_be_is_no_mark() {
        let facts = Filesystem {
            mount: "/".into(),
            device: "/dev/x".into(),
            fstype: "ext4".into(),
            capacity_bytes: 1000,
            used_bytes: 100,
            available_bytes: 900,
            inodes: 10,
            inodes_free: 5,
        };
        let floor =
            |until| Targets { free: Some(FreeFloor { start_below: 200, until }), ..Targets::default() };
        let found = ours(&floor(300), &facts);
        assert_eq!((found.len(), found[0].percent, found[0].of), (1, 80.0, Counted::Bytes));
        assert!(ours(&floor(1001), &facts).is_empty());
        let inodes = Targets { inodes: Some(Marks { high: 90, low: 85 }), ..Targets::default() };
        assert_eq!(ours(&inodes, &facts).iter().map(|mark| mark.percent).collect::<Vec<_>>(), [90.0, 85.0]);
        assert!(ours(&inodes, &Filesystem { inodes: 0, ..facts }).is_empty(), "btrfs counts none");
    }
}
