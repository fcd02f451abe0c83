//! Other users of the stores' filesystems: logs, the journal, volumes of pods, temporary files, and everything else
//! by its top-level directory, or by the things in that (`things`). Read-only; never crosses a mount.
//!
//! The scan has measured the stores, so they are left out here. Files with hard links or shared extents both in a
//! store and outside count only with the store: no byte counts twice.

mod below;
mod big;
mod entries;
mod large;
mod paths;
mod places;
mod sizes;
mod things;
mod types;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::Scan;
use crate::disk::{ExtentOptions, Progress, Tree, TreeScope, WalkOptions, filesystem, measure as walk};
use crate::model::space::BytesAndInodes;
use crate::model::text::volume::NerdctlVolume;
use crate::model::{Filesystem, FilesystemIx, Finding};
use crate::sys::deleted::{self, Backing, DeletedFile, DeletedFiles};
use crate::sys::mounts::{self, Location, Mount};
use crate::sys::quiet;

pub use below::{BytesBelow, OutsideUse, below};
pub use entries::{FileInDirectory, SizedEntry, entries, file};
pub use large::podman_volumes;
pub use paths::{LargePath, LargePathKind, largest_paths};
pub use places::filesystem_of;
use sizes::{by_unit, tree};
use types::KnownUse;
pub use types::{
    BigFile, LargeDirectory, OtherUsageRequest, OtherUser, OtherUserKind, OtherUsers, PodShare, SeenWhole,
    VolumeUse,
};

/// Inverse of the minimum share of the used bytes: a file below 1/200 of them is not named.
const SMALL: u64 = 200;
/// Maximum number of used inodes of a filesystem without a store where every directory is measured.
const MOST_INODES: u64 = 300_000;
/// Minimum bytes of a named file.
const LEAST: u64 = 1 << 20;

#[derive(Clone, Debug)]
struct UserTree {
    kind: OtherUserKind,
    /// Top path of the user: units of the same user have the same one.
    user: PathBuf,
    pod: Option<String>,
    path: PathBuf,
    /// Owner, if the kind does not imply it.
    holder: Option<String>,
}

#[must_use]
pub fn measure(scan: &Scan, known: &OtherUsageRequest, progress: &Progress) -> OtherUsers {
    let mut all = OtherUsers::default();
    let places = places::find(scan, known, &mut all.findings);
    in_places(scan, &places, (known, progress), &mut all);
    (all.archived_journal, all.active_journal_bytes) = big::archived_journal(&scan.sysroot, &places);
    all.package_caches = big::package_caches(scan);
    places::name_by_uid(&mut all.pods);
    all.pods.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    all.large = large::directories(scan, known.threads);
    all.volumes = large::volumes(scan, &all.large, known.threads);
    all.logs = big::logs(&scan.sysroot, &places, &known.places, known.threads);
    all
}

/// Adds the largest files outside the stores. Reads each large directory once more.
pub fn add_files(scan: &Scan, known: &OtherUsageRequest, all: &mut OtherUsers) {
    let places = places::find(scan, known, &mut Vec::new());
    all.files = big::files(
        &scan.sysroot,
        &all.other_users,
        &places,
        |ix| (scan.inventory[ix].used_bytes / SMALL).max(LEAST),
        known.threads,
    );
    leave_parts_out(scan, &places, all);
}

/// Removes files in stores that were not read, in volumes, and in the records of a user's own layersweep; each of these
/// becomes a user of its own.
fn leave_parts_out(scan: &Scan, places: &[KnownUse], all: &mut OtherUsers) {
    let apart = places::apart(places);
    for file in std::mem::take(&mut all.files) {
        let Some((whole, kind)) = whole_around(scan, &file.path) else {
            all.files.push(file);
            continue;
        };
        let above = all
            .other_users
            .iter()
            .enumerate()
            .filter(|(_, user)| user.kind != OtherUserKind::DeletedOpen && whole.starts_with(&user.path));
        let nearest = above.max_by_key(|(_, user)| user.path.components().count());
        let Some((position, user)) = nearest else { continue };
        if user.path == whole {
            all.other_users[position].kind = kind;
        } else {
            let size = things::measure(scan, &whole, &apart);
            things::divide(position, whole, size, kind, all);
        }
    }
}

