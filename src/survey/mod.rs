//! One scan: find the stores, read their records, weigh them, fill the inventory.

mod chunks;
mod find;
pub mod lookup;
mod weigh;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;

use crate::graphroot::config::{Environment, Pin, pin_matches_image};
use crate::graphroot::fill::{self, AreaFacts, Ids};
use crate::graphroot::snapshot::Patience;
use crate::inventory::refs::Refs;
use crate::inventory::{Filesystem, FilesystemIx, Finding, Inventory, Store, StoreIx, StoreKind};
use crate::sys::sysroot::Sysroot;
use crate::sys::{mounts, quiet};
use crate::usage::filesystem::{self, CostModel};
use crate::usage::{Extents, Progress};

use find::Candidate;
use weigh::{Wanted, Weighing};

/// What to survey.
#[derive(Clone, Debug)]
pub struct Request {
    /// The root that every path is taken in.
    pub sysroot: Sysroot,
    /// Stores by name; none means: find them.
    pub graphroots: Vec<PathBuf>,
    /// A runroot that overrides the configured one.
    pub runroot: Option<PathBuf>,
    /// What of the process's environment matters.
    pub environment: Environment,
    /// Walker threads; 0 for the default.
    pub threads: usize,
    /// How long to wait for writers.
    pub patience: Patience,
    /// The time that ages are counted to.
    pub now: Timestamp,
}

/// What a survey found.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Everything that costs bytes, and who holds it.
    pub inventory: Inventory,
    /// Its reference counts.
    pub refs: Refs,
    /// How it was measured.
    pub effort: Effort,
    /// The time that ages are counted to.
    pub taken_at: Timestamp,
}

impl Survey {
    /// Everything was read: figures are exact, not lower bounds.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.inventory.findings.iter().any(|finding| finding.incomplete)
    }
}

