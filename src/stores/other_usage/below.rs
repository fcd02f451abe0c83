//! Use of one directory, or file, as `du -x` counts it: each byte with its object of the scan, or with its kind of
//! use outside the stores.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::places;
use super::types::{KnownUse, OtherUsageRequest, OtherUserKind};
use crate::disk::filesystem::CostModel;
use crate::disk::{Measured, Progress, Tally, Tree, TreeScope, WalkOptions, measure};
use crate::model::refs::Refs;
use crate::model::{Finding, Inventory, NodeIx, Size};
use crate::stores::Scan;
use crate::stores::lookup::Located;
use crate::stores::measurement::Shares;
use crate::sys::mounts::{self, Mount};
use crate::sys::quiet::{self, Within};

#[derive(Clone, Debug)]
pub struct BytesBelow {
    /// Inventory of the scan, with only those bytes that are in the directory.
    pub inventory: Inventory,
    pub refs: Refs,
    pub outside: Vec<OutsideUse>,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideUse {
    pub kind: OtherUserKind,
    pub path: PathBuf,
    /// Owner, if the kind does not imply it.
    pub holder: Option<String>,
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
}

/// Measures a path and everything below it. The scan must have kept its trees.
#[must_use]
pub fn below(scan: &Scan, known: &OtherUsageRequest, located: &Located, progress: &Progress) -> BytesBelow {
    let mut findings = Vec::new();
    let places = places::find(scan, known, &mut findings);
    findings.retain(|finding| finding.path.starts_with(&located.path));
    let mut within = Within::default();
    scan.editable.iter().flatten().for_each(|places| within.extend(places.within()));
    let mut plan = WalkPlan::new(scan, &located.path);
    if !plan.add_stores(scan) {
        // Opened once: a user may replace a directory on the path by a symlink into a mount of his own.
        let directory = if located.is_directory { Some(&*located.path) } else { located.path.parent() };
        let opened = scan.sysroot.open(&scan.sysroot.display(directory.unwrap_or(&located.path)));
        match opened {
            Ok(root) => {
                within.extend(Within::new([&root]));
                plan.add_outside(located, places, &within, &mut findings);
            }
            Err(error) => {
                findings
                    .push(Finding::incomplete(&located.path, format!("opening it: {error}; not counted")));
            }
        }
    }
    let options = WalkOptions {
        threads: known.threads,
        // As `du`: bytes that files share by reflink count with each of them.
        extents: None,
        apart: &plan.apart,
        within,
        progress: Some(progress),
        ..WalkOptions::default()
    };
    let measured = measure(&plan.roots, &plan.trees, &options);
    findings.extend(unread(&measured, &located.path, "not counted"));
    if measured.mounts.iter().any(|(_, path)| *path == located.path) {
        findings
            .push(Finding::new(&located.path, "a filesystem is mounted there: what it shows is not counted"));
    }
    let (inventory, outside) = divided(scan, measured, plan.outside);
    BytesBelow { refs: Refs::new(&inventory), inventory, outside, findings }
}

/// Trees to walk. The first units are the nodes of the inventory, the others are uses outside the stores.
struct WalkPlan<'a> {
    target: &'a Path,
    /// Roots of the stores, then others.
    roots: Vec<PathBuf>,
    trees: Vec<Tree<'static>>,
    apart: Vec<usize>,
    outside: Vec<OutsideUse>,
    nodes: usize,
    /// Roots of stores that a tree counts from the top.
    tops: HashSet<usize>,
    /// For each root of a store: true if it is at or below `target`, on the same filesystem.
    here: Vec<bool>,
    /// Entries that belong to a store, in directories that do not.
    store_entries: HashSet<PathBuf>,
}

impl<'a> WalkPlan<'a> {
    fn new(scan: &Scan, target: &'a Path) -> Self {
        let (mut roots, parts) = (scan.trees.roots.clone(), scan.trees.parts.iter());
        let mounts = mounts::read().unwrap_or_default();
        for root in &mut roots {
            if let Some(path) = seen_below(&mounts, target, root) {
                *root = path;
            }
        }
        let tops = parts.filter(|(_, part)| part.1.as_os_str().is_empty()).map(|(_, part)| part.0);
        Self {
            here: are_here(roots.iter().map(PathBuf::as_path), target),
            tops: tops.collect(),
            target,
            roots,
            trees: Vec::new(),
            apart: Vec::new(),
            outside: Vec::new(),
            nodes: scan.inventory.nodes.len(),
            store_entries: HashSet::new(),
        }
    }