/// Returns the store that was not read, the volume or the records that a file is in.
fn whole_around(scan: &Scan, file: &Path) -> Option<(PathBuf, OtherUserKind)> {
    if let Some((path, kind)) = large::unread_store(scan, file) {
        return Some((path, OtherUserKind::Store(kind)));
    }
    if let Some(volume) = NerdctlVolume::around(file) {
        return Some((volume.directory, OtherUserKind::Volume));
    }
    Some((places::records_around(file)?, OtherUserKind::Layersweep))
}

/// Measures only logs, the journal, core dumps and deleted files that are held open: cheap enough for every recorded
/// scan.
#[must_use]
pub fn logs_and_dumps(scan: &Scan, known: &OtherUsageRequest) -> Vec<OtherUser> {
    use OtherUserKind::{CoreDumps, Journal, Logs, PodLogs};
    let mut all = OtherUsers::default();
    let mut places = places::find(scan, known, &mut all.findings);
    places.retain(|place| place.is_store || matches!(place.kind, CoreDumps | Journal | Logs | PodLogs));
    in_places(scan, &places, (known, &Progress::default()), &mut all);
    all.other_users
}

fn in_places(scan: &Scan, places: &[KnownUse], how: (&OtherUsageRequest, &Progress), all: &mut OtherUsers) {
    for filesystem_ix in 0..scan.inventory.filesystems.len() {
        of_filesystem(scan, filesystem_ix.into(), places, how, all);
    }
    if !scan.sysroot.is_foreign() {
        add_deleted_files(scan, all);
    }
}

fn of_filesystem(
    scan: &Scan,
    filesystem_ix: FilesystemIx,
    places: &[KnownUse],
    (known, progress): (&OtherUsageRequest, &Progress),
    all: &mut OtherUsers,
) {
    let facts = &scan.inventory.filesystems[filesystem_ix.get()];
    let here: Vec<_> = places.iter().filter(|place| place.filesystem == Some(filesystem_ix)).collect();
    let mounts = mounts::read().unwrap_or_default();
    let mount = mounts::widest(&mounts, &facts.mount, scan.sysroot.root()).to_path_buf();
    let mut roots = vec![mount.clone()];
    let mut units: Vec<UserTree> = Vec::new();
    let mut trees = Vec::new();
    let earlier_findings = all.findings.len();
    let is_wanted = measures_everything(scan, filesystem_ix, known);
    let is_in_store = places::are_of_stores(&mounts, places, &mount);
    let location = mounts::location(&mounts, &mount);
    if is_wanted && !is_in_store {
        roots.extend(location.iter().flat_map(|top| places::deeper_tops(&scan.sysroot, &mounts, top)));
        // Only the directories themselves: each entry in them gets a unit of its own, files included.
        for (root_ix, path) in roots.iter().enumerate() {
            let (user, path) = (path.clone(), path.clone());
            let top = UserTree { kind: OtherUserKind::Directory, user, pod: None, path, holder: None };
            add(&mut units, &mut trees, root_ix, top, all);
        }
    }
    let tops = roots.clone();
    for place in &here {
        roots.push(place.path.clone());
        let KnownUse { kind, path, holder, .. } = (*place).clone();
        let unit = UserTree { kind, user: path.clone(), pod: None, path, holder };
        if kind.is_by_pod() {
            add(&mut units, &mut trees, roots.len() - 1, unit, all);
        } else if !place.is_store {
            trees.push(tree(roots.len() - 1, PathBuf::new(), units.len(), TreeScope::Whole));
            units.push(unit);
        }
    }
    let apart: Vec<usize> = (1..roots.len()).collect();
    let reflinks = filesystem::of(&facts.mount).is_ok_and(|(_, cost)| cost.reflinks);
    let options = WalkOptions {
        threads: known.threads,
        extents: reflinks.then_some(ExtentOptions { from_bytes: sizes::BIG, seed: 0 }),
        apart: &apart,
        progress: Some(progress),
        ..WalkOptions::default()
    };
    let measured = walk(&roots, &trees, &options);
    all.inodes += measured.units.iter().map(|unit| unit.inodes).sum::<u64>();
    all.findings.extend(below::unread(&measured, &facts.mount, "counted as `other`"));
    let is_whole = location.as_ref().is_some_and(|location| location.path == Path::new("/"));
    let is_complete = !all.findings[earlier_findings..].iter().any(|finding| finding.incomplete);
    if is_whole && (is_wanted || is_in_store) && is_complete {
        let mount_points = location.iter().flat_map(|location| covering(&mounts, location)).collect();
        all.seen_whole.push(SeenWhole { filesystem: filesystem_ix, top: roots[0].clone(), mount_points });
    }
    let sizes = by_unit(&measured, &measured.shared_extents(), units.len());
    gather(filesystem_ix, units, &sizes, all);
    let apart = places::identities(roots[1..].iter().map(PathBuf::as_path));
    things::divide_users(scan, (filesystem_ix, facts), &tops, &apart, all);
}

