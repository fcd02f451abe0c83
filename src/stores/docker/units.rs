//! Assigns every entry of a data root to a unit. Pure.
//!
//! Each entry belongs to exactly one unit, so that the bytes of all units add up to the result of `du` for the data root.
//! The names of entries are compared with the records; paths are never built from records.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::places::{DRIVER, IMAGE};
use super::read::{LINKS, LOST_AND_FOUND, Snapshot};
use crate::disk::TreeScope;
use crate::model::Consistency;
use crate::stores::unit::{self, UnitKind};
use crate::sys::quiet::FileKind;

/// Position of the data root in [`super::places::DockerPlaces::roots`].
pub(super) const ROOT_AREA: usize = 0;
/// Position of the driver's directory.
const LAYER_AREA: usize = 1;

/// Kind of a unit. The id of the unit identifies the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DockerUnit {
    /// A directory of the driver with its records: position in the snapshot's layers.
    Layer(usize),
    Image,
    /// A container's own directory, with its log.
    Container,
    /// BuildKit's own files beside its databases.
    BuildCache,
    Orphan(DockerOrphan),
    Metadata,
    /// Files of a driver that layersweep does not know, or without readable records.
    Unknown,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DockerOrphan {
    /// A directory of the driver that no record names.
    Layer,
    /// A record in `layerdb` whose deletion was interrupted.
    Removing,
    /// A directory in `containers` without a record of the container.
    Container,
    /// A download or an archive in `tmp`.
    Temporary,
    /// A record of a layer that was never completed, in `layerdb/tmp`.
    TemporaryRecord,
}

pub(super) type DataRootUnit = unit::Unit<DockerUnit>;

impl UnitKind for DockerUnit {
    fn tag(&self) -> &'static str {
        match self {
            Self::Layer(_) => "layer",
            Self::Image => "image",
            Self::Container => "container",
            Self::BuildCache => "build-cache",
            Self::Orphan(_) => "orphan",
            Self::Metadata => "metadata",
            Self::Unknown => "unknown",
            Self::Other => "other",
        }
    }
}

#[must_use]
pub(super) fn sort(snapshot: &Snapshot) -> Vec<DataRootUnit> {
    let root = snapshot.places.root.clone();
    // All bytes of a unit are on one filesystem.
    let [of_root, of_layers] = [&root, &snapshot.places.layers()]
        .map(|path| snapshot.within.facts(path).ok().map(|facts| facts.device));
    let is_split = of_layers.is_some() && of_root != of_layers;
    let mut sorter = DataRootSorter { snapshot, root, is_split, units: Vec::new(), known: HashMap::new() };
    sorter.top();
    sorter.units
}

struct DataRootSorter<'a> {
    snapshot: &'a Snapshot,
    root: PathBuf,
    /// The driver's directory is on another filesystem than the data root.
    is_split: bool,
    units: Vec<DataRootUnit>,
    /// Positions of units that several entries belong to.
    known: HashMap<(DockerUnit, String), usize>,
}

/// An entry of a directory: name, kind, and path below the data root.
type NamedEntry = (String, FileKind, PathBuf);

