//! Containers of Docker, which without a running process are leases without a container record; and build caches.

use std::collections::{BTreeMap, HashMap};

use super::images::{ImageGroup, ImageGroups};
use super::{Filler, qualified};
use crate::model::{BuildCache, Container, ContainerState, ImageIx, NodeIx, Owner, Use};
use crate::stores::containerd::build_cache;
use crate::stores::containerd::docker::{self, DockerLease};
use crate::stores::containerd::metadata::Namespace;
use crate::stores::dockerd::DockerRecord;

impl<'a> Filler<'a> {
    /// Adds the containers without a record in containerd, and completes the others.
    pub(crate) fn docker_containers(&mut self, groups: &ImageGroups<'a>) {
        for (namespace, graph) in self.graphs {
            let found = docker::containers(namespace);
            if found.is_empty() {
                continue;
            }
            let store = self.writer.store;
            let containers = self.writer.inventory.containers.iter().enumerate();
            let known: HashMap<String, usize> = containers
                .filter(|(_, container)| container.store == store)
                .map(|(position, container)| (container.id.to_string(), position))
                .collect();
            for container in found {
                let id = qualified(&namespace.name, &container.lease.id);
                let record = self.snapshot.docker.get(&container.lease.id);
                let holds = self.nodes(namespace, &graph.lease(container.lease));
                let recorded = known.get(&id).map(|known| &self.writer.inventory.containers[*known]);
                let by_name = recorded.and_then(|recorded| recorded.image);
                let images = images_of(groups, namespace, &container, record, by_name);
                let image = images.first().copied();
                let name = record.and_then(|record| record.name.clone());
                let image_id = image
                    .map(|image| self.writer.inventory[image].id.clone())
                    .or_else(|| Some(record?.image_name.clone()?.into()));
                let by = format!("the Docker container {}", name.as_deref().unwrap_or(&container.lease.id));
                match known.get(&id) {
                    Some(position) => {
                        let known = &mut self.writer.inventory.containers[*position];
                        known.owner = Owner::Docker;
                        known.name = name.unwrap_or_else(|| std::mem::take(&mut known.name));
                        (known.image, known.image_id) = (image, image_id.or(known.image_id.take()));
                        if known.state == ContainerState::Unknown {
                            known.state = record.map(|record| record.state).unwrap_or_default();
                        }
                        let new: Vec<_> =
                            holds.into_iter().filter(|node| !known.holds.contains(node)).collect();
                        known.holds.extend(new);
                    }
                    None => self.writer.inventory.containers.push(Container {
                        id: id.into(),
                        store,
                        name: name.unwrap_or_else(|| container.lease.id.clone()),
                        owner: Owner::Docker,
                        image_id,
                        image,
                        volumes: Vec::new(),
                        created: container.lease.created,
                        // Without a record in containerd it does not run: the node was switched off while it ran.
                        state: match record.map(|record| record.state) {
                            None | Some(ContainerState::Running) => ContainerState::Unknown,
                            Some(state) => state,
                        },
                        sandbox: false,
                        sandbox_id: None,
                        namespace: Some(format!("containerd:{}", namespace.name)),
                        listed_bytes: None,
                        log: None,
                        holds,
                    }),
                }
                if let Some(others) = images.get(1..).filter(|others| !others.is_empty()) {
                    let images = others.to_vec();
                    self.writer.inventory.uses.push(Use { by, images, is_listed: true, ..Use::default() });
                }
            }
        }
    }

    /// Adds one build cache for each builder. layersweep does not delete the content of build caches.
    pub(crate) fn build_caches(&mut self) {
        let mut caches: BTreeMap<&str, (usize, Vec<NodeIx>)> = BTreeMap::new();
        for (namespace, graph) in self.graphs {
            let found = build_cache::leases(namespace);
            if found.all.is_empty() {
                continue;
            }
            let refs: Vec<_> = found.all.iter().flat_map(|lease| graph.lease(lease)).collect();
            let cache = caches.entry(build_cache::builder(&namespace.name)).or_default();
            cache.0 += found.records;
            cache.1.extend(self.nodes(namespace, &refs));
        }
        for (namespace, (records, mut holds)) in caches {
            holds.sort_unstable();
            holds.dedup();
            let (store, namespace) = (self.writer.store, namespace.to_owned());
            self.writer.inventory.anchored.extend(&holds);
            self.writer.inventory.build_caches.push(BuildCache { store, namespace, records, holds });
        }
    }
}

/// Returns the images from which a container may have been created, the most likely first. The digest in Docker's
/// record decides, because a tag may have moved since. Without it, all images with the container's top snapshot are
/// returned.
fn images_of(
    groups: &ImageGroups<'_>,
    namespace: &Namespace,
    container: &DockerLease<'_>,
    record: Option<&DockerRecord>,
    by_name: Option<ImageIx>,
) -> Vec<ImageIx> {
    let all = groups.all.iter().filter(|group| group.namespace.name == namespace.name);
    let here: Vec<&ImageGroup<'_>> = all.collect();
    for digest in record.into_iter().flat_map(|record| &record.digests) {
        if let Some(group) = here.iter().find(|group| group.has_digest(digest)) {
            return vec![group.image];
        }
    }
    let top = container.image_top.map(|top| (container.snapshot.snapshotter.as_str(), top));
    let on_top = here.iter().filter(|group| top.is_some_and(|top| group.tops.contains(&top)));
    let mut images: Vec<_> = on_top.map(|group| group.image).collect();
    let named = record
        .and_then(|record| groups.named(&namespace.name, record.image_name.as_deref()?))
        .map(|group| group.image)
        .or(by_name);
    if images.is_empty() {
        images.extend(named)
    } else {
        images.sort_by_key(|image| Some(*image) != named)
    }
    images
}
