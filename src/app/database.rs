//! Opening the database of the state directory.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::Error;
use super::observer::{Audience, Observer};
use super::request::Request;
use crate::history::{
    self, Access, Caller, DATABASE, Degraded, LockError, Opened, PATIENCE, Queue, Records, RunLock,
    SaveWarning, StateDirectory,
};
use crate::model::Finding;

/// An open database.
#[derive(Debug)]
pub struct Database {
    /// Always usable, maybe as a copy or empty.
    pub records: Records,
    /// Where it is, or would be.
    pub directory: StateDirectory,
    /// Whether there was one that could be read.
    pub found: bool,
    /// Whether there is one that could not: what it says is unknown, not nothing.
    pub unreadable: bool,
    /// What is wrong with it.
    pub degraded: Vec<Degraded>,
    /// A newer layersweep made it, which is why a report goes on without it.
    pub newer: Option<String>,
}

impl Database {
    /// Opens the one that the request means.
    ///
    /// # Errors
    /// When a newer layersweep made it, or SQLite refuses.
    pub fn open(request: &Request, access: Access) -> Result<Self, Error> {
        Self::open_at(state_directory(request), access)
    }

    /// Opens the one at `directory`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn open_at(directory: StateDirectory, access: Access) -> Result<Self, Error> {
        let opened = Records::open(&directory, access, PATIENCE);
        Self::of(opened, directory)
    }

    fn of(opened: Result<Opened, history::Error>, directory: StateDirectory) -> Result<Self, Error> {
        let Opened { records, found, degraded } = opened.map_err(|source| failed(&directory, source))?;
        let unreadable = !found && hides_something(&directory, &degraded);
        Ok(Self { records, directory, found, unreadable, degraded, newer: None })
    }

    /// Opens it for a report that decides nothing: one that a newer layersweep made is treated as one that
    /// cannot be read.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn open_for_report(request: &Request) -> Result<Self, Error> {
        let directory = state_directory(request);
        match Records::open(&directory, Access::Read, PATIENCE) {
            Err(newer @ history::Error::Newer { .. }) => {
                let newer = newer.to_string();
                let unresolved = Some((ErrorKind::NotFound, newer.clone()));
                let empty = Self::open_at(StateDirectory { unresolved, ..directory.clone() }, Access::Read)?;
                Ok(Self { directory, unreadable: true, newer: Some(newer), ..empty })
            }
            opened => Self::of(opened, directory),
        }
    }

    /// Opens it to change something that has to be kept.
    ///
    /// # Errors
    /// As [`Self::open`], and when the change could not be kept.
    pub fn open_to_keep(request: &Request, observer: &dyn Observer) -> Result<Self, Error> {
        let mut database = Self::open(request, Access::Write)?;
        if database.records.is_kept() {
            return Ok(database.warn(observer));
        }
        match database.degraded.pop() {
            Some(why) => Err(unchanged(&why)),
            None => {
                let dir = database.directory.dir.display();
                Err(Error::usage(format!("{dir}: no records can be kept there"))
                    .hint("name another state directory with --state-dir DIR"))
            }
        }
    }

    /// Hands what is wrong with it to the observer.
    #[must_use]
    pub fn warn(self, observer: &dyn Observer) -> Self {
        warn(observer, &self.degraded);
        self
    }

    /// Applies what waits to be saved to a copy of it; ids of the runs among that, and what is wrong with it.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn apply_waiting(&mut self) -> Result<(HashSet<String>, Vec<SaveWarning>), Error> {
        let Self { records, directory, .. } = self;
        history::apply_waiting(records, &Queue::of(directory)).map_err(|source| failed(directory, source))
    }

    /// Its path; `None` where there is none.
    pub fn path(&self) -> Option<String> {
        self.found.then(|| self.directory.dir.join(DATABASE).to_string_lossy().into_owned())
    }

    /// Reads from it.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.records.read(work).map_err(|source| failed(&self.directory, source))
    }

    /// Writes all or nothing to one that was opened to keep the change.
    ///
    /// # Errors
    /// When SQLite refuses, or the disk does.
    pub fn write<T>(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.records.write(work).map_err(|source| match source {
            history::Error::Degraded(why) => unchanged(&why),
            source => failed(&self.directory, source),
        })
    }
}

