//! Problems with the records, each as one line and a hint.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use super::lock::{LockError, StateLockHolder};
use super::state_directory::{OTHER_OWNER, WRITABLE_BY_OTHERS};
use crate::model::text::display::shell_word;

/// Number of free bytes below which a failing write is explained by a full disk. XFS and btrfs refuse writes before the
/// last block is used.
const FULL: u64 = 128 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer layersweep wrote the database. Nothing was written to it.
    #[error("{} has schema version {found}; this layersweep supports only up to {known}", path.display())]
    Newer {
        path: PathBuf,
        found: u32,
        /// Newest schema version that this binary supports.
        known: u32,
    },
    #[error("{0}")]
    Degraded(Box<Degraded>),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl From<Degraded> for Error {
    fn from(degraded: Degraded) -> Self {
        Self::Degraded(Box::new(degraded))
    }
}

/// Reason why the database could not be used fully. The run continues with what can be read from it and from the disk;
/// the record of a run that deletes is queued ([`super::pending`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Degraded {
    /// No permission to read the records, or the path cannot exist.
    #[error("the records in {} cannot be read ({cause}); working without them", path.display())]
    NotReadable { path: PathBuf, cause: String },
    /// The state directory is not a directory, or its path leads through a file.
    #[error("the state directory {} is not a directory; working without records", path.display())]
    NoDirectory { path: PathBuf },
    /// No permission to write the records.
    #[error("the records in {} cannot be written ({cause})", path.display())]
    NotWritable { path: PathBuf, cause: String },
    /// Another run held the lock for longer than this one waits.
    #[error("the records are locked by {holder} ({})", path.display())]
    Locked { path: PathBuf, holder: StateLockHolder },
    /// No space or no inodes are left, or a quota is used up.
    #[error("no space left on the disk that holds {}", path.display())]
    DiskFull { path: PathBuf },
    #[error("the filesystem of {} is read-only", path.display())]
    ReadOnly { path: PathBuf },
    /// The disk or the filesystem fails. `cause` is the message of the kernel or SQLite.
    #[error("the records in {} cannot be used ({cause})", path.display())]
    Io { path: PathBuf, cause: String },
    /// The database is intact, but could not be migrated to the present schema.
    #[error("{} cannot be migrated to the current schema ({cause})", path.display())]
    NotUpgraded { path: PathBuf, cause: String },
    /// A newer layersweep migrated the database during this run. `known` is the newest schema version that this binary
    /// supports.
    #[error(
        "{} now has schema version {found}; this layersweep supports only up to {known}",
        path.display()
    )]
    Newer { path: PathBuf, found: u32, known: u32 },
    /// The database is damaged, or the file is not a database.
    #[error("{}", damaged(path, cause, quarantined.as_deref(), *keep_list_lost))]
    Corrupt {
        path: PathBuf,
        /// Symptom of the damage.
        cause: String,
        /// Its quarantine path; `None` if it was left in place.
        quarantined: Option<PathBuf>,
        /// Its keep-list could not be read, so everything is pinned now.
        keep_list_lost: bool,
    },
}

fn damaged(path: &Path, cause: &str, quarantined: Option<&Path>, keep_list_lost: bool) -> String {
    let path = path.display();
    let Some(copy) = quarantined else {
        return format!("the database {path} is damaged ({cause}); working without it");
    };
    let keep_list = if keep_list_lost {
        ", and every image is pinned, since the keep-list could not be read"
    } else {
        " and its keep-list"
    };
    format!(
        "the database {path} was damaged ({cause}); it is kept as {}; a new one was created from the \
         disk{keep_list}",
        copy.display()
    )
}

