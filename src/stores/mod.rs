//! One scan: find the stores, read their records, weigh them, fill the inventory.

mod artifacts;
pub mod bolt;
mod chunks;
pub mod containerd;
mod containerds;
pub mod containers_storage;
mod graphroots;
mod leaks;
mod lenders;
pub mod lookup;
mod memory;
mod places;
mod pulled;
mod reading;
mod recall;
mod sandboxes;
mod shares;
pub mod tenants;
mod weigh;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use crate::disk::filesystem::{self, CostModel};
use crate::disk::kept::{Remembered, ToKeep};
use crate::disk::{Extents, Progress};
use crate::model::refs::{self, Refs};
use crate::model::{Filesystem, FilesystemIx, Finding, Inventory, LabelsOf, Node, StoreIx};
use crate::stores::containers_storage::config::Environment;
use crate::stores::containers_storage::edit::OutsideUse;
use crate::stores::containers_storage::snapshot::{Patience, Places};
use crate::sys::clock::Present;
use crate::sys::quiet;
use crate::sys::sysroot::Sysroot;

pub use places::directories;
pub use pulled::note_pulls;
use reading::{Filling, Reading};
pub use sandboxes::sandbox_images;
use weigh::{Wanted, Weighing};

/// What to survey.
#[derive(Clone, Debug)]
pub struct Request {
    /// The root that every path is taken in.
    pub sysroot: Sysroot,
    /// Graphroots by name; no name of any kind means: find all stores.
    pub graphroots: Vec<PathBuf>,
    /// containerd roots by name.
    pub containerd_roots: Vec<PathBuf>,
    /// A runroot that overrides the configured one.
    pub runroot: Option<PathBuf>,
    /// What of the process's environment matters.
    pub environment: Environment,
    /// Walker threads; 0 for the default.
    pub threads: usize,
    /// How long to wait for writers.
    pub patience: Patience,
    /// Whether to measure at all.
    pub weigh: Weigh,
    /// Whose labels to read: a file or two for every image.
    pub labels: LabelsOf,
    /// The time that ages are counted to.
    pub now: Timestamp,
    /// What earlier surveys left. Without it (not: with nothing in it) all is measured, and
    /// nothing is left for later ones.
    pub remembered: Option<Arc<Remembered>>,
    /// Measure everything, whatever is remembered.
    pub full: bool,
}

/// How much a survey measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weigh {
    /// Everything: who holds how many bytes.
    Everything,
    /// Nothing: every size is 0, and no leaks are looked for. Who uses and keeps what comes
    /// from the records alone, in milliseconds, and can be asked right before a deletion.
    Nothing,
}

impl Weigh {
    fn finds_leaks(self) -> bool {
        self == Self::Everything
    }
}

impl Request {
    /// Naming any store switches discovery off.
    fn names_stores(&self) -> bool {
        !self.graphroots.is_empty() || !self.containerd_roots.is_empty()
    }
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
    /// The root that was looked in.
    pub sysroot: Sysroot,
    /// What to leave for later surveys, where [`Request::remembered`] was given; never of
    /// somebody else's disk.
    pub to_keep: Option<ToKeep>,
    /// For each store where its parts lie, if it is one that can be edited.
    pub places: Vec<Option<Places>>,
    /// Directories that belong to each store, its root first.
    pub areas: Vec<Vec<PathBuf>>,
    /// Snapshotters that run beside containerd and whose records are not readable: name and directory.
    pub snapshotters: Vec<(String, PathBuf)>,
    /// The present that dates on the disk were counted to.
    pub present: Present,
    /// How it was asked for, to ask again.
    pub request: Request,
}

/// Who needs what of the store at `places`, and is in none of its records: to be asked again right
/// before a deletion, by whoever holds the locks then.
#[must_use]
pub fn outside(request: &Request, places: &Places) -> OutsideUse {
    graphroots::outside(request, places)
}

/// Whether the store at `places` has the image now; `None` where it is not found and the records are
/// damaged.
/// No other store is read, and none is looked for.
///
/// # Errors
/// When the records cannot be read at all.
pub fn has_image(request: &Request, places: &Places, id: &str) -> std::io::Result<Option<bool>> {
    graphroots::has_image(request, places, id)
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
        /// What to name instead.
        hint: &'static str,
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
    #[error("no image store found{}; looked in {}", below(sysroot.as_deref()), join(looked))]
    NoneFound {
        /// The mounted root that was looked in; `None` for the running system.
        sysroot: Option<PathBuf>,
        /// The configured places, none of which holds a store; inside of the root.
        looked: Vec<PathBuf>,
        /// What is wrong with the configuration.
        findings: Vec<Finding>,
    },
}

