//! The database of the state directory, opened for a use case.
//!
//! Opening rarely fails: a problem of the disk or of the file must not prevent a command from showing data or a run
//! from freeing space. The records are a copy or empty then, and [`Database::degraded`] contains the problems. Only
//! a change that the user requested, for example a pin, needs a database that can be written.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::history::{
    self, Access, Caller, DATABASE, Degraded, LockError, Opened, PATIENCE, Queue, Records, RunLock,
    SaveWarning, StateDirectory,
};
use crate::model::Finding;
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;

#[derive(Debug)]
pub struct Database {
    /// The records. They can always be used, but may be a copy or empty.
    pub records: Records,
    /// Directory of the database, also if it does not exist yet.
    pub directory: StateDirectory,
    /// A database exists and could be read.
    pub found: bool,
    /// A database may exist and could not be read: its content is unknown, not empty.
    pub unreadable: bool,
    pub degraded: Vec<Degraded>,
    /// Message of the error if a newer layersweep made the database; a report continues without it.
    pub newer: Option<String>,
}

impl Database {
    /// Opens the database in the state directory of the request.
    ///
    /// # Errors
    /// When a newer layersweep made it, or SQLite fails.
    pub fn open(request: &Request, access: Access) -> Result<Self, Error> {
        Self::open_at(state_directory(request), access)
    }

    /// Opens the database in `directory`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_at(directory: StateDirectory, access: Access) -> Result<Self, Error> {
        let opened = Records::open(&directory, access, PATIENCE);
        Self::new(opened, directory)
    }

    fn new(opened: Result<Opened, history::Error>, directory: StateDirectory) -> Result<Self, Error> {
        let Opened { records, found, degraded } = opened.map_err(|source| failed(&directory, source))?;
        let unreadable = !found && hides_something(&directory, &degraded);
        Ok(Self { records, directory, found, unreadable, degraded, newer: None })
    }

    /// Opens the database for a report, which decides nothing: a database of a newer layersweep counts as
    /// unreadable.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn open_for_report(request: &Request) -> Result<Self, Error> {
        let directory = state_directory(request);
        match Records::open(&directory, Access::Read, PATIENCE) {
            Err(newer @ history::Error::Newer { .. }) => {
                let newer = newer.to_string();
                let unresolved = Some((ErrorKind::NotFound, newer.clone()));
                let empty = Self::open_at(StateDirectory { unresolved, ..directory.clone() }, Access::Read)?;
                Ok(Self { directory, unreadable: true, newer: Some(newer), ..empty })
            }
            opened => Self::new(opened, directory),
        }
    }

    /// Opens the database for a change that must be durable.
    ///
    /// # Errors
    /// As [`Self::open`], and when a change could not be saved.
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

    #[must_use]
    pub fn warn(self, observer: &dyn Observer) -> Self {
        warn(observer, &self.degraded);
        self
    }

    /// Applies the runs that wait to be saved to a copy of the records. Returns their ids, and warnings about
    /// files that cannot be applied.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn apply_waiting(&mut self) -> Result<(HashSet<String>, Vec<SaveWarning>), Error> {
        let Self { records, directory, .. } = self;
        history::apply_waiting(records, &Queue::of(directory)).map_err(|source| failed(directory, source))
    }

    /// Returns the path of the database, or `None` if it was not found.
    pub fn path(&self) -> Option<String> {
        self.found.then(|| self.directory.dir.join(DATABASE).to_string_lossy().into_owned())
    }

    /// Reads from the records.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.records.read(work).map_err(|source| failed(&self.directory, source))
    }

    /// Writes in one transaction to a database that was opened with [`Self::open_to_keep`].
    ///
    /// # Errors
    /// When SQLite or the disk fails.
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

pub(crate) fn finding(directory: &StateDirectory, message: String) -> Finding {
    Finding::new(directory.dir.join(DATABASE), message)
}

