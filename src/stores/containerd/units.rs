//! Assigns every entry of a root's directories to a unit. Pure.
//!
//! Each entry belongs to exactly one unit, so that the bytes of all units add up to the result of `du` for the root.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::places::{CONTENT, CRI, OF_SNAPSHOTS, SNAPSHOTTER, TASKS, TMP_MOUNTS, digest_of_cached};
use super::snapshot::{Backend, CONTENT_AREA, FIRST_BACKEND_AREA, ROOT_AREA, Snapshot};
use crate::disk::TreeScope;
use crate::stores::unit::{self, UnitKind};
use crate::sys::quiet::FileKind;

/// Kind of a unit. Numbers are positions in the snapshot's tables; the id of the unit identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerdUnit {
    /// A blob with a record in some namespace, by its digest.
    Blob,
    /// A snapshot's directory: position of the snapshotter, and of the snapshot in it.
    Snapshot(usize, usize),
    /// A layer in a cache of the erofs snapshotter, by its diffID.
    CachedLayer,
    /// A download with a record in some namespace.
    Ingest(usize),
    Container,
    Orphan(ContainerdOrphan),
    /// The directory of a snapshotter whose snapshots cannot be measured.
    Unmeasured,
    Metadata,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerdOrphan {
    Blob,
    /// A name in the blobs' directory that is not a digest.
    BlobName,
    Ingest,
    /// A download without its file `ref`.
    IngestWithoutRef,
    SnapshotDirectory,
    SnapshotterDirectory,
    TmpMount,
    /// A directory of CRI or of a task for a container.
    Container,
}

/// A unit of a containerd root. Its parts are below [`Snapshot::areas`].
pub type RootUnit = unit::Unit<ContainerdUnit>;

impl ContainerdUnit {
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_))
    }
}

impl UnitKind for ContainerdUnit {
    fn tag(&self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Snapshot(..) => "snapshot",
            Self::CachedLayer => "cached-layer",
            Self::Ingest(_) => "ingest",
            Self::Container => "container",
            Self::Orphan(_) => "orphan",
            Self::Unmeasured => "unmeasured",
            Self::Metadata => "metadata",
            Self::Other => "other",
        }
    }
}

#[must_use]
pub fn sort(snapshot: &Snapshot) -> Vec<RootUnit> {
    let namespaces = &snapshot.metadata.namespaces;
    let mut sorter = RootSorter {
        snapshot,
        areas: snapshot.areas(),
        blobs: namespaces
            .iter()
            .flat_map(|namespace| &namespace.blobs)
            .map(|blob| blob.digest.as_str())
            .collect(),
        ingests: namespaces
            .iter()
            .flat_map(|namespace| &namespace.ingests)
            .filter_map(|ingest| ingest.backend_ref.as_deref())
            .collect(),
        containers: namespaces
            .iter()
            .flat_map(|namespace| {
                let containers = namespace.containers.iter().map(|record| record.id.as_str());
                containers.chain(namespace.sandboxes.iter().map(|record| record.id.as_str()))
            })
            .collect(),
        units: Vec::new(),
        metadata: None,
    };
    sorter.root();
    sorter.content();
    for (position, backend) in snapshot.backends.iter().enumerate() {
        sorter.backend(position, backend);
    }
    for position in 0..snapshot.places.layer_caches.len() {
        sorter.layer_cache(FIRST_BACKEND_AREA + snapshot.backends.len() + position);
    }
    sorter.units
}

struct RootSorter<'a> {
    snapshot: &'a Snapshot,
    areas: Vec<PathBuf>,
    blobs: HashSet<&'a str>,
    ingests: HashSet<&'a str>,
    containers: HashSet<&'a str>,
    units: Vec<RootUnit>,
    /// Position of the unit for all bookkeeping.
    metadata: Option<usize>,
}

impl<'a> RootSorter<'a> {
    fn add(&mut self, kind: ContainerdUnit, id: &str, area: usize, path: PathBuf) {
        let absolute = self.areas[area].join(&path);
        let parts = vec![(area, path, TreeScope::Whole)];
        self.units.push(RootUnit { kind, id: id.to_owned(), path: absolute, parts });
    }

    fn bookkeeping(&mut self, area: usize, path: PathBuf, scope: TreeScope) {
        let part = (area, path, scope);
        match self.metadata {
            Some(metadata) => self.units[metadata].parts.push(part),
            None => {
                self.metadata = Some(self.units.len());
                let (kind, id) = (ContainerdUnit::Metadata, "store metadata".to_owned());
                self.units.push(RootUnit {
                    kind,
                    id,
                    path: self.areas[area].join(&part.1),
                    parts: vec![part],
                });
            }
        }
    }

