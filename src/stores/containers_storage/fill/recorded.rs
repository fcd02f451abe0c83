//! Inconsistent recorded objects: names, data, mounts, containers of engines.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::Filler;
use crate::model::{Consistency, ContainerState, Finding, ImageIx, LeakClass, Owner};
use crate::stores::containers_storage::inspect::engine::Engine;
use crate::stores::containers_storage::inspect::found::{Fault, FaultOf};
use crate::stores::containers_storage::leaks::{self, UseByProcess};
use crate::stores::containers_storage::needs::Need;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::{ImageRecord, is_id};
use crate::stores::leaks::{GRACE, Judgement, age};

impl Filler<'_> {
    /// Everything of this kind. From records that moved or are damaged nothing is concluded.
    pub(super) fn recorded(&mut self) {
        if self.snapshot.consistency != Consistency::Consistent {
            return;
        }
        self.repeated();
        if self.snapshot.inspection.valid {
            self.faults();
            self.engines();
        }
        self.mount_tables();
    }

    fn note(&mut self, judged: Judgement, id: &str, path: &Path, since: Option<Timestamp>) {
        self.writer.leak(judged, id, path, since, Vec::new());
    }

    /// Ids that stand in two records, the plain and the volatile file for example.
    fn repeated(&mut self) {
        let places = &self.snapshot.places;
        for (kind, id) in &self.snapshot.repeated {
            let path = places.records_dir(&places.graphroot, *kind);
            let what = kind.singular();
            let evidence = format!("this {what} is recorded twice; the library uses the first record");
            self.note(Judgement::of(LeakClass::DupRecord, evidence), id, &path, None);
        }
    }

    /// Reports the faults that the inspection found.
    fn faults(&mut self) {
        let snapshot = self.snapshot;
        for Fault { of, path, judged } in &snapshot.inspection.faults {
            let changed = self.changed(path);
            let (id, since) = match *of {
                FaultOf::Layer(at) => {
                    let record = &snapshot.layers[at];
                    (&record.id, changed.or(record.created))
                }
                FaultOf::Image(at) => {
                    let id = &snapshot.images[at].id;
                    // Data that a tag in this store lacks are read from the store that lends the image.
                    if self.additional.iter().any(|store| store.images.contains_key(id)) {
                        continue;
                    }
                    // A missing file changed the directory when it was removed.
                    (id, changed.or_else(|| self.changed(path.parent()?)))
                }
            };
            self.note(judged.clone(), id, path, since);
        }
    }

    /// Containers that their engine does not know, or that no engine minds.
    fn engines(&mut self) {
        let snapshot = self.snapshot;
        if let Engine::Unreadable(why) = &snapshot.inspection.engine {
            let message = format!(
                "podman's database cannot be read: {why}; its containers may use any image in this store"
            );
            self.writer.inventory.findings.push(Finding::new(&*snapshot.places.graphroot, message));
        }
        let all = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
        let first = self.writer.inventory.containers.len() - snapshot.containers.len();
        for (at, record) in snapshot.containers.iter().enumerate() {
            let container = &self.writer.inventory.containers[first + at];
            let owner = container.owner;
            let age = age(record.created, self.writer.present);
            let path = all.join(&record.id);
            let judged = match owner {
                Owner::Buildah => {
                    let layer = record.layer.as_deref().and_then(|id| self.find_layer(id));
                    let mounted =
                        layer.is_some_and(|node| self.writer.is_mounted(&self.writer.inventory[node].path));
                    let presence = || self.presence(&record.id, Some(&path), &[]);
                    let old = age.is_some_and(|age| age >= GRACE);
                    old.then(|| leaks::external_container(&record.id, age, mounted, &presence())).flatten()
                }
                Owner::Podman => match &snapshot.inspection.engine {
                    Engine::Known(known) if !known.containers.contains_key(&record.id) => {
                        leaks::unknown_to_podman(&record.id, age)
                    }
                    _ => None,
                },
                _ => None,
            };
            if let Some(judged) = judged {
                self.note(judged, &record.id, &path, record.created);
            }
        }
    }

    /// What the library believes to be mounted, and what is.
    fn mount_tables(&mut self) {
        let Some(mounted) = self.mounted.take() else { return };
        let places = &self.snapshot.places;
        let by_layer = self.mounts_by_layer();
        let recorded: HashSet<&str> = mounted.iter().map(|one| one.layer.as_str()).collect();
        // In another mount namespace another store may lie at the same path, as in a container that runs podman.
        let is_leaked = |id: &str| {
            let is_ours = self.snapshot.layer_at(OsStr::new(id)).is_some();
            is_ours && !recorded.contains(id) && !self.may_be_mounted_for_a_container(id)
        };
        let mut leaked: Vec<_> = by_layer.iter().filter(|(id, _)| is_leaked(id)).collect();
        leaked.sort_unstable();
        for (id, path) in leaked {
            let evidence = "mounted, but listed in no mountpoints.json: unmount it before deleting the \
                            layer";
            self.note(Judgement::of(LeakClass::LeakedMount, evidence), id, path, None);
        }
        let volumes: Vec<_> = recorded.iter().filter(|id| by_layer.contains_key(**id)).copied().collect();
        self.unused_volumes(&volumes, &by_layer);
        for entry in &mounted {
            let is_merged = entry.path.file_name() == Some(OsStr::new("merged"));
            // Another graphroot may have the same runroot.
            let ours = self.snapshot.layer_at(OsStr::new(&entry.layer)).is_some()
                || places.areas().any(|area| entry.path.starts_with(area));
            if !is_merged || !ours || entry.is_mounted || by_layer.contains_key(&entry.layer) {
                continue;
            }
            let evidence = match self.presence("", None, &[]) {
                UseByProcess::Unknown(why) => {
                    format!("counted as mounted, but no visible mount is there: {why}")
                }
                _ => "counted as mounted, but mounted in no mount namespace: the library refuses to delete the layer \
                      until the engine, or the node, is restarted"
                    .to_owned(),
            };
            let judged = Judgement::of(LeakClass::Inconsistent, evidence);
            self.note(judged, &entry.layer, &entry.file, self.changed(&entry.file));
        }
    }

    /// The first mount point of each layer that something is mounted on or below.
    fn mounts_by_layer(&self) -> HashMap<String, PathBuf> {
        let places = &self.snapshot.places;
        let mut by_layer: HashMap<String, PathBuf> = HashMap::new();
        // The library mounts layers of an imagestore below the runroot.
        for root in places.areas().chain(&places.runroots) {
            let driver = places.layer_directories(root);
            for mount in self.writer.mounts {
                let first = mount.strip_prefix(&driver).ok().and_then(|below| below.components().next());
                let id = first.and_then(|part| part.as_os_str().to_str()).filter(|id| is_id(id));
                if let Some(id) = id {
                    by_layer.entry(id.to_owned()).or_insert_with(|| mount.clone());
                }
            }
        }
        by_layer
    }

    /// Mounts of images: `podman image mount` is in no other record. On a node of CRI-O they are volumes, or what CRI-O
    /// leaves of them until it removes the image ([`Self::unused_volumes`]).
    pub(super) fn mounted_images(&self) -> Vec<Need> {
        let store = self.writer.store;
        let mut containers = self.writer.inventory.containers.iter();
        if containers.any(|one| one.store == store && one.owner == Owner::CriO) {
            return Vec::new();
        }
        let by_layer = self.mounts_by_layer();
        let mut mounted: Vec<_> = self
            .snapshot
            .images
            .iter()
            .flat_map(ImageRecord::tops)
            .filter(|top| by_layer.contains_key(*top))
            .collect();
        mounted.sort_unstable();
        mounted.dedup();
        mounted.into_iter().map(|top| Need::of_mount(top)).collect()
    }

    /// Whether a container may be using this layer, as its root filesystem or as a volume. `mountpoints.json` does not
    /// tell: a library that does not know a record (before 1.45 the volatile ones, which are CRI-O's) drops its entry.
    fn may_be_mounted_for_a_container(&self, layer: &str) -> bool {
        let path = || self.find_layer(layer).map(|node| self.writer.inventory[node].path.as_path());
        let records = self.snapshot.containers.iter();
        let first = self.writer.inventory.containers.len() - records.len();
        let own = &self.writer.inventory.containers[first..];
        let is_alive = records.zip(&self.recorded_states).zip(own).any(|((record, state), container)| {
            let is_it = record.layer.as_deref() == Some(layer);
            is_it
                && match state {
                    ContainerState::Created | ContainerState::Running => true,
                    // Without an infra container it has no process.
                    ContainerState::Unknown if container.sandbox => true,
                    ContainerState::Exited | ContainerState::Unknown => {
                        !matches!(self.presence(&record.id, path(), &[]), UseByProcess::Unused { .. })
                    }
                }
        });
        let mut images = self.snapshot.images.iter().filter(|image| image.layer.as_deref() == Some(layer));
        is_alive || images.any(|image| self.is_volume(&image.id))
    }

    /// Whether a container of this store has the image mounted as a volume.
    fn is_volume(&self, id: &str) -> bool {
        let named = |image: &ImageIx| self.writer.inventory[*image].id == id;
        let store = self.writer.store;
        let mut containers = self.writer.inventory.containers.iter().filter(|one| one.store == store);
        containers.any(|container| container.volumes.iter().any(named))
    }

    /// Mounted layers that are an image's, on a node of CRI-O, none of whose containers has that image as
    /// a volume. CRI-O unmounts an image neither when its container ends nor when that is removed, but when the image is.
    fn unused_volumes(&mut self, mounted: &[&str], paths: &HashMap<String, PathBuf>) {
        let store = self.writer.store;
        let containers = &self.writer.inventory.containers;
        if !containers.iter().any(|one| one.store == store && one.owner == Owner::CriO) {
            return;
        }
        let images = &self.snapshot.images;
        let unused = images.iter().filter_map(|image| {
            let layer = image.layer.as_deref().filter(|layer| mounted.contains(layer))?;
            let is_used = images.iter().any(|other| other.layer == image.layer && self.is_volume(&other.id));
            (!is_used).then_some((&image.id, paths.get(layer)?))
        });
        for (id, path) in unused.collect::<Vec<_>>() {
            let evidence = format!(
                "the image is mounted, but no CRI-O container has it as a volume: CRI-O unmounts it when it removes the \
                 image (`crictl rmi {id}`, if nothing needs it); without CRI-O it has to be unmounted first"
            );
            self.note(Judgement::of(LeakClass::OrphanImageVolume, evidence), id, path, None);
        }
    }
}
