//! Inconsistent recorded objects: names, data, mounts, containers of engines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::Filler;
use crate::model::{Consistency, ContainerState, Finding, ImageIx, LeakClass, NodeIx, Owner, Verdict};
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
        // Of other drivers it is not known where they keep which layer.
        if self.is_measured() {
            self.missing_tar_splits();
        }
        self.repeated();
        self.shared_names();
        if self.snapshot.inspection.valid {
            self.faults();
            self.engines();
        }
        self.mount_tables();
    }

    fn note(&mut self, judged: Judgement, id: &str, path: &Path, since: Option<Timestamp>) {
        self.writer.leak(judged, id, path, since, Vec::new());
    }

    /// A layer that came as a tar has the file that the tar can be made from again, or it
    /// can be neither pushed nor checked.
    fn missing_tar_splits(&mut self) {
        let snapshot = self.snapshot;
        let directory =
            snapshot.places.areas().next().map(|area| snapshot.places.records_dir(area, RecordKind::Layers));
        let mut seen = vec![false; self.writer.inventory.nodes.len()];
        let mut position = vec![None; seen.len()];
        for (at, node) in self.layers.iter().enumerate() {
            node.iter().for_each(|node| position[node.get()] = Some(at));
        }
        for image in &snapshot.images {
            let mut next = image.layer.as_deref().and_then(|id| self.find_layer(id));
            while let Some(node) = next.filter(|node| !std::mem::replace(&mut seen[node.get()], true)) {
                next = self.writer.inventory[node].needs.first().copied();
                let Some(at) = position[node.get()] else { continue };
                let record = &snapshot.layers[at];
                let id = &record.id;
                let by_tar = record.diff_id.is_some() && !record.by_toc && !record.incomplete;
                if !by_tar || self.files[at].tar_split {
                    continue;
                }
                // A layer that another program serves (stargz) never came as a tar.
                let node = self.layers[at].map(|node| &self.writer.inventory[node].path);
                if node.is_some_and(|path| self.within.facts(&path.join("additionallayer")).is_ok()) {
                    continue;
                }
                let evidence = "containers still run on the image, but this layer can be neither pushed nor \
                                verified: pull the image again";
                let judged = Judgement::of(LeakClass::TarSplitMissing, evidence);
                let name = format!("{id}.tar-split.gz");
                let path = directory.as_ref().map(|directory| directory.join(name)).unwrap_or_default();
                self.note(judged, id, &path, record.created);
            }
        }
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

    /// Names that two images have. Of images in different places each may have it.
    fn shared_names(&mut self) {
        let snapshot = self.snapshot;
        if !snapshot.places.imagestores.is_empty() {
            return;
        }
        let path = snapshot.places.record_file(RecordKind::Images);
        let mut owners: HashMap<&str, usize> = HashMap::new();
        // By the image that loses names: the first of them, the image that gets it, and the number of all.
        let mut lost: BTreeMap<usize, (&str, usize, usize)> = BTreeMap::new();
        for (ix, image) in snapshot.images.iter().enumerate() {
            for name in &image.names {
                // The library, reading the file, takes the name from whoever had it before.
                if let Some(before) = owners.insert(name, ix).filter(|before| *before != ix) {
                    lost.entry(before).or_insert((name, ix, 0)).2 += 1;
                }
            }
        }
        let since = if lost.is_empty() { None } else { self.changed(&path) };
        for (before, (name, ix, count)) in lost {
            let more = match count - 1 {
                0 => String::new(),
                more => format!("; so do images with {more} more of its names"),
            };
            let evidence = format!(
                "image {} also has the name {name:?}: the library will take the name from this one{more}",
                snapshot.images[ix].id
            );
            self.note(Judgement::of(LeakClass::DupName, evidence), &snapshot.images[before].id, &path, since);
        }
    }

    /// What the inspection found. A file of its own is taken out of what it was measured with.
    fn faults(&mut self) {
        let snapshot = self.snapshot;
        for Fault { of, path, judged } in &snapshot.inspection.faults {
            // Data that a tag in this store lacks are read from the store that lends the image.
            let is_lent = |at: usize| {
                let id = &snapshot.images[at].id;
                self.additional.iter().any(|store| store.images.contains_key(id))
            };
            if matches!(*of, FaultOf::Image(at) if judged.class == LeakClass::ImageDataMissing && is_lent(at))
            {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let changed = self.changed(path);
            // What is missing was taken out of the directory.
            let in_directory = || changed.or_else(|| self.changed(path.parent()?));
            let (id, since, host) = match *of {
                FaultOf::StrayName => {
                    let is_host = |node: &&NodeIx| path.starts_with(&self.writer.inventory[**node].path);
                    (&*name, changed, self.short_names.iter().find(is_host).copied())
                }
                FaultOf::Layer(at) => {
                    let record = &snapshot.layers[at];
                    (record.id.as_str(), changed.or(record.created), None)
                }
                FaultOf::Image(at) => (snapshot.images[at].id.as_str(), in_directory(), None),
                FaultOf::ImageFile(at) => (&*name, in_directory(), self.images[at]),
            };
            let node = host.and_then(|host| self.carve(host, &name, path));
            self.writer.leak(judged.clone(), id, path, since, node.into_iter().collect());
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
        let without_config: HashSet<usize> = snapshot.inspection.without_config.iter().copied().collect();
        let first = self.writer.inventory.containers.len() - snapshot.containers.len();
        for (at, record) in snapshot.containers.iter().enumerate() {
            let container = &self.writer.inventory.containers[first + at];
            let (owner, sandbox) = (container.owner, container.sandbox);
            let age = age(record.created, self.writer.present);
            let path = all.join(&record.id);
            let judged = match owner {
                Owner::Buildah => {
                    let layer = record.layer.as_deref().and_then(|id| self.find_layer(id));
                    let mounted =
                        layer.is_some_and(|node| self.writer.is_mounted(&self.writer.inventory[node].path));
                    let presence = || self.presence(&record.id, Some(&path), &[]);
                    let old = age.is_some_and(|age| age >= GRACE);
                    old.then(|| leaks::external_container(age, mounted, &presence())).flatten()
                }
                Owner::Podman => match &snapshot.inspection.engine {
                    Engine::Known(known) if !known.containers.contains_key(&record.id) => {
                        leaks::unknown_to_podman(age)
                    }
                    _ => None,
                },
                Owner::CriO if without_config.contains(&at) => {
                    leaks::without_config(sandbox, age, &self.presence(&record.id, None, &["crio"]))
                }
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
            let of = |evidence: String| Judgement::of(LeakClass::StaleMountpoints, evidence);
            let judged = match self.presence("", None, &[]) {
                UseByProcess::Unknown(why) => {
                    of(format!("counted as mounted, but no visible mount is there: {why}"))
                        .with(Verdict::Report)
                }
                _ => of(
                    "counted as mounted, but mounted in no mount namespace: the library refuses to delete \
                         the layer"
                        .into(),
                ),
            };
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
                        !matches!(self.presence(&record.id, path(), &[]), UseByProcess::Nobody { .. })
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
            let evidence = "the image is mounted, but no CRI-O container has it as a volume: CRI-O unmounts it when it \
                            removes the image; without CRI-O it has to be unmounted first";
            self.note(Judgement::of(LeakClass::CrioImageVolume, evidence), id, path, None);
        }
    }
}
