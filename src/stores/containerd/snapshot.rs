//! Reads a containerd root: directories first, then the snapshotters' databases, then
//! `meta.db`, since what is made appears in this order and what is deleted goes in the
//! opposite one. So what has no record when the databases are read was not just being made.

mod listing;
mod read;

pub(in crate::stores::containerd) use listing::digest_of_cached;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, thread};

use jiff::Timestamp;

use super::content::Document;
use super::metadata::Metadata;
use super::metadata::snapshotter::BackendSnapshot;
use super::places::{CONTENT, Places};
use super::units;
use crate::model::{Consistency, ContainerState, Finding};
use crate::stores::bolt::{self, BoltError};
use crate::sys::quiet::Entry;

/// Entries of each directory that was listed, by its path.
pub type Listing = BTreeMap<PathBuf, Vec<Entry>>;

/// A blob's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobFile {
    /// Its length in bytes.
    pub length: u64,
    /// When it was last written.
    pub modified: Option<Timestamp>,
}

/// A download's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestDirectory {
    /// Its name: a digest of the reference.
    pub name: String,
    /// The text in its file `ref`.
    pub backend_ref: Option<String>,
    /// When its data last grew.
    pub modified: Option<Timestamp>,
}

/// A snapshotter: its directory and what its database says.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    /// Its name, for example `overlayfs`.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// What of that has its database and the directory `snapshots`.
    pub data: PathBuf,
    /// It runs beside containerd, and keeps files of its own in its directory.
    pub is_proxy: bool,
    /// Its snapshots; empty where there is no database that we can read.
    pub snapshots: Vec<BackendSnapshot>,
    /// It has a database, and it was read.
    pub known: bool,
}

/// Everything that the files of a root say.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it was read.
    pub places: Places,
    /// The records of `meta.db`.
    pub metadata: Metadata,
    /// The snapshotters, by name.
    pub backends: Vec<Backend>,
    /// The directories.
    pub listing: Listing,
    /// Blobs' files by digest.
    pub blobs: BTreeMap<String, BlobFile>,
    /// Directories of downloads.
    pub ingests: Vec<IngestDirectory>,
    /// Manifests and indexes by digest, as far as names lead to them.
    pub documents: HashMap<String, Document>,
    /// diffIDs of layers in a cache, by the position of the snapshotter and the id of the snapshot that
    /// has its content there.
    pub cached_layers: HashMap<(usize, u64), String>,
    /// There are more of them, of which it cannot be read where they lead.
    pub more_cached_layers: bool,
    /// What CRI's status files say, by container id.
    pub states: HashMap<String, ContainerState>,
    /// When a thing without a record last changed. Those that are missing here were seen
    /// in one of two readings only.
    pub unknown_since: HashMap<PathBuf, Option<Timestamp>>,
    /// How far all of that belongs together.
    pub consistency: Consistency,
    /// What could not be read.
    pub findings: Vec<Finding>,
    /// Databases that were read: path, bytes in use, bytes of the file.
    pub databases: Vec<(PathBuf, u64, u64)>,
    /// Transactions of all databases, to notice that somebody wrote.
    transactions: Transactions,
}

/// The newest transaction of each database.
type Transactions = Vec<(PathBuf, Option<u64>)>;

/// How patient [`read()`] is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long to try for a reading during which nobody wrote.
    pub quiet: Duration,
    /// How long to wait before things without a record are looked at again.
    pub confirm: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(800), confirm: Duration::from_secs(1) }
    }
}

const PAUSE: Duration = Duration::from_millis(20);