impl Degraded {
    /// Returns a stable name for programs: `disk-full`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotReadable { .. } => "not-readable",
            Self::NoDirectory { .. } => "no-directory",
            Self::NotWritable { .. } => "not-writable",
            Self::Locked { .. } => "locked",
            Self::DiskFull { .. } => "disk-full",
            Self::ReadOnly { .. } => "read-only",
            Self::Io { .. } => "io-error",
            Self::NotUpgraded { .. } => "not-upgraded",
            Self::Newer { .. } => "newer-schema",
            Self::Corrupt { .. } => "corrupt",
        }
    }

    /// Returns the text of the `hint:` line.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotReadable { path, cause } if cause == WRITABLE_BY_OTHERS => {
                format!("chmod go-w {}", shell_word(&path.to_string_lossy()))
            }
            Self::NotReadable { path, cause } if cause == OTHER_OWNER => {
                format!("chown root {}, or run as its owner", shell_word(&path.to_string_lossy()))
            }
            Self::NotReadable { .. } | Self::NotWritable { .. } => {
                "run as root or the owner of the state directory; another one (--state-dir) has no pins and no history"
                    .into()
            }
            Self::NoDirectory { .. } => {
                "move the file in its place away, or name another state directory with --state-dir".into()
            }
            Self::Locked { .. } => "nothing to do: the next run can write again".into(),
            Self::DiskFull { path } => {
                format!("make room on the filesystem of {}", path.display())
            }
            Self::ReadOnly { path } => {
                format!("make {} writable again", path.display())
            }
            Self::Io { .. } => "look at the kernel's log (dmesg) and check the disk".into(),
            Self::NotUpgraded { path, .. } => {
                format!("report this; to start over, move {} away", path.display())
            }
            Self::Newer { .. } => "use the newer layersweep".into(),
            Self::Corrupt { quarantined: Some(copy), keep_list_lost: true, .. } => format!(
                "pin again what the keep-list in {} kept, then `layersweep pin remove '*'`; until then every \
                 image stays",
                copy.display()
            ),
            Self::Corrupt { quarantined: Some(copy), .. } => {
                format!("keep {} for inspection, or remove it", copy.display())
            }
            Self::Corrupt { quarantined: None, path, .. } => {
                format!(
                    "the next run that can write quarantines {} and starts a new database",
                    path.display()
                )
            }
        }
    }

    pub(super) fn from_io(path: &Path, error: &io::Error) -> Self {
        let (path, cause) = (path.to_path_buf(), error.to_string());
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { path },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            Some(Errno::ACCESS | Errno::PERM) => Self::NotWritable { path, cause },
            Some(Errno::NOTDIR | Errno::EXIST) if is_no_directory(&path) => Self::NoDirectory { path },
            _ => Self::Io { path, cause },
        }
    }

    pub(super) fn from_reading(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotADirectory => Self::NoDirectory { path: path.to_path_buf() },
            io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
                Self::NotReadable { path: path.to_path_buf(), cause: error.to_string() }
            }
            _ => Self::Io { path: path.to_path_buf(), cause: error.to_string() },
        }
    }

    pub(super) fn from_lock(error: LockError) -> Self {
        match error {
            LockError::Held { path, holder } => Self::Locked { path, holder },
            LockError::Io { path, source } => Self::from_io(path.parent().unwrap_or(&path), &source),
        }
    }

    /// Classifies an error of SQLite on `database`. Returns `None` if the error does not concern the file.
    ///
    /// SQLite's own codes do not always distinguish a full disk from a failing one (for example, if the `-shm` file
    /// cannot be created, the code is an I/O error in both cases), so the filesystem is examined.
    pub(super) fn from_sqlite(database: &Path, error: &rusqlite::Error) -> Option<Self> {
        let rusqlite::Error::SqliteFailure(failure, _) = error else {
            return None;
        };
        let path = database.parent().unwrap_or(database).to_path_buf();
        let cause = error.to_string();
        match failure.code {
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Some(Self::corrupt(database, cause)),
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                Some(Self::Locked { path: database.to_path_buf(), holder: StateLockHolder::default() })
            }
            ErrorCode::DiskFull => Some(Self::DiskFull { path }),
            ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::SystemIoFailure
            | ErrorCode::FileLockingProtocolFailed => Some(Self::of_filesystem(path, cause)),
            _ => None,
        }
    }

    pub(super) fn corrupt(database: &Path, cause: String) -> Self {
        Self::Corrupt { path: database.to_path_buf(), cause, quarantined: None, keep_list_lost: false }
    }

    /// Finds the reason why the filesystem at `path` refuses writes.
    fn of_filesystem(path: PathBuf, cause: String) -> Self {
        let Ok(facts) = rustix::fs::statvfs(&path) else {
            return Self::Io { path, cause };
        };
        if facts.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Self::ReadOnly { path };
        }
        let no_inodes = facts.f_files > 0 && facts.f_favail == 0;
        if no_inodes || facts.f_bavail.saturating_mul(facts.f_frsize) < FULL {
            return Self::DiskFull { path };
        }
        match attempt(&path) {
            // The file's own error is more specific than the successful probe.
            Ok(()) => Self::Io { path, cause },
            Err(error) => Self::from_io(&path, &error),
        }
    }
}

/// Checks whether `path` exists and is not a directory, or leads through a file. An unreadable path is neither.
pub(super) fn is_no_directory(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(facts) => !facts.is_dir(),
        Err(error) => error.kind() == io::ErrorKind::NotADirectory,
    }
}

/// Tries to write a file, as SQLite does: btrfs may have no space for a new file while `statvfs` still reports free
/// space.
fn attempt(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!("probe.{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = file.write_all(&[0x5a; 64 << 10]).and_then(|()| file.sync_all());
    std::fs::remove_file(&path)?;
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_are_classified() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = &file.path().join("var/lib/layersweep");
        for (errno, code) in [
            (Errno::NOSPC, "disk-full"),
            (Errno::DQUOT, "disk-full"),
            (Errno::ROFS, "read-only"),
            (Errno::ACCESS, "not-writable"),
            (Errno::IO, "io-error"),
            (Errno::NOTDIR, "no-directory"),
        ] {
            let degraded = Degraded::from_io(path, &errno.into());
            assert_eq!(degraded.code(), code);
            let line = degraded.to_string();
            assert!(line.contains("/var/lib/layersweep") && !line.contains('\n'), "{line}");
            assert!(!degraded.remedy().is_empty());
        }
    }

    #[test]
    fn sqlite_errors_are_classified() {
        let path = Path::new("/var/lib/layersweep/layersweep.db");
        use rusqlite::ffi::{SQLITE_BUSY, SQLITE_CONSTRAINT, SQLITE_CORRUPT, SQLITE_FULL, SQLITE_NOTADB};
        for (code, expected) in [
            (SQLITE_FULL, Some("disk-full")),
            (SQLITE_BUSY, Some("locked")),
            (SQLITE_CORRUPT, Some("corrupt")),
            (SQLITE_NOTADB, Some("corrupt")),
            (SQLITE_CONSTRAINT, None),
        ] {
            let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let degraded = Degraded::from_sqlite(path, &error);
            assert_eq!(degraded.as_ref().map(Degraded::code), expected, "{code}");
        }
        assert_eq!(Degraded::from_sqlite(path, &rusqlite::Error::QueryReturnedNoRows), None);
    }
}
