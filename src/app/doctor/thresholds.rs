//! Our thresholds, the kubelet's and those of eviction, held against each other on each filesystem.
//!
//! The kubelet looks for eviction every 10 seconds and for image collection every 5 minutes
//! (`pkg/kubelet/eviction`, `ImageGCPeriod`). Where eviction comes first, the kubelet deletes every
//! unused image at once, and if that is not enough it evicts pods.

use crate::app::doctor::examination::{Check, Status};
use crate::model::kubelet_thresholds::{IMAGEFS, IMAGEFS_INODES, KubeletThresholds, NODEFS, NODEFS_INODES};
use crate::policy::Policy;
use crate::policy::kubelet::{ConfigFault, KubeletPolicy};
use crate::policy::space::Targets;
use crate::policy::thresholds::{Counted, Disk, evictions, floor_percent};

/// Less than this between collection and eviction, in percent of the disk, is too little to count
/// on: a pull takes it in less than five minutes.
const MARGIN: f64 = 5.0;

/// A share in use at which something happens, and what says so.
#[derive(Debug)]
struct Threshold {
    percent: f64,
    words: String,
    /// What it is if it comes before what should come first.
    status: Status,
}

/// All that the settings make of these disks.
pub fn thresholds(kubelet: &KubeletThresholds, ours: &Policy, disks: &[Disk]) -> Vec<Check> {
    let mut checks = validity(kubelet);
    checks.push(dropped(kubelet));
    checks.extend(age(kubelet, ours));
    for disk in disks {
        checks.push(order(kubelet, ours, disk));
        checks.push(our_bytes(kubelet, ours, disk));
        checks.extend(our_inodes(kubelet, ours, disk));
    }
    checks
}

/// Whether the kubelet would start with its settings.
fn validity(kubelet: &KubeletThresholds) -> Vec<Check> {
    const NAME: &str = "kubelet-settings";
    let KubeletThresholds { image_high: high, image_low: low, min_age: min, max_age: max, .. } = kubelet;
    let settings = KubeletPolicy {
        high_percent: high.value,
        low_percent: low.value,
        min_age: min.value,
        max_age: max.value,
        ..KubeletPolicy::default()
    };
    let no_percentage = |which: &str, percent: i64| {
        let message = format!("{percent} is not a percentage: the kubelet does not start with it");
        (message, format!("set the {which} threshold to a number from 0 to 100"))
    };
    let refused = |fault: ConfigFault| {
        let (object, (message, remedy)) = match fault {
            ConfigFault::HighOutOfRange => (high.source(), no_percentage("high", high.value)),
            ConfigFault::LowOutOfRange => (low.source(), no_percentage("low", low.value)),
            ConfigFault::LowNotBelowHigh => {
                let (low_percent, high) = (low.value, high.value);
                let message = format!(
                    "the low threshold of image collection is {low_percent} and the high one {high}: the kubelet \
                     does not start with these values"
                );
                (low.source(), (message, "set the low threshold below the high one".to_owned()))
            }
            ConfigFault::MaxAgeNegative | ConfigFault::MaxAgeNotAboveMinAge => {
                let message = format!(
                    "the maximum age of images is {:#} and the minimum age {:#}: the kubelet does not start with \
                     these values",
                    max.value, min.value
                );
                (
                    max.source(),
                    (message, "set imageMaximumGCAge above imageMinimumGCAge, or to 0s".to_owned()),
                )
            }
        };
        Check::new(NAME, Status::Error, object, message, remedy)
    };
    let checks: Vec<_> = settings.check().into_iter().map(refused).collect();
    if !checks.is_empty() {
        return checks;
    }
    let max = match max.value.is_zero() {
        true => String::new(),
        false => format!(", maximum age {:#}", max.value),
    };
    let (high_percent, low, min) = (high.value, low.value, min.value);
    let message = format!("image collection from {high_percent}% to {low}% used, minimum age {min:#}{max}");
    vec![Check::ok(NAME, high.source(), message)]
}

