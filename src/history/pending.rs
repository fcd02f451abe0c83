//! Queue of runs, and of uses of images, that could not be written to the database yet.
//!
//! Each run is a JSON file, named after the run. The queue is a directory of the running system (`/run`), because the
//! problem is often the disk of the database. A file is written under another name and renamed, so it is complete or
//! does not exist. Applying a file twice changes nothing, so the process may be killed at any point.
//!
//! Uses are one file: a new one takes over the content of the earlier ones, which are then deleted. It grows with the
//! containers that were seen, not with the number of scans.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::health::is_no_directory;
use super::run_record::RunRecord;
use super::scan_run::ScanRun;
use super::state_directory::{StateDirectory, make_private};
use super::uses::Uses;
use crate::sys::beneath::entries;

const ENDING: &str = ".json";
const USES: &str = ".uses";
const UNREADABLE: &str = ".unreadable";
const UNFINISHED: &str = ".unfinished";

/// Maximum number of queued runs: two days of runs every five minutes.
const MAX_FILES: usize = 576;
/// Maximum size of the queue in bytes. `/run` is in memory.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveWarning {
    #[error("the record of this run is queued in {} until another run can save it; a reboot loses it", .0.display())]
    Kept(PathBuf),
    /// A file or the directory cannot be used. A file that cannot be parsed was renamed.
    #[error("queued records in {} cannot be used: {cause}", path.display())]
    Unusable { path: PathBuf, cause: String },
    /// The record of this run could not be saved anywhere.
    #[error(
        "the record of this run is LOST: it could be saved neither in the database nor in the queue: {0}"
    )]
    Lost(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    pub path: PathBuf,
    pub run: RunRecord,
}

#[derive(Clone, Debug)]
pub struct Queue {
    /// `None` on the disk of another system.
    dir: Option<PathBuf>,
}

impl Queue {
    #[must_use]
    pub fn of(directory: &StateDirectory) -> Self {
        Self { dir: directory.pending.clone().filter(|_| !directory.foreign) }
    }

    /// Queues `run`, and replaces an earlier state of it. The warning names the file, or says that the run is lost.
    pub fn put(&self, run: &RunRecord) -> SaveWarning {
        self.put_at_most(run, MAX_FILES, MAX_BYTES)
    }

    fn put_at_most(&self, run: &RunRecord, max_files: usize, max_bytes: u64) -> SaveWarning {
        let Some(path) = &self.dir else { return SaveWarning::Lost("there is no queue".into()) };
        match put_in(path, run, max_files, max_bytes) {
            Ok(path) => SaveWarning::Kept(path),
            Err(error) => SaveWarning::Lost(format!("{}: {error}", path.display())),
        }
    }

    /// Returns all queued runs, the oldest first. They stay until [`Self::done`] removes them. A file that cannot be
    /// parsed is renamed.
    #[must_use]
    pub fn all(&self) -> (Vec<Waiting>, Vec<SaveWarning>) {
        let (mut waiting, mut warnings) = (Vec::new(), Vec::new());
        let Some(path) = &self.dir else { return (waiting, warnings) };
        let listed = PendingDirectory::open(path).and_then(|directory| match directory {
            Some(directory) => directory.list(ENDING).map(|files| Some((directory, files))),
            None => Ok(None),
        });
        match listed {
            Ok(None) => {}
            Ok(Some((directory, files))) => {
                for (name, _) in &files {
                    let run = directory.read(name, &mut warnings);
                    waiting.extend(run.map(|run| Waiting { path: path.join(name), run }));
                }
            }
            // A file where the parent directory should be is reported as a problem of the state directory.
            Err(error)
                if path.parent().is_some_and(is_no_directory)
                    && error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => warnings.push(unusable(path, &error.to_string())),
        }
        (waiting, warnings)
    }

