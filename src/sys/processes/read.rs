//! Reads the processes of this machine so that none of them can block us.
//!
//! Links are read, never followed (a process may be rooted in a filesystem that does not answer),
//! and nothing is read from its memory (a page of `cmdline` or `environ` may lie there) but the arguments of
//! root's kubelets and containerds. To
//! distinguish two mounts at the same path, the link is opened with `O_PATH` and its number
//! read from our own `fdinfo`.
//!
//! Even a link may never be read: kernels since 6.18 wait there for a process that is in the middle of
//! `execve` (`exec_update_lock`), and that waits for a file that it closes on the way. So links are read
//! in a thread that can be left behind, those of root's processes first; from the process that does not
//! answer on, the open files of processes are unknown. `status`, `uid_map`, `cgroup`, `comm` and `mountinfo`
//! never block: the identity and the mounts of every process are known.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::mounts;
use super::super::patience::{Patience, ask_each};
use super::super::root::Who;
use super::super::users;

/// Inode of the kernel's first PID namespace (`PROC_PID_INIT_INO` in
/// `include/linux/proc_ns.h`): only there `/proc` shows every process.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The machine's init in that namespace.
const INIT: u32 = 1;

/// Programs that are a kubelet, or have one built in.
pub(crate) const KUBELETS: [&str; 6] = ["kubelet", "hyperkube", "k3s", "rke2", "k0s", "kubelite"];

/// Programs that are a containerd, or start one. k3s calls its processes `k3s-server` and `k3s-agent`.
const CONTAINERDS: [&str; 5] = ["containerd", "k3s", "rke2", "k3s-server", "k3s-agent"];

/// Maximum size of the arguments of a process (`MAX_ARG_STRLEN` in Linux is the limit of one).
const MOST_OF_ARGUMENTS: u64 = 128 << 10;

/// Size of a table of 100,000 mounts (the kernel's default limit per namespace) with short
/// paths. A longer table counts as unknown.
const MOST_OF_A_VIEW: u64 = 24 << 20;
/// Limit for all tables together; those of root's processes are read first.
const MOST_OF_ALL: u64 = 384 << 20;

/// Limits of open files read for one process, and for all processes of other users together.
const MOST_FILES: usize = 1 << 16;
const MOST_FILES_OF_USERS: usize = 1 << 18;

/// With one of these a process bypasses permissions, or can become a user who does:
/// `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_SETUID`, `CAP_SYS_PTRACE`, `CAP_SYS_ADMIN`.
const POWERS: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 19 | 1 << 21;

/// What is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessFacts {
    pub(crate) mounts: bool,
    /// What they have open.
    pub(crate) files: bool,
    /// Files without a name that they have open, with their sizes.
    pub(crate) deleted: bool,
    /// The arguments of kubelets.
    pub(crate) arguments: bool,
    /// The arguments of containerds, and of programs that start one, and nothing else.
    pub(crate) containerds: bool,
}

/// What was read; the bytes beside it are said in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProcRecord {
    /// Comes first: whether every process of the machine has a place in `/proc`.
    Begin { sees_all: bool },
    /// A process. `is_hidden`: what it has open cannot be read.
    Process { id: u32, name: String, group: String, who: Who, is_hidden: bool },
    /// The mounts that processes see who are `who` together (a mount table). The first is our own.
    View { pid: u32, who: Who },
    /// The mounts of a process cannot be read.
    Unknown { pid: u32, name: String, who: Who, why: String },
    /// All mounts have been told.
    Mounts,
    /// What a process has open (paths, each with a NUL after it).
    Files { id: u32, is_complete: bool },
    /// A file without a name (what it was called).
    Deleted { id: u32, name: String, device: u64, bytes: u64, backing: Option<Backing> },
    /// The arguments of a kubelet or containerd (as in `/proc/PID/cmdline`).
    Arguments { id: u32 },
    /// Nothing is missing.
    End,
}

/// What the bytes of a file are on whose device number tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// The upper directory of an overlay, as whoever mounted it has it: it may be relative.
    Upper(OsString),
    /// The source of its mount: `/dev/vda4`.
    Source(String),
}

/// What the kernel puts behind the name of a file without one.
const DELETED: &[u8] = b" (deleted)";

