//! Comparison of layersweep's thresholds, the kubelet's image collection and its eviction on each filesystem.
//!
//! The kubelet checks for eviction every 10 seconds and for image collection every 5 minutes
//! (`pkg/kubelet/eviction`, `ImageGCPeriod`). If the eviction threshold is reached first, the kubelet deletes every
//! unused image at once, and if that is not enough it evicts pods. The right order is therefore: layersweep, then
//! image collection, then eviction.

use super::check::{Check, Status};
use super::node::CheckedSettings;
use crate::model::kubelet_thresholds::{IMAGEFS, IMAGEFS_INODES, KubeletThresholds, NODEFS, NODEFS_INODES};
use crate::policy::kubelet::{ConfigFault, KubeletPolicy};
use crate::policy::space::{Targets, Thresholds};
use crate::policy::thresholds::{Counted, Disk, evictions, floor_percent};

/// Effect of eviction, which the thresholds of image collection do not change.
const EVICTION: &str = "eviction deletes every unused image, and then evicts pods";

/// Minimum distance between collection and eviction, in percent of the disk. A pull can fill a smaller distance before
/// the kubelet checks for collection again.
const MARGIN: f64 = 5.0;

/// Used percentage at which the kubelet acts.
#[derive(Debug)]
struct Threshold {
    percent: f64,
    words: String,
    /// Status of the check if this threshold is reached before one that should be lower.
    status: Status,
}

pub(super) fn validity(settings: &CheckedSettings<'_>) -> Vec<Check> {
    let KubeletThresholds { image_high: high, image_low: low, min_age: min, max_age: max, .. } =
        &settings.kubelet;
    let policy = KubeletPolicy {
        high_percent: high.value,
        low_percent: low.value,
        min_age: min.value,
        max_age: max.value,
        ..KubeletPolicy::default()
    };
    let faults = policy.check().into_iter();
    let errors = faults.map(|fault| match fault {
        ConfigFault::HighOutOfRange => no_percentage(high.source(), "high", high.value),
        ConfigFault::LowOutOfRange => no_percentage(low.source(), "low", low.value),
        ConfigFault::LowNotBelowHigh => {
            let message = format!(
                "the low threshold of image collection is {} and the high one {}: the kubelet does not start with \
                 these values",
                low.value, high.value
            );
            Check::error(low.source(), message, "set the low threshold below the high one")
        }
        ConfigFault::MaxAgeNegative | ConfigFault::MaxAgeNotAboveMinAge => {
            let message = format!(
                "the maximum age of images is {:#} and the minimum age {:#}: the kubelet does not start with these \
                 values",
                max.value, min.value
            );
            let remedy = "set imageMaximumGCAge above imageMinimumGCAge, or to 0s";
            Check::error(max.source(), message, remedy)
        }
    });
    let mut checks: Vec<_> = errors.collect();
    if checks.is_empty() {
        let max = if max.value.is_zero() { String::new() } else { format!(", maximum age {:#}", max.value) };
        let (from, to, min) = (high.value, low.value, min.value);
        let space = if from >= 100 { "off (100%)".into() } else { format!("from {from}% to {to}% used") };
        let message = format!("image collection {space}, minimum age {min:#}{max}");
        checks.push(Check::ok(high.source(), message));
    }
    checks
}

fn no_percentage(source: &str, which: &str, percent: i64) -> Check {
    let message = format!("{percent} is not a percentage: the kubelet does not start with it");
    Check::error(source, message, format!("set the {which} threshold to a number from 0 to 100"))
}

/// Checks for hard eviction without some default thresholds: setting one threshold removes all defaults.
pub(super) fn dropped(settings: &CheckedSettings<'_>) -> Vec<Check> {
    let (hard, dropped) = (&settings.kubelet.hard, &settings.kubelet.dropped);
    if !dropped.is_empty() {
        let message = format!(
            "hard eviction is set without {}: setting one threshold disables the defaults of all others",
            dropped.join(", ")
        );
        let remedy = "set them all in evictionHard, or set mergeDefaultEvictionSettings: true";
        return vec![Check::warning(hard.source(), message, remedy)];
    }
    let signals: Vec<_> = [IMAGEFS, NODEFS, IMAGEFS_INODES, NODEFS_INODES]
        .into_iter()
        .filter_map(|signal| Some(format!("{signal}<{}", hard.value.get(signal)?)))
        .collect();
    vec![if signals.is_empty() {
        Check::note(hard.source(), "no hard eviction threshold for full disks is set")
    } else {
        Check::ok(hard.source(), format!("hard eviction at {}", signals.join(", ")))
    }]
}

