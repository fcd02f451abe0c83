//! The past of this node as traces, from the records and the stores as they are now: one for each filesystem with images.
//!
//! The records have the lives of images, their containers, the deletions of runs and the readings of the filesystems. They
//! do not say which layers an image had. So an image that is in a store now has its real layers, also for earlier lives.
//! An image that is gone has one layer with the bytes that its deletion would have freed when it was last seen; what it
//! shared with others counts for those. Bytes of others are what a reading says is used, without the images that were there
//! by the records.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use crate::config::Config;
use crate::history::past::{self, PastLife};
use crate::history::usage::{self, Series, Span};
use crate::history::{Access, known};
use crate::model::documents::trace::{
    ArrivalEvent, ArrivedLayer, DepartedBy, DepartureEvent, OthersEvent, Trace, TraceEvent, TraceHeader,
    TraceKind, TraceSource, UseEvent,
};
use crate::model::refs::Root;
use crate::model::rules::Rule;
use crate::model::{
    FilesystemIx, Image, ImageIx, Inventory, NodeIx, NodeKind, OriginKind, Owner, SCHEMA_VERSION, StoreId,
    StoreIx,
};
use crate::policy::replay::recorded_bytes;
use crate::services::database::Database;
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::paths::with_node_paths;
use crate::services::policy_context;
use crate::services::request::Request;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;

/// Rules whose images a trace calls pinned: the node's files name them, and a replay cannot ask these files.
const PINNING: [Rule; 4] = [Rule::SandboxImage, Rule::StaticPod, Rule::Quadlet, Rule::ProtectedLabel];

#[derive(Clone, Debug)]
pub struct RecordedTrace {
    pub header: TraceHeader,
    pub events: Vec<TraceEvent>,
}

/// Returns the traces of this node, without filesystems that have no image.
///
/// # Errors
/// When the database or a store cannot be read, or nothing was recorded.
pub fn recorded(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    since: Timestamp,
) -> Result<Vec<RecordedTrace>, Error> {
    let options = ScanOptions::for_policy(config).with_blobs(true);
    let scanned = scan::scan_with(request, observer, Purpose::Look, false, options)?;
    let mut database = Database::open(request, Access::Read)?.warn(observer);
    database.apply_waiting()?;
    let (lives, series, began) = database.read(|connection| {
        Ok((past::lives(connection)?, usage::series(connection, None, None)?, known::began(connection)?))
    })?;
    let Some(began) = began else {
        let dir = database.directory.dir.display();
        return Err(Error::failed(format!("nothing is recorded in {dir}"))
            .hint("`layersweep scan` records what is on the node; its timer does so every five minutes"));
    };
    let from = began.max(since);
    let inventory = with_node_paths(&scanned.scan);
    let (protected, _) = policy_context::protected(request, config, &scanned);
    let pinned = protected.into_iter().filter(|(_, ruling)| PINNING.contains(&ruling.rule));
    let pinned: Vec<_> = pinned.map(|(image, _)| image).collect();
    let now = scanned.ages.now;
    let mut traces = Vec::new();
    for (position, filesystem) in inventory.filesystems.iter().enumerate() {
        let filesystem_ix = FilesystemIx::from(position);
        let stores = stores_on(&inventory, filesystem_ix);
        if stores.is_empty() {
            continue;
        }
        let header = TraceHeader {
            kind: TraceKind::Trace,
            schema_version: SCHEMA_VERSION,
            source: TraceSource::Recorded,
            node: scanned.node.clone(),
            from: from.min(now),
            to: now,
            mount: Some(filesystem.mount.to_string_lossy().into_owned()),
            capacity_bytes: filesystem.capacity_bytes,
            reserved_bytes: filesystem.reserved_bytes(),
            kubernetes: stores.values().any(|store| is_of_kubernetes(&inventory, *store)),
            names_hashed: false,
            images_without_layers: 0,
        };
        let on_disk =
            OnDisk { scanned: &scanned, inventory: &inventory, filesystem: filesystem_ix, pinned: &pinned };
        let lives = lives.iter().filter(|life| stores.contains_key(&life.life.store));
        let mut trace = RecordedTrace { header, events: Vec::new() };
        trace.add_lives(&on_disk, lives, &stores);
        let of_mount =
            series.iter().find(|series| series.filesystem.mount == filesystem.mount.to_string_lossy());
        trace.add_others(of_mount, filesystem.used_bytes);
        trace.events.sort_by_key(TraceEvent::time);
        traces.push(trace);
    }
    Ok(traces)
}

