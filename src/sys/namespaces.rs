//! Mounts of all processes, which prove that something is not mounted anywhere.
//!
//! Only the mounts of users who cannot reach the directories at all are skipped: their tables are not even read. Mounts
//! that cannot be read are reported as [`Unknown`]. Another namespace has other names for the same directories. A mount
//! is therefore also identified by two locations on filesystems: the one that it covers and the one that it shows.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::beneath::{self, Opener};
use super::mounts::{self, Location, Mount, location, shown};
use super::processes::helper;
use super::processes::read::{self, ProcRecord, ProcessFacts};
use super::processes::{Builder, Processes};
use super::quiet;
use super::quiet::FileKind;
use super::root::{DirectoryChain, Root, way_to};

#[derive(Clone, Debug)]
pub struct MountOfProcess {
    pub pid: u32,
    /// Mount, with its paths as that process sees them.
    pub mount: Mount,
    pub shows: Location,
    /// Location that it is mounted on; `None` if the process cannot see the mount below.
    pub covers: Option<Location>,
    /// Options of the filesystem; for an overlay, its directories.
    pub options: Vec<u8>,
}

/// Process whose mounts cannot be read, although it could use the directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub pid: u32,
    pub name: String,
    pub why: String,
    /// This process has no right to read them, as on nodes that are containers.
    pub is_refused: bool,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mounts of process {} ({}) are unknown: {}", self.pid, self.name, self.why)
    }
}

/// Reason for which no store is edited: a process that uses one may be invisible.
pub const HIDDEN_PROCESSES: &str = "not all processes are visible, and any of them may use the stores";

/// Remedy for [`HIDDEN_PROCESSES`].
pub const SHOW_PROCESSES: &str = "run it in the machine's own PID namespace (hostPID: true); on a node that is itself a \
                                  container, set trust_pid_namespace = true";

/// Returns whether every process of the machine is visible from here. In the PID namespace of a container, or
/// behind `hidepid`, a mount may exist in an invisible process.
#[must_use]
pub fn sees_all_processes() -> bool {
    read::sees_all(Path::new("/proc"))
}

/// Mounts that concern some directories, indexed for the queries about them.
#[derive(Debug)]
pub struct Mounts {
    /// All mounts that this process sees.
    own_mounts: Vec<Mount>,
    areas: Vec<Area>,
    seen: Vec<MountOfProcess>,
    by_point: BTreeMap<PathBuf, usize>,
    by_place: HashMap<(u32, u32), BTreeMap<PathBuf, usize>>,
    by_word: HashMap<Vec<u8>, usize>,
    overlays: Vec<usize>,
    unknown: Vec<Unknown>,
    sees_all: bool,
    processes: Processes,
}

#[derive(Debug)]
struct Area {
    path: PathBuf,
    place: Option<Location>,
}

/// Minimum length of an indexed word; shorter words are searched for in the options. The names of layers and of
/// their links are longer.
const MIN_WORD: usize = 20;

impl Mounts {
    /// Reads the mounts of all processes that concern `areas` (absolute, without symlinks).
    ///
    /// # Errors
    /// If `/proc` cannot be listed, or the mounts of this process cannot be read.
    pub fn read(areas: &[PathBuf]) -> io::Result<Self> {
        Self::query(areas, areas, false)
    }

    /// Reads the mounts that concern `areas` of the processes that can reach one of `content`, directories whose
    /// content may be mounted anywhere.
    pub fn read_of(areas: &[PathBuf], content: &[PathBuf]) -> io::Result<Self> {
        Self::query(areas, content, false)
    }

    pub fn read_with_processes(areas: &[PathBuf]) -> io::Result<Self> {
        Self::query(areas, areas, true)
    }

