//! A consistent reading of one store's records, without disturbing the runtime.
//!
//! No lock is taken at first: the lock files show whether another process writes, their
//! tokens and the record files' identities are read before and after, and the reading counts only if
//! nothing changed. Under constant writes short shared locks are taken instead. If a writer keeps its
//! lock for long (a pull by library versions up to 1.61 keeps `layers.lock` during the whole extraction)
//! the reading counts as [`Consistency::WriterActive`]: every file is complete, but what is missing from
//! one of them proves nothing.
//!
//! Directories are listed *before* the records are read, since a layer's record is saved
//! before its directory is created (containers/storage 1.40 and later): a listed name without a record is
//! not a layer that is just being created. While locks are held the record files' bytes are read and
//! nothing else; the directories are then listed once more, since directories deleted in between are not
//! leaks either.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::chains;
use super::inspect::found::Inspection;
use super::locks::LockFile;
use super::places::{MOST_RECORD_BYTES, RecordKind, RecordPath, StorePlaces};
use super::positions::Positions;
use super::records::{self, ContainerRecord, ImageRecord, LayerRecord, Parsed, is_id};
use super::temporary_files;
use crate::model::{Consistency, Finding};
use crate::sys::quiet::{self, DirectoryEntry, FileKind, Within};

/// Records beyond these are ignored: some work is images times containers, and a hostile store must not make
/// a scan endless. Real stores have far fewer.
const MOST_IMAGES: usize = 100_000;
const MOST_CONTAINERS: usize = 20_000;

/// A directory and its entries.
pub type Listing = BTreeMap<PathBuf, Vec<DirectoryEntry>>;

/// What a store's records and directories said at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it was read.
    pub places: StorePlaces,
    /// All layers of all files, each id once.
    pub layers: Vec<LayerRecord>,
    pub images: Vec<ImageRecord>,
    pub containers: Vec<ContainerRecord>,
    /// The store's own directories and their entries.
    pub listing: Listing,
    /// Whether the parts belong together.
    pub consistency: Consistency,
    /// What could not be read.
    pub findings: Vec<Finding>,
    /// Ids that stand in the records twice, with the kind of object; the first record counts.
    pub repeated: Vec<(RecordKind, String)>,
    /// What a closer look found, if one was taken.
    pub inspection: Inspection,
    /// Of `layers`.
    positions: Positions,
    signature: Signature,
}

/// What moves when another process writes: tokens of the lock files, identities of the record files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    tokens: Vec<Vec<u8>>,
    files: Vec<Option<quiet::InodeFacts>>,
}

impl Signature {
    fn take(places: &StorePlaces, locks: &[LockFile]) -> io::Result<Self> {
        let tokens = locks.iter().map(LockFile::token).collect::<io::Result<_>>()?;
        let within = places.within();
        let files = places.record_files().iter().map(|(_, path, _)| within.facts(path).ok()).collect();
        Ok(Self { tokens, files })
    }
}

/// How patient [`read`] is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long to try without any lock.
    pub unlocked: Duration,
    /// How long to wait for shared locks after that.
    pub locked: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { unlocked: Duration::from_millis(800), locked: Duration::from_millis(700) }
    }
}

impl Patience {
    /// For a store whose writer was waited for in vain.
    const LITTLE: Self = Self { unlocked: Duration::from_millis(20), locked: Duration::ZERO };
}

/// The stores whose writers were waited for in vain. Clones share it: a run reads each store again for every deletion,
/// of which there may be thousands, and somebody may hold a lock for hours.
#[derive(Clone, Debug, Default)]
pub struct BusyStores(Arc<Mutex<HashSet<PathBuf>>>);

impl BusyStores {
    pub(super) fn patience(&self, graphroot: &Path, usual: Patience) -> Patience {
        let busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.contains(graphroot) { Patience::LITTLE } else { usual }
    }

    pub(super) fn note(&self, snapshot: &Snapshot) {
        let graphroot = snapshot.places.graphroot.to_path_buf();
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match snapshot.consistency {
            Consistency::WriterActive => busy.insert(graphroot),
            _ => busy.remove(&graphroot),
        };
    }
}

const PAUSE: Duration = Duration::from_millis(10);