/// Setting one threshold of hard eviction takes the defaults of all others away.
fn dropped(kubelet: &KubeletThresholds) -> Check {
    const NAME: &str = "kubelet-eviction";
    let hard = &kubelet.hard;
    if kubelet.dropped.is_empty() {
        let signals: Vec<_> = [IMAGEFS, NODEFS, IMAGEFS_INODES, NODEFS_INODES]
            .iter()
            .filter_map(|signal| Some(format!("{signal}<{}", hard.value.get(*signal)?)))
            .collect();
        let message = match signals.is_empty() {
            true => "full disks never evict pods".to_owned(),
            false => format!("hard eviction at {}", signals.join(", ")),
        };
        return Check::ok(NAME, hard.source(), message);
    }
    Check::new(
        NAME,
        Status::Warning,
        hard.source(),
        format!(
            "hard eviction is set without {}: setting one threshold disables the defaults of all others",
            kubelet.dropped.join(", ")
        ),
        "set them all in evictionHard, or set mergeDefaultEvictionSettings: true",
    )
}

/// Collection by age on both sides.
fn age(kubelet: &KubeletThresholds, ours: &Policy) -> Option<Check> {
    let theirs = &kubelet.max_age;
    if theirs.value.is_zero() || theirs.value.is_negative() {
        return None;
    }
    let ours = match ours.max_age {
        Some(ours) if ours <= theirs.value => format!("layersweep's come first, after {ours:#}"),
        Some(ours) => format!("layersweep would keep them for {ours:#}"),
        None => "layersweep never deletes by age".to_owned(),
    };
    Some(Check::note(
        "image-age",
        theirs.source(),
        format!(
            "the kubelet deletes images that it has not seen in use for {:#}, even just pulled ones, and \
                restarts that count at each restart; {ours}",
            theirs.value
        ),
    ))
}

/// The first hard and the first soft eviction on a disk.
fn first_evictions(kubelet: &KubeletThresholds, disk: &Disk, of: Counted) -> Vec<Threshold> {
    let all = evictions(kubelet, disk);
    let first = |(hard, status)| {
        let of_kind = all.iter().filter(|one| one.of == of && one.hard == hard);
        let first = of_kind.min_by(|a, b| a.percent.total_cmp(&b.percent))?;
        let words = format!("{} eviction at {}<{}", first.kind(), first.signal, first.amount);
        Some(Threshold { percent: first.percent, words, status })
    };
    [(true, Status::Error), (false, Status::Warning)].into_iter().filter_map(first).collect()
}

fn lowest(all: &[Threshold]) -> Option<&Threshold> {
    all.iter().min_by(|a, b| a.percent.total_cmp(&b.percent))
}

/// From which share the kubelet collects images: it rounds what is used up, so that a threshold of
/// 85 is met by the first byte above 84%. `None`: switched off.
fn kubelets(kubelet: &KubeletThresholds) -> Option<f64> {
    let high = kubelet.image_high.value;
    let off = high >= 100 && kubelet.max_age.value.is_zero();
    #[allow(clippy::cast_precision_loss)] // a percentage
    (!off).then_some(high as f64 - 1.0)
}

/// From which share we do.
fn from(targets: &Targets, capacity_bytes: u64) -> Option<f64> {
    let high = targets.used.map(|thresholds| f64::from(thresholds.high));
    let floor = targets.free.and_then(|floor| floor_percent(floor, capacity_bytes));
    high.into_iter().chain(floor).min_by(f64::total_cmp)
}

/// The kubelet's image collection against eviction.
fn order(kubelet: &KubeletThresholds, ours: &Policy, disk: &Disk) -> Check {
    const NAME: &str = "kubelet-order";
    let check = |status, message: String, remedy: String| {
        Check::new(NAME, status, disk.mount.as_str(), message, remedy)
    };
    let (capacity, high) = (disk.capacity_bytes, &kubelet.image_high);
    let evictions = first_evictions(kubelet, disk, Counted::Bytes);
    let Some(evicts) = lowest(&evictions) else {
        return check(Status::Ok, "no eviction by the bytes of this filesystem".into(), String::new());
    };
    let ours_first = from(&ours.targets, capacity).is_some_and(|ours| ours < evicts.percent);
    let unless_ours = |status, message, remedy| match ours_first {
        true => check(Status::Note, message, String::new()),
        false => check(status, message, remedy),
    };
    let Some(collects) = kubelets(kubelet) else {
        let message = format!(
            "the kubelet's image collection is off ({}): before {} ({:.1}% used) only layersweep's runs",
            high.source(),
            evicts.words,
            evicts.percent
        );
        return unless_ours(Status::Error, message, lower_ours(evicts.percent));
    };
    if collects >= evicts.percent {
        let message = format!(
            "the kubelet collects images at {}% used ({}), but {} comes first, at {:.1}% used: pods are \
                evicted while unused images are still on the disk",
            high.value,
            high.source(),
            evicts.words,
            evicts.percent
        );
        return check(evicts.status, message, lower_theirs(evicts.percent));
    }
    if evicts.percent - collects < MARGIN {
        let message = format!(
            "{} ({:.1}% used) is just above the kubelet's image collection ({}% used): eviction is \
                checked every 10 seconds and collection every 5 minutes, so eviction often comes first{}",
            evicts.words,
            evicts.percent,
            high.value,
            if ours_first { "; layersweep's gc comes before both" } else { "" }
        );
        return unless_ours(Status::Warning, message, lower_theirs(evicts.percent));
    }
    check(
        Status::Ok,
        format!(
            "the kubelet collects images at {}% used, {} comes at {:.1}% used",
            high.value, evicts.words, evicts.percent
        ),
        String::new(),
    )
}

