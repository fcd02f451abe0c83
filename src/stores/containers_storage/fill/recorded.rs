//! Reports recorded objects that are inconsistent: repeated records, missing data, mounts, containers that their engine
//! lacks.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::GraphrootFiller;
use crate::model::{Consistency, ContainerState, Finding, LeakClass, Owner};
use crate::stores::containers_storage::engine::Engine;
use crate::stores::containers_storage::inspection::{FaultOf, Inconsistency};
use crate::stores::containers_storage::leaks::{self, UseByProcess};
use crate::stores::containers_storage::needs;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::{ImageRecord, is_id};
use crate::stores::leaks::{GRACE, Judgement, age};
use crate::stores::lending::Need;

impl GraphrootFiller<'_> {
    /// Reports all of these, but only if the records are consistent.
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

    /// Reports ids with two records, for example in the permanent and in the volatile file.
    fn repeated(&mut self) {
        let places = &self.snapshot.places;
        for (kind, id) in self.snapshot.repeated.objects() {
            let path = places.records_dir(&places.graphroot, kind);
            let object = kind.singular();
            let evidence =
                format!("this {object} is recorded twice; which record a tool uses depends on its version");
            self.note(Judgement::of(LeakClass::DupRecord, evidence), id, &path, None);
        }
    }

    fn faults(&mut self) {
        let snapshot = self.snapshot;
        for Inconsistency { of, path, judged } in &snapshot.inspection.faults {
            let changed = self.changed(path);
            let (id, since) = match *of {
                FaultOf::Layer(position) => {
                    let record = &snapshot.layers[position];
                    (&record.id, changed.or(record.created))
                }
                FaultOf::Image(position) => {
                    let id = &snapshot.images[position].id;
                    // Podman reads the missing data of a tag from the additional store that has the image.
                    if self.additional.iter().any(|store| store.images().contains_key(id)) {
                        continue;
                    }
                    // If the file is missing, its deletion changed the directory.
                    (id, changed.or_else(|| self.changed(path.parent()?)))
                }
            };
            self.note(judged.clone(), id, path, since);
        }
    }

    /// Reports containers that podman's database lacks, and forgotten working containers of buildah.
    fn engines(&mut self) {
        let snapshot = self.snapshot;
        if let Engine::Unreadable(why) = &snapshot.inspection.engine {
            let message = format!(
                "podman's database cannot be read: {why}; its containers may use any image in this store"
            );
            self.writer.inventory.findings.push(Finding::new(&*snapshot.places.graphroot, message));
        }
        let directory = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
        for (position, record) in snapshot.containers.iter().enumerate() {
            let container = &self.writer.inventory.containers[self.first_container + position];
            let owner = container.owner;
            let age = age(record.created, self.writer.present);
            let path = directory.join(&record.id);
            let judged = match owner {
                Owner::Buildah if age.is_some_and(|age| age >= GRACE) => {
                    let layer = record.layer.as_deref().and_then(|id| self.find_layer(id));
                    let mounted =
                        layer.is_some_and(|node| self.writer.is_mounted(&self.writer.inventory[node].path));
                    let presence = self.presence(&record.id, Some(&path), &[]);
                    leaks::external_container(age, mounted, &presence)
                }
                Owner::Podman => match &snapshot.inspection.engine {
                    Engine::Known(known) if !known.containers.contains_key(&record.id) => {
                        leaks::unknown_to_podman(age)
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

    /// Reports the differences between the mounts that the library has recorded and the actual mounts.
    fn mount_tables(&mut self) {
        let Some(mounted) = self.mounted.take() else { return };
        let places = &self.snapshot.places;
        let by_layer = self.mounts_by_layer();
        let recorded: HashSet<&str> = mounted.iter().map(|mounted| mounted.layer.as_str()).collect();
        let mut leaked: Vec<_> = by_layer
            .iter()
            .filter(|(id, _)| {
                // Another mount namespace can have another store at the same path, for example in a container that runs
                // podman. The layers of that store are not recorded here.
                self.snapshot.layer_at(OsStr::new(id)).is_some()
                    && !recorded.contains(id.as_str())
                    && !self.may_be_mounted_for_container(id)
            })
            .collect();
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
            // Another graphroot can have the same runroot.
            let is_of_this_store = self.snapshot.layer_at(OsStr::new(&entry.layer)).is_some()
                || places.areas().any(|area| entry.path.starts_with(area));
            if !is_merged || !is_of_this_store || entry.is_mounted || by_layer.contains_key(&entry.layer) {
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

    /// Returns the first mount point of each layer with a mount at or below its directory.
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

    /// Returns the needs of mounted images. A mount by `podman image mount` is in no other record.
    ///
    /// On a node with CRI-O the result is empty. There, mounted images are volumes, or were volumes and stay mounted until
    /// CRI-O removes the image ([`Self::unused_volumes`]).
    pub(super) fn mounted_images(&self) -> Vec<Need> {
        if self.has_crio_containers() {
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
        mounted.into_iter().map(|top| needs::of_mount(top)).collect()
    }

    /// Returns true if a container may be using this layer, as its root filesystem or as a volume.
    ///
    /// `mountpoints.json` does not prove the opposite. A library that does not know a record drops its entry, for example
    /// versions before 1.45 for volatile records, which are all of CRI-O's.
    fn may_be_mounted_for_container(&self, layer: &str) -> bool {
        let records = self.snapshot.containers.iter();
        let containers = &self.writer.inventory.containers[self.first_container..];
        for ((record, state), container) in records.zip(&self.recorded_states).zip(containers) {
            if record.layer.as_deref() != Some(layer) {
                continue;
            }
            let may_be_used = match state {
                ContainerState::Created | ContainerState::Running => true,
                // A sandbox without an infra container has no process.
                ContainerState::Unknown if container.sandbox => true,
                ContainerState::Exited | ContainerState::Unknown => {
                    let node = self.find_layer(layer);
                    let path = node.map(|node| self.writer.inventory[node].path.as_path());
                    !matches!(self.presence(&record.id, path, &[]), UseByProcess::Unused { .. })
                }
            };
            if may_be_used {
                return true;
            }
        }
        let mut images = self.snapshot.images.iter().filter(|image| image.layer.as_deref() == Some(layer));
        images.any(|image| self.is_volume(&image.id))
    }

    /// Returns true if a container of this store uses the image as a volume.
    fn is_volume(&self, id: &str) -> bool {
        let inventory = &self.writer.inventory;
        let mut containers =
            inventory.containers.iter().filter(|container| container.store == self.writer.store);
        containers.any(|container| container.volumes.iter().any(|image| inventory[*image].id == id))
    }

    fn has_crio_containers(&self) -> bool {
        let mut containers = self.writer.inventory.containers.iter();
        containers.any(|container| container.store == self.writer.store && container.owner == Owner::CriO)
    }

    /// Reports mounted images that no container of CRI-O uses as a volume, on a node with CRI-O.
    ///
    /// CRI-O unmounts an image volume only when it removes the image, not when the container exits or is removed.
    fn unused_volumes(&mut self, mounted: &[&str], paths: &HashMap<String, PathBuf>) {
        if !self.has_crio_containers() {
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
                 image (`crictl inspecti {id}` shows it); without CRI-O it has to be unmounted first"
            );
            self.note(Judgement::of(LeakClass::OrphanImageVolume, evidence), id, path, None);
        }
    }
}
