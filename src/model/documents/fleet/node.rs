//! One node in the sums over many nodes: how urgent it is, and why.
//!
//! Forecasts count from the time of their document, and the documents are of different times. Only when the newest is
//! known, forecasts can be compared: until then a node is kept as [`AddedNode`].

use std::cmp::{Ordering, Reverse};

use jiff::Timestamp;
use serde::Serialize;

use crate::model::documents::reader::{DocumentFilesystem, DocumentForecast, GC_LOW, NodeDocument};
use crate::model::documents::urgency::{FULL, Urgency};
use crate::model::text::display::two_decimals;

/// Forecasts of a later time do not decide the order of the nodes.
const SOON_SECONDS: i64 = 7 * 24 * 3600;

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
    /// Seconds until it is full, from the time of the newest document; null without a forecast, and if the document is
    /// older than the readings of its forecast were then.
    pub full_in_seconds: Option<i64>,
}

/// A node before the time of the newest document is known.
#[derive(Debug)]
pub(super) struct AddedNode {
    /// Its filesystem is not filled in yet.
    node: FleetNode,
    filesystems: Vec<AddedFilesystem>,
}

#[derive(Debug)]
struct AddedFilesystem {
    mount: String,
    capacity_bytes: u64,
    available_bytes: u64,
    used_percent: Option<f64>,
    inodes_used_percent: Option<f64>,
    reclaimable_bytes: u64,
    low_percent: Option<f64>,
    forecast: Option<DocumentForecast>,
}

impl AddedNode {
    pub(super) fn new(name: String, document: &NodeDocument<'_>) -> Self {
        let by_usage = document.filesystems.iter().map(usage_urgency).max();
        let verdict = document.verdict.as_ref();
        let node = FleetNode {
            node: name,
            generated_at: document.generated_at,
            complete: document.complete,
            urgency: verdict
                .map(|verdict| verdict.urgency)
                .unwrap_or_else(|| by_usage.unwrap_or(Urgency::Unknown)),
            headline: verdict.map(|verdict| verdict.headline.0.clone().into_owned()),
            filesystem: None,
            capacity_bytes: 0,
            used_percent: None,
            inodes_used_percent: None,
            reclaimable_bytes: 0,
            used_after_percent: None,
            low_percent: None,
            reaches_low: None,
            full_in_seconds: None,
        };
        let filesystems = document
            .filesystems
            .iter()
            .map(|filesystem| AddedFilesystem::new(filesystem, document))
            .collect();
        Self { node, filesystems }
    }

    pub(super) fn generated_at(&self) -> Timestamp {
        self.node.generated_at
    }

    /// Returns the node with its most urgent filesystem, and the seconds until the first of its filesystems is full.
    /// `newest`: the time of the newest document.
    pub(super) fn finish(self, newest: Timestamp) -> (FleetNode, Option<i64>) {
        let Self { mut node, filesystems } = self;
        let age = newest.duration_since(node.generated_at).as_secs().max(0);
        let full_in = |filesystem: &AddedFilesystem| {
            let forecast = filesystem.forecast.filter(|forecast| age <= forecast.window_seconds)?;
            Some(forecast.full_in_seconds.saturating_sub(age).max(0))
        };
        let rank = |filesystem: &AddedFilesystem| {
            (full_in(filesystem), filesystem.used_percent, filesystem.inodes_used_percent)
        };
        if let Some(filesystem) = filesystems.iter().min_by(|a, b| by_urgency(rank(a), rank(b))) {
            node.describe(filesystem);
            node.full_in_seconds = full_in(filesystem);
        }
        (node, filesystems.iter().filter_map(full_in).min())
    }
}

impl AddedFilesystem {
    fn new(filesystem: &DocumentFilesystem<'_>, document: &NodeDocument<'_>) -> Self {
        let stores = document.stores.iter().filter(|store| store.filesystem.0 == filesystem.mount.0);
        Self {
            mount: filesystem.mount.0.clone().into_owned(),
            capacity_bytes: filesystem.capacity_bytes,
            available_bytes: filesystem.available_bytes,
            used_percent: filesystem.used_percent,
            inodes_used_percent: inodes_percent(filesystem),
            reclaimable_bytes: stores.fold(0, |bytes, store| bytes.saturating_add(store.reclaimable_bytes)),
            low_percent: filesystem
                .thresholds
                .iter()
                .find(|mark| mark.name.0 == GC_LOW)
                .map(|mark| mark.percent),
            forecast: filesystem.forecast,
        }
    }
}

impl FleetNode {
    fn describe(&mut self, filesystem: &AddedFilesystem) {
        let left = filesystem.capacity_bytes.saturating_sub(filesystem.available_bytes);
        let after = percent(left.saturating_sub(filesystem.reclaimable_bytes), filesystem.capacity_bytes);
        self.filesystem = Some(filesystem.mount.clone());
        self.capacity_bytes = filesystem.capacity_bytes;
        self.used_percent = filesystem.used_percent;
        self.inodes_used_percent = filesystem.inodes_used_percent;
        self.reclaimable_bytes = filesystem.reclaimable_bytes;
        self.used_after_percent = filesystem.used_percent.and(after);
        self.low_percent = filesystem.low_percent;
        self.reaches_low = self.low_percent.zip(self.used_after_percent).map(|(low, after)| after <= low);
    }

    /// Orders nodes by urgency: the urgency, then the forecast if the disk is full within a week, then the fuller
    /// disk, then a node whose figures are lower bounds, then the name.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let rank = |node: &Self| (node.full_in_seconds, node.used_percent, node.inodes_used_percent);
        Reverse(self.urgency)
            .cmp(&Reverse(other.urgency))
            .then_with(|| by_urgency(rank(self), rank(other)))
            .then_with(|| self.complete.cmp(&other.complete))
            .then_with(|| natural_order(&self.node, &other.node))
    }
}

/// Seconds until a filesystem is full, and its used percentages of bytes and inodes.
type Rank = (Option<i64>, Option<f64>, Option<f64>);

/// Orders filesystems: the most urgent first.
fn by_urgency(a: Rank, b: Rank) -> Ordering {
    let soon = |rank: Rank| rank.0.map_or(SOON_SECONDS, |seconds| seconds.min(SOON_SECONDS));
    let used = |rank: Rank| rank.1.unwrap_or(0.0).max(rank.2.unwrap_or(0.0));
    soon(a).cmp(&soon(b)).then_with(|| used(b).total_cmp(&used(a)))
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
