//! The largest files by name: a single log, dump or backup can fill a disk.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::places::{apart, filesystem_of, identities, pod_name};
use super::sizes::take_off_shared;
use super::types::{BigFile, KnownUse, OtherUser, OtherUserKind, PackageCache};
use crate::model::FilesystemIx;
use crate::node::places::KubeletPlaces;
use crate::stores::Scan;
use crate::sys::quiet::{self, InodeFacts};
use crate::sys::root;
use crate::sys::sysroot::Sysroot;

/// Maximum number of files that are named.
const MOST: usize = 20;

/// Number of files that are considered, by `st_blocks`: on the disk, shared and compressed ones are smaller.
const CANDIDATES: usize = 4 * MOST;

/// Returns the largest log files on the filesystems of a scan. The journal's are left out: systemd limits their
/// size.
pub(super) fn logs(
    sysroot: &Sysroot,
    places: &[KnownUse],
    known: &KubeletPlaces,
    threads: usize,
) -> Vec<BigFile> {
    let mut largest = Largest::default();
    let journal = places.iter().filter(|place| place.kind == OtherUserKind::Journal);
    let journal = identities(journal.map(|place| &*place.path));
    for place in places {
        if !matches!(place.kind, OtherUserKind::PodLogs | OtherUserKind::Logs) {
            continue;
        }
        let Some(filesystem) = place.filesystem else { continue };
        let is_journal = |facts: &InodeFacts| journal.contains(&facts.identity());
        let found = quiet::files_below(&place.path, &is_journal, &mut |path, facts, bytes| {
            largest.add(facts.identity(), big_file(filesystem, path, facts, bytes));
        });
        // The walk of the same place reports what cannot be read.
        if let Err(error) = found {
            tracing::debug!("looking for log files in {}: {error}", place.path.display());
        }
    }
    let mut found = largest.sorted(sysroot, threads);
    for file in &mut found {
        let inside = sysroot.display(&file.path);
        let below = known.log_directories().find_map(|directory| inside.strip_prefix(directory).ok());
        if let Some(below) = below {
            let mut names = below.iter();
            file.pod = names.next().map(pod_name);
            file.container = names.next().map(|name| name.to_string_lossy().into_owned());
        }
    }
    found
}

fn big_file(filesystem: FilesystemIx, path: PathBuf, facts: InodeFacts, bytes: u64) -> BigFile {
    let modified = facts.modified;
    BigFile {
        filesystem,
        path,
        bytes,
        pod: None,
        container: None,
        modified,
        owner: facts.owner,
        links: facts.links,
    }
}

/// Returns the largest files of these users. Directories of other users and `known` places are examined for
/// themselves, by whatever path they are seen. `least`: minimum bytes of a file on a filesystem.
pub(super) fn files(
    sysroot: &Sysroot,
    users: &[OtherUser],
    known: &[KnownUse],
    least: impl Fn(FilesystemIx) -> u64,
    threads: usize,
) -> Vec<BigFile> {
    use OtherUserKind::{Directory, VarTmp};
    let mut largest = Largest::default();
    let by_path = users.iter().filter(|user| user.kind != OtherUserKind::DeletedOpen);
    let mut skipped = apart(known);
    skipped.extend(identities(by_path.map(|user| &*user.path)));
    for user in users {
        let least = least(user.filesystem);
        if !matches!(user.kind, Directory | VarTmp) || user.bytes < least {
            continue;
        }
        let filesystem = user.filesystem;
        let mut add = |path: PathBuf, facts: InodeFacts, bytes| {
            if bytes >= least {
                largest.add(facts.identity(), big_file(filesystem, path, facts, bytes));
            }
        };
        match quiet::facts(&user.path) {
            Ok(facts) if facts.kind == quiet::FileKind::File => add(user.path.clone(), facts, user.bytes),
            Ok(facts) if facts.kind == quiet::FileKind::Directory => {
                let is_known = |facts: &InodeFacts| skipped.contains(&facts.identity());
                if let Err(error) = quiet::files_below(&user.path, &is_known, &mut add) {
                    tracing::debug!("looking for large files in {}: {error}", user.path.display());
                }
            }
            _ => {}
        }
    }
    largest.sorted(sysroot, threads)
}

/// Returns the packages that the node's package managers keep after they have installed them. A cache that does not belong
/// to root is left out.
pub(super) fn package_caches(scan: &Scan) -> Vec<PackageCache> {
    const CACHES: [(&str, &str, &str); 4] = [
        ("/var/cache/apt/archives", "deb", "apt-get clean"),
        ("/var/cache/dnf", "rpm", "dnf clean packages"),
        ("/var/cache/yum", "rpm", "yum clean packages"),
        ("/var/cache/zypp/packages", "rpm", "zypper clean"),
    ];
    let mut caches = Vec::new();
    for (path, extension, command) in CACHES {
        let found = if scan.sysroot.is_foreign() {
            scan.sysroot.resolve(Path::new(path))
        } else {
            root::find_at_hand(Path::new(path)).map(|(_, path)| path)
        };
        let Ok(path) = found else { continue };
        // On some systems yum's is a symlink to dnf's.
        let is_known = caches.iter().any(|cache: &PackageCache| cache.path == path);
        let is_roots = !is_known
            && quiet::facts(&path)
                .is_ok_and(|facts| facts.kind == quiet::FileKind::Directory && facts.owner == 0);
        let Some(filesystem) = filesystem_of(scan, &path).filter(|_| is_roots) else { continue };
        let mut cache = PackageCache { filesystem, path, command, bytes: 0, inodes: 0 };
        let found = quiet::files_below(&cache.path, &|_| false, &mut |path, _, bytes| {
            if path.extension().is_some_and(|found| found == extension) {
                cache.bytes = cache.bytes.saturating_add(bytes);
                cache.inodes += 1;
            }
        });
        match found {
            Ok(_) => caches.push(cache),
            Err(error) => tracing::debug!("looking for packages in {}: {error}", cache.path.display()),
        }
    }
    caches
}