/// Returns the stores in which a run can delete: images of others are bytes of others.
fn stores_on(inventory: &Inventory, filesystem: FilesystemIx) -> BTreeMap<StoreId, StoreIx> {
    let stores = (0..).map(StoreIx::from).zip(&inventory.stores);
    let here = stores.filter(|(_, store)| {
        store.filesystem == filesystem && !store.read_only && store.kind.obstacle().is_none()
    });
    here.map(|(ix, store)| (StoreId::of(store), ix)).collect()
}

fn is_of_kubernetes(inventory: &Inventory, store: StoreIx) -> bool {
    let mut containers = inventory.containers.iter().filter(|container| container.store == store);
    inventory[store].kind.facts().is_of_runtime || containers.any(|container| container.owner == Owner::CriO)
}

struct OnDisk<'a> {
    scanned: &'a ScanResult,
    inventory: &'a Inventory,
    filesystem: FilesystemIx,
    pinned: &'a [ImageIx],
}

impl OnDisk<'_> {
    fn images(&self, stores: &BTreeMap<StoreId, StoreIx>) -> HashMap<(StoreIx, &str), ImageIx> {
        let images = (0..).map(ImageIx::from).zip(&self.inventory.images);
        let here = images.filter(|(_, image)| stores.values().any(|store| *store == image.store));
        here.map(|(ix, image)| ((image.store, image.id.as_str()), ix)).collect()
    }

    fn is_pinned(&self, image: ImageIx) -> bool {
        !self.inventory[image].pinned_by.is_empty() || self.pinned.contains(&image)
    }

    /// Returns what an image reaches on the filesystem, the base layer first. Everything that a deletion frees is a layer:
    /// records, shared inodes and shared extents too.
    fn layers(&self, image_ix: ImageIx) -> Vec<ArrivedLayer> {
        let reach = self.scanned.scan.refs.reach(Root::Image(image_ix)).iter().rev().copied();
        let here = reach.filter(|node| {
            let node = &self.inventory[*node];
            node.filesystem == self.filesystem && !self.inventory[node.store].read_only
        });
        let (layers, others): (Vec<_>, Vec<_>) = here.partition(|node| self.inventory[*node].kind.is_layer());
        let downloads = self.downloads(&self.inventory[image_ix], &layers);
        layers
            .into_iter()
            .chain(others)
            .map(|node_ix| {
                let node = &self.inventory[node_ix];
                ArrivedLayer {
                    id: format!("{}/{}", node.store.get(), node.id),
                    bytes: node.size.frees_bytes,
                    compressed_bytes: downloads.get(&node_ix).copied(),
                }
            })
            .collect()
    }

    /// Returns the bytes that a pull transfers for nodes of an image, as far as they are known. In containerd the blobs are
    /// transferred, and the snapshots are made of them.
    fn downloads(&self, image: &Image, layers: &[NodeIx]) -> HashMap<NodeIx, u64> {
        let (blobs, others): (Vec<_>, Vec<_>) =
            layers.iter().copied().partition(|node| self.inventory[*node].kind == NodeKind::Blob);
        let digests: HashSet<_> = blobs.iter().map(|node| self.inventory[*node].id.as_str()).collect();
        let mut downloads: HashMap<_, _> =
            blobs.iter().map(|node| (*node, self.inventory[*node].size.apparent_bytes)).collect();
        if !image.blobs.is_empty() && image.blobs.iter().all(|blob| digests.contains(blob.digest.as_str())) {
            downloads.extend(others.into_iter().map(|node| (node, 0)));
            return downloads;
        }
        let stacked = image.layers.iter().rev();
        if image.layers.len() == image.blobs.len() {
            let nodes: HashMap<_, _> =
                layers.iter().map(|node| (self.inventory[*node].id.as_str(), *node)).collect();
            let known = stacked.zip(&image.blobs);
            downloads.extend(
                known.filter_map(|(id, blob)| Some((*nodes.get(id.as_str())?, blob.compressed_bytes))),
            );
        }
        downloads
    }
}