pub(super) fn age(settings: &CheckedSettings<'_>) -> Vec<Check> {
    let kubelet_age = &settings.kubelet.max_age;
    if kubelet_age.value.is_zero() || kubelet_age.value.is_negative() {
        return Vec::new();
    }
    let layersweep = match settings.images.max_age {
        Some(age) if age <= kubelet_age.value => format!("layersweep's come first, after {age:#}"),
        Some(age) => format!("layersweep would keep them for {age:#}"),
        None if settings.images.has_age_pass() => {
            "layersweep deletes only those of an [[images.rule]] by age".to_owned()
        }
        None => "images.max_age is off here".to_owned(),
    };
    let message = format!(
        "the kubelet deletes images that it has not seen in use for {:#}, even just pulled ones, and restarts that \
         count at each restart; {layersweep}",
        kubelet_age.value
    );
    vec![Check::note(kubelet_age.source(), message)]
}

/// Returns the lowest hard and the lowest soft eviction threshold on a disk.
fn first_evictions(kubelet: &KubeletThresholds, disk: &Disk, of: Counted) -> Vec<Threshold> {
    let evictions = evictions(kubelet, disk);
    let mut lowest = Vec::new();
    for (hard, status) in [(true, Status::Error), (false, Status::Warning)] {
        let of_kind = evictions.iter().filter(|eviction| eviction.of == of && eviction.hard == hard);
        if let Some(first) = of_kind.min_by(|a, b| a.percent.total_cmp(&b.percent)) {
            let words = format!("{} eviction at {}<{}", first.kind(), first.signal, first.amount);
            lowest.push(Threshold { percent: first.percent, words, status });
        }
    }
    lowest
}

fn lowest(thresholds: &[Threshold]) -> Option<&Threshold> {
    thresholds.iter().min_by(|a, b| a.percent.total_cmp(&b.percent))
}

/// Returns true if the kubelet's image collection is off: layersweep alone collects.
pub(super) fn is_collection_off(kubelet: &KubeletThresholds) -> bool {
    kubelet.image_high.value >= 100 && kubelet.max_age.value.is_zero()
}

/// Returns true if pods are evicted for lack of bytes on a disk.
pub(super) fn has_eviction(settings: &CheckedSettings<'_>) -> bool {
    settings.disks.iter().any(|disk| !first_evictions(&settings.kubelet, disk, Counted::Bytes).is_empty())
}

/// Returns the used percentage above which the kubelet collects images, or `None` if that is off. The kubelet rounds
/// the usage up, so that the first byte above 84% reaches a threshold of 85.
fn kubelet_starts(kubelet: &KubeletThresholds) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)] // a percentage
    (!is_collection_off(kubelet)).then_some(kubelet.image_high.value as f64 - 1.0)
}

/// Returns the used percentage at which `gc` starts to delete, or `None` if no threshold is set.
fn gc_starts(targets: &Targets, capacity_bytes: u64) -> Option<f64> {
    let high = targets.used.map(|thresholds| f64::from(thresholds.high));
    let floor = targets.free.and_then(|floor| floor_percent(floor, capacity_bytes));
    high.into_iter().chain(floor).min_by(f64::total_cmp)
}

fn well_below(percent: f64) -> f64 {
    (percent - MARGIN).floor().clamp(2.0, 95.0)
}

/// Returns the remedy for a high threshold of layersweep that another threshold comes before. The configuration is
/// refused if it sets a low threshold above the high one.
fn lower_high(which: &str, marks: Option<Thresholds>, below: f64) -> String {
    let high = well_below(below);
    let low = match marks {
        Some(marks) if f64::from(marks.low) > high => {
            format!(", and {which}low_percent, if it is set, below that")
        }
        _ => String::new(),
    };
    format!("set {which}high_percent to {high} or less{low}")
}

pub(super) fn order(settings: &CheckedSettings<'_>) -> Vec<Check> {
    settings.disks.iter().map(|disk| order_on(settings, disk)).collect()
}

