//! Owners of the bytes at and below a path, in one column whose sum is the count of `du -x`.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::disk::Progress;
use crate::model::refs::{self, Fair, LineKind, Root};
use crate::model::{ContainerIx, Finding, ImageIx, LeakIx};
use crate::services::diagnosis::{self, Part};
use crate::services::observer::Observer;
use crate::services::outside;
use crate::services::request::Request;
use crate::stores::Scan;
use crate::stores::lookup::Located;
use crate::stores::other_usage::{self, BytesBelow, OutsideUse};
use crate::sys::mounts;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The path as the node itself names it.
    pub path: String,
    pub is_directory: bool,
    /// Sum of the rows: allocated bytes, hard links counted once.
    pub bytes: u64,
    /// Sum of the rows: files and directories, hard links counted once.
    pub inodes: u64,
    pub rows: Vec<OwnerRow>,
    /// Mount points below the path of filesystems with their own blocks.
    pub other_filesystems: Vec<String>,
}

/// Bytes and inodes of one owner, not both 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRow {
    pub owner: Owner,
    pub bytes: u64,
    pub inodes: u64,
}

/// Owner of bytes. Layers are divided equally among the images and containers that reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Image(ImageIx),
    /// Data of a store, with the number of containers or leaks; other data of the store is not counted.
    Store(LineKind, Option<usize>),
    /// Data outside the stores.
    Outside(Part),
    /// All data that is too small for its own row.
    Rest,
}

/// Measures a path of a scan that kept its trees. Also returns findings about data that could not be read.
pub(super) fn owners(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    located: &Located,
) -> (Owned, Vec<Finding>) {
    let progress = std::sync::Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    let known = outside::known(request, config, scan, None);
    let below = other_usage::below(scan, &known, located, &progress);
    drop(shown);
    let mut rows = of_stores(&below);
    rows.extend(of_outside(&below.outside, located, &|path| scan.sysroot.shown(path)));
    rows.retain(|row| row.bytes > 0 || row.inodes > 0);
    let bytes = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let inodes = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.inodes));
    let owned = Owned {
        path: scan.sysroot.shown(&located.path),
        is_directory: located.is_directory,
        bytes,
        inodes,
        rows,
        other_filesystems: mounted_below(&located.path).iter().map(|path| scan.sysroot.shown(path)).collect(),
    };
    (owned, below.findings)
}

/// Returns the mount points of filesystems on other devices below a directory.
fn mounted_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(mounts) = mounts::read() else { return Vec::new() };
    let above = mounts.iter().filter(|mount| dir.starts_with(&mount.mount_point));
    let device = above.max_by_key(|mount| mount.mount_point.as_os_str().len()).map(|mount| mount.device);
    let mut points: Vec<_> = mounts
        .iter()
        .filter(|mount| mount.mount_point != dir && mount.mount_point.starts_with(dir))
        .filter(|mount| mount.source.starts_with("/dev/") && Some(mount.device) != device)
        .map(|mount| mount.mount_point.clone())
        .collect();
    points.sort();
    points.dedup();
    points
}

/// Returns the rows of the stores: images, the largest first, and one row for each kind of other data.
fn of_stores(BytesBelow { inventory, refs, .. }: &BytesBelow) -> Vec<OwnerRow> {
    let fair = refs::fair(inventory, refs, |node| inventory[node].size.bytes);
    let inodes = refs::fair(inventory, refs, |node| inventory[node].size.inodes);
    let images = (0..inventory.images.len()).map(ImageIx::from);
    let mut rows: Vec<_> = images
        .map(|ix| OwnerRow { owner: Owner::Image(ix), bytes: fair.of_image(ix), inodes: inodes.of_image(ix) })
        .collect();
    rows.sort_by_key(|row| Reverse(row.bytes));
    for kind in [LineKind::ContainersRunning, LineKind::ContainersExited, LineKind::ContainersOther] {
        let containers = (0..inventory.containers.len()).map(ContainerIx::from);
        let of_kind = containers.filter(|ix| LineKind::of_container(inventory[*ix].state) == kind);
        let shares: Vec<_> = of_kind
            .map(|ix| (fair.of_container(ix), inodes.of_container(ix)))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        rows.push(OwnerRow {
            owner: Owner::Store(kind, Some(shares.len())),
            bytes: shares.iter().map(|(bytes, _)| bytes).sum(),
            inodes: shares.iter().map(|(_, inodes)| inodes).sum(),
        });
    }
    let leaks = (0..inventory.leaks.len())
        .map(LeakIx::from)
        .filter(|ix| {
            let mut nodes = refs.reach(Root::Leak(*ix)).iter();
            nodes.any(|node| inventory[*node].size.bytes > 0 && refs.refcount(*node) == 0)
        })
        .count();
    type Closing = (LineKind, Option<usize>, fn(&Fair) -> u64);
    let closing: [Closing; 4] = [
        (LineKind::BuildCache, None, |fair| fair.build_cache),
        (LineKind::Leaks, Some(leaks), |fair| fair.leaks),
        (LineKind::Metadata, None, |fair| fair.metadata),
        (LineKind::Other, None, |fair| fair.other),
    ];
    rows.extend(closing.map(|(kind, count, of)| OwnerRow {
        owner: Owner::Store(kind, count),
        bytes: of(&fair),
        inodes: of(&inodes),
    }));
    rows
}

/// Returns the rows of data outside the stores: the largest by name, then the rest with the entry of the directory
/// itself. `shown` converts a path to the name that the node itself uses.
fn of_outside(uses: &[OutsideUse], located: &Located, shown: &dyn Fn(&Path) -> String) -> Vec<OwnerRow> {
    /// Maximum number of rows with a name; a few more if they have the most inodes.
    const NAMED: usize = 20;
    /// Number of the entries with the most inodes that get a row in any case.
    const MOST_INODES: usize = 3;
    let (directory, mut named): (Vec<_>, Vec<_>) =
        uses.iter().partition(|use_| located.is_directory && use_.path == located.path);
    named.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    let mut small = named.split_off(named.len().min(NAMED));
    small.sort_by_key(|use_| Reverse(use_.inodes));
    named.extend(small.drain(..small.len().min(MOST_INODES)));
    let rest = directory.into_iter().chain(small).fold((0, 0), |(bytes, inodes): (u64, u64), use_| {
        (bytes.saturating_add(use_.bytes), inodes.saturating_add(use_.inodes))
    });
    let named = named.into_iter().map(|use_| {
        let part = diagnosis::of_use(use_.kind, &use_.path, use_.holder.as_deref(), use_.bytes, shown);
        let part = Part { inodes: use_.inodes, ..part };
        OwnerRow { bytes: part.bytes, inodes: part.inodes, owner: Owner::Outside(part) }
    });
    named.chain([OwnerRow { owner: Owner::Rest, bytes: rest.0, inodes: rest.1 }]).collect()
}