/// How much work a survey was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Effort {
    /// From start to end.
    pub seconds: f64,
    /// Inodes examined.
    pub inodes: u64,
    /// Layers measured on the disk.
    pub measured_layers: usize,
    /// Layers whose size came from the records of an earlier scan.
    pub cached_layers: usize,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store was named that is none.
    #[error("{} holds no image store", path.display())]
    NotAStore {
        /// The path as named.
        path: PathBuf,
    },
    /// A store was named that cannot be read.
    #[error("reading the store {}", path.display())]
    Unreadable {
        /// The path as named.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No store was named and none was found.
    #[error("no image store found; looked in {}", join(looked))]
    NoneFound {
        /// The configured places, none of which holds a store.
        looked: Vec<PathBuf>,
    },
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Surveys all stores of the request.
///
/// # Errors
/// When there is no store, or a named one cannot be read at all. What cannot be read
/// inside a store is a finding of the inventory.
pub fn run(request: &Request, progress: &Progress) -> Result<Survey, Error> {
    let started = Instant::now();
    let found = find::find(request)?;
    let mut inventory = Inventory { findings: found.findings, ..Inventory::default() };
    let mut filesystems = Filesystems::default();
    let mut weighing = Weighing::new(found.candidates);
    let mut areas = Vec::new();
    for candidate in weighing.candidates() {
        areas.push(filesystems.of_areas(candidate, &mut inventory)?);
    }
    let reflinks = areas.iter().flatten().any(|area| area.top.1.reflinks || area.driver.1.reflinks);
    let any_vfs = weighing.candidates().any(|candidate| candidate.snapshot.places.driver == "vfs");
    let extents = match (reflinks, any_vfs) {
        (false, _) => Extents::Off,
        // vfs copies its layers by reflink where it can, small files included.
        (true, true) => Extents::All,
        (true, false) => Extents::Probe,
    };
    let inode_chunks =
        areas.iter().flatten().any(|area| area.top.1.inode_chunks || area.driver.1.inode_chunks);
    weighing.run(request, Wanted { extents, inode_chunks }, progress, &mut inventory.findings);

    let mut ids: HashMap<PathBuf, Ids> = HashMap::new();
    let mut nodes = HashMap::new();
    for (position, candidate) in weighing.candidates().enumerate() {
        let store = add_store(&mut inventory, candidate, areas[position][0].top.0);
        let additional: Vec<_> = candidate.additional.iter().filter_map(|path| ids.get(path)).collect();
        let filled = fill::fill(
            &mut inventory,
            &candidate.snapshot,
            &candidate.units,
            &weighing.tallies(position),
            &fill::Context {
                store,
                areas: &areas[position],
                additional: &additional,
                pinned_by: &|names, digests| pinned_by(&found.pins, names, digests),
                mounts: &mounts_below(request, &candidate.snapshot.places.graphroot),
                now: request.now,
            },
        );
        for (slot, node) in weighing.slots(position).iter().zip(&filled.nodes) {
            nodes.insert(*slot, *node);
        }
        ids.insert(candidate.snapshot.places.graphroot.clone(), filled.ids);
    }
    weighing.share(&mut inventory, &nodes, &filesystems.costs);
    let refs = Refs::new(&inventory);
    let effort = Effort {
        seconds: started.elapsed().as_secs_f64(),
        inodes: progress.inodes.load(std::sync::atomic::Ordering::Relaxed),
        measured_layers: inventory.nodes.iter().filter(|node| node.layer.is_some()).count(),
        cached_layers: 0,
    };
    Ok(Survey { inventory, refs, effort, taken_at: request.now })
}

fn add_store(inventory: &mut Inventory, candidate: &Candidate, filesystem: FilesystemIx) -> StoreIx {
    let store = StoreIx::from(inventory.stores.len());
    inventory.stores.push(Store {
        kind: StoreKind::ContainersStorage,
        root: candidate.snapshot.places.graphroot.clone(),
        driver: candidate.snapshot.places.driver.clone(),
        filesystem,
        read_only: candidate.snapshot.places.read_only,
        origin: candidate.origin.clone(),
        consistency: candidate.snapshot.consistency,
    });
    store
}

fn pinned_by(pins: &[Pin], names: &[String], digests: &[String]) -> Vec<String> {
    let matching = pins.iter().filter(|pin| pin_matches_image(&pin.pattern, names, digests));
    matching.map(|pin| format!("{:?} in {}", pin.pattern, pin.origin)).collect()
}

fn mounts_below(request: &Request, graphroot: &Path) -> Vec<PathBuf> {
    if request.sysroot.is_foreign() {
        return Vec::new();
    }
    mounts::below(graphroot).unwrap_or_default()
}

/// The filesystems met so far, each once.
#[derive(Default)]
struct Filesystems {
    known: HashMap<String, FilesystemIx>,
    costs: Vec<CostModel>,
}

impl Filesystems {
    fn of_areas(
        &mut self,
        candidate: &Candidate,
        inventory: &mut Inventory,
    ) -> Result<Vec<AreaFacts>, Error> {
        let places = &candidate.snapshot.places;
        let mut areas = Vec::new();
        for area in places.areas() {
            let top = self
                .of(area, inventory)
                .map_err(|source| Error::Unreadable { path: area.to_path_buf(), source })?;
            // The driver's directory may not exist yet; then nothing lies in it.
            let driver = self.of(&area.join(&places.driver), inventory).unwrap_or(top);
            areas.push(AreaFacts { top, driver });
        }
        Ok(areas)
    }

    fn of(&mut self, path: &Path, inventory: &mut Inventory) -> std::io::Result<(FilesystemIx, CostModel)> {
        let (facts, cost): (Filesystem, CostModel) = filesystem::of(path)?;
        // Mounts of one filesystem (podman binds the driver's directory onto itself), and
        // subvolumes of one btrfs, share a block device; what has none has a number.
        let key = match facts.device.starts_with("/dev/") {
            true => facts.device.clone(),
            false => format!("{} {}", facts.fstype, quiet::facts(path)?.device),
        };
        let at = *self.known.entry(key).or_insert_with(|| {
            inventory.filesystems.push(facts);
            self.costs.push(cost);
            FilesystemIx::from(inventory.filesystems.len() - 1)
        });
        Ok((at, self.costs[at.get()]))
    }
}

/// A warning that figures are lower bounds.
fn incomplete(path: &Path, message: String) -> Finding {
    Finding { path: path.to_path_buf(), message, incomplete: true }
}
