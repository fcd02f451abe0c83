//! Sums over the documents of many nodes.
//!
//! Each document is added and dropped. The memory depends on the number of different images and leak classes, and not on
//! that of the nodes: forecasts and ages count from now, and of the nodes only the first of each list are kept.

mod node;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::model::documents::reader::{DocumentImage, DocumentPartKind, NodeDocument, Text};
use crate::model::documents::urgency::Urgency;
use crate::model::leak_class::LeakClass;
use crate::model::text::reference::bare_id;
pub use node::FleetNode;
use node::natural_order;

pub const LISTED_NODES: usize = 100;
/// Age of a document from which its node is listed as stale.
const STALE: SignedDuration = SignedDuration::from_hours(24);
/// Maximum difference between the clocks of two machines that counts as normal.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_mins(5);
/// Maximum number of names listed for an image.
const LISTED_NAMES: usize = 8;
/// Ends of the periods in which filesystems will be full, in days.
const PERIODS: [i64; 4] = [1, 3, 7, 30];

/// Sums over the nodes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetSumsDoc"))]
pub struct Fleet {
    pub nodes: FleetNodes,
    pub totals: FleetTotals,
    /// Nodes that will be full within a period at their present growth, the shortest period first. A node of a longer
    /// period is also in all shorter ones that it fits.
    pub forecasts: Vec<FleetForecast>,
    /// The most urgent nodes, at most 100, the most urgent first.
    pub urgent: Vec<FleetNode>,
    /// Nodes whose document is more than a day old, at most 100, the oldest first.
    pub stale: Vec<StaleNode>,
    /// All images by id. The first frees most on all nodes where it is unused.
    pub images: Vec<FleetImage>,
    /// Leaks by class, the largest first.
    pub leaks: Vec<FleetLeaks>,
}

/// Number of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetNodesDoc"))]
pub struct FleetNodes {
    /// Nodes in the sums.
    pub count: u64,
    /// Nodes by `urgency`.
    pub critical: u64,
    pub warning: u64,
    pub calm: u64,
    pub unknown: u64,
    /// Nodes on which something could not be read: their figures are lower bounds.
    pub incomplete: u64,
    /// Nodes on which deleting everything reclaimable does not reach the low threshold.
    pub low_not_reached: u64,
    /// Nodes whose low threshold is known.
    pub with_thresholds: u64,
    /// Nodes with a document of `scan`, which has no thresholds and no forecast.
    pub of_scan: u64,
    /// Nodes whose document is more than a day old.
    pub stale: u64,
    /// Nodes whose document is dated in the future: their clocks are wrong.
    pub future: u64,
    /// Nodes with a forecast that is not too old.
    pub forecast: u64,
    /// Time of the oldest document; null without nodes.
    pub oldest_at: Option<Timestamp>,
    /// Time of the newest document that is not dated in the future; null without nodes.
    pub newest_at: Option<Timestamp>,
}

/// A node whose document is old.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StaleNodeDoc"))]
pub struct StaleNode {
    /// Time of its document.
    pub generated_at: Timestamp,
    /// Name of the node.
    pub node: String,
}

/// Sums over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetTotalsDoc"))]
pub struct FleetTotals {
    /// Size of the listed filesystems.
    pub capacity_bytes: u64,
    /// Bytes of them that are not free.
    pub used_bytes: u64,
    /// Bytes of them that an unprivileged user can still write.
    pub available_bytes: u64,
    /// Allocated bytes of the stores.
    pub store_bytes: u64,
    /// Bytes of volumes, of pods and of podman, on the listed filesystems; only documents of `report` have them.
    pub volume_bytes: u64,
    /// Bytes of stores that the scans have not read (those of users, and old ones) on the listed filesystems; only
    /// documents of `report` have them.
    pub other_store_bytes: u64,
    /// Bytes freed if all unused images and reclaimable leaks were deleted.
    pub reclaimable_bytes: u64,
    /// Images; an image counts on each node.
    pub images: u64,
    /// Of these, images that no container uses and no configuration keeps.
    pub images_unused: u64,
    /// Containers, running or not.
    pub containers: u64,
    /// Leaks of all classes.
    pub leaks: u64,
    /// Growth of the filesystems with a forecast, in an hour.
    pub growth_bytes_per_hour: u64,
}

/// Nodes that will be full within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetForecastDoc"))]
pub struct FleetForecast {
    /// Length of the period.
    pub within_seconds: i64,
    /// Number of nodes.
    pub nodes: u64,
}

/// An image on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetImageDoc"))]
pub struct FleetImage {
    /// Id of the image, without `sha256:` and without a namespace of containerd.
    pub id: String,
    /// Its names on the nodes in alphabetical order, at most 8; empty if it has none.
    pub names: Vec<String>,
    /// Nodes that have it.
    pub nodes: u64,
    /// Of these, nodes where no container uses it and no configuration keeps it.
    pub nodes_unused: u64,
    /// Bytes of everything that it reaches; the largest value of all nodes.
    pub total_bytes: u64,
    /// Sum of its exclusive bytes where it is unused.
    pub unused_exclusive_bytes: u64,
    /// Sum of the bytes that deleting only this image frees where it is unused.
    pub unused_frees_bytes: u64,
}

