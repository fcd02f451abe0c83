//! The processes of this machine and what they hold open, from `/proc` only (`proc(5)`).
//!
//! The result is a snapshot and may be incomplete: another user's process, one in a PID
//! namespace that is not ours, or one behind `hidepid` is not seen. [`Processes::sees_all`]
//! says whether it is complete.

pub(super) mod read;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::root::{Root, Who};
use super::{cgroups, helper};
use read::{KUBELETS, ProcRecord, ProcessFacts};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    /// The last part of its program's path, or what the kernel calls it.
    pub name: String,
    /// Its arguments, separated by NUL: only those of a kubelet that belongs to root, and only where
    /// they were asked for. Nobody else's are read, since that may take for ever.
    pub arguments: Vec<u8>,
    /// What it has open, runs, or stands in: files and directories by absolute path, as its
    /// own mount namespace has them.
    pub holds: Vec<PathBuf>,
    /// Its control groups, as `/proc/PID/cgroup` has them.
    pub group: String,
}

impl Process {
    /// For people: `conmon (pid 17)`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} (pid {})", self.name, self.id)
    }

    /// Whether it belongs to a container: it lives in a control group of it, or has a file open
    /// that is in a directory of its name, as conmon, which stands in the container's own.
    fn is_of_container(&self, id: &str) -> bool {
        !id.is_empty()
            && (cgroups::is_in(&self.group, id)
                || self.holds.iter().any(|held| held.iter().any(|part| part == OsStr::new(id))))
    }
}

/// All processes but this one.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    all: Vec<Process>,
    sees_all: bool,
    /// Of whom not all can be seen.
    hidden: Vec<Who>,
}

impl Processes {
    /// Looks through `/proc` once.
    pub fn read() -> io::Result<Self> {
        Self::ask(ProcessFacts { files: true, ..ProcessFacts::default() })
    }

    /// The same, with the arguments of kubelets.
    pub fn read_with_kubelet() -> io::Result<Self> {
        Self::ask(ProcessFacts { files: true, arguments: true, ..ProcessFacts::default() })
    }

    /// What they are called and the control groups that they live in, and not what they have open.
    pub fn read_groups() -> io::Result<Self> {
        Self::ask(ProcessFacts::default())
    }

    fn ask(wanted: ProcessFacts) -> io::Result<Self> {
        let mut builder = Builder::default();
        helper::ask(wanted, &mut |record, body| builder.take(&record, body))?;
        Ok(builder.finish())
    }

    /// From processes that never ran.
    #[cfg(test)]
    pub fn of(all: Vec<Process>, sees_all: bool) -> Self {
        Self { all, sees_all, hidden: Vec::new() }
    }

    /// Nothing that runs here is hidden from us, so that "none found" means "none".
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.sees_all && self.hidden.is_empty()
    }

    /// The same of all that could have anything open that is in the directory `path`.
    #[must_use]
    pub fn sees_all_that_reach(&self, path: &Path) -> bool {
        // What cannot be opened may be anybody's.
        let way = Root::open(path).map(|root| root.way().clone()).unwrap_or_default();
        self.sees_all && !self.hidden.iter().any(|who| way.admits(who))
    }

    #[must_use]
    pub fn of_container(&self, id: &str) -> Option<&Process> {
        self.all.iter().find(|one| one.is_of_container(id))
    }

    /// A process that has `path` or something below it open. A process in another mount
    /// namespace may know it by another path, so one that ends in the same name, or has the
    /// name on its way, counts as well.
    #[must_use]
    pub fn holding(&self, path: &Path) -> Option<&Process> {
        let name = path.file_name();
        let below = |held: &PathBuf| held.starts_with(path) || held.iter().any(|part| Some(part) == name);
        self.all.iter().find(|one| one.holds.iter().any(below))
    }

    /// A process that has a file open whose path ends in `tail`, whatever stands before it in the
    /// process's own mount namespace.
    #[must_use]
    pub fn holding_tail(&self, tail: &Path) -> Option<&Process> {
        self.all.iter().find(|one| one.holds.iter().any(|held| held.ends_with(tail)))
    }

    /// All that were seen.
    #[must_use]
    pub fn all(&self) -> &[Process] {
        &self.all
    }

    /// Programs that are a kubelet or have one built in, if they belong to root and their arguments were
    /// asked for.
    pub fn kubelets(&self) -> impl Iterator<Item = &Process> {
        let is_one = |one: &&Process| KUBELETS.contains(&one.name.as_str()) && !one.arguments.is_empty();
        self.all.iter().filter(is_one)
    }

    /// A process whose program is called one of `names`.
    #[must_use]
    pub fn running(&self, names: &[&str]) -> Option<&Process> {
        self.all.iter().find(|one| names.contains(&one.name.as_str()))
    }
}

