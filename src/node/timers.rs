//! layersweep's own timers, read from systemd's files on the disk. They are read without D-Bus, so the disk of
//! another node can be examined too.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::sysroot::Sysroot;

pub const SCAN: &str = "layersweep-scan.timer";
/// Timer of the unit that deletes.
pub const GC: &str = "layersweep-gc.timer";
/// Unit that [`GC`] starts.
pub const GC_SERVICE: &str = "layersweep-gc.service";
/// Timer of the unit with which a user other than root deletes.
pub const OF_USER: &str = "layersweep.timer";

/// Directories of units; a unit in an earlier one overrides those in later ones (`systemd.unit(5)`).
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Directory of links to the timers that start with the machine.
const WANTS: &str = "timers.target.wants";
/// Directories of users' units beside those below the configuration directory of each (`systemd.unit(5)`).
const USER_UNITS: [&str; 3] = ["/etc/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user"];
/// Directory of the users whose units run without a login.
const LINGER: &str = "/var/lib/systemd/linger";
/// Directory of stamps: the modification time of an empty file is the last start of a persistent timer.
const STAMPS: &str = "/var/lib/systemd/timers";
/// Directory of the cron jobs of packages.
const CRON: &str = "/etc/cron.d";
/// Files that stop the units from deleting while one exists. The first disappears with a reboot.
pub const HOLDS: [&str; 2] = ["/run/layersweep/hold", "/etc/layersweep/hold"];

/// Maximum size of a unit or cron file.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerState {
    Missing,
    /// The unit is masked: this file is empty or a dangling symlink.
    Masked(PathBuf),
    Disabled,
    Enabled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    pub state: TimerState,
    /// Time at which the timer last elapsed or was first started; `None`: never.
    pub last: Option<SystemTime>,
}

/// Reads the state of a timer.
///
/// # Errors
/// If a directory of units or the unit cannot be read; the error has its path.
pub fn read(root: &Sysroot, unit: &str) -> Result<Timer, (PathBuf, io::Error)> {
    let mut state = TimerState::Missing;
    for dir in UNITS {
        if let Some(path) = entry(root, Path::new(dir), unit)? {
            state = match root.read(&path, MAX_BYTES) {
                Ok(text) if !text.trim().is_empty() => TimerState::Disabled,
                Ok(_) => TimerState::Masked(path),
                Err(error) if error.kind() == ErrorKind::NotFound => TimerState::Masked(path),
                Err(error) => return Err((path, error)),
            };
            break;
        }
    }
    if state == TimerState::Disabled {
        for dir in UNITS {
            if entry(root, &Path::new(dir).join(WANTS), unit)?.is_some() {
                state = TimerState::Enabled;
            }
        }
    }
    let stamp = Path::new(STAMPS).join(format!("stamp-{unit}"));
    let last = root.resolve(&stamp).and_then(std::fs::metadata).and_then(|facts| facts.modified());
    Ok(Timer { state, last: last.ok() })
}

/// Returns true unless the sandbox of the unit that deletes makes a directory read-only (`ProtectSystem=` and
/// `ReadWritePaths=` of `systemd.exec(5)`). `path`: without symlinks.
#[must_use]
pub fn gc_may_write(root: &Sysroot, path: &Path) -> bool {
    let (mut is_strict, mut writable) = (false, Vec::new());
    for line in unit_lines(root, GC_SERVICE) {
        match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            Some(("ProtectSystem", value)) => is_strict = value == "strict",
            Some(("ReadWritePaths", "")) => writable.clear(),
            Some(("ReadWritePaths", value)) => writable.extend(value.split_whitespace().map(str::to_owned)),
            _ => {}
        }
    }
    let mut dirs =
        writable.iter().filter_map(|dir| root.resolve(Path::new(dir.trim_matches(['-', '+', '"']))).ok());
    !is_strict || dirs.any(|dir| path.starts_with(dir))
}

