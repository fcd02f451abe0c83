//! Units of all kinds of stores: files and directories that are counted together.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use crate::disk::TreeScope;
use crate::model::NodeIx;
use crate::sys::quiet::DirectoryEntry;

/// Entries of each directory that was listed, by its path.
pub type DirectoryListing = BTreeMap<PathBuf, Vec<DirectoryEntry>>;

/// A tree to walk: position of its root, path below that root, part of the tree.
pub type UnitTree = (usize, PathBuf, TreeScope);

pub trait UnitKind: Clone + Debug {
    /// Returns the kind as text. Together with id and parts it identifies a unit.
    fn tag(&self) -> &'static str;
}

/// Files and directories whose bytes are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit<K> {
    pub kind: K,
    pub id: String,
    /// Main directory or file, absolute.
    pub path: PathBuf,
    pub parts: Vec<UnitTree>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UnitView<'a> {
    pub(super) tag: &'static str,
    pub(super) id: &'a str,
    pub(super) parts: &'a [UnitTree],
}

pub(super) fn views<K: UnitKind>(units: &[Unit<K>]) -> Vec<UnitView<'_>> {
    let units = units.iter();
    units.map(|unit| UnitView { tag: unit.kind.tag(), id: &unit.id, parts: &unit.parts }).collect()
}

#[derive(Clone, Debug, Default)]
pub struct StoreTrees {
    pub roots: Vec<PathBuf>,
    /// Each tree with its node. Its root is one of `roots`.
    pub parts: Vec<(NodeIx, UnitTree)>,
}

impl StoreTrees {
    /// Adds the units of a store. `nodes` are their nodes, in the same order.
    pub(super) fn add(&mut self, roots: Vec<PathBuf>, units: Vec<Vec<UnitTree>>, nodes: &[NodeIx]) {
        let first = self.roots.len();
        for (parts, node) in units.into_iter().zip(nodes) {
            let parts = parts.into_iter().map(|(root, path, scope)| (*node, (first + root, path, scope)));
            self.parts.extend(parts);
        }
        self.roots.extend(roots);
    }
}