fn order_on(settings: &CheckedSettings<'_>, disk: &Disk) -> Check {
    let (kubelet, mount) = (&settings.kubelet, &disk.mount);
    let (high, source) = (kubelet.image_high.value, kubelet.image_high.source());
    let evictions = first_evictions(kubelet, disk, Counted::Bytes);
    let Some(Threshold { percent, words, status }) = lowest(&evictions) else {
        return Check::ok(mount, "no eviction threshold for the bytes of this filesystem was found");
    };
    let gc = gc_starts(&settings.images.targets, disk.capacity_bytes);
    let is_gc_first = gc.is_some_and(|starts| starts < *percent);
    let lower_image_gc = format!(
        "set the kubelet's imageGCHighThresholdPercent to {} or less and imageGCLowThresholdPercent below that",
        well_below(*percent)
    );
    let Some(collects) = kubelet_starts(kubelet) else {
        let message = format!(
            "the kubelet's image collection is off ({source}): only layersweep's gc comes before {words} ({percent:.1}% \
             used); {EVICTION}"
        );
        return if is_gc_first {
            Check::note(mount, message)
        } else {
            Check::error(mount, message, lower_high("images.", settings.images.targets.used, *percent))
        };
    };
    if collects >= *percent {
        let message = format!(
            "the kubelet collects images at {high}% used ({source}), but {words} comes first, at {percent:.1}% used: \
             eviction deletes every unused image at once, then evicts pods, before the collection ever starts"
        );
        return Check::new(*status, mount, message, lower_image_gc);
    }
    if percent - collects < MARGIN {
        let message = format!(
            "{words} ({percent:.1}% used) is just above the kubelet's image collection ({high}% used): eviction is \
             checked every 10 seconds and collection every 5 minutes, so eviction often comes first"
        );
        return if is_gc_first {
            Check::note(mount, format!("{message}; layersweep's gc comes before both"))
        } else {
            Check::warning(mount, message, lower_image_gc)
        };
    }
    let after = match gc.filter(|starts| *starts < collects) {
        Some(starts) => format!(", as the last resort after gc ({starts:.1}%)"),
        None => String::new(),
    };
    Check::ok(
        mount,
        format!(
            "the kubelet collects images at {high}% used{after}, {words} comes at {percent:.1}% used; {EVICTION}"
        ),
    )
}

pub(super) fn our_bytes(settings: &CheckedSettings<'_>) -> Vec<Check> {
    settings.disks.iter().map(|disk| our_bytes_on(settings, disk)).collect()
}

fn our_bytes_on(settings: &CheckedSettings<'_>, disk: &Disk) -> Check {
    let (kubelet, mount) = (&settings.kubelet, &disk.mount);
    // The threshold with the worst consequence is first.
    let mut thresholds = first_evictions(kubelet, disk, Counted::Bytes);
    thresholds.extend(kubelet_starts(kubelet).map(|percent| Threshold {
        percent,
        words: format!("the kubelet's image collection at {}%", kubelet.image_high.value),
        status: Status::Warning,
    }));
    let first = lowest(&thresholds).map_or(100.0, |lowest| lowest.percent.min(100.0));
    let remedy = lower_high("images.", settings.images.targets.used, first);
    let Some(starts) = gc_starts(&settings.images.targets, disk.capacity_bytes) else {
        let message =
            "neither images.high_percent nor images.min_free is set: gc never deletes for lack of bytes";
        return Check::warning(mount, message, remedy);
    };
    let earlier = thresholds.iter().find(|threshold| threshold.percent <= starts);
    if let Some(Threshold { percent, words, status }) = earlier {
        let message =
            format!("gc starts at {starts:.1}% used, but {words} comes first, at {percent:.1}% used");
        return Check::new(*status, mount, message, remedy);
    }
    let later: Vec<_> = thresholds
        .iter()
        .rev()
        .map(|Threshold { percent, words, .. }| format!("{words} ({percent:.1}% used)"))
        .collect();
    let before = if later.is_empty() { "" } else { ", before " };
    Check::ok(
        mount,
        format!("a run of gc starts to delete at {starts:.1}% used{before}{}", later.join(" and ")),
    )
}

/// Compares the thresholds for inodes on filesystems with a fixed number of them. A lack of inodes starts the
/// kubelet's eviction, but not its image collection.
pub(super) fn our_inodes(settings: &CheckedSettings<'_>) -> Vec<Check> {
    let disks = settings.disks.iter().filter(|disk| disk.inodes > 0);
    disks.filter_map(|disk| our_inodes_on(settings, disk)).collect()
}

fn our_inodes_on(settings: &CheckedSettings<'_>, disk: &Disk) -> Option<Check> {
    let evictions = first_evictions(&settings.kubelet, disk, Counted::Inodes);
    let Threshold { percent, words, status } = lowest(&evictions)?;
    let marks = settings.images.targets.inodes;
    let remedy = lower_high("images.inodes_", marks, *percent);
    let Some(high) = marks.map(|thresholds| thresholds.high) else {
        let message = format!(
            "neither gc nor the kubelet deletes for lack of inodes before {words} ({percent:.1}% of the inodes used)"
        );
        return Some(Check::new(Status::Note, &disk.mount, message, remedy));
    };
    let starts = format!("gc starts at {high}% of the inodes used");
    Some(if f64::from(high) >= *percent {
        let message = format!("{starts}, but {words} comes first, at {percent:.1}%");
        Check::new(*status, &disk.mount, message, remedy)
    } else {
        Check::ok(&disk.mount, format!("{starts}, before {words} ({percent:.1}%)"))
    })
}

#[cfg(test)]
mod tests;
