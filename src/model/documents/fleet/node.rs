//! One node in the sums over many nodes: how urgent it is, and why.

use std::cmp::{Ordering, Reverse};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::model::documents::reader::{DocumentFilesystem, MarkName, NodeDocument};
use crate::model::documents::urgency::{FULL, Urgency};
use crate::model::text::display::two_decimals;

/// Forecasts of a later time do not decide the order of the nodes.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// State of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetNodeDoc"))]
pub struct FleetNode {
    /// Name of the node from its document; without one, the name of the file.
    pub node: String,
    /// Time of its document.
    pub generated_at: Timestamp,
    /// True if everything on the node could be read. If false, its figures are lower bounds.
    pub complete: bool,
    /// `critical`, `warning`, `calm` or `unknown`: in a document of `report`, the urgency of its verdict; in one of
    /// `scan`, which knows no thresholds, `warning` from 85 % on, and `critical` if no byte or inode is available.
    pub urgency: Urgency,
    /// Fullness of the fullest filesystem in one line; null in a document of `scan`.
    pub headline: Option<String>,
    /// Mount point of the most urgent filesystem, which the following fields describe; null if the node has none.
    pub filesystem: Option<String>,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Percentage of the capacity that is not available.
    pub used_percent: Option<f64>,
    /// Percentage of the inodes that are used; null if the filesystem has no fixed number.
    pub inodes_used_percent: Option<f64>,
    /// Bytes freed on it if all unused images and reclaimable leaks were deleted.
    pub reclaimable_bytes: u64,
    /// Used percentage afterwards.
    pub used_after_percent: Option<f64>,
    /// Low threshold of `gc`; null in a document of `scan`.
    pub low_percent: Option<f64>,
    /// True if deleting everything reclaimable reaches the low threshold; null if the threshold is unknown.
    pub reaches_low: Option<bool>,
    /// Time at which it is full; null without a forecast, and if the document is older than the readings of its
    /// forecast were then.
    pub full_at: Option<Timestamp>,
}

impl FleetNode {
    /// Creates a node from its document, with its most urgent filesystem, and returns the time at which the first of its
    /// filesystems is full.
    pub(super) fn new(
        name: String,
        document: &NodeDocument<'_>,
        now: Timestamp,
    ) -> (Self, Option<Timestamp>) {
        let by_usage = document.filesystems.iter().map(usage_urgency).max();
        let verdict = document.verdict.as_ref();
        let urgency = verdict.map(|verdict| verdict.urgency);
        let mut node = Self {
            node: name,
            generated_at: document.generated_at,
            complete: document.complete,
            urgency: urgency.unwrap_or_else(|| by_usage.unwrap_or(Urgency::Unknown)),
            headline: verdict.map(|verdict| verdict.headline.to_owned()),
            filesystem: None,
            capacity_bytes: 0,
            used_percent: None,
            inodes_used_percent: None,
            reclaimable_bytes: 0,
            used_after_percent: None,
            low_percent: None,
            reaches_low: None,
            full_at: None,
        };
        let filesystems = document.filesystems.iter();
        let mut ranked: Vec<_> = filesystems
            .map(|filesystem| {
                let full_at = full_at(filesystem, document.generated_at, now);
                ((full_at, filesystem.used_percent, inodes_percent(filesystem)), filesystem)
            })
            .collect();
        ranked.sort_by(|a, b| by_urgency(a.0, b.0, now));
        if let Some(((full_at, ..), filesystem)) = ranked.first() {
            node.full_at = *full_at;
            node.describe(filesystem, document);
        }
        (node, ranked.iter().filter_map(|((full_at, ..), _)| *full_at).min())
    }

    fn describe(&mut self, filesystem: &DocumentFilesystem<'_>, document: &NodeDocument<'_>) {
        let stores = document.stores.iter().filter(|store| store.filesystem.0 == filesystem.mount.0);
        let left = filesystem.capacity_bytes.saturating_sub(filesystem.available_bytes);
        let low = filesystem.thresholds.iter().find(|mark| mark.name == MarkName::GcLow);
        self.filesystem = Some(filesystem.mount.to_owned());
        self.capacity_bytes = filesystem.capacity_bytes;
        self.used_percent = filesystem.used_percent;
        self.inodes_used_percent = inodes_percent(filesystem);
        self.reclaimable_bytes = stores.fold(0, |bytes, store| bytes.saturating_add(store.reclaimable_bytes));
        let after = percent(left.saturating_sub(self.reclaimable_bytes), filesystem.capacity_bytes);
        self.used_after_percent = filesystem.used_percent.and(after);
        self.low_percent = low.map(|mark| mark.percent);
        self.reaches_low = self.low_percent.zip(self.used_after_percent).map(|(low, after)| after <= low);
    }