type Emit<'a> = dyn FnMut(ProcRecord, &[u8]) -> io::Result<()> + 'a;

/// Reads what is wanted of all processes but `own` and this one.
pub(crate) fn all(wanted: ProcessFacts, own: u32, emit: &mut Emit<'_>) -> io::Result<()> {
    Reader::new(Path::new("/proc"), own).read(wanted, emit)
}

/// The same below another directory than `/proc`, for tests.
#[cfg(test)]
pub(crate) fn below(proc: &Path, wanted: ProcessFacts, emit: &mut Emit<'_>) -> io::Result<()> {
    Reader::new(proc, std::process::id()).read(wanted, emit)
}

/// Whether every process of the machine has a place in `/proc`: we are in its first PID namespace,
/// and with `hidepid` the first process is not there for us.
pub(crate) fn sees_all(proc: &Path) -> bool {
    let namespace = fs::read_link(proc.join("self/ns/pid"));
    namespace.is_ok_and(|name| name == Path::new(FIRST_PID_NAMESPACE))
        && fs::read(proc.join("1/status")).is_ok()
}

/// A process that was found.
#[derive(Clone)]
struct ProcessDirectory {
    id: u32,
    /// `/proc/ID`, or that of a thread if the first has ended.
    place: PathBuf,
    who: Who,
    is_of_our_users: bool,
    /// A thread of the kernel, which has nothing open and is in nobody's group. Older kernels do not
    /// say so.
    is_kernel: bool,
}

impl ProcessDirectory {
    /// The last part of its program's path.
    fn name(&self, program: Option<&Path>) -> String {
        name(&self.place, program)
    }
}

/// Which mounts a process sees: its namespace, its root directory there, and the mount of that. Of a
/// process whose links do not answer only the number is known.
#[derive(Clone, PartialEq, Eq, Hash)]
enum View {
    Of(OsString, OsString, Option<u64>),
    Stuck(u32),
}

/// What the links of a process say.
struct Links {
    view: View,
    /// Who may mount there, where that is somebody else than root. `None`: the kernel does not tell.
    owner: Option<Who>,
}

/// Who sees a view.
#[derive(Default)]
struct Seers {
    pids: Vec<u32>,
    who: Who,
}

/// A mount that a file may lie on, of a filesystem that answers.
struct Local {
    fstype: String,
    source: String,
    upper: Option<Vec<u8>>,
}

struct Reader<'a> {
    proc: &'a Path,
    own: u32,
    /// How user ids of our user namespace are mapped.
    users: String,
    locals: HashMap<u64, Local>,
}

impl<'a> Reader<'a> {
    fn new(proc: &'a Path, own: u32) -> Self {
        let users = fs::read_to_string(proc.join("self/uid_map")).unwrap_or_default();
        Self { proc, own, users, locals: HashMap::new() }
    }

    fn read(mut self, wanted: ProcessFacts, emit: &mut Emit<'_>) -> io::Result<()> {
        emit(ProcRecord::Begin { sees_all: sees_all(self.proc) }, b"")?;
        let mut found = self.list()?;
        if wanted.containerds {
            self.containerds(&found, emit)?;
            return emit(ProcRecord::End, b"");
        }
        // The caller first, whose table has the paths as it knows them; then root's processes, in case that
        // there is no time for all.
        let own = self.own;
        found.sort_by_key(|one| (one.id != own, !one.who.is_privileged, one.id));
        if wanted.mounts || wanted.deleted {
            self.mounts(&found, wanted, emit)?;
            emit(ProcRecord::Mounts, b"")?;
        }
        if wanted.deleted {
            self.deleted(&found, emit)?;
        }
        found.retain(|one| one.id != self.own && one.id != std::process::id() && !one.is_kernel);
        Self::files(&found, wanted, emit)?;
        emit(ProcRecord::End, b"")
    }

