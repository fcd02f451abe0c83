//! Containers and the engines that created them.

use std::collections::HashMap;
use std::path::Path;

use super::Filler;
use crate::model::{
    Consistency, Container, ContainerState, Finding, ImageIx, LeakClass, NodeIx, NodeKind, Owner, Size,
};
use crate::stores::containers_storage::inspect::engine::Engine;
use crate::stores::containers_storage::records::ContainerRecord;
use crate::stores::containers_storage::{cri_o, owner};
use crate::stores::leaks::Judgement;

impl Filler<'_> {
    pub(super) fn containers(&mut self, images: &HashMap<String, ImageIx>) {
        let snapshot = self.snapshot;
        let first = self.writer.inventory.containers.len();
        for (at, record) in snapshot.containers.iter().enumerate() {
            let records = snapshot.places.records_dir(&snapshot.places.graphroot, "containers");
            let directory = records.join(&record.id);
            let metadata = match self.containers[at] {
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
                    if let Some(facts) = &mut self.writer.inventory.nodes[node.get()].layer {
                        facts.read_write = true;
                    }
                    listed_bytes =
                        self.layer_at.get(id.as_str()).and_then(|at| self.contents.get(at)).copied();
                    mounted = self.writer.is_mounted(&self.writer.inventory.nodes[node.get()].path);
                } else if self.is_sound() {
                    let evidence = format!("its layer {id} is in none of the stores read");
                    let judged = Judgement::of(LeakClass::ContainerLayerMissing, evidence);
                    self.broken(judged, &record.id, metadata, record.created);
                }
            }
            let image = record.image.as_deref().and_then(|id| self.find_image(images, id));
            if let (Some(id), None, true) = (&record.image, image, self.is_sound()) {
                let evidence = format!("its image {id} is in none of the stores read");
                let judged = Judgement::of(LeakClass::ContainerImageMissing, evidence);
                self.broken(judged, &record.id, metadata, record.created);
            }
            self.container(record, &directory, image, listed_bytes, mounted, holds);
            self.image_volumes(images, &directory);
        }
        let own = &mut self.writer.inventory.containers[first..];
        let of_sandboxes: HashMap<_, _> = own
            .iter()
            .filter_map(|container| Some((container.id.to_string(), container.namespace.clone()?)))
            .collect();
        for container in own.iter_mut().filter(|container| container.namespace.is_none()) {
            let sandbox = container.sandbox_id.as_ref();
            container.namespace = sandbox.and_then(|id| of_sandboxes.get(id)).cloned();
        }
    }

    /// Whether what the records do not list is missing: not where they are damaged.
    fn is_sound(&self) -> bool {
        self.writer.inventory.stores[self.writer.store.get()].consistency != Consistency::Damaged
    }

    fn container(
        &mut self,
        record: &ContainerRecord,
        directory: &Path,
        image: Option<ImageIx>,
        listed_bytes: Option<u64>,
        mounted: bool,
        holds: Vec<NodeIx>,
    ) {
        let origin = owner::origin(&self.within, record, directory);
        let state = match (mounted, self.state_by_podman(&record.id)) {
            (true, _) => ContainerState::Running,
            // A database that says "running" may be of before the last boot.
            (false, Some(state)) if origin.owner == Owner::Podman && state != ContainerState::Running => {
                state
            }
            (false, _) => origin.state,
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
            volumes: Vec::new(),
            listed_bytes,
            holds,
        });
    }

    fn find_image(&self, images: &HashMap<String, ImageIx>, id: &str) -> Option<ImageIx> {
        let elsewhere = || self.additional.iter().find_map(|store| store.images.get(id));
        images.get(id).or_else(elsewhere).copied()
    }

    /// Adds the images that the newest container, if it is CRI-O's, has mounted as volumes. Ids of OCI
    /// artifacts are skipped.
    fn image_volumes(&mut self, images: &HashMap<String, ImageIx>, directory: &Path) {
        let newest =
            self.writer.inventory.containers.last().filter(|container| container.owner == Owner::CriO);
        if newest.is_none() {
            return;
        }
        match cri_o::image_volumes(&self.within, directory) {
            Ok(found) => {
                let volumes: Vec<_> = found.ids.iter().filter_map(|id| self.find_image(images, id)).collect();
                self.writer
                    .inventory
                    .containers
                    .last_mut()
                    .into_iter()
                    .for_each(|one| one.volumes.extend(&volumes));
            }
            // It may use any image.
            Err(error) => {
                self.writer.inventory.findings.push(Finding {
                    path: directory.join("userdata/config.json"),
                    message: format!("{error}; the image volumes of this container are unknown"),
                    incomplete: true,
                });
                self.writer.inventory.stores[self.writer.store.get()].consistency = Consistency::Damaged;
            }
        }
    }

    fn state_by_podman(&self, id: &str) -> Option<ContainerState> {
        match &self.snapshot.inspection.engine {
            Engine::Known(known) => known.containers.get(id).map(|found| found.state),
            Engine::Absent | Engine::Unreadable(_) => None,
        }
    }
}
