//! Unused and inconsistent objects. They are only reported: containerd deletes its own content, and most of these
//! objects in its next garbage collection.

mod damage;
mod orphans;

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use super::build_cache;
use super::fill::images::ImageGroups;
use super::fill::{Filler, qualified, volumes as image_volumes};
use super::gc::{ROOT, Ref, Term, term};
use super::metadata::{LeaseRecord, Namespace, RecordLabels};
use crate::model::text::display::{listed, shell_word};
use crate::model::{Consistency, LeakClass, NodeIx, NodeKind, Verdict, is_for_ctr};
use crate::stores::leaks::Judgement;

/// Minimum duration of a lease that was not created for a pull; leases of pulls last a day.
const FAR: SignedDuration = SignedDuration::from_hours(48);

/// Returns true for the lease of a sandbox's image volumes. The volumes are listed themselves once the sandbox is
/// gone.
fn is_of_volumes(lease: &LeaseRecord) -> bool {
    let nothing_else = lease.content.is_empty() && lease.ingests.is_empty() && lease.images.is_empty();
    nothing_else
        && !lease.snapshots.is_empty()
        && lease
            .snapshots
            .iter()
            .all(|(_, key)| image_volumes::parse(key).is_some_and(|(sandbox, _)| sandbox == lease.id))
}

/// Returns a clause that names the labels that make an object a root, and the command that shows the object. containerd
/// deletes it once they are removed; only a person can judge whether something needs it.
fn label_remedy(namespace: &str, object: Ref<'_>, labels: &RecordLabels) -> String {
    let show = match object {
        _ if !is_for_ctr(namespace) => {
            return format!("only the program that uses the namespace {namespace} may remove it");
        }
        Ref::Snapshot(snapshotter, key) => {
            format!("snapshots --snapshotter {} info {}", shell_word(snapshotter), shell_word(key))
        }
        Ref::Content(_) | Ref::Ingest(_) | Ref::Image(_) | Ref::Container(_) => "content ls".to_owned(),
    };
    let labels: Vec<_> = labels.keys().filter(|label| label.starts_with(ROOT)).cloned().collect();
    let noun = if labels.len() == 1 { "label" } else { "labels" };
    format!(
        "only you can judge whether something needs it (`ctr -n {namespace} {show}` shows it); without the {noun} {} \
         containerd deletes it",
        listed(&labels)
    )
}

impl<'a> Filler<'a> {
    /// Returns true if an object changed so recently that it may be work in progress.
    fn in_flight(&self, since: Option<Timestamp>) -> bool {
        since.is_none_or(|since| self.writer.present.age(since) < self.in_flight)
    }

    /// Returns true if an object that is missing from the records does not exist. Records that changed meanwhile, or
    /// could not be read, prove nothing.
    fn records_are_whole(&self) -> bool {
        self.snapshot.consistency == Consistency::Consistent
    }

    /// Returns `Keep` for an object that may be work in progress, otherwise `Report`.
    fn verdict(&self, since: Option<Timestamp>) -> Verdict {
        if self.in_flight(since) || !self.records_are_whole() { Verdict::Keep } else { Verdict::Report }
    }

    pub(super) fn judged(
        &self,
        class: LeakClass,
        since: Option<Timestamp>,
        evidence: impl Into<String>,
    ) -> Judgement {
        Judgement::of(class, evidence).with(self.verdict(since))
    }

    /// Adds leases that keep content without a known user.
    pub(super) fn leases(&mut self) {
        let now = self.writer.present.now();
        for (namespace, graph) in self.graphs {
            let cached: HashSet<&str> =
                build_cache::leases(namespace).all.iter().map(|lease| lease.id.as_str()).collect();
            for lease in namespace.leases.iter().filter(|lease| !cached.contains(lease.id.as_str())) {
                let mut refs = graph.lease(lease);
                let term = term(&lease.labels, now);
                if matches!(term, Term::Expired(_)) {
                    // An expired lease keeps nothing. List the content that nothing else keeps either: containerd
                    // deletes it in its next collection.
                    refs.retain(|object| !graph.marked(now).contains(object));
                }
                let newest =
                    lease.ingests.iter().filter_map(|key| self.ingest_modified(namespace, key)).max();
                let holds = self.nodes(namespace, &refs);
                if !self.owned(namespace, lease, &holds) && !is_of_volumes(lease) {
                    self.lease(&namespace.name, lease, term, newest, holds);
                }
            }
        }
    }

