//! Processes of this machine and the files that they have open, only from `/proc` (`proc(5)`).
//!
//! The result is a snapshot and may be incomplete: processes of other users, in foreign PID namespaces, or behind
//! `hidepid` are not visible. [`Processes::sees_all`] returns whether it is complete.

pub mod helper;
mod open_paths;
pub(super) mod read;
pub(super) mod records;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::root::{DirectoryChain, Who, way_to};
use super::{cgroups, kernel_files};
use read::{Hiding, KUBELETS, ProcRecord, ProcessFacts};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// Last part of its program's path, or the kernel's name for it.
    pub name: String,
    /// Arguments, separated by NUL. Only those of root's kubelets are read, and only if requested: reading the
    /// arguments of other processes may never return.
    pub arguments: Vec<u8>,
    /// Absolute paths of its open files, its program, and its working and root directories, in its own mount namespace.
    pub holds: Vec<PathBuf>,
    /// Control groups, as in `/proc/PID/cgroup`.
    pub group: String,
}

impl Process {
    /// Describes it for people: `conmon (pid 17)`, `loop device loop3`.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.id == KERNEL {
            return self.name.clone();
        }
        format!("{} (pid {})", self.name, self.id)
    }

    /// Returns true if one of its control groups is named after a container.
    pub(crate) fn is_in_group_of(&self, id: &str) -> bool {
        cgroups::is_in(&self.group, id)
    }

    /// Returns whether it belongs to a container: it is in a control group of the container, or has a file open in
    /// a directory with the container's name. conmon, for example, works in the container's directory.
    fn is_of_container(&self, id: &str) -> bool {
        !id.is_empty()
            && (self.is_in_group_of(id)
                || self.holds.iter().any(|held| held.iter().any(|part| part == OsStr::new(id))))
    }
}

/// Number of an entry that stands for the kernel.
const KERNEL: u32 = 0;

/// Process whose open files are not, or not all, known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenProcess {
    pub id: u32,
    pub name: String,
    why: Hiding,
}

impl HiddenProcess {
    /// Returns true if it hides its files itself, not only from users other than root.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        !matches!(self.why, Hiding::Refused(_))
    }
}

impl std::fmt::Display for HiddenProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "open files of process {} ({}) are unknown: {}", self.id, self.name, self.why)
    }
}

/// Describes processes whose open files or mounts are unknown: the first with its reason, and how many there are. Any
/// user can cause very many of them.
pub fn describe_unknown<T: std::fmt::Display>(mut unknown: impl Iterator<Item = T>) -> Option<String> {
    let first = unknown.next()?;
    Some(match unknown.count() {
        0 => first.to_string(),
        more => format!("{first}; and of {more} more"),
    })
}

/// All processes except this one. With open files, the kernel's are included.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    all: Vec<Process>,
    sees_all: bool,
    /// Processes whose open files are unknown, by the users that they are.
    hidden: Vec<(Who, Vec<HiddenProcess>)>,
    /// Positions in `all`, by each name in the paths of the open files.
    by_name: OnceLock<HashMap<OsString, usize>>,
}

impl Processes {
    pub fn read() -> io::Result<Self> {
        Self::query(ProcessFacts { files: true, ..ProcessFacts::default() })
    }

    /// Reads `/proc` once. Processes that can reach one of the directories have precedence.
    pub fn read_for(directories: &[PathBuf]) -> io::Result<Self> {
        let ways = directories.iter().map(|path| way_to(path)).collect();
        Self::query(ProcessFacts { files: true, ways: Some(ways), ..ProcessFacts::default() })
    }

    pub fn read_with_kubelet() -> io::Result<Self> {
        Self::query(ProcessFacts { files: true, arguments: true, ..ProcessFacts::default() })
    }

    /// Reads the arguments of kubelets, but not the open files.
    pub fn read_kubelets() -> io::Result<Self> {
        Self::query(ProcessFacts { arguments: true, ..ProcessFacts::default() })
    }

    /// Reads the names and control groups, but not the open files.
    pub fn read_groups() -> io::Result<Self> {
        Self::query(ProcessFacts::default())
    }

    fn query(facts: ProcessFacts) -> io::Result<Self> {
        let (mut builder, has_files) = (Builder::default(), facts.files);
        helper::ask(facts, &mut |record, body| builder.take(&record, body))?;
        let processes = builder.finish();
        Ok(if has_files { processes.with_kernel() } else { processes })
    }

