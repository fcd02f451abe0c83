//! Reads the processes of this machine in such a way that they cannot block the reader.
//!
//! Links are read but never followed, since the root directory of a process may be on a filesystem that does not
//! answer. Nothing is read from the memory of a process (which may contain a page of `cmdline` or `environ` that
//! never answers), except for the arguments of root's kubelets, containerds and dockerds. To distinguish two mounts at the
//! same path, the link is opened with `O_PATH` and its mount number is read from this process's `fdinfo`.
//!
//! Even reading a link may never return. Since version 6.18 the kernel waits there for a process that is in
//! `execve` (`exec_update_lock`), which in turn waits for a file that it closes. Links are therefore read in a
//! thread that can be abandoned, those of root's processes first. A process that does not answer hides only its own
//! open files, and is not asked again for a minute. `status`, `uid_map`, `cgroup`, `comm`, `mountinfo` and the mount
//! namespace of a pidfd never block: the identity and the mounts of every process are known.
//!
//! Mount tables may be long: any user can create namespaces of 100,000 mounts. The tables of users who cannot reach
//! the directories in question ([`ProcessFacts::ways`]) are read last, for half a second in all, and only those mounts
//! count that show a part of the directories; those of other users are read within a longer deadline.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::mount_namespace::{MountNamespace, read_table};
use super::super::mounts;
use super::super::patience::{Patience, Pulse, Time, Unanswered, ask_each};
use super::super::root::Who;
use super::super::users;
use super::open_paths::{DELETED, OpenPaths, is_gone, unless_gone};
pub(crate) use super::records::{Backing, Hiding, ProcRecord, ProcessFacts, ReadPatience};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Inode of the kernel's first PID namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`). Only there `/proc`
/// shows every process.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Pid of the machine's init in that namespace.
const INIT: u32 = 1;

/// Programs that are a kubelet, or have one built in.
pub(crate) const KUBELETS: [&str; 6] = ["kubelet", "hyperkube", "k3s", "rke2", "k0s", "kubelite"];

/// Programs that are a containerd, or start one. k3s calls its processes `k3s-server` and `k3s-agent`.
const CONTAINERDS: [&str; 6] = ["containerd", "k3s", "rke2", "k3s-server", "k3s-agent", "dockerd"];

/// Maximum size of the arguments of a process. In Linux, `MAX_ARG_STRLEN` limits a single argument.
const MAX_ARGUMENTS: u64 = 128 << 10;

/// Maximum size of a mount table: 100,000 mounts (the kernel's default limit per namespace) with short paths. A
/// longer table counts as unknown.
const MAX_TABLE: u64 = 24 << 20;
/// Maximum size of all tables together; those of root's processes are read first.
const MAX_TABLES: u64 = 384 << 20;
/// Maximum time for reading one table of root's processes, and one of other users.
const TIME_OF_TABLE: Duration = Duration::from_secs(2);
const TIME_OF_USERS_TABLE: Duration = Duration::from_secs(1);
/// Maximum time for the tables of all other users together, if the directories that they can reach are not known.
const TIME_OF_ALL_USERS_TABLES: Duration = Duration::from_millis(500);
/// Maximum time for the processes of other users that do answer. There may be thousands.
const TIME_OF_USERS: Duration = Duration::from_secs(4);

/// Minimum time for a question, even if earlier ones have used up the patience.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

/// Maximum number of open files that are read for one process, and for all processes of other users together.
const MAX_FILES: usize = 1 << 16;
const MAX_FILES_OF_USERS: usize = 1 << 18;

/// Capabilities with which a process bypasses permissions, or can become a user who does: `CAP_DAC_OVERRIDE`,
/// `CAP_DAC_READ_SEARCH`, `CAP_SETUID`, `CAP_SYS_PTRACE`, `CAP_SYS_ADMIN`.
const POWERS: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 19 | 1 << 21;

type Emit<'a> = dyn FnMut(ProcRecord, &[u8]) -> io::Result<()> + 'a;

/// Reads facts about all processes except `parent` and this process.
pub(crate) fn all(facts: &ProcessFacts, parent: u32, emit: &mut Emit<'_>) -> io::Result<()> {
    Reader::new(Path::new("/proc"), parent, &facts.patience).read(facts, emit)
}

