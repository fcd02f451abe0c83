//! Adds containers to the inventory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;

use super::GraphrootFiller;
use crate::model::{
    Consistency, Container, ContainerLog, ContainerState, Finding, ImageIx, LeakClass, LostContainer,
    NodeKind, Owner, Size,
};
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::{cri_o, needs, owner};
use crate::stores::leaks::Judgement;
use crate::stores::lending::images_of;
use crate::sys::quiet::FileKind;

impl GraphrootFiller<'_> {
    pub(super) fn containers(&mut self, images: &HashMap<String, ImageIx>) {
        let snapshot = self.snapshot;
        if let Some(volumes) = snapshot.inspection.engine.volumes().filter(|_| snapshot.inspection.valid) {
            self.writer.inventory.volumes.insert(self.writer.store, volumes);
        }
        let volumes_by_container = snapshot.inspection.engine.volumes_by_container();
        for (position, record) in snapshot.containers.iter().enumerate() {
            let records = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
            let directory = records.join(&record.id);
            let metadata = match self.containers[position] {
                Some(node) => node,
                None => {
                    self.writer.add(NodeKind::ContainerMetadata, &record.id, 0, &directory, Size::default())
                }
            };
            let mut holds = vec![metadata];
            let mut listed_bytes = None;
            let mut mounted = false;
            if let Some(id) = &record.layer {
                if let Some(node) = self.find_layer(id) {
                    holds.push(node);
                    if let Some(facts) = &mut self.writer.inventory[node].layer {
                        facts.read_write = true;
                    }
                    let layer = self.snapshot.layer_at(OsStr::new(id));
                    listed_bytes = layer.and_then(|position| self.contents.get(&position)).copied();
                    mounted = self.writer.is_mounted(&self.writer.inventory[node].path);
                } else if self.is_sound() {
                    let evidence = format!(
                        "its layer {id} is neither in this store nor in one that it is configured to use: remove the \
                         container"
                    );
                    let judged = Judgement::of(LeakClass::Inconsistent, evidence);
                    self.broken(judged, &record.id, metadata, record.created);
                }
            }
            let known = snapshot.inspection.engine.container(&record.id);
            let image = record.image.as_deref().and_then(|id| self.find_image(images, id));
            if let (Some(id), None, true) = (&record.image, image, self.is_sound()) {
                let evidence = format!(
                    "its image {id} is neither in this store nor in one that it is configured to use: save the \
                     container's data if needed, then remove it"
                );
                let judged = Judgement::of(LeakClass::Inconsistent, evidence);
                self.broken(judged, &record.id, metadata, record.created);
            }
            let mut origin = owner::origin(&self.within, record, &directory);
            if let Some(volume) = volumes_by_container.get(record.id.as_str()) {
                // No program's `rm` is for it.
                (origin.owner, origin.name) = (Owner::Unknown, format!("volume {volume}"));
            } else if known.is_some() {
                origin.owner = Owner::Podman;
            }
            let by_podman = known.map(|known| known.state);
            let recorded = by_podman.unwrap_or_else(|| match origin.state {
                ContainerState::Unknown if origin.sandbox => {
                    let runroots = snapshot.places.runroots.iter();
                    let records =
                        runroots.map(|root| snapshot.places.records_dir(root, RecordKind::Containers));
                    let in_runroots: Vec<_> = records.map(|records| records.join(&record.id)).collect();
                    owner::state_without_infra(&self.within, &directory, &in_runroots)
                }
                state => state,
            });
            self.recorded_states.push(recorded);
            let state = match (mounted, recorded) {
                // CRI-O mounts the root filesystem already when it creates a container.
                (_, ContainerState::Created) => ContainerState::Created,
                (true, _) => ContainerState::Running,
                // The database can be from before the last boot: without a mount, "running" is not certain.
                (false, ContainerState::Running) if by_podman.is_some() => ContainerState::Unknown,
                (false, recorded) => recorded,
            };
            let volumes = match origin.owner {
                Owner::CriO => self.image_volumes(images, &directory),
                _ => Vec::new(),
            };
            self.writer.inventory.containers.push(Container {
                id: record.id.as_str().into(),
                store: self.writer.store,
                name: origin.name,
                owner: origin.owner,
                image_id: record.image.as_deref().map(Into::into),
                image,
                created: record.created,
                state,
                sandbox: origin.sandbox,
                sandbox_id: origin.sandbox_id,
                namespace: origin.namespace,
                volumes,
                listed_bytes,
                log: self.log(&directory),
                holds,
            });
        }
        // Only sandboxes have a namespace in their records: copy it to the containers of the pod.
        let containers = &mut self.writer.inventory.containers[self.first_container..];
        let namespaces: HashMap<_, _> = containers
            .iter()
            .filter_map(|container| Some((container.id.to_string(), container.namespace.clone()?)))
            .collect();
        for container in containers.iter_mut().filter(|container| container.namespace.is_none()) {
            let sandbox = container.sandbox_id.as_ref();
            container.namespace = sandbox.and_then(|id| namespaces.get(id)).cloned();
        }
    }

    /// Notes the containers that only podman's database knows.
    pub(super) fn lost_containers(&mut self) {
        let lost = needs::lost_containers(self.snapshot).into_iter();
        let mut lost: Vec<_> = lost
            .map(|(id, container)| LostContainer {
                id: id.into(),
                store: self.writer.store,
                name: container.name.clone(),
                image_id: container.image.as_deref().map(Into::into),
                // "Running" can be from before the last boot.
                state: match container.state {
                    ContainerState::Running => ContainerState::Unknown,
                    state => state,
                },
            })
            .collect();
        lost.sort_by(|a, b| a.id.as_str().cmp(b.id.as_str()));
        self.writer.inventory.lost_containers.extend(lost);
    }

    /// Returns the log that podman's conmon writes below the container's directory.
    fn log(&self, directory: &Path) -> Option<ContainerLog> {
        let path = directory.join("userdata/ctr.log");
        let facts = self.within.facts(&path).ok().filter(|facts| facts.kind == FileKind::File)?;
        Some(ContainerLog { path, bytes: facts.length })
    }

    /// Returns true unless the records are damaged. With damaged records, an object without a record need not be missing.
    fn is_sound(&self) -> bool {
        self.writer.inventory[self.writer.store].consistency != Consistency::Damaged
    }

    fn find_image(&self, images: &HashMap<String, ImageIx>, id: &str) -> Option<ImageIx> {
        let mut stores = std::iter::once(images).chain(self.additional.iter().map(|store| store.images()));
        stores.find_map(|images| images.get(id)).copied()
    }

    /// Returns the images that `reference` may mean, in this store or in an additional one.
    fn possible_images(&self, images: &HashMap<String, ImageIx>, reference: &str) -> Vec<ImageIx> {
        if let Some(image) = self.find_image(images, reference) {
            return vec![image];
        }
        let inventory = &*self.writer.inventory;
        let elsewhere = self.additional.iter().flat_map(|store| store.images_of(inventory, reference));
        images_of(images, inventory, reference).into_iter().chain(elsewhere).collect()
    }

    /// Returns the images that a container of CRI-O uses, or may use, as volumes. OCI artifacts are not included.
    fn image_volumes(&mut self, images: &HashMap<String, ImageIx>, directory: &Path) -> Vec<ImageIx> {
        match cri_o::image_volumes(&self.within, directory) {
            Ok(volumes) => volumes.ids.iter().flat_map(|id| self.possible_images(images, id)).collect(),
            // The container may use any image: damaged records protect all of them.
            Err(error) => {
                let message = format!("{error}; the image volumes of this container are unknown");
                let path = directory.join("userdata/config.json");
                self.writer.inventory.findings.push(Finding::incomplete(path, message));
                self.writer.inventory.stores[self.writer.store.get()].consistency = Consistency::Damaged;
                Vec::new()
            }
        }
    }
}
