//! The mounts of all processes, to prove that something is mounted nowhere.
//!
//! Only mounts of users who cannot reach the directory at all are skipped. Mounts that cannot be
//! read are [`Unknown`]. Since another namespace has other names for the same directories, a mount is
//! also identified by the location on the filesystem that it covers and by the one that it shows.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::helper;
use super::mounts::{self, Location, Mount, location, shown};
use super::processes::read::{self, ProcRecord, ProcessFacts};
use super::processes::{Builder, Processes};
use super::root::{DirectoryChain, Root, Who};

/// A mount and one process that sees it.
#[derive(Clone, Debug)]
pub struct MountOfProcess {
    pub pid: u32,
    /// The mount, its paths as that process sees them.
    pub mount: Mount,
    /// What of a filesystem it shows.
    pub shows: Location,
    /// What it is on; `None` where the mount below is out of the process's sight.
    pub covers: Option<Location>,
    /// The filesystem's own options: of an overlay, its directories.
    pub options: Vec<u8>,
}

/// A process whose mounts cannot be read, and that could use what they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub pid: u32,
    pub name: String,
    pub why: String,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mounts of process {} ({}) are unknown: {}", self.pid, self.name, self.why)
    }
}

/// Whether every process of the machine can be seen from here. In the PID namespace of a container,
/// or behind `hidepid`, a mount may exist that nobody tells of.
#[must_use]
pub fn sees_all_processes() -> bool {
    read::sees_all(Path::new("/proc"))
}

/// The mounts that have to do with some directories, by what they may be asked for.
#[derive(Debug)]
pub struct Mounts {
    /// Those that this process sees, all of them.
    own: Vec<Mount>,
    areas: Vec<Area>,
    seen: Vec<MountOfProcess>,
    by_point: BTreeMap<PathBuf, usize>,
    by_place: HashMap<(u32, u32), BTreeMap<PathBuf, usize>>,
    /// Of overlays: what their options name.
    by_word: HashMap<Vec<u8>, usize>,
    overlays: Vec<usize>,
    unknown: Vec<Unknown>,
    sees_all: bool,
    processes: Processes,
}

/// A directory that mounts are asked for.
#[derive(Debug)]
struct Area {
    path: PathBuf,
    place: Option<Location>,
    way: DirectoryChain,
}

/// Words of options that are shorter are found by looking through all: names of layers and of
/// their links are longer.
const LEAST_WORD: usize = 20;

impl Mounts {
    /// Reads the mounts of all processes that have to do with `areas` (absolute, without symlinks).
    ///
    /// # Errors
    /// When `/proc` cannot be listed, or our own mounts cannot be read.
    pub fn read(areas: &[PathBuf]) -> io::Result<Self> {
        Self::ask(areas, false)
    }

    /// The same, with the processes and what they have open.
    pub fn read_with_processes(areas: &[PathBuf]) -> io::Result<Self> {
        Self::ask(areas, true)
    }

    fn ask(areas: &[PathBuf], files: bool) -> io::Result<Self> {
        let own = mounts::read()?;
        let mut all = Self::new(own, areas, |path| {
            // What cannot be opened may be anybody's.
            Root::open(path).map(|root| root.way().clone()).unwrap_or_default()
        });
        let mut processes = Builder::default();
        // Where files are asked for, who belongs to a container is told last.
        let (mut has_own, mut is_whole) = (false, false);
        helper::ask(ProcessFacts { mounts: true, files, ..ProcessFacts::default() }, &mut |record, body| {
            match record {
                ProcRecord::View { pid, who } => {
                    has_own = true;
                    all.view(pid, &who, body);
                }
                ProcRecord::Unknown { pid, name, who, why } => all.unknown(&who, Unknown { pid, name, why }),
                ProcRecord::Mounts if !files => is_whole = true,
                ProcRecord::End => {
                    is_whole = true;
                    processes.take(&record, body);
                }
                record => processes.take(&record, body),
            }
        })?;
        if !has_own {
            return Err(io::Error::new(ErrorKind::NotFound, "/proc does not show our own mounts"));
        }
        if !is_whole {
            return Err(io::Error::new(ErrorKind::TimedOut, "not all could be read in time"));
        }
        all.processes = processes.finish();
        all.sees_all = sees_all_processes();
        Ok(all)
    }