    fn tree(&mut self, root: usize, path: PathBuf, unit: usize, scope: TreeScope) {
        self.trees.push(Tree { root, path: path.into(), unit, scope });
    }

    /// Returns true if a path is at or below a directory whose every entry belongs to a store.
    fn is_in_store(&self, path: &Path) -> bool {
        self.tops.iter().any(|top| path.starts_with(&self.roots[*top]))
    }

    /// Adds the trees of the stores at the target; returns true if they cover all of it.
    fn add_stores(&mut self, scan: &Scan) -> bool {
        self.apart.extend(self.tops.iter().copied().filter(|top| self.here[*top]));
        let mut covered = self.is_in_store(self.target);
        for (node, (root, path, scope)) in &scan.trees.parts {
            let (target, directory, unit) = (self.target, &self.roots[*root], node.get());
            if self.here[*root] {
                if !self.tops.contains(root) {
                    self.store_entries.insert(directory.join(path));
                }
                self.tree(*root, path.clone(), unit, *scope);
                continue;
            }
            let Ok(below) = target.strip_prefix(directory) else { continue };
            if path.starts_with(below) {
                covered |= path == below && scope.is_whole();
                self.tree(*root, path.clone(), unit, *scope);
            } else if scope.is_whole() && below.starts_with(path) {
                // Another store may start between the two.
                let whole = directory.join(path);
                let has_other_store = self.tops.iter().filter(|top| *top != root).any(|top| {
                    let top = &self.roots[*top];
                    target.starts_with(top) && top.starts_with(&whole)
                });
                if !has_other_store {
                    covered = true;
                    self.tree(*root, below.to_path_buf(), unit, TreeScope::Whole);
                }
            }
        }
        covered
    }

    /// Adds trees for everything outside the stores: by known uses, and by the entries of the directory.
    fn add_outside(
        &mut self,
        located: &Located,
        mut places: Vec<KnownUse>,
        within: &Within,
        findings: &mut Vec<Finding>,
    ) {
        places.retain(|place| !place.is_store && !self.is_in_store(&place.path));
        let around = places
            .iter()
            .filter(|place| self.target.starts_with(&place.path))
            .max_by_key(|place| place.path.components().count());
        let (kind, holder) =
            around.map_or((OtherUserKind::Directory, None), |place| (place.kind, place.holder.clone()));
        let user = OutsideUse { kind, path: located.path.clone(), holder, bytes: 0, inodes: 0 };

        let named: HashSet<_> = places.iter().map(|place| place.path.clone()).collect();
        let temporary: HashSet<_> =
            self.store_entries.iter().filter_map(|store_entry| store_entry.parent()).collect();
        let unnamed = temporary
            .into_iter()
            .filter(|path| !named.contains(*path) && !self.is_in_store(path))
            .map(|path| (OtherUserKind::VarTmp, path.to_path_buf(), None));
        let places = places.into_iter().map(|place| (place.kind, place.path, place.holder));
        let mut inside: Vec<_> = places.chain(unnamed).filter(|(_, path, _)| path != self.target).collect();
        let mut are_here =
            are_here(inside.iter().map(|(_, path, _)| path.as_path()), self.target).into_iter();
        inside.retain(|_| are_here.next().unwrap_or(false));

        let root = self.root(&located.path);
        self.entry(root, PathBuf::new(), TreeScope::EntryOnly, &user);
        if located.is_directory {
            self.entries(root, &user, true, (within, findings));
        }
        for (kind, path, holder) in inside {
            let user = OutsideUse { kind, holder, bytes: 0, inodes: 0, path };
            let root = self.root(&user.path);
            self.apart.push(root);
            if self.store_entries.iter().any(|store_entry| store_entry.parent() == Some(&user.path)) {
                self.entry(root, PathBuf::new(), TreeScope::EntryOnly, &user);
                self.entries(root, &user, false, (within, findings));
            } else {
                self.entry(root, PathBuf::new(), TreeScope::Whole, &user);
            }
        }
    }

    fn root(&mut self, path: &Path) -> usize {
        self.roots.push(path.to_path_buf());
        self.roots.len() - 1
    }

    /// Adds a tree of the use `user`. Consecutive trees of the same use have the same unit.
    fn entry(&mut self, root: usize, path: PathBuf, scope: TreeScope, user: &OutsideUse) {
        if self.outside.last() != Some(user) {
            self.outside.push(user.clone());
        }
        self.tree(root, path, self.nodes + self.outside.len() - 1, scope);
    }