fn below(sysroot: Option<&Path>) -> String {
    sysroot.map_or_else(String::new, |path| format!(" inside of --sysroot {}", path.display()))
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
    let mut graphroots = graphroots::find(request)?;
    let containerds = containerds::find(request)?;
    let findings = [graphroots.findings.clone(), containerds.findings.clone()].concat();
    let looked = [graphroots.looked.clone(), containerds.looked.clone()].concat();
    let pins = graphroots.pins.clone();
    let (unread, others) = (graphroots.unread.clone(), graphroots.others());
    let (mut readings, mut unreadable) = graphroots.into_readings();
    let (more, failed) = containerds.into_readings();
    readings.extend(more);
    unreadable = unreadable.or(failed);
    if readings.is_empty() {
        let sysroot = request.sysroot.is_foreign().then(|| request.sysroot.root().to_path_buf());
        return Err(unreadable.unwrap_or(Error::NoneFound { sysroot, looked, findings }));
    }
    let mut inventory = Inventory { findings, ..Inventory::default() };

    let mut filesystems = Filesystems::default();
    let areas = readings
        .iter()
        .map(|reading| filesystems.of_roots(reading.as_ref(), &mut inventory))
        .collect::<Result<Vec<_>, _>>()?;
    let reflinks = areas.iter().flatten().any(|(_, cost)| cost.reflinks);
    let small_too = readings.iter().any(|reading| reading.copies_by_reflink());
    let extents = match (reflinks, small_too) {
        (false, _) => Extents::Off,
        (true, true) => Extents::All,
        (true, false) => Extents::Probe,
    };
    let inode_chunks = areas.iter().flatten().any(|(_, cost)| cost.inode_chunks);
    let mut weighing = Weighing::new(readings);
    weighing.run(request, Wanted { extents, inode_chunks }, progress, &mut inventory.findings);

    let leaps = request.remembered.as_ref().map(|remembered| remembered.leaps.clone());
    let leaps = leaps.filter(|_| !request.sysroot.is_foreign()).unwrap_or_default();
    let present = Present::at(request.now, leaps);
    let mut filling =
        Filling { inventory: &mut inventory, request, pins: &pins, ids: HashMap::new(), present: &present };
    let mut nodes = HashMap::new();
    for (position, reading) in weighing.readings().iter().enumerate() {
        let store = StoreIx::from(filling.inventory.stores.len());
        filling.inventory.stores.push(reading.store(areas[position][0].0));
        let filled = reading.fill(&mut filling, store, &areas[position], &weighing.tallies(position));
        nodes.extend(weighing.slots(position).iter().copied().zip(filled));
    }
    let ids = filling.ids;
    let shown = weighing.readings().iter().enumerate().filter_map(|(at, reading)| reading.borrower(at));
    let borrowers: Vec<_> = shown.chain(others.iter().map(|other| other.borrower(None))).collect();
    lenders::note(&mut inventory, &request.sysroot, weighing.readings(), &ids, &borrowers, &unread);
    drop(borrowers);
    weighing.share(&mut inventory, &nodes, &filesystems.costs);
    tracing::info!("{} nodes, {} findings", inventory.nodes.len(), inventory.findings.len());
    inventory.gather_evidence();
    let refs = Refs::new(&inventory);
    refs::spare_what_is_reached(&mut inventory, &refs);
    let recalled = weighing.recalled();
    let recalled: HashSet<_> =
        nodes.iter().filter(|(slot, _)| recalled.contains(slot)).map(|(_, node)| node.get()).collect();
    let is_layer = |(_, node): &(usize, &Node)| node.layer.is_some();
    let layers = inventory.nodes.iter().enumerate().filter(is_layer);
    let (cached, measured): (Vec<_>, Vec<_>) = layers.partition(|(at, _)| recalled.contains(at));
    let effort = Effort {
        seconds: started.elapsed().as_secs_f64(),
        inodes: progress.inodes.load(std::sync::atomic::Ordering::Relaxed),
        measured_layers: measured.len(),
        cached_layers: cached.len(),
    };
    let places = weighing.readings().iter().map(|reading| reading.places().cloned()).collect();
    let areas = weighing.readings().iter().map(|reading| match reading.places() {
        // Its roots have directories among them where others leave temporary files.
        Some(places) => places.areas().map(|area| area.to_path_buf()).collect(),
        None => reading.roots(),
    });
    let areas = areas.collect();
    let snapshotters = weighing.readings().iter().flat_map(|reading| reading.snapshotters()).collect();
    let to_keep = weighing.leave().filter(|_| !request.sysroot.is_foreign());
    let (taken_at, sysroot) = (request.now, request.sysroot.clone());
    let request = Request { remembered: None, ..request.clone() };
    Ok(Survey {
        inventory,
        refs,
        effort,
        taken_at,
        sysroot,
        to_keep,
        places,
        areas,
        snapshotters,
        present,
        request,
    })
}

/// The filesystems met so far, each once.
#[derive(Default)]
struct Filesystems {
    known: HashMap<String, FilesystemIx>,
    costs: Vec<CostModel>,
}

impl Filesystems {
    /// The filesystem of each of a store's roots.
    fn of_roots(
        &mut self,
        reading: &dyn Reading,
        inventory: &mut Inventory,
    ) -> Result<Vec<(FilesystemIx, CostModel)>, Error> {
        let mut areas: Vec<(FilesystemIx, CostModel)> = Vec::new();
        for root in reading.roots() {
            match (self.of(&root, reading, inventory), areas.first()) {
                (Ok(area), _) => areas.push(area),
                // A directory that does not exist has nothing in it to be charged for.
                (Err(_), Some(first)) => areas.push(*first),
                (Err(source), None) => return Err(Error::Unreadable { path: root, source }),
            }
        }
        Ok(areas)
    }

    fn of(
        &mut self,
        path: &Path,
        reading: &dyn Reading,
        inventory: &mut Inventory,
    ) -> std::io::Result<(FilesystemIx, CostModel)> {
        let held = reading.places().map(|places| places.within().handle(path)).transpose()?;
        let open = held.as_ref().map(|held| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())));
        // The descriptor itself, not what is at its path now.
        let open = open.as_deref().filter(|open| open.exists()).unwrap_or(path);
        let (facts, cost): (Filesystem, CostModel) = filesystem::of(open)?;
        // Mounts of one filesystem (podman binds the driver's directory onto itself), and
        // subvolumes of one btrfs, share a block device; what has none has a number.
        let key = match facts.device.starts_with("/dev/") {
            true => facts.device.clone(),
            false => {
                let device = match &held {
                    Some(held) => rustix::fs::fstat(held)?.st_dev,
                    None => quiet::facts(path)?.device,
                };
                format!("{} {device}", facts.fstype)
            }
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