    fn list(&self) -> io::Result<Vec<ProcessDirectory>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.proc)? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let mut place = self.proc.join(format!("{id}"));
            // It may have ended.
            let Ok(mut status) = fs::read(place.join("status")) else { continue };
            if field(&status, "State").is_some_and(|state| state.starts_with('Z')) {
                // The others of its threads may go on.
                let Some(thread) = living_thread(&place) else { continue };
                place = thread;
                status = fs::read(place.join("status")).unwrap_or(status);
            }
            let users = fs::read_to_string(place.join("uid_map")).unwrap_or_default();
            let is_of_our_users = users.is_empty() || users == self.users;
            let who = who(&users, &status, is_of_our_users);
            let is_kernel = field(&status, "Kthread").is_some_and(|is_one| is_one == "1");
            found.push(ProcessDirectory { id, place, who, is_of_our_users, is_kernel });
        }
        Ok(found)
    }

    fn mounts(
        &mut self,
        found: &[ProcessDirectory],
        wanted: ProcessFacts,
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        let by_id: HashMap<u32, &ProcessDirectory> = found.iter().map(|one| (one.id, one)).collect();
        let mut patience = Patience::new();
        let links = ask_each(found.to_vec(), move |one| links_patiently(&one, &mut patience));
        let mut views: Vec<(View, Seers)> = Vec::new();
        let mut known: HashMap<View, usize> = HashMap::new();
        for (one, links) in found.iter().zip(links) {
            let links = match links {
                // Anything may be mounted there, by root too.
                None => Links { view: View::Stuck(one.id), owner: None },
                Some(Ok(None)) => continue,
                Some(Ok(Some(links))) => links,
                // Where sandboxes and security modules hide the first process, and nothing else, it is
                // skipped: whoever lives in a namespace of containers has company there.
                Some(Err(error)) if one.id == INIT => {
                    tracing::debug!("the mounts of process {INIT}: {error}");
                    continue;
                }
                Some(Err(error)) => {
                    self.unknown(one, &error.to_string(), emit)?;
                    continue;
                }
            };
            let at = *known.entry(links.view).or_insert_with_key(|view| {
                views.push((view.clone(), Seers::default()));
                views.len() - 1
            });
            let seers = &mut views[at].1;
            seers.pids.push(one.id);
            add(&mut seers.who, &one.who);
            // Whose mounts they are may be told by the owner alone: a container's process need not be
            // able to do what was done for it.
            add(&mut seers.who, links.owner.as_ref().unwrap_or(&Who { is_privileged: true, uids: vec![] }));
        }
        if let [_, others @ ..] = &mut views[..] {
            others.sort_by_key(|(_, seers)| !seers.who.is_privileged);
        }
        let mut left = MOST_OF_ALL;
        for (_, seers) in &views {
            self.view_table(seers, &by_id, wanted, &mut left, emit)?;
        }
        Ok(())
    }

    /// Reads the table of a view by any of its processes.
    fn view_table(
        &mut self,
        seers: &Seers,
        by_id: &HashMap<u32, &ProcessDirectory>,
        wanted: ProcessFacts,
        left: &mut u64,
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        let living = seers.pids.iter().filter_map(|pid| by_id.get(pid));
        let mut failed = None;
        for one in living {
            let most = MOST_OF_A_VIEW.min(*left);
            let mut table = Vec::new();
            let read = fs::File::open(one.place.join("mountinfo"))
                .and_then(|file| file.take(most + 1).read_to_end(&mut table));
            match read {
                // EINVAL: it has no namespace any more.
                Err(error)
                    if matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::NOENT | Errno::SRCH | Errno::INVAL)
                    ) =>
                {
                    continue;
                }
                Err(error) => failed = Some((one, error.to_string())),
                Ok(_) if table.len() as u64 > most => {
                    failed = Some((one, "there are too many".to_owned()));
                    break;
                }
                // So ends the table of a process that ended in between.
                Ok(_) if table.is_empty() => continue,
                Ok(_) => {
                    *left -= table.len() as u64;
                    if wanted.deleted {
                        self.note_locals(&table, seers.who.is_privileged);
                    }
                    if wanted.mounts {
                        emit(ProcRecord::View { pid: one.id, who: seers.who.clone() }, &table)?;
                    }
                    return Ok(());
                }
            }
        }
        match failed {
            Some((one, why)) => {
                let name = one.name(None);
                emit(ProcRecord::Unknown { pid: one.id, name, who: seers.who.clone(), why }, b"")
            }
            None => Ok(()),
        }
    }

    fn unknown(&self, one: &ProcessDirectory, why: &str, emit: &mut Emit<'_>) -> io::Result<()> {
        // In a user namespace, who lives outside of it is out of reach for good, and is somebody else.
        if !users::is_first_user_namespace() {
            return Ok(());
        }
        let name = one.name(None);
        emit(ProcRecord::Unknown { pid: one.id, name, who: one.who.clone(), why: why.to_owned() }, b"")
    }

    /// The arguments of containerds whose paths are ours: of root's, in our mount namespace or in init's.
    ///
    /// The name of a process is its own choice, and a user may start a program of root's with any name and
    /// arguments. So its file must have the name, too, and all its user ids must be root's.
    fn containerds(&self, found: &[ProcessDirectory], emit: &mut Emit<'_>) -> io::Result<()> {
        let is_one = |name: &str| CONTAINERDS.contains(&name);
        let root = Who { is_privileged: true, uids: vec![one(0)] };
        let named =
            found.iter().filter(|one| one.who == root && one.is_of_our_users && is_one(&one.name(None)));
        let named: Vec<_> = named.cloned().collect();
        let namespaces = ["self", "1"].map(|id| self.proc.join(id).join("ns/mnt"));
        let answers = ask_each(named.clone(), move |one| {
            let namespace = fs::read_link(one.place.join("ns/mnt")).ok()?;
            let program = fs::read_link(one.place.join("exe")).ok()?;
            let has_our_paths =
                namespaces.iter().any(|ours| fs::read_link(ours).is_ok_and(|ours| ours == namespace));
            if !has_our_paths || !is_one(&one.name(Some(&program))) {
                return None;
            }
            let mut arguments = Vec::new();
            let file = fs::File::open(one.place.join("cmdline")).ok()?;
            file.take(MOST_OF_ARGUMENTS).read_to_end(&mut arguments).ok()?;
            Some(arguments)
        });
        for (one, arguments) in named.iter().zip(answers) {
            if let Some(Some(arguments)) = arguments {
                emit(ProcRecord::Arguments { id: one.id }, &arguments)?;
            }
        }
        Ok(())
    }

    fn files(found: &[ProcessDirectory], wanted: ProcessFacts, emit: &mut Emit<'_>) -> io::Result<()> {
        let (mut left, mut patience) = (MOST_FILES_OF_USERS, Patience::new());
        let answers = ask_each(if wanted.files { found.to_vec() } else { Vec::new() }, move |one| {
            let exe = fs::read_link(one.place.join("exe")).ok();
            let most = if one.who.is_privileged { MOST_FILES } else { MOST_FILES.min(left) };
            let held = OpenPaths::read(&one, most, &mut patience);
            if let Ok(held) = &held
                && !one.who.is_privileged
            {
                left -= held.count;
            }
            (exe, held)
        });
        let mut answers = answers.into_iter();
        let mut kubelets = Vec::new();
        for one in found {
            let answer = answers.next().flatten();
            let is_answered = answer.is_some() || !wanted.files;
            let (exe, held) = answer.map_or((None, None), |(exe, held)| (exe, Some(held)));
            if let Some(Err(error)) = &held
                && is_gone(error)
            {
                continue;
            }
            let is_refused = held.as_ref().is_some_and(Result::is_err);
            let group = fs::read(one.place.join("cgroup")).unwrap_or_default();
            let name = one.name(exe.as_deref());
            if KUBELETS.contains(&name.as_str()) && one.who.is_privileged && one.is_of_our_users {
                kubelets.push(one.clone());
            }
            let record = ProcRecord::Process {
                id: one.id,
                name,
                group: String::from_utf8_lossy(&group).into_owned(),
                who: one.who.clone(),
                // Security modules and sandboxes hide init's files even from root; no container
                // engine's are among them.
                is_hidden: !is_answered || (is_refused && one.id != INIT),
            };
            emit(record, b"")?;
            if let Some(Ok(mut held)) = held {
                exe.iter().for_each(|exe| held.add(exe));
                emit(ProcRecord::Files { id: one.id, is_complete: held.is_complete }, &held.paths)?;
            }
        }
        if wanted.arguments {
            // The one thing that is in a process's memory: only of a kubelet that is root's.
            let places = kubelets.iter().map(|one| one.place.join("cmdline")).collect();
            let answers = ask_each(places, |place: PathBuf| fs::read(place).ok());
            for (one, arguments) in kubelets.iter().zip(answers) {
                if let Some(Some(arguments)) = arguments {
                    emit(ProcRecord::Arguments { id: one.id }, &arguments)?;
                }
            }
        }
        Ok(())
    }

    /// Of mounts whose filesystem asks nobody else. An overlay of a user's may lie on one that does.
    fn note_locals(&mut self, table: &[u8], is_privileged: bool) {
        const LOCAL: [&str; 11] =
            ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "zfs", "bcachefs", "vfat", "jfs"];
        for line in table.split(|byte| *byte == b'\n') {
            let Some((mount, upper)) = mounts::with_upper(line) else { continue };
            if LOCAL.contains(&&*mount.fstype) || (mount.fstype == "overlay" && is_privileged) {
                let local = Local { fstype: mount.fstype, source: mount.source, upper };
                self.locals.insert(mount.id, local);
            }
        }
    }

    fn deleted(&mut self, found: &[ProcessDirectory], emit: &mut Emit<'_>) -> io::Result<()> {
        let locals = std::mem::take(&mut self.locals);
        let answers = ask_each(found.to_vec(), move |one| deleted_of(&one, &locals));
        let mut seen = HashSet::new();
        for Deleted { identity, record, path } in answers.into_iter().flatten().flatten() {
            if seen.insert(identity) {
                emit(record, &path)?;
            }
        }
        Ok(())
    }
}