    /// Adds a tree for each entry of a directory. With `by_entry`, each entry is a use of its own.
    fn entries(
        &mut self,
        root: usize,
        user: &OutsideUse,
        by_entry: bool,
        (within, findings): (&Within, &mut Vec<Finding>),
    ) {
        let entries = match within.list(&user.path) {
            Ok(entries) => entries,
            Err(error) => {
                let message = format!("listing it: {error}; not counted");
                return findings.push(Finding::incomplete(&user.path, message));
            }
        };
        for entry in entries {
            let path = user.path.join(&entry.name);
            if self.store_entries.contains(&path) {
                continue;
            }
            let kind = match user.kind {
                OtherUserKind::Directory => places::kind_on_top(&entry),
                kind => kind,
            };
            let name = PathBuf::from(entry.name);
            if by_entry {
                self.entry(root, name, TreeScope::Whole, &OutsideUse { kind, path, ..user.clone() })
            } else {
                self.entry(root, name, TreeScope::Whole, user)
            }
        }
    }
}

/// Returns the path below `directory` of a store's root that was found through another mount: the source of a bind
/// mount shows the same files.
fn seen_below(mounts: &[Mount], directory: &Path, root: &Path) -> Option<PathBuf> {
    if root.starts_with(directory) || directory.starts_with(root) {
        return None;
    }
    let here = mounts::location(mounts, directory)?;
    let there = mounts::location(mounts, root).filter(|there| there.is_within(&here))?;
    let path = directory.join(there.path.strip_prefix(&here.path).ok()?);
    (mounts::location(mounts, &path)? == there).then_some(path)
}

/// Returns for each path whether it is at or below `target`, and on the same filesystem.
fn are_here<'p>(paths: impl Iterator<Item = &'p Path>, target: &Path) -> Vec<bool> {
    let target_device = LazyCell::new(|| device_of(target));
    let is_here = paths.map(|path| {
        let is_below = path.starts_with(target) && path != target;
        path == target || is_below && target_device.is_some() && device_of(path) == *target_device
    });
    is_here.collect()
}

fn device_of(path: &Path) -> Option<u64> {
    quiet::facts(path).ok().map(|facts| facts.device)
}

/// Returns the inventory with the measured sizes, and the uses outside the stores. Inodes with links both in a store
/// and outside count with the store.
fn divided(scan: &Scan, measured: Measured, mut outside: Vec<OutsideUse>) -> (Inventory, Vec<OutsideUse>) {
    let mut inventory = scan.inventory.clone();
    let nodes = inventory.nodes.len();
    let mut tallies = measured.units.into_iter();
    for node in &mut inventory.nodes {
        let Tally { bytes, inodes, .. } = tallies.next().unwrap_or_default();
        node.size = Size { bytes, inodes, ..Size::default() };
    }
    for (user, tally) in outside.iter_mut().zip(tallies) {
        (user.bytes, user.inodes) = (tally.bytes, tally.inodes);
    }
    for shared in
        measured.shared_inodes.iter().filter(|shared| shared.units.iter().all(|unit| *unit >= nodes))
    {
        let first = shared.units.first().and_then(|first| outside.get_mut(*first - nodes));
        if let Some(user) = first {
            user.bytes += shared.tally.bytes;
            user.inodes += shared.tally.inodes;
        }
    }
    let all: HashMap<usize, NodeIx> = (0..nodes).map(|unit| (unit, unit.into())).collect();
    let costs = vec![CostModel::default(); inventory.filesystems.len()];
    let shares = Shares { inodes: measured.shared_inodes, ..Shares::default() };
    shares.share(&mut inventory, &all, &costs);
    (inventory, outside)
}

/// Returns the entries that a walk could not read, each with `consequence`, its effect on the bytes.
pub(super) fn unread<'m>(
    measured: &'m Measured,
    top: &'m Path,
    consequence: &'m str,
) -> impl Iterator<Item = Finding> + 'm {
    /// Maximum number of errors that are listed.
    const MOST: usize = 10;
    let errors = measured.errors.iter().filter(|error| !error.vanished);
    let more = errors.clone().count().saturating_sub(MOST);
    let more =
        (more > 0).then(|| Finding::incomplete(top, format!("{more} more could not be read; {consequence}")));
    let listed = errors
        .take(MOST)
        .map(move |error| Finding::incomplete(&error.path, format!("{}; {consequence}", error.message)));
    listed.chain(more)
}
