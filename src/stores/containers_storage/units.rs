//! Assigns every entry of a store's directories to a unit. Pure.
//!
//! Each entry goes to exactly one unit, so that the bytes of all units add up to the result
//! of `du` for the graphroot. Names are only matched against the records, never built from them: no id of
//! a record can lead the reader elsewhere.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::records::is_id;
use super::snapshot::Snapshot;
use crate::disk::TreeScope;
use crate::model::Orphan;
use crate::stores::unit::{self, Part, UnitKind};
use crate::sys::quiet::{Entry, Kind};

/// Our own file or directory at the top of a graphroot or imagestore (`edit::ReserveFile`).
pub(super) const RESERVE_FILE: &str = ".layersweep-ballast";

/// What a unit is. Numbers are positions in the snapshot's tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A layer: directory, tar-split, big data.
    Layer(usize),
    /// The content (`diff`) of a container's writable layer.
    LayerContent(usize),
    /// An image's own files.
    Image(usize),
    /// A container's own files.
    Container(usize),
    /// Something without a record.
    Orphan(Orphan),
    /// The store's bookkeeping.
    Metadata,
    /// Record files, which every deletion rewrites.
    Records,
    /// Our own reserve file: see [`super::edit::ReserveFile`].
    ReserveFile,
    /// Something else, by name.
    Other(String),
}

/// A unit of a graphroot. Its parts are below [`super::places::Places::roots`].
pub type Unit = unit::Unit<What>;

impl UnitKind for What {
    fn tag(&self) -> &'static str {
        match self {
            Self::Layer(_) => "layer",
            Self::LayerContent(_) => "content",
            Self::Image(_) => "image",
            Self::Container(_) => "container",
            Self::Orphan(orphan) => orphan.class().as_str(),
            Self::Metadata => "metadata",
            Self::Records => "records",
            Self::ReserveFile => "ballast",
            Self::Other(_) => "other",
        }
    }
}

/// Sorts the listing of `snapshot`.
#[must_use]
pub fn sort(snapshot: &Snapshot) -> Vec<Unit> {
    let mut sorter = Sorter::new(snapshot);
    for (area, root) in snapshot.places.areas().enumerate() {
        sorter.area(area, root);
    }
    sorter.temporary_files();
    sorter.units
}

struct Sorter<'a> {
    snapshot: &'a Snapshot,
    layers: HashMap<&'a OsStr, usize>,
    images: HashMap<&'a OsStr, usize>,
    containers: HashMap<&'a OsStr, usize>,
    units: Vec<Unit>,
    /// Units that several directories add to.
    known: HashMap<What, usize>,
}

fn by_id<'a, T>(records: &'a [T], id: impl Fn(&'a T) -> &'a str) -> HashMap<&'a OsStr, usize> {
    records.iter().enumerate().map(|(at, record)| (OsStr::new(id(record)), at)).collect()
}

fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