    fn query(areas: &[PathBuf], content: &[PathBuf], files: bool) -> io::Result<Self> {
        let own_mounts = mounts::read()?;
        let ways = ways_into(content, &own_mounts);
        let mut all = Self::new(own_mounts, areas);
        let mut processes = Builder::default();
        // With files, the records that assign processes to containers are last.
        let (mut has_own, mut is_complete) = (false, false);
        let facts = ProcessFacts { mounts: true, ways, files, ..ProcessFacts::default() };
        helper::ask(facts, &mut |record, body| match record {
            ProcRecord::View { pid } => {
                has_own = true;
                all.view(pid, body);
            }
            ProcRecord::ViewOfStranger { pid } => all.view_of_stranger(pid, body),
            ProcRecord::Unknown { pid, name, why, is_refused } => {
                all.unknown.push(Unknown { pid, name, why, is_refused });
            }
            ProcRecord::Mounts if !files => is_complete = true,
            ProcRecord::End => {
                is_complete = true;
                processes.take(&record, body);
            }
            record => processes.take(&record, body),
        })?;
        if !is_complete {
            return Err(io::Error::new(ErrorKind::TimedOut, "not all could be read in time"));
        }
        if !has_own {
            return Err(io::Error::new(
                ErrorKind::NotFound,
                "/proc does not show the mounts of this process",
            ));
        }
        let processes = processes.finish();
        all.processes = if files { processes.with_kernel() } else { processes };
        all.sees_all = sees_all_processes();
        Ok(all)
    }

    fn new(own_mounts: Vec<Mount>, areas: &[PathBuf]) -> Self {
        let areas = areas.iter().map(|path| Area { path: path.clone(), place: location(&own_mounts, path) });
        Self {
            areas: areas.collect(),
            own_mounts,
            seen: Vec::new(),
            by_point: BTreeMap::new(),
            by_place: HashMap::new(),
            by_word: HashMap::new(),
            overlays: Vec::new(),
            unknown: Vec::new(),
            sees_all: false,
            processes: Processes::default(),
        }
    }

    fn view(&mut self, pid: u32, table: &[u8]) {
        match parse(pid, table) {
            Ok(all) => all.into_iter().for_each(|seen| self.add(seen)),
            Err(error) => {
                let (name, why) = ("its mount table".into(), error.to_string());
                self.unknown.push(Unknown { pid, name, why, is_refused: false });
            }
        }
    }

    /// Adds the mounts that show a part of the directories. A user who cannot reach these can make such a mount only of one
    /// that root has made elsewhere, while paths and options can be invented.
    fn view_of_stranger(&mut self, pid: u32, table: &[u8]) {
        for seen in parse(pid, table).unwrap_or_default() {
            let mut places = self.areas.iter().filter_map(|area| area.place.as_ref());
            if places.any(|place| seen.shows.is_within(place)) {
                self.by_place
                    .entry(seen.shows.device)
                    .or_default()
                    .insert(seen.shows.path.clone(), self.seen.len());
                self.seen.push(seen);
            }
        }
    }

    /// Adds a mount if it concerns one of the directories.
    fn add(&mut self, seen: MountOfProcess) {
        let is_overlay = seen.mount.fstype.contains("overlay");
        let mut areas = self.areas.iter();
        let is_relevant = areas.any(|area| {
            let mut locations = std::iter::once(&seen.shows).chain(&seen.covers);
            seen.mount.mount_point.starts_with(&area.path)
                || area
                    .place
                    .as_ref()
                    .is_some_and(|place| locations.any(|location| location.is_within(place)))
        });
        if !is_overlay && !is_relevant {
            return;
        }
        let position = self.seen.len();
        self.by_point.entry(seen.mount.mount_point.clone()).or_insert(position);
        for place in std::iter::once(&seen.shows).chain(&seen.covers) {
            self.by_place.entry(place.device).or_default().entry(place.path.clone()).or_insert(position);
        }
        if is_overlay {
            let words = seen.options.split(|byte| !byte.is_ascii_alphanumeric());
            for word in words.filter(|word| word.len() >= MIN_WORD) {
                self.by_word.entry(word.to_vec()).or_insert(position);
            }
            self.overlays.push(position);
        }
        self.seen.push(seen);
    }

    /// Adds the mounts that this process has got meanwhile; `table` is its present mount table.
    pub fn add_own(&mut self, table: &[u8]) -> io::Result<()> {
        parse(std::process::id(), table)?.into_iter().for_each(|seen| self.add(seen));
        Ok(())
    }

