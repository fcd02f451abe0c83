//! Expected cost of bringing deleted images back.
//!
//! A deleted image costs nothing until it is wanted again; then a pull transfers the layers that are not here. So a
//! node costs the bytes that a pull transfers for it, times the chance that any image above it is wanted again within a
//! day. The cost of a set of images is the sum over the nodes that the set frees, whatever the order of deletion.
//!
//! The chance comes from the image's own past. Without a repeated use it is 1 / (1 + idle days). With repeated uses it
//! approaches uses / days, as long as the image is still alive: the longer it is idle compared with its usual gap, the
//! less its former uses say, and the chance falls back to that of an image that was used once. The weight of the
//! former uses is the probability of being alive in the BG/NBD model (Fader, Hardie and Lee 2005). An image that was
//! deleted before and came back counts as used once more for each return.

use hashbrown::HashSet;
use jiff::Timestamp;

use crate::model::layer_nodes::LayerNodes;
use crate::model::refs::Root;
use crate::model::{Image, ImageIx, Inventory, NodeIx, NodeKind, StoreIx};
use crate::policy::input::{Ages, Input};

/// Units of cost for each expected byte: a small layer with a small chance still costs something.
const UNITS: u64 = 1 << 10;
/// Maximum size of a node, so that sums and products cannot overflow: 1 TiB.
pub(super) const MOST_BYTES: u64 = 1 << 40;
/// Fixed-point 1 of a hazard.
const HAZARD_ONE: f64 = (1_u64 << 32) as f64;
/// Bytes of an unpacked layer for each byte of its blob, if this node has no layer with a known blob.
const USUAL_RATIO: f64 = 2.7;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullCost {
    pub units: u128,
    /// The compressed size of a layer was estimated from its bytes on the disk.
    pub is_estimated: bool,
}

impl PullCost {
    /// Returns the expected bytes, rounded down.
    #[must_use]
    pub fn bytes(self) -> u64 {
        bytes_of(self.units)
    }
}

impl std::ops::AddAssign for PullCost {
    fn add_assign(&mut self, other: Self) {
        self.units = self.units.saturating_add(other.units);
        self.is_estimated = self.is_estimated || other.is_estimated;
    }
}

impl std::iter::Sum for PullCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |mut sum, cost| {
            sum += cost;
            sum
        })
    }
}

pub(super) fn bytes_of(units: u128) -> u64 {
    u64::try_from(units / u128::from(UNITS)).unwrap_or(u64::MAX)
}

/// Expected cost of each node and image of an inventory.
#[derive(Debug)]
pub struct PullCosts {
    /// By node.
    nodes: Vec<NodeCost>,
    /// By image: a registry has it.
    can_return: Vec<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeCost {
    units: u64,
    is_estimated: bool,
}

impl PullCosts {
    #[must_use]
    pub fn of(input: &Input<'_>) -> Self {
        let inventory = input.inventory;
        let can_return: Vec<_> = inventory.images.iter().map(can_be_pulled).collect();
        let mut hazards = vec![0_u64; inventory.nodes.len()];
        for (image, _) in (0..).map(ImageIx::from).zip(&can_return).filter(|(_, can_return)| **can_return) {
            let hazard = hazard(input.ages(image), input.now);
            for node in input.refs.reach(Root::Image(image)) {
                hazards[node.get()] = hazards[node.get()].saturating_add(hazard);
            }
        }
        let transfers = transfers(inventory).into_iter().zip(hazards);
        let nodes = transfers.map(|(transfer, hazard)| transfer.times(hazard)).collect();
        Self { nodes, can_return }
    }

    /// Returns false for a named image that may not be in any registry: deleting it costs infinitely much.
    #[must_use]
    pub fn can_return(&self, image: ImageIx) -> bool {
        self.can_return[image.get()]
    }

    pub(super) fn units(&self, node: NodeIx) -> u64 {
        self.nodes[node.get()].units
    }

    #[must_use]
    pub fn of_nodes(&self, nodes: impl Iterator<Item = NodeIx>) -> PullCost {
        let costs = nodes.map(|node| self.nodes[node.get()]);
        costs
            .map(|cost| PullCost {
                units: cost.units.into(),
                is_estimated: cost.is_estimated && cost.units > 0,
            })
            .sum()
    }

