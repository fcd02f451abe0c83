//! What is at and below one directory, as `du -x` counts it: each byte with its object of the scan, or with
//! what it is outside of every store.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::places;
use super::types::{KnownUse, OtherUsageRequest, OtherUserKind};
use crate::disk::filesystem::CostModel;
use crate::disk::{Extents, Measured, Progress, Tree, TreeScope, WalkOptions, measure};
use crate::model::refs::Refs;
use crate::model::{Finding, Inventory, NodeIx, Size};
use crate::stores::Scan;
use crate::stores::lookup::Located;
use crate::stores::measurement::Shares;
use crate::sys::mounts::{self, Mount};
use crate::sys::quiet::{self, Within};

/// What a directory holds.
#[derive(Clone, Debug)]
pub struct Below {
    /// The scan's, with those bytes alone that are there.
    pub inventory: Inventory,
    pub refs: Refs,
    pub outside: Vec<OutsideUse>,
    /// What could not be read.
    pub findings: Vec<Finding>,
}

/// Something that is in no store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideUse {
    pub kind: OtherUserKind,
    pub path: PathBuf,
    /// Whose it is, where the kind does not say.
    pub holder: Option<String>,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Measures what is at and below a place. The scan has to have kept its trees.
#[must_use]
pub fn below(scan: &Scan, known: &OtherUsageRequest, at: &Located, progress: &Progress) -> Below {
    let mut findings = Vec::new();
    let places = places::find(scan, known, &mut findings);
    findings.retain(|finding| finding.path.starts_with(&at.path));
    let mut within = Within::default();
    scan.places.iter().flatten().for_each(|places| within.extend(places.within()));
    let mut plan = WalkPlan::new(scan, &at.path);
    if !plan.add_stores(scan) {
        // Held: a user may exchange a directory on the way for a symlink into his own mount.
        let directory = if at.is_directory { Some(&*at.path) } else { at.path.parent() };
        let held = scan.sysroot.open(&scan.sysroot.display(directory.unwrap_or(&at.path)));
        match held {
            Ok(root) => {
                within.extend(Within::new([&root]));
                plan.add_outside(at, places, &within, &mut findings);
            }
            Err(error) => {
                findings.push(Finding::incomplete(&at.path, format!("opening it: {error}; not counted")));
            }
        }
    }
    let options = WalkOptions {
        threads: known.threads,
        // As `du`: what files share by reflink counts with each of them.
        extents: Extents::Off,
        apart: &plan.apart,
        within,
        progress: Some(progress),
        ..WalkOptions::default()
    };
    let measured = measure(&plan.roots, &plan.trees, &options);
    findings.extend(unread(&measured, &at.path, "not counted"));
    if measured.mounts.iter().any(|(_, path)| *path == at.path) {
        findings.push(Finding::new(&at.path, "a filesystem is mounted there: what it shows is not counted"));
    }
    let (inventory, outside) = divided(scan, measured, plan.outside);
    Below { refs: Refs::new(&inventory), inventory, outside, findings }
}

/// What to walk. Units are nodes of the inventory, and behind them what is outside.
struct WalkPlan<'a> {
    at: &'a Path,
    /// Those of the stores, then others.
    roots: Vec<PathBuf>,
    trees: Vec<Tree<'static>>,
    /// Roots that trees of their own count.
    apart: Vec<usize>,
    outside: Vec<OutsideUse>,
    nodes: usize,
    /// Roots of stores that are counted from the top.
    tops: HashSet<usize>,
    /// Roots of stores that are at or below `at`, on its filesystem.
    here: Vec<bool>,
    /// What belongs to a store in a directory that does not.
    held: HashSet<PathBuf>,
}