/// A file without a name.
struct Deleted {
    identity: (u64, u64),
    record: ProcRecord,
    path: Vec<u8>,
}

fn deleted_of(one: &ProcessDirectory, locals: &HashMap<u64, Local>) -> Vec<Deleted> {
    // It may end at any moment.
    let Ok(open) = fs::read_dir(one.place.join("fd")) else { return Vec::new() };
    let deleted = |file: fs::DirEntry| {
        let target = fs::read_link(file.path()).ok()?;
        let path = target.as_os_str().as_bytes().strip_suffix(DELETED)?;
        let information = fs::read(one.place.join("fdinfo").join(file.file_name())).ok()?;
        let mount: u64 = field(&information, "mnt_id")?.parse().ok()?;
        let local = locals.get(&mount)?;
        // Through the descriptor, not by the name: that is another file's by now, or nobody's.
        let facts = rustix::fs::fstat(open_path(&file.path()).ok()?).ok()?;
        if facts.st_nlink > 0 || !rustix::fs::FileType::from_raw_mode(facts.st_mode).is_file() {
            return None;
        }
        let flags = field(&information, "flags").and_then(|text| u32::from_str_radix(text, 8).ok());
        // O_WRONLY or O_RDWR: opening has copied it up. Of an overlay only that is in its own layer.
        let writes = flags.is_some_and(|flags| flags & 0o3 != 0);
        let backing = match (rustix::fs::major(facts.st_dev) == 0, local.fstype == "overlay") {
            (false, _) => None,
            (true, false) => Some(Backing::Source(local.source.clone())),
            (true, true) if writes => local.upper.clone().map(OsString::from_vec).map(Backing::Upper),
            (true, true) => return None,
        };
        let record = ProcRecord::Deleted {
            id: one.id,
            name: one.name(None),
            device: facts.st_dev,
            bytes: u64::try_from(facts.st_blocks).unwrap_or(0).saturating_mul(512),
            backing,
        };
        Some(Deleted { identity: (facts.st_dev, facts.st_ino), record, path: path.to_vec() })
    };
    open.flatten().take(MOST_FILES).filter_map(deleted).collect()
}