/// Reads below another directory than `/proc`, for tests.
#[cfg(test)]
pub(crate) fn below(proc: &Path, facts: &ProcessFacts, emit: &mut Emit<'_>) -> io::Result<()> {
    Reader::new(proc, std::process::id(), &facts.patience).read(facts, emit)
}

/// Returns whether `/proc` contains every process of the machine: this process is in the first PID namespace, and
/// the first process is visible, which `hidepid` would prevent.
pub(crate) fn sees_all(proc: &Path) -> bool {
    let namespace = fs::read_link(proc.join("self/ns/pid"));
    namespace.is_ok_and(|name| name == Path::new(FIRST_PID_NAMESPACE))
        && fs::read(proc.join("1/status")).is_ok()
}

#[derive(Clone)]
struct ProcessDirectory {
    id: u32,
    /// `/proc/ID`, or the directory of a thread if the main thread has ended.
    place: PathBuf,
    who: Who,
    is_of_our_users: bool,
    /// It is a kernel thread, which has no open files and no control group. Older kernels do not show this.
    is_kernel: bool,
}

impl ProcessDirectory {
    /// Returns true if it is a process of root's, not of a user namespace's root.
    fn is_of_root(&self) -> bool {
        self.who.is_privileged && self.is_of_our_users
    }

    fn thread(&self) -> u32 {
        let name = self.place.file_name().and_then(OsStr::to_str);
        name.and_then(|name| name.parse().ok()).unwrap_or(self.id)
    }

    /// Returns the last part of its program's path.
    fn name(&self, program: Option<&Path>) -> String {
        name(&self.place, program)
    }
}

/// Set of mounts that a process sees: its namespace, its root directory there, and the mount of that directory. If
/// the link of its root directory does not answer, only its number is known.
#[derive(Clone, PartialEq, Eq, Hash)]
enum View {
    Of(u64, OsString, Option<u64>),
    Stuck(u32),
}

#[derive(Default)]
struct Seers {
    pids: Vec<u32>,
    /// Root's processes are among them, or root may have mounted there.
    is_privileged: bool,
}

/// Mount that a file may be on, if its filesystem answers.
struct Local {
    fstype: String,
    source: String,
    upper: Option<Vec<u8>>,
}

struct Reader<'a> {
    proc: &'a Path,
    parent: u32,
    /// Mapping of user ids in the user namespace of this process.
    users: String,
    /// The numbers in `proc` are those of the PID namespace of this process, so that system calls accept them.
    has_own_numbers: bool,
    locals: HashMap<u64, Local>,
    /// Patience that the questions so far have left.
    patience: ReadPatience,
}

/// Answers of processes, by id.
type Answers<T> = HashMap<u32, Result<T, Unanswered>>;

impl<'a> Reader<'a> {
    fn new(proc: &'a Path, parent: u32, patience: &ReadPatience) -> Self {
        let users = fs::read_to_string(proc.join("self/uid_map")).unwrap_or_default();
        let number = fs::read_link(proc.join("self")).ok();
        Self {
            proc,
            parent,
            users,
            has_own_numbers: number == Some(PathBuf::from(std::process::id().to_string())),
            locals: HashMap::new(),
            patience: patience.clone(),
        }
    }

    fn read(mut self, facts: &ProcessFacts, emit: &mut Emit<'_>) -> io::Result<()> {
        emit(ProcRecord::Begin { sees_all: sees_all(self.proc) }, b"")?;
        let mut found = self.list()?;
        if facts.containerds {
            self.containerds(&found, emit)?;
            return emit(ProcRecord::End, b"");
        }
        // The caller is first, whose table contains the paths as it knows them; then root's processes, then those of
        // users who can reach the directories, in case that there is not enough time for all.
        let parent = self.parent;
        found.sort_by_cached_key(|process| {
            (process.id != parent, !process.who.is_privileged, !facts.concerns(&process.who), process.id)
        });
        if facts.mounts || facts.deleted {
            self.mounts(&found, facts, emit)?;
            emit(ProcRecord::Mounts, b"")?;
        }
        if facts.deleted {
            self.deleted(&found, emit)?;
        }
        found
            .retain(|process| process.id != parent && process.id != std::process::id() && !process.is_kernel);
        self.files(&found, facts, emit)?;
        emit(ProcRecord::End, b"")
    }

