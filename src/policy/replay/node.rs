//! The node of a replay: an inventory that changes with the trace.
//!
//! All layers of the trace are nodes of the inventory from the start, so that positions stay valid. Images are moved in
//! and out. A layer costs bytes while an image that is present holds it.

use jiff::{SignedDuration, Timestamp};

use crate::model::documents::trace::{Trace, TracedChange, TracedImage};
use crate::model::space::Space;
use crate::model::{
    Filesystem, Image, ImageIx, Inventory, Labels, LayerBlob, LayerFacts, LayerId, Node, NodeKind, Origin,
    PinReason, Size, Store,
};

#[derive(Debug)]
pub(super) struct ReplayedNode<'a> {
    trace: &'a Trace,
    pub(super) inventory: Inventory,
    /// By image of the inventory: its position in the trace.
    present: Vec<usize>,
    /// By image of the trace.
    pub(super) images: Vec<ImageOnNode>,
    /// By layer: number of images that hold it now.
    holders: Vec<u32>,
    stored_bytes: u64,
    pub(super) others_bytes: u64,
}

#[derive(Debug)]
pub(super) struct ImageOnNode {
    /// The image while it is not in the inventory.
    absent: Option<Image>,
    position: Option<usize>,
    pub(super) uses: u32,
    pub(super) first_detected: Timestamp,
    pub(super) last_used: Option<Timestamp>,
    pub(super) use_count: u64,
    /// The collector deleted it, and no pull has brought it back.
    pub(super) was_collected: bool,
    pub(super) min_age: SignedDuration,
    pub(super) max_age: Option<SignedDuration>,
}

impl ImageOnNode {
    pub(super) fn is_present(&self) -> bool {
        self.position.is_some()
    }

    pub(super) fn idle_since(&self) -> Timestamp {
        self.last_used.map_or(self.first_detected, |used| used.max(self.first_detected))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MissingLayers {
    pub(super) stored_bytes: u64,
    /// Bytes that a pull transfers; those of the disk for layers whose compressed size is unknown.
    pub(super) pulled_bytes: u64,
}

impl<'a> ReplayedNode<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        let header = &trace.header;
        let parents = parents(trace);
        let nodes = trace.layers.iter().zip(&parents).map(|(layer, parent)| Node {
            kind: NodeKind::Layer,
            id: layer.id.clone(),
            store: 0.into(),
            filesystem: 0.into(),
            path: Default::default(),
            size: Size {
                bytes: layer.bytes,
                apparent_bytes: layer.bytes,
                inodes: 0,
                frees_bytes: layer.bytes,
            },
            needs: parent.iter().map(|parent| (*parent).into()).collect(),
            layer: Some(Box::new(LayerFacts {
                parent: parent.map(|parent| trace.layers[parent].id.clone()),
                listed_bytes: Some(layer.bytes),
                ..LayerFacts::default()
            })),
        });
        let inventory = Inventory {
            filesystems: vec![Filesystem {
                mount: header.mount.clone().unwrap_or_default().into(),
                device: String::new(),
                fstype: String::new(),
                capacity_bytes: header.capacity_bytes,
                used_bytes: 0,
                available_bytes: header.capacity_bytes.saturating_sub(header.reserved_bytes),
                inodes: 0,
                inodes_free: 0,
            }],
            stores: vec![Store::replayed(header.kubernetes)],
            nodes: nodes.collect(),
            ..Inventory::default()
        };
        let images = trace.images.iter().map(|traced| ImageOnNode {
            absent: Some(image(trace, traced)),
            position: None,
            uses: 0,
            first_detected: header.from,
            last_used: None,
            use_count: 0,
            was_collected: false,
            min_age: SignedDuration::ZERO,
            max_age: None,
        });
        Self {
            trace,
            inventory,
            present: Vec::new(),
            images: images.collect(),
            holders: vec![0; trace.layers.len()],
            stored_bytes: 0,
            others_bytes: 0,
        }
    }

    /// Sets the ages that the policy has for each image, while none is in the inventory.
    pub(super) fn set_limits(&mut self, limits: impl Fn(&Image) -> (SignedDuration, Option<SignedDuration>)) {
        for replayed in &mut self.images {
            if let Some(image) = &replayed.absent {
                (replayed.min_age, replayed.max_age) = limits(image);
            }
        }
    }