/// A process that ends between the look at its directory and the one at a link in it "may not be
/// looked at" (`proc_fd_access_allowed` and `proc_ns_get_link` in `fs/proc` answer EACCES where they
/// find no task), and one that is just beginning may still have more rights than we. Neither lasts:
/// asked again it is gone, or open to us.
fn links_patiently(one: &ProcessDirectory, patience: &mut Patience) -> io::Result<Option<Links>> {
    loop {
        match links(one) {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && one.id != INIT && patience.wait() => {}
            other => return other,
        }
    }
}

fn links(one: &ProcessDirectory) -> io::Result<Option<Links>> {
    let link = |name: &str| unless_gone(fs::read_link(one.place.join(name)));
    let (Some(namespace), Some(root)) = (link("ns/mnt")?, link("root")?) else { return Ok(None) };
    let number = open_path(&one.place.join("root")).ok().as_ref().and_then(mount_of);
    let owner = if one.who.is_privileged { Some(Who::default()) } else { owner_of_mounts(&one.place) };
    Ok(Some(Links { view: View::Of(namespace.into_os_string(), root.into_os_string(), number), owner }))
}

/// What a process has open, runs, or stands in.
#[derive(Default)]
struct OpenPaths {
    paths: Vec<u8>,
    count: usize,
    is_complete: bool,
}

