//! Reads the records and directories of a store consistently, without disturbing the runtimes.
//!
//! # Locks
//!
//! The records are read without a lock at first. The lock files show whether a process is writing. Their tokens and the
//! identities of the record files are compared before and after. If anything changed, the records are read again.
//!
//! If writers leave no quiet moment, the records are read under short shared locks. If a writer holds its lock for too
//! long, they are read anyway and the snapshot is [`Consistency::WriterActive`]. For example, a pull by library versions
//! up to 1.61 holds `layers.lock` during the whole extraction. Each file of such a snapshot is complete, but the files
//! need not fit together: a missing record does not prove a leak.
//!
//! # Order
//!
//! The directories are listed *before* the records are read. The library saves the record of a layer before it creates
//! the layer's directory (containers/storage 1.40 and later). So a listed directory without a record is not a layer that
//! is just being created.
//!
//! Under locks only the bytes of the record files are read, so that the runtimes wait as little as possible. Afterwards
//! the directories are listed again and both listings are merged: a directory that was deleted in between is not a leak
//! either.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::chains;
use super::inspection::Inspection;
use super::locks::LockFile;
use super::places::{MOST_RECORD_BYTES, RecordKind, RecordPath, StorePlaces};
use super::positions::Positions;
use super::records::{self, ContainerRecord, ImageRecord, LayerRecord, Parsed, is_id};
use super::temporary_files;
use crate::model::{Consistency, Finding};
use crate::stores::unit::DirectoryListing;
use crate::sys::quiet::{self, DirectoryEntry, FileKind, Within};

/// Maximum number of image records; the rest are ignored. Some work is proportional to images times containers, and a
/// hostile store must not make a scan endless. Real stores have far fewer.
const MOST_IMAGES: usize = 100_000;

/// Maximum number of container records, for the same reason.
const MOST_CONTAINERS: usize = 20_000;

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub places: StorePlaces,
    kinds: &'static [RecordKind],
    /// Layers of all record files, each id once.
    pub layers: Vec<LayerRecord>,
    pub images: Vec<ImageRecord>,
    pub containers: Vec<ContainerRecord>,
    /// The store's directories and their entries.
    pub listing: DirectoryListing,
    /// Degree to which the records can be trusted.
    pub consistency: Consistency,
    pub findings: Vec<Finding>,
    /// Records that do not count, since another one has the same id.
    pub repeated: Repeated,
    /// Result of the inspection, or an empty one if the store was not inspected.
    pub inspection: Inspection,
    positions: Positions,
    signature: Signature,
}

/// Records that do not count, since another one has the same id. Of two records in one file the last counts, of two in
/// different files the one in the first file.
///
/// Libraries up to 1.44 use the last record of a file. Later ones use the last of an image and the first of a layer and
/// of a container (container-libs, `storage/{layers,images,containers}.go`, `load`). So what the other records name
/// may be in use too: see [`super::needs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    pub layers: Vec<LayerRecord>,
    pub images: Vec<ImageRecord>,
    pub containers: Vec<ContainerRecord>,
}

impl Repeated {
    pub(super) fn objects(&self) -> impl Iterator<Item = (RecordKind, &str)> {
        let layers = self.layers.iter().map(|layer| (RecordKind::Layers, layer.id.as_str()));
        let images = self.images.iter().map(|image| (RecordKind::Images, image.id.as_str()));
        let containers =
            self.containers.iter().map(|container| (RecordKind::Containers, container.id.as_str()));
        layers.chain(images).chain(containers)
    }
}

/// Values that change when a process writes: tokens of the lock files, identities of the record files.
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

/// Timeouts of [`read`].
#[derive(Clone, Copy, Debug)]
pub struct WriterPatience {
    /// Maximum time for attempts without a lock.
    pub unlocked: Duration,
    /// Maximum time to wait for shared locks after that.
    pub locked: Duration,
}

impl Default for WriterPatience {
    fn default() -> Self {
        Self { unlocked: Duration::from_millis(800), locked: Duration::from_millis(700) }
    }
}

