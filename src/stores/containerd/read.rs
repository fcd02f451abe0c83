//! Reads a containerd root: first the directories, then the snapshotters' databases, then `meta.db`. Objects are
//! created in this order and deleted in the opposite order, so an object without a record when the databases are read
//! was not just being created.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use super::docker;
use super::listing;
use super::metadata::{Metadata, Oddity, snapshotter};
use super::places::{self, CRI, ContainerdPlaces, digest_of_cached};
use super::snapshot::{Backend, BlobFile, Snapshot, Transactions};
use super::units;
use crate::model::{Consistency, ContainerState, Finding};
use crate::stores::bolt::{self, BoltDatabase, BoltError};
use crate::stores::oci::{self, Document};
use crate::stores::read_cache::ReadCache;
use crate::sys::quiet::{self, FileKind, Within};
use crate::sys::readlink::Untraced;

/// containerd reads manifests of at most 8 MiB.
const DOCUMENT_BYTES: u64 = 8 << 20;
/// A layer of the erofs snapshotter, in the directory of its snapshot.
const EROFS_LAYER: &str = "layer.erofs";
/// Effect of a lost `meta.db`, and what the owner of the node does. With an empty file, or none, containerd starts with
/// no records; with a damaged one it does not start.
const META_DB_LOST: &str = "what this root holds is unknown, and containerd does not start with a damaged file. Stop \
    containerd, move the file away, start it and pull the images again. Copy what containers wrote out of the snapshots \
    before that: containerd deletes what its new records do not name";
/// The same for a snapshotter's `metadata.db`.
const SNAPSHOTTER_LOST: &str = "what its snapshots hold is unknown. Stop containerd, move the snapshotter's directory away, \
    start it and pull the images again. What containers wrote is in that directory";
/// Maximum size of a CRI status file that is read; they are much shorter.
const STATUS_BYTES: u64 = 1 << 20;
/// Maximum depth of indexes inside indexes. In practice there is one level.
const NESTING: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct ReadPatience {
    /// Maximum time for attempts to read without a write by another process meanwhile.
    pub quiet: Duration,
    /// Time after which objects without a record are checked again; `None`: such objects are not searched.
    pub confirm: Option<Duration>,
}

impl Default for ReadPatience {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(800), confirm: Some(Duration::from_secs(1)) }
    }
}

const PAUSE: Duration = Duration::from_millis(20);

/// Reads the root, except the content that is in `cache`.
///
/// # Errors
/// If the root cannot be listed. Everything else that cannot be read becomes a finding.
pub fn read(places: &ContainerdPlaces, patience: ReadPatience, cache: &ReadCache) -> io::Result<Snapshot> {
    let mut snapshot = read_quietly(places, patience, cache)?;
    if let Some(confirm) = patience.confirm {
        let first: HashSet<_> = unknown(&snapshot).collect();
        if !first.is_empty() && !places.foreign {
            // A new blob has a file before its record, and a deleted blob a file after it: only an object that is
            // found twice is a leak.
            thread::sleep(confirm);
            snapshot = read_quietly(places, patience, cache)?;
        }
        let both: Vec<_> = unknown(&snapshot).filter(|path| first.contains(path)).collect();
        for path in both {
            let modified = snapshot.within.facts(&path).ok().and_then(|facts| facts.modified);
            snapshot.unknown_since.insert(path, modified);
        }
    }
    if snapshot.consistency == Consistency::WriterActive {
        let message = "containerd kept writing; each database was read consistently, but nothing is reported as missing";
        snapshot.findings.push(Finding::new(&places.root, message));
    }
    Ok(snapshot)
}