impl OpenPaths {
    /// One that is just beginning or ending may be closed to us for a moment; init is for good.
    fn read(one: &ProcessDirectory, most: usize, patience: &mut Patience) -> io::Result<Self> {
        loop {
            match Self::read_once(&one.place, most) {
                Err(error) if !is_gone(&error) && one.id != INIT && patience.wait() => {}
                other => return other,
            }
        }
    }

    fn read_once(place: &Path, most: usize) -> io::Result<Self> {
        let mut held = Self { is_complete: true, ..Self::default() };
        for (at, entry) in fs::read_dir(place.join("fd"))?.enumerate() {
            if at >= most {
                held.is_complete = false;
                break;
            }
            held.link(entry?.path())?;
            held.count = at + 1;
        }
        for name in ["cwd", "root"] {
            // Threads of the kernel have none.
            held.link(place.join(name))?;
        }
        Ok(held)
    }

    fn link(&mut self, path: PathBuf) -> io::Result<()> {
        if let Some(target) = unless_gone(fs::read_link(path))? {
            self.add(&target);
        }
        Ok(())
    }

    /// Pipes, sockets and devices are not files on a disk.
    fn add(&mut self, target: &Path) {
        let system = ["/proc", "/sys", "/dev"].iter().any(|top| target.starts_with(top));
        if target.is_absolute() && !system && target != Path::new("/") {
            let bytes = target.as_os_str().as_bytes();
            self.paths.extend_from_slice(bytes.strip_suffix(DELETED).unwrap_or(bytes));
            self.paths.push(0);
        }
    }
}

/// The value of a line `Name:\tvalue`.
fn field<'t>(text: &'t [u8], name: &str) -> Option<&'t str> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(value).ok().map(str::trim)
}

/// A thread of a process whose first has ended.
fn living_thread(place: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(place.join("task")).ok()?.flatten().map(|entry| entry.path());
    let mut alive = threads.filter(|thread| {
        let status = fs::read(thread.join("status")).unwrap_or_default();
        field(&status, "State").is_some_and(|state| !state.starts_with('Z') && !state.starts_with('X'))
    });
    alive.next()
}

/// Who a process is and can become.
fn who(map: &str, status: &[u8], is_of_our_users: bool) -> Who {
    let uids: Vec<u32> = field(status, "Uid")
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|uid| uid.parse().ok())
        .collect();
    let powers = |name| field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    let is_powerful = (powers("CapEff") | powers("CapPrm")) & POWERS != 0;
    // What is not known may be root's.
    let is_privileged = is_of_our_users && (is_powerful || uids.contains(&0) || uids.is_empty());
    let mut who = Who { is_privileged, uids: Vec::new() };
    uids.iter().for_each(|uid| add(&mut who, &Who { is_privileged: false, uids: vec![one(*uid)] }));
    if !is_of_our_users {
        for line in map.lines() {
            let mut numbers = line.split_whitespace().skip(1).filter_map(|number| number.parse::<u32>().ok());
            if let (Some(outside), Some(count)) = (numbers.next(), numbers.next()) {
                let range = outside..outside.saturating_add(count);
                add(&mut who, &Who { is_privileged: false, uids: vec![range] });
            }
        }
    }
    who
}

fn one(uid: u32) -> Range<u32> {
    uid..uid.saturating_add(1)
}

fn add(to: &mut Who, more: &Who) {
    to.is_privileged |= more.is_privileged;
    for range in &more.uids {
        if !to.uids.contains(range) {
            to.uids.push(range.clone());
        }
    }
}