    /// Orders nodes by urgency: the urgency, then the forecast if the disk is full within a week, then the fuller
    /// disk, then a node whose figures are lower bounds, then the name.
    pub(super) fn compare(&self, other: &Self, now: Timestamp) -> Ordering {
        Reverse(self.urgency)
            .cmp(&Reverse(other.urgency))
            .then_with(|| by_urgency(self.rank(), other.rank(), now))
            .then_with(|| self.complete.cmp(&other.complete))
            .then_with(|| natural_order(&self.node, &other.node))
    }

    fn rank(&self) -> Rank {
        (self.full_at, self.used_percent, self.inodes_used_percent)
    }
}

/// Time at which a filesystem is full, and its used percentages of bytes and inodes.
type Rank = (Option<Timestamp>, Option<f64>, Option<f64>);

/// Orders filesystems: the most urgent first.
fn by_urgency(a: Rank, b: Rank, now: Timestamp) -> Ordering {
    let week = now.saturating_add(SOON).unwrap_or(Timestamp::MAX);
    let soon = |rank: Rank| rank.0.map_or(week, |full_at| full_at.min(week));
    let used = |rank: Rank| rank.1.unwrap_or(0.0).max(rank.2.unwrap_or(0.0));
    soon(a).cmp(&soon(b)).then_with(|| used(b).total_cmp(&used(a)))
}

/// Returns the time at which a filesystem is full by the forecast in its document. `None` if the document is older than
/// the readings of the forecast were. A document from the future, of a node with a wrong clock, counts as one of now.
fn full_at(
    filesystem: &DocumentFilesystem<'_>,
    generated_at: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    let forecast = filesystem.forecast?;
    let generated_at = generated_at.min(now);
    let is_valid = now.duration_since(generated_at).as_secs() <= forecast.window_seconds;
    let seconds = SignedDuration::from_secs(forecast.full_in_seconds);
    is_valid.then(|| generated_at.checked_add(seconds).ok()).flatten()
}

/// Orders names with numbers as people do: `node-3` before `node-11`.
pub(super) fn natural_order(a: &str, b: &str) -> Ordering {
    fn parts(name: &str) -> impl Iterator<Item = (usize, &[u8])> {
        let parts = name.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
        parts.map(|part| match part.first() {
            Some(first) if first.is_ascii_digit() => {
                let zeros = part.iter().take_while(|digit| **digit == b'0').count();
                (part.len() - zeros, &part[zeros..])
            }
            _ => (0, part),
        })
    }
    parts(a).cmp(parts(b)).then_with(|| a.cmp(b))
}

/// Returns the urgency of a filesystem without known thresholds.
fn usage_urgency(filesystem: &DocumentFilesystem<'_>) -> Urgency {
    let Some(used) = filesystem.used_percent else { return Urgency::Unknown };
    let is_full = filesystem.available_bytes == 0 || filesystem.inodes > 0 && filesystem.inodes_free == 0;
    match used.max(inodes_percent(filesystem).unwrap_or(0.0)) {
        _ if is_full => Urgency::Critical,
        percent if percent >= FULL => Urgency::Warning,
        _ => Urgency::Calm,
    }
}

fn inodes_percent(filesystem: &DocumentFilesystem<'_>) -> Option<f64> {
    percent(filesystem.inodes.saturating_sub(filesystem.inodes_free), filesystem.inodes)
}

/// Returns the percentage with two decimals; `None` of nothing.
fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| two_decimals(part as f64 / whole as f64 * 100.0))
}

#[cfg(test)]
mod tests {
    use super::natural_order;

    #[test]
    fn names_with_numbers_are_in_natural_order() {
        let mut names = ["node-11", "node-1", "db", "node-13", "node-3", "node-03", "node-3a"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["db", "node-1", "node-03", "node-3", "node-3a", "node-11", "node-13"]);
    }
}