impl RecordedTrace {
    #[must_use]
    pub fn trace(&self) -> Trace {
        Trace::new(self.header.clone(), self.events.iter().cloned())
    }

    fn add_lives<'l>(
        &mut self,
        on_disk: &OnDisk<'_>,
        lives: impl Iterator<Item = &'l PastLife>,
        stores: &BTreeMap<StoreId, StoreIx>,
    ) {
        let present = on_disk.images(stores);
        for past in lives {
            let life = &past.life;
            let Some(store) = stores.get(&life.store) else { continue };
            let image_ix = present.get(&(*store, life.image_id.as_str())).copied();
            // The deletion may be later than the last scan.
            let is_over = life.gone_since.is_some() || image_ix.is_none();
            let deleted = past.deletion.filter(|_| is_over);
            let gone = life.gone_since.or(is_over.then_some(self.header.to));
            let end = deleted.map(|(time, _)| time).or(gone).map(|end| end.max(life.age.first_detected));
            if end.is_some_and(|end| end < self.header.from) {
                continue;
            }
            let image = format!("{}/{}", store.get(), life.image_id);
            let (layers, pinned) = match image_ix {
                Some(image_ix) => (on_disk.layers(image_ix), on_disk.is_pinned(image_ix)),
                None => {
                    self.header.images_without_layers += 1;
                    let own = format!("{image}/own");
                    let layer = ArrivedLayer { id: own, bytes: life.frees_bytes, compressed_bytes: None };
                    (vec![layer], life.pinned)
                }
            };
            let origin = past.origin.as_ref().map_or(OriginKind::Unknown, |origin| origin.kind);
            self.events.push(TraceEvent::Arrival(ArrivalEvent {
                time: life.age.first_detected,
                image: image.clone(),
                names: life.names.clone(),
                origin,
                pinned,
                layers,
            }));
            self.add_uses(past, &image, end);
            if let Some(time) = end {
                let reason = deleted.map(|(_, reason)| reason);
                let by = if reason.is_some() { DepartedBy::Layersweep } else { DepartedBy::Other };
                self.events.push(TraceEvent::Departure(DepartureEvent { time, image, by, reason }));
            }
        }
    }

    fn add_uses(&mut self, past: &PastLife, image: &str, end: Option<Timestamp>) {
        let life = (past.life.age.first_detected, end.unwrap_or(Timestamp::MAX));
        let mut last = None;
        for (begin, until) in &past.uses {
            last = last.max(Some(until.unwrap_or(Timestamp::MAX)));
            self.events.push(TraceEvent::Use(UseEvent {
                time: (*begin).clamp(life.0, life.1),
                until: until.or(end).map(|until| until.clamp(life.0, life.1)),
                image: image.to_owned(),
            }));
        }
        // Containers are forgotten earlier than images, and some uses are not by containers.
        if let Some(used) = past.life.age.last_used.filter(|used| Some(*used) > last) {
            let time = used.clamp(life.0, life.1);
            self.events.push(TraceEvent::Use(UseEvent { time, until: Some(time), image: image.to_owned() }));
        }
    }

    /// Adds the bytes of others, at each reading of the filesystem; without readings, as they are now.
    fn add_others(&mut self, series: Option<&Series>, used_now: u64) {
        /// Half a day: the time of a day's mean.
        const NOON: SignedDuration = SignedDuration::from_hours(12);
        let points = series.into_iter().flat_map(|series| &series.points);
        let mut readings: Vec<_> = points
            .map(|point| {
                let time = if point.span == Span::Single { point.time } else { point.time + NOON };
                (time, point.used.avg)
            })
            .collect();
        readings.sort_unstable();
        readings.push((self.header.to, used_now));
        let first = readings.partition_point(|(time, _)| *time <= self.header.from).saturating_sub(1);
        let readings = &readings[first..];
        let images = recorded_bytes(&self.trace(), readings.iter().map(|(time, _)| *time));
        let others = readings.iter().zip(images).map(|((time, used), images)| {
            TraceEvent::Others(OthersEvent { time: *time, bytes: used.saturating_sub(images) })
        });
        self.events.extend(others);
    }
}
