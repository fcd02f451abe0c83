//! What could not be saved, kept until it can be.
//!
//! One JSON file each, in directories of our own: the first is the best (the state directory
//! itself, which survives a reboot), the last one is in memory, for when the disk is the
//! trouble. Files are written beside and renamed, so each is whole or not there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::health::is_no_directory;
use super::lock::{ATTEMPTS, is_vanished, remove_idle};
use super::place::make_private;

const ENDING: &str = ".json";
const UNREADABLE: &str = ".unreadable";
const UNFINISHED: &str = ".unfinished";

/// How much is kept in each directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Bytes of all files together.
    pub bytes: u64,
}

impl Default for Limits {
    /// Two days of a run every five minutes, and no more memory than a node can spare.
    fn default() -> Self {
        Self { files: 576, bytes: 64 << 20 }
    }
}

/// What happened to something in the spool that somebody should know of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// It waits for the next run.
    #[error("what this run saw or did waits in {}{}", path.display(),
        if *survives_reboot { "" } else { ", in memory: a reboot before the next run that can save it loses it" })]
    Kept {
        /// The file.
        path: PathBuf,
        /// Whether it is in the state directory.
        survives_reboot: bool,
    },
    /// There was too much.
    #[error("{} was dropped, unsaved: too much waits to be saved", .0.display())]
    Dropped(PathBuf),
    /// A file makes no sense; it has another name now.
    #[error("{} cannot be used ({cause}); it is kept as {}", path.display(), kept.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
        /// The name it has now.
        kept: PathBuf,
    },
    /// A directory cannot be used.
    #[error("what waits in {} cannot be reached: {cause}", path.display())]
    Unreachable {
        /// The directory or file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// It is saved nowhere.
    #[error("what this run saw or did is LOST: it could be saved neither in the records nor in {}", list(.0))]
    Lost(Vec<(PathBuf, String)>),
}

fn list(tried: &[(PathBuf, String)]) -> String {
    if tried.is_empty() {
        return "any other place".into();
    }
    let one = |(path, cause): &(PathBuf, String)| format!("{} ({cause})", path.display());
    tried.iter().map(one).collect::<Vec<_>>().join(" nor in ")
}

/// One thing that waits to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<T> {
    /// Its file's name, which no other ever has.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// What it is.
    pub item: T,
}

/// The directories.
#[derive(Clone, Debug)]
pub struct Spool {
    dirs: Vec<PathBuf>,
    limits: Limits,
}

impl Spool {
    /// Keeps in the first of `dirs` that takes it.
    #[must_use]
    pub fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs, limits: Limits::default() }
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Keeps `item`; says where, what was dropped for it, and loudly if it is lost.
    pub fn put<T: Serialize>(&self, item: &T) -> Vec<Note> {
        let content = match serde_json::to_vec(item) {
            Ok(content) => content,
            Err(error) => return vec![Note::Lost(vec![(PathBuf::from("JSON"), error.to_string())])],
        };
        let mut tried = Vec::new();
        for (number, path) in self.dirs.iter().enumerate() {
            let mut notes = Vec::new();
            let mut put = || {
                let directory = Directory::make(path)?;
                directory.make_room(content.len() as u64, self.limits, &mut notes)?;
                directory.write(&content)
            };
            // Another run may just have removed the directory, since it was empty.
            let mut result = put();
            for _ in 0..ATTEMPTS {
                match &result {
                    Err(error) if is_vanished(error) => result = put(),
                    _ => break,
                }
            }
            match result {
                Ok(path) => {
                    notes.push(Note::Kept { path, survives_reboot: number == 0 && self.dirs.len() > 1 });
                    return notes;
                }
                Err(error) => tried.push((path.clone(), error.to_string())),
            }
        }
        vec![Note::Lost(tried)]
    }

    /// Everything that waits, the oldest first. It stays there until [`Self::done`] is told of
    /// it. What cannot be read is set aside in its directory.
    #[must_use]
    pub fn take_all<T: DeserializeOwned>(&self) -> (Vec<Waiting<T>>, Vec<Note>) {
        let mut waiting = Vec::new();
        let mut notes = Vec::new();
        for path in &self.dirs {
            let directory = match Directory::open(path) {
                Ok(Some(directory)) => directory,
                Ok(None) => continue,
                // Below a file nothing waits; that there is one is told of the state directory itself.
                Err(error)
                    if path.parent().is_some_and(is_no_directory)
                        && error.kind() == io::ErrorKind::NotADirectory =>
                {
                    continue;
                }
                Err(error) => {
                    notes.push(Note::Unreachable { path: path.clone(), cause: error.to_string() });
                    continue;
                }
            };
            match directory.list() {
                Ok(files) => {
                    for file in files.iter().filter(|file| file.name.ends_with(ENDING)) {
                        directory.take(&file.name, self.limits.bytes, &mut waiting, &mut notes);
                    }
                }
                Err(error) => {
                    notes.push(Note::Unreachable { path: path.clone(), cause: error.to_string() });
                }
            }
        }
        waiting.sort_by(|a, b| a.name.cmp(&b.name));
        (waiting, notes)
    }

    /// Removes what is saved now; of the running system's directories, those too that are empty then.
    /// The one in the state directory stays: on a full disk there may be no room to make it again.
    pub fn done(&self, paths: &[PathBuf]) -> Vec<Note> {
        let gone = |path: &PathBuf| match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Some(Note::Unreachable { path: path.clone(), cause: error.to_string() })
            }
            _ => None,
        };
        let notes = paths.iter().filter_map(gone).collect();
        for dir in self.dirs.iter().skip(1).filter(|dir| paths.iter().any(|path| path.parent() == Some(dir)))
        {
            // Where something waits still, it stays, and where a run holds it as its lock; so does the one
            // above it, which is for all state directories.
            if remove_idle(dir) {
                let _ = dir.parent().map(std::fs::remove_dir);
            }
        }
        notes
    }

    /// Sets aside what can be read but not be saved.
    pub fn refuse<T>(&self, waiting: &Waiting<T>, cause: &str) -> Note {
        let parent = waiting.path.parent().unwrap_or(&waiting.path);
        match Directory::open(parent) {
            Ok(Some(directory)) => directory.set_aside(&waiting.name, cause),
            Ok(None) => unreachable(parent, "it is gone"),
            Err(error) => unreachable(parent, &error.to_string()),
        }
    }
}