fn well_below(percent: f64) -> f64 {
    (percent - MARGIN).floor().clamp(2.0, 95.0)
}

fn lower_theirs(below: f64) -> String {
    format!(
        "set the kubelet's imageGCHighThresholdPercent to {} or less and imageGCLowThresholdPercent below that",
        well_below(below)
    )
}

fn lower_ours(below: f64) -> String {
    format!("set images.high_percent to {} or less", well_below(below))
}

/// Our thresholds against both.
fn our_bytes(kubelet: &KubeletThresholds, ours: &Policy, disk: &Disk) -> Check {
    const NAME: &str = "our-thresholds";
    let check = |status, message: String, remedy: String| {
        Check::new(NAME, status, disk.mount.as_str(), message, remedy)
    };
    let capacity = disk.capacity_bytes;
    // The worst first.
    let mut all = first_evictions(kubelet, disk, Counted::Bytes);
    all.extend(kubelets(kubelet).map(|percent| Threshold {
        percent,
        words: format!("the kubelet's image collection at {}%", kubelet.image_high.value),
        status: Status::Warning,
    }));
    let lowest = all.iter().map(|threshold| threshold.percent).fold(100.0, f64::min);
    let Some(starts) = from(&ours.targets, capacity) else {
        return check(
            Status::Warning,
            "neither images.high_percent nor images.min_free is set: gc never deletes for lack of bytes"
                .into(),
            lower_ours(lowest),
        );
    };
    if let Some(threshold) = all.iter().find(|threshold| threshold.percent <= starts) {
        let message = format!(
            "gc starts at {starts:.1}% used, but {} comes first, at {:.1}% used",
            threshold.words, threshold.percent
        );
        return check(threshold.status, message, lower_ours(lowest));
    }
    let rest: Vec<_> = all
        .iter()
        .rev()
        .map(|threshold| format!("{} ({:.1}% used)", threshold.words, threshold.percent))
        .collect();
    let message = match rest.is_empty() {
        true => format!("gc starts at {starts:.1}% used"),
        false => format!("gc starts at {starts:.1}% used, before {}", rest.join(" and ")),
    };
    check(Status::Ok, message, String::new())
}

/// Inodes, where their number is fixed. The kubelet never collects for want of inodes but by
/// eviction.
fn our_inodes(kubelet: &KubeletThresholds, ours: &Policy, disk: &Disk) -> Option<Check> {
    const NAME: &str = "our-inodes";
    if disk.inodes == 0 {
        return None;
    }
    let evictions = first_evictions(kubelet, disk, Counted::Inodes);
    let evicts = lowest(&evictions)?;
    let remedy = format!("set images.inodes_high_percent to {} or less", well_below(evicts.percent));
    let mount = disk.mount.as_str();
    Some(match ours.targets.inodes {
        None => Check::new(
            NAME,
            Status::Note,
            mount,
            format!(
                "neither gc nor the kubelet deletes for lack of inodes before {} ({:.1}% of the inodes used)",
                evicts.words, evicts.percent
            ),
            remedy,
        ),
        Some(thresholds) if f64::from(thresholds.high) >= evicts.percent => Check::new(
            NAME,
            evicts.status,
            mount,
            format!(
                "gc starts at {}% of the inodes used, but {} comes first, at {:.1}%",
                thresholds.high, evicts.words, evicts.percent
            ),
            remedy,
        ),
        Some(thresholds) => Check::ok(
            NAME,
            mount,
            format!(
                "gc starts at {}% of the inodes used, before {} ({:.1}%)",
                thresholds.high, evicts.words, evicts.percent
            ),
        ),
    })
}

#[cfg(test)]
mod tests;