    /// Returns the processes whose mounts are unknown, as far as they could reach the directories.
    #[must_use]
    pub fn unknown_views(&self) -> &[Unknown] {
        &self.unknown
    }

    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.sees_all
    }

    #[must_use]
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns a mount that needs `path`, which is in one of the directories: a mount on it or below it, a mount
    /// that shows a part of it, or an overlay with one of `words` in its options (a layer's id, the names of its
    /// links). These words are long and random, so that nothing else has such a name.
    #[must_use]
    pub fn user(&self, path: &Path, words: &[&str]) -> Option<&MountOfProcess> {
        fn first_below<'m>(all: &'m BTreeMap<PathBuf, usize>, path: &Path) -> Option<&'m usize> {
            let (first, position) = all.range::<Path, _>((Bound::Included(path), Bound::Unbounded)).next()?;
            first.starts_with(path).then_some(position)
        }
        let position = first_below(&self.by_point, path)
            .or_else(|| {
                let place = location(&self.own_mounts, path)?;
                first_below(self.by_place.get(&place.device)?, &place.path)
            })
            .copied()
            .or_else(|| words.iter().find_map(|word| self.overlay_with(word.as_bytes())))?;
        self.seen.get(position)
    }

    fn overlay_with(&self, word: &[u8]) -> Option<usize> {
        if word.len() >= MIN_WORD && word.iter().all(u8::is_ascii_alphanumeric) {
            return self.by_word.get(word).copied();
        }
        if word.is_empty() {
            return None;
        }
        let mut overlays = self.overlays.iter().copied();
        overlays.find(|position| self.seen[*position].options.windows(word.len()).any(|part| part == word))
    }

    /// Returns the names of entries of `parent`, a directory in one of the directories, if a mount is on or below
    /// them or shows a part of them; and the words in the options of overlays.
    pub fn names_below(&self, parent: &Path) -> impl Iterator<Item = &OsStr> {
        let place = location(&self.own_mounts, parent);
        let shown_there = place.as_ref().and_then(|place| self.by_place.get(&place.device));
        let points = self.by_point.keys().filter_map({
            let parent = parent.to_owned();
            move |point| point.strip_prefix(&parent).ok()
        });
        let shown = shown_there
            .into_iter()
            .flat_map(BTreeMap::keys)
            .filter_map(move |shown| shown.strip_prefix(&place.as_ref()?.path).ok());
        let children = points.chain(shown).filter_map(|below| below.iter().next());
        children.chain(self.by_word.keys().map(|word| OsStr::from_bytes(word)))
    }

    #[must_use]
    pub fn has_overlay_on(&self, word: &str) -> bool {
        self.overlay_with(word.as_bytes()).is_some()
    }

    /// Returns the mount points strictly below the directories, in order, each once. podman and CRI-O mount privately,
    /// so that a layer may be mounted where this process does not see it.
    #[must_use]
    pub fn points_below(&self) -> Vec<PathBuf> {
        let points = self.by_point.keys().filter(|point| {
            self.areas.iter().any(|area| **point != area.path && point.starts_with(&area.path))
        });
        points.cloned().collect()
    }
}

/// Returns the other paths of a directory and its parts: mounts of this process show them elsewhere.
fn other_paths(own_mounts: &[Mount], path: &Path) -> Vec<PathBuf> {
    let Some(place) = location(own_mounts, path) else { return Vec::new() };
    let elsewhere = own_mounts.iter().filter_map(|mount| {
        let part = Location { device: mount.device, path: mount.root.clone() };
        if part.is_within(&place) {
            return Some(mount.mount_point.clone()).filter(|point| !point.starts_with(path));
        }
        let below = place.path.strip_prefix(&part.path).ok().filter(|_| part.device == place.device)?;
        Some(mount.mount_point.join(below)).filter(|other| other != path)
    });
    elsewhere.collect()
}