    fn new(own: Vec<Mount>, areas: &[PathBuf], way: impl Fn(&Path) -> DirectoryChain) -> Self {
        let areas =
            areas.iter().map(|path| Area { path: path.clone(), place: location(&own, path), way: way(path) });
        Self {
            areas: areas.collect(),
            own,
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

    fn is_reached_by(&self, who: &Who) -> bool {
        self.areas.iter().any(|area| area.way.admits(who))
    }

    fn unknown(&mut self, who: &Who, unknown: Unknown) {
        if self.is_reached_by(who) {
            self.unknown.push(unknown);
        }
    }

    fn view(&mut self, pid: u32, who: &Who, table: &[u8]) {
        if !self.is_reached_by(who) {
            return;
        }
        match parse(pid, table) {
            Ok(all) => all.into_iter().for_each(|seen| self.add(seen)),
            Err(error) => {
                self.unknown.push(Unknown { pid, name: "its mount table".into(), why: error.to_string() });
            }
        }
    }

    /// Keeps what may be asked for.
    fn add(&mut self, seen: MountOfProcess) {
        let is_overlay = seen.mount.fstype.contains("overlay");
        let concerns = |area: &Area| {
            let within = |at: &Location| area.place.as_ref().is_some_and(|place| at.is_within(place));
            seen.mount.mount_point.starts_with(&area.path)
                || within(&seen.shows)
                || seen.covers.as_ref().is_some_and(within)
        };
        if !is_overlay && !self.areas.iter().any(concerns) {
            return;
        }
        let at = self.seen.len();
        self.by_point.entry(seen.mount.mount_point.clone()).or_insert(at);
        for place in std::iter::once(&seen.shows).chain(&seen.covers) {
            self.by_place.entry(place.device).or_default().entry(place.path.clone()).or_insert(at);
        }
        if is_overlay {
            let words = seen.options.split(|byte| !byte.is_ascii_alphanumeric());
            for word in words.filter(|word| word.len() >= LEAST_WORD) {
                self.by_word.entry(word.to_vec()).or_insert(at);
            }
            self.overlays.push(at);
        }
        self.seen.push(seen);
    }

    /// Adds what this process has come to see since; `table` is its mount table now.
    pub fn add_own(&mut self, table: &[u8]) -> io::Result<()> {
        parse(std::process::id(), table)?.into_iter().for_each(|seen| self.add(seen));
        Ok(())
    }

    /// Processes whose mounts are not known. Only those are told that could reach the directories.
    #[must_use]
    pub fn unknown_views(&self) -> &[Unknown] {
        &self.unknown
    }

    /// Whether every process of the machine has a place in `/proc`.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.sees_all
    }

    /// The processes, where they were asked for.
    #[must_use]
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// A mount that needs `path`, in one of the directories: one that is on it or below, one that
    /// shows a part of it, or an overlay whose options have one of `words`: a layer's id, the names
    /// of its links. Those are long and random, so that nothing else is called so.
    #[must_use]
    pub fn user(&self, path: &Path, words: &[&str]) -> Option<&MountOfProcess> {
        fn below<'m>(all: &'m BTreeMap<PathBuf, usize>, path: &Path) -> Option<&'m usize> {
            let (first, at) = all.range::<Path, _>((Bound::Included(path), Bound::Unbounded)).next()?;
            first.starts_with(path).then_some(at)
        }
        let place = location(&self.own, path);
        let by_place = || {
            let place = place?;
            below(self.by_place.get(&place.device)?, &place.path)
        };
        let by_word = || words.iter().find_map(|word| self.named(word.as_bytes()));
        let at = below(&self.by_point, path).or_else(by_place).copied().or_else(by_word)?;
        self.seen.get(at)
    }

    fn named(&self, word: &[u8]) -> Option<usize> {
        if word.len() >= LEAST_WORD && word.iter().all(u8::is_ascii_alphanumeric) {
            return self.by_word.get(word).copied();
        }
        let has = |at: &&usize| self.seen[**at].options.windows(word.len()).any(|part| part == word);
        self.overlays.iter().find(|at| !word.is_empty() && has(at)).copied()
    }

    /// Names of the entries of `parent`, a directory in one of the directories, that a mount is on or below, or that one
    /// shows a part of; and the words in the options of overlays.
    pub fn names_below(&self, parent: &Path) -> impl Iterator<Item = &OsStr> {
        let place = location(&self.own, parent);
        let shown = place.as_ref().and_then(|place| self.by_place.get(&place.device));
        let points = self.by_point.keys().filter_map({
            let parent = parent.to_owned();
            move |point| point.strip_prefix(&parent).ok()
        });
        let shown = shown.into_iter().flat_map(BTreeMap::keys);
        let shown = shown.filter_map(move |shown| shown.strip_prefix(&place.as_ref()?.path).ok());
        let children = points.chain(shown).filter_map(|below| below.iter().next());
        children.chain(self.by_word.keys().map(|word| OsStr::from_bytes(word)))
    }

    /// Returns true if an overlay's options have `word`.
    #[must_use]
    pub fn has_overlay_on(&self, word: &str) -> bool {
        self.named(word.as_bytes()).is_some()
    }

    /// Mount points strictly below the directories, in order, each once.
    #[must_use]
    pub fn points_below(&self) -> Vec<PathBuf> {
        let all = self.by_point.keys();
        let is_below = |point: &&PathBuf| {
            self.areas.iter().any(|area| **point != area.path && point.starts_with(&area.path))
        };
        all.filter(is_below).cloned().collect()
    }
}