    /// Asks each process, root's first. Processes that did not answer before are not asked again.
    fn ask<T: Send + 'static>(
        &mut self,
        jobs: Vec<ProcessDirectory>,
        emit: &mut Emit<'_>,
        ask: impl Fn(&ProcessDirectory, &Pulse) -> T + Send + Sync + 'static,
    ) -> io::Result<Answers<T>> {
        let ask = Arc::new(ask);
        let mut answers = HashMap::with_capacity(jobs.len());
        let (silent, asked): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|process| self.patience.silent.contains(&process.id));
        answers.extend(silent.into_iter().map(|process| (process.id, Err(Unanswered::Silent))));
        let (privileged, users): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|process| process.who.is_privileged);
        for (jobs, is_root) in [(privileged, true), (users, false)] {
            let ids: Vec<u32> = jobs.iter().map(|process| process.id).collect();
            let start = Instant::now();
            let left = if is_root { self.patience.for_root } else { self.patience.for_users };
            let limit = if self.patience.is_cut { LEAST_PATIENCE } else { TIME_OF_USERS };
            let mut time = Time { left: left.max(LEAST_PATIENCE), until: (!is_root).then(|| start + limit) };
            let ask = ask.clone();
            let given = ask_each(jobs, &mut time, move |process, pulse| {
                pulse.ask_process(&process.place);
                ask(process, pulse)
            });
            if is_root {
                self.patience.for_root = time.left;
            } else {
                self.patience.for_users = time.left;
                self.patience.is_cut |=
                    given.iter().any(|answer| matches!(answer, Err(Unanswered::NotAsked)));
            }
            let silent =
                ids.iter().zip(&given).filter(|(_, answer)| matches!(answer, Err(Unanswered::Silent)));
            self.patience.silent.extend(silent.map(|(id, _)| *id));
            if given.iter().any(Result::is_err) {
                emit(ProcRecord::Patience(self.patience.clone()), b"")?;
            }
            answers.extend(ids.into_iter().zip(given));
        }
        Ok(answers)
    }

    fn list(&self) -> io::Result<Vec<ProcessDirectory>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.proc)? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let mut place = self.proc.join(format!("{id}"));
            // It may have ended.
            let Ok(mut status) = fs::read(place.join("status")) else { continue };
            if field(&status, "State").is_some_and(|state| state.starts_with('Z')) {
                // Its other threads may still run.
                let Some(thread) = living_thread(&place) else { continue };
                place = thread;
                status = fs::read(place.join("status")).unwrap_or(status);
            }
            let users = fs::read_to_string(place.join("uid_map"));
            // A namespace without a map is one that a user has just created; without the file, there are none.
            let is_of_our_users = users.as_ref().map_or(true, |users| *users == self.users);
            let who = who(&users.unwrap_or_default(), &status, is_of_our_users);
            let is_kernel = field(&status, "Kthread").is_some_and(|value| value == "1");
            found.push(ProcessDirectory { id, place, who, is_of_our_users, is_kernel });
        }
        Ok(found)
    }

    fn mounts(
        &mut self,
        found: &[ProcessDirectory],
        facts: &ProcessFacts,
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        let (patience, has_own_numbers) = (Patience::new(), self.has_own_numbers);
        let mut namespaces = self.ask(found.to_vec(), emit, move |process, pulse| {
            let thread = has_own_numbers.then(|| process.thread());
            patiently(process, (&patience, pulse), || {
                MountNamespace::of(&process.place, thread, process.who.is_privileged)
            })
        })?;
        let (mut seers, mut strangers) = (Vec::new(), Vec::new());
        for process in found {
            let (inode, owner) = match namespaces.remove(&process.id) {
                None | Some(Ok(Ok(None))) => continue,
                Some(Ok(Ok(Some(namespace)))) => (Some(namespace.inode), namespace.owner),
                // Anything may be mounted there, even by root.
                Some(Err(_)) => (None, Who::user(0)),
                // Skipped where sandboxes and security modules hide the first process and nothing else: other
                // processes share the namespaces of containers.
                Some(Ok(Err(error))) if process.id == INIT => {
                    tracing::debug!("the mounts of process {INIT}: {error}");
                    continue;
                }
                Some(Ok(Err(error))) => {
                    self.unknown(process, facts, &error, emit)?;
                    continue;
                }
            };
            // The owner of the namespace may have mounted too: a container's process does not need the rights with
            // which its mounts were made.
            if process.id == self.parent || facts.concerns(&process.who) || facts.concerns(&owner) {
                seers.push((process, inode, process.who.is_privileged || owner.is_privileged));
            } else {
                strangers.extend(inode.map(|inode| (inode, process.id)));
            }
        }
        let inodes: HashSet<u64> = seers.iter().filter_map(|(_, inode, _)| *inode).collect();
        let strangers: BTreeMap<u64, u32> =
            strangers.into_iter().filter(|(inode, _)| !inodes.contains(inode)).collect();
        let patience = Patience::new();
        let jobs = seers.iter().map(|(process, ..)| (*process).clone()).collect();
        let mut roots = self.ask(jobs, emit, move |process, pulse| {
            patiently(process, (&patience, pulse), || root_of(process))
        })?;
        let mut views: Vec<Seers> = Vec::new();
        let mut known: HashMap<View, usize> = HashMap::new();
        for (process, inode, is_privileged) in seers {
            let view = match (roots.remove(&process.id), inode) {
                (None | Some(Ok(Ok(None))), _) => continue,
                (Some(Ok(Ok(Some((root, mount))))), Some(inode)) => View::Of(inode, root, mount),
                (Some(Ok(Ok(Some(_))) | Err(_)), _) => View::Stuck(process.id),
                (Some(Ok(Err(error))), _) => {
                    self.unknown(process, facts, &error, emit)?;
                    continue;
                }
            };
            let position = *known.entry(view).or_insert_with(|| {
                views.push(Seers::default());
                views.len() - 1
            });
            views[position].pids.push(process.id);
            views[position].is_privileged |= is_privileged;
        }
        if let [_, others @ ..] = &mut views[..] {
            others.sort_by_key(|seers| !seers.is_privileged);
        }
        let by_id: HashMap<u32, &ProcessDirectory> =
            found.iter().map(|process| (process.id, process)).collect();
        let mut left = MAX_TABLES;
        let for_tables = self.patience.for_tables.max(LEAST_PATIENCE);
        let mut time_of_users =
            if facts.ways.is_some() { for_tables } else { for_tables.min(TIME_OF_ALL_USERS_TABLES) };
        let mut used = Duration::ZERO;
        for seers in &views {
            let start = Instant::now();
            let limit =
                if seers.is_privileged { TIME_OF_TABLE } else { TIME_OF_USERS_TABLE.min(time_of_users) };
            self.view_table(seers, &by_id, facts, (&mut left, start + limit), emit)?;
            if !seers.is_privileged {
                time_of_users = time_of_users.saturating_sub(start.elapsed());
                used += start.elapsed();
            }
        }
        if facts.mounts {
            used += self.strangers(strangers, time_of_users.min(TIME_OF_ALL_USERS_TABLES), &by_id, emit)?;
        }
        // The time for short tables is not subtracted: a command reads them several times.
        if used >= LEAST_PATIENCE {
            self.patience.for_tables = self.patience.for_tables.saturating_sub(used);
            emit(ProcRecord::Patience(self.patience.clone()), b"")?;
        }
        Ok(())
    }

    /// Reads the tables of users who cannot reach the directories, but may see them: through a mount that root made
    /// elsewhere, and that their namespace still has. They cannot prevent a deletion by making this slow. Returns the
    /// time that it took.
    fn strangers(
        &self,
        strangers: BTreeMap<u64, u32>,
        limit: Duration,
        by_id: &HashMap<u32, &ProcessDirectory>,
        emit: &mut Emit<'_>,
    ) -> io::Result<Duration> {
        let start = Instant::now();
        let mut left = MAX_TABLES;
        for process in strangers.values().filter_map(|pid| by_id.get(pid)) {
            if start.elapsed() >= limit {
                break;
            }
            if let Ok(table) = read_table(&process.place, MAX_TABLE.min(left), start + limit) {
                left -= table.len() as u64;
                emit(ProcRecord::ViewOfStranger { pid: process.id }, &table)?;
            }
        }
        Ok(start.elapsed())
    }

    /// Reads the table of a view from any of its processes. `left` is the maximum size of all further tables.
    fn view_table(
        &mut self,
        seers: &Seers,
        by_id: &HashMap<u32, &ProcessDirectory>,
        facts: &ProcessFacts,
        (left, until): (&mut u64, Instant),
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        let living = seers.pids.iter().filter_map(|pid| by_id.get(pid));
        let mut failed = None;
        for process in living {
            match read_table(&process.place, MAX_TABLE.min(*left), until) {
                // EINVAL: it no longer has a namespace.
                Err(error) if is_gone(&error) || Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
                Err(error) => {
                    let is_final = matches!(error.kind(), ErrorKind::FileTooLarge | ErrorKind::TimedOut);
                    failed = Some((process, error));
                    if is_final {
                        break;
                    }
                }
                // The table of a process that ended meanwhile is empty.
                Ok(table) if table.is_empty() => {}
                Ok(table) => {
                    *left -= table.len() as u64;
                    if facts.deleted {
                        self.note_locals(&table, seers.is_privileged);
                    }
                    if facts.mounts {
                        emit(ProcRecord::View { pid: process.id }, &table)?;
                    }
                    return Ok(());
                }
            }
        }
        // A user who cannot reach the directories cannot prevent deletions either.
        let Some((process, why)) = failed else { return Ok(()) };
        let is_refused = why.kind() == ErrorKind::PermissionDenied;
        let (name, why) = (process.name(None), why.to_string());
        emit(ProcRecord::Unknown { pid: process.id, name, why, is_refused }, b"")
    }

    fn unknown(
        &self,
        process: &ProcessDirectory,
        facts: &ProcessFacts,
        why: &io::Error,
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        // A process outside of this user namespace can never be read, and belongs to another user.
        if !users::is_first_user_namespace() || !facts.concerns(&process.who) {
            return Ok(());
        }
        let unknown = ProcRecord::Unknown {
            pid: process.id,
            name: process.name(None),
            why: why.to_string(),
            is_refused: why.kind() == ErrorKind::PermissionDenied,
        };
        emit(unknown, b"")
    }

    /// Emits the arguments of root's containerds that use the same paths: those in this mount namespace or in
    /// init's.
    ///
    /// A process chooses its own name, and a user may start one of root's programs with any name and arguments. Its
    /// program file must therefore have the name too, and all its user ids must be root's.
    fn containerds(&mut self, found: &[ProcessDirectory], emit: &mut Emit<'_>) -> io::Result<()> {
        let root = Who { is_privileged: true, uids: vec![only(0)] };
        let named: Vec<_> = found
            .iter()
            .filter(|process| {
                process.who == root && process.is_of_our_users && CONTAINERDS.contains(&&*process.name(None))
            })
            .cloned()
            .collect();
        let namespaces = ["self", "1"].map(|id| self.proc.join(id).join("ns/mnt"));
        let mut answers = self.ask(named.clone(), emit, move |process, _| {
            let namespace = fs::read_link(process.place.join("ns/mnt")).ok()?;
            let program = fs::read_link(process.place.join("exe")).ok()?;
            let mut ours = namespaces.iter().filter_map(|ours| fs::read_link(ours).ok());
            if !ours.any(|ours| ours == namespace) || !CONTAINERDS.contains(&&*process.name(Some(&program))) {
                return None;
            }
            let mut arguments = Vec::new();
            let file = fs::File::open(process.place.join("cmdline")).ok()?;
            file.take(MAX_ARGUMENTS).read_to_end(&mut arguments).ok()?;
            Some(arguments)
        })?;
        for process in named {
            if let Some(Ok(Some(arguments))) = answers.remove(&process.id) {
                emit(ProcRecord::Arguments { id: process.id }, &arguments)?;
            }
        }
        Ok(())
    }

    fn files(
        &mut self,
        found: &[ProcessDirectory],
        facts: &ProcessFacts,
        emit: &mut Emit<'_>,
    ) -> io::Result<()> {
        let (left, patience, reads_files) =
            (AtomicUsize::new(MAX_FILES_OF_USERS), Patience::new(), facts.files);
        let asked = found.iter().filter(|process| facts.files || (facts.arguments && process.is_of_root()));
        let mut answers = self.ask(asked.cloned().collect(), emit, move |process, pulse| {
            let exe = fs::read_link(process.place.join("exe")).ok();
            let held = reads_files.then(|| {
                if process.who.is_privileged {
                    return OpenPaths::read(
                        &process.place,
                        process.id == INIT,
                        MAX_FILES,
                        (&patience, pulse),
                    );
                }
                let held = OpenPaths::read(
                    &process.place,
                    process.id == INIT,
                    MAX_FILES.min(left.load(Ordering::Relaxed)),
                    (&patience, pulse),
                )?;
                let taken = held.count;
                let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    Some(left.saturating_sub(taken))
                });
                Ok(held)
            });
            (exe, held)
        })?;
        let mut kubelets = Vec::new();
        for process in found {
            let (exe, held, hidden) = match answers.remove(&process.id) {
                None => (None, None, None),
                Some(Ok((_, Some(Err(error))))) if is_gone(&error) => continue,
                Some(Ok((exe, Some(Err(error))))) => {
                    // Security modules and sandboxes hide init's files even from root; it does not have files of
                    // container engines open.
                    (exe, None, (process.id != INIT).then(|| Hiding::Refused(error.to_string())))
                }
                Some(Ok((exe, held))) => (exe, held.and_then(Result::ok), None),
                Some(Err(why)) => (None, None, facts.files.then_some(Hiding::Unanswered(why))),
            };
            let group = fs::read(process.place.join("cgroup")).unwrap_or_default();
            let name = process.name(exe.as_deref());
            if KUBELETS.contains(&name.as_str()) && process.is_of_root() {
                kubelets.push(process.clone());
            }
            let record = ProcRecord::Process {
                id: process.id,
                name,
                group: String::from_utf8_lossy(&group).into_owned(),
                who: process.who.clone(),
                hidden,
            };
            emit(record, b"")?;
            if let Some(mut held) = held {
                exe.iter().for_each(|exe| held.add(exe));
                emit(ProcRecord::Files { id: process.id, is_complete: held.is_complete }, &held.paths)?;
            }
        }
        if facts.arguments {
            // Only this fact is in the memory of a process, so it is read only from root's kubelets.
            let mut answers = self.ask(kubelets.clone(), emit, |process, _| {
                let mut arguments = Vec::new();
                let file = fs::File::open(process.place.join("cmdline")).ok()?;
                file.take(MAX_ARGUMENTS).read_to_end(&mut arguments).ok()?;
                Some(arguments)
            })?;
            for process in kubelets {
                if let Some(Ok(Some(arguments))) = answers.remove(&process.id) {
                    emit(ProcRecord::Arguments { id: process.id }, &arguments)?;
                }
            }
        }
        Ok(())
    }

    /// Notes mounts of filesystems that do not depend on a server or process. A user's overlay may be on one that
    /// does.
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
        let mut answers =
            self.ask(found.to_vec(), emit, move |process, pulse| deleted_of(process, &locals, pulse))?;
        let mut seen = HashSet::new();
        for process in found {
            let deleted = answers.remove(&process.id).and_then(Result::ok);
            for OpenDeleted { identity, record, path } in deleted.into_iter().flatten() {
                if seen.insert(identity) {
                    emit(record, &path)?;
                }
            }
        }
        Ok(())
    }
}