    /// Adds a directory without its entries; returns name, kind and path of each entry.
    fn directory(&mut self, area: usize, path: &Path) -> Vec<(String, FileKind, PathBuf)> {
        self.bookkeeping(area, path.to_path_buf(), TreeScope::EntryOnly);
        let absolute =
            if path.as_os_str().is_empty() { self.areas[area].clone() } else { self.areas[area].join(path) };
        let entries = self.snapshot.entries(&absolute);
        let named = entries
            .iter()
            .map(|entry| (entry.name.to_string_lossy().into_owned(), entry.kind, path.join(&entry.name)));
        named.collect()
    }

    fn root(&mut self) {
        for (name, kind, path) in self.directory(ROOT_AREA, Path::new("")) {
            match name.as_str() {
                _ if kind != FileKind::Directory => self.add(ContainerdUnit::Other, &name, ROOT_AREA, path),
                CONTENT => {}
                // A snapshotter that is configured to be here.
                _ if self.areas.contains(&self.areas[ROOT_AREA].join(&path)) => {}
                CRI => self.cri(&path),
                TASKS => self.tasks(&path),
                TMP_MOUNTS => {
                    for (name, _, path) in self.directory(ROOT_AREA, &path) {
                        self.add(ContainerdUnit::Orphan(ContainerdOrphan::TmpMount), &name, ROOT_AREA, path);
                    }
                }
                _ if name.starts_with(SNAPSHOTTER) => {}
                _ if name.starts_with("io.containerd.") => {
                    self.bookkeeping(ROOT_AREA, path, TreeScope::Whole)
                }
                _ => self.add(ContainerdUnit::Other, &name, ROOT_AREA, path),
            }
        }
    }

    fn cri(&mut self, path: &Path) {
        for (name, _, path) in self.directory(ROOT_AREA, path) {
            if !["containers", "sandboxes"].contains(&name.as_str()) {
                self.bookkeeping(ROOT_AREA, path, TreeScope::Whole);
                continue;
            }
            for (id, _, path) in self.directory(ROOT_AREA, &path) {
                let kind = self.container(&id);
                self.add(kind, &id, ROOT_AREA, path);
            }
        }
    }

    fn tasks(&mut self, path: &Path) {
        for (namespace, _, path) in self.directory(ROOT_AREA, path) {
            for (id, _, path) in self.directory(ROOT_AREA, &path) {
                let kind = self.container(&id);
                let id = if kind.is_orphan() { format!("{namespace}/{id}") } else { id };
                self.add(kind, &id, ROOT_AREA, path);
            }
        }
    }

    /// Returns the kind of a directory of this container.
    fn container(&self, id: &str) -> ContainerdUnit {
        if self.containers.contains(id) {
            ContainerdUnit::Container
        } else {
            ContainerdUnit::Orphan(ContainerdOrphan::Container)
        }
    }

    fn content(&mut self) {
        if !self.snapshot.listing.contains_key(&self.areas[CONTENT_AREA]) {
            return;
        }
        for (name, kind, path) in self.directory(CONTENT_AREA, Path::new("")) {
            match name.as_str() {
                "blobs" if kind == FileKind::Directory => {
                    for (name, kind, path) in self.directory(CONTENT_AREA, &path) {
                        if kind == FileKind::Directory {
                            self.blobs(&name, &path);
                        } else {
                            self.add(ContainerdUnit::Other, &name, CONTENT_AREA, path);
                        }
                    }
                }
                "ingest" if kind == FileKind::Directory => self.ingests(&path),
                _ => self.add(ContainerdUnit::Other, &name, CONTENT_AREA, path),
            }
        }
    }

    fn blobs(&mut self, algorithm: &str, path: &Path) {
        for (name, _, path) in self.directory(CONTENT_AREA, path) {
            let digest = format!("{algorithm}:{name}");
            if self.blobs.contains(digest.as_str()) {
                self.add(ContainerdUnit::Blob, &digest, CONTENT_AREA, path);
            } else if self.snapshot.blobs.contains_key(&digest) {
                self.add(ContainerdUnit::Orphan(ContainerdOrphan::Blob), &digest, CONTENT_AREA, path);
            } else {
                self.add(ContainerdUnit::Orphan(ContainerdOrphan::BlobName), &name, CONTENT_AREA, path);
            }
        }
    }

    fn ingests(&mut self, path: &Path) {
        let snapshot = self.snapshot;
        let ingests = snapshot.ingests.iter().enumerate();
        let by_name: HashMap<_, _> =
            ingests.map(|(position, ingest)| (ingest.name.as_str(), position)).collect();
        for (name, _, path) in self.directory(CONTENT_AREA, path) {
            let position = by_name.get(name.as_str()).copied();
            let backend_ref = position.and_then(|position| snapshot.ingests[position].backend_ref.as_deref());
            match (position, backend_ref) {
                (Some(position), Some(backend_ref)) if self.ingests.contains(backend_ref) => {
                    self.add(ContainerdUnit::Ingest(position), backend_ref, CONTENT_AREA, path);
                }
                (Some(_), Some(backend_ref)) => self.add(
                    ContainerdUnit::Orphan(ContainerdOrphan::Ingest),
                    backend_ref,
                    CONTENT_AREA,
                    path,
                ),
                _ => self.add(
                    ContainerdUnit::Orphan(ContainerdOrphan::IngestWithoutRef),
                    &name,
                    CONTENT_AREA,
                    path,
                ),
            }
        }
    }