/// Returns the state directory of the request. With a sysroot it is inside that.
pub fn state_directory(request: &Request) -> StateDirectory {
    let named = request.state_dir.as_deref().map(|dir| match &request.sysroot {
        // A path that begins with the sysroot means the same directory.
        Some(top) => below(top, dir).unwrap_or_else(|| dir.to_path_buf()),
        None => dir.to_path_buf(),
    });
    history::state_directory(&request.root(), named.as_deref(), &Caller::present())
}

fn below(top: &Path, dir: &Path) -> Option<PathBuf> {
    let (top, dir) = (std::path::absolute(top).ok()?, std::path::absolute(dir).ok()?);
    Some(Path::new("/").join(dir.strip_prefix(top).ok()?))
}

/// Returns true if the error means that no file can be created in the directory.
fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

/// Acquires the lock that allows one run at a time. It is in the state directory, or in the directory of waiting
/// runs if the state directory cannot be created on a full or read-only disk.
pub(crate) fn acquire_lock(directory: &StateDirectory) -> Result<RunLock, Error> {
    let (path, source) = match RunLock::acquire(&directory.dir) {
        Err(LockError::Io { path, source }) => (path, source),
        other => return other.map_err(lock_refused),
    };
    let stand_in = directory.pending.as_ref().filter(|dir| !dir.starts_with(&directory.dir));
    let Some(stand_in) = stand_in else { return Err(lock_refused(LockError::Io { path, source })) };
    tracing::info!("locking {}: {source}; taking the lock of {}", path.display(), stand_in.display());
    match RunLock::acquire(stand_in) {
        // Each deletion takes the locks of the stores nevertheless.
        Err(LockError::Io { path, source }) if is_no_room(&source) => {
            tracing::warn!("locking {}: {source}; going on without a lock", path.display());
            Ok(RunLock::none())
        }
        other => other.map_err(lock_refused),
    }
}

fn lock_refused(error: LockError) -> Error {
    Error::refused(error.to_string()).hint(match &error {
        LockError::Held { .. } => "wait until it ends",
        LockError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "run as root; another state directory (--state-dir DIR) has no pins and no history"
        }
        LockError::Io { .. } => "name another state directory with --state-dir DIR",
    })
}

pub(crate) fn failed(directory: &StateDirectory, source: history::Error) -> Error {
    Error::database(directory.dir.join(DATABASE), source)
}

/// Error of a change that the user requested and that cannot be saved. Unlike a run, it does not wait to be saved
/// later.
fn unchanged(why: &Degraded) -> Error {
    let hint = match why {
        Degraded::DiskFull { path } => format!(
            "make some room on the filesystem of {} (`layersweep report` shows what can be deleted), then try again; until \
             then `names` below [protect] in the configuration keeps images",
            path.display()
        ),
        Degraded::ReadOnly { path } => format!("make {} writable again, then try again", path.display()),
        _ => "fix that and try again".into(),
    };
    Error::failed(format!("nothing was changed: {why}")).hint(hint)
}

pub(crate) fn warn(observer: &dyn Observer, degraded: &[Degraded]) {
    degraded.iter().for_each(|why| observer.warn(Audience::Usual, &why.to_string(), &why.remedy()));
}

/// Reports to the observer why a run cannot be saved, even if it is quiet.
pub fn warn_of_saving(observer: &dyn Observer, degraded: &[Degraded], warnings: &[SaveWarning]) {
    let audience = if degraded.is_empty() { Audience::Usual } else { Audience::Always };
    degraded.iter().for_each(|why| observer.warn(audience, &why.to_string(), &why.remedy()));
    warnings.iter().for_each(|warning| observer.warn(audience, &warning.to_string(), ""));
}

/// Returns true if a database may exist that could not be read. A database that could only not be created, for
/// example on a full disk, hides nothing.
fn hides_something(directory: &StateDirectory, degraded: &[Degraded]) -> bool {
    let is_read_problem = degraded.iter().any(|why| {
        !matches!(
            why,
            Degraded::NotWritable { .. }
                | Degraded::Locked { .. }
                | Degraded::DiskFull { .. }
                | Degraded::ReadOnly { .. }
        )
    });
    is_read_problem || !degraded.is_empty() && directory.dir.join(DATABASE).try_exists().unwrap_or(true)
}