    pub(super) fn with_kernel(mut self) -> Self {
        match kernel_files::read() {
            Ok(files) => self.all.extend(files.into_iter().map(|(name, path)| Process {
                id: KERNEL,
                name,
                holds: vec![path],
                ..Process::default()
            })),
            Err(error) => {
                tracing::warn!("files of loop devices are unknown: {error}");
                self.sees_all = false;
            }
        }
        self
    }

    /// Creates a list of invented processes.
    #[cfg(test)]
    pub fn of(all: Vec<Process>, sees_all: bool) -> Self {
        Self { all, sees_all, ..Self::default() }
    }

    /// Returns whether all processes are visible, so that "none found" means "none".
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.sees_all && self.hidden.is_empty()
    }

    /// Returns the processes that could have anything open at or below one of `paths`, unknown to this one.
    pub fn hidden_from<P: AsRef<Path>>(&self, paths: &[P]) -> impl Iterator<Item = &HiddenProcess> {
        let is_hidden = !self.hidden.is_empty();
        let paths = paths.iter().filter(|_| is_hidden);
        let ways: Vec<DirectoryChain> = paths.map(|path| way_to(path.as_ref())).collect();
        let hidden = self.hidden.iter().filter(move |(who, _)| ways.iter().any(|way| way.admits(who)));
        hidden.flat_map(|(_, processes)| processes)
    }

    /// Returns the reason why a process may have anything open at or below `path` unseen.
    #[must_use]
    pub fn doubt(&self, path: &Path) -> Option<String> {
        match self.hidden_from(&[path]).next() {
            Some(process) => Some(process.to_string()),
            None => (!self.sees_all).then(|| "not all processes can be inspected".to_owned()),
        }
    }

    #[must_use]
    pub fn in_group_of(&self, id: &str) -> Option<&Process> {
        self.all.iter().find(|process| process.is_in_group_of(id))
    }

    #[must_use]
    pub fn of_container(&self, id: &str) -> Option<&Process> {
        self.all.iter().find(|process| process.is_of_container(id))
    }

    /// Returns a process that has `path` or something below it open. A process in another mount namespace may use
    /// another path for it, so a path that contains the same name counts too.
    #[must_use]
    pub fn holding(&self, path: &Path) -> Option<&Process> {
        self.by_name().get(path.file_name()?).map(|position| &self.all[*position])
    }

    /// Returns the index of the names in all paths. The first call builds it, which takes a moment on a busy machine.
    pub(crate) fn by_name(&self) -> &HashMap<OsString, usize> {
        self.by_name.get_or_init(|| {
            let mut by_name = HashMap::new();
            for (position, process) in self.all.iter().enumerate() {
                for name in process.holds.iter().flat_map(|held| held.iter()) {
                    if !by_name.contains_key(name) {
                        by_name.insert(name.to_owned(), position);
                    }
                }
            }
            by_name
        })
    }

    /// Returns a process that has a file open whose path ends in `tail`, with any prefix in the process's own mount
    /// namespace.
    #[must_use]
    pub fn holding_tail(&self, tail: &Path) -> Option<&Process> {
        self.all.iter().find(|process| process.holds.iter().any(|held| held.ends_with(tail)))
    }

    /// Returns the processes that hide their files themselves.
    pub fn silent(&self) -> impl Iterator<Item = &HiddenProcess> {
        let hidden = self.hidden.iter().flat_map(|(_, processes)| processes);
        hidden.filter(|process| process.is_silent())
    }

    #[must_use]
    pub fn all(&self) -> &[Process] {
        &self.all
    }

    /// Returns root's processes that are a kubelet or have one built in, if their arguments were requested.
    pub fn kubelets(&self) -> impl Iterator<Item = &Process> {
        let all = self.all.iter();
        all.filter(|process| KUBELETS.contains(&process.name.as_str()) && !process.arguments.is_empty())
    }

    #[must_use]
    pub fn running(&self, names: &[&str]) -> Option<&Process> {
        self.all.iter().find(|process| names.contains(&process.name.as_str()))
    }
}