/// A process in a control group named after `id`, by its number.
pub fn process_in(id: &str) -> io::Result<Option<u32>> {
    let all = Processes::read_groups()?;
    Ok(all.all().iter().find(|one| cgroups::is_in(&one.group, id)).map(|one| one.id))
}

/// The arguments of root's containerds, and of k3s and RKE2, that have the same paths as we: a program
/// and its arguments each.
///
/// # Errors
/// When `/proc` cannot be read.
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

/// Puts records together.
#[derive(Debug, Default)]
pub(super) struct Builder {
    processes: Processes,
    at: HashMap<u32, usize>,
    whose: HashMap<u32, Who>,
    is_whole: bool,
}

impl Builder {
    pub(super) fn take(&mut self, record: &ProcRecord, body: &[u8]) {
        let all = &mut self.processes.all;
        match record {
            ProcRecord::Begin { sees_all } => self.processes.sees_all = *sees_all,
            ProcRecord::Process { id, name, group, who, is_hidden } => {
                if *is_hidden {
                    self.processes.hidden.push(who.clone());
                }
                self.whose.insert(*id, who.clone());
                self.at.insert(*id, all.len());
                all.push(Process { id: *id, name: name.clone(), group: group.clone(), ..Process::default() });
            }
            ProcRecord::Files { id, is_complete } => {
                if !is_complete && let Some(who) = self.whose.get(id) {
                    self.processes.hidden.push(who.clone());
                }
                if let Some(at) = self.at.get(id) {
                    let paths = body.split(|byte| *byte == 0).filter(|path| !path.is_empty());
                    all[*at].holds = paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
                }
            }
            ProcRecord::Arguments { id } => {
                if let Some(at) = self.at.get(id) {
                    all[*at].arguments = body.to_vec();
                }
            }
            ProcRecord::End => self.is_whole = true,
            ProcRecord::View { .. }
            | ProcRecord::Unknown { .. }
            | ProcRecord::Mounts
            | ProcRecord::Deleted { .. } => {}
        }
    }

    pub(super) fn finish(self) -> Processes {
        let sees_all = self.processes.sees_all && self.is_whole;
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
    fn who_holds_what() {
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
    fn a_child_is_found_by_its_directory_and_its_arguments_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("0123456789abcdef");
        std::fs::create_dir(&place).unwrap();
        let mut child =
            Command::new("sleep").arg("1234567").current_dir(&place).stdout(Stdio::null()).spawn().unwrap();
        let all = Processes::read_with_kubelet().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(all.holding(dir.path()).map(|one| one.id), Some(child.id()));
        let found = all.of_container("0123456789abcdef").unwrap();
        assert_eq!((found.id, found.arguments.len()), (child.id(), 0));
        assert!(!found.name.is_empty());
        assert!(Processes::read().unwrap().holding(dir.path()).is_none());
    }

    /// It has nothing open; whoever says so of itself in its name is none.
    #[test]
    fn a_thread_of_the_kernel_is_no_process() {
        let dir = tempfile::tempdir().unwrap();
        for (id, status) in [
            ("1", "Name:\tinit\nUid:\t0\t0\t0\t0\nKthread:\t0\n"),
            ("2", "Name:\tkthreadd\nUid:\t0\t0\t0\t0\nKthread:\t1\n"),
            ("3", "Name:\tx\\nKthread:\t1\nUid:\t0\t0\t0\t0\nKthread:\t0\n"),
        ] {
            std::fs::create_dir_all(dir.path().join(id).join("fd")).unwrap();
            std::fs::write(dir.path().join(id).join("status"), status).unwrap();
        }
        let mut builder = Builder::default();
        let mut emit = |record: ProcRecord, body: &[u8]| {
            builder.take(&record, body);
            Ok(())
        };
        read::below(dir.path(), ProcessFacts { files: true, ..ProcessFacts::default() }, &mut emit).unwrap();
        let mut ids: Vec<_> = builder.finish().all().iter().map(|one| one.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 3]);
    }

    #[test]
    fn what_is_hidden_is_not_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let read = |proc: &Path| {
            let mut builder = Builder::default();
            let wanted = ProcessFacts { files: true, ..ProcessFacts::default() };
            let mut emit = |record: ProcRecord, body: &[u8]| {
                builder.take(&record, body);
                Ok(())
            };
            read::below(proc, wanted, &mut emit).map(|()| builder.finish())
        };
        std::fs::create_dir_all(dir.path().join("17")).unwrap();
        assert!(!read(dir.path()).unwrap().sees_all(), "there is no first process");
        assert!(read(&dir.path().join("none")).is_err());
        let mut builder = Builder::default();
        builder.take(&ProcRecord::Begin { sees_all: true }, b"");
        assert!(!builder.finish().sees_all(), "the answer is not whole");
    }
}
