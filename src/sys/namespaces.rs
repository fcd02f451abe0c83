//! The mounts that all processes see, for proving that something is mounted nowhere.
//!
//! Other than [`super::mounts::below_in_all_namespaces`], which helps a reader to say what it
//! sees, nothing is passed over here: what cannot be read is an error. And since another
//! namespace has other names for the same directories, a mount is also told by the place on
//! the filesystem that it covers and by the place that it shows.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::mounts::{self, Mount};
use super::patience::Patience;

/// A place on a filesystem, whatever it is called in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Major and minor number, as in the mount table.
    pub device: (u32, u32),
    /// Path from the root of that filesystem.
    pub path: PathBuf,
}

impl Location {
    /// Whether it is `other` or lies below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// A mount and one process that sees it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The process.
    pub pid: u32,
    /// The mount, its paths as that process sees them.
    pub mount: Mount,
    /// What of a filesystem it shows.
    pub shows: Location,
    /// What it lies on; `None` where the mount below is out of the process's sight.
    pub covers: Option<Location>,
    /// The filesystem's own options: of an overlay, its directories.
    pub options: Vec<u8>,
}

/// The mounts of all processes; each namespace (and root directory in it) once.
///
/// One process may be out of reach: the first, in a sandbox whose keeper has more rights than
/// its root. It is passed over if every other process can be read: whoever lives in a
/// namespace of containers has company there, and without the right to look at processes
/// none of them could be read.
///
/// # Errors
/// When `/proc` or the mounts of any other living process cannot be read: then a mount may
/// exist that nobody has told of.
pub fn all() -> io::Result<Vec<Seen>> {
    let own = std::process::id();
    let mut seen = Vec::new();
    let mut known = HashSet::new();
    let mut patience = Patience::new();
    let ours_is_first = super::root::is_first_user_namespace();
    // Our own first: that one has the paths as we know them.
    if !read_one(own, &mut known, &mut seen)? {
        return Err(io::Error::new(ErrorKind::NotFound, "/proc does not know this process"));
    }
    for process in std::fs::read_dir("/proc")? {
        let name = process?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        match patiently(pid, &mut known, &mut seen, &mut patience) {
            Ok(_) => {}
            Err(error) if pid == INIT && error.kind() == ErrorKind::PermissionDenied => {
                tracing::debug!("the mounts of process {INIT} cannot be read: {error}");
            }
            // Its user is not ours, and nobody else can mount from our store.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !ours_is_first => {}
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("those of process {pid}: {error}")));
            }
        }
    }
    Ok(seen)
}

/// The first process.
const INIT: u32 = 1;

/// Which mounts a process sees: its namespace, and its root directory there.
type View = (u64, Option<(u64, u64)>);

/// Whether the process is still there.
fn read_one(pid: u32, known: &mut HashSet<View>, seen: &mut Vec<Seen>) -> io::Result<bool> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let Some(namespace) = unless_gone(std::fs::metadata(process.join("ns/mnt")))? else { return Ok(false) };
    let root = unless_gone(std::fs::metadata(process.join("root")))?;
    let view = (namespace.ino(), root.map(|root| (root.dev(), root.ino())));
    if known.contains(&view) {
        return Ok(true);
    }
    let Some(text) = unless_gone(std::fs::read(process.join("mountinfo")))? else { return Ok(false) };
    // Only now: had the process ended, another of the same view would have to be read.
    known.insert(view);
    seen.extend(parse(pid, &text)?);
    Ok(true)
}

/// A process that ends between the look at its directory and the one at a link in it "may not be
/// looked at" (`proc_fd_access_allowed` and `proc_ns_get_link` in `fs/proc` answer EACCES where
/// they find no task), and one that is just beginning may still have more rights than we. Neither
/// lasts: asked again it is gone, or open to us.
fn patiently(
    pid: u32,
    known: &mut HashSet<View>,
    seen: &mut Vec<Seen>,
    patience: &mut Patience,
) -> io::Result<bool> {
    loop {
        match read_one(pid, known, seen) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied && pid != INIT && patience.wait() => {}
            other => return other,
        }
    }
}

/// A process may end at any time, and a zombie has no namespace left.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::SRCH | Errno::INVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

