//! Urgency of the state of a disk.

use crate::model::text::names::names;

/// Used percentage from which a disk without thresholds counts as nearly full.
pub const FULL: f64 = 85.0;

names! {
    Urgency {
        /// The numbers of the disk contradict each other, or no disk was found.
        Unknown = "unknown",
        /// Nothing needs to be done.
        Calm = "calm",
        /// The disk is past a threshold, or nearly full without thresholds.
        Warning = "warning",
        /// The disk is past an eviction threshold, or nothing is available.
        Critical = "critical",
    }
}