/// Reads the root.
///
/// # Errors
/// When the root cannot be listed or its `meta.db` cannot be opened. Everything else that
/// cannot be read is a finding.
pub fn read(places: &Places, patience: Patience) -> io::Result<Snapshot> {
    let mut snapshot = read_quietly(places, patience)?;
    let first: HashSet<_> = unknown(&snapshot).collect();
    if !first.is_empty() && !places.foreign {
        // A blob's file stands for a moment before its record, and what is being deleted
        // stands for a moment after: only what is there twice is a leak.
        thread::sleep(patience.confirm);
        snapshot = read_quietly(places, patience)?;
    }
    let both: Vec<_> = unknown(&snapshot).filter(|path| first.contains(path)).collect();
    for path in both {
        let modified = places.within().facts(&path).ok().and_then(|facts| facts.modified);
        snapshot.unknown_since.insert(path, modified);
    }
    if snapshot.consistency == Consistency::WriterActive {
        snapshot.findings.push(Finding {
            path: places.root.clone(),
            message: "containerd was writing all the time; its databases are each read as of one moment, \
                      and nothing is called missing"
                .into(),
            incomplete: false,
        });
    }
    Ok(snapshot)
}

/// What has no record.
fn unknown(snapshot: &Snapshot) -> impl Iterator<Item = PathBuf> {
    units::sort(snapshot).into_iter().filter(units::Unit::is_orphan).map(|unit| unit.path)
}

/// Reads until nobody wrote during it, or the patience ends.
fn read_quietly(places: &Places, patience: Patience) -> io::Result<Snapshot> {
    let started = Instant::now();
    loop {
        let before = transactions(places)?;
        let mut snapshot = read::read_once(places)?;
        let still = places.foreign || transactions(places)? == before;
        snapshot.transactions = before;
        if still {
            return Ok(snapshot);
        }
        if started.elapsed() >= patience.quiet {
            snapshot.consistency = snapshot.consistency.max(Consistency::WriterActive);
            return Ok(snapshot);
        }
        thread::sleep(PAUSE);
    }
}

/// Whether anything was written since `snapshot`.
///
/// # Errors
/// When the root cannot be listed any more.
pub fn moved(snapshot: &Snapshot) -> io::Result<bool> {
    Ok(!snapshot.places.foreign && transactions(&snapshot.places)? != snapshot.transactions)
}

fn transactions(places: &Places) -> io::Result<Transactions> {
    let within = places.within();
    let snapshotters = listing::snapshotters(places, &within.list(&places.root)?);
    let databases = snapshotters.into_iter().map(|snapshotter| snapshotter.data.join("metadata.db"));
    let peek = |path: &Path| -> Result<u64, BoltError> { bolt::newest_txid(&within.open_file(path)?) };
    Ok(databases
        .chain([places.meta_db()])
        .map(|path| (peek(&path).ok(), path))
        .map(|(id, path)| (path, id))
        .collect())
}

impl Snapshot {
    /// What other stores call the driver: overlayfs where it is used, else the first
    /// snapshotter that is. Its snapshots go by their key alone.
    #[must_use]
    pub fn driver(&self) -> &str {
        let all = self.metadata.namespaces.iter().flat_map(|namespace| &namespace.snapshots);
        let names = all.map(|snapshot| snapshot.snapshotter.as_str());
        names.min_by_key(|name| (*name != "overlayfs", *name)).unwrap_or("overlayfs")
    }

    /// The entries of a directory; none if it was not listed.
    #[must_use]
    pub fn entries(&self, directory: &Path) -> &[Entry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }

    /// The directories that the parts of units are relative to: the root, the content
    /// store, each snapshotter's directory, and the caches of layers. Each may be a filesystem of its own.
    #[must_use]
    pub fn areas(&self) -> Vec<PathBuf> {
        let fixed = [self.places.root.clone(), self.places.root.join(CONTENT)];
        let backends = self.backends.iter().map(|backend| backend.directory.clone());
        fixed.into_iter().chain(backends).chain(self.places.layer_caches.iter().cloned()).collect()
    }
}

/// Position of the root in [`Snapshot::areas`].
pub const ROOT_AREA: usize = 0;
/// Position of the content store in [`Snapshot::areas`].
pub const CONTENT_AREA: usize = 1;
/// Position of the first snapshotter in [`Snapshot::areas`].
pub const FIRST_BACKEND_AREA: usize = 2;

#[cfg(test)]
mod tests;