struct OpenDeleted {
    identity: (u64, u64),
    record: ProcRecord,
    path: Vec<u8>,
}

fn deleted_of(process: &ProcessDirectory, locals: &HashMap<u64, Local>, pulse: &Pulse) -> Vec<OpenDeleted> {
    // The process may end at any moment.
    let Ok(open) = fs::read_dir(process.place.join("fd")) else { return Vec::new() };
    let deleted = open.flatten().take(MAX_FILES).filter_map(|file| {
        pulse.beat();
        let target = fs::read_link(file.path()).ok()?;
        let path = target.as_os_str().as_bytes().strip_suffix(DELETED)?;
        let information = fs::read(process.place.join("fdinfo").join(file.file_name())).ok()?;
        let mount: u64 = field(&information, "mnt_id")?.parse().ok()?;
        let local = locals.get(&mount)?;
        // Through the descriptor and not by name: another file may have the name by now.
        let facts = rustix::fs::fstat(open_path(&file.path()).ok()?).ok()?;
        if facts.st_nlink > 0 || !rustix::fs::FileType::from_raw_mode(facts.st_mode).is_file() {
            return None;
        }
        let flags = field(&information, "flags").and_then(|text| u32::from_str_radix(text, 8).ok());
        // O_WRONLY or O_RDWR: opening copied the file up. Only such files of an overlay are in its upper directory.
        let is_writable = flags.is_some_and(|flags| flags & 0o3 != 0);
        let backing = match (rustix::fs::major(facts.st_dev) == 0, local.fstype == "overlay") {
            (false, _) => None,
            (true, false) => Some(Backing::Source(local.source.clone())),
            (true, true) if is_writable => local.upper.clone().map(OsString::from_vec).map(Backing::Upper),
            (true, true) => return None,
        };
        let record = ProcRecord::Deleted {
            id: process.id,
            name: process.name(None),
            device: facts.st_dev,
            bytes: u64::try_from(facts.st_blocks).unwrap_or(0).saturating_mul(512),
            backing,
        };
        Some(OpenDeleted { identity: (facts.st_dev, facts.st_ino), record, path: path.to_vec() })
    });
    deleted.collect()
}