/// Reads the store's records and lists its directories.
///
/// # Errors
/// When the graphroot cannot be listed, or its records are not for us to read. Everything
/// else that cannot be read is a finding.
pub fn read(places: &StorePlaces, patience: Patience) -> io::Result<Snapshot> {
    places.within().list(&places.graphroot)?;
    let records = places.records_dir(&places.graphroot, RecordKind::Layers);
    match places.within().directory(&records) {
        // Without privileges nothing at all can be said; one line is better than twenty.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(about(&records, "listing", &error));
        }
        _ => {}
    }
    let (locks, mut blind) = open_locks(places);
    let started = Instant::now();
    let mut snapshot = loop {
        let busy = any_writer(&locks)?;
        if !busy {
            let before = Signature::take(places, &locks)?;
            let snapshot = read_once(places, before, Consistency::Consistent);
            let unmoved = Signature::take(places, &locks)? == snapshot.signature;
            if unmoved && !any_writer(&locks)? {
                break snapshot;
            }
        }
        if started.elapsed() >= patience.unlocked {
            break match places.foreign {
                true => {
                    let before = Signature::take(places, &locks)?;
                    read_once(places, before, Consistency::WriterActive)
                }
                false => read_under_locks(places, &locks, patience.locked)?,
            };
        }
        std::thread::sleep(PAUSE);
    };
    if snapshot.consistency == Consistency::WriterActive {
        let message = "another program kept writing to the store; its records were read anyway, but nothing is \
                       reported as a leak";
        snapshot.findings.push(Finding::new(&*places.graphroot, message));
    }
    if !blind.is_empty() {
        snapshot.consistency = snapshot.consistency.max(Consistency::WriterActive);
        snapshot.findings.append(&mut blind);
    }
    Ok(snapshot)
}

/// The lock files that are there and can be asked, and a finding for each that cannot.
fn open_locks(places: &StorePlaces) -> (Vec<LockFile>, Vec<Finding>) {
    let within = places.within();
    let (mut locks, mut findings) = (Vec::new(), Vec::new());
    for path in places.lock_files() {
        let opened = LockFile::open(&within, &path).and_then(|found| {
            if let Some(lock) = &found {
                lock.has_writer()?;
                lock.token()?;
            }
            Ok(found)
        });
        match opened {
            Ok(found) => locks.extend(found),
            Err(error) => {
                let message = format!(
                    "cannot query the lock file: {error}; another program may be writing, so nothing in this \
                     store is reported as reclaimable"
                );
                findings.push(Finding::new(path, message));
            }
        }
    }
    (locks, findings)
}

