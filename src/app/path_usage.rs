//! Who holds what is at and below a path: one column that adds up to what `du -x` counts there.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use super::diagnosis::{self, Part};
use super::observer::Observer;
use super::outside;
use super::request::Request;
use crate::config::Config;
use crate::disk::Progress;
use crate::model::refs::{self, Fair, LineKind, Root};
use crate::model::{ContainerIx, Finding, ImageIx, LeakIx, NodeIx};
use crate::stores::Scan;
use crate::stores::lookup::Located;
use crate::stores::other_usage::{self, Below, OutsideUse};
use crate::sys::mounts::{self, Mount};

/// What is at and below a path, by who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// As the node itself names it.
    pub path: String,
    pub is_directory: bool,
    /// Allocated bytes, hard links once: the sum of the rows.
    pub bytes: u64,
    pub rows: Vec<Row>,
    /// Where other filesystems with blocks of their own are mounted below it.
    pub other_filesystems: Vec<String>,
}

/// Bytes of one owner: not 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub owner: Owner,
    pub bytes: u64,
}

/// Who holds bytes. Layers are divided equally among the images and containers that reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Image(ImageIx),
    /// So many containers, or leaks; of the store's own none are counted.
    Store(LineKind, Option<usize>),
    /// In no store.
    Outside(Part),
    /// What is too small for a row.
    Rest,
}

/// Measures a path of a scan that has kept its trees. Also returns what could not be read.
pub(super) fn owners(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    at: &Located,
) -> (Owned, Vec<Finding>) {
    let progress = std::sync::Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    let known = outside::known(request, config, scan, None);
    let below = other_usage::below(scan, &known, at, &progress);
    drop(shown);
    let inside = |path: &Path| scan.sysroot.shown(path);
    let mut rows = of_stores(&below);
    rows.extend(of_outside(&below.outside, at, &inside));
    rows.retain(|row| row.bytes > 0);
    let bytes = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let owned = Owned {
        path: inside(&at.path),
        is_directory: at.is_directory,
        bytes,
        rows,
        other_filesystems: mounted_below(&at.path).iter().map(|path| inside(path)).collect(),
    };
    (owned, below.findings)
}

/// The mount points below a directory of filesystems on other devices.
fn mounted_below(at: &Path) -> Vec<PathBuf> {
    let Ok(mounts) = mounts::read() else { return Vec::new() };
    let here = mounts.iter().filter(|one| at.starts_with(&one.mount_point));
    let here = here.max_by_key(|one| one.mount_point.as_os_str().len()).map(|one| one.device);
    let is_other = |one: &&Mount| {
        let is_below = one.mount_point != at && one.mount_point.starts_with(at);
        is_below && one.source.starts_with("/dev/") && Some(one.device) != here
    };
    let mut points: Vec<_> = mounts.iter().filter(is_other).map(|one| one.mount_point.clone()).collect();
    points.sort();
    points.dedup();
    points
}

/// The fair column: images, the largest first, and one row for each kind of the rest.
fn of_stores(Below { inventory, refs, .. }: &Below) -> Vec<Row> {
    let fair = refs::fair(inventory, refs, |node| inventory[node].size.bytes);
    let images = (0..inventory.images.len()).map(ImageIx::from);
    let mut rows: Vec<_> =
        images.map(|at| Row { owner: Owner::Image(at), bytes: fair.of_image(at) }).collect();
    rows.sort_by_key(|row| Reverse(row.bytes));
    for kind in [LineKind::ContainersRunning, LineKind::ContainersExited, LineKind::ContainersOther] {
        let all = (0..inventory.containers.len()).map(ContainerIx::from);
        let of_kind = all.filter(|at| LineKind::of_container(inventory[*at].state) == kind);
        let shares: Vec<_> = of_kind.map(|at| fair.of_container(at)).filter(|bytes| *bytes > 0).collect();
        rows.push(Row { owner: Owner::Store(kind, Some(shares.len())), bytes: shares.iter().sum() });
    }
    let is_here = |node: &NodeIx| inventory[*node].size.bytes > 0 && refs.refcount(*node) == 0;
    let leaks = (0..inventory.leaks.len()).map(LeakIx::from);
    let leaks = leaks.filter(|at| refs.reach(Root::Leak(*at)).iter().any(is_here)).count();
    let Fair { build_cache, leaks: bytes, metadata, other, .. } = fair;
    rows.extend([
        Row { owner: Owner::Store(LineKind::BuildCache, None), bytes: build_cache },
        Row { owner: Owner::Store(LineKind::Leaks, Some(leaks)), bytes },
        Row { owner: Owner::Store(LineKind::Metadata, None), bytes: metadata },
        Row { owner: Owner::Store(LineKind::Other, None), bytes: other },
    ]);
    rows
}

/// What is in no store: the largest by name, then the rest with the directory's own entry.
fn of_outside(all: &[OutsideUse], at: &Located, inside: &dyn Fn(&Path) -> String) -> Vec<Row> {
    /// More of them tell nobody where to look.
    const NAMED: usize = 20;
    let (own, mut named): (Vec<_>, Vec<_>) =
        all.iter().partition(|one| at.is_directory && one.path == at.path);
    named.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    let small = named.split_off(named.len().min(NAMED));
    let rest = own.into_iter().chain(small).fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
    let named = named.into_iter().map(|one| {
        let part = diagnosis::of_use(one.kind, &one.path, one.holder.as_deref(), one.bytes, inside);
        Row { bytes: part.bytes, owner: Owner::Outside(part) }
    });
    named.chain([Row { owner: Owner::Rest, bytes: rest }]).collect()
}
