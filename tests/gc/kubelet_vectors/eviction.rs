//! What the eviction manager reclaims before it evicts a pod, and how long a node is said to
//! be under pressure.

use jiff::{SignedDuration, Timestamp};

/// Which disks a node has besides the one of the kubelet's own directory (`nodefs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images have a disk of their own (`imagefs`).
    pub dedicated_image_fs: bool,
    /// And only they: writable layers are on the node's disk (`containerfs`).
    pub split_container_fs: bool,
}

/// What ran short. Bytes and inodes are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `nodefs.available` or `nodefs.inodesFree`.
    Node,
    /// `imagefs.available` or `imagefs.inodesFree`.
    Image,
}

impl Signal {
    /// By the kubelet's name.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "nodefs.available" | "nodefs.inodesFree" => Some(Self::Node),
            "imagefs.available" | "imagefs.inodesFree" => Some(Self::Image),
            _ => None,
        }
    }
}

/// What is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Dead containers.
    Containers,
    /// Images that are not in use.
    Images,
}

/// What is collected for a signal, in order. With a disk for images and writable layers, nothing
/// on the node's disk is the collector's to take.
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
    /// Below it there is pressure.
    pub available_bytes: u64,
    /// So much more must come back before it is over.
    pub min_reclaim_bytes: u64,
    /// For so long after its last sighting the node is said to be under pressure.
    pub transition: SignedDuration,
}

/// The manager's memory of one threshold.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    threshold: Threshold,
    met: bool,
    last_met: Option<Timestamp>,
}

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The node's condition.
    pub pressure: bool,
    /// Something is collected now.
    pub clean_up: bool,
}

impl Eviction {
    /// Nothing was seen yet.
    pub fn new(threshold: Threshold) -> Self {
        Self { threshold, met: false, last_met: None }
    }

    /// One look at the disk.
    pub fn look(&mut self, available_bytes: u64, now: Timestamp) -> Observed {
        self.met =
            available_bytes < self.threshold.available_bytes || (self.met && !self.is_over(available_bytes));
        if self.met {
            self.last_met = Some(now);
        }
        let recent = |at: Timestamp| now.duration_since(at) < self.threshold.transition;
        Observed { pressure: self.met || self.last_met.is_some_and(recent), clean_up: self.met }
    }

    /// Whether a pod is evicted after a clean-up that left so much available.
    pub fn evicts_after(&self, available_bytes: u64) -> bool {
        self.met && !self.is_over(available_bytes)
    }

    fn is_over(&self, available_bytes: u64) -> bool {
        let wanted = self.threshold.available_bytes.saturating_add(self.threshold.min_reclaim_bytes);
        available_bytes >= wanted
    }
}