/// Mount points strictly below any of `paths`, in the mount namespaces of all processes that can
/// reach them: podman and CRI-O mount privately, so a layer may be mounted where we do not see it.
/// Namespaces that we may not look into (another user's process) are skipped, and so
/// are paths of processes with another root directory that happen to differ.
///
/// # Errors
/// When our own table cannot be read: then nothing can be said.
pub fn points_below(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    Mounts::read(paths).map(|all| all.points_below())
}

fn parse(pid: u32, text: &[u8]) -> io::Result<Vec<MountOfProcess>> {
    let mut found = Vec::new();
    for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let strange = || io::Error::new(ErrorKind::InvalidData, "one line is not a mount table line");
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

    /// A process that is on its way out, at whatever point, does not make the result unknown.
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
            let looks: Vec<_> = (0..300).map(|_| Mounts::read(&["/".into()]).unwrap()).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let unknown: Vec<_> = looks.iter().flat_map(Mounts::unknown_views).collect();
            assert!(unknown.is_empty(), "{} of 300 looks: {}", unknown.len(), unknown[0]);
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
        let at = |path: &str| location(&mounts::parse(TABLE), Path::new(path)).unwrap();
        assert_eq!(at("/data/x/overlay/id"), place((8, 2), "/sub/x/overlay/id"));
        assert_eq!(at("/data/y"), place((8, 2), "/sub/y"));
        assert_eq!(at("/database"), place((8, 1), "/database"));
        assert!(at("/data/x/overlay/id").is_within(&place((8, 2), "/sub")));
        assert!(!at("/data/y").is_within(&place((8, 2), "/sub/x")));
        assert!(!at("/database").is_within(&place((8, 1), "/data")));
    }

    /// The store is `/data/x/overlay`, which only root and uid 1000 can reach.
    fn mounts_of_a_store() -> Mounts {
        use crate::sys::root::DirectoryRights;
        let way = || {
            DirectoryChain::new(vec![
                DirectoryRights { uid: 0, mode: 0o755 },
                DirectoryRights { uid: 1000, mode: 0o700 },
            ])
        };
        let mut all = Mounts::new(mounts::parse(TABLE), &["/data/x/overlay".into()], |_| way());
        all.view(1, &Who::user(0), TABLE);
        all
    }

    #[test]
    fn what_needs_a_directory_is_found_by_point_place_and_word() {
        let long = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let theirs = format!(
            "1 0 8:2 /sub/x/overlay/shown/diff / rw - btrfs /dev/b rw\n\
             2 1 0:8 / /m rw - overlay o rw,lowerdir=/t/l/{long}:/t/short1\n"
        );
        let ask = |all: &Mounts, name: &str, words: &[&str]| {
            let found = all.user(&Path::new("/data/x/overlay").join(name), words);
            found.map(|seen| seen.pid)
        };
        let mut all = mounts_of_a_store();
        assert_eq!(ask(&all, "id", &[]), Some(1));
        assert_eq!(ask(&all, "i", &[]), None);
        let has_name = |all: &Mounts, name: &str| {
            all.names_below(Path::new("/data/x/overlay")).any(|known| known == name)
        };
        assert!(has_name(&all, "id") && !has_name(&all, "shown") && !has_name(&all, long));
        assert_eq!(ask(&all, "shown", &[]), None);
        all.view(9, &Who::user(1000), theirs.as_bytes());
        assert_eq!(ask(&all, "shown", &[]), Some(9));
        assert!(has_name(&all, "shown") && has_name(&all, long));
        assert!(all.has_overlay_on(long) && !all.has_overlay_on("short2"));
        assert_eq!(ask(&all, "shown/diff/below", &[]), None);
        assert_eq!(ask(&all, "x", &[long]), Some(9));
        assert_eq!(ask(&all, "x", &[&long[1..]]), None);
        assert_eq!(ask(&all, "x", &["", "short1"]), Some(9));
        assert_eq!(all.points_below(), [Path::new("/data/x/overlay/id/merged")]);
    }

    #[test]
    fn who_cannot_reach_a_store_neither_uses_it_nor_hides_its_users() {
        let mut all = mounts_of_a_store();
        let table = b"1 0 8:2 /sub/x/overlay/shown / rw - btrfs /dev/b rw\n";
        let unknown = |pid| Unknown { pid, name: "x".into(), why: "y".into() };
        all.view(9, &Who::user(1001), table);
        all.view(9, &Who::user(1001), b"nonsense");
        all.unknown(&Who::user(1001), unknown(9));
        assert!(all.user(Path::new("/data/x/overlay/shown"), &[]).is_none());
        assert_eq!(all.unknown_views(), []);
        all.unknown(&Who::user(1000), unknown(8));
        all.view(7, &Who::user(0), b"nonsense");
        assert_eq!(all.unknown_views().iter().map(|one| one.pid).collect::<Vec<_>>(), [8, 7]);
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
        let all = Mounts::read(&["/".into()]).unwrap();
        assert!(all.points_below().contains(&PathBuf::from("/proc")));
    }
}