/// Returns mount points on directories of a filesystem, which hide the files in these directories. Disks come first,
/// then those near the top.
fn covering(mounts: &[Mount], top: &Location) -> Vec<PathBuf> {
    /// Types of mounts on directories that are empty on every system.
    const OF_THE_SYSTEM: [&str; 6] = ["autofs", "devtmpfs", "nsfs", "overlay", "proc", "sysfs"];
    let mut over: Vec<&Mount> = Vec::new();
    for mount in mounts {
        let below = mounts.iter().find(|below| below.id == mount.parent && below.id != mount.id);
        if below.is_some_and(|below| below.device == top.device && !mount.repeats(below))
            && !OF_THE_SYSTEM.contains(&mount.fstype.as_str())
        {
            over.push(mount);
        }
    }
    over.sort_by_key(|mount| {
        (!mount.source.starts_with("/dev/"), mount.mount_point.components().count(), &mount.mount_point)
    });
    over.dedup_by_key(|mount| &mount.mount_point);
    over.into_iter().map(|mount| mount.mount_point.clone()).collect()
}

/// Returns true if every directory of a filesystem outside the stores is measured.
fn measures_everything(scan: &Scan, filesystem_ix: FilesystemIx, known: &OtherUsageRequest) -> bool {
    // A disk without a store is not what the command is about: it must not take minutes.
    let most = known.most_inodes.or((!scan.inventory.has_store(filesystem_ix)).then_some(MOST_INODES));
    let Some(most) = most else { return true };
    inodes_outside(scan, filesystem_ix).is_some_and(|inodes| inodes <= most)
}

/// Returns the number of used inodes of a filesystem outside the stores; `None` if it has no fixed number of
/// inodes.
fn inodes_outside(scan: &Scan, filesystem_ix: FilesystemIx) -> Option<u64> {
    let Filesystem { inodes, inodes_free, .. } = scan.inventory[filesystem_ix];
    let here = scan.inventory.nodes.iter().filter(|node| node.filesystem == filesystem_ix);
    let stores = here.fold(0, |sum: u64, node| sum.saturating_add(node.size.inodes));
    (inodes > 0).then(|| inodes.saturating_sub(inodes_free).saturating_sub(stores))
}

