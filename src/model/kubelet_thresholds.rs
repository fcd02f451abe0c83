//! When the kubelet collects images and dead containers and when it evicts pods.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

/// Bytes available to images.
pub const IMAGEFS: &str = "imagefs.available";
/// Bytes available on the kubelet's own filesystem.
pub const NODEFS: &str = "nodefs.available";
/// Inodes free where images are.
pub const IMAGEFS_INODES: &str = "imagefs.inodesFree";
/// Inodes free on the kubelet's own filesystem.
pub const NODEFS_INODES: &str = "nodefs.inodesFree";

/// A value and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<T> {
    pub value: T,
    /// Key or flag and file; `None`: the kubelet's own default.
    pub by: Option<String>,
}

impl<T> Sourced<T> {
    pub fn default(value: T) -> Self {
        Self { value, by: None }
    }

    /// `by` as text.
    #[must_use]
    pub fn source(&self) -> &str {
        self.by.as_deref().unwrap_or("the kubelet's default")
    }
}

/// The minimum that must stay available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Hundredths of what there is.
    Percent(f64),
    /// Bytes, or inodes.
    Number(u64),
}

impl Amount {
    /// The share in use, in percent, from which less than this is left; `None` where there is
    /// nothing to have a share of.
    #[must_use]
    pub fn used_percent(self, whole: u64) -> Option<f64> {
        match self {
            Self::Percent(percent) => Some(100.0 - percent),
            Self::Number(_) if whole == 0 => None,
            #[allow(clippy::cast_precision_loss)] // compared in percent
            Self::Number(number) => Some(100.0 - number as f64 * 100.0 / whole as f64),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Number(number) => {
                let units = [(1_u64 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
                match units.iter().find(|(unit, _)| *number > 0 && number % unit == 0) {
                    Some((unit, name)) => write!(f, "{}{name}", number / unit),
                    None => write!(f, "{number}"),
                }
            }
        }
    }
}

/// Hard eviction thresholds by signal.
pub type Signals = BTreeMap<String, Amount>;

/// The kubelet's thresholds and limits.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletThresholds {
    /// Image collection starts at this percentage; 100 is off.
    pub image_high: Sourced<i64>,
    /// It stops at this percentage.
    pub image_low: Sourced<i64>,
    /// Images younger than this are kept.
    pub min_age: Sourced<SignedDuration>,
    /// Images unused for longer are deleted; 0 is off.
    pub max_age: Sourced<SignedDuration>,
    pub hard: Sourced<Signals>,
    pub soft: Sourced<Signals>,
    /// Defaults of hard eviction that are off because another one was set.
    pub dropped: Vec<String>,
    /// Dead containers younger than this are kept.
    pub container_ttl: Sourced<SignedDuration>,
    /// Maximum number of dead containers kept for each container of a pod; less than 0: all.
    pub dead_per_container: Sourced<i64>,
    /// Maximum number of dead containers kept on the node; less than 0: all.
    pub dead_in_all: Sourced<i64>,
}