/// Leaks of one class on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FleetLeaksDoc"))]
pub struct FleetLeaks {
    /// Class of leak: see `docs/leaks.md`.
    pub class: String,
    /// Nodes with such leaks.
    pub nodes: u64,
    /// Number of leaks.
    pub count: u64,
    /// Allocated bytes of the leaks.
    pub bytes: u64,
    /// Of these, bytes of leaks that `sweep --delete` deletes (verdict `reclaim`).
    pub reclaim_bytes: u64,
}

/// Counts each node once for an object, however often the node has it.
#[derive(Debug, Default)]
struct NodeCount {
    count: u64,
    /// Number of the last counted node.
    last: u64,
}

impl NodeCount {
    fn add(&mut self, node: u64) {
        if self.last != node {
            self.last = node;
            self.count += 1;
        }
    }
}

#[derive(Debug, Default)]
struct ImageSum {
    names: BTreeSet<Box<str>>,
    nodes: NodeCount,
    nodes_unused: NodeCount,
    total_bytes: u64,
    exclusive_bytes: u64,
    frees_bytes: u64,
}

#[derive(Debug, Default)]
struct LeakSum {
    nodes: NodeCount,
    count: u64,
    bytes: u64,
    reclaim_bytes: u64,
}

/// Adds documents up. The order of the documents does not change the result.
#[derive(Debug)]
pub struct FleetSums {
    now: Timestamp,
    nodes: FleetNodes,
    totals: FleetTotals,
    urgent: Vec<FleetNode>,
    stale: Vec<StaleNode>,
    full_within: [u64; PERIODS.len()],
    images: HashMap<Box<str>, ImageSum>,
    leaks: BTreeMap<Box<str>, LeakSum>,
}