/// Returns true if `meta.db` contains an image for whose name and digest `is_of_image` returns true. Returns `None`
/// if it contains none, but not all images of the namespace could be read. Reads nothing else.
///
/// # Errors
/// If `meta.db` cannot be opened or read.
pub fn has_image(
    places: &ContainerdPlaces,
    cache: &ReadCache,
    namespace: &str,
    is_of_image: impl Fn(&str, &str) -> bool,
) -> io::Result<Option<bool>> {
    let path = places.meta_db();
    let file = quiet::if_present(places.within().open_file(&path))?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it has no meta.db"))?;
    let database = cache
        .database(&path, &file)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let mut is_whole = true;
    for (name, target) in Metadata::targets(&database, namespace) {
        if is_of_image(&name, &target) {
            return Ok(Some(true));
        }
        is_whole &= !target.is_empty();
    }
    Ok(is_whole.then_some(false))
}

/// Returns the paths of objects without a record.
fn unknown(snapshot: &Snapshot) -> impl Iterator<Item = PathBuf> {
    units::sort(snapshot).into_iter().filter(|unit| unit.kind.is_orphan()).map(|unit| unit.path)
}

/// Reads until no other process wrote meanwhile, or the patience ends.
fn read_quietly(
    places: &ContainerdPlaces,
    patience: ReadPatience,
    cache: &ReadCache,
) -> io::Result<Snapshot> {
    let started = Instant::now();
    loop {
        let before = transactions(places)?;
        let mut snapshot = read_once(places, patience.confirm.is_some(), cache)?;
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

/// Returns true if another process has written since `snapshot`.
///
/// # Errors
/// If the root can no longer be listed.
pub fn moved(snapshot: &Snapshot) -> io::Result<bool> {
    Ok(!snapshot.places.foreign && transactions(&snapshot.places)? != snapshot.transactions)
}

fn transactions(places: &ContainerdPlaces) -> io::Result<Transactions> {
    let within = places.within();
    let snapshotters = listing::snapshotters(places, &within.list(&places.root)?);
    let paths = snapshotters.into_iter().map(|snapshotter| snapshotter.data.join("metadata.db"));
    let transactions = paths.chain([places.meta_db()]).map(|path| {
        let file = within.open_file(&path).ok();
        (file.and_then(|file| bolt::newest_txid(&file).ok()), path)
    });
    Ok(transactions.collect())
}

/// Reads the directories, then the snapshotters' databases, then `meta.db`, then the small files that the records
/// name. Without a search for `leaks`, the lengths of blobs' files are not needed.
fn read_once(places: &ContainerdPlaces, leaks: bool, cache: &ReadCache) -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::list(places, leaks)?;
    for backend in std::mem::take(&mut snapshot.backends) {
        snapshot.backend(backend, cache);
    }
    if !places.layer_caches.is_empty() {
        snapshot.cached_layers();
    }
    snapshot.meta_db(cache);
    snapshot.late_blobs();
    snapshot.documents(cache);
    snapshot.states();
    if let Some(data_root) = &places.docker_data {
        let (records, findings) = docker::read(data_root, &snapshot.metadata);
        snapshot.docker = records;
        snapshot.findings.extend(findings);
    }
    Ok(snapshot)
}

/// Opens and reads a database; returns `None` if it does not exist.
fn database(within: &Within, path: &Path, cache: &ReadCache) -> Result<Option<Arc<BoltDatabase>>, BoltError> {
    let file = quiet::if_present(within.open_file(path))?;
    file.map(|file| cache.database(path, &file)).transpose()
}

/// Returns the target of the symlink to a layer in a cache; `None` if it cannot be read without changing its access
/// time.
fn cached_blob(within: &Within, snapshot: &Path) -> Option<PathBuf> {
    let open = within.directory(snapshot).ok()?;
    Some(Untraced::of(open.as_fd()).ok()?.target(OsStr::new(EROFS_LAYER)).ok()?.into())
}

impl Snapshot {
    pub(super) fn finding(&mut self, path: &Path, message: String, incomplete: bool) {
        self.findings.push(Finding { path: path.to_path_buf(), message, incomplete });
    }

    /// Reports a database that cannot be read. An object that is missing from the records may exist then. `remedy`
    /// is for a file whose content is lost.
    fn unreadable(&mut self, path: &Path, error: &BoltError, remedy: &str) {
        let end = match error {
            BoltError::NoMeta(_) | BoltError::Truncated { .. } | BoltError::Damaged(_) => remedy,
            BoltError::Io(_) | BoltError::TooLarge { .. } | BoltError::Busy { .. } => {
                "its records are missing from the results"
            }
        };
        self.lost(path, format!("reading the database: {error}; {end}"));
    }

    fn lost(&mut self, path: &Path, message: String) {
        self.finding(path, message, true);
        self.consistency = Consistency::Damaged;
    }

    fn describe(&mut self, path: &Path, database: &BoltDatabase, oddities: &[Oddity]) {
        if let Ok(facts) = self.within.facts(path) {
            self.databases.push((path.to_path_buf(), database.used_bytes(), facts.length));
        }
        for odd in oddities {
            self.finding(path, format!("{} {}", odd.location, odd.message), true);
            // An image may look unused because the record of its container is damaged.
            self.consistency = Consistency::Damaged;
        }
    }

    fn backend(&mut self, mut backend: Backend, cache: &ReadCache) {
        let path = backend.data.join("metadata.db");
        match database(&self.within, &path, cache) {
            Ok(None) => {}
            Ok(Some(database)) => {
                let (snapshots, oddities) = snapshotter::read(&database);
                self.describe(&path, &database, &oddities);
                backend.snapshots = snapshots;
                backend.known = true;
            }
            Err(error) => self.unreadable(&path, &error, SNAPSHOTTER_LOST),
        }
        self.backends.push(backend);
    }

    /// Finds the layers that the erofs snapshotter has in a cache: containerd 2.4 stores their path in a label, its
    /// betas in a symlink. Neither is followed: the name of the file is the layer's diffID.
    fn cached_layers(&mut self) {
        for (backend_ix, backend) in
            self.backends.iter().enumerate().filter(|(_, backend)| backend.name == "erofs")
        {
            for found in &backend.snapshots {
                let directory = backend.data.join("snapshots").join(found.id.to_string());
                let link = self.within.facts(&directory.join(EROFS_LAYER));
                let target = match (&found.cached_blob, link) {
                    (Some(path), _) => Some(PathBuf::from(path)),
                    (None, Ok(facts)) if facts.kind == FileKind::Symlink => {
                        cached_blob(&self.within, &directory)
                    }
                    (None, Err(error)) if error.kind() != io::ErrorKind::NotFound => None,
                    (None, _) => continue,
                };
                match target.and_then(|path| digest_of_cached(&path)) {
                    Some(diff_id) => drop(self.cached_layers.insert((backend_ix, found.id), diff_id)),
                    None => self.more_cached_layers = true,
                }
            }
        }
    }

    fn meta_db(&mut self, cache: &ReadCache) {
        let path = self.places.meta_db();
        match database(&self.within, &path, cache) {
            Ok(Some(database)) => {
                self.metadata = Metadata::read(&database);
                let oddities = std::mem::take(&mut self.metadata.oddities);
                self.describe(&path, &database, &oddities);
                self.metadata.oddities = oddities;
            }
            // The bytes are still counted, but nothing is known about the objects.
            Ok(None) => self.lost(&path, format!("is missing; {META_DB_LOST}")),
            Err(error) => self.unreadable(&path, &error, META_DB_LOST),
        }
        let without: Vec<_> = self
            .backends
            .iter()
            .filter(|backend| self.misses_database(backend))
            .map(|backend| backend.data.join("metadata.db"))
            .collect();
        for path in without {
            self.lost(&path, format!("is missing; {SNAPSHOTTER_LOST}"));
        }
    }

    /// Returns true if `meta.db` has snapshots of a snapshotter that always has a database, and it has none.
    fn misses_database(&self, backend: &Backend) -> bool {
        let path = backend.data.join("metadata.db");
        !backend.known
            && backend.is_measured()
            && self.has_records_of(&backend.name)
            && matches!(quiet::if_present(self.within.facts(&path)), Ok(None))
    }

    /// Returns true if `meta.db` has snapshots of the snapshotter `name`.
    pub(super) fn has_records_of(&self, name: &str) -> bool {
        let mut snapshots = self.metadata.namespaces.iter().flat_map(|namespace| &namespace.snapshots);
        snapshots.any(|snapshot| snapshot.snapshotter == name)
    }

    /// Returns the path of a blob's file; `None` if `digest` is not a digest.
    pub(crate) fn blob_path(&self, digest: &str) -> Option<PathBuf> {
        let (algorithm, hex) = digest.split_once(':')?;
        // Only a valid digest becomes a path.
        places::digest(algorithm, hex)?;
        Some(self.places.content().join("blobs").join(algorithm).join(hex))
    }

    /// Adds blobs that were created between the listing and the records.
    fn late_blobs(&mut self) {
        let mut late: Vec<(String, Option<BlobFile>)> = Vec::new();
        for blob in self.metadata.namespaces.iter().flat_map(|namespace| &namespace.blobs) {
            if self.blobs.contains_key(&blob.digest) {
                continue;
            }
            let file = self.blob_path(&blob.digest).and_then(|path| listing::blob_file(&self.within, &path));
            late.extend(file.map(|file| (blob.digest.clone(), Some(file))));
        }
        self.blobs.extend(late);
    }

    /// Reads the indexes and manifests of the image names.
    fn documents(&mut self, cache: &ReadCache) {
        let images = self.metadata.namespaces.iter().flat_map(|namespace| &namespace.images);
        let mut waiting: Vec<(String, usize)> = images.map(|image| (image.target.clone(), 0)).collect();
        while let Some((digest, depth)) = waiting.pop() {
            if self.documents.contains_key(&digest) || !self.blobs.contains_key(&digest) {
                continue;
            }
            let Some(path) = self.blob_path(&digest) else { continue };
            let document = match cache.document(&digest) {
                Some(document) => document,
                None => match self.within.read(&path, DOCUMENT_BYTES) {
                    Ok(bytes) => {
                        let Some(document) = oci::parse(&bytes).map(Arc::new) else { continue };
                        cache.put_document(&digest, &document);
                        document
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        self.finding(&path, format!("reading the manifest: {error}"), true);
                        continue;
                    }
                },
            };
            if let Document::Index(children) = &*document
                && depth < NESTING
            {
                waiting.extend(children.iter().map(|child| (child.digest.clone(), depth + 1)));
            }
            self.documents.insert(digest, document);
        }
    }

    /// Reads CRI's status files, which contain the times at which a container was started and ended.
    fn states(&mut self) {
        let containers = self.places.root.join(CRI).join("containers");
        for entry in self.entries(&containers).to_vec() {
            let path = containers.join(&entry.name).join("status");
            let status = self.within.read(&path, STATUS_BYTES);
            if let Err(error) = &status
                && quiet::is_symlink(error)
            {
                self.finding(&path, error.to_string(), true);
                self.consistency = Consistency::Damaged;
            }
            let json = status.ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
            let (Some(json), Some(id)) = (json, entry.name.to_str()) else { continue };
            let [finished, started, created] = ["FinishedAt", "StartedAt", "CreatedAt"]
                .map(|key| json.get(key).and_then(serde_json::Value::as_i64).is_some_and(|time| time > 0));
            let state = match (finished, started, created) {
                (true, _, _) => ContainerState::Exited,
                (_, true, _) => ContainerState::Running,
                (_, _, true) => ContainerState::Created,
                _ => continue,
            };
            self.states.insert(id.to_owned(), state);
        }
    }
}

#[cfg(test)]
mod tests;