impl<'a> WalkPlan<'a> {
    fn new(scan: &Scan, at: &'a Path) -> Self {
        let (mut roots, parts) = (scan.trees.roots.clone(), scan.trees.parts.iter());
        let mounts = mounts::read().unwrap_or_default();
        for root in &mut roots {
            if let Some(path) = seen_below(&mounts, at, root) {
                *root = path;
            }
        }
        let tops = parts.filter(|(_, part)| part.1.as_os_str().is_empty()).map(|(_, part)| part.0);
        Self {
            here: are_here(roots.iter().map(PathBuf::as_path), at),
            tops: tops.collect(),
            at,
            roots,
            trees: Vec::new(),
            apart: Vec::new(),
            outside: Vec::new(),
            nodes: scan.inventory.nodes.len(),
            held: HashSet::new(),
        }
    }

    fn tree(&mut self, root: usize, path: PathBuf, unit: usize, scope: TreeScope) {
        self.trees.push(Tree { root, path: path.into(), unit, scope });
    }

    /// Whether a path is at or below a directory whose every entry is a store's.
    fn is_in_store(&self, path: &Path) -> bool {
        self.tops.iter().any(|top| path.starts_with(&self.roots[*top]))
    }

    /// Adds what of the stores is there; returns whether that is everything.
    fn add_stores(&mut self, scan: &Scan) -> bool {
        self.apart.extend(self.tops.iter().copied().filter(|top| self.here[*top]));
        let mut covered = self.is_in_store(self.at);
        for (node, (root, path, scope)) in &scan.trees.parts {
            let (at, directory, unit) = (self.at, &self.roots[*root], node.get());
            if self.here[*root] {
                if !self.tops.contains(root) {
                    self.held.insert(directory.join(path));
                }
                self.tree(*root, path.clone(), unit, *scope);
                continue;
            }
            let Ok(below) = at.strip_prefix(directory) else { continue };
            if path.starts_with(below) {
                covered |= path == below && scope.is_whole();
                self.tree(*root, path.clone(), unit, *scope);
            } else if scope.is_whole() && below.starts_with(path) {
                // Another store may begin between the two.
                let whole = directory.join(path);
                let begins =
                    |top: &usize| at.starts_with(&self.roots[*top]) && self.roots[*top].starts_with(&whole);
                if !self.tops.iter().any(|top| top != root && begins(top)) {
                    covered = true;
                    self.tree(*root, below.to_path_buf(), unit, TreeScope::Whole);
                }
            }
        }
        covered
    }

