//! Containers of every namespace, including CRI's sandboxes.

use std::collections::HashMap;
use std::path::Path;

use super::images::ImageGroups;
use super::volumes::Volumes;
use super::{Filler, id_of_container, qualified};
use crate::model::text::reference::bare_id;
use crate::model::{Container, ContainerState, Owner};
use crate::stores::containerd::metadata::{ContainerRecord, Namespace};
use crate::stores::containerd::places::TASKS;

impl<'a> Filler<'a> {
    pub(crate) fn containers(&mut self, groups: &ImageGroups<'a>, volumes: &Volumes<'a>) {
        for (namespace, graph) in self.graphs {
            let pods = namespaces_of_pods(namespace);
            // Sandboxes that another sandboxer than containerd's own created: `sandboxer = "shim"` of a runtime in
            // containerd 2.
            let bare = namespace.bare_sandboxes().map(|record| (record, true));
            let containers = namespace.containers.iter().map(|record| (record, false));
            for (record, is_bare) in containers.chain(bare) {
                let mut holds = self.containers.get(&record.id).cloned().unwrap_or_default();
                holds.extend(self.nodes(namespace, &graph.container(record)));
                let id = if is_bare {
                    qualified(&namespace.name, &record.id)
                } else {
                    id_of_container(&namespace.name, record)
                };
                let group = groups.of(&namespace.name, record);
                let cri = record.cri.as_ref();
                let recorded = cri.and_then(|cri| cri.image_ref.as_deref()).map(bare_id);
                let requested = cri.and_then(|cri| cri.image_asked.as_deref());
                let named = recorded.or(record.image.as_deref()).or(requested).map(str::to_owned);
                let sandbox_id =
                    if is_bare { Some(&record.id) } else { cri.and_then(|cri| cri.sandbox_id.as_ref()) };
                let pod = cri.and_then(|_| pods.get(sandbox_id.unwrap_or(&record.id).as_str()));
                self.writer.inventory.containers.push(Container {
                    store: self.writer.store,
                    name: cri.and_then(|cri| cri.name.clone()).unwrap_or_else(|| record.id.clone()),
                    owner: Owner::Containerd,
                    image_id: group.map(|group| group.id.clone()).or(named).map(Into::into),
                    image: group.map(|group| group.image),
                    volumes: volumes.of(&namespace.name, &record.id),
                    created: record.created,
                    state: self.state(namespace, &id, record),
                    id: id.into(),
                    sandbox: is_bare || cri.is_some_and(|cri| cri.sandbox),
                    sandbox_id: sandbox_id.cloned(),
                    namespace: Some(
                        pod.map_or_else(|| format!("containerd:{}", namespace.name), |pod| (*pod).to_owned()),
                    ),
                    listed_bytes: None,
                    log: None,
                    holds,
                });
            }
            // Objects kept by containerd's own sandbox store, whose records layersweep does not delete.
            for sandbox in &namespace.sandboxes {
                let held = self.nodes(namespace, &graph.labelled(&sandbox.labels));
                self.writer.inventory.anchored.extend(held);
            }
        }
    }

    /// Returns the state recorded by CRI, or shown by the task of a container outside CRI. Otherwise a mounted root
    /// filesystem shows that a container runs.
    fn state(&self, namespace: &Namespace, id: &str, record: &ContainerRecord) -> ContainerState {
        match self.snapshot.states.get(id).copied() {
            Some(state @ (ContainerState::Exited | ContainerState::Unknown)) => state,
            _ if self.is_mounted(namespace, &record.id) => ContainerState::Running,
            noted => noted.unwrap_or(ContainerState::Unknown),
        }
    }

    /// Returns true if the root filesystem in the container's bundle is mounted. The bundle is below the state
    /// directory, which may be anywhere.
    pub(crate) fn is_mounted(&self, namespace: &Namespace, id: &str) -> bool {
        let rootfs = Path::new(TASKS).join(&namespace.name).join(id).join("rootfs");
        self.writer.mounts.iter().any(|mount| mount.ends_with(&rootfs))
    }
}

fn namespaces_of_pods(namespace: &Namespace) -> HashMap<&str, &str> {
    let containers = namespace.containers.iter().map(|record| (&record.id, &record.cri));
    let sandboxes = namespace.sandboxes.iter().map(|record| (&record.id, &record.cri));
    let named = containers.chain(sandboxes);
    named.filter_map(|(id, cri)| Some((id.as_str(), cri.as_ref()?.namespace.as_deref()?))).collect()
}