    /// Adds expired image names, with the content that only they would keep.
    pub(super) fn expired_images(&mut self, groups: &ImageGroups<'a>) {
        let now = self.writer.present.now();
        for (namespace, graph) in self.graphs {
            for name in &namespace.images {
                let Some(end) = graph.expired(name, now) else { continue };
                let mut refs = graph.image(name);
                refs.retain(|object| !graph.marked(now).contains(object));
                let holds = self.nodes(namespace, &refs);
                let group = groups.named(&namespace.name, &name.name);
                let image = group.map_or(name.target.as_str(), |group| group.id.as_str());
                let evidence = format!(
                    "this name expired at {end}; it no longer keeps image {image}, and containerd \
                     deletes it in its next garbage collection"
                );
                let judged = self.judged(LeakClass::Garbage, Some(end), evidence);
                let id = qualified(&namespace.name, &name.name);
                self.writer.leak(judged, &id, &self.meta_db(), Some(end), holds);
            }
        }
    }

    /// Adds the content of a sandbox's lease to the sandbox; returns true if the lease has such an owner. containerd
    /// 2 creates a lease with the sandbox's id for each pod sandbox, and deletes it with the sandbox.
    fn owned(&mut self, namespace: &Namespace, lease: &LeaseRecord, holds: &[NodeIx]) -> bool {
        let id = qualified(&namespace.name, &lease.id);
        let store = self.writer.store;
        let mut containers = self.writer.inventory.containers.iter_mut();
        if let Some(owner) = containers.find(|container| container.store == store && container.id == id) {
            let new: Vec<_> = holds.iter().filter(|node| !owner.holds.contains(node)).copied().collect();
            owner.holds.extend(new);
            return true;
        }
        let owned = namespace.sandboxes.iter().any(|sandbox| sandbox.id == lease.id);
        if owned {
            self.writer.inventory.anchored.extend(holds);
        }
        owned
    }

    fn lease(
        &mut self,
        namespace: &str,
        lease: &LeaseRecord,
        term: Term,
        newest: Option<Timestamp>,
        holds: Vec<NodeIx>,
    ) {
        let since = newest.max(lease.created);
        let (class, verdict, evidence) = match term {
            Term::Unlimited => (
                LeakClass::Lease,
                self.verdict(since),
                "a lease without expiry: it holds its content until its owner deletes it".to_owned(),
            ),
            Term::Until(end) if end.duration_since(self.writer.present.now()) > FAR => (
                LeakClass::Lease,
                self.verdict(since),
                format!("a lease that expires only at {end}: leases of pulls last one day"),
            ),
            Term::Until(end) if self.in_flight(since) => (
                LeakClass::UnfinishedPull,
                Verdict::Keep,
                format!("a lease that expires at {end}: a pull may be in progress"),
            ),
            Term::Until(end) => (
                LeakClass::UnfinishedPull,
                self.verdict(since),
                format!(
                    "a lease that expires at {end}, but its downloads have stopped growing: the pull \
                     was interrupted"
                ),
            ),
            Term::Expired(end) => (
                LeakClass::Garbage,
                self.verdict(since),
                format!("expired at {end}; containerd collects garbage only after the next deletion"),
            ),
        };
        let judged = Judgement { class, verdict, evidence };
        self.writer.leak(judged, &qualified(namespace, &lease.id), &self.meta_db(), since, holds);
    }

    /// Adds blobs and snapshots that only a label keeps.
    pub(super) fn labelled_roots(&mut self) {
        let used = self.reached_by_images_and_containers();
        for (namespace, graph) in self.graphs {
            let blobs = namespace
                .blobs
                .iter()
                .map(|blob| (&blob.digest, blob.created, Ref::Content(&blob.digest), &blob.labels));
            let snapshots = namespace
                .snapshots
                .iter()
                .map(|snapshot| (&snapshot.key, snapshot.created, snapshot.into(), &snapshot.labels));
            for (id, since, this, labels) in blobs.chain(snapshots) {
                let holds = self.nodes(namespace, &graph.rooted(this, labels));
                // The first object that it keeps is the labelled object itself.
                let Some(first) = holds.first().copied() else { continue };
                if used.contains(&first) {
                    self.writer.inventory.anchored.extend(holds);
                    continue;
                }
                let path = self.writer.inventory[first].path.clone();
                let evidence = format!(
                    "kept by a label containerd.io/gc.root; no image or container references it; {}",
                    label_remedy(&namespace.name, this, labels)
                );
                let judged = self.judged(LeakClass::GcRoot, since, evidence);
                self.writer.leak(judged, &qualified(&namespace.name, id), &path, since, holds);
            }
        }
    }

