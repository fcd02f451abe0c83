//! Assigns every entry of a store's directories to a unit. Pure.
//!
//! Each entry belongs to exactly one unit, so the bytes of all units add up to the result of `du` for the graphroot.
//!
//! The names of entries are compared with the records; paths are never built from records. So no id in a record can make
//! the reader leave the store.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::records::is_id;
use super::snapshot::Snapshot;
use crate::disk::TreeScope;
use crate::model::Orphan;
use crate::stores::unit::{self, UnitKind};
use crate::sys::quiet::{DirectoryEntry, FileKind};

/// Name of layersweep's reserve file at the top of a graphroot or imagestore ([`crate::editor::ReserveFile`]).
pub(crate) const RESERVE_FILE: &str = ".layersweep-reserve";

/// Suffix of the file from which the library recreates the tar of a layer. The layer's id precedes it.
const TAR_SPLIT: &str = ".tar-split.gz";

/// Kind of a unit. Numbers are positions in the snapshot's tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StorageUnit {
    /// A layer: directory, tar-split, big data.
    Layer(usize),
    /// The content (`diff`) of a container's writable layer.
    LayerContent(usize),
    Image(usize),
    Container(usize),
    Orphan(Orphan),
    /// Bookkeeping of the store, such as its top directories and lock files.
    Metadata,
    /// The overlay driver's directory `l` of short names, with a symlink for each layer.
    ShortNames,
    /// Record files, which every deletion rewrites, and files that every program recreates.
    Records,
    /// layersweep's reserve file ([`crate::editor::ReserveFile`]).
    ReserveFile,
    /// Any other file or directory, by name.
    Other(String),
}

/// A unit of a graphroot. Its parts are below [`super::places::StorePlaces::roots`].
pub type GraphrootUnit = unit::Unit<StorageUnit>;

impl UnitKind for StorageUnit {
    fn tag(&self) -> &'static str {
        match self {
            Self::Layer(_) => "layer",
            Self::LayerContent(_) => "content",
            Self::Image(_) => "image",
            Self::Container(_) => "container",
            Self::Orphan(orphan) => orphan.class().as_str(),
            Self::Metadata => "metadata",
            Self::ShortNames => "short-names",
            Self::Records => "records",
            Self::ReserveFile => "reserve",
            Self::Other(_) => "other",
        }
    }
}

/// Sorts the listing of `snapshot` into units. Also returns for each recorded layer whether its directory is listed.
#[must_use]
pub fn sort(snapshot: &Snapshot) -> (Vec<GraphrootUnit>, Vec<bool>) {
    let mut sorter = GraphrootSorter::new(snapshot);
    for (area, root) in snapshot.places.areas().enumerate() {
        (sorter.area, sorter.root) = (area, root);
        sorter.area();
    }
    sorter.temporary_files();
    (sorter.units, sorter.has_directory)
}

/// Capacity for units that are neither layers nor images. If the vector had to grow, it would double its memory.
const OTHER_UNITS: usize = 1024;

struct GraphrootSorter<'a> {
    snapshot: &'a Snapshot,
    area: usize,
    /// Path of that area.
    root: &'a Path,
    images: HashMap<&'a OsStr, usize>,
    containers: HashMap<&'a OsStr, usize>,
    writable: HashSet<&'a str>,
    units: Vec<GraphrootUnit>,
    /// Positions of units that several directories add to, by area: a unit must be on a single filesystem. Units of
    /// layers are in `units_of_layers`.
    known: HashMap<(usize, StorageUnit), usize>,
    /// Positions of units, by position of the layer.
    units_of_layers: Vec<Option<usize>>,
    /// For each layer, by its position, true if its directory is listed.
    has_directory: Vec<bool>,
}

fn by_id<'a, T>(records: &'a [T], id: impl Fn(&'a T) -> &'a str) -> HashMap<&'a OsStr, usize> {
    records.iter().enumerate().map(|(position, record)| (OsStr::new(id(record)), position)).collect()
}

/// Returns a name for messages. Almost all names are UTF-8, and a check is faster than a lossy conversion.
fn text(name: &OsStr) -> String {
    name.to_str().map_or_else(|| name.to_string_lossy().into_owned(), str::to_owned)
}

