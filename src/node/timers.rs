//! Our own timers, read from systemd's files on the disk. D-Bus is not used, so it also works on the
//! disk of another node.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::sysroot::Sysroot;

pub const SCAN: &str = "layersweep-scan.timer";
/// The timer that deletes.
pub const GC: &str = "layersweep-gc.timer";

/// Where systemd looks for units, the first that has one wins (`systemd.unit(5)`).
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// What is started with this starts with the machine.
const WANTS: &str = "timers.target.wants";
/// When a persistent timer ran last: the modification time of an empty file.
const STAMPS: &str = "/var/lib/systemd/timers";
/// Where cron jobs of packages lie.
const CRON: &str = "/etc/cron.d";
/// While one of these is there, the units delete nothing; the first goes with a reboot.
pub const HOLDS: [&str; 2] = ["/run/layersweep/hold", "/etc/layersweep/hold"];

/// No unit or cron file is longer than this.
const MAX_BYTES: u64 = 1 << 20;

/// What systemd does about a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerState {
    /// There is none.
    Missing,
    /// Masked: this file is empty or a dangling symlink.
    Masked(PathBuf),
    /// It exists, but nothing starts it.
    Disabled,
    /// It starts at boot.
    Enabled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// What systemd does about it.
    pub state: TimerState,
    /// When it last elapsed, or was first started; `None`: never.
    pub last: Option<SystemTime>,
}

/// Reads one of our timers.
///
/// # Errors
/// When a directory of units cannot be read, with its path.
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

/// A cron job that scans.
///
/// Names with other characters than these are skipped by Debian's cron (`cron(8)`), and by others
/// as what an editor or a package manager has left.
pub fn cron(root: &Sysroot) -> io::Result<Option<PathBuf>> {
    let jobs = match root.list(Path::new(CRON)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let scans = |line: &str| {
        !line.trim_start().starts_with('#')
            && line.contains("layersweep")
            && line.split_whitespace().any(|word| word == "scan")
    };
    let runs = |name: &OsStr| {
        name.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte))
    };
    for job in jobs.iter().filter(|job| job.kind != FileKind::Directory && runs(job.name.as_ref())) {
        let path = Path::new(CRON).join(&job.name);
        // Somebody else's job that cannot be read is not ours.
        if root.read(&path, MAX_BYTES).is_ok_and(|text| text.lines().any(scans)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Files that keep the deleting units from running, and since when.
#[must_use]
pub fn holds(root: &Sysroot) -> Vec<(PathBuf, Option<SystemTime>)> {
    let there = |path: &str| Some((PathBuf::from(path), root.resolve(Path::new(path)).ok()?));
    let since = |(path, placed): (PathBuf, PathBuf)| {
        let facts = std::fs::metadata(placed).and_then(|facts| facts.modified());
        (path, facts.ok())
    };
    HOLDS.iter().filter_map(|path| there(path)).map(since).collect()
}

/// The path of `name` in `dir`, if it is there, wherever a symlink of that name leads.
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
    fn states_of_a_unit() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let state = || read(&Sysroot::at(root), SCAN).unwrap().state;
        assert_eq!(state(), TimerState::Missing);
        write(root, "usr/lib/systemd/system/layersweep-scan.timer", "[Timer]\n");
        assert_eq!(state(), TimerState::Disabled);
        let wants = root.join("etc/systemd/system/timers.target.wants");
        std::fs::create_dir_all(&wants).unwrap();
        symlink("/usr/lib/systemd/system/layersweep-scan.timer", wants.join(SCAN)).unwrap();
        assert_eq!(state(), TimerState::Enabled);
        // Links to /dev/null win, whatever wants the unit; this root has no /dev/null.
        symlink("/dev/null", root.join("etc/systemd/system").join(SCAN)).unwrap();
        let masked = TimerState::Masked(Path::new("/etc/systemd/system").join(SCAN));
        assert_eq!(state(), masked);
        std::fs::remove_file(root.join("etc/systemd/system").join(SCAN)).unwrap();
        write(root, "etc/systemd/system/layersweep-scan.timer", "");
        assert_eq!(state(), masked);
        assert_eq!(read(&Sysroot::at(root), GC).unwrap(), Timer { state: TimerState::Missing, last: None });
    }

    #[test]
    fn stamps_holds_and_cron_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let root = Sysroot::at(dir.path());
        assert_eq!((holds(&root), cron(&root).unwrap()), (Vec::new(), None));
        write(dir.path(), "var/lib/systemd/timers/stamp-layersweep-gc.timer", "");
        assert!(read(&root, GC).unwrap().last.is_some());
        write(dir.path(), "etc/layersweep/hold", "");
        assert_eq!(holds(&root)[0].0, Path::new("/etc/layersweep/hold"));
        write(dir.path(), "etc/cron.d/a", "#*/5 * * * * root layersweep scan\n");
        write(dir.path(), "etc/cron.d/gc", "*/5 * * * * root layersweep gc --quiet\n");
        write(dir.path(), "etc/cron.d/b.dpkg-old", "*/5 * * * * root layersweep scan --quiet\n");
        assert_eq!(cron(&root).unwrap(), None, "a comment, a collection and what is left over scan nothing");
        write(dir.path(), "etc/cron.d/b", "*/5 * * * * root layersweep scan --quiet\n");
        assert_eq!(cron(&root).unwrap(), Some("/etc/cron.d/b".into()));
    }
}