impl WriterPatience {
    /// Timeouts for a store whose last reading timed out.
    pub(super) const SHORT: Self = Self { unlocked: Duration::from_millis(20), locked: Duration::ZERO };
}

const PAUSE: Duration = Duration::from_millis(10);

/// Reads the store's records and lists its directories.
///
/// # Errors
/// When the graphroot cannot be listed, or when the process lacks the permission to read the records. Any other read
/// error becomes a finding.
pub fn read(places: &StorePlaces, patience: WriterPatience) -> io::Result<Snapshot> {
    read_kinds(places, &RecordKind::ALL, patience)
}

/// Reads the records of images alone. Those of layers take ten times longer.
///
/// # Errors
/// See [`read`].
pub fn read_images(places: &StorePlaces, patience: WriterPatience) -> io::Result<Snapshot> {
    read_kinds(places, &[RecordKind::Images], patience)
}

fn read_kinds(
    places: &StorePlaces,
    kinds: &'static [RecordKind],
    patience: WriterPatience,
) -> io::Result<Snapshot> {
    places.within().list(&places.graphroot)?;
    let records = places.records_dir(&places.graphroot, RecordKind::Layers);
    match places.within().directory(&records) {
        // Without privileges nothing can be read: a single error is better than twenty findings.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(about(&records, "listing", &error));
        }
        _ => {}
    }
    let (locks, mut failed_locks) = open_locks(places);
    let started = Instant::now();
    let mut snapshot = loop {
        if !any_writer(&locks)? {
            let before = Signature::take(places, &locks)?;
            let snapshot = read_once(places, kinds, before, Consistency::Consistent);
            let is_unchanged = Signature::take(places, &locks)? == snapshot.signature;
            if is_unchanged && !any_writer(&locks)? {
                break snapshot;
            }
        }
        if started.elapsed() >= patience.unlocked {
            break if places.foreign {
                let before = Signature::take(places, &locks)?;
                read_once(places, kinds, before, Consistency::WriterActive)
            } else {
                read_under_locks(places, kinds, &locks, patience.locked)?
            };
        }
        std::thread::sleep(PAUSE);
    };
    if snapshot.consistency == Consistency::WriterActive {
        let message = "another program kept writing to the store; its records were read anyway, but nothing is \
                       reported as a leak";
        snapshot.findings.push(Finding::new(&*places.graphroot, message));
    }
    if !failed_locks.is_empty() {
        snapshot.consistency = snapshot.consistency.max(Consistency::WriterActive);
        snapshot.findings.append(&mut failed_locks);
    }
    Ok(snapshot)
}