impl<'a> GraphrootSorter<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            area: 0,
            root: &snapshot.places.graphroot,
            images: by_id(&snapshot.images, |image| &image.id),
            containers: by_id(&snapshot.containers, |container| &container.id),
            writable: snapshot.containers.iter().filter_map(|container| container.layer.as_deref()).collect(),
            units: Vec::with_capacity(snapshot.layers.len() + snapshot.images.len() + OTHER_UNITS),
            known: HashMap::new(),
            units_of_layers: vec![None; snapshot.layers.len()],
            has_directory: vec![false; snapshot.layers.len()],
        }
    }

    /// Adds the file or directory at `below` in the area to its unit, or to a new one.
    fn add(&mut self, kind: StorageUnit, id: impl Into<String>, below: PathBuf, scope: TreeScope) {
        let next = self.units.len();
        let position = match kind {
            StorageUnit::Orphan(_) => next,
            StorageUnit::Layer(layer) => *self.units_of_layers[layer].get_or_insert(next),
            _ => *self.known.entry((self.area, kind.clone())).or_insert(next),
        };
        let path = (position == next).then(|| self.root.join(&below));
        // The driver's directory is a root of its own: see `StorePlaces::roots`.
        let part = match below.strip_prefix(&self.snapshot.places.driver) {
            Ok(below) => (2 * self.area + 1, below.to_path_buf(), scope),
            Err(_) => (2 * self.area, below, scope),
        };
        let Some(path) = path else { return self.units[position].parts.push(part) };
        // A layer has two parts: its directory and its tar-split.
        let mut parts = Vec::with_capacity(2);
        parts.push(part);
        self.units.push(GraphrootUnit { kind, id: id.into(), path, parts });
    }

    fn metadata(&mut self, path: PathBuf, scope: TreeScope) {
        self.add(StorageUnit::Metadata, "store metadata", path, scope);
    }

    fn whole(&mut self, kind: StorageUnit, id: impl Into<String>, path: PathBuf) {
        self.add(kind, id, path, TreeScope::Whole);
    }

    /// Returns the entries of a directory of the area, each with its name for messages and its path in the area.
    fn entries(&self, below: &Path) -> impl Iterator<Item = (String, &'a DirectoryEntry, PathBuf)> + use<'a> {
        let entries = self.snapshot.entries(&self.root.join(below)).iter();
        let below = below.to_path_buf();
        entries.map(move |entry| (text(&entry.name), entry, below.join(&entry.name)))
    }

    fn area(&mut self) {
        let snapshot = self.snapshot;
        let driver = snapshot.places.driver.as_str();
        if snapshot.places.primary {
            self.metadata(PathBuf::new(), TreeScope::EntryOnly);
        }
        for entry in snapshot.entries(self.root) {
            // A name that is not UTF-8 belongs to no driver.
            let name = entry.name.to_str().filter(|_| entry.kind == FileKind::Directory).unwrap_or_default();
            match name.strip_prefix(driver) {
                Some("") => self.driver(driver),
                Some("-layers") => self.layer_records(name),
                Some("-images") => self.records(name, StorageUnit::Image),
                Some("-containers") => self.records(name, StorageUnit::Container),
                _ => self.top_level(entry),
            }
        }
    }

    /// Sorts an entry at the top of an area that does not belong to this driver.
    fn top_level(&mut self, entry: &DirectoryEntry) {
        let name = text(&entry.name);
        let snapshot = self.snapshot;
        let places = &snapshot.places;
        let of_other_driver = places.other_drivers.iter().any(|other| {
            name.strip_prefix(other.as_str())
                .is_some_and(|rest| ["", "-layers", "-images", "-containers"].contains(&rest))
        });
        if !places.primary || of_other_driver {
            return;
        }
        // An imagestore or temporary directory in the graphroot is sorted as an area of its own.
        if entry.kind == FileKind::Directory && places.roots().contains(&self.root.join(&entry.name)) {
            return;
        }
        let path = PathBuf::from(&entry.name);
        let children = snapshot.entries(&self.root.join(&entry.name));
        match name.as_str() {
            "tmp" if self.area == 0 && !children.is_empty() => self.temporary(path),
            "volumes" if self.area == 0 && children.iter().any(|child| self.is_unknown_volume(child)) => {
                self.volumes(path);
            }
            RESERVE_FILE => self.whole(StorageUnit::ReserveFile, "layersweep's reserve file", path),
            "storage.lock" | "userns.lock" | "defaultNetworkBackend" => {
                self.whole(StorageUnit::Metadata, &name, path)
            }
            _ if self.area == 0 => self.whole(StorageUnit::Other(name.clone()), &name, path),
            _ => self.whole(StorageUnit::Other(format!("imagestore/{name}")), &name, path),
        }
    }

    /// Sorts the graphroot's `tmp`: each entry is a unit.
    fn temporary(&mut self, top: PathBuf) {
        self.add(StorageUnit::Other("tmp".into()), "tmp", top.clone(), TreeScope::EntryOnly);
        for (id, _, path) in self.entries(&top) {
            self.whole(StorageUnit::Orphan(Orphan::GraphrootTmp), &id, path);
        }
    }

    fn is_unknown_volume(&self, entry: &DirectoryEntry) -> bool {
        let inspection = &self.snapshot.inspection;
        let name = entry.name.to_str().filter(|_| entry.kind == FileKind::Directory && inspection.valid);
        name.is_some_and(|name| inspection.engine.has_volume(name) == Some(false))
    }

    fn volumes(&mut self, top: PathBuf) {
        let known = StorageUnit::Other("volumes".into());
        self.add(known.clone(), "volumes", top.clone(), TreeScope::EntryOnly);
        for (id, entry, path) in self.entries(&top) {
            let is_unknown = self.is_unknown_volume(entry);
            self.whole(
                if is_unknown { StorageUnit::Orphan(Orphan::Volume) } else { known.clone() },
                &id,
                path,
            );
        }
    }

    /// Sorts the temporary files outside the store: each is a unit.
    fn temporary_files(&mut self) {
        let snapshot = self.snapshot;
        let first_root = snapshot.places.own_roots().len();
        for (root, directory) in (first_root..).zip(&snapshot.places.temporary) {
            for entry in snapshot.entries(directory) {
                self.units.push(GraphrootUnit {
                    kind: StorageUnit::Orphan(Orphan::VarTmp),
                    id: text(&entry.name),
                    path: directory.join(&entry.name),
                    parts: vec![(root, PathBuf::from(&entry.name), TreeScope::Whole)],
                });
            }
        }
    }

    fn driver(&mut self, driver: &str) {
        let top = PathBuf::from(driver);
        self.metadata(top.clone(), TreeScope::EntryOnly);
        let Some(below) = self.snapshot.places.below_driver() else { return self.layers(&top) };
        // vfs and btrfs have their layers one level deeper.
        for (name, entry, path) in self.entries(&top) {
            match entry.name.to_str() {
                Some(entry) if entry == below => self.metadata(path, TreeScope::EntryOnly),
                Some("tempdirs") => self.temp_directories(path),
                _ => self.whole(StorageUnit::Other(name.clone()), &name, path),
            }
        }
        self.layers(&top.join(below));
    }

    /// Returns the position of the layer for each entry of a directory of the area. `name_of` extracts the layer's id
    /// from the entry's name.
    ///
    /// It runs in parallel, since a large store has very many entries, and each lookup is a cache miss.
    fn layers_among(
        &self,
        below: &Path,
        name_of: impl Fn(&'a OsStr) -> &'a OsStr + Sync,
    ) -> Vec<Option<usize>> {
        let entries = self.snapshot.entries(&self.root.join(below)).par_iter();
        entries.map(|entry| self.snapshot.layer_at(name_of(&entry.name))).collect()
    }

    fn layers(&mut self, top: &Path) {
        let layers = self.layers_among(top, |name| name);
        for ((id, entry, path), layer) in self.entries(top).zip(layers) {
            if let Some(layer) = layer {
                self.has_directory[layer] = true;
                self.layer(path, layer, id);
                continue;
            }
            // Only a directory named like an id can be an orphaned layer, never a file of the driver.
            match (entry.name.to_str(), entry.kind) {
                (Some("l"), FileKind::Directory) => self.whole(StorageUnit::ShortNames, "short names", path),
                (Some("staging"), FileKind::Directory) => {
                    self.metadata(path.clone(), TreeScope::EntryOnly);
                    for (id, _, path) in self.entries(&path) {
                        self.whole(StorageUnit::Orphan(Orphan::Staging), &id, path);
                    }
                }
                (Some("tempdirs"), FileKind::Directory) => self.temp_directories(path),
                (Some(name), FileKind::Directory) if is_id(name) => {
                    self.whole(StorageUnit::Orphan(Orphan::LayerDirectory), &id, path);
                }
                (Some(".has-mount-program"), _) => self.metadata(path, TreeScope::Whole),
                // Recreated whenever a program opens the driver.
                (Some("backingFsBlockDev"), _) => self.whole(StorageUnit::Records, "store records", path),
                _ => {
                    let name = path.to_string_lossy().into_owned();
                    self.whole(StorageUnit::Other(name.clone()), &name, path);
                }
            }
        }
    }

    fn layer(&mut self, path: PathBuf, layer: usize, id: String) {
        if !self.writable.contains(id.as_str()) || self.snapshot.entries(&self.root.join(&path)).is_empty() {
            return self.whole(StorageUnit::Layer(layer), id, path);
        }
        // The content of a container's layer is a unit of its own: podman prints its size as that of the container.
        self.add(StorageUnit::Layer(layer), &id, path.clone(), TreeScope::EntryOnly);
        for (_, part, path) in self.entries(&path) {
            let is_content = part.name.to_str().is_some_and(|name| name.starts_with("diff"));
            let kind = if is_content { StorageUnit::LayerContent(layer) } else { StorageUnit::Layer(layer) };
            self.whole(kind, &id, path);
        }
    }

    /// Sorts a directory of temporary directories. `lock-N` and `temp-dir-N` form a unit.
    fn temp_directories(&mut self, top: PathBuf) {
        self.metadata(top.clone(), TreeScope::EntryOnly);
        let mut by_number: HashMap<String, usize> = HashMap::new();
        for (name, _, path) in self.entries(&top) {
            let number =
                name.strip_prefix("temp-dir-").or_else(|| name.strip_prefix("lock-")).unwrap_or(&name);
            let position = self.units.len();
            self.whole(StorageUnit::Orphan(Orphan::TempDirectory), number, path);
            match by_number.get(number) {
                Some(pair) => {
                    let parts = self.units.pop().into_iter().flat_map(|unit| unit.parts);
                    self.units[*pair].parts.extend(parts);
                }
                None => {
                    by_number.insert(number.to_owned(), position);
                }
            }
        }
    }

    fn layer_records(&mut self, name: &str) {
        let top = PathBuf::from(name);
        self.metadata(top.clone(), TreeScope::EntryOnly);
        let layers = self.layers_among(&top, |name| {
            let split = name.as_bytes().strip_suffix(TAR_SPLIT.as_bytes());
            split.map_or(name, OsStr::from_bytes)
        });
        let elsewhere = self.layers_on_other_filesystems();
        for ((lossy_name, entry, path), layer) in self.entries(&top).zip(layers) {
            let Some(name) = entry.name.to_str() else {
                self.whole(StorageUnit::Other(lossy_name.clone()), &lossy_name, path);
                continue;
            };
            let split = name.strip_suffix(TAR_SPLIT);
            let (id, scope) = match (split, entry.kind) {
                (Some(id), FileKind::File) => (id, TreeScope::File),
                (None, FileKind::Directory) if name == "tmp" => {
                    self.temp_directories(path);
                    continue;
                }
                (None, FileKind::Directory) if is_id(name) => (name, TreeScope::Whole),
                _ => {
                    self.bookkeeping(path, name);
                    continue;
                }
            };
            match layer {
                Some(_) if elsewhere.contains(OsStr::new(id)) => self.metadata(path, scope),
                Some(layer) => self.add(StorageUnit::Layer(layer), id, path, scope),
                None => self.add(StorageUnit::Orphan(Orphan::LayerData), id, path, scope),
            }
        }
    }

    /// Returns the names of layer directories on other filesystems than this area.
    ///
    /// The graphroot contains the tar-splits of layers in an imagestore. They cannot be parts of the layer's unit, since
    /// all bytes of a unit are on a single filesystem.
    fn layers_on_other_filesystems(&self) -> HashSet<&'a OsStr> {
        let places = &self.snapshot.places;
        let device = places.areas().nth(self.area).map(|area| area.identity().0);
        let others = places.areas().filter(|area| Some(area.identity().0) != device);
        others
            .flat_map(|area| self.snapshot.entries(&area.join(&places.driver)))
            .map(|entry| entry.name.as_os_str())
            .collect()
    }

    /// Sorts `<driver>-images` or `<driver>-containers`: a directory for each object, and the record files.
    fn records(&mut self, name: &str, kind: fn(usize) -> StorageUnit) {
        let top = PathBuf::from(name);
        self.metadata(top.clone(), TreeScope::EntryOnly);
        let (known, orphan) = match kind(0) {
            StorageUnit::Image(_) => (self.images.clone(), Orphan::ImageDirectory),
            _ => (self.containers.clone(), Orphan::ContainerDirectory),
        };
        for (id, entry, path) in self.entries(&top) {
            match known.get(entry.name.as_os_str()) {
                Some(position) => self.whole(kind(*position), id, path),
                None if entry.kind == FileKind::Directory && is_id(&id) => {
                    self.whole(StorageUnit::Orphan(orphan), &id, path);
                }
                None => self.bookkeeping(path, &id),
            }
        }
    }

    /// Sorts a file beside the directories of objects: a record file, a temporary file of an atomic write, or
    /// bookkeeping.
    fn bookkeeping(&mut self, path: PathBuf, name: &str) {
        if name.starts_with(".tmp-") {
            self.whole(StorageUnit::Orphan(Orphan::TempRecord), name, path);
        } else if name.ends_with(".json") {
            self.whole(StorageUnit::Records, "store records", path);
        } else {
            self.metadata(path, TreeScope::Whole);
        }
    }
}

#[cfg(test)]
mod tests;
