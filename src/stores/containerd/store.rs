//! A containerd root as a store.

use std::io;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::read;
use super::snapshot::Snapshot;
use super::units::{self, Unit};
use super::{committed, fill};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Tally};
use crate::model::{FilesystemIx, NodeIx, StoreIx, StoreKind};
use crate::stores::inventory_writer::{InventoryWriter, mounts_below};
use crate::stores::request::Request;
use crate::stores::store::{Filling, Store, UnitView};
use crate::stores::unit::views;

/// What changed more recently than this is work in progress: containerd writes files before
/// records and deletes them after.
const IN_FLIGHT: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Debug)]
pub struct Containerd {
    pub(in crate::stores) snapshot: Snapshot,
    pub(in crate::stores) units: Vec<Unit>,
    pub(in crate::stores) origin: String,
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
        committed::fingerprints(&self.snapshot, &self.units)
    }

    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        let proxies = self.snapshot.places.proxies.iter().filter(|proxy| proxy.data.is_none());
        proxies.map(|proxy| (proxy.name.clone(), proxy.directory.clone())).collect()
    }

    /// The native snapshotter copies a whole root filesystem for each snapshot.
    fn copies_by_reflink(&self) -> bool {
        self.snapshot.backends.iter().any(|backend| backend.name == "native" && !backend.snapshots.is_empty())
    }

    fn moved(&self) -> bool {
        read::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, _request: &Request) -> io::Result<()> {
        self.snapshot = read::read(&self.snapshot.places, read::Patience::default())?;
        self.units = units::sort(&self.snapshot);
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        areas: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        let leaks = filling.request.measure.finds_leaks();
        // Only containers and leaks are ever in use by a mount. Bundles are mounted below the state
        // directory, wherever that is.
        let mut namespaces = self.snapshot.metadata.namespaces.iter();
        let mut mounts = match leaks || namespaces.any(|one| !one.containers.is_empty()) {
            true => mounts_below(&[PathBuf::from("/")], &mut filling.inventory.findings, || {
                self.units.iter().map(|unit| unit.path.clone()).collect()
            }),
            false => Vec::new(),
        };
        if filling.request.sysroot.is_foreign() {
            // Our own containers' mounts below /run mean nothing there.
            mounts.retain(|at| at.starts_with(&self.snapshot.places.root));
        }
        let writer = InventoryWriter {
            inventory: filling.inventory,
            store,
            areas,
            mounts: &mounts,
            labels: &filling.request.labels,
            present: filling.present,
            leaks,
        };
        fill::fill(writer, &self.snapshot, &self.units, tallies, (&platform(), IN_FLIGHT))
    }
}

/// The node's platform as image indexes name it.
fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    };
    format!("linux/{architecture}")
}
