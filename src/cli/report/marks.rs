//! The shares in use at which something happens, on each filesystem.

use std::path::PathBuf;

use crate::config::Config;
use crate::gc::story::Mark;
use crate::inventory::FilesystemIx;
use crate::node::kubelet::Kubelet;
use crate::node::thresholds::{IMAGEFS, NODEFS, Thresholds};
use crate::node::{places, thresholds};
use crate::survey::Survey;
use crate::survey::tenants::filesystem_of;
use crate::sys::processes::Processes;

/// By filesystem, the lowest first.
pub(super) fn marks(config: &Config, survey: &Survey) -> Vec<Vec<Mark>> {
    let kubelet = match Processes::read() {
        Ok(processes) if !survey.sysroot.is_foreign() => Kubelet::read_running(&survey.sysroot, &processes),
        _ => Kubelet::read(&survey.sysroot),
    };
    let nodefs = kubelet.is_here().then(|| nodefs(config, &kubelet, survey)).flatten();
    let thresholds = kubelet.is_here().then(|| thresholds::read(&kubelet).0);
    let inventory = &survey.inventory;
    let of = |at: FilesystemIx| {
        let capacity = inventory.filesystems[at.get()].capacity_bytes;
        let images = inventory.stores.iter().any(|store| store.filesystem == at && !store.read_only);
        let mut marks = Vec::new();
        if images {
            marks.extend(ours(config, capacity));
        }
        if let Some(thresholds) = &thresholds {
            marks.extend(theirs(thresholds, capacity, images, nodefs == Some(at)));
        }
        marks.sort_by(|a, b| a.percent.total_cmp(&b.percent).then_with(|| a.name.cmp(&b.name)));
        marks
    };
    (0..inventory.filesystems.len()).map(|at| of(at.into())).collect()
}

fn ours(config: &Config, capacity: u64) -> Vec<Mark> {
    let targets = config.images.targets;
    let mark = |name: &str, percent: f64| Mark { name: name.into(), percent, source: "layersweep" };
    let mut marks = Vec::new();
    if let Some(used) = targets.used {
        marks.push(mark("gc high", f64::from(used.high)));
        marks.push(mark("gc low", f64::from(used.low)));
    }
    if let Some(free) = targets.free
        && capacity > 0
    {
        #[allow(clippy::cast_precision_loss)] // shown in percent
        let percent = 100.0 - free.start_below as f64 * 100.0 / capacity as f64;
        marks.push(mark("gc high (free bytes)", percent.max(0.0)));
    }
    marks
}

fn theirs(thresholds: &Thresholds, capacity: u64, images: bool, nodefs: bool) -> Vec<Mark> {
    let mut marks = Vec::new();
    #[allow(clippy::cast_precision_loss)] // a percentage
    let mut image_gc = |name: &str, percent: i64| {
        marks.push(Mark { name: name.into(), percent: percent as f64, source: "kubelet" });
    };
    if images {
        image_gc("image GC high", thresholds.image_high.value);
        image_gc("image GC low", thresholds.image_low.value);
    }
    for (name, signals) in
        [("hard eviction", &thresholds.hard.value), ("soft eviction", &thresholds.soft.value)]
    {
        for (signal, counts) in [(IMAGEFS, images), (NODEFS, nodefs)] {
            let percent =
                signals.get(signal).filter(|_| counts).and_then(|amount| amount.used_percent(capacity));
            marks.extend(percent.map(|percent| Mark {
                name: format!("{name} ({signal})"),
                percent: (percent * 100.0).round() / 100.0,
                source: "eviction",
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
