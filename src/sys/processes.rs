//! Who runs on this machine and what they hold: read from `/proc` only (`proc(5)`).
//!
//! The answer is as of one moment and may be short: another user's process, one in a PID
//! namespace that is not ours, or one behind `hidepid` is not seen. [`Processes::sees_all`]
//! says whether it can be taken for "nobody".

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::patience::Patience;

/// Inode of the kernel's first PID namespace (`PROC_PID_INIT_INO` in
/// `include/linux/proc_ns.h`): only there `/proc` shows every process.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// In that namespace, the machine's init.
const INIT: u32 = 1;

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// The last part of its program's path, or what the kernel calls it.
    pub name: String,
    /// Its arguments, separated by NUL.
    pub arguments: Vec<u8>,
    /// What it has open, runs, or stands in: files and directories by absolute path, as its
    /// own mount namespace has them.
    pub holds: Vec<PathBuf>,
}

impl Process {
    /// For people: `conmon (pid 17)`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} (pid {})", self.name, self.id)
    }
}

/// All processes but this one.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    all: Vec<Process>,
    sees_all: bool,
}

impl Processes {
    /// Looks through `/proc` once.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn read() -> io::Result<Self> {
        Self::read_from(Path::new("/proc"))
    }

    fn read_from(proc: &Path) -> io::Result<Self> {
        let namespace = fs::metadata(proc.join("self/ns/pid")).map(|facts| facts.ino());
        // With `hidepid` the first process is not there for us.
        let sees_first = fs::read(proc.join("1/cmdline")).is_ok();
        let mut found = Self {
            all: Vec::new(),
            sees_all: sees_first && namespace.is_ok_and(|inode| inode == FIRST_PID_NAMESPACE),
        };
        let mut patience = Patience::new();
        for entry in fs::read_dir(proc)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if id == std::process::id() {
                continue;
            }
            match patiently(id, &entry.path(), &mut patience) {
                Ok(process) => found.all.push(process),
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    tracing::debug!("process {id}: {error}");
                    // Security modules and sandboxes hide init's files even from root; no
                    // container engine's are among them.
                    found.sees_all &= id == INIT;
                    found.all.extend(visible_part(id, &entry.path()));
                }
            }
        }
        Ok(found)
    }

    /// From processes that never ran.
    #[must_use]
    pub fn of(all: Vec<Process>, sees_all: bool) -> Self {
        Self { all, sees_all }
    }

    /// Nothing that runs here is hidden from us, so that "none found" means "none".
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.sees_all
    }

    /// A process with `text` in its arguments; conmon and the OCI runtimes name a container
    /// by its id there.
    #[must_use]
    pub fn naming(&self, text: &str) -> Option<&Process> {
        let text = text.as_bytes();
        self.all.iter().find(|one| !text.is_empty() && one.arguments.windows(text.len()).any(|at| at == text))
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

    /// A process whose program is called one of `names`.
    #[must_use]
    pub fn running(&self, names: &[&str]) -> Option<&Process> {
        self.all.iter().find(|one| names.contains(&one.name.as_str()))
    }
}

/// It ended while we looked.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH)
}

/// One that is just beginning or ending may be closed to us for a moment; init is for good.
fn patiently(id: u32, place: &Path, patience: &mut Patience) -> io::Result<Process> {
    loop {
        match process(id, place) {
            Err(error) if !is_gone(&error) && id != INIT && patience.wait() => {}
            other => return other,
        }
    }
}

fn process(id: u32, place: &Path) -> io::Result<Process> {
    let mut holds = Vec::new();
    for entry in fs::read_dir(place.join("fd"))? {
        match fs::read_link(entry?.path()) {
            Ok(target) => keep(&mut holds, target),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    for name in ["cwd", "root"] {
        match fs::read_link(place.join(name)) {
            Ok(target) => keep(&mut holds, target),
            // Threads of the kernel have none.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let program = match fs::read_link(place.join("exe")) {
        Ok(target) => Some(target),
        Err(error) if is_gone(&error) => None,
        Err(error) => return Err(error),
    };
    let name = name(place, program.as_deref());
    holds.extend(program);
    Ok(Process { id, name, arguments: fs::read(place.join("cmdline"))?, holds })
}

/// What everybody may see of a process.
fn visible_part(id: u32, place: &Path) -> Option<Process> {
    let arguments = fs::read(place.join("cmdline")).ok()?;
    Some(Process { id, name: name(place, None), arguments, holds: Vec::new() })
}

/// The name that the kernel keeps has 15 bytes at most, and a process may change it.
fn name(place: &Path, program: Option<&Path>) -> String {
    let of_program = program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    // An updated program's link ends so until the process is started anew.
    let of_program = of_program.map(|name| name.trim_end_matches(" (deleted)").to_owned());
    of_program.unwrap_or_else(|| {
        let text = fs::read(place.join("comm")).unwrap_or_default();
        String::from_utf8_lossy(&text).trim_end().to_owned()
    })
}

/// Pipes, sockets and devices are nobody's files.
fn keep(holds: &mut Vec<PathBuf>, target: PathBuf) {
    let system = ["/proc", "/sys", "/dev"].iter().any(|top| target.starts_with(top));
    if target.is_absolute() && !system && target != Path::new("/") {
        let bytes = target.into_os_string().into_vec();
        let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(&bytes);
        holds.push(PathBuf::from(OsStr::from_bytes(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn process(name: &str, arguments: &str, holds: &[&str]) -> Process {
        Process {
            id: 7,
            name: name.into(),
            arguments: arguments.replace(' ', "\0").into(),
            holds: holds.iter().map(PathBuf::from).collect(),
        }
    }

    #[test]
    fn who_holds_what() {
        let all = Processes::of(
            vec![
                process("conmon", "conmon -c abc123 -n web", &["/run/x"]),
                process("podman", "podman pull x", &["/var/tmp/storage12/3", "/elsewhere/buildah9/a"]),
            ],
            true,
        );
        assert_eq!(all.naming("abc123").unwrap().name, "conmon");
        assert!(all.naming("abc124").is_none());
        assert!(all.naming("").is_none());
        assert_eq!(all.holding(Path::new("/var/tmp/storage12")).unwrap().name, "podman");
        assert!(all.holding(Path::new("/var/tmp/storage1")).is_none());
        // Seen from another mount namespace.
        assert!(all.holding(Path::new("/var/tmp/buildah9")).is_some());
        assert_eq!(all.running(&["crio", "podman"]).unwrap().describe(), "podman (pid 7)");
        assert!(all.running(&["crio"]).is_none());
    }

    #[test]
    fn a_child_is_found_by_argument_and_by_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("1234567")
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Until `exec` the child is a copy of this process.
        let found = (0..200).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let all = Processes::read().unwrap();
            let named = all.naming("1234567").is_some_and(|one| one.id == child.id());
            (named && all.holding(dir.path()).is_some_and(|one| one.id == child.id())).then_some(all)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let name = found.unwrap().naming("1234567").unwrap().name.clone();
        assert!(!name.is_empty());
        assert!(Processes::read().unwrap().holding(dir.path()).is_none());
    }

    #[test]
    fn what_is_hidden_is_not_nobody() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("17")).unwrap();
        let all = Processes::read_from(dir.path()).unwrap();
        assert!(!all.sees_all(), "there is no first process");
        assert!(Processes::read_from(&dir.path().join("none")).is_err());
    }
}
