//! Queue of scans and runs that could not be written to the database yet.
//!
//! One JSON file each, named after its run, in directories of our own: the first is in the state
//! directory and survives a reboot, the last is in memory, for when the disk is the trouble. Files
//! are written under another name and renamed, so each is whole or not there. Applying one twice
//! changes nothing, so it does not matter where we are killed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::Transaction;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::health::is_no_directory;
use super::run_record::{RunRecord, put};
use super::scan_record::ScanRun;
use super::scans;
use super::state_directory::{StateDirectory, make_private};

const ENDING: &str = ".json";
const UNREADABLE: &str = ".unreadable";
const UNFINISHED: &str = ".unfinished";

/// Two days of runs every five minutes, within the memory that a node can spare.
const MOST_FILES: usize = 576;
const MOST_BYTES: u64 = 64 << 20;

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pending {
    Scan(Box<ScanRun>),
    /// A run that deletes, as far as it has come.
    Run(Box<RunRecord>),
}

impl Pending {
    /// The id of its run, which names its file.
    #[must_use]
    pub fn run_id(&self) -> &str {
        match self {
            Self::Scan(scan) => &scan.run_id,
            Self::Run(run) => &run.start.run_id,
        }
    }

    /// Writes it to the database, and returns the record time of a scan; nothing changes where it is there
    /// already.
    pub fn apply(&self, to: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
        match self {
            Self::Scan(scan) => scans::record(to, scan),
            Self::Run(run) => put(to, run).map(|()| None),
        }
    }
}

/// A warning about a queue entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveWarning {
    /// Queued for the next run.
    #[error("the record of this run is queued in {}{}", path.display(),
        if *survives_reboot { "" } else { " (in memory: lost if the node reboots before another run saves it)" })]
    Kept {
        path: PathBuf,
        /// Whether it is in the state directory.
        survives_reboot: bool,
    },
    /// The queue was full.
    #[error("{} was dropped unsaved: the queue is full", .0.display())]
    Dropped(PathBuf),
    /// An entry cannot be applied; its file was renamed.
    #[error("{} cannot be used ({cause}); it is kept as {}", path.display(), kept.display())]
    Unreadable {
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
        /// The name it has now.
        kept: PathBuf,
    },
    /// A directory cannot be used.
    #[error("the queue in {} cannot be read: {cause}", path.display())]
    Unreachable {
        /// The directory or file.
        path: PathBuf,
        cause: String,
    },
    /// It could be saved nowhere.
    #[error("the record of this run is LOST: it could be saved neither in the records nor in {}", list(.0))]
    Lost(Vec<(PathBuf, String)>),
}

fn list(tried: &[(PathBuf, String)]) -> String {
    if tried.is_empty() {
        return "any other place".into();
    }
    let one = |(path, cause): &(PathBuf, String)| format!("{} ({cause})", path.display());
    tried.iter().map(one).collect::<Vec<_>>().join(" nor in ")
}

/// A queue entry that was read from its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub path: PathBuf,
    pub item: Pending,
}

#[derive(Clone, Debug)]
pub struct Queue {
    dirs: Vec<PathBuf>,
}

impl Queue {
    /// The directories of `directory`, the best first; none on the disk of another system.
    #[must_use]
    pub fn of(directory: &StateDirectory) -> Self {
        Self { dirs: if directory.foreign { Vec::new() } else { directory.pending.clone() } }
    }

    /// Keeps `item`, in place of what was kept of its run before. Says where, what was dropped for
    /// it, and loudly if it is lost.
    pub fn put(&self, item: &Pending) -> Vec<SaveWarning> {
        self.put_at_most(item, MOST_FILES, MOST_BYTES)
    }

    fn put_at_most(&self, item: &Pending, files: usize, bytes: u64) -> Vec<SaveWarning> {
        let content = match serde_json::to_vec(item) {
            Ok(content) => content,
            Err(error) => return vec![SaveWarning::Lost(vec![(PathBuf::from("JSON"), error.to_string())])],
        };
        let name = format!("{}{ENDING}", item.run_id());
        let mut tried = Vec::new();
        for (number, path) in self.dirs.iter().enumerate() {
            let mut warnings = Vec::new();
            let put = PendingDirectory::make(path).and_then(|directory| {
                directory.make_room(&name, content.len() as u64, (files, bytes), &mut warnings)?;
                directory.write(&name, &content)
            });
            match put {
                Ok(path) => {
                    // An older state of it may be where there was room then.
                    let others = self.dirs.iter().enumerate().filter(|(other, _)| *other != number);
                    let others = others.map(|(_, dir)| dir.join(&name)).filter(|path| path.exists());
                    warnings.extend(self.done(&others.collect::<Vec<_>>()));
                    warnings.push(SaveWarning::Kept {
                        path,
                        survives_reboot: number == 0 && self.dirs.len() > 1,
                    });
                    return warnings;
                }
                Err(error) => tried.push((path.clone(), error.to_string())),
            }
        }
        vec![SaveWarning::Lost(tried)]
    }