/// Adds a tree for each entry of a directory, and one for the directory itself. In a directory of pods all units have
/// the same user. In the top directory of a filesystem each entry is a user of its own.
fn add(
    units: &mut Vec<UserTree>,
    trees: &mut Vec<Tree<'_>>,
    root: usize,
    unit: UserTree,
    all: &mut OtherUsers,
) {
    trees.push(tree(root, PathBuf::new(), units.len(), TreeScope::EntryOnly));
    units.push(unit.clone());
    let entries = match quiet::list(&unit.path) {
        Ok(entries) => entries,
        Err(error) => {
            let message = format!("listing it: {error}; its contents are counted as `other`");
            all.findings.push(Finding::incomplete(unit.path, message));
            return;
        }
    };
    for entry in entries {
        let path = unit.path.join(&entry.name);
        trees.push(tree(root, PathBuf::from(&entry.name), units.len(), TreeScope::Whole));
        units.push(match unit.kind {
            OtherUserKind::Directory => {
                UserTree { kind: places::kind_on_top(&entry), user: path.clone(), path, ..unit.clone() }
            }
            _ => UserTree { pod: Some(places::pod_name(&entry.name)), path, ..unit.clone() },
        });
    }
}

fn gather(filesystem: FilesystemIx, units: Vec<UserTree>, sizes: &[BytesAndInodes], all: &mut OtherUsers) {
    // A directory of known use can be at the top of its filesystem, where it also has a unit, without bytes.
    let mut sums: HashMap<(OtherUserKind, PathBuf), usize> = HashMap::new();
    for (unit, size) in units.into_iter().zip(sizes) {
        if let Some(pod) = unit.pod {
            let (kind, path) = (unit.kind, unit.path);
            let BytesAndInodes { bytes, inodes } = *size;
            all.pods.push(PodShare { kind, filesystem, pod, path, bytes, inodes, is_gone: None });
        }
        let next = all.other_users.len();
        let position = *sums.entry((unit.kind, unit.user.clone())).or_insert(next);
        match all.other_users.get_mut(position) {
            Some(user) => {
                user.bytes += size.bytes;
                user.inodes += size.inodes;
            }
            None => all.other_users.push(OtherUser {
                kind: unit.kind,
                filesystem,
                path: unit.user,
                bytes: size.bytes,
                inodes: size.inodes,
                holder: unit.holder,
            }),
        }
    }
}

fn add_deleted_files(scan: &Scan, all: &mut OtherUsers) {
    let DeletedFiles { files, unknown } = deleted::files().unwrap_or_else(|error| {
        let message = format!("cannot find deleted files that are held open: {error}");
        all.findings.push(Finding::new("/proc", message));
        DeletedFiles::default()
    });
    all.unknown_deleted = unknown;
    let here = files.into_iter().filter(|file| file.bytes > 0);
    all.other_users.extend(here.filter_map(|file| {
        Some(OtherUser {
            kind: OtherUserKind::DeletedOpen,
            filesystem: holder_of(scan, &file)?,
            path: file.path,
            bytes: file.bytes,
            inodes: 1,
            holder: Some(file.holder),
        })
    }));
}

fn holder_of(scan: &Scan, file: &DeletedFile) -> Option<FilesystemIx> {
    match &file.backing {
        Some(Backing::Upper(upper)) if Path::new(upper).is_absolute() => {
            filesystem_of(scan, Path::new(upper))
        }
        // Storage drivers mount with relative paths from within their own directory, because options have limited
        // length.
        Some(Backing::Upper(upper)) => {
            let stores = scan.inventory.stores.iter();
            let mut places = stores.map(|store| store.root.join(&store.driver).join(upper));
            places.find_map(|place| filesystem_of(scan, &place))
        }
        Some(Backing::Source(source)) => with_source(scan, source).or_else(|| with_number(scan, file.device)),
        None => with_number(scan, file.device),
    }
}

fn with_source(scan: &Scan, source: &str) -> Option<FilesystemIx> {
    let is_device = source.starts_with("/dev/");
    let position = scan.inventory.filesystems.iter().position(|facts| is_device && facts.device == source);
    position.map(FilesystemIx::from)
}

fn with_number(scan: &Scan, number: u64) -> Option<FilesystemIx> {
    let position = scan
        .inventory
        .filesystems
        .iter()
        .position(|filesystem| quiet::facts(&filesystem.mount).is_ok_and(|facts| facts.device == number));
    position.map(FilesystemIx::from)
}

#[cfg(test)]
mod tests;