fn parse(pid: u32, text: &[u8]) -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let strange = || io::Error::new(ErrorKind::InvalidData, "a line is not that of a mount table");
        let mount = mounts::parse_line(line).ok_or_else(strange)?;
        let options = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
        found.push((mount, mounts::unescape(options)));
    }
    let by_id: HashMap<u64, usize> =
        found.iter().enumerate().map(|(at, (mount, _))| (mount.id, at)).collect();
    let covered = |mount: &Mount| {
        let (below, _) =
            by_id.get(&mount.parent).filter(|_| mount.parent != mount.id).map(|&at| &found[at])?;
        shown(below, &mount.mount_point)
    };
    let covers: Vec<_> = found.iter().map(|(mount, _)| covered(mount)).collect();
    let seen = found.into_iter().zip(covers).map(|((mount, options), covers)| {
        let shows = Location { device: mount.device, path: mount.root.clone() };
        Seen { pid, mount, shows, covers, options }
    });
    Ok(seen.collect())
}

/// What `path` is on the filesystem of `mount`, if it lies below its mount point.
fn shown(mount: &Mount, path: &Path) -> Option<Location> {
    let below = path.strip_prefix(&mount.mount_point).ok()?;
    // `join` with an empty path would end in a slash; comparing by component does not mind.
    Some(Location { device: mount.device, path: mount.root.join(below) })
}

/// Where `path` (absolute, without symlinks) lies, by the mounts that this process sees.
#[must_use]
pub fn locate(path: &Path, seen: &[Seen]) -> Option<Location> {
    let own = std::process::id();
    let mut best: Option<&Mount> = None;
    for Seen { mount, .. } in seen.iter().filter(|seen| seen.pid == own) {
        let deeper = best.is_none_or(|best| mount.mount_point.starts_with(&best.mount_point));
        // Of two on the same point the later one lies on top.
        if path.starts_with(&mount.mount_point) && deeper {
            best = Some(mount);
        }
    }
    shown(best?, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 8:2 /sub /data rw - btrfs /dev/b rw\n\
        3 2 8:2 /sub/x/overlay /data/x/overlay rw - btrfs /dev/b rw\n\
        4 3 0:9 / /data/x/overlay/id/merged rw - overlay overlay rw,lowerdir=l/A\\040B:l/C,upperdir=/u\n\
        7 99 0:3 / /odd rw - proc proc rw\n";

    fn place(device: (u32, u32), path: &str) -> Location {
        Location { device, path: path.into() }
    }

    /// A process that is on its way out, at whatever point, is no reason to know nothing.
    #[test]
    fn processes_that_come_and_go_are_no_obstacle() {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let status = std::process::Command::new("true").status();
                        assert!(status.unwrap().success());
                    }
                });
            }
            let looks: Vec<_> = (0..4000).map(|_| all().map(drop)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let refused: Vec<_> = looks.iter().filter_map(|look| look.as_ref().err()).collect();
            assert!(refused.is_empty(), "{} of 4000 looks: {}", refused.len(), refused[0]);
        });
    }

    #[test]
    fn places_have_one_name_in_all_namespaces() {
        let seen = parse(std::process::id(), TABLE).unwrap();
        assert_eq!(seen[0].covers, None);
        assert_eq!(seen[1].covers, Some(place((8, 1), "/data")));
        assert_eq!(seen[2].covers, Some(place((8, 2), "/sub/x/overlay")));
        assert_eq!(seen[2].shows, place((8, 2), "/sub/x/overlay"));
        assert_eq!(seen[3].covers, Some(place((8, 2), "/sub/x/overlay/id/merged")));
        assert_eq!(seen[3].options, b"rw,lowerdir=l/A B:l/C,upperdir=/u");
        assert_eq!(seen[4].covers, None, "what it lies on is not in sight");
        let at = |path: &str| locate(Path::new(path), &seen).unwrap();
        assert_eq!(at("/data/x/overlay/id"), place((8, 2), "/sub/x/overlay/id"));
        assert_eq!(at("/data/y"), place((8, 2), "/sub/y"));
        assert_eq!(at("/database"), place((8, 1), "/database"));
        assert!(at("/data/x/overlay/id").is_within(&place((8, 2), "/sub")));
        assert!(!at("/data/y").is_within(&place((8, 2), "/sub/x")));
        assert!(!at("/database").is_within(&place((8, 1), "/data")));
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        assert!(parse(1, b"1 0 8:1 / / rw - ext4 /dev/a rw\nnonsense\n").is_err());
    }

    #[test]
    fn this_machine_can_be_read() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let seen = all().unwrap();
        assert!(seen.iter().any(|seen| seen.mount.mount_point == Path::new("/proc")));
        assert!(locate(Path::new("/proc/self"), &seen).is_some());
    }
}