    /// Marks everything that no image and no container reaches as unknown: damaged records prove nothing about an
    /// object that they do not name.
    pub(super) fn unknown_rest(&mut self) {
        let mut reached = self.reached_by_images_and_containers();
        let caches =
            self.writer.inventory.build_caches.iter().filter(|cache| cache.store == self.writer.store);
        reached.extend(self.writer.reach(caches.flat_map(|cache| &cache.holds).copied()));
        for (position, node) in self.writer.inventory.nodes.iter_mut().enumerate() {
            let is_object = matches!(
                node.kind,
                NodeKind::Blob | NodeKind::Snapshot | NodeKind::ContainerMetadata | NodeKind::Orphan
            );
            if node.store == self.writer.store && is_object && !reached.contains(&NodeIx::from(position)) {
                node.kind = NodeKind::Unknown;
                self.writer.inventory.anchored.push(position.into());
            }
        }
    }

    fn reached_by_images_and_containers(&self) -> HashSet<NodeIx> {
        let images = self.writer.inventory.images.iter().filter(|image| image.store == self.writer.store);
        let containers =
            self.writer.inventory.containers.iter().filter(|container| container.store == self.writer.store);
        let images = images.flat_map(|image| &image.holds);
        let holds = images.chain(containers.flat_map(|container| &container.holds));
        self.writer.reach(holds.copied())
    }

    /// Adds objects that no root marks: containerd deletes them in its next collection.
    pub(super) fn unmarked(&mut self) {
        let held = self
            .writer
            .inventory
            .leaks
            .iter()
            .filter(|leak| leak.store == self.writer.store)
            .flat_map(|leak| &leak.holds)
            .chain(&self.writer.inventory.anchored);
        let mut reached = self.writer.reach(held.copied());
        reached.extend(self.reached_by_images_and_containers());
        for (namespace, _) in self.graphs {
            let blobs =
                namespace.blobs.iter().map(|blob| (&blob.digest, blob.created, Ref::Content(&blob.digest)));
            let snapshots =
                namespace.snapshots.iter().map(|snapshot| (&snapshot.key, snapshot.created, snapshot.into()));
            for (id, since, object) in blobs.chain(snapshots) {
                let Some(node) = self.node(namespace, object) else { continue };
                let made = &self.writer.inventory[node];
                if made.size.inodes == 0 || !reached.insert(node) {
                    // No directory, or used, or already reported for another namespace with the same blob.
                    continue;
                }
                let path = made.path.clone();
                let evidence = "no image, container, lease or label references it; containerd deletes it \
                                with the next object of its kind";
                let judged = self.judged(LeakClass::Garbage, since, evidence);
                self.writer.leak(judged, &qualified(&namespace.name, id), &path, since, vec![node]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_other_programs_get_no_command() {
        let labels: RecordLabels = ["containerd.io/gc.root", "containerd.io/gc.root.x", "other"]
            .into_iter()
            .map(|label| (label.to_owned(), "1".to_owned()))
            .collect();
        let both =
            "without the labels containerd.io/gc.root and containerd.io/gc.root.x containerd deletes it";
        for (namespace, object, expected) in [
            ("k8s.io", Ref::Content("sha256:00"), format!("(`ctr -n k8s.io content ls` shows it); {both}")),
            (
                "default",
                Ref::Snapshot("overlayfs", "a b"),
                format!("(`ctr -n default snapshots --snapshotter overlayfs info 'a b'` shows it); {both}"),
            ),
            ("moby", Ref::Snapshot("overlayfs", "a"), "the namespace moby may".to_owned()),
            ("buildkit", Ref::Content("sha256:00"), "the namespace buildkit may".to_owned()),
        ] {
            let remedy = label_remedy(namespace, object, &labels);
            assert!(remedy.contains(&expected), "{expected}: {remedy}");
            assert_eq!(remedy.contains("ctr "), is_for_ctr(namespace), "{remedy}");
        }
    }
}