/// Reads a link of a process, and retries after `EACCES`.
///
/// The kernel returns that error for a process that ends during the reading (`proc_fd_access_allowed` and
/// `proc_ns_get_link` in `fs/proc` answer EACCES if they find no task). A process that is just starting may still
/// have more rights than this one. Neither state lasts: after a retry the process is gone or readable.
fn patiently<T>(
    process: &ProcessDirectory,
    (patience, pulse): (&Patience, &Pulse),
    read: impl Fn() -> io::Result<T>,
) -> io::Result<Option<T>> {
    loop {
        match unless_gone(read()) {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && process.id != INIT && patience.wait() =>
            {
                pulse.beat();
            }
            other => return other,
        }
    }
}

fn root_of(process: &ProcessDirectory) -> io::Result<(OsString, Option<u64>)> {
    let link = process.place.join("root");
    let root = fs::read_link(&link)?;
    Ok((root.into_os_string(), open_path(&link).ok().as_ref().and_then(mount_of)))
}

/// Returns the value of a line `Name:\tvalue`.
fn field<'t>(text: &'t [u8], name: &str) -> Option<&'t str> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(value).ok().map(str::trim)
}

/// Returns a living thread of a process whose main thread has ended.
fn living_thread(place: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(place.join("task")).ok()?.flatten().map(|entry| entry.path());
    let mut alive = threads.filter(|thread| {
        let status = fs::read(thread.join("status")).unwrap_or_default();
        field(&status, "State").is_some_and(|state| !state.starts_with('Z') && !state.starts_with('X'))
    });
    alive.next()
}