    pub(super) fn traced(&self, image: ImageIx) -> usize {
        self.present[image.get()]
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (usize, &ImageOnNode)> {
        self.present.iter().map(|traced| (*traced, &self.images[*traced]))
    }

    pub(super) fn missing(&self, image: usize) -> MissingLayers {
        let mut missing = MissingLayers::default();
        for layer in self.trace.images[image].layers.iter().filter(|layer| self.holders[**layer] == 0) {
            let layer = &self.trace.layers[*layer];
            missing.stored_bytes = missing.stored_bytes.saturating_add(layer.bytes);
            let pulled = layer.compressed_bytes.unwrap_or(layer.bytes);
            missing.pulled_bytes = missing.pulled_bytes.saturating_add(pulled);
        }
        missing
    }

    pub(super) fn space(&self, more: u64) -> Space {
        let header = &self.trace.header;
        let empty = Space {
            capacity_bytes: header.capacity_bytes,
            available_bytes: header.capacity_bytes.saturating_sub(header.reserved_bytes),
            owed_bytes: 0,
            inodes: 0,
            inodes_free: 0,
        };
        empty.lost(self.stored_bytes.saturating_add(self.others_bytes).saturating_add(more))
    }

    /// Applies a change as the trace has it, without a collector.
    pub(super) fn begin_with(&mut self, time: Timestamp, change: TracedChange) {
        match change {
            TracedChange::Others(bytes) => self.others_bytes = bytes,
            TracedChange::Arrives(image) => self.arrive(image, time),
            TracedChange::UseBegins(image) => {
                self.arrive(image, time);
                self.begin_use(image, time);
            }
            TracedChange::UseEnds(image) => {
                self.end_use(image, time);
            }
            TracedChange::Departs(image, ..) => {
                self.delete(image);
            }
        }
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    pub(super) fn begin_use(&mut self, image: usize, now: Timestamp) {
        let replayed = &mut self.images[image];
        replayed.uses += 1;
        replayed.use_count += 1;
        replayed.last_used = Some(now);
    }

    /// Ends a use of an image, and returns the number of uses that remain.
    pub(super) fn end_use(&mut self, image: usize, now: Timestamp) -> u32 {
        let replayed = &mut self.images[image];
        replayed.uses = replayed.uses.saturating_sub(1);
        replayed.last_used = Some(now);
        replayed.uses
    }

    pub(super) fn arrive(&mut self, image: usize, now: Timestamp) {
        let replayed = &mut self.images[image];
        let Some(record) = replayed.absent.take() else { return };
        replayed.position = Some(self.inventory.images.len());
        (replayed.first_detected, replayed.last_used, replayed.use_count) = (now, None, 0);
        replayed.was_collected = false;
        self.inventory.images.push(record);
        self.present.push(image);
        for layer in &self.trace.images[image].layers {
            self.holders[*layer] += 1;
            if self.holders[*layer] == 1 {
                self.stored_bytes = self.stored_bytes.saturating_add(self.trace.layers[*layer].bytes);
            }
        }
    }

    pub(super) fn delete(&mut self, image: usize) -> u64 {
        let replayed = &mut self.images[image];
        let Some(position) = replayed.position.take() else { return 0 };
        replayed.absent = Some(self.inventory.images.swap_remove(position));
        self.present.swap_remove(position);
        if let Some(moved) = self.present.get(position) {
            self.images[*moved].position = Some(position);
        }
        let before = self.stored_bytes;
        for layer in &self.trace.images[image].layers {
            self.holders[*layer] -= 1;
            if self.holders[*layer] == 0 {
                self.stored_bytes = self.stored_bytes.saturating_sub(self.trace.layers[*layer].bytes);
            }
        }
        before - self.stored_bytes
    }
}

/// Returns the parent of each layer. A layer that images stack on different layers has none: each image holds all of its
/// layers itself.
fn parents(trace: &Trace) -> Vec<Option<usize>> {
    let mut parents: Vec<Option<Option<usize>>> = vec![None; trace.layers.len()];
    for image in &trace.images {
        let mut below = None;
        for layer in &image.layers {
            let parent = parents[*layer].get_or_insert(below);
            if *parent != below {
                *parent = None;
            }
            below = Some(*layer);
        }
    }
    parents.into_iter().map(Option::flatten).collect()
}

fn image(trace: &Trace, traced: &TracedImage) -> Image {
    let layers = traced.layers.iter().rev();
    let held = traced.layers.iter().map(|layer| &trace.layers[*layer]);
    let blobs = held.clone().map(|layer| LayerBlob {
        digest: layer.id.clone(),
        compressed_bytes: layer.compressed_bytes.unwrap_or(layer.bytes),
        ..LayerBlob::default()
    });
    Image {
        id: traced.id.as_str().into(),
        store: 0.into(),
        names: traced.names.clone(),
        digests: Vec::new(),
        created: None,
        evidence: Vec::new(),
        origin: Origin::new(traced.origin, "the trace"),
        is_list: false,
        pinned_by: if traced.pinned { vec![PinReason::from("the trace")] } else { Vec::new() },
        labels: Labels::Known(Vec::new()),
        layers: layers.clone().map(|layer| LayerId::from(trace.layers[*layer].id.as_str())).collect(),
        listed_bytes: Some(held.map(|layer| layer.bytes).fold(0, u64::saturating_add)),
        blobs: blobs.collect(),
        holds: layers.map(|layer| (*layer).into()).collect(),
    }
}