/// Returns the arguments of root's containerds, and of k3s and RKE2, which use the same paths as this process: a
/// program and its arguments each.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn arguments_of_containerds() -> io::Result<Vec<Vec<String>>> {
    let mut found = Vec::new();
    helper::ask(ProcessFacts { containerds: true, ..ProcessFacts::default() }, &mut |record, body| {
        if matches!(record, ProcRecord::Arguments { .. }) {
            let arguments = body.strip_suffix(b"\0").unwrap_or(body).split(|byte| *byte == 0);
            found.push(arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect());
        }
    })?;
    Ok(found)
}

#[derive(Debug, Default)]
pub(super) struct Builder {
    processes: Processes,
    positions: HashMap<u32, usize>,
    users: HashMap<u32, (String, Who)>,
    is_complete: bool,
}

impl Builder {
    pub(super) fn take(&mut self, record: &ProcRecord, body: &[u8]) {
        match record {
            ProcRecord::Begin { sees_all } => self.processes.sees_all = *sees_all,
            ProcRecord::Process { id, name, group, who, hidden } => {
                self.users.insert(*id, (name.clone(), who.clone()));
                if let Some(why) = hidden {
                    self.hidden(*id, why.clone());
                }
                let all = &mut self.processes.all;
                self.positions.insert(*id, all.len());
                all.push(Process { id: *id, name: name.clone(), group: group.clone(), ..Process::default() });
            }
            ProcRecord::Files { id, is_complete } => {
                if !is_complete {
                    self.hidden(*id, Hiding::TooMany);
                }
                let all = &mut self.processes.all;
                if let Some(position) = self.positions.get(id) {
                    let paths = body.split(|byte| *byte == 0).filter(|path| !path.is_empty());
                    all[*position].holds = paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
                }
            }
            ProcRecord::Arguments { id } => {
                if let Some(position) = self.positions.get(id) {
                    self.processes.all[*position].arguments = body.to_vec();
                }
            }
            ProcRecord::End => self.is_complete = true,
            ProcRecord::View { .. }
            | ProcRecord::ViewOfStranger { .. }
            | ProcRecord::Unknown { .. }
            | ProcRecord::Patience(_)
            | ProcRecord::Mounts
            | ProcRecord::Deleted { .. } => {}
        }
    }

    fn hidden(&mut self, id: u32, why: Hiding) {
        let Some((name, who)) = self.users.get(&id).cloned() else { return };
        let process = HiddenProcess { id, name, why };
        let hidden = &mut self.processes.hidden;
        match hidden.iter_mut().find(|(other, _)| *other == who) {
            Some((_, processes)) => processes.push(process),
            None => hidden.push((who, vec![process])),
        }
    }

    pub(super) fn finish(self) -> Processes {
        let sees_all = self.processes.sees_all && self.is_complete;
        Processes { sees_all, ..self.processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn process(name: &str, group: &str, holds: &[&str]) -> Process {
        Process {
            id: 7,
            name: name.into(),
            group: group.into(),
            holds: holds.iter().map(PathBuf::from).collect(),
            ..Process::default()
        }
    }

    #[test]
    fn processes_are_found_by_container_path_and_name() {
        let all = Processes::of(
            vec![
                process("conmon", "0::/", &["/var/lib/c/overlay-containers/abc123/userdata"]),
                process("sleep", "0::/machine.slice/libpod-def456.scope", &[]),
                process("podman", "0::/", &["/var/tmp/storage12/3", "/elsewhere/buildah9/a"]),
            ],
            true,
        );
        assert_eq!(all.of_container("abc123").unwrap().name, "conmon");
        assert_eq!(all.of_container("def456").unwrap().name, "sleep");
        assert!(all.of_container("abc12").is_none());
        assert!(all.of_container("").is_none());
        assert_eq!(all.holding(Path::new("/var/tmp/storage12")).unwrap().name, "podman");
        assert!(all.holding(Path::new("/var/tmp/storage1")).is_none());
        // Seen from another mount namespace.
        assert!(all.holding(Path::new("/var/tmp/buildah9")).is_some());
        assert_eq!(all.running(&["crio", "podman"]).unwrap().describe(), "podman (pid 7)");
        assert!(all.running(&["crio"]).is_none());
    }

    #[test]
    fn child_is_found_by_its_directory_without_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("0123456789abcdef");
        std::fs::create_dir(&place).unwrap();
        let mut child =
            Command::new("sleep").arg("1234567").current_dir(&place).stdout(Stdio::null()).spawn().unwrap();
        let all = Processes::read_with_kubelet().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(all.holding(dir.path()).map(|process| process.id), Some(child.id()));
        let found = all.of_container("0123456789abcdef").unwrap();
        assert_eq!((found.id, found.arguments.len()), (child.id(), 0));
        assert!(!found.name.is_empty());
        assert!(Processes::read().unwrap().holding(dir.path()).is_none());
    }

    fn read_below(proc: &Path) -> io::Result<Processes> {
        let mut builder = Builder::default();
        let facts = ProcessFacts { files: true, ..ProcessFacts::default() };
        read::below(proc, &facts, &mut |record, body| {
            builder.take(&record, body);
            Ok(())
        })?;
        Ok(builder.finish())
    }

    /// A kernel thread has nothing open. A process that only has such a name is not a kernel thread.
    #[test]
    fn kernel_threads_are_not_processes() {
        let dir = tempfile::tempdir().unwrap();
        for (id, status) in [
            ("1", "Name:\tinit\nUid:\t0\t0\t0\t0\nKthread:\t0\n"),
            ("2", "Name:\tkthreadd\nUid:\t0\t0\t0\t0\nKthread:\t1\n"),
            ("3", "Name:\tx\\nKthread:\t1\nUid:\t0\t0\t0\t0\nKthread:\t0\n"),
        ] {
            std::fs::create_dir_all(dir.path().join(id).join("fd")).unwrap();
            std::fs::write(dir.path().join(id).join("status"), status).unwrap();
        }
        let mut ids: Vec<_> =
            read_below(dir.path()).unwrap().all().iter().map(|process| process.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 3]);
    }

