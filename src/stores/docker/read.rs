//! Reads Docker's records without a lock: first the directories of layers, then the records that name them, so that a
//! directory without a record was not just getting one. The reading is repeated until no other process wrote
//! meanwhile.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use jiff::Timestamp;

use super::places::{DRIVER, DockerPlaces, IMAGE};
use super::records::{self, CacheSnapshot, ChainRecord, DriverLayer, ImageRecord, MountRecord, hex};
use crate::model::{Consistency, Finding};
use crate::stores::bolt::{self, BoltDatabase, BoltError};
use crate::stores::dockerd::{self, DockerRecord};
use crate::stores::read_cache::ReadCache;
use crate::stores::unit::DirectoryListing;
use crate::sys::quiet::{self, DirectoryEntry, FileKind, Within};

/// Directory of the short names of layers, beside the layers.
pub(super) const LINKS: &str = "l";
/// Made by the filesystem, if the layers have a disk of their own.
pub(super) const LOST_AND_FOUND: &str = "lost+found";
/// Maximum size of a file in `layerdb`: an id, a digest or a number.
const WORD_BYTES: u64 = 4 << 10;
/// Maximum size of the configuration of an image, and of `repositories.json`.
const IMAGE_BYTES: u64 = 8 << 20;
/// Effect of a record of a layer that cannot be read.
const LAYER: &str = "the layer that it names is unknown";
/// Maximum time for attempts to read without a write by another process meanwhile.
const QUIET: Duration = Duration::from_millis(800);
const PAUSE: Duration = Duration::from_millis(20);

/// Device, inode number and modification time of a directory or file that changes with the records; the newest
/// transaction of a database.
type RecordStamp = (Option<((u64, u64), Option<Timestamp>)>, Option<u64>);

/// A reading of Docker's records.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) places: DockerPlaces,
    pub(super) within: Within,
    /// Entries of the listed directories.
    pub(super) listing: DirectoryListing,
    /// Directories of layers that a record names.
    pub(super) layers: Vec<DriverLayer>,
    /// Positions in `layers`, by the name of the directory.
    pub(super) by_id: HashMap<String, usize>,
    /// Names of directories by the chain id of the layer, as hex.
    pub(super) by_chain: HashMap<String, String>,
    /// Positions in `layers`, by the layer's short name in `overlay2/l`.
    pub(super) by_link: HashMap<String, usize>,
    /// Layers of containers, by the id of the container.
    pub(super) mounts: BTreeMap<String, MountRecord>,
    pub(super) images: Vec<ImageRecord>,
    /// Containers by id; `None` if the record cannot be read.
    pub(super) containers: BTreeMap<String, Option<DockerRecord>>,
    /// Names of the driver's directories, with or without a record.
    pub(super) listed: HashSet<String>,
    /// Short names of the directories that no record names, by the name of the directory.
    pub(super) unnamed: HashMap<String, Option<String>>,
    /// Those of them that a layer with a record needs, or may need.
    pub(super) needed: HashSet<String>,
    /// A layer, container or image needs a layer of which Docker has no record.
    pub(super) lacks_records: bool,
    /// Directories that BuildKit's cache holds.
    pub(super) cached: HashSet<String>,
    /// Number of records of BuildKit's cache.
    pub(super) cache_records: usize,
    pub(super) consistency: Consistency,
    pub(super) findings: Vec<Finding>,
    /// By what is unknown without them: records that cannot be read, the first as its finding, and their number.
    unread: BTreeMap<&'static str, (Finding, usize)>,
    stamps: Vec<RecordStamp>,
}

/// Reads the records; `short_names` of layers too, which only a measurement needs.
///
/// # Errors
/// If the data root cannot be listed.
pub(super) fn read(places: &DockerPlaces, short_names: bool, cache: &ReadCache) -> io::Result<Snapshot> {
    let started = Instant::now();
    loop {
        let before = stamps(places);
        let mut snapshot = Snapshot::read(places, short_names, cache)?;
        let is_still = places.foreign || stamps(places) == before;
        snapshot.stamps = before;
        if is_still {
            return Ok(snapshot);
        }
        if started.elapsed() >= QUIET {
            snapshot.consistency = snapshot.consistency.max(Consistency::WriterActive);
            let message =
                "Docker kept writing; each file was read consistently, but nothing is reported as missing";
            snapshot.findings.push(Finding::new(&places.root, message));
            return Ok(snapshot);
        }
        thread::sleep(PAUSE);
    }
}