    #[must_use]
    pub fn of_images(&self, input: &Input<'_>, images: &[ImageIx]) -> PullCost {
        let roots: Vec<_> = images.iter().map(|image| Root::Image(*image)).collect();
        self.of_nodes(input.refs.live().last_held_by(&roots).into_iter())
    }
}

/// Returns false for an image with a name that was never pulled, or may not have been.
fn can_be_pulled(image: &Image) -> bool {
    image.names.is_empty() || !image.origin.may_lack_a_registry()
}

#[derive(Clone, Copy, Debug, Default)]
struct Transfer {
    bytes: u64,
    is_estimated: bool,
}

impl Transfer {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    // at most 2^50, and not negative
    fn times(self, hazard: u64) -> NodeCost {
        let chance = -(-(hazard as f64) / HAZARD_ONE).exp_m1();
        let units = (self.bytes.min(MOST_BYTES) * UNITS) as f64 * chance;
        NodeCost { units: units as u64, is_estimated: self.is_estimated }
    }
}

/// Returns the bytes that a pull transfers for each node. A store that keeps the blobs of its layers has them as nodes
/// of their own, and then the unpacked layer costs nothing.
fn transfers(inventory: &Inventory) -> Vec<Transfer> {
    let blobs = blobs_by_digest(inventory);
    let mut transfers: Vec<Option<u64>> = inventory
        .nodes
        .iter()
        .map(|node| match node.kind {
            NodeKind::Layer | NodeKind::Snapshot => None,
            NodeKind::Blob | NodeKind::ImageMetadata => Some(node.size.apparent_bytes),
            _ => Some(0),
        })
        .collect();
    let (mut compressed_bytes, mut disk_bytes) = (0_u64, 0_u64);
    if inventory.images.iter().any(|image| !image.blobs.is_empty()) {
        let layers = LayerNodes::of(inventory);
        for image in &inventory.images {
            for (blob, node) in layers.with_blobs(image) {
                let is_kept = blobs.contains(&(image.store, blob.digest.as_str()));
                let bytes = if is_kept { 0 } else { blob.compressed_bytes };
                if transfers[node.get()].replace(bytes).is_none() && inventory[node].size.bytes > 0 {
                    compressed_bytes = compressed_bytes.saturating_add(blob.compressed_bytes);
                    disk_bytes = disk_bytes.saturating_add(inventory[node].size.bytes);
                }
            }
        }
    }
    let ratio = ratio(compressed_bytes, disk_bytes);
    let nodes = transfers.iter().zip(&inventory.nodes);
    nodes
        .map(|(known, node)| match known {
            Some(bytes) => Transfer { bytes: *bytes, is_estimated: false },
            None => Transfer { bytes: scaled(node.size.bytes, ratio), is_estimated: true },
        })
        .collect()
}

fn blobs_by_digest(inventory: &Inventory) -> HashSet<(StoreIx, &str)> {
    let blobs = inventory.nodes.iter().filter(|node| node.kind == NodeKind::Blob);
    blobs.map(|node| (node.store, node.id.as_str())).collect()
}

#[allow(clippy::cast_precision_loss)] // 2^53 bytes are 8 PiB
fn ratio(compressed_bytes: u64, disk_bytes: u64) -> f64 {
    if disk_bytes == 0 { 1.0 / USUAL_RATIO } else { compressed_bytes as f64 / disk_bytes as f64 }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
// an estimate, which saturates
fn scaled(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 * ratio) as u64
}

/// Returns −ln(1 − p) in fixed point, where p is the chance that the image is wanted again within a day. The chances of
/// several images combine by addition.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not negative, and small
fn hazard(ages: Option<&Ages>, now: Timestamp) -> u64 {
    let past = ages.map(|ages| Past::new(ages, now)).unwrap_or_default();
    ((past.events() / past.days()).ln_1p() * HAZARD_ONE) as u64
}

#[derive(Clone, Copy, Debug, Default)]
struct Past {
    idle_days: f64,
    /// Days from the first detection to the last use.
    span_days: f64,
    /// Uses after the first one, at most one a day: the containers of a Deployment that start together are one use.
    repeats: f64,
    returns: f64,
}

impl Past {
    fn new(ages: &Ages, now: Timestamp) -> Self {
        fn days(from: Timestamp, to: Timestamp) -> f64 {
            /// Seconds of a day.
            const DAY: f64 = 86_400.0;
            to.duration_since(from).as_secs_f64().max(0.0) / DAY
        }
        let span_days = ages.last_used.map_or(0.0, |used| days(ages.first_detected, used));
        #[allow(clippy::cast_precision_loss)] // bounded by the days
        let repeats = (ages.use_count.saturating_sub(1) as f64).min(span_days.floor());
        Self { idle_days: days(ages.idle_since(), now), span_days, repeats, returns: ages.returns.into() }
    }

    /// Returns the probability that the image is still in use from time to time. It is 0 without repeated uses.
    fn alive(self) -> f64 {
        if self.repeats == 0.0 {
            return 0.0;
        }
        let silence = (1.0 + self.span_days + self.idle_days) / (1.0 + self.span_days);
        self.repeats / (self.repeats + silence.powf(1.0 + self.repeats))
    }

    fn events(self) -> f64 {
        1.0 + self.alive() * self.repeats + self.returns
    }

    fn days(self) -> f64 {
        /// A minute, so that the chance stays below 1.
        const LEAST: f64 = 1.0 / 1440.0;
        (self.idle_days + self.alive() * self.span_days).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000_000).unwrap()
    }

    fn before(days: i64) -> Timestamp {
        now() - SignedDuration::from_hours(24 * days)
    }

    fn chance(first: i64, last: Option<i64>, use_count: u64, returns: u32) -> f64 {
        let ages = Ages { returns, ..Ages::new(before(first), last.map(before), use_count) };
        -(-(hazard(Some(&ages), now()) as f64) / HAZARD_ONE).exp_m1()
    }

    /// The chance of an image that was used every other day for two months.
    fn regular(idle: i64) -> f64 {
        chance(60 + idle, Some(idle), 31, 0)
    }

    #[test]
    fn history_raises_the_chance_of_idleness() {
        // Without repeated uses: 1 / (1 + idle days).
        for (first, last, uses) in [(9, None, 0), (60, Some(9), 1), (9, Some(9), 50)] {
            assert!((chance(first, last, uses, 0) - 0.1).abs() < 0.001, "{first} {last:?} {uses}");
        }
        assert!((regular(4) - 0.32).abs() < 0.02, "{}", regular(4));
        assert!(regular(4) > regular(10) && regular(10) > regular(20));
        // It has not been used for ten of its gaps: its past hardly counts.
        assert!((regular(20) - 1.0 / 21.0).abs() < 0.01, "{}", regular(20));
        assert!(chance(9, None, 0, 2) > 2.0 * chance(9, None, 0, 0));
        assert!(chance(0, None, 0, 0) < 1.0);
    }
}