    /// Writes a process of `uid` below `proc`, with one open file.
    fn add_process(proc: &Path, id: u32, uid: u32) -> PathBuf {
        use std::os::unix::fs::symlink;
        let place = proc.join(id.to_string());
        std::fs::create_dir_all(place.join("fd")).unwrap();
        std::fs::create_dir(place.join("ns")).unwrap();
        std::fs::write(place.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        symlink(format!("/srv/{id}"), place.join("fd/3")).unwrap();
        symlink("/", place.join("root")).unwrap();
        place.join("ns/mnt")
    }

    /// A user has more silent processes than there is time for, and root's processes are asked all the same.
    #[test]
    fn silent_users_leave_time_for_root() {
        use rustix::fs::{CWD, FileType, Mode};
        let dir = tempfile::tempdir().unwrap();
        for id in [1, 10, 200] {
            std::fs::write(add_process(dir.path(), id, 0), "").unwrap();
        }
        for id in 100..108 {
            // Opening it waits for a writer.
            let namespace = add_process(dir.path(), id, 4711);
            rustix::fs::mknodat(CWD, &namespace, FileType::Fifo, Mode::RWXU, 0).unwrap();
        }
        let (mut builder, mut left) = (Builder::default(), None);
        let facts = ProcessFacts { mounts: true, files: true, ..ProcessFacts::default() };
        read::below(dir.path(), &facts, &mut |record, body| {
            match record {
                ProcRecord::Patience(patience) => left = Some(patience),
                record => builder.take(&record, body),
            }
            Ok(())
        })
        .unwrap();
        let processes = builder.finish();
        for id in [10, 200] {
            assert!(processes.holding(Path::new(&format!("/srv/{id}"))).is_some(), "{processes:#?}");
        }
        assert!(processes.silent().all(|process| (100..108).contains(&process.id)), "{processes:#?}");
        let left = left.unwrap();
        assert_eq!(left.for_root, facts.patience.for_root);
        assert!(left.for_users.is_zero() && !left.silent.is_empty(), "{left:?}");
    }

    #[test]
    fn unknown_processes_are_described_together() {
        assert_eq!(describe_unknown(std::iter::empty::<&str>()), None);
        assert_eq!(describe_unknown(["a"].iter()).as_deref(), Some("a"));
        assert_eq!(describe_unknown(["a", "b", "c"].iter()).as_deref(), Some("a; and of 2 more"));
    }

    #[test]
    fn hidden_processes_make_the_result_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("17")).unwrap();
        assert!(!read_below(dir.path()).unwrap().sees_all(), "there is no first process");
        assert!(read_below(&dir.path().join("none")).is_err());
        let mut builder = Builder::default();
        builder.take(&ProcRecord::Begin { sees_all: true }, b"");
        assert!(!builder.finish().sees_all(), "the answer is incomplete");
    }
}
