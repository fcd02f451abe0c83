//! Usage thresholds of a disk: layersweep's, those of the kubelet's image collection, and of its eviction.

use std::fmt;

use serde::Serialize;

use super::space::{FreeFloor, Targets};
use crate::model::Filesystem;
use crate::model::kubelet_thresholds::{
    Amount, IMAGEFS, IMAGEFS_INODES, KubeletThresholds as Kubelet, NODEFS, NODEFS_INODES,
};
use crate::model::text::display::{bytes, two_decimals};
use crate::model::text::names::{names, string_schema};

names! {
    #[derive(Default)]
    Counted {
        #[default]
        Bytes = "bytes",
        Inodes = "inodes",
    }
}

names! {
    Source {
        /// layersweep's `gc`.
        Layersweep = "layersweep",
        /// The kubelet's image collection.
        Kubelet = "kubelet",
        /// The kubelet's eviction of pods.
        Eviction = "eviction",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdName {
    /// `gc` starts to delete.
    GcHigh,
    /// `gc` stops to delete.
    GcLow,
    /// `gc` starts to delete, by free bytes.
    GcHighFree,
    GcInodesHigh,
    GcInodesLow,
    ImageGcHigh,
    ImageGcLow,
    Eviction {
        /// Pods are killed at once; otherwise they get time to end.
        hard: bool,
        /// Signal: the kubelet's name of the measured resource.
        signal: &'static str,
    },
}

impl ThresholdName {
    /// Returns the name without the word that distinguishes it from the low threshold.
    #[must_use]
    pub fn short(self) -> String {
        match self {
            Self::GcHigh => "gc".into(),
            Self::GcInodesHigh => "gc by inodes".into(),
            Self::ImageGcHigh => "image GC".into(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for ThresholdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::GcHigh => "gc high",
            Self::GcLow => "gc low",
            Self::GcHighFree => "gc high (free bytes)",
            Self::GcInodesHigh => "gc by inodes high",
            Self::GcInodesLow => "gc by inodes low",
            Self::ImageGcHigh => "image GC high",
            Self::ImageGcLow => "image GC low",
            Self::Eviction { hard, signal } => {
                return write!(f, "{} eviction ({signal})", eviction_kind(*hard));
            }
        };
        f.write_str(text)
    }
}

impl Serialize for ThresholdName {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

string_schema!(ThresholdName);

/// A usage threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ThresholdDoc"))]
pub struct DiskThreshold {
    /// Event at the threshold: `image GC high` (deletion starts here), `image GC low` (deletion ends here), `hard
    /// eviction (imagefs.available)`.
    pub name: ThresholdName,
    /// Percentage: of the capacity that is not available (`used_percent`), or of the inodes that are used.
    pub percent: f64,
    /// Component that acts: `layersweep`, `kubelet` or `eviction`.
    pub source: Source,
    /// Resource that it counts: `bytes` or `inodes`.
    pub of: Counted,
}

impl DiskThreshold {
    /// Returns whether something starts when usage rises above it. Nothing starts at a low threshold.
    #[must_use]
    pub fn acts(&self) -> bool {
        use ThresholdName::{GcInodesLow, GcLow, ImageGcLow};
        !matches!(self.name, GcLow | GcInodesLow | ImageGcLow)
    }
}

/// Text for people: `the kubelet's image GC at 85%`.
impl fmt::Display for DiskThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.source {
            Source::Layersweep => "layersweep's ",
            Source::Kubelet => "the kubelet's ",
            Source::Eviction => "",
        };
        write!(f, "{owner}{} at {:.0}%", self.name.short(), self.percent)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Mount point, for messages.
    pub mount: String,
    pub capacity_bytes: u64,
    /// Number of inodes; 0 if there is no fixed number.
    pub inodes: u64,
    /// It contains images, so that layersweep's thresholds apply to it.
    pub has_images: bool,
    /// It contains the images of the kubelet's runtime, so that the kubelet's signals for images apply to it.
    pub is_imagefs: bool,
    /// It contains the kubelet's own directory, so that its signals for that apply to it.
    pub is_nodefs: bool,
}

impl Disk {
    /// Creates a disk that contains neither images nor the kubelet's directory.
    #[must_use]
    pub fn of(filesystem: &Filesystem) -> Self {
        Self {
            mount: filesystem.mount.display().to_string(),
            capacity_bytes: filesystem.capacity_bytes,
            inodes: filesystem.inodes,
            has_images: false,
            is_imagefs: false,
            is_nodefs: false,
        }
    }

    fn whole(&self, counted: Counted) -> u64 {
        match counted {
            Counted::Bytes => self.capacity_bytes,
            Counted::Inodes => self.inodes,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Eviction {
    /// Pods are killed at once; otherwise they get time to end.
    pub hard: bool,
    /// Signal: the kubelet's name of the measured resource.
    pub signal: &'static str,
    pub amount: Amount,
    /// Percentage in use above which less is left.
    pub percent: f64,
    pub of: Counted,
}

impl Eviction {
    /// `hard` or `soft`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        eviction_kind(self.hard)
    }
}

fn eviction_kind(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

/// Returns every eviction threshold of this disk, hard ones first.
#[must_use]
pub fn evictions(kubelet: &Kubelet, disk: &Disk) -> Vec<Eviction> {
    let mut found = Vec::new();
    for (hard, signals) in [(true, &kubelet.hard.value), (false, &kubelet.soft.value)] {
        for (signal, counts, of) in [
            (IMAGEFS, disk.is_imagefs, Counted::Bytes),
            (NODEFS, disk.is_nodefs, Counted::Bytes),
            (IMAGEFS_INODES, disk.is_imagefs && disk.inodes > 0, Counted::Inodes),
            (NODEFS_INODES, disk.is_nodefs && disk.inodes > 0, Counted::Inodes),
        ] {
            let Some(amount) = signals.get(signal).copied().filter(|_| counts) else { continue };
            if let Some(percent) = amount.used_percent(disk.whole(of)) {
                found.push(Eviction { hard, signal, amount, percent, of });
            }
        }
    }
    found
}

/// Returns the percentage used at which a floor's start is free; `None` on a disk without a size.
#[must_use]
pub fn floor_percent(floor: FreeFloor, capacity_bytes: u64) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)] // compared and shown in percent
    (capacity_bytes > 0).then(|| 100.0 - floor.start_below as f64 * 100.0 / capacity_bytes as f64)
}

/// Returns all thresholds of a disk, the lowest first. `kubelet` is `None` if the node has no kubelet.
#[must_use]
pub fn all(targets: &Targets, kubelet: Option<&Kubelet>, disk: &Disk) -> Vec<DiskThreshold> {
    let mut found = Vec::new();
    if disk.has_images {
        found.extend(layersweep(targets, disk));
    }
    if let Some(kubelet) = kubelet {
        if disk.is_imagefs {
            found.extend(image_gc(kubelet));
        }
        found.extend(evictions(kubelet, disk).into_iter().map(|eviction| DiskThreshold {
            name: ThresholdName::Eviction { hard: eviction.hard, signal: eviction.signal },
            percent: two_decimals(eviction.percent),
            source: Source::Eviction,
            of: eviction.of,
        }));
    }
    found.sort_by(|a, b| {
        a.percent.total_cmp(&b.percent).then_with(|| a.name.to_string().cmp(&b.name.to_string()))
    });
    found
}

fn layersweep(targets: &Targets, disk: &Disk) -> Vec<DiskThreshold> {
    fn threshold(name: ThresholdName, percent: f64, of: Counted) -> DiskThreshold {
        DiskThreshold { name, percent, source: Source::Layersweep, of }
    }
    let mut found = Vec::new();
    if let Some(used) = targets.used {
        found.push(threshold(ThresholdName::GcHigh, f64::from(used.high), Counted::Bytes));
        found.push(threshold(ThresholdName::GcLow, f64::from(used.low), Counted::Bytes));
    }
    // More than the capacity can never be free; `impossible` reports such a target.
    if let Some(free) = targets.free.filter(|free| free.until <= disk.capacity_bytes)
        && let Some(percent) = floor_percent(free, disk.capacity_bytes)
    {
        found.push(threshold(ThresholdName::GcHighFree, percent.max(0.0), Counted::Bytes));
    }
    if let Some(inodes) = targets.inodes.filter(|_| disk.inodes > 0) {
        found.push(threshold(ThresholdName::GcInodesHigh, f64::from(inodes.high), Counted::Inodes));
        found.push(threshold(ThresholdName::GcInodesLow, f64::from(inodes.low), Counted::Inodes));
    }
    found
}

fn image_gc(kubelet: &Kubelet) -> [DiskThreshold; 2] {
    let (high, low) = (ThresholdName::ImageGcHigh, ThresholdName::ImageGcLow);
    [(high, kubelet.image_high.value), (low, kubelet.image_low.value)].map(|(name, percent)| DiskThreshold {
            name,
            #[allow(clippy::cast_precision_loss)] // a percentage
            percent: percent as f64,
            source: Source::Kubelet,
            of: Counted::Bytes,
        })
}

/// Returns the reason why a free-space target cannot be reached on a disk of this size, if so.
#[must_use]
pub fn impossible(targets: &Targets, capacity_bytes: u64) -> Option<String> {
    let free = targets.free.filter(|free| capacity_bytes < free.until)?;
    Some(format!(
        "images.min_free (or free_until) wants {} free, and it has only {} in all: `layersweep gc` ignores \
         this target here, and reports a failure",
        bytes(free.until),
        bytes(capacity_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::documents::reader::MarkName;
    use crate::policy::space::Thresholds;

    /// `report --merge` reads it from documents.
    #[test]
    fn low_threshold_is_read_back() {
        for (name, expected) in
            [(ThresholdName::GcLow, MarkName::GcLow), (ThresholdName::GcHigh, MarkName::Other)]
        {
            let text = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<MarkName>(&text).unwrap(), expected);
        }
    }

    #[test]
    fn impossible_targets_are_not_thresholds() {
        let disk = Disk {
            mount: "/".into(),
            capacity_bytes: 1000,
            inodes: 10,
            has_images: true,
            is_imagefs: true,
            is_nodefs: false,
        };
        fn floor(until: u64) -> Targets {
            Targets { free: Some(FreeFloor { start_below: 200, until }), ..Targets::default() }
        }
        let found = layersweep(&floor(300), &disk);
        assert_eq!((found.len(), found[0].percent, found[0].of), (1, 80.0, Counted::Bytes));
        assert!(layersweep(&floor(1001), &disk).is_empty());
        let inodes = Targets { inodes: Some(Thresholds { high: 90, low: 85 }), ..Targets::default() };
        assert_eq!(
            layersweep(&inodes, &disk).iter().map(|threshold| threshold.percent).collect::<Vec<_>>(),
            [90.0, 85.0]
        );
        assert!(layersweep(&inodes, &Disk { inodes: 0, ..disk }).is_empty(), "btrfs has no number of inodes");
    }

    #[test]
    fn thresholds_for_people() {
        use ThresholdName::{Eviction, GcHigh, ImageGcHigh, ImageGcLow};
        fn threshold(name: ThresholdName, source: Source) -> DiskThreshold {
            DiskThreshold { name, percent: 85.4, source, of: Counted::Bytes }
        }
        let eviction = Eviction { hard: true, signal: "nodefs.available" };
        assert_eq!(threshold(GcHigh, Source::Layersweep).to_string(), "layersweep's gc at 85%");
        assert_eq!(threshold(ImageGcHigh, Source::Kubelet).to_string(), "the kubelet's image GC at 85%");
        assert_eq!(
            threshold(eviction, Source::Eviction).to_string(),
            "hard eviction (nodefs.available) at 85%"
        );
        assert!(
            !threshold(ImageGcLow, Source::Kubelet).acts() && threshold(GcHigh, Source::Layersweep).acts()
        );
    }
}
