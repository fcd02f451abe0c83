//! Adds one store of any kind to an inventory.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::leaks::Judgement;
use crate::disk::Tally;
use crate::disk::filesystem::CostModel;
use crate::model::{FilesystemIx, Finding, Inventory, LabelsOf, Leak, Node, NodeIx, NodeKind, Size, StoreIx};
use crate::sys::clock::Present;
use crate::sys::namespaces;

/// The inventory, and what has to be known besides the store itself.
#[derive(Debug)]
pub struct InventoryWriter<'a> {
    /// What is filled.
    pub inventory: &'a mut Inventory,
    /// The store's entry in it.
    pub store: StoreIx,
    /// Filesystem and cost model of each root that units' parts are given below.
    pub root_costs: &'a [(FilesystemIx, CostModel)],
    /// Mount points that are in use now.
    pub mounts: &'a [PathBuf],
    /// Whose labels to read.
    pub labels: &'a LabelsOf,
    /// The time that ages are counted to.
    pub present: &'a Present,
    /// Whether to look for leaks. Dangling records are always reported.
    pub leaks: bool,
}

impl InventoryWriter<'_> {
    pub(super) fn cost_of(&self, root: usize) -> (FilesystemIx, CostModel) {
        self.root_costs.get(root).copied().unwrap_or((FilesystemIx::from(0), CostModel::default()))
    }

    /// What `tally`, measured in an area, takes and would free.
    pub(super) fn size(&self, area: usize, tally: &Tally) -> Size {
        let frees_bytes = self.cost_of(area).1.frees(tally);
        Size { bytes: tally.bytes, apparent_bytes: tally.apparent_bytes, inodes: tally.inodes, frees_bytes }
    }

    pub(super) fn add(
        &mut self,
        kind: NodeKind,
        id: impl Into<String>,
        area: usize,
        path: impl Into<PathBuf>,
        size: Size,
    ) -> NodeIx {
        let node = NodeIx::from(self.inventory.nodes.len());
        self.inventory.nodes.push(Node {
            kind,
            id: id.into(),
            store: self.store,
            filesystem: self.cost_of(area).0,
            path: path.into(),
            size,
            needs: Vec::new(),
            layer: None,
        });
        node
    }

    pub(super) fn leak(
        &mut self,
        judged: Judgement,
        id: &str,
        path: &Path,
        since: Option<Timestamp>,
        holds: Vec<NodeIx>,
    ) {
        let Judgement { class, verdict, evidence } = judged;
        self.inventory.leaks.push(Leak {
            class,
            store: self.store,
            path: path.to_path_buf(),
            id: id.to_owned(),
            since: since.map(|since| self.present.dated(since)),
            verdict,
            evidence,
            holds,
        });
    }

    /// Whether something is mounted at or below `path`.
    pub(super) fn is_mounted(&self, path: &Path) -> bool {
        self.mounts.iter().any(|mount| mount.starts_with(path))
    }
}

/// Mount points below `places` in all mount namespaces. Where they cannot be read, anything may be
/// mounted: then they are those that `all` names, and nothing is called reclaimable.
pub(super) fn mounts_below(
    places: &[PathBuf],
    findings: &mut Vec<Finding>,
    all: impl FnOnce() -> Vec<PathBuf>,
) -> Vec<PathBuf> {
    namespaces::points_below(places).unwrap_or_else(|error| {
        let message = format!("cannot be read: {error}; treating everything as mounted");
        findings.push(Finding::new("/proc/self/mountinfo", message));
        all()
    })
}