/// Returns the users that a process is and can become.
fn who(map: &str, status: &[u8], is_of_our_users: bool) -> Who {
    let uids: Vec<u32> = field(status, "Uid")
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|uid| uid.parse().ok())
        .collect();
    let masks = ["CapEff", "CapPrm"].into_iter().filter_map(|name| field(status, name));
    let is_powerful =
        masks.filter_map(|mask| u64::from_str_radix(mask, 16).ok()).any(|mask| mask & POWERS != 0);
    // An unknown user may be root.
    let is_privileged = is_of_our_users && (is_powerful || uids.contains(&0) || uids.is_empty());
    let mut who = Who { is_privileged, uids: Vec::new() };
    uids.iter().for_each(|uid| add(&mut who, &Who { is_privileged: false, uids: vec![only(*uid)] }));
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

fn only(uid: u32) -> Range<u32> {
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

/// Opens a handle, without opening the file itself.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the mount of a handle from `fdinfo`, which does not query the filesystem.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    let text = fs::read(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    field(&text, "mnt_id")?.parse().ok()
}

/// Returns the last part of a program's path, or the kernel's name for the process, which has at most 15 bytes and
/// which the process may change.
fn name(place: &Path, program: Option<&Path>) -> String {
    let of_program = program.and_then(Path::file_name).map(OsStr::to_string_lossy);
    // The link of an updated program has this suffix until the process restarts.
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
    fn users_of_a_process() {
        fn status(uid: &str, caps: &str) -> String {
            format!("Name:\tx\nUid:\t{uid}\nCapPrm:\t{caps}\nCapEff:\t{caps}\n")
        }
        let map = "         0     1000          1\n 1 100000 65536\n";
        let of = |uid: &str, caps: &str, ours| who(map, status(uid, caps).as_bytes(), ours);
        assert!(of("0\t0\t0\t0", "0", true).is_privileged);
        assert!(of("1000\t0\t1000\t1000", "0", true).is_privileged);
        assert!(of("1000\t1000\t1000\t1000", "0000000000000004", true).is_privileged);
        let user = of("1000\t1000\t1000\t1000", "0000000000000400", true);
        assert_eq!(user, Who::user(1000));
        // Capabilities in a user namespace do not apply outside of it.
        let inside = of("1000\t1000\t1000\t1000", "000001ffffffffff", false);
        assert!(!inside.is_privileged);
        assert_eq!(inside.uids, [1000..1001, 100_000..165_536]);
        assert!(who(map, b"", true).is_privileged, "an unknown user may be root");
    }
}