/// A finding about the database at `directory`.
pub(super) fn finding(directory: &StateDirectory, message: String) -> Finding {
    Finding::new(directory.dir.join(DATABASE), message)
}

/// Where the request says that the database is; inside the sysroot, if there is one.
pub fn state_directory(request: &Request) -> StateDirectory {
    let named = request.state_dir.as_deref().map(|dir| match &request.sysroot {
        // Given with the sysroot in front, it means the same.
        Some(top) => below(top, dir).unwrap_or_else(|| dir.to_path_buf()),
        None => dir.to_path_buf(),
    });
    history::state_directory(&request.root(), named.as_deref(), &Caller::present())
}

fn below(top: &Path, dir: &Path) -> Option<PathBuf> {
    let (top, dir) = (std::path::absolute(top).ok()?, std::path::absolute(dir).ok()?);
    Some(Path::new("/").join(dir.strip_prefix(top).ok()?))
}

/// Nothing can be created there.
fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// The lock of the state directory, or where there can be none, of its stand-in: one run at a time.
pub(super) fn acquire_lock(directory: &StateDirectory) -> Result<RunLock, Error> {
    let refused = |error: LockError| {
        Error::refused(error.to_string()).hint(match &error {
            LockError::Held { .. } => "wait until it ends",
            LockError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run as root; another state directory (--state-dir DIR) has no pins and no history"
            }
            LockError::Io { .. } => "name another state directory with --state-dir DIR",
        })
    };
    match RunLock::acquire(&directory.dir) {
        Err(LockError::Io { path, source }) => {
            // On a full or read-only disk that has no state directory yet.
            let stand_in = directory.pending.as_ref().filter(|dir| !dir.starts_with(&directory.dir));
            let Some(stand_in) = stand_in else { return Err(refused(LockError::Io { path, source })) };
            tracing::info!("locking {}: {source}; taking the lock of {}", path.display(), stand_in.display());
            match RunLock::acquire(stand_in) {
                // The locks of the stores are held for each deletion all the same.
                Err(LockError::Io { path, source }) if is_no_room(&source) => {
                    tracing::warn!("locking {}: {source}; going on without a lock", path.display());
                    Ok(RunLock::none())
                }
                other => other.map_err(refused),
            }
        }
        other => other.map_err(refused),
    }
}

pub(super) fn failed(directory: &StateDirectory, source: history::Error) -> Error {
    Error::database(directory.dir.join(DATABASE), source)
}

/// What somebody asked to change is not kept for later.
fn unchanged(why: &Degraded) -> Error {
    let hint = match why {
        Degraded::DiskFull { path } => format!(
            "make some room on the filesystem of {} (`layersweep report` names what can go), then try again; until \
             then `names` below [protect] in the configuration keeps images",
            path.display()
        ),
        Degraded::ReadOnly { path } => format!("make {} writable again, then try again", path.display()),
        _ => "fix that and try again".into(),
    };
    Error::failed(format!("nothing was changed: {why}")).hint(hint)
}

/// Hands what is wrong with a database to the observer, each with its remedy.
pub(super) fn warn(observer: &dyn Observer, degraded: &[Degraded]) {
    degraded.iter().for_each(|why| observer.warn(Audience::Usual, &why.to_string(), &why.remedy()));
}

/// Hands what keeps a run from being saved to the observer: whoever is told of that has to hear of it,
/// quiet or not.
pub fn warn_of_saving(observer: &dyn Observer, degraded: &[Degraded], warnings: &[SaveWarning]) {
    let audience = if degraded.is_empty() { Audience::Usual } else { Audience::Always };
    degraded.iter().for_each(|why| observer.warn(audience, &why.to_string(), &why.remedy()));
    warnings.iter().for_each(|warning| observer.warn(audience, &warning.to_string(), ""));
}

/// Whether there may be a database that could not be read. Where a new one only could not be made, on
/// a full disk for example, there is none.
fn hides_something(directory: &StateDirectory, degraded: &[Degraded]) -> bool {
    let only_unwritten = |why: &Degraded| {
        matches!(
            why,
            Degraded::NotWritable { .. }
                | Degraded::Locked { .. }
                | Degraded::DiskFull { .. }
                | Degraded::ReadOnly { .. }
        )
    };
    let exists = || directory.dir.join(DATABASE).try_exists().unwrap_or(true);
    !degraded.is_empty() && (!degraded.iter().all(only_unwritten) || exists())
}