    fn backend(&mut self, backend_ix: usize, backend: &Backend) {
        let area = FIRST_BACKEND_AREA + backend_ix;
        let used = self.snapshot.has_records_of(&backend.name);
        if backend.is_measured() && (backend.is_proxy || backend.known || used) {
            return self.plain_backend(backend_ix, backend);
        }
        // The layout is unknown, so its bytes are counted but belong to no snapshot. containerd creates a directory
        // for every snapshotter that it loads.
        let entries = self.snapshot.entries(&backend.directory);
        let empty = entries.iter().all(|entry| {
            let path = backend.directory.join(&entry.name);
            self.snapshot.listing.get(&path).is_some_and(Vec::is_empty)
        });
        if empty || (backend.known && backend.snapshots.is_empty() && !used) {
            self.bookkeeping(area, PathBuf::new(), TreeScope::Whole);
        } else if used || backend.known {
            let name = format!("snapshotter {}", backend.name);
            self.add(ContainerdUnit::Unmeasured, &name, area, PathBuf::new());
        } else {
            self.add(
                ContainerdUnit::Orphan(ContainerdOrphan::SnapshotterDirectory),
                &backend.name,
                area,
                PathBuf::new(),
            );
        }
    }

    /// Adds an entry beside a snapshotter's snapshots: its database, or files that a snapshotter beside containerd
    /// has loaded (`content`, `cache`, …) and that have no record in containerd.
    fn beside_snapshots(&mut self, backend: &Backend, name: &str, area: usize, path: PathBuf) {
        if !backend.is_proxy || name.starts_with("metadata.db") {
            return self.bookkeeping(area, path, TreeScope::Whole);
        }
        let name = format!("snapshotter {}: {name}", backend.name);
        self.add(ContainerdUnit::Other, &name, area, path);
    }

    fn layer_cache(&mut self, area: usize) {
        let mut found = Vec::new();
        for (algorithm, kind, path) in self.directory(area, Path::new("")) {
            if kind != FileKind::Directory {
                self.add(ContainerdUnit::Other, &algorithm, area, path);
                continue;
            }
            for (prefix, kind, path) in self.directory(area, &path) {
                match kind {
                    FileKind::Directory => found.extend(self.directory(area, &path)),
                    _ => self.add(ContainerdUnit::Other, &prefix, area, path),
                }
            }
        }
        let (layers, others): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|(_, kind, path)| *kind == FileKind::File && digest_of_cached(path).is_some());
        let mut by_path = HashMap::new();
        for (_, _, path) in layers {
            let Some(diff_id) = digest_of_cached(&path) else { continue };
            by_path.insert(path.clone(), self.units.len());
            self.add(ContainerdUnit::CachedLayer, &diff_id, area, path);
        }
        for (name, kind, path) in others {
            // `<hex>.erofs.dmverity` is deleted with its layer.
            let layer = by_path.get(&path.with_extension("")).filter(|_| kind == FileKind::File);
            match layer.copied() {
                Some(layer) => self.units[layer].parts.push((area, path, TreeScope::Whole)),
                None => self.add(ContainerdUnit::Other, &name, area, path),
            }
        }
    }

    /// Adds a snapshotter that stores each snapshot in [`Backend::place`].
    fn plain_backend(&mut self, backend_ix: usize, backend: &Backend) {
        let area = FIRST_BACKEND_AREA + backend_ix;
        let by_place: HashMap<PathBuf, usize> = backend
            .snapshots
            .iter()
            .enumerate()
            .map(|(entry, snapshot)| (backend.place(snapshot), entry))
            .collect();
        let of_snapshots = if backend.name == "btrfs" { &OF_SNAPSHOTS[..] } else { &OF_SNAPSHOTS[..1] };
        let data = backend.data.strip_prefix(&backend.directory).unwrap_or(Path::new("")).to_path_buf();
        if !data.as_os_str().is_empty() {
            for (name, _, path) in self.directory(area, Path::new("")) {
                if path != data {
                    self.beside_snapshots(backend, &name, area, path);
                }
            }
        }
        for (name, kind, path) in self.directory(area, &data) {
            if !of_snapshots.contains(&name.as_str()) || kind != FileKind::Directory {
                self.beside_snapshots(backend, &name, area, path);
                continue;
            }
            for (name, kind, path) in self.directory(area, &path) {
                let id = format!("{}/{name}", backend.name);
                let what = match by_place.get(&backend.directory.join(&path)) {
                    Some(entry) => ContainerdUnit::Snapshot(backend_ix, *entry),
                    None if kind != FileKind::Directory => ContainerdUnit::Other,
                    None => ContainerdUnit::Orphan(ContainerdOrphan::SnapshotDirectory),
                };
                self.add(what, &id, area, path);
            }
        }
    }
}
