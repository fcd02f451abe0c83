//! Objects that Docker has forgotten, or will delete by itself. They are only reported: nothing of Docker's is deleted
//! here, and no command is printed for what only a person can judge.

use std::path::Path;

use jiff::Timestamp;

use super::fill::DataRootFiller;
use super::units::{DataRootUnit, DockerOrphan, DockerUnit};
use crate::model::{Consistency, LeakClass, NodeIx, NodeKind, Verdict};
use crate::stores::leaks::{GRACE, Judgement, age};

impl DataRootFiller<'_> {
    pub(super) fn add_leaks(&mut self, units: &[DataRootUnit]) {
        if !self.writer.leaks {
            return;
        }
        for (unit, node) in units.iter().zip(self.nodes.clone()) {
            if let DockerUnit::Orphan(orphan) = unit.kind {
                self.orphan(orphan, unit, node);
            }
        }
        if self.snapshot.consistency == Consistency::Damaged {
            return self.unknown_rest();
        }
        self.lost_containers();
        if self.snapshot.lacks_records {
            self.unknown_rest();
        } else {
            self.unused_layers();
        }
        self.broken_images();
        self.lost_directories();
    }

    /// Returns the newest evidence for the creation of a directory or file: the times of its entries, which a download
    /// or an extraction changes, and its birth, since a copied store has old times.
    fn since(&self, path: &Path) -> Option<Timestamp> {
        let within = &self.snapshot.within;
        let parts = ["diff", "link", "lower", "cache-id"].map(|name| path.join(name));
        let times = std::iter::once(path.to_path_buf()).chain(parts).map(|path| {
            let modified = within.facts(&path).ok().and_then(|facts| facts.modified);
            modified.max(within.born(&path).ok().flatten())
        });
        times.max().flatten()
    }

    /// Judges an object that is old enough as `class`. A younger one may be part of a pull or a build that runs; records
    /// that changed meanwhile prove nothing.
    fn judged(&self, class: LeakClass, path: &Path, since: Option<Timestamp>, evidence: &str) -> Judgement {
        let is_old = age(since, self.writer.present).is_some_and(|age| age >= GRACE);
        let judged = Judgement::of(class, evidence).with(Verdict::Report);
        if self.writer.is_mounted(path) {
            judged.but(Verdict::Keep, "it is mounted")
        } else if self.snapshot.consistency == Consistency::Damaged {
            judged.but(Verdict::Keep, "records that cannot be read may name it")
        } else if self.snapshot.consistency != Consistency::Consistent {
            judged.but(Verdict::Keep, "Docker kept writing while it was read")
        } else if !is_old {
            let evidence = "no record names it yet, and it is less than 24 hours old: a pull, load or build may be running";
            Judgement { class: LeakClass::UnfinishedPull, verdict: Verdict::Keep, evidence: evidence.into() }
        } else {
            judged
        }
    }

    fn report(&mut self, class: LeakClass, id: &str, path: &Path, evidence: &str, holds: Vec<NodeIx>) {
        let since = self.since(path);
        let judged = self.judged(class, path, since, evidence);
        self.writer.leak(judged, id, path, since, holds);
    }

    fn orphan(&mut self, orphan: DockerOrphan, unit: &DataRootUnit, node: NodeIx) {
        let (class, evidence) = match orphan {
            DockerOrphan::Layer => (
                LeakClass::OrphanDir,
                "no record of an image, a container or BuildKit names this directory: Docker has forgotten it, and \
                 no prune deletes it",
            ),
            DockerOrphan::Removing => (
                LeakClass::Incomplete,
                "the deletion of this layer was interrupted: Docker finishes it at its next start",
            ),
            DockerOrphan::Container => (
                LeakClass::OrphanContainerDir,
                "Docker has no record of this container, so `docker ps --all` does not list it and nothing deletes it",
            ),
            DockerOrphan::Temporary => (
                LeakClass::UnfinishedPull,
                "a temporary file of a pull, load or build that has ended: Docker deletes it at its next start",
            ),
            DockerOrphan::TemporaryRecord => (
                LeakClass::UnfinishedPull,
                "the record of a layer that was never completed: the pull or build was interrupted",
            ),
        };
        self.report(class, &unit.id, &unit.path, evidence, vec![node]);
    }

    /// Reports the layers of containers that Docker has no record of.
    fn lost_containers(&mut self) {
        let snapshot = self.snapshot;
        for (container, mount) in &snapshot.mounts {
            let Some(node) = self.layer(&mount.mount_id) else { continue };
            let is_there = snapshot.listed.contains(&mount.mount_id);
            let is_known = snapshot.containers.contains_key(container);
            if is_there && !is_known && !snapshot.cached.contains(&mount.mount_id) {
                let path = self.writer.inventory[node].path.clone();
                let evidence = format!(
                    "the writable layer of container {container}, of which Docker has no other record: its removal was \
                     interrupted, and Docker does not repeat it"
                );
                self.report(LeakClass::OrphanDir, &mount.mount_id, &path, &evidence, vec![node]);
            }
        }
    }

    /// Returns the layers with a record that no image, container, build cache or leak needs.
    fn unused(&self) -> Vec<(usize, NodeIx)> {
        let store = self.writer.store;
        let inventory = &*self.writer.inventory;
        let images = inventory.images.iter().filter(|image| image.store == store);
        let containers = inventory.containers.iter().filter(|container| container.store == store);
        let leaks = inventory.leaks.iter().filter(|leak| leak.store == store);
        let held = images
            .flat_map(|image| &image.holds)
            .chain(containers.flat_map(|container| &container.holds))
            .chain(leaks.flat_map(|leak| &leak.holds))
            .chain(&inventory.anchored);
        let reached = self.writer.reach(held.copied());
        let nodes = self.layers.iter().enumerate();
        nodes
            .filter_map(|(layer, node)| Some((layer, node.filter(|node| !reached.contains(node))?)))
            .collect()
    }

    fn unused_layers(&mut self) {
        let snapshot = self.snapshot;
        let there = self.unused().into_iter().map(|(layer, node)| (&snapshot.layers[layer], node));
        for (layer, node) in there.filter(|(layer, _)| snapshot.listed.contains(&layer.id)) {
            let path = self.writer.inventory[node].path.clone();
            let evidence =
                "Docker has a record of this layer, but no image, container or build cache needs it";
            self.report(LeakClass::Unreferenced, &layer.id, &path, evidence, vec![node]);
        }
    }

    /// Reports images without their layers.
    fn broken_images(&mut self) {
        let snapshot = self.snapshot;
        if snapshot.consistency != Consistency::Consistent {
            return;
        }
        for record in &snapshot.images {
            let mut chains = record.chains.iter();
            let Some(missing) = chains.find(|chain| self.layer_of_chain(chain).is_none()) else { continue };
            let path = snapshot.places.image_records().join("content/sha256").join(&record.id);
            let evidence =
                format!("Docker has no record of its layer {missing}: no container can start from it");
            let judged = Judgement::of(LeakClass::BrokenImage, evidence);
            // With its algorithm: an image of this id is not one that layersweep can remove.
            let id = format!("sha256:{}", record.id);
            self.writer.leak(judged, &id, &path, self.since(&path), Vec::new());
        }
    }

    /// Reports layers with a record, but without their directory.
    fn lost_directories(&mut self) {
        let snapshot = self.snapshot;
        if snapshot.consistency != Consistency::Consistent {
            return;
        }
        for layer in snapshot.layers.iter().filter(|layer| !snapshot.listed.contains(&layer.id)) {
            // Docker finishes the removal of a layer at its next start.
            if layer.chain.as_ref().is_some_and(|chain| chain.contains('-')) {
                continue;
            }
            let path = snapshot.places.layers().join(&layer.id);
            let evidence = "Docker has a record of this layer, but its directory does not exist";
            let judged = Judgement::of(LeakClass::LayerNoDir, evidence).with(Verdict::Report);
            self.writer.leak(judged, &layer.id, &path, None, Vec::new());
        }
    }

    /// Marks layers that nothing reaches as unknown: a record that is missing or cannot be read may name them.
    fn unknown_rest(&mut self) {
        for (_, node) in self.unused() {
            self.writer.inventory[node].kind = NodeKind::Unknown;
            self.writer.inventory.anchored.push(node);
        }
    }
}
