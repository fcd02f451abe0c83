//! Units: what is counted together, for every kind of store.

use std::fmt::Debug;
use std::path::PathBuf;

use crate::disk::TreeScope;
use crate::model::NodeIx;

/// A tree to walk: position of the root that its path is below, that path, how much of it.
pub type UnitTree = (usize, PathBuf, TreeScope);

/// What a unit is, in one kind of store.
pub trait UnitKind: Clone + Debug {
    /// Its kind as text. With id and parts it identifies a unit.
    fn tag(&self) -> &'static str;
}

/// Something whose bytes are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit<K> {
    pub kind: K,
    /// Its id or name.
    pub id: String,
    /// Its main directory or file, absolute.
    pub path: PathBuf,
    /// What to walk.
    pub parts: Vec<UnitTree>,
}

/// A unit of any kind of store, for the measurement.
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

/// The trees of all units of all stores.
#[derive(Clone, Debug, Default)]
pub struct StoreTrees {
    /// The roots of all stores.
    pub roots: Vec<PathBuf>,
    /// Each tree with its node. Its root is one of `roots`.
    pub parts: Vec<(NodeIx, UnitTree)>,
}

impl StoreTrees {
    /// Adds a store's units, of which `nodes` are the nodes, one by one.
    pub(super) fn add(&mut self, roots: Vec<PathBuf>, units: Vec<Vec<UnitTree>>, nodes: &[NodeIx]) {
        let first = self.roots.len();
        for (parts, node) in units.into_iter().zip(nodes) {
            let parts = parts.into_iter().map(|(root, path, scope)| (*node, (first + root, path, scope)));
            self.parts.extend(parts);
        }
        self.roots.extend(roots);
    }
}