/// Returns the archived files of the node's own journal, the oldest first, and the bytes of its active files.
/// `journalctl` deletes only archived files. Their names end with `@<id>-<number>-<time in hexadecimal microseconds>.journal` (systemd, `journal_directory_vacuum`).
pub(super) fn archived_journal(sysroot: &Sysroot, places: &[KnownUse]) -> (Vec<BigFile>, u64) {
    let machine = sysroot.read(Path::new("/etc/machine-id"), 64).unwrap_or_default();
    let (mut archived, mut active_bytes) = (Vec::new(), 0_u64);
    for place in places.iter().filter(|place| place.kind == OtherUserKind::Journal) {
        let Some(filesystem) = place.filesystem else { continue };
        let found =
            quiet::files_below(&place.path.join(machine.trim()), &|_| true, &mut |path, facts, bytes| {
                match archived_at(&path) {
                    Some(time) => archived.push((time, big_file(filesystem, path, facts, bytes))),
                    None => active_bytes = active_bytes.saturating_add(bytes),
                }
            });
        if let Err(error) = found {
            tracing::debug!("reading the journal in {}: {error}", place.path.display());
        }
    }
    archived.sort_by_key(|(time, _)| *time);
    (archived.into_iter().map(|(_, file)| file).collect(), active_bytes)
}

fn archived_at(file: &Path) -> Option<u64> {
    let name = file.file_name()?.to_str()?;
    let (_, archive) =
        name.strip_suffix(".journal").or_else(|| name.strip_suffix(".journal~"))?.split_once('@')?;
    // A journal that was not closed properly has no number: `@<time>-<random>.journal~`.
    let time = match archive.split('-').collect::<Vec<_>>()[..] {
        [_, _, time] | [time, _] => time,
        _ => return None,
    };
    u64::from_str_radix(time, 16).ok()
}

/// The largest [`CANDIDATES`] of many files, each inode once.
#[derive(Debug, Default)]
struct Largest(BTreeMap<(Reverse<u64>, PathBuf), (Inode, BigFile)>);

type Inode = (u64, u64);

impl Largest {
    fn add(&mut self, inode: Inode, file: BigFile) {
        // A file that was dropped before was smaller than all files here, and is dropped again.
        if self.0.values().any(|(known, _)| *known == inode) {
            return;
        }
        self.0.insert((Reverse(file.bytes), file.path.clone()), (inode, file));
        if self.0.len() > CANDIDATES {
            self.0.pop_last();
        }
    }

    /// Returns the files that are the largest on the disk, the largest first.
    fn sorted(self, sysroot: &Sysroot, threads: usize) -> Vec<BigFile> {
        let mut files: Vec<_> = self.0.into_values().map(|(_, file)| file).collect();
        take_off_shared(sysroot, &mut files, threads);
        files.truncate(MOST);
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FilesystemIx;

    #[test]
    fn only_archived_journals_have_a_time() {
        for (name, time) in [
            ("system.journal", None),
            ("system@3f1c-0000000000000001-00064e1a2b3c4d5e.journal", Some(0x0006_4e1a_2b3c_4d5e)),
            ("user-1000@00064e1a2b3c4d5e-abcdef.journal~", Some(0x0006_4e1a_2b3c_4d5e)),
            ("user@home.txt", None),
        ] {
            assert_eq!(archived_at(Path::new(name)), time, "{name}");
        }
    }

    #[test]
    fn only_largest_files_are_kept_once() {
        let mut largest = Largest::default();
        fn file(bytes: u64, path: String) -> BigFile {
            BigFile {
                filesystem: FilesystemIx::from(0),
                path: path.into(),
                bytes,
                pod: None,
                container: None,
                modified: None,
                owner: 0,
                links: 1,
            }
        }
        for number in 0..1000_u64 {
            // In mixed order, each under two names.
            let bytes = number * 7919 % 1000;
            largest.add((1, bytes), file(bytes, format!("/a/{bytes}")));
            largest.add((1, bytes), file(bytes, format!("/b/{bytes}")));
            assert!(largest.0.len() <= CANDIDATES);
        }
        let found: Vec<_> =
            largest.sorted(&Sysroot::live(), 1).into_iter().map(|file| (file.bytes, file.path)).collect();
        let expected: Vec<_> =
            (980..1000).rev().map(|bytes| (bytes, PathBuf::from(format!("/a/{bytes}")))).collect();
        assert_eq!(found, expected);
    }
}