    /// Adds the rest: by its known uses, and by the entries of the directory.
    fn add_outside(
        &mut self,
        at: &Located,
        mut places: Vec<KnownUse>,
        within: &Within,
        findings: &mut Vec<Finding>,
    ) {
        places.retain(|place| !place.is_store && !self.is_in_store(&place.path));
        let around = places.iter().filter(|place| self.at.starts_with(&place.path));
        let around = around.max_by_key(|place| place.path.components().count());
        let (kind, holder) =
            around.map_or((OtherUserKind::Directory, None), |place| (place.kind, place.holder.clone()));
        let user = OutsideUse { kind, path: at.path.clone(), holder, bytes: 0 };

        let named: HashSet<_> = places.iter().map(|place| place.path.clone()).collect();
        let temporary: HashSet<_> = self.held.iter().filter_map(|held| held.parent()).collect();
        let unnamed = temporary.into_iter().filter(|path| !named.contains(*path) && !self.is_in_store(path));
        let unnamed = unnamed.map(|path| (OtherUserKind::VarTmp, path.to_path_buf(), None));
        let places = places.into_iter().map(|place| (place.kind, place.path, place.holder));
        let mut inside: Vec<_> = places.chain(unnamed).filter(|(_, path, _)| path != self.at).collect();
        let mut are_here = are_here(inside.iter().map(|(_, path, _)| path.as_path()), self.at).into_iter();
        inside.retain(|_| are_here.next().unwrap_or(false));

        let root = self.root(&at.path);
        self.entry(root, PathBuf::new(), TreeScope::EntryOnly, &user);
        if at.is_directory {
            self.entries(root, &user, true, (within, findings));
        }
        for (kind, path, holder) in inside {
            let user = OutsideUse { kind, holder, bytes: 0, path };
            let root = self.root(&user.path);
            self.apart.push(root);
            if self.held.iter().any(|held| held.parent() == Some(&user.path)) {
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

    /// A tree that goes to a use, the last one if it is the same.
    fn entry(&mut self, root: usize, path: PathBuf, scope: TreeScope, user: &OutsideUse) {
        if self.outside.last() != Some(user) {
            self.outside.push(user.clone());
        }
        self.tree(root, path, self.nodes + self.outside.len() - 1, scope);
    }

    /// A tree for each entry of a directory; `each`: which is a use of its own.
    fn entries(
        &mut self,
        root: usize,
        user: &OutsideUse,
        each: bool,
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
            if self.held.contains(&path) {
                continue;
            }
            let kind = match user.kind {
                OtherUserKind::Directory => places::kind_on_top(&entry),
                kind => kind,
            };
            let own = OutsideUse { kind, path, ..user.clone() };
            let name = PathBuf::from(entry.name);
            self.entry(root, name, TreeScope::Whole, if each { &own } else { user });
        }
    }
}

/// The path below `directory` of a store's directory that was found through another mount: the source of a bind mount
/// shows the same files.
fn seen_below(mounts: &[Mount], directory: &Path, root: &Path) -> Option<PathBuf> {
    if root.starts_with(directory) || directory.starts_with(root) {
        return None;
    }
    let here = mounts::location(mounts, directory)?;
    let there = mounts::location(mounts, root).filter(|there| there.is_within(&here))?;
    let path = directory.join(there.path.strip_prefix(&here.path).ok()?);
    (mounts::location(mounts, &path)? == there).then_some(path)
}

/// Which of some paths are at or below a directory, and on its filesystem.
fn are_here<'p>(paths: impl Iterator<Item = &'p Path>, at: &Path) -> Vec<bool> {
    let device = |path: &Path| quiet::facts(path).ok().map(|facts| facts.device);
    let own = LazyCell::new(|| device(at));
    paths.map(|path| path == at || path.starts_with(at) && own.is_some() && device(path) == *own).collect()
}

/// The inventory with the measured sizes, and what is in no store. Inodes that a store shares with what is
/// outside count with the store.
fn divided(scan: &Scan, measured: Measured, mut outside: Vec<OutsideUse>) -> (Inventory, Vec<OutsideUse>) {
    let mut inventory = scan.inventory.clone();
    let nodes = inventory.nodes.len();
    let mut tallies = measured.units.into_iter();
    for node in &mut inventory.nodes {
        let bytes = tallies.next().unwrap_or_default().bytes;
        node.size = Size { bytes, ..Size::default() };
    }
    outside.iter_mut().zip(tallies).for_each(|(user, tally)| user.bytes = tally.bytes);
    for shared in measured.shared_inodes.iter().filter(|shared| shared.units.iter().all(|at| *at >= nodes)) {
        let first = shared.units.first().and_then(|first| outside.get_mut(*first - nodes));
        first.into_iter().for_each(|user| user.bytes += shared.tally.bytes);
    }
    let all: HashMap<usize, NodeIx> = (0..nodes).map(|at| (at, at.into())).collect();
    let costs = vec![CostModel::default(); inventory.filesystems.len()];
    let shares = Shares { inodes: measured.shared_inodes, ..Shares::default() };
    shares.share(&mut inventory, &all, &costs);
    (inventory, outside)
}

/// What a walk could not read, and what that means for its bytes.
pub(super) fn unread<'m>(
    measured: &'m Measured,
    top: &'m Path,
    so: &'m str,
) -> impl Iterator<Item = Finding> + 'm {
    /// More say nothing more.
    const MOST: usize = 10;
    let errors = measured.errors.iter().filter(|error| !error.vanished);
    let more = errors.clone().count().saturating_sub(MOST);
    let more = (more > 0).then(|| Finding::incomplete(top, format!("{more} more could not be read; {so}")));
    let listed = errors.take(MOST);
    listed.map(move |error| Finding::incomplete(&error.path, format!("{}; {so}", error.message))).chain(more)
}