/// Returns the lines of a unit and of its drop-ins, in the order in which systemd reads them.
fn unit_lines(root: &Sysroot, unit: &str) -> Vec<String> {
    let (mut fragment, mut drop_ins) = (None, BTreeMap::new());
    for dir in UNITS.iter().rev().map(Path::new) {
        fragment = entry(root, dir, unit).ok().flatten().or(fragment);
        let dir = dir.join(format!("{unit}.d"));
        let entries = root.list(&dir).unwrap_or_default();
        let files = entries.into_iter().filter(|file| file.name.as_bytes().ends_with(b".conf"));
        drop_ins.extend(files.map(|file| (file.name.clone(), dir.join(file.name))));
    }
    let files = fragment.into_iter().chain(drop_ins.into_values());
    let texts = files.filter_map(|path| root.read(&path, MAX_BYTES).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Returns true if [`OF_USER`] starts with the units of a user. `config`: the user's configuration directory.
#[must_use]
pub fn is_on_for(root: &Sysroot, config: &Path) -> bool {
    let of_config = config.join("systemd/user");
    let mut dirs = USER_UNITS.iter().map(Path::new).chain([of_config.as_path()]);
    dirs.any(|dir| entry(root, &dir.join(WANTS), OF_USER).is_ok_and(|link| link.is_some()))
}

/// Returns true if the units of a user run without a login.
#[must_use]
pub fn lingers(root: &Sysroot, user: &str) -> bool {
    entry(root, Path::new(LINGER), user).is_ok_and(|file| file.is_some())
}

/// Returns the first cron job that runs this command of layersweep, for example `scan`.
///
/// Files whose names contain other characters than letters, digits, `_` and `-` are skipped, as by Debian's cron
/// (`cron(8)`); editors and package managers leave copies under such names.
pub fn cron(root: &Sysroot, command: &str) -> io::Result<Option<PathBuf>> {
    let jobs = match root.list(Path::new(CRON)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    for job in jobs.iter().filter(|job| job.kind != FileKind::Directory && is_job_name(job.name.as_ref())) {
        let path = Path::new(CRON).join(&job.name);
        // layersweep's own job is readable, so an unreadable file is another job.
        if root.read(&path, MAX_BYTES).is_ok_and(|text| text.lines().any(|line| runs(line, command))) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn is_job_name(name: &OsStr) -> bool {
    name.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte))
}

fn runs(line: &str, command: &str) -> bool {
    !line.trim_start().starts_with('#')
        && line.contains("layersweep")
        && line.split_whitespace().any(|word| word == command)
}

/// Returns the files of [`HOLDS`] that exist, with their modification times.
#[must_use]
pub fn holds(root: &Sysroot) -> Vec<(PathBuf, Option<SystemTime>)> {
    let mut holds = Vec::new();
    for path in HOLDS {
        if let Ok(real) = root.resolve(Path::new(path)) {
            let modified = std::fs::metadata(real).and_then(|facts| facts.modified());
            holds.push((path.into(), modified.ok()));
        }
    }
    holds
}

/// Returns the path of `name` in `dir` if it exists, even if it is a dangling symlink.
fn entry(root: &Sysroot, dir: &Path, name: &str) -> Result<Option<PathBuf>, (PathBuf, io::Error)> {
    match root.list(dir) {
        Ok(entries) => Ok(entries.iter().any(|entry| entry.name == name).then(|| dir.join(name))),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err((dir.to_path_buf(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn timer_state_follows_systemds_files() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let sysroot = Sysroot::at(root);
        let state = || read(&sysroot, SCAN).unwrap().state;
        assert_eq!(state(), TimerState::Missing);
        write(root, "usr/lib/systemd/system/layersweep-scan.timer", "[Timer]\n");
        assert_eq!(state(), TimerState::Disabled);
        let wants = root.join("etc/systemd/system/timers.target.wants");
        std::fs::create_dir_all(&wants).unwrap();
        symlink("/usr/lib/systemd/system/layersweep-scan.timer", wants.join(SCAN)).unwrap();
        assert_eq!(state(), TimerState::Enabled);
        // A link to /dev/null masks the unit even if another unit wants it. This root has no /dev/null.
        symlink("/dev/null", root.join("etc/systemd/system").join(SCAN)).unwrap();
        let masked = TimerState::Masked(Path::new("/etc/systemd/system").join(SCAN));
        assert_eq!(state(), masked);
        std::fs::remove_file(root.join("etc/systemd/system").join(SCAN)).unwrap();
        write(root, "etc/systemd/system/layersweep-scan.timer", "");
        assert_eq!(state(), masked);
        assert_eq!(read(&sysroot, GC).unwrap(), Timer { state: TimerState::Missing, last: None });
    }

    #[test]
    fn writable_paths_follow_systemds_files() {
        let dir = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(dir.path());
        for path in ["var/lib/containers/storage", "data/containers"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        symlink("/data", dir.path().join("srv")).unwrap();
        let [usual, data] = ["/var/lib/containers/storage", "/data/containers"]
            .map(|path| sysroot.resolve(Path::new(path)).unwrap());
        let may_write = || [&usual, &data].map(|path| gc_may_write(&sysroot, path));
        assert_eq!(may_write(), [true, true], "without a unit");
        let unit =
            "[Service]\nProtectSystem=strict\nReadWritePaths=-/var/lib/containers -/var/lib/containerd\n";
        write(dir.path(), "usr/lib/systemd/system/layersweep-gc.service", unit);
        assert_eq!(may_write(), [true, false]);
        let drop_in = "etc/systemd/system/layersweep-gc.service.d/store.conf";
        write(dir.path(), drop_in, "[Service]\nReadWritePaths=/srv/containers\n");
        assert_eq!(may_write(), [true, true]);
        write(dir.path(), drop_in, "[Service]\nReadWritePaths=\nReadWritePaths=/data\n");
        assert_eq!(may_write(), [false, true]);
        write(dir.path(), drop_in, "[Service]\nProtectSystem=full\n");
        assert_eq!(may_write(), [true, true]);
    }

    #[test]
    fn stamps_holds_and_cron_jobs_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = Sysroot::at(dir.path());
        assert_eq!((holds(&root), cron(&root, "scan").unwrap()), (Vec::new(), None));
        write(dir.path(), "var/lib/systemd/timers/stamp-layersweep-gc.timer", "");
        assert!(read(&root, GC).unwrap().last.is_some());
        write(dir.path(), "etc/layersweep/hold", "");
        assert_eq!(holds(&root)[0].0, Path::new("/etc/layersweep/hold"));
        write(dir.path(), "etc/cron.d/a", "#*/5 * * * * root layersweep scan\n");
        write(dir.path(), "etc/cron.d/gc", "*/5 * * * * root layersweep gc --quiet\n");
        write(dir.path(), "etc/cron.d/b.dpkg-old", "*/5 * * * * root layersweep scan --quiet\n");
        assert_eq!(cron(&root, "gc").unwrap(), Some("/etc/cron.d/gc".into()));
        assert_eq!(
            cron(&root, "scan").unwrap(),
            None,
            "a comment, a job of gc and a leftover copy are not scans"
        );
        write(dir.path(), "etc/cron.d/b", "*/5 * * * * root layersweep scan --quiet\n");
        assert_eq!(cron(&root, "scan").unwrap(), Some("/etc/cron.d/b".into()));
    }
}
