//! A containerd root as a store.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::metadata::snapshotter::{BackendSnapshot, SnapshotKind};
use super::snapshot::Snapshot;
use super::units::{self, ContainerdUnit, RootUnit};
use super::{fill, read, tasks};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Fingerprinter, Tally};
use crate::model::{ContainerState, FilesystemIx, NodeIx, StoreIx, StoreKind};
use crate::stores::inventory_writer::{InventoryWriter, mounts_below};
use crate::stores::request::ScanRequest;
use crate::stores::store::{Filling, Store, UnitView};
use crate::stores::unit::views;

/// Minimum age of an object without a record that is not work in progress: containerd writes files before records and
/// deletes them after records.
const IN_FLIGHT: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Debug)]
pub struct Containerd {
    pub(crate) snapshot: Snapshot,
    pub(crate) units: Vec<RootUnit>,
    pub(crate) origin: String,
}

impl Store for Containerd {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store {
        crate::model::Store {
            kind: StoreKind::Containerd,
            root: self.snapshot.places.root.clone(),
            driver: self.snapshot.driver().to_owned(),
            filesystem,
            read_only: false,
            origin: self.origin.clone(),
            consistency: self.snapshot.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.snapshot.areas()
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        views(&self.units)
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        fingerprints(&self.snapshot, &self.units)
    }

    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        let proxies = self.snapshot.places.proxies.iter().filter(|proxy| proxy.data.is_none());
        proxies.map(|proxy| (proxy.name.clone(), proxy.directory.clone())).collect()
    }

    fn moved(&self) -> bool {
        read::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, request: &ScanRequest) -> io::Result<()> {
        self.snapshot =
            read::read(&self.snapshot.places, read::ReadPatience::default(), &request.read_cache)?;
        self.units = units::sort(&self.snapshot);
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        let leaks = filling.request.measure.finds_leaks();
        // Mounts matter only for containers and leaks. Bundles are mounted below the state directory, which may be
        // anywhere.
        let mut namespaces = self.snapshot.metadata.namespaces.iter();
        let has_containers = namespaces.any(|namespace| !namespace.containers.is_empty());
        let content: Vec<_> =
            self.snapshot.backends.iter().map(|backend| backend.directory.clone()).collect();
        let mut mounts = if filling.request.measure.reads_mounts() && (leaks || has_containers) {
            mounts_below((&[PathBuf::from("/")], &content), &mut filling.inventory.findings, || {
                self.units.iter().map(|unit| unit.path.clone()).collect()
            })
        } else {
            Vec::new()
        };
        if filling.request.sysroot.is_foreign() {
            // Mounts of this system's containers below /run mean nothing for the other system.
            mounts.retain(|mount| mount.starts_with(&self.snapshot.places.root));
        }
        if filling.request.measure.reads_mounts() {
            let states = tasks::states(&self.snapshot, &mounts);
            self.snapshot.states.extend(states);
        }
        let writer = InventoryWriter::of(filling, store, root_costs, &mounts);
        let nodes =
            fill::fill(writer, &self.snapshot, &self.units, tallies, (&crate::model::platform(), IN_FLIGHT));
        add_ended_sandboxes(filling, store);
        nodes
    }
}

/// Marks the sandboxes that the runtime reports as not ready. containerd writes the state of a container to the disk, but
/// not that of a sandbox. The runtime also reports a sandbox as not ready whose state it does not know: one that is
/// mounted runs.
fn add_ended_sandboxes(filling: &mut Filling<'_>, store: StoreIx) {
    let reported = filling.request.running.stores.iter();
    let ended: HashSet<_> = reported.flat_map(|store| &store.ended_sandboxes).map(String::as_str).collect();
    let containers = filling.inventory.containers.iter_mut();
    for container in containers.filter(|container| container.sandbox && container.store == store) {
        if container.state == ContainerState::Unknown && ended.contains(container.id.as_str()) {
            container.state = ContainerState::Exited;
        }
    }
}

/// Returns a fingerprint of the record of each unit that is a committed snapshot.
fn fingerprints(snapshot: &Snapshot, units: &[RootUnit]) -> Vec<Option<Fingerprint>> {
    let fingerprints = units.iter().map(|unit| match unit.kind {
        ContainerdUnit::Snapshot(backend, entry) => {
            fingerprint(snapshot.backends.get(backend)?.snapshots.get(entry)?)
        }
        // A blob is one file, whose size proves enough.
        _ => None,
    });
    fingerprints.collect()
}

fn fingerprint(snapshot: &BackendSnapshot) -> Option<Fingerprint> {
    if snapshot.kind != Some(SnapshotKind::Committed) {
        return None;
    }
    let created = snapshot.created.map(|time| time.to_string());
    let mut all = Fingerprinter::new("containerd snapshot, 1");
    all.bytes(snapshot.key.as_bytes());
    all.number(snapshot.id);
    all.maybe(snapshot.parent.as_deref().map(str::as_bytes));
    all.maybe(created.as_deref().map(str::as_bytes));
    Some(all.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_committed_snapshots_have_fingerprints() {
        let base = BackendSnapshot {
            key: "k8s.io/1/sha256:1".into(),
            id: 1,
            kind: Some(SnapshotKind::Committed),
            parent: None,
            created: None,
            cached_blob: None,
        };
        for kind in [Some(SnapshotKind::Active), Some(SnapshotKind::View), None] {
            assert_eq!(fingerprint(&BackendSnapshot { kind, ..base.clone() }), None, "{kind:?}");
        }
        let others = [
            BackendSnapshot { id: 2, ..base.clone() },
            BackendSnapshot { key: "k8s.io/2/sha256:1".into(), ..base.clone() },
            BackendSnapshot { parent: Some("x".into()), ..base.clone() },
            BackendSnapshot { created: "2026-01-01T00:00:00Z".parse().ok(), ..base.clone() },
        ];
        let fingerprint_of_base = fingerprint(&base);
        assert!(fingerprint_of_base.is_some());
        assert!(others.iter().all(|other| fingerprint(other) != fingerprint_of_base));
    }
}