impl<'a> Sorter<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            snapshot,
            layers: by_id(&snapshot.layers, |layer| &layer.id),
            images: by_id(&snapshot.images, |image| &image.id),
            containers: by_id(&snapshot.containers, |container| &container.id),
            units: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// `part` comes with the position of its area; the driver's directory is a root of its own.
    fn add(&mut self, what: What, id: String, root: &Path, part: Part) {
        let (area, below, scope) = part;
        let path = root.join(&below);
        let part = match below.strip_prefix(&self.snapshot.places.driver) {
            Ok(below) => (2 * area + 1, below.to_path_buf(), scope),
            Err(_) => (2 * area, below, scope),
        };
        let alone = matches!(what, What::Orphan(_));
        if let (false, Some(at)) = (alone, self.known.get(&what)) {
            self.units[*at].parts.push(part);
            return;
        }
        if !alone {
            self.known.insert(what.clone(), self.units.len());
        }
        self.units.push(Unit { what, id, path, parts: vec![part] });
    }

    fn metadata(&mut self, area: usize, root: &Path, path: PathBuf, scope: TreeScope) {
        self.add(What::Metadata, "store metadata".into(), root, (area, path, scope));
    }

    fn whole(&mut self, what: What, id: String, area: usize, root: &Path, path: PathBuf) {
        self.add(what, id, root, (area, path, TreeScope::Whole));
    }

    fn area(&mut self, area: usize, root: &Path) {
        let snapshot = self.snapshot;
        let driver = snapshot.places.driver.as_str();
        if snapshot.places.primary {
            self.metadata(area, root, PathBuf::new(), TreeScope::EntryOnly);
        }
        for entry in snapshot.entries(root) {
            let Some(name) = entry.name.to_str() else {
                self.top_level(area, root, entry);
                continue;
            };
            let records = name.strip_prefix(driver).and_then(|rest| rest.strip_prefix('-'));
            match (records, entry.kind) {
                _ if name == driver && entry.kind == Kind::Directory => self.driver(area, root, driver),
                (Some("layers"), Kind::Directory) => self.layer_records(area, root, name),
                (Some("images"), Kind::Directory) => self.records(area, root, name, What::Image),
                (Some("containers"), Kind::Directory) => self.records(area, root, name, What::Container),
                _ => self.top_level(area, root, entry),
            }
        }
    }

    /// Something at the top of the graphroot that is not this driver's.
    fn top_level(&mut self, area: usize, root: &Path, entry: &Entry) {
        let name = text(&entry.name);
        let snapshot = self.snapshot;
        let places = &snapshot.places;
        let of_other_driver = places.other_drivers.iter().any(|other| {
            name.strip_prefix(other.as_str())
                .is_some_and(|rest| ["", "-layers", "-images", "-containers"].contains(&rest))
        });
        let counted_apart = || places.roots().contains(&root.join(&entry.name));
        if !places.primary || of_other_driver || (entry.kind == Kind::Directory && counted_apart()) {
            return;
        }
        let children = snapshot.entries(&root.join(&entry.name));
        match name.as_str() {
            "tmp" if area == 0 && !children.is_empty() => return self.temporary(root, children),
            "volumes" if area == 0 && children.iter().any(|one| self.is_unknown_volume(one)) => {
                return self.volumes(root, children);
            }
            _ => {}
        }
        let what = match name.as_str() {
            RESERVE_FILE => {
                let id = "layersweep's reserve file".into();
                return self.whole(What::ReserveFile, id, area, root, PathBuf::from(&entry.name));
            }
            "storage.lock" | "userns.lock" | "defaultNetworkBackend" => What::Metadata,
            _ if area == 0 => What::Other(name.clone()),
            _ => What::Other(format!("imagestore/{name}")),
        };
        self.whole(what, name, area, root, PathBuf::from(&entry.name));
    }

    /// The graphroot's own `tmp`, one unit an entry.
    fn temporary(&mut self, root: &Path, children: &[Entry]) {
        let top = PathBuf::from("tmp");
        self.add(What::Other("tmp".into()), "tmp".into(), root, (0, top.clone(), TreeScope::EntryOnly));
        for child in children {
            let id = text(&child.name);
            self.whole(What::Orphan(Orphan::GraphrootTmp), id, 0, root, top.join(&child.name));
        }
    }

    fn is_unknown_volume(&self, entry: &Entry) -> bool {
        let inspection = &self.snapshot.inspection;
        let name = entry.name.to_str().filter(|_| entry.kind == Kind::Directory && inspection.valid);
        name.is_some_and(|name| inspection.engine.has_volume(name) == Some(false))
    }

    fn volumes(&mut self, root: &Path, children: &[Entry]) {
        let top = PathBuf::from("volumes");
        let known = What::Other("volumes".into());
        self.add(known.clone(), "volumes".into(), root, (0, top.clone(), TreeScope::EntryOnly));
        for child in children {
            let what = match self.is_unknown_volume(child) {
                true => What::Orphan(Orphan::Volume),
                false => known.clone(),
            };
            self.whole(what, text(&child.name), 0, root, top.join(&child.name));
        }
    }

    /// What the tools left outside of the store.
    fn temporary_files(&mut self) {
        let snapshot = self.snapshot;
        let first = snapshot.places.first_temporary();
        for (at, directory) in snapshot.places.temporary.iter().enumerate() {
            for entry in snapshot.entries(directory) {
                self.units.push(Unit {
                    what: What::Orphan(Orphan::VarTmp),
                    id: text(&entry.name),
                    path: directory.join(&entry.name),
                    parts: vec![(first + at, PathBuf::from(&entry.name), TreeScope::Whole)],
                });
            }
        }
    }

    fn driver(&mut self, area: usize, root: &Path, driver: &str) {
        let snapshot = self.snapshot;
        let top = PathBuf::from(driver);
        // vfs keeps its layers one level further down.
        let (below, others) = match driver {
            "vfs" => (top.join("dir"), Some(top.clone())),
            _ => (top.clone(), None),
        };
        self.metadata(area, root, top, TreeScope::EntryOnly);
        if let Some(others) = others {
            for entry in snapshot.entries(&root.join(&others)) {
                let path = others.join(&entry.name);
                match entry.name.to_str() {
                    Some("dir") => self.metadata(area, root, path, TreeScope::EntryOnly),
                    Some("tempdirs") => self.temp_directories(area, root, path),
                    _ => self.whole(What::Other(text(&entry.name)), text(&entry.name), area, root, path),
                }
            }
        }
        for entry in snapshot.entries(&root.join(&below)) {
            self.driver_entry(area, root, &below, entry);
        }
    }

    fn driver_entry(&mut self, area: usize, root: &Path, below: &Path, entry: &Entry) {
        let path = below.join(&entry.name);
        let id = text(&entry.name);
        if let Some(layer) = self.layers.get(entry.name.as_os_str()).copied() {
            return self.layer(area, root, path, layer, id);
        }
        let is_directory = entry.kind == Kind::Directory;
        match entry.name.to_str() {
            Some("l") if is_directory => self.metadata(area, root, path, TreeScope::Whole),
            Some("staging") if is_directory => {
                self.metadata(area, root, path.clone(), TreeScope::EntryOnly);
                for child in self.snapshot.entries(&root.join(&path)) {
                    let id = text(&child.name);
                    self.whole(What::Orphan(Orphan::Staging), id, area, root, path.join(&child.name));
                }
            }
            Some("tempdirs") if is_directory => self.temp_directories(area, root, path),
            Some(name) if is_directory && is_feature_test(name) => {
                self.whole(What::Orphan(Orphan::FeatureTest), id, area, root, path);
            }
            Some(name) if is_directory && is_id(name) => {
                self.whole(What::Orphan(Orphan::LayerDirectory), id, area, root, path);
            }
            // Marker files and whatever else the driver keeps: never a layer.
            Some(".has-mount-program") => self.metadata(area, root, path, TreeScope::Whole),
            // Recreated whenever a program opens the driver.
            Some("backingFsBlockDev") => {
                self.whole(What::Records, "store records".into(), area, root, path);
            }
            _ => {
                let name = path.to_string_lossy().into_owned();
                self.whole(What::Other(name.clone()), name, area, root, path);
            }
        }
    }

    fn layer(&mut self, area: usize, root: &Path, path: PathBuf, layer: usize, id: String) {
        let parts = self.snapshot.entries(&root.join(&path));
        if parts.is_empty() {
            return self.whole(What::Layer(layer), id, area, root, path);
        }
        // A container's layer: its content apart, since that is what podman calls its size.
        self.add(What::Layer(layer), id.clone(), root, (area, path.clone(), TreeScope::EntryOnly));
        for part in parts {
            let is_content = part.name.to_str().is_some_and(|name| name.starts_with("diff"));
            let what = if is_content { What::LayerContent(layer) } else { What::Layer(layer) };
            self.whole(what, id.clone(), area, root, path.join(&part.name));
        }
    }

    /// `lock-N` and `temp-dir-N` belong together.
    fn temp_directories(&mut self, area: usize, root: &Path, path: PathBuf) {
        let snapshot = self.snapshot;
        self.metadata(area, root, path.clone(), TreeScope::EntryOnly);
        let mut by_number: HashMap<String, usize> = HashMap::new();
        for entry in snapshot.entries(&root.join(&path)) {
            let name = text(&entry.name);
            let number = name.strip_prefix("temp-dir-").or_else(|| name.strip_prefix("lock-"));
            let number = number.unwrap_or(&name).to_owned();
            let part = (area, path.join(&entry.name), TreeScope::Whole);
            let at = self.units.len();
            self.add(What::Orphan(Orphan::TempDirectory), number.clone(), root, part);
            match by_number.get(&number) {
                Some(pair) => {
                    let parts = self.units.pop().into_iter().flat_map(|unit| unit.parts);
                    self.units[*pair].parts.extend(parts);
                }
                None => {
                    by_number.insert(number, at);
                }
            }
        }
    }

    fn layer_records(&mut self, area: usize, root: &Path, name: &str) {
        let snapshot = self.snapshot;
        let top = PathBuf::from(name);
        self.metadata(area, root, top.clone(), TreeScope::EntryOnly);
        for entry in snapshot.entries(&root.join(&top)) {
            let path = top.join(&entry.name);
            let Some(name) = entry.name.to_str() else {
                self.whole(What::Other(text(&entry.name)), text(&entry.name), area, root, path);
                continue;
            };
            let (id, orphan) = match (name.strip_suffix(".tar-split.gz"), entry.kind) {
                (Some(id), Kind::File) => (id, Orphan::TarSplit),
                (None, Kind::Directory) if name == "tmp" => {
                    self.temp_directories(area, root, path);
                    continue;
                }
                (None, Kind::Directory) if is_id(name) => (name, Orphan::LayerData),
                _ => {
                    self.bookkeeping(area, root, path, name);
                    continue;
                }
            };
            match self.layers.get(OsStr::new(id)).copied() {
                Some(layer) => self.whole(What::Layer(layer), id.to_owned(), area, root, path),
                None => self.whole(What::Orphan(orphan), id.to_owned(), area, root, path),
            }
        }
    }

    /// `D-images` and `D-containers`: a directory an object, and the record files.
    fn records(&mut self, area: usize, root: &Path, name: &str, what: fn(usize) -> What) {
        let snapshot = self.snapshot;
        let top = PathBuf::from(name);
        self.metadata(area, root, top.clone(), TreeScope::EntryOnly);
        let (known, orphan) = match what(0) {
            What::Image(_) => (self.images.clone(), Orphan::ImageDirectory),
            _ => (self.containers.clone(), Orphan::ContainerDirectory),
        };
        for entry in snapshot.entries(&root.join(&top)) {
            let path = top.join(&entry.name);
            let id = text(&entry.name);
            match known.get(entry.name.as_os_str()) {
                Some(at) => self.whole(what(*at), id, area, root, path),
                None if entry.kind == Kind::Directory && is_id(&id) => {
                    self.whole(What::Orphan(orphan), id, area, root, path);
                }
                None => self.bookkeeping(area, root, path, &id),
            }
        }
    }

    /// A file beside the records: bookkeeping, or a temporary file of an atomic write.
    fn bookkeeping(&mut self, area: usize, root: &Path, path: PathBuf, name: &str) {
        if name.starts_with(".tmp-") {
            self.whole(What::Orphan(Orphan::TempRecord), name.to_owned(), area, root, path);
        } else if name.ends_with(".json") {
            self.whole(What::Records, "store records".into(), area, root, path);
        } else {
            self.metadata(area, root, path, TreeScope::Whole);
        }
    }
}

/// Directories that the overlay driver makes to try out the kernel, with a random suffix
/// (container-libs, `storage/drivers/overlay/check.go`).
pub(super) fn is_feature_test(name: &str) -> bool {
    ["compat", "metacopy-check", "opaque-bug-check", "volatile-check", "feature-check"]
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit())))
}

#[cfg(test)]
mod tests;