/// Returns true if Docker has written since `snapshot`.
pub(super) fn moved(snapshot: &Snapshot) -> bool {
    !snapshot.places.foreign && stamps(&snapshot.places) != snapshot.stamps
}

fn stamps(places: &DockerPlaces) -> Vec<RecordStamp> {
    let within = places.within();
    let layers = places.layer_records();
    let changing = [
        places.layers(),
        layers.join("sha256"),
        layers.join("mounts"),
        places.image_records().join("content/sha256"),
        places.repositories(),
        places.root.join("containers"),
    ];
    let mut stamps: Vec<_> = changing
        .iter()
        .map(|path| (within.facts(path).ok().map(|facts| (facts.identity(), facts.modified)), None))
        .collect();
    let database = within.open_file(&snapshots_db(places)).ok();
    stamps.push((None, database.and_then(|file| bolt::newest_txid(&file).ok())));
    stamps
}

fn snapshots_db(places: &DockerPlaces) -> PathBuf {
    places.root.join("buildkit/snapshots.db")
}

/// Returns a word of a record, without the end of its line.
fn word(within: &Within, path: &Path) -> io::Result<String> {
    let bytes = within.read(path, WORD_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the directory of a snapshot of BuildKit by its key.
fn directory_of(
    cached: &HashMap<&str, &CacheSnapshot>,
    by_chain: &HashMap<String, String>,
    key: &str,
) -> Option<String> {
    let snapshot = cached.get(key);
    let of_image = snapshot.and_then(|snapshot| by_chain.get(snapshot.of_image()?));
    let of_image = of_image.or_else(|| by_chain.get(hex(key)));
    of_image.cloned().or_else(|| snapshot?.directory().map(str::to_owned))
}

impl Snapshot {
    fn read(places: &DockerPlaces, short_names: bool, cache: &ReadCache) -> io::Result<Self> {
        let within = places.within();
        let root = within.list(&places.root)?;
        let mut snapshot = Self {
            places: places.clone(),
            within,
            listing: DirectoryListing::new(),
            layers: Vec::new(),
            by_id: HashMap::new(),
            by_chain: HashMap::new(),
            by_link: HashMap::new(),
            mounts: BTreeMap::new(),
            listed: HashSet::new(),
            unnamed: HashMap::new(),
            needed: HashSet::new(),
            lacks_records: false,
            images: Vec::new(),
            containers: BTreeMap::new(),
            cached: HashSet::new(),
            cache_records: 0,
            consistency: Consistency::Consistent,
            findings: Vec::new(),
            unread: BTreeMap::new(),
            stamps: Vec::new(),
        };
        snapshot.listing.insert(places.root.clone(), root);
        snapshot.directory(&places.layers());
        snapshot.directory(&places.layers().join(LINKS));
        let chains = snapshot.chains();
        snapshot.mounts();
        let cached = snapshot.cache(cache);
        snapshot.join(chains, &cached);
        snapshot.images();
        snapshot.containers();
        if short_names {
            snapshot.short_names();
            snapshot.find_needed();
        }
        for below in ["volumes", "tmp", "buildkit", "containerd", IMAGE, "image/overlay2"] {
            snapshot.directory(&places.root.join(below));
        }
        snapshot.directory(&places.layer_records());
        snapshot.directory(&places.layer_records().join("tmp"));
        snapshot.directory(&places.image_records());
        snapshot.directory(&places.image_records().join("content"));
        snapshot.directory(&places.image_records().join("metadata"));
        snapshot.directory(&places.image_records().join("metadata/sha256"));
        snapshot.report_unread();
        Ok(snapshot)
    }

    /// Returns the entries of a directory; empty if it was not listed.
    pub(super) fn entries(&self, directory: &Path) -> &[DirectoryEntry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }

    /// Lists a directory; a missing one is empty.
    fn directory(&mut self, path: &Path) -> Vec<DirectoryEntry> {
        let entries = match self.within.list(path) {
            Ok(entries) => entries,
            Err(error) if quiet::is_absent(&error) && !quiet::is_symlink(&error) => return Vec::new(),
            Err(error) => {
                self.lost(path, &format!("listing it: {error}; its contents are not counted"));
                return Vec::new();
            }
        };
        self.listing.insert(path.to_path_buf(), entries.clone());
        entries
    }

    /// Lists the directories in a directory.
    fn subdirectories(&mut self, path: &Path) -> Vec<String> {
        let entries = self.directory(path).into_iter().filter(|entry| entry.kind == FileKind::Directory);
        entries.filter_map(|entry| entry.name.into_string().ok()).collect()
    }

    /// Reports a record that cannot be read: what it names is unknown.
    fn lost(&mut self, path: &Path, message: &str) {
        self.findings.push(Finding::incomplete(path, message));
        self.consistency = Consistency::Damaged;
    }

    /// Notes a record that cannot be read. A damaged disk has many of them: they become one finding.
    fn note_unread(&mut self, path: &Path, why: &str, unknown: &'static str) {
        let noted = self.unread.entry(unknown);
        noted.or_insert_with(|| (Finding::incomplete(path, format!("{why}; {unknown}")), 0)).1 += 1;
    }

    fn report_unread(&mut self) {
        for (mut first, records) in std::mem::take(&mut self.unread).into_values() {
            if records > 1 {
                first.message.push_str(&format!("; the same for {} more", records - 1));
            }
            self.findings.push(first);
        }
    }

    /// Returns the number of words and records of layers that cannot be read.
    fn unread_layers(&self) -> usize {
        self.unread.get(LAYER).map_or(0, |(_, records)| *records)
    }

    /// Returns a word of a record; `None` if the file does not exist. An empty one was not written to the end.
    fn word(&mut self, path: &Path) -> Option<String> {
        let why = match quiet::if_present(word(&self.within, path)) {
            Ok(Some(word)) if word.is_empty() => "it is empty".to_owned(),
            Ok(word) => return word,
            Err(error) => error.to_string(),
        };
        self.note_unread(path, &format!("reading Docker's record: {why}"), LAYER);
        self.consistency = Consistency::Damaged;
        None
    }

    /// Notes a record that is not whole, unless one of its words was noted since there were `before` of them.
    fn lost_record(&mut self, path: &Path, before: usize) {
        if self.unread_layers() == before {
            self.note_unread(path, "Docker's record of a layer is not whole", LAYER);
            self.consistency = Consistency::Damaged;
        }
    }

    /// Reads the records of the layers of images, by chain id as hex. The name of a record whose deletion was
    /// interrupted ends with `-removing`; Docker finishes it at its next start.
    fn chains(&mut self) -> Vec<(String, ChainRecord)> {
        let directory = self.places.layer_records().join("sha256");
        let mut chains = Vec::new();
        for name in self.subdirectories(&directory) {
            let record = directory.join(&name);
            let before = self.unread_layers();
            let chain = ChainRecord {
                cache_id: self.word(&record.join("cache-id")).unwrap_or_default(),
                parent: self.word(&record.join("parent")).map(|parent| hex(&parent).to_owned()),
                diff_id: self.word(&record.join("diff")),
                size: self.word(&record.join("size")).and_then(|size| size.parse().ok()),
            };
            let is_being_removed = name.contains('-');
            if !is_being_removed && !chain.is_of(&name) {
                self.lost_record(&record, before);
            }
            if records::is_directory_name(&chain.cache_id) {
                chains.push((name, chain));
            }
        }
        chains
    }

    fn mounts(&mut self) {
        let directory = self.places.layer_records().join("mounts");
        for id in self.subdirectories(&directory) {
            let record = directory.join(&id);
            let before = self.unread_layers();
            let mount_id = self.word(&record.join("mount-id"));
            let init_id = self.word(&record.join("init-id"));
            let parent = self.word(&record.join("parent")).map(|parent| hex(&parent).to_owned());
            let is_nothing = mount_id.is_none() && init_id.is_none() && parent.is_none();
            let mount_id = mount_id.filter(|id| records::is_directory_name(id));
            let has_init = init_id.as_deref().is_none_or(records::is_directory_name);
            let Some(mount_id) = mount_id.filter(|_| has_init) else {
                // The removal of a container ends with its record.
                if !is_nothing {
                    self.lost_record(&record, before);
                }
                continue;
            };
            self.mounts.insert(id, MountRecord { mount_id, init_id, parent });
        }
    }

    fn database(&self, path: &Path, cache: &ReadCache) -> Result<Option<Arc<BoltDatabase>>, BoltError> {
        let file = quiet::if_present(self.within.open_file(path))?;
        file.map(|file| cache.database(path, &file)).transpose()
    }

    /// Reads the snapshots of BuildKit.
    fn cache(&mut self, cache: &ReadCache) -> Vec<CacheSnapshot> {
        let path = snapshots_db(&self.places);
        let snapshots = match self.database(&path, cache) {
            Ok(database) => database.map(|database| records::snapshots(&database)).unwrap_or_default(),
            Err(error) => {
                self.lost(
                    &path,
                    &format!("reading BuildKit's records: {error}; the directories of its cache are unknown"),
                );
                Vec::new()
            }
        };
        let path = self.places.root.join("buildkit/metadata_v2.db");
        self.cache_records = match self.database(&path, cache) {
            Ok(Some(database)) => records::cache_records(&database),
            Ok(None) => snapshots.len(),
            Err(error) => {
                let message = format!("reading BuildKit's records: {error}; their number is unknown");
                self.findings.push(Finding::incomplete(&path, message));
                snapshots.len()
            }
        };
        snapshots
    }

    /// Joins the records that name directories of layers. A directory that BuildKit has exported as a layer has
    /// records of both.
    fn join(&mut self, chains: Vec<(String, ChainRecord)>, snapshots: &[CacheSnapshot]) {
        let cached: &HashMap<&str, &CacheSnapshot> =
            &snapshots.iter().map(|snapshot| (snapshot.key.as_str(), snapshot)).collect();
        let by_chain: HashMap<String, String> =
            chains.iter().map(|(chain, record)| (chain.clone(), record.cache_id.clone())).collect();
        let listed = self.entries(&self.places.layers()).iter();
        self.listed = listed.filter_map(|entry| Some(entry.name.to_str()?.to_owned())).collect();
        let listed = &self.listed;
        let mut layers: BTreeMap<String, DriverLayer> = BTreeMap::new();
        let mut held = HashSet::new();
        for snapshot in snapshots {
            let parent = snapshot.parent.as_deref().and_then(|key| directory_of(cached, &by_chain, key));
            let directory = directory_of(cached, &by_chain, &snapshot.key);
            // The snapshot of a layer that was pulled, and the key of a committed one, have no directory of their own.
            let both = directory.into_iter().chain(snapshot.directory().map(str::to_owned));
            for id in both.filter(|id| listed.contains(id.as_str())) {
                let layer = DriverLayer { id: id.clone(), parent: parent.clone(), ..DriverLayer::default() };
                held.insert(id.clone());
                let known = layers.entry(id).or_insert(layer);
                known.parent = known.parent.take().or_else(|| parent.clone());
            }
        }
        self.cached = held;
        let of_layers = chains.iter().filter_map(|(_, record)| record.parent.as_ref());
        let mut parents = of_layers.chain(self.mounts.values().filter_map(|mount| mount.parent.as_ref()));
        self.lacks_records = parents.any(|parent| !by_chain.contains_key(parent));
        for (chain, record) in chains {
            let layer = DriverLayer {
                id: record.cache_id.clone(),
                parent: record.parent.and_then(|parent| by_chain.get(&parent).cloned()),
                chain: Some(chain),
                diff_id: record.diff_id,
                listed_bytes: record.size,
                is_writable: false,
            };
            layers.insert(record.cache_id, layer);
        }
        for mount in self.mounts.values() {
            let image_top = mount.parent.as_ref().and_then(|parent| by_chain.get(parent).cloned());
            if let Some(init) = &mount.init_id {
                let layer =
                    DriverLayer { id: init.clone(), parent: image_top.clone(), ..DriverLayer::default() };
                layers.insert(init.clone(), layer);
            }
            let parent = mount.init_id.clone().or(image_top);
            let id = mount.mount_id.clone();
            layers
                .insert(id.clone(), DriverLayer { id, parent, is_writable: true, ..DriverLayer::default() });
        }
        self.by_chain = by_chain;
        self.layers = layers.into_values().collect();
        self.by_id =
            self.layers.iter().enumerate().map(|(position, layer)| (layer.id.clone(), position)).collect();
        if !self.layers.is_empty() && !self.layers.iter().any(|layer| self.listed.contains(&layer.id)) {
            let all = self.layers.len();
            let message = format!(
                "none of the {all} directories that Docker's records name is here: perhaps its disk is not mounted"
            );
            self.lost(&self.places.layers(), &message);
        }
    }

    fn images(&mut self) {
        let path = self.places.repositories();
        let mut names = match quiet::if_present(self.within.read(&path, IMAGE_BYTES)) {
            Ok(bytes) => records::names(&bytes.unwrap_or_else(|| b"{}".to_vec())).map_err(io::Error::from),
            Err(error) => Err(error),
        }
        .unwrap_or_else(|error| {
            self.lost(&path, &format!("reading Docker's record: {error}; the names of images are unknown"));
            HashMap::new()
        });
        let directory = self.places.image_records().join("content/sha256");
        for entry in self.directory(&directory) {
            let Some(id) = entry.name.to_str().filter(|id| dockerd::is_id(id)) else { continue };
            let path = directory.join(id);
            let parsed = self.within.read(&path, IMAGE_BYTES);
            match parsed.and_then(|bytes| Ok(ImageRecord::parse(id, bytes)?)) {
                Ok(record) => {
                    let all = names.remove(id).unwrap_or_default();
                    let (digested, names) = all.into_iter().partition(|name| name.contains('@'));
                    self.lacks_records |=
                        record.chains.iter().any(|chain| !self.by_chain.contains_key(chain));
                    self.images.push(ImageRecord { names, digested, ..record });
                }
                Err(error) if quiet::is_absent(&error) => {}
                Err(error) => {
                    self.note_unread(
                        &path,
                        &format!("reading the image's record: {error}"),
                        "its layers are unknown",
                    );
                    self.consistency = Consistency::Damaged;
                }
            }
        }
    }

    fn containers(&mut self) {
        let directory = self.places.root.join("containers");
        for id in self.subdirectories(&directory) {
            if !dockerd::is_id(&id) {
                continue;
            }
            match DockerRecord::read(&self.within, &self.places.root, &id) {
                Ok(record) => _ = self.containers.insert(id, Some(record)),
                // Its removal was interrupted, or it is just being created.
                Err(error) if quiet::is_absent(&error) && !self.mounts.contains_key(&id) => {}
                Err(error) => {
                    let path = dockerd::record_path(&self.places.root, &id);
                    let why = format!("reading Docker's record: {error}");
                    self.note_unread(&path, &why, "the container's name, image and state are unknown");
                    self.containers.insert(id, None);
                }
            }
        }
    }

    /// Reads the short names of layers: the file `link` in the directory of each.
    fn short_names(&mut self) {
        let directory = self.places.layers();
        for (position, layer) in self.layers.iter().enumerate() {
            if let Ok(link) = word(&self.within, &directory.join(&layer.id).join("link")) {
                self.by_link.insert(link, position);
            }
        }
    }

    /// Finds the directories without a record that layers with a record need: those whose short name is in the file
    /// `lower` of such a layer, and all if a record of a layer is missing, which may be that of any of them.
    fn find_needed(&mut self) {
        let directory = self.places.layers();
        let entries = self.entries(&directory).iter().filter(|entry| entry.kind == FileKind::Directory);
        let names = entries.filter_map(|entry| entry.name.to_str());
        let names =
            names.filter(|name| ![LINKS, LOST_AND_FOUND].contains(name) && !self.by_id.contains_key(*name));
        let unnamed: HashMap<String, Option<String>> = names
            .map(|name| (name.to_owned(), word(&self.within, &directory.join(name).join("link")).ok()))
            .collect();
        // If a record cannot be read, none of them is judged.
        if unnamed.is_empty() || self.consistency == Consistency::Damaged {
            return;
        }
        let mut below = HashSet::new();
        for layer in &self.layers {
            let lower = word(&self.within, &directory.join(&layer.id).join("lower")).unwrap_or_default();
            let links = lower.split(':').filter_map(|link| link.strip_prefix("l/"));
            below.extend(links.filter(|link| !self.by_link.contains_key(*link)).map(str::to_owned));
        }
        let is_elsewhere = below.iter().any(|link| !unnamed.values().flatten().any(|known| known == link));
        let needed = unnamed.iter().filter(|(_, link)| {
            let is_below = link.as_ref().map_or(is_elsewhere, |link| below.contains(link));
            self.lacks_records || is_below
        });
        self.needed = needed.map(|(name, _)| name.clone()).collect();
        self.unnamed = unnamed;
        if !self.needed.is_empty() {
            let message = "a layer needs another one of which Docker has no record: what directories without a record \
                           are is unknown";
            self.findings.push(Finding::incomplete(&directory, message));
        }
    }

    /// Returns the container whose record says that this driver has its files, or whose record cannot be read.
    pub(super) fn own_containers(&self) -> impl Iterator<Item = (&String, Option<&DockerRecord>)> {
        let containers = self.containers.iter().map(|(id, record)| (id, record.as_ref()));
        containers.filter(|(id, record)| {
            self.mounts.contains_key(*id) || record.is_none_or(|record| record.driver == DRIVER)
        })
    }
}