fn any_writer(locks: &[LockFile]) -> io::Result<bool> {
    for lock in locks {
        if lock.has_writer().map_err(|error| about(lock.path(), "checking the locks of", &error))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn about(path: &Path, doing: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

/// Takes all shared locks in order, or none; only reads the record files' bytes under them.
fn read_under_locks(places: &StorePlaces, locks: &[LockFile], patience: Duration) -> io::Result<Snapshot> {
    let started = Instant::now();
    let mut early = Snapshot::empty(places);
    list_all(&mut early);
    loop {
        let mut taken = 0;
        for lock in locks {
            if !lock.try_shared()? {
                break;
            }
            taken += 1;
        }
        if taken == locks.len() {
            early.signature = Signature::take(places, locks)?;
            // All are in memory at once here, so the limit is one for all of them.
            let mut left = MOST_RECORD_BYTES;
            let within = places.within();
            let contents = places.record_files().into_iter().map(|file| {
                let content = within.read(&file.1, left);
                left -= content.as_ref().map_or(0, |content| content.len() as u64);
                (file, content)
            });
            let contents: Vec<_> = contents.collect();
            locks.iter().rev().for_each(LockFile::unlock);
            parse_all(&mut early, contents);
            list_again(&mut early);
            complete(&mut early);
            return Ok(early);
        }
        locks[..taken].iter().rev().for_each(LockFile::unlock);
        if started.elapsed() >= patience {
            let before = Signature::take(places, locks)?;
            return Ok(read_once(places, before, Consistency::WriterActive));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether anything was written since `snapshot`, or is being written. Of a snapshot that
/// was not consistent the second is not asked: whoever writes there is known of, and asking
/// again would not make it better.
///
/// # Errors
/// When a lock file can no longer be asked.
pub fn moved(snapshot: &Snapshot) -> io::Result<bool> {
    let (locks, _) = open_locks(&snapshot.places);
    if snapshot.consistency == Consistency::Consistent && any_writer(&locks)? {
        return Ok(true);
    }
    Ok(Signature::take(&snapshot.places, &locks)? != snapshot.signature)
}

fn read_once(places: &StorePlaces, signature: Signature, consistency: Consistency) -> Snapshot {
    let mut snapshot = Snapshot { consistency, signature, ..Snapshot::empty(places) };
    list_all(&mut snapshot);
    let within = places.within();
    let contents = places.record_files().into_iter().map(|file| {
        let content = within.read(&file.1, MOST_RECORD_BYTES);
        (file, content)
    });
    parse_all(&mut snapshot, contents);
    complete(&mut snapshot);
    snapshot
}

fn parse_all(snapshot: &mut Snapshot, contents: impl IntoIterator<Item = (RecordPath, io::Result<Vec<u8>>)>) {
    for ((kind, path, volatile), content) in contents {
        let content = match content {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                snapshot.damage(&path, &format!("cannot be read: {error}"));
                continue;
            }
        };
        match kind {
            RecordKind::Layers => {
                let parsed =
                    snapshot.note(&path, records::layers(&content, volatile, &snapshot.places.allowance));
                snapshot.layers.extend(parsed);
            }
            RecordKind::Images => {
                let parsed = snapshot.note(&path, records::images(&content, &snapshot.places.allowance));
                snapshot.images.extend(parsed);
            }
            RecordKind::Containers => {
                let parsed =
                    snapshot.note(&path, records::containers(&content, volatile, &snapshot.places.allowance));
                snapshot.containers.extend(parsed);
            }
        }
    }
}

/// What follows from the records.
fn complete(snapshot: &mut Snapshot) {
    list_container_layers(snapshot);
    find_symlinks_to_containers(snapshot);
    let repeated = [
        (RecordKind::Layers, records::drop_repeated(&mut snapshot.layers, |layer| &layer.id)),
        (RecordKind::Images, records::drop_repeated(&mut snapshot.images, |image| &image.id)),
        (RecordKind::Containers, records::drop_repeated(&mut snapshot.containers, |container| &container.id)),
    ];
    for (kind, ids) in repeated {
        let Some(id) = ids.first() else { continue };
        let more = match ids.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more {})", kind.as_str()),
        };
        let message = format!("{} {id} is recorded twice; the first record counts{more}", kind.singular());
        snapshot.findings.push(Finding::new(&*snapshot.places.graphroot, message));
        snapshot.repeated.extend(ids.into_iter().map(|id| (kind, id)));
    }
    for (kind, count, most) in [
        (RecordKind::Images, snapshot.images.len(), MOST_IMAGES),
        (RecordKind::Containers, snapshot.containers.len(), MOST_CONTAINERS),
    ] {
        if count > most {
            let wrong = format!("more than {most} records; the rest are ignored");
            snapshot.damage(&snapshot.places.record_file(kind), &wrong);
        }
    }
    snapshot.images.truncate(MOST_IMAGES);
    snapshot.containers.truncate(MOST_CONTAINERS);
    snapshot.positions = Positions::of(&snapshot.layers);
    let Snapshot { layers, images, containers, positions, places, .. } = &mut *snapshot;
    if let Some(wrong) = chains::cut(layers, positions, images, containers, &places.allowance) {
        snapshot.damage(&snapshot.places.record_file(RecordKind::Layers), &wrong);
    }
}

/// Makes the directories, listed before the records were read, fit what was recorded.
fn list_again(snapshot: &mut Snapshot) {
    let mut late = Snapshot::empty(&snapshot.places);
    list_all(&mut late);
    if late.consistency == Consistency::Damaged {
        snapshot.consistency = Consistency::Damaged;
        late.findings.retain(|finding| !snapshot.findings.contains(finding));
        snapshot.findings.append(&mut late.findings);
    }
    let layers = snapshot.layers.iter().map(|layer| layer.id.as_str());
    let images = snapshot.images.iter().map(|image| image.id.as_str());
    let containers = snapshot.containers.iter().map(|container| container.id.as_str());
    let recorded: HashSet<&str> = layers.chain(images).chain(containers).collect();
    snapshot.listing = merge(&snapshot.listing, late.listing, &recorded);
}

/// What has a record was there when the records were read, though it may have come after
/// the early listing or gone before the late one. What has none counts only if it is in both.
fn merge(early: &Listing, late: Listing, recorded: &HashSet<&str>) -> Listing {
    let has_record = |entry: &DirectoryEntry| {
        // A layer's `<id>.tar-split.gz` is its own as well.
        let name = entry.name.to_str().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        recorded.contains(name) || recorded.contains(stem)
    };
    let mut merged = late;
    for directory in early.keys() {
        merged.entry(directory.clone()).or_default();
    }
    for (directory, entries) in &mut merged {
        let before = early.get(directory).map_or(&[][..], Vec::as_slice);
        let found = |all: &[DirectoryEntry], name: &OsStr| {
            all.binary_search_by(|entry| entry.name.as_os_str().cmp(name)).is_ok()
        };
        let gone: Vec<_> = before
            .iter()
            .filter(|entry| has_record(entry) && !found(entries, &entry.name))
            .cloned()
            .collect();
        entries.retain(|entry| has_record(entry) || found(before, &entry.name));
        entries.extend(gone);
        entries.sort_by(|a, b| a.name.cmp(&b.name));
    }
    merged
}

impl Snapshot {
    fn empty(places: &StorePlaces) -> Self {
        Self {
            places: places.clone(),
            layers: Vec::new(),
            images: Vec::new(),
            containers: Vec::new(),
            listing: Listing::new(),
            consistency: Consistency::Consistent,
            findings: Vec::new(),
            repeated: Vec::new(),
            inspection: Inspection::default(),
            positions: Positions::default(),
            signature: Signature { tokens: Vec::new(), files: Vec::new() },
        }
    }

    fn damage(&mut self, path: &Path, message: &str) {
        self.consistency = Consistency::Damaged;
        self.findings.push(Finding::incomplete(path, message));
    }

    fn note<T>(&mut self, path: &Path, parsed: Parsed<T>) -> Vec<T> {
        for problem in &parsed.problems {
            self.damage(path, problem);
        }
        parsed.records
    }

    /// Position of the layer with this id.
    #[must_use]
    pub fn layer_at(&self, id: &OsStr) -> Option<usize> {
        self.positions.get(&self.layers, id.as_bytes())
    }

    /// Entries of a directory that was listed; none where it does not exist.
    #[must_use]
    pub fn entries(&self, directory: &Path) -> &[DirectoryEntry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }
}

/// Lists the directories whose entries are sorted into units one by one.
fn list_all(snapshot: &mut Snapshot) {
    let places = snapshot.places.clone();
    let mut directories = Vec::new();
    for area in places.areas() {
        let driver = area.join(&places.driver);
        directories.extend([area.to_path_buf(), driver.clone()]);
        directories.extend(["staging", "tempdirs", "dir"].map(|name| driver.join(name)));
        let layers = places.records_dir(area, RecordKind::Layers);
        directories.push(layers.join("tmp"));
        directories.push(layers);
        directories.push(places.records_dir(area, RecordKind::Images));
        directories.push(places.records_dir(area, RecordKind::Containers));
    }
    list_each(snapshot, directories);
    if places.primary && !places.read_only {
        for name in ["tmp", "volumes"] {
            list_beside(snapshot, &places.graphroot, name);
        }
    }
    for directory in &places.temporary {
        // Gone, or another user's: then there is nothing of ours in it.
        let mut entries = places.within().list(directory).unwrap_or_default();
        entries.retain(temporary_files::is_temporary);
        snapshot.listing.insert(directory.to_path_buf(), entries);
    }
}

/// Directories that belong to the engines, not to the store: whatever is odd about one of
/// them (a symlink, a mount) makes it a thing of its own, which is not looked into.
fn list_beside(snapshot: &mut Snapshot, graphroot: &Path, name: &str) {
    let within = snapshot.places.within();
    let directory = graphroot.join(name);
    let device = |path: &Path| within.facts(path).map(|facts| facts.device).ok();
    if device(&directory).is_some_and(|here| Some(here) == device(graphroot))
        && let Ok(entries) = within.list(&directory)
    {
        snapshot.listing.insert(directory, entries);
    }
}

/// A container's writable layer is measured in two parts, its content and the rest.
fn list_container_layers(snapshot: &mut Snapshot) {
    if snapshot.places.driver == "vfs" {
        // There a layer is a whole root filesystem, not a difference.
        return;
    }
    let driver = snapshot.places.layer_directories(&snapshot.places.graphroot);
    let ids = snapshot.containers.iter().filter_map(|container| container.layer.as_ref());
    let layers = ids.map(|id| driver.join(id)).filter(|path| path.parent() == Some(&driver));
    list_each(snapshot, layers.collect());
}

/// What says who made a container is read later, and left out without a word then.
fn find_symlinks_to_containers(snapshot: &mut Snapshot) {
    let within = snapshot.places.within();
    let directory = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
    let mut met = Vec::new();
    for container in &snapshot.containers {
        let path = directory.join(&container.id).join("userdata");
        match within.facts(&path.join("state.json")) {
            Err(error) if quiet::is_symlink(&error) => met.push((path, error.to_string())),
            Ok(facts) if facts.kind == FileKind::Symlink => {
                met.push((path.join("state.json"), "is a symlink; not followed".into()));
            }
            _ => {}
        }
    }
    for (path, message) in met {
        snapshot.damage(&path, &message);
    }
}

fn list_each(snapshot: &mut Snapshot, directories: Vec<PathBuf>) {
    let within = snapshot.places.within();
    let list = |directory: PathBuf| (within.list(&directory), directory);
    for (listed, directory) in directories.into_par_iter().map(list).collect::<Vec<_>>() {
        match listed {
            Ok(entries) => {
                snapshot.listing.insert(directory, entries);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("cannot be listed: {error}; its contents are not attributed");
                snapshot.damage(&directory, &message);
            }
        }
    }
}

/// Marks the reading as damaged if records are missing that must have existed.
///
/// To the library a missing or empty file means "no records", and it writes `[]` when the
/// last record goes. A file of no length beside directories of objects is rather what a
/// crash or a full disk leaves; taken at its word, everything would look like a leak.
pub fn validate(snapshot: &mut Snapshot) {
    let places = snapshot.places.clone();
    let within = places.within();
    for kind in RecordKind::ALL {
        let directory = places.records_dir(&places.graphroot, kind);
        let (no_records, objects) = match kind {
            RecordKind::Layers => (snapshot.layers.is_empty(), places.layer_directories(&places.graphroot)),
            RecordKind::Images => (snapshot.images.is_empty(), directory.clone()),
            RecordKind::Containers => (snapshot.containers.is_empty(), directory.clone()),
        };
        // Containers of CRI-O are only in the volatile file.
        if !no_records || kind.files().iter().any(|(name, _)| !is_blank(&within, &directory.join(name))) {
            continue;
        }
        let entries = snapshot.entries(&objects).iter();
        let known = |entry: &&DirectoryEntry| {
            entry.kind == FileKind::Directory && entry.name.to_str().is_some_and(is_id)
        };
        let count = entries.filter(known).count();
        if count > 0 {
            snapshot.consistency = Consistency::Damaged;
            let message = format!(
                "is empty or missing, though {} has {count} objects: what is in use is unknown",
                objects.display()
            );
            snapshot.findings.push(Finding::incomplete(places.record_file(kind), message));
        }
    }
}

/// Missing, or of no length.
fn is_blank(within: &Within, path: &Path) -> bool {
    within.facts(path).map_or(true, |facts| facts.length == 0)
}

#[cfg(test)]
impl Snapshot {
    /// A reading that never was, for tests of what is made of it.
    pub(super) fn for_tests(
        places: StorePlaces,
        layers: Vec<LayerRecord>,
        images: Vec<ImageRecord>,
        containers: Vec<ContainerRecord>,
        listing: Listing,
    ) -> Self {
        Self {
            positions: Positions::of(&layers),
            places,
            layers,
            images,
            containers,
            listing,
            ..Self::empty(&StorePlaces::for_tests(crate::sys::root::Root::for_tests(Path::new(""))))
        }
    }
}

#[cfg(test)]
mod tests;