/// Returns the existing lock files that can be queried, and a finding for each that cannot.
fn open_locks(places: &StorePlaces) -> (Vec<LockFile>, Vec<Finding>) {
    let within = places.within();
    let (mut locks, mut findings) = (Vec::new(), Vec::new());
    for path in places.lock_files() {
        let opened = LockFile::open(&within, &path).and_then(|lock| {
            if let Some(lock) = &lock {
                lock.has_writer()?;
                lock.token()?;
            }
            Ok(lock)
        });
        match opened {
            Ok(lock) => locks.extend(lock),
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

/// Takes the shared locks of all lock files, in order, and reads the bytes of the record files. If a lock is not free,
/// releases the others and tries again until the timeout.
fn read_under_locks(
    places: &StorePlaces,
    kinds: &'static [RecordKind],
    locks: &[LockFile],
    patience: Duration,
) -> io::Result<Snapshot> {
    let started = Instant::now();
    let mut early = Snapshot { kinds, ..Snapshot::empty(places) };
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
            // All files are in memory at the same time, so the limit applies to their sum.
            let mut left = MOST_RECORD_BYTES;
            let within = places.within();
            let contents: Vec<_> = early
                .record_files()
                .map(|file| {
                    let content = within.read(&file.1, left);
                    left -= content.as_ref().map_or(0, |content| content.len() as u64);
                    (file, content)
                })
                .collect();
            locks.iter().rev().for_each(LockFile::unlock);
            parse_all(&mut early, contents);
            list_again(&mut early);
            complete(&mut early);
            return Ok(early);
        }
        locks[..taken].iter().rev().for_each(LockFile::unlock);
        if started.elapsed() >= patience {
            let before = Signature::take(places, locks)?;
            return Ok(read_once(places, kinds, before, Consistency::WriterActive));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns true if a process has written to the store since `snapshot`, or is writing now.
///
/// For a snapshot that is not consistent, an active writer does not count. The writer was active before, and reading
/// again would not give a better result.
///
/// # Errors
/// When a lock file can no longer be queried.
pub fn moved(snapshot: &Snapshot) -> io::Result<bool> {
    let (locks, _) = open_locks(&snapshot.places);
    if snapshot.consistency == Consistency::Consistent && any_writer(&locks)? {
        return Ok(true);
    }
    Ok(Signature::take(&snapshot.places, &locks)? != snapshot.signature)
}

fn read_once(
    places: &StorePlaces,
    kinds: &'static [RecordKind],
    signature: Signature,
    consistency: Consistency,
) -> Snapshot {
    let mut snapshot = Snapshot { kinds, consistency, signature, ..Snapshot::empty(places) };
    list_all(&mut snapshot);
    let within = places.within();
    let contents = snapshot.record_files().map(|file| {
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
                let mut parsed =
                    snapshot.note(&path, records::layers(&content, volatile, &snapshot.places.allowance));
                let superseded = records::drop_superseded(&mut parsed, |layer| &layer.id);
                snapshot.repeated.layers.extend(superseded);
                snapshot.layers.extend(parsed);
            }
            RecordKind::Images => {
                let mut parsed = snapshot.note(&path, records::images(&content, &snapshot.places.allowance));
                let superseded = records::drop_superseded(&mut parsed, |image| &image.id);
                snapshot.repeated.images.extend(superseded);
                snapshot.images.extend(parsed);
            }
            RecordKind::Containers => {
                let mut parsed =
                    snapshot.note(&path, records::containers(&content, volatile, &snapshot.places.allowance));
                let superseded = records::drop_superseded(&mut parsed, |container| &container.id);
                snapshot.repeated.containers.extend(superseded);
                snapshot.containers.extend(parsed);
            }
        }
    }
}

/// Completes a snapshot after its records were parsed: lists the layers of containers, removes repeated records, and
/// applies the limits.
fn complete(snapshot: &mut Snapshot) {
    list_container_layers(snapshot);
    find_symlinks_to_containers(snapshot);
    let repeated = &mut snapshot.repeated;
    repeated.layers.extend(records::drop_repeated(&mut snapshot.layers, |layer| &layer.id));
    repeated.images.extend(records::drop_repeated(&mut snapshot.images, |image| &image.id));
    repeated.containers.extend(records::drop_repeated(&mut snapshot.containers, |container| &container.id));
    for kind in RecordKind::ALL {
        let mut ids = snapshot.repeated.objects().filter(|(of, _)| *of == kind).map(|(_, id)| id);
        let Some(id) = ids.next() else { continue };
        let more = match ids.count() {
            0 => String::new(),
            more => format!(" (and {more} more {})", kind.as_str()),
        };
        let message = format!(
            "{} {id} is recorded twice; what any of its records names is kept{more}",
            kind.singular()
        );
        snapshot.findings.push(Finding::new(&*snapshot.places.graphroot, message));
    }
    for (kind, count, most) in [
        (RecordKind::Images, snapshot.images.len(), MOST_IMAGES),
        (RecordKind::Containers, snapshot.containers.len(), MOST_CONTAINERS),
    ] {
        if count > most {
            let problem = format!("more than {most} records; the rest are ignored");
            snapshot.damage(&snapshot.places.record_file(kind), &problem);
        }
    }
    snapshot.images.truncate(MOST_IMAGES);
    snapshot.containers.truncate(MOST_CONTAINERS);
    snapshot.positions = Positions::of(&snapshot.layers);
    let Snapshot { layers, images, containers, positions, places, .. } = &mut *snapshot;
    if let Some(problem) = chains::cut(layers, positions, images, containers, &places.allowance) {
        snapshot.damage(&snapshot.places.record_file(RecordKind::Layers), &problem);
    }
}

/// Lists the directories again and merges the result with the listing from before the records were read.
fn list_again(snapshot: &mut Snapshot) {
    let mut late = Snapshot { kinds: snapshot.kinds, ..Snapshot::empty(&snapshot.places) };
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

/// Merges the listings from before and after the records were read.
///
/// An entry with a record existed when the records were read, so it counts even if it is in only one listing: it was
/// created after the early one or deleted before the late one. An entry without a record counts only if it is in both.
fn merge(early: &DirectoryListing, late: DirectoryListing, recorded: &HashSet<&str>) -> DirectoryListing {
    let mut merged = late;
    for directory in early.keys() {
        merged.entry(directory.clone()).or_default();
    }
    for (directory, entries) in &mut merged {
        let before = early.get(directory).map_or(&[][..], Vec::as_slice);
        let deleted: Vec<_> = before
            .iter()
            .filter(|entry| has_record(entry, recorded) && !has_name(entries, &entry.name))
            .cloned()
            .collect();
        entries.retain(|entry| has_record(entry, recorded) || has_name(before, &entry.name));
        entries.extend(deleted);
        entries.sort_by(|a, b| a.name.cmp(&b.name));
    }
    merged
}

/// Returns true for the directory of a recorded object, and for its other files, such as `<id>.tar-split.gz`.
fn has_record(entry: &DirectoryEntry, recorded: &HashSet<&str>) -> bool {
    let name = entry.name.to_str().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    recorded.contains(name) || recorded.contains(stem)
}

fn has_name(entries: &[DirectoryEntry], name: &OsStr) -> bool {
    entries.binary_search_by(|entry| entry.name.as_os_str().cmp(name)).is_ok()
}

impl Snapshot {
    fn empty(places: &StorePlaces) -> Self {
        Self {
            places: places.clone(),
            kinds: &RecordKind::ALL,
            layers: Vec::new(),
            images: Vec::new(),
            containers: Vec::new(),
            listing: DirectoryListing::new(),
            consistency: Consistency::Consistent,
            findings: Vec::new(),
            repeated: Repeated::default(),
            inspection: Inspection::default(),
            positions: Positions::default(),
            signature: Signature { tokens: Vec::new(), files: Vec::new() },
        }
    }

    fn record_files(&self) -> impl Iterator<Item = RecordPath> + use<> {
        let kinds = self.kinds;
        self.places.record_files().into_iter().filter(move |(kind, ..)| kinds.contains(kind))
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

    #[must_use]
    pub fn layer_at(&self, id: &OsStr) -> Option<usize> {
        self.positions.get(&self.layers, id.as_bytes())
    }

    /// Returns the entries of a listed directory, or none if it does not exist.
    #[must_use]
    pub fn entries(&self, directory: &Path) -> &[DirectoryEntry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }
}

/// Lists the directories whose entries are assigned to units individually.
fn list_all(snapshot: &mut Snapshot) {
    let places = snapshot.places.clone();
    let mut directories = Vec::new();
    if snapshot.kinds == [RecordKind::Images] {
        directories.extend(places.areas().map(|area| places.records_dir(area, RecordKind::Images)));
        return list_each(snapshot, directories);
    }
    for area in places.areas() {
        let driver = area.join(&places.driver);
        directories.extend([area.to_path_buf(), driver.clone()]);
        directories.extend(["staging", "tempdirs", "dir", "subvolumes"].map(|name| driver.join(name)));
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
        // The directory may have been deleted, or belong to another user. Then it contains no files of this store.
        let mut entries = places.within().list(directory).unwrap_or_default();
        entries.retain(temporary_files::is_temporary);
        snapshot.listing.insert(directory.to_path_buf(), entries);
    }
}

/// Lists a directory in the graphroot that belongs to the engines, not to the store. It is not entered if it is a
/// symlink or a mount.
fn list_beside(snapshot: &mut Snapshot, graphroot: &Path, name: &str) {
    let within = snapshot.places.within();
    let directory = graphroot.join(name);
    let (Ok(facts), Ok(facts_of_graphroot)) = (within.facts(&directory), within.facts(graphroot)) else {
        return;
    };
    if facts.device == facts_of_graphroot.device
        && let Ok(entries) = within.list(&directory)
    {
        snapshot.listing.insert(directory, entries);
    }
}

/// Lists the writable layers of containers. Such a layer is measured in two parts: its content and the rest.
fn list_container_layers(snapshot: &mut Snapshot) {
    if snapshot.places.has_whole_layers() {
        // Such a layer has no separate content.
        return;
    }
    let driver = snapshot.places.layer_directories(&snapshot.places.graphroot);
    let ids = snapshot.containers.iter().filter_map(|container| container.layer.as_ref());
    let layers = ids.map(|id| driver.join(id)).filter(|path| path.parent() == Some(&driver));
    list_each(snapshot, layers.collect());
}

/// Marks the snapshot as damaged if a container's `userdata` or `state.json` is a symlink. The code that later detects
/// the owner and state of a container does not follow symlinks, and does not report them.
fn find_symlinks_to_containers(snapshot: &mut Snapshot) {
    let within = snapshot.places.within();
    let directory = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
    let mut symlinks = Vec::new();
    for container in &snapshot.containers {
        let path = directory.join(&container.id).join("userdata");
        match within.facts(&path.join("state.json")) {
            Err(error) if quiet::is_symlink(&error) => symlinks.push((path, error.to_string())),
            Ok(facts) if facts.kind == FileKind::Symlink => {
                symlinks.push((path.join("state.json"), "is a symlink; not followed".into()));
            }
            _ => {}
        }
    }
    for (path, message) in symlinks {
        snapshot.damage(&path, &message);
    }
}

fn list_each(snapshot: &mut Snapshot, directories: Vec<PathBuf>) {
    let within = snapshot.places.within();
    let listings = directories.into_par_iter().map(|directory| (within.list(&directory), directory));
    for (entries, directory) in listings.collect::<Vec<_>>() {
        match entries {
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

/// Marks the snapshot as damaged if records are missing that must have existed.
///
/// For the library, a missing or empty record file means "no records". But it writes `[]` when it deletes the last
/// record. A file of length 0 beside directories of objects is the result of a crash or a full disk. If it counted as
/// "no records", every object would look like a leak.
pub fn validate(snapshot: &mut Snapshot) {
    let places = snapshot.places.clone();
    let within = places.within();
    for &kind in snapshot.kinds {
        let directory = places.records_dir(&places.graphroot, kind);
        let (no_records, objects) = match kind {
            RecordKind::Layers => (snapshot.layers.is_empty(), places.layer_directories(&places.graphroot)),
            RecordKind::Images => (snapshot.images.is_empty(), directory.clone()),
            RecordKind::Containers => (snapshot.containers.is_empty(), directory.clone()),
        };
        // CRI-O's containers are only in the volatile file.
        if !no_records || kind.files().iter().any(|(name, _)| !is_blank(&within, &directory.join(name))) {
            continue;
        }
        let entries = snapshot.entries(&objects).iter();
        let directories = entries.filter(|entry| entry.kind == FileKind::Directory);
        let count = directories.filter(|entry| entry.name.to_str().is_some_and(is_id)).count();
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

/// Returns true if a file is missing or has length 0.
fn is_blank(within: &Within, path: &Path) -> bool {
    within.facts(path).map_or(true, |facts| facts.length == 0)
}

#[cfg(test)]
impl Snapshot {
    pub(super) fn for_tests(
        places: StorePlaces,
        layers: Vec<LayerRecord>,
        images: Vec<ImageRecord>,
        containers: Vec<ContainerRecord>,
        listing: DirectoryListing,
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