impl FleetSums {
    /// Creates empty sums. Forecasts and ages count from `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            nodes: FleetNodes::default(),
            totals: FleetTotals::default(),
            urgent: Vec::new(),
            stale: Vec::new(),
            full_within: [0; PERIODS.len()],
            images: HashMap::new(),
            leaks: BTreeMap::new(),
        }
    }

    /// Adds the document of a node. No two documents may be of the same node.
    pub fn add(&mut self, name: String, document: &NodeDocument<'_>) {
        self.nodes.count += 1;
        let number = self.nodes.count;
        for image in &document.images {
            self.add_image(number, image);
        }
        // The class of namespaces of other programs is a notice, not a leak.
        let leaks = document.leaks.iter();
        for leak in leaks.filter(|leak| LeakClass::find(&leak.class.0).is_none_or(LeakClass::is_counted)) {
            let sum = entry(&mut self.leaks, &leak.class);
            sum.nodes.add(number);
            sum.count += 1;
            add(&mut sum.bytes, leak.bytes);
            if leak.verdict.0 == "reclaim" {
                add(&mut sum.reclaim_bytes, leak.bytes);
            }
        }
        self.add_totals(document);
        self.nodes.of_scan += u64::from(document.verdict.is_none());
        self.add_node(name, document);
    }

    fn add_node(&mut self, name: String, document: &NodeDocument<'_>) {
        let (now, time) = (self.now, document.generated_at);
        let (node, full_at) = FleetNode::new(name, document, now);
        self.nodes.oldest_at = Some(self.nodes.oldest_at.map_or(time, |oldest| oldest.min(time)));
        if time.duration_since(now) > MAX_CLOCK_DIFFERENCE {
            self.nodes.future += 1;
        } else {
            self.nodes.newest_at = self.nodes.newest_at.max(Some(time));
        }
        self.nodes.count_states(&node);
        if now.duration_since(time) > STALE {
            self.nodes.stale += 1;
            self.stale.push(StaleNode { generated_at: time, node: node.node.clone() });
            keep_first(&mut self.stale, LISTED_NODES * 2, StaleNode::compare);
        }
        if let Some(full_at) = full_at {
            self.nodes.forecast += 1;
            for (nodes, days) in self.full_within.iter_mut().zip(PERIODS) {
                *nodes += u64::from(full_at.duration_since(now) <= SignedDuration::from_hours(24 * days));
            }
        }
        self.urgent.push(node);
        keep_first(&mut self.urgent, LISTED_NODES * 2, |a, b| a.compare(b, now));
    }

    fn add_image(&mut self, node: u64, image: &DocumentImage<'_>) {
        let id = bare_id(image.id.0.rsplit('/').next().unwrap_or_default());
        if !self.images.contains_key(id) {
            self.images.insert(id.into(), ImageSum::default());
        }
        let Some(sum) = self.images.get_mut(id) else { return };
        for Text(name) in &image.names {
            let is_listed = sum.names.contains(&**name)
                || sum.names.len() >= LISTED_NAMES && sum.names.last().is_some_and(|last| **last < **name);
            if !is_listed {
                sum.names.insert((&**name).into());
                if sum.names.len() > LISTED_NAMES {
                    sum.names.pop_last();
                }
            }
        }
        sum.nodes.add(node);
        sum.total_bytes = sum.total_bytes.max(image.total_bytes);
        if !image.in_use && !image.pinned {
            sum.nodes_unused.add(node);
            add(&mut sum.exclusive_bytes, image.exclusive_bytes);
            add(&mut sum.frees_bytes, image.frees_bytes.unwrap_or_default());
        }
    }

    fn add_totals(&mut self, document: &NodeDocument<'_>) {
        let sums = &mut self.totals;
        for filesystem in &document.filesystems {
            add(&mut sums.capacity_bytes, filesystem.capacity_bytes);
            add(&mut sums.used_bytes, filesystem.used_bytes);
            add(&mut sums.available_bytes, filesystem.available_bytes);
            let growth = filesystem.forecast.map_or(0, |forecast| forecast.bytes_per_hour);
            add(&mut sums.growth_bytes_per_hour, growth);
            for part in &filesystem.parts {
                match part.kind {
                    DocumentPartKind::Volumes | DocumentPartKind::KubeletVolumes => {
                        add(&mut sums.volume_bytes, part.bytes);
                    }
                    DocumentPartKind::OtherStore => add(&mut sums.other_store_bytes, part.bytes),
                    DocumentPartKind::Other => {}
                }
            }
        }
        let totals = document.totals;
        add(&mut sums.store_bytes, totals.bytes);
        add(&mut sums.reclaimable_bytes, totals.reclaimable_bytes);
        add(&mut sums.images, totals.images);
        add(&mut sums.images_unused, totals.images_unused);
        add(&mut sums.containers, totals.containers);
        add(&mut sums.leaks, totals.leaks);
    }

    /// Returns the sums, each list in its order.
    #[must_use]
    pub fn finish(mut self) -> Fleet {
        let now = self.now;
        self.nodes.newest_at = self.nodes.newest_at.or(self.nodes.oldest_at);
        keep_first(&mut self.stale, 0, StaleNode::compare);
        keep_first(&mut self.urgent, 0, |a, b| a.compare(b, now));
        let images = self.images.into_iter().map(|(id, sum)| FleetImage {
            id: id.into(),
            names: sum.names.into_iter().map(String::from).collect(),
            nodes: sum.nodes.count,
            nodes_unused: sum.nodes_unused.count,
            total_bytes: sum.total_bytes,
            unused_exclusive_bytes: sum.exclusive_bytes,
            unused_frees_bytes: sum.frees_bytes,
        });
        let mut images: Vec<_> = images.collect();
        images.sort_by(|a, b| {
            let rank = |image: &FleetImage| Reverse((image.unused_frees_bytes, image.nodes_unused));
            rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
        });
        let mut leaks: Vec<_> = self
            .leaks
            .into_iter()
            .map(|(class, sum)| FleetLeaks {
                class: class.into(),
                nodes: sum.nodes.count,
                count: sum.count,
                bytes: sum.bytes,
                reclaim_bytes: sum.reclaim_bytes,
            })
            .collect();
        leaks.sort_by_key(|leak| Reverse((leak.bytes, leak.count)));
        let forecasts = PERIODS.into_iter().zip(self.full_within);
        Fleet {
            nodes: self.nodes,
            totals: self.totals,
            forecasts: forecasts
                .map(|(days, nodes)| FleetForecast { within_seconds: days * 24 * 3600, nodes })
                .collect(),
            urgent: self.urgent,
            stale: self.stale,
            images,
            leaks,
        }
    }
}

impl StaleNode {
    fn compare(&self, other: &Self) -> Ordering {
        let by_name = || natural_order(&self.node, &other.node);
        self.generated_at.cmp(&other.generated_at).then_with(by_name)
    }
}

/// Sorts a list of nodes that is at least `least` long, and keeps its first.
fn keep_first<T>(nodes: &mut Vec<T>, least: usize, compare: impl FnMut(&T, &T) -> Ordering) {
    if nodes.len() >= least {
        nodes.sort_by(compare);
        nodes.truncate(LISTED_NODES);
    }
}

impl FleetNodes {
    fn count_states(&mut self, node: &FleetNode) {
        *match node.urgency {
            Urgency::Critical => &mut self.critical,
            Urgency::Warning => &mut self.warning,
            Urgency::Calm => &mut self.calm,
            Urgency::Unknown => &mut self.unknown,
        } += 1;
        self.incomplete += u64::from(!node.complete);
        self.with_thresholds += u64::from(node.reaches_low.is_some());
        self.low_not_reached += u64::from(node.reaches_low == Some(false));
    }
}

/// Adds to a sum of foreign numbers, which must not wrap around.
fn add(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

fn entry<'a>(leaks: &'a mut BTreeMap<Box<str>, LeakSum>, class: &Text<'_>) -> &'a mut LeakSum {
    leaks.entry((&*class.0).into()).or_default()
}

#[cfg(test)]
mod tests;