    /// All entries, the oldest run first. They stay until [`Self::done`] removes them. What cannot be
    /// read is renamed in its directory.
    #[must_use]
    pub fn all(&self) -> (Vec<Waiting>, Vec<SaveWarning>) {
        let mut waiting = Vec::new();
        let mut warnings = Vec::new();
        for path in &self.dirs {
            let listed = PendingDirectory::open(path).and_then(|directory| match directory {
                Some(directory) => directory.list().map(|files| Some((directory, files))),
                None => Ok(None),
            });
            match listed {
                Ok(None) => {}
                Ok(Some((directory, files))) => {
                    for (name, _) in files.iter().filter(|(name, _)| name.ends_with(ENDING)) {
                        directory.take(name, &mut waiting, &mut warnings);
                    }
                }
                // There is no queue below a file; the file itself is reported for the state directory.
                Err(error)
                    if path.parent().is_some_and(is_no_directory)
                        && error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => warnings.push(unreachable(path, &error.to_string())),
            }
        }
        waiting.sort_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        (waiting, warnings)
    }

    /// Removes what is saved now.
    pub fn done(&self, paths: &[PathBuf]) -> Vec<SaveWarning> {
        let gone = |path: &PathBuf| match std::fs::remove_file(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                None
            }
            Err(error) => Some(unreachable(path, &error.to_string())),
            Ok(()) => None,
        };
        paths.iter().filter_map(gone).collect()
    }

    /// Renames a file that can be read but not be applied, so that it does not stand in the way.
    pub(super) fn refuse(&self, waiting: &Waiting, cause: &str) -> SaveWarning {
        let parent = waiting.path.parent().unwrap_or(&waiting.path);
        let name = waiting.path.file_name().unwrap_or_default().to_string_lossy();
        match PendingDirectory::open(parent) {
            Ok(Some(directory)) => directory.rename_unreadable(&name, cause),
            Ok(None) => unreachable(parent, "it is gone"),
            Err(error) => unreachable(parent, &error.to_string()),
        }
    }
}

fn unreachable(path: &Path, cause: &str) -> SaveWarning {
    SaveWarning::Unreachable { path: path.to_path_buf(), cause: cause.to_owned() }
}

/// One directory, held open: nobody can put another one in its place meanwhile.
struct PendingDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

impl PendingDirectory {
    fn make(path: &Path) -> io::Result<Self> {
        make_private(path)?;
        Self::open(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Opens the directory if there is one. We may be root, and `/run` or `/tmp` may hold what
    /// others have planted: it must be a directory, ours, and writable for us alone.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let facts = rustix::fs::fstat(&fd)?;
        let denied = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if facts.st_uid != rustix::process::geteuid().as_raw() {
            return denied("it belongs to another user");
        }
        if facts.st_mode & 0o022 != 0 {
            return denied("others may write to it");
        }
        Ok(Some(Self { fd, path: path.to_path_buf() }))
    }

    /// Names and lengths of its files, the oldest run first.
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            // Names of ours are ASCII; others are none of our business.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if [ENDING, UNREADABLE, UNFINISHED].iter().any(|ending| name.ends_with(ending)) {
                match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Another run has saved it.
                    Err(Errno::NOENT) => {}
                    facts => files.push((name.to_owned(), u64::try_from(facts?.st_size).unwrap_or(0))),
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Drops the oldest until so many bytes more fit, but never `own`, which is to be replaced.
    fn make_room(
        &self,
        own: &str,
        bytes: u64,
        (most_files, most_bytes): (usize, u64),
        warnings: &mut Vec<SaveWarning>,
    ) -> io::Result<()> {
        if bytes > most_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than the queue limit"));
        }
        let mut files = self.list()?;
        files.retain(|(name, _)| name != own);
        let mut count = files.len();
        let mut total: u64 = files.iter().map(|(_, length)| length).sum();
        for (name, length) in files {
            if count < most_files && total + bytes <= most_bytes {
                break;
            }
            match rustix::fs::unlinkat(&self.fd, &name, AtFlags::empty()) {
                Err(Errno::NOENT) => {}
                Ok(()) if name.ends_with(UNFINISHED) => {}
                Ok(()) => warnings.push(SaveWarning::Dropped(self.path.join(&name))),
                Err(error) => return Err(error.into()),
            }
            count -= 1;
            total -= length;
        }
        Ok(())
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<PathBuf> {
        let unfinished = format!("{name}{UNFINISHED}");
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.fd, &unfinished, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| {
            rustix::fs::renameat(&self.fd, &unfinished, &self.fd, name)?;
            Ok(rustix::fs::fsync(&self.fd)?)
        });
        if let Err(error) = written {
            // The first error is the one that says why.
            let _ = rustix::fs::unlinkat(&self.fd, &unfinished, AtFlags::empty());
            return Err(error);
        }
        Ok(self.path.join(name))
    }

    fn take(&self, name: &str, waiting: &mut Vec<Waiting>, warnings: &mut Vec<SaveWarning>) {
        let path = self.path.join(name);
        let content = match crate::sys::quiet::Within::at([self.path.as_path()]).read(&path, MOST_BYTES) {
            Ok(content) => content,
            // Another run was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return warnings.push(unreachable(&path, &error.to_string())),
        };
        match serde_json::from_slice(&content) {
            Ok(item) => waiting.push(Waiting { path, item }),
            Err(error) => warnings.push(self.rename_unreadable(name, &error.to_string())),
        }
    }

    fn rename_unreadable(&self, name: &str, cause: &str) -> SaveWarning {
        let kept = format!("{name}{UNREADABLE}");
        match rustix::fs::renameat(&self.fd, name, &self.fd, &kept) {
            Ok(()) => {
                let (path, kept) = (self.path.join(name), self.path.join(kept));
                SaveWarning::Unreadable { path, cause: cause.to_owned(), kept }
            }
            Err(error) => unreachable(&self.path.join(name), &format!("{cause}; {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
