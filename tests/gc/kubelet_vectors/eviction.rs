//! Objects that the eviction manager reclaims before it evicts a pod, and the time for which it reports a node to be
//! under pressure.

use jiff::{SignedDuration, Timestamp};

/// Disks of a node besides the one of the kubelet's own directory (`nodefs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images have their own disk (`imagefs`).
    pub dedicated_image_fs: bool,
    /// Writable layers stay on the node's disk (`containerfs`).
    pub split_container_fs: bool,
}

/// Resource that is short. Bytes and inodes are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `nodefs.available` or `nodefs.inodesFree`.
    Node,
    /// `imagefs.available` or `imagefs.inodesFree`.
    Image,
}

impl Signal {
    /// Returns the signal with the kubelet's name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "nodefs.available" | "nodefs.inodesFree" => Some(Self::Node),
            "imagefs.available" | "imagefs.inodesFree" => Some(Self::Image),
            _ => None,
        }
    }
}

/// Kind of objects to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Dead containers.
    Containers,
    /// Images that are not in use.
    Images,
}

/// Returns the kinds to collect for a signal, in order. If images and writable layers have their own disk, nothing on
/// the node's disk can be collected.
pub fn reclaims(layout: Layout, signal: Signal) -> &'static [Reclaim] {
    match (layout.dedicated_image_fs, layout.split_container_fs, signal) {
        (true, true, Signal::Node) => &[Reclaim::Containers],
        (true, true, Signal::Image) => &[Reclaim::Images],
        (true, false, Signal::Node) => &[],
        _ => &[Reclaim::Containers, Reclaim::Images],
    }
}

/// A threshold in available bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Below this there is pressure.
    pub available_bytes: u64,
    /// Bytes above the threshold that must be available before the pressure ends.
    pub min_reclaim_bytes: u64,
    /// Time after the last sighting for which the node is reported under pressure.
    pub transition: SignedDuration,
}

/// State of the manager for one threshold.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    threshold: Threshold,
    met: bool,
    last_met: Option<Timestamp>,
}

/// Result of one observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Condition of the node.
    pub pressure: bool,
    /// True if the manager collects now.
    pub clean_up: bool,
}

impl Eviction {
    /// Returns the state before any observation.
    pub fn new(threshold: Threshold) -> Self {
        Self { threshold, met: false, last_met: None }
    }

    /// Observes the disk.
    pub fn look(&mut self, available_bytes: u64, now: Timestamp) -> Observed {
        self.met =
            available_bytes < self.threshold.available_bytes || (self.met && !self.is_over(available_bytes));
        if self.met {
            self.last_met = Some(now);
        }
        let recent = self.last_met.is_some_and(|time| now.duration_since(time) < self.threshold.transition);
        Observed { pressure: self.met || recent, clean_up: self.met }
    }

    /// Returns whether a pod is evicted after a clean-up that left `available_bytes`.
    pub fn evicts_after(&self, available_bytes: u64) -> bool {
        self.met && !self.is_over(available_bytes)
    }

    fn is_over(&self, available_bytes: u64) -> bool {
        let wanted = self.threshold.available_bytes.saturating_add(self.threshold.min_reclaim_bytes);
        available_bytes >= wanted
    }
}