/// Returns the ways to the directories with the content of `paths`, by every path that this process sees; `None` if no
/// path is given, so that all users count.
///
/// Everyone may reach a graphroot, while only root reaches the directories in it. So if everyone can reach a directory
/// of root's, the directories in it count, unless there are none or many.
fn ways_into(paths: &[PathBuf], own_mounts: &[Mount]) -> Option<Vec<DirectoryChain>> {
    const MOST: usize = 64;
    fn below(root: &Root) -> io::Result<Vec<DirectoryChain>> {
        let mut left = MOST;
        let admit = || {
            left = left.checked_sub(1).ok_or(ErrorKind::QuotaExceeded)?;
            Ok(())
        };
        let opener = Opener::detect(root.fd());
        let directory = opener.beneath(root.fd(), Path::new(""), beneath::DIRECTORY, false)?;
        let entries = quiet::entries(directory, admit, |_| Ok(FileKind::Directory))?;
        let directories = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
        Ok(directories.map(|entry| way_to(&root.join(&entry.name))).collect())
    }
    let mut ways: Vec<DirectoryChain> = Vec::new();
    let others = paths.iter().flat_map(|path| other_paths(own_mounts, path));
    for path in paths.iter().cloned().chain(others) {
        let of_path = match Root::open(&path) {
            Ok(root) if root.way().admits_all() && root.way().is_trusted() => match below(&root) {
                Ok(ways) if !ways.is_empty() => ways,
                _ => vec![root.way().clone()],
            },
            Ok(root) => vec![root.way().clone()],
            Err(_) => vec![DirectoryChain::default()],
        };
        let new = of_path.into_iter().filter(|way| !ways.contains(way)).collect::<Vec<_>>();
        ways.extend(new);
    }
    (!ways.is_empty()).then_some(ways)
}