impl DataRootSorter<'_> {
    fn add(&mut self, kind: DockerUnit, id: &str, path: PathBuf, scope: TreeScope) {
        let absolute = self.root.join(&path);
        let part = match path.strip_prefix(DRIVER) {
            Ok(below) => (LAYER_AREA, below.to_path_buf(), scope),
            Err(_) => (ROOT_AREA, path, scope),
        };
        if matches!(kind, DockerUnit::Orphan(_) | DockerUnit::Other) {
            let (id, parts) = (id.to_owned(), vec![part]);
            return self.units.push(DataRootUnit { kind, id, path: absolute, parts });
        }
        let next = self.units.len();
        match *self.known.entry((kind, id.to_owned())).or_insert(next) {
            position if position < next => self.units[position].parts.push(part),
            _ => self.units.push(DataRootUnit { kind, id: id.to_owned(), path: absolute, parts: vec![part] }),
        }
    }

    fn whole(&mut self, kind: DockerUnit, id: &str, path: PathBuf) {
        self.add(kind, id, path, TreeScope::Whole);
    }

    fn metadata(&mut self, path: PathBuf, scope: TreeScope) {
        // The driver's own bookkeeping may be on another filesystem.
        let id = if path.starts_with(DRIVER) { "driver metadata" } else { "store metadata" };
        self.add(DockerUnit::Metadata, id, path, scope);
    }

    fn layer(&mut self, layer: usize, path: PathBuf) {
        if self.is_split && !path.starts_with(DRIVER) {
            return self.metadata(path, TreeScope::Whole);
        }
        let id = self.snapshot.layers[layer].id.clone();
        self.whole(DockerUnit::Layer(layer), &id, path);
    }

    /// Adds a directory without its entries; returns the entries.
    fn directory(&mut self, path: &Path) -> Vec<NamedEntry> {
        self.metadata(path.to_path_buf(), TreeScope::EntryOnly);
        self.entries(path)
    }

    fn entries(&self, path: &Path) -> Vec<NamedEntry> {
        let absolute = if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) };
        let entries = self.snapshot.entries(&absolute).iter();
        entries
            .map(|entry| (entry.name.to_string_lossy().into_owned(), entry.kind, path.join(&entry.name)))
            .collect()
    }

    fn top(&mut self) {
        for (name, kind, path) in self.directory(Path::new("")) {
            let is_of_other_driver = self.snapshot.places.other_drivers.contains(&name);
            match (name.as_str(), kind) {
                (DRIVER, FileKind::Directory) => self.driver(&path),
                (IMAGE, FileKind::Directory) => self.image(&path),
                ("containers", FileKind::Directory) => self.containers(&path),
                ("buildkit", FileKind::Directory) => self.buildkit(&path),
                ("containerd", FileKind::Directory) => self.containerd(&path),
                ("tmp", FileKind::Directory) => {
                    for (name, _, path) in self.directory(&path) {
                        self.whole(DockerUnit::Orphan(DockerOrphan::Temporary), &name, path);
                    }
                }
                ("network" | "swarm" | "runtimes" | "trust" | "engine-id", _) => {
                    self.metadata(path, TreeScope::Whole);
                }
                _ if is_of_other_driver => self.whole(DockerUnit::Unknown, &name, path),
                _ => self.whole(DockerUnit::Other, &name, path),
            }
        }
    }

    /// Returns the kind of a directory that no record names. Records that cannot be read may name it, and a layer may
    /// need it.
    fn unnamed(&self, name: &str) -> DockerUnit {
        if self.snapshot.consistency == Consistency::Damaged || self.snapshot.needed.contains(name) {
            DockerUnit::Unknown
        } else {
            DockerUnit::Orphan(DockerOrphan::Layer)
        }
    }

    fn driver(&mut self, top: &Path) {
        for (name, kind, path) in self.directory(top) {
            match (self.snapshot.by_id.get(&name).copied(), kind) {
                (Some(layer), _) => self.layer(layer, path),
                (None, FileKind::Directory) if name == LINKS => {
                    for (link, _, path) in self.directory(&path) {
                        match self.snapshot.by_link.get(&link).copied() {
                            Some(layer) => self.layer(layer, path),
                            None => self.metadata(path, TreeScope::Whole),
                        }
                    }
                }
                (None, FileKind::Directory) if name != LOST_AND_FOUND => {
                    self.whole(self.unnamed(&name), &name, path);
                }
                _ => self.metadata(path, TreeScope::Whole),
            }
        }
    }

    fn image(&mut self, top: &Path) {
        for (driver, _, path) in self.directory(top) {
            if driver != DRIVER {
                self.whole(DockerUnit::Unknown, &driver, path);
                continue;
            }
            for (name, kind, path) in self.directory(&path) {
                match (name.as_str(), kind) {
                    ("layerdb", FileKind::Directory) => self.layer_records(&path),
                    ("imagedb", FileKind::Directory) => self.image_records(&path),
                    _ => self.metadata(path, TreeScope::Whole),
                }
            }
        }
    }

    fn layer_records(&mut self, top: &Path) {
        for (name, kind, path) in self.directory(top) {
            match (name.as_str(), kind) {
                ("sha256", FileKind::Directory) => {
                    for (chain, _, path) in self.directory(&path) {
                        let layer = self.snapshot.by_chain.get(&chain).map(|id| self.snapshot.by_id[id]);
                        match layer {
                            // The name of a record whose deletion was interrupted ends with `-removing`.
                            _ if chain.contains('-') => {
                                self.whole(DockerUnit::Orphan(DockerOrphan::Removing), &chain, path);
                            }
                            Some(layer) => self.layer(layer, path),
                            None => self.metadata(path, TreeScope::Whole),
                        }
                    }
                }
                ("mounts", FileKind::Directory) => {
                    for (container, _, path) in self.directory(&path) {
                        let mount = self.snapshot.mounts.get(&container);
                        match mount.map(|mount| self.snapshot.by_id[&mount.mount_id]) {
                            Some(layer) => self.layer(layer, path),
                            None => self.metadata(path, TreeScope::Whole),
                        }
                    }
                }
                ("tmp", FileKind::Directory) => {
                    for (name, _, path) in self.directory(&path) {
                        self.whole(DockerUnit::Orphan(DockerOrphan::TemporaryRecord), &name, path);
                    }
                }
                _ => self.metadata(path, TreeScope::Whole),
            }
        }
    }

    fn image_records(&mut self, top: &Path) {
        let images: HashSet<&str> = self.snapshot.images.iter().map(|image| image.id.as_str()).collect();
        for (_, _, path) in self.directory(top) {
            for (_, _, path) in self.directory(&path) {
                // A file in place of the directory of an algorithm has no entries.
                for (id, _, path) in self.directory(&path) {
                    if images.contains(id.as_str()) {
                        self.whole(DockerUnit::Image, &id, path);
                    } else {
                        self.metadata(path, TreeScope::Whole);
                    }
                }
            }
        }
    }

    fn containers(&mut self, top: &Path) {
        let snapshot = self.snapshot;
        let containers: HashSet<&str> = snapshot.own_containers().map(|(id, _)| id.as_str()).collect();
        for (id, kind, path) in self.directory(top) {
            let unit = match kind {
                FileKind::Directory if containers.contains(id.as_str()) => DockerUnit::Container,
                // Docker keeps the layers of this container in containerd.
                FileKind::Directory if snapshot.containers.contains_key(&id) => DockerUnit::Other,
                FileKind::Directory => DockerUnit::Orphan(DockerOrphan::Container),
                _ => DockerUnit::Metadata,
            };
            match unit {
                DockerUnit::Metadata => self.metadata(path, TreeScope::Whole),
                DockerUnit::Other => self.whole(unit, &format!("containers/{id}"), path),
                _ => self.whole(unit, &id, path),
            }
        }
    }

    fn buildkit(&mut self, top: &Path) {
        for (_, kind, path) in self.directory(top) {
            if kind == FileKind::Directory {
                self.whole(DockerUnit::BuildCache, "build cache", path);
            } else {
                self.metadata(path, TreeScope::Whole);
            }
        }
    }

    /// Adds the directory of the containerd that Docker starts. Its root is a store of its own.
    fn containerd(&mut self, top: &Path) {
        let root = self.snapshot.places.containerd();
        for (name, _, path) in self.directory(top) {
            if self.root.join(&path) != root {
                self.metadata(path, TreeScope::Whole);
            } else if !self.snapshot.places.is_containerd_read {
                self.whole(DockerUnit::Other, &format!("containerd/{name}"), path);
            }
        }
    }
}