    /// Queues the uses that a scan saw, together with all queued uses. Returns the path of the file.
    ///
    /// # Errors
    /// If it cannot be written: the uses of this scan are lost then.
    pub fn put_uses(&self, scan: &ScanRun<'_>) -> io::Result<PathBuf> {
        let path = self.dir.as_ref().ok_or_else(|| io::Error::other("there is no queue"))?;
        let directory = PendingDirectory::make(path)?;
        let mut uses = Uses::of(scan);
        let mut earlier = directory.list(USES)?;
        // A file that cannot be read stays.
        earlier.retain(|(name, _)| {
            let read = directory.read(name, &mut Vec::new());
            read.map(|read| uses.add(read)).is_some()
        });
        let name = format!("{}{USES}", scan.run_id);
        let content = serde_json::to_vec(&uses)?;
        let is_replaced = |other: &str| other == name || earlier.iter().any(|(earlier, _)| earlier == other);
        directory.check_room(&is_replaced, content.len() as u64, MAX_FILES, MAX_BYTES)?;
        let written = directory.write(&name, &content)?;
        for (name, _) in &earlier {
            // The new file contains these uses: applying both changes nothing.
            let _ = rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty());
        }
        Ok(written)
    }

    /// Returns all queued uses, and the files that contain them.
    #[must_use]
    pub(super) fn uses(&self) -> (Uses, Vec<PathBuf>) {
        let (mut uses, mut paths) = (Uses::default(), Vec::new());
        // A directory that cannot be used is reported with the queued runs.
        let directory = self.dir.as_ref().and_then(|path| PendingDirectory::open(path).ok()?);
        if let Some(directory) = directory {
            for (name, _) in directory.list(USES).unwrap_or_default() {
                if let Some(more) = directory.read(&name, &mut Vec::new()) {
                    uses.add(more);
                    paths.push(directory.path.join(name));
                }
            }
        }
        (uses, paths)
    }

    pub fn done(&self, paths: &[PathBuf]) -> Vec<SaveWarning> {
        let mut warnings = Vec::new();
        for path in paths {
            match std::fs::remove_file(path) {
                Err(error)
                    if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    warnings.push(unusable(path, &error.to_string()));
                }
                _ => {}
            }
        }
        warnings
    }

    /// Renames a file that can be parsed but not applied, so that it does not block the queue.
    pub(super) fn refuse(&self, waiting: &Waiting, cause: &str) -> SaveWarning {
        let parent = waiting.path.parent().unwrap_or(&waiting.path);
        let name = waiting.path.file_name().unwrap_or_default().to_string_lossy();
        match PendingDirectory::open(parent) {
            Ok(Some(directory)) => directory.rename_unreadable(&name, cause),
            Ok(None) => unusable(parent, "it was removed"),
            Err(error) => unusable(parent, &error.to_string()),
        }
    }
}

fn put_in(path: &Path, run: &RunRecord, max_files: usize, max_bytes: u64) -> io::Result<PathBuf> {
    let name = format!("{}{ENDING}", run.start.run_id);
    let content = serde_json::to_vec(run)?;
    let directory = PendingDirectory::make(path)?;
    directory.check_room(&|other| other == name, content.len() as u64, max_files, max_bytes)?;
    directory.write(&name, &content)
}

fn unusable(path: &Path, cause: &str) -> SaveWarning {
    SaveWarning::Unusable { path: path.to_path_buf(), cause: cause.to_owned() }
}

/// The directory of the queue, held open so that it cannot be replaced by another one.
struct PendingDirectory {
    fd: OwnedFd,
    path: PathBuf,
}

impl PendingDirectory {
    fn make(path: &Path) -> io::Result<Self> {
        make_private(path)?;
        Self::open(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Opens the directory if it exists. layersweep may run as root, and other users can create files in `/run` or
    /// `/tmp`: the path must be a directory, belong to this user, and be writable for this user only.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let facts = rustix::fs::fstat(&fd)?;
        let denied = |reason: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        if facts.st_uid != rustix::process::geteuid().as_raw() {
            return denied("it belongs to another user");
        }
        if facts.st_mode & 0o022 != 0 {
            return denied("others may write to it");
        }
        Ok(Some(Self { fd, path: path.to_path_buf() }))
    }

    /// Lists the names and lengths of its files with this ending, those of the oldest run first.
    fn list(&self, ending: &str) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in entries(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().filter(|name| name.ends_with(ending));
            let Some(name) = name else { continue };
            match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                // Another run has saved and removed it.
                Err(Errno::NOENT) => {}
                facts => files.push((name.to_owned(), u64::try_from(facts?.st_size).unwrap_or(0))),
            }
        }
        files.sort();
        Ok(files)
    }

    /// Fails if a further file with `bytes` bytes would exceed the limits of the queue. All files count, of every kind,
    /// except those that it replaces.
    fn check_room(
        &self,
        is_replaced: &dyn Fn(&str) -> bool,
        bytes: u64,
        max_files: usize,
        max_bytes: u64,
    ) -> io::Result<()> {
        let mut files = self.list("")?;
        files.retain(|(other, _)| !is_replaced(other));
        let total: u64 = files.iter().map(|(_, length)| length).sum();
        if files.len() >= max_files || total.saturating_add(bytes) > max_bytes {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the queue is full"));
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
            // The first error is the reason; an error of the cleanup is not reported.
            let _ = rustix::fs::unlinkat(&self.fd, &unfinished, AtFlags::empty());
            return Err(error);
        }
        Ok(self.path.join(name))
    }

    /// Reads a file. One that cannot be parsed is renamed.
    fn read<T: DeserializeOwned>(&self, name: &str, warnings: &mut Vec<SaveWarning>) -> Option<T> {
        let path = self.path.join(name);
        let content = crate::sys::quiet::Within::at([self.path.as_path()]).read(&path, MAX_BYTES);
        let parsed = content.map(|content| serde_json::from_slice(&content));
        match parsed {
            Ok(Ok(parsed)) => return Some(parsed),
            Ok(Err(error)) => warnings.push(self.rename_unreadable(name, &error.to_string())),
            // Another run has saved and removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warnings.push(unusable(&path, &error.to_string())),
        }
        None
    }

    fn rename_unreadable(&self, name: &str, cause: &str) -> SaveWarning {
        let kept = format!("{name}{UNREADABLE}");
        match rustix::fs::renameat(&self.fd, name, &self.fd, &kept) {
            Ok(()) => unusable(&self.path.join(kept), cause),
            Err(error) => unusable(&self.path.join(name), &format!("{cause}; {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