fn parse(pid: u32, text: &[u8]) -> io::Result<Vec<MountOfProcess>> {
    let mut found = Vec::new();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let mount = mounts::parse_line(line)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "one line is not a mount table line"))?;
        let options = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
        found.push((mount, mounts::unescape(options)));
    }
    let by_id: HashMap<u64, usize> =
        found.iter().enumerate().map(|(position, (mount, _))| (mount.id, position)).collect();
    let covers: Vec<_> = found
        .iter()
        .map(|(mount, _)| {
            let below = by_id.get(&mount.parent).filter(|_| mount.parent != mount.id);
            shown(&found[*below?].0, &mount.mount_point)
        })
        .collect();
    let seen = found.into_iter().zip(covers).map(|((mount, options), covers)| {
        let shows = Location { device: mount.device, path: mount.root.clone() };
        MountOfProcess { pid, mount, shows, covers, options }
    });
    Ok(seen.collect())
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

    /// A process that is exiting, at any stage, does not make the result unknown.
    #[test]
    fn exiting_processes_are_not_unknown() {
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
            let results: Vec<_> = (0..300).map(|_| Mounts::read(&["/".into()]).unwrap()).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let unknown: Vec<_> = results.iter().flat_map(Mounts::unknown_views).collect();
            assert!(unknown.is_empty(), "{} of 300 readings: {}", unknown.len(), unknown[0]);
        });
    }

    #[test]
    fn locations_are_the_same_in_all_namespaces() {
        let seen = parse(std::process::id(), TABLE).unwrap();
        assert_eq!(seen[0].covers, None);
        assert_eq!(seen[1].covers, Some(place((8, 1), "/data")));
        assert_eq!(seen[2].covers, Some(place((8, 2), "/sub/x/overlay")));
        assert_eq!(seen[2].shows, place((8, 2), "/sub/x/overlay"));
        assert_eq!(seen[3].covers, Some(place((8, 2), "/sub/x/overlay/id/merged")));
        assert_eq!(seen[3].options, b"rw,lowerdir=l/A B:l/C,upperdir=/u");
        assert_eq!(seen[4].covers, None, "the mount below it is not visible");
        for (path, expected, other, is_within) in [
            ("/data/x/overlay/id", place((8, 2), "/sub/x/overlay/id"), place((8, 2), "/sub"), true),
            ("/data/y", place((8, 2), "/sub/y"), place((8, 2), "/sub/x"), false),
            ("/database", place((8, 1), "/database"), place((8, 1), "/data"), false),
        ] {
            let location = location(&mounts::parse(TABLE), Path::new(path)).unwrap();
            assert_eq!(location, expected);
            assert_eq!(location.is_within(&other), is_within, "{path}");
        }
    }

    /// The store is `/data/x/overlay`.
    fn mounts_of_a_store() -> Mounts {
        let mut all = Mounts::new(mounts::parse(TABLE), &["/data/x/overlay".into()]);
        all.view(1, TABLE);
        all
    }

    #[test]
    fn users_are_found_by_point_place_and_word() {
        let long = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let table = format!(
            "1 0 8:2 /sub/x/overlay/shown/diff / rw - btrfs /dev/b rw\n\
             2 1 0:8 / /m rw - overlay o rw,lowerdir=/t/l/{long}:/t/short1\n"
        );
        fn user(all: &Mounts, name: &str, words: &[&str]) -> Option<u32> {
            all.user(&Path::new("/data/x/overlay").join(name), words).map(|seen| seen.pid)
        }
        let mut all = mounts_of_a_store();
        assert_eq!(user(&all, "id", &[]), Some(1));
        assert_eq!(user(&all, "i", &[]), None);
        fn has_name(all: &Mounts, name: &str) -> bool {
            all.names_below(Path::new("/data/x/overlay")).any(|known| known == name)
        }
        assert!(has_name(&all, "id") && !has_name(&all, "shown") && !has_name(&all, long));
        assert_eq!(user(&all, "shown", &[]), None);
        all.view(9, table.as_bytes());
        assert_eq!(user(&all, "shown", &[]), Some(9));
        assert!(has_name(&all, "shown") && has_name(&all, long));
        assert!(all.has_overlay_on(long) && !all.has_overlay_on("short2"));
        assert_eq!(user(&all, "shown/diff/below", &[]), None);
        // A container sees this directory; the mounts of this process do not count.
        assert_eq!(user(&all, "x", &[long]), Some(9));
        assert_eq!(user(&all, "x", &[&long[1..]]), None);
        assert_eq!(user(&all, "x", &["", "short1"]), Some(9));
        assert_eq!(all.points_below(), [Path::new("/data/x/overlay/id/merged")]);
    }

    #[test]
    fn unreadable_table_is_unknown() {
        let mut all = mounts_of_a_store();
        all.view(7, b"nonsense");
        assert_eq!(all.unknown_views().iter().map(|unknown| unknown.pid).collect::<Vec<_>>(), [7]);
    }

    /// A graphroot is open to everyone, the directories in it are not.
    #[test]
    fn directories_in_open_directory_decide() {
        use crate::sys::root::Who;
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let is_reached =
            || ways_into(&[dir.path().into()], &[]).unwrap().iter().any(|way| way.admits(&Who::user(4711)));
        mode(dir.path(), 0o755);
        assert!(is_reached(), "it has no directories");
        for name in ["overlay", "overlay-layers"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            mode(&dir.path().join(name), 0o700);
        }
        std::fs::write(dir.path().join("storage.lock"), "").unwrap();
        assert!(!is_reached());
        mode(&dir.path().join("overlay"), 0o711);
        assert!(is_reached());
        mode(&dir.path().join("overlay"), 0o700);
        for number in 0..70 {
            std::fs::create_dir(dir.path().join(number.to_string())).unwrap();
            mode(&dir.path().join(number.to_string()), 0o700);
        }
        assert!(is_reached(), "too many to check");
        mode(dir.path(), 0o700);
        assert!(!is_reached());
    }

    /// Without directories that could be reached, every process counts, and root's in any case.
    #[test]
    fn unknown_ways_exclude_no_process() {
        use crate::sys::root::Who;
        assert_eq!(ways_into(&[], &[]), None);
        let without = ProcessFacts { ways: Some(Vec::new()), ..ProcessFacts::default() };
        assert!(without.concerns(&Who::user(0)) && !without.concerns(&Who::user(4711)));
        assert!(ProcessFacts::default().concerns(&Who::user(4711)));
    }

    #[test]
    fn unparsed_line_is_an_error() {
        assert!(parse(1, b"1 0 8:1 / / rw - ext4 /dev/a rw\nnonsense\n").is_err());
    }

    #[test]
    fn this_machine_can_be_read() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let all = Mounts::read(&["/".into()]).unwrap();
        assert!(all.points_below().contains(&PathBuf::from("/proc")));
    }
}