fn unreachable(path: &Path, cause: &str) -> Note {
    Note::Unreachable { path: path.to_path_buf(), cause: cause.to_owned() }
}

/// One directory, held open: nobody can put another one in its place meanwhile.
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

struct Entry {
    name: String,
    bytes: u64,
}

impl Directory {
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
        if facts.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
        }
        if facts.st_mode & 0o022 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write to it"));
        }
        Ok(Some(Self { fd, path: path.to_path_buf() }))
    }

    /// Its files, the oldest first.
    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            // Names of ours are ASCII; others are none of our business.
            let Ok(name) = entry.file_name().to_str() else { continue };
            if [ENDING, UNREADABLE, UNFINISHED].iter().any(|ending| name.ends_with(ending)) {
                let facts = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
                files.push(Entry { name: name.to_owned(), bytes: u64::try_from(facts.st_size).unwrap_or(0) });
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// Drops the oldest until `bytes` more fit.
    fn make_room(&self, bytes: u64, limits: Limits, notes: &mut Vec<Note>) -> io::Result<()> {
        if bytes > limits.bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than all that may wait"));
        }
        let files = self.list()?;
        let mut count = files.len();
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if count < limits.files && total + bytes <= limits.bytes {
                break;
            }
            rustix::fs::unlinkat(&self.fd, &file.name, AtFlags::empty())?;
            if !file.name.ends_with(UNFINISHED) {
                notes.push(Note::Dropped(self.path.join(&file.name)));
            }
            count -= 1;
            total -= file.bytes;
        }
        Ok(())
    }

    fn write(&self, content: &[u8]) -> io::Result<PathBuf> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // The newest name counts where the clock has gone back: what is seen later is saved later.
        let newest = self.list()?.iter().filter_map(|file| file.name.split('-').next()?.parse().ok()).max();
        let time = newest.map_or(0, |newest: i64| newest.saturating_add(1));
        let time = time.max(Timestamp::now().as_microsecond());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{time:020}-{}-{number}{ENDING}", std::process::id());
        let unfinished = format!("{name}{UNFINISHED}");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.fd, &unfinished, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| {
            rustix::fs::renameat(&self.fd, &unfinished, &self.fd, &name)?;
            Ok(rustix::fs::fsync(&self.fd)?)
        });
        if let Err(error) = written {
            // The first error is the one that says why.
            for name in [&unfinished, &name] {
                let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
            }
            return Err(error);
        }
        Ok(self.path.join(name))
    }

    fn take<T: DeserializeOwned>(
        &self,
        name: &str,
        limit: u64,
        waiting: &mut Vec<Waiting<T>>,
        notes: &mut Vec<Note>,
    ) {
        let path = self.path.join(name);
        let content = match crate::sys::quiet::Within::at([self.path.as_path()]).read(&path, limit) {
            Ok(content) => content,
            // Another run was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return notes.push(Note::Unreachable { path, cause: error.to_string() }),
        };
        match serde_json::from_slice(&content) {
            Ok(item) => waiting.push(Waiting { name: name.to_owned(), path, item }),
            Err(error) => notes.push(self.set_aside(name, &error.to_string())),
        }
    }

    fn set_aside(&self, name: &str, cause: &str) -> Note {
        let kept = format!("{name}{UNREADABLE}");
        match rustix::fs::renameat(&self.fd, name, &self.fd, &kept) {
            Ok(()) => {
                let (path, kept) = (self.path.join(name), self.path.join(kept));
                Note::Unreadable { path, cause: cause.to_owned(), kept }
            }
            Err(error) => unreachable(&self.path.join(name), &format!("{cause}; {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
