//! Adds a store of any kind to an inventory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::leaks::Judgement;
use super::store::Filling;
use crate::disk::Tally;
use crate::disk::filesystem::CostModel;
use crate::model::{
    FilesystemIx, Finding, Inventory, Leak, LeakClass, Node, NodeIx, NodeKind, Size, StoreIx, Verdict,
};
use crate::sys::clock::Present;
use crate::sys::namespaces::Mounts;
use crate::sys::processes::describe_unknown;

/// Target of filling an inventory with one store, and facts beside the store itself.
#[derive(Debug)]
pub struct InventoryWriter<'a> {
    pub inventory: &'a mut Inventory,
    pub store: StoreIx,
    pub root_costs: &'a [(FilesystemIx, CostModel)],
    /// Mount points that are in use now.
    pub mounts: &'a [PathBuf],
    pub labels: bool,
    /// The only image whose files are read; `None`: those of all images.
    pub image: Option<&'a str>,
    pub origins: bool,
    pub blobs: bool,
    pub present: &'a Present,
    /// True if leaks are searched. Dangling records are always reported.
    pub leaks: bool,
}

impl<'a> InventoryWriter<'a> {
    pub(super) fn of(
        filling: &'a mut Filling<'_>,
        store: StoreIx,
        root_costs: &'a [(FilesystemIx, CostModel)],
        mounts: &'a [PathBuf],
    ) -> Self {
        let request = filling.request;
        Self {
            inventory: filling.inventory,
            store,
            root_costs,
            mounts,
            labels: request.labels,
            image: request.image.as_deref(),
            origins: request.reads_origins(),
            blobs: request.blobs,
            present: filling.present,
            leaks: request.measure.finds_leaks(),
        }
    }
}

impl InventoryWriter<'_> {
    /// Returns these nodes and everything that they need.
    pub(super) fn reach(&self, start: impl Iterator<Item = NodeIx>) -> HashSet<NodeIx> {
        let mut waiting: Vec<_> = start.collect();
        let mut reached = HashSet::new();
        while let Some(node) = waiting.pop() {
            if reached.insert(node) {
                waiting.extend(&self.inventory[node].needs);
            }
        }
        reached
    }

    pub(super) fn reads_labels_of(&self, id: &str) -> bool {
        self.labels && self.image.is_none_or(|image| image == id)
    }

    pub(super) fn cost_of(&self, root: usize) -> (FilesystemIx, CostModel) {
        self.root_costs.get(root).copied().unwrap_or((FilesystemIx::from(0), CostModel::default()))
    }

    /// Returns the size of `tally`, which was measured below root `area`.
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

    /// Returns true if something is mounted at or below `path`.
    pub(super) fn is_mounted(&self, path: &Path) -> bool {
        self.mounts.iter().any(|mount| mount.starts_with(path))
    }
}

/// Returns the mount points below `places` in the mount namespaces of all processes that can reach one of `content`,
/// the directories whose content is mounted. If they cannot be read, returns the paths of
/// `all` and adds a finding: everything counts as mounted then, so nothing is called reclaimable.
pub(super) fn mounts_below(
    of: (&[PathBuf], &[PathBuf]),
    findings: &mut Vec<Finding>,
    all: impl FnOnce() -> Vec<PathBuf>,
) -> Vec<PathBuf> {
    mounts_of(of, findings).map_or_else(all, |mounts| mounts.points_below())
}

/// Returns the mounts that [`mounts_below`] is about; `None` with a finding if they cannot be read.
pub(super) fn mounts_of(
    (places, content): (&[PathBuf], &[PathBuf]),
    findings: &mut Vec<Finding>,
) -> Option<Mounts> {
    match Mounts::read_of(places, content) {
        Ok(mounts) => {
            report_unknown(&mounts, findings);
            Some(mounts)
        }
        Err(error) => {
            let message =
                format!("the mounts of processes are unknown: {error}; treating everything as mounted");
            findings.push(Finding::incomplete("/proc", message));
            None
        }
    }
}

/// Adds one finding, once for all stores, if the mounts of processes that can reach a store are unknown, although this
/// process may read them.
pub(super) fn report_unknown(mounts: &Mounts, findings: &mut Vec<Finding>) {
    let unknown = describe_unknown(mounts.unknown_views().iter().filter(|unknown| !unknown.is_refused));
    let finding = unknown.map(|why| Finding::incomplete("/proc", why));
    findings.extend(finding.filter(|finding| !findings.contains(finding)));
}

/// Maximum number of leaks of a class in a store that are listed although they cannot be deleted, and of warnings
/// about a store. The rest are counted: any user can cause very many of them.
const MOST_LISTED: usize = 1000;

/// Counts the leaks and findings of a store that exceed [`MOST_LISTED`]. The store's leaks and findings start at
/// these positions.
pub(super) fn count_rest(inventory: &mut Inventory, store: StoreIx, leaks: usize, findings: usize) {
    let root = inventory[store].root.clone();
    let mut counts: BTreeMap<LeakClass, usize> = BTreeMap::new();
    for leak in inventory.leaks.split_off(leaks) {
        let is_report_only = leak.class.recipe().is_none() && leak.holds.is_empty();
        let count = counts.entry(leak.class).or_default();
        *count += usize::from(is_report_only);
        if !is_report_only || *count <= MOST_LISTED {
            inventory.leaks.push(leak);
        }
    }
    for (class, count) in counts.into_iter().filter(|(_, count)| *count > MOST_LISTED) {
        let more = count - MOST_LISTED;
        inventory.leaks.push(Leak {
            class,
            store,
            path: root.clone(),
            id: format!("{more} more"),
            since: None,
            verdict: Verdict::Report,
            evidence: format!("and {more} more of this class in this store"),
            holds: Vec::new(),
        });
    }
    let kept = findings + MOST_LISTED;
    if inventory.findings.len() > kept {
        let rest = inventory.findings.split_off(kept);
        let incomplete = rest.iter().any(|finding| finding.incomplete);
        let message = format!("and {} more warnings about this store", rest.len());
        inventory.findings.push(Finding { path: root, message, incomplete });
    }
}