/// Who may mount in the namespace of a process: its user namespace's owner, and root where that is
/// ours. `None`: the kernel does not tell.
fn owner_of_mounts(place: &Path) -> Option<Who> {
    let mounts = fs::File::open(place.join("ns/mnt")).ok()?;
    let users = user_namespace_of(&mounts).ok()?;
    let is_same = |own: fs::File| {
        let identity = |facts: rustix::fs::Stat| (facts.st_dev, facts.st_ino);
        Some(identity(rustix::fs::fstat(&own).ok()?) == identity(rustix::fs::fstat(&users).ok()?))
    };
    match is_same(fs::File::open("/proc/self/ns/user").ok()?)? {
        true => Some(Who { is_privileged: true, uids: vec![] }),
        false => owner_of_users(&users).ok().map(Who::user),
    }
}

/// `NS_GET_USERNS` of `ioctl_nsfs(2)`: the user namespace that another one belongs to.
#[allow(unsafe_code)]
fn user_namespace_of(namespace: &fs::File) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    const NS_GET_USERNS: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0xb7, 1);
    struct Get;
    // SAFETY: the operation takes no argument, and returns a new descriptor, which nobody else owns;
    // it changes nothing in our memory.
    unsafe impl rustix::ioctl::Ioctl for Get {
        type Output = OwnedFd;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> rustix::ioctl::Opcode {
            NS_GET_USERNS
        }
        fn as_ptr(&mut self) -> *mut core::ffi::c_void {
            core::ptr::null_mut()
        }
        unsafe fn output_from_ptr(
            returned: rustix::ioctl::IoctlOutput,
            _: *mut core::ffi::c_void,
        ) -> rustix::io::Result<OwnedFd> {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(unsafe { OwnedFd::from_raw_fd(returned) })
        }
    }
    // SAFETY: as above; the descriptor is that of a namespace, whose only operations these are.
    unsafe { rustix::ioctl::ioctl(namespace, Get) }
}

/// `NS_GET_OWNER_UID`: who made a user namespace.
#[allow(unsafe_code)]
fn owner_of_users(users: &OwnedFd) -> rustix::io::Result<u32> {
    const NS_GET_OWNER_UID: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0xb7, 4);
    // SAFETY: the kernel writes a `uid_t`, which is a `u32` on Linux, and nothing else.
    unsafe { rustix::ioctl::ioctl(users, rustix::ioctl::Getter::<NS_GET_OWNER_UID, u32>::new()) }
}

/// Opens nothing but the way to it.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// From `fdinfo`, which asks no filesystem.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    let text = fs::read(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    field(&text, "mnt_id")?.parse().ok()
}

/// It ended while we looked.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}

/// A process may end at any time, and a zombie has no namespace left.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) || Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last part of a program's path. The name that the kernel keeps has 15 bytes at most, and a
/// process may change it.
fn name(place: &Path, program: Option<&Path>) -> String {
    let of_program = program.and_then(Path::file_name).map(OsStr::to_string_lossy);
    // An updated program's link ends so until the process is started anew.
    let of_program = of_program.map(|name| name.trim_end_matches(" (deleted)").to_owned());
    of_program.unwrap_or_else(|| {
        let text = fs::read(place.join("comm")).unwrap_or_default();
        String::from_utf8_lossy(&text).trim_end().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_a_process_is() {
        let status =
            |uid: &str, caps: &str| format!("Name:\tx\nUid:\t{uid}\nCapPrm:\t{caps}\nCapEff:\t{caps}\n");
        let map = "         0     1000          1\n 1 100000 65536\n";
        let of = |uid, caps, ours| who(map, status(uid, caps).as_bytes(), ours);
        assert!(of("0\t0\t0\t0", "0", true).is_privileged);
        assert!(of("1000\t0\t1000\t1000", "0", true).is_privileged);
        assert!(of("1000\t1000\t1000\t1000", "0000000000000004", true).is_privileged);
        let user = of("1000\t1000\t1000\t1000", "0000000000000400", true);
        assert_eq!(user, Who::user(1000));
        // All power of a user namespace is none outside of it.
        let inside = of("1000\t1000\t1000\t1000", "000001ffffffffff", false);
        assert!(!inside.is_privileged);
        assert_eq!(inside.uids, [1000..1001, 100_000..165_536]);
        assert!(who(map, b"", true).is_privileged, "what is not known");
    }
}
