//! The database's files, read as bytes and without a trace ([`sqlite::copy`]): before SQLite may open them, and where
//! SQLite cannot open them.

use std::io;
use std::path::Path;

use super::schema::APPLICATION_ID;
use crate::sys::quiet::{self, Within};
use crate::sys::sqlite;
pub(super) use crate::sys::sqlite::beside;
use crate::sys::sqlite::{HEADER, LOG_HEADER};

pub const DATABASE: &str = "layersweep.db";

/// Maximum length of a database, and of a log, that is copied. Retention keeps the database under 50 MiB.
const MAX_COPY: u64 = 512 << 20;

/// Suffixes of the files that SQLite keeps beside a database.
pub(super) const SIDECARS: [&str; 3] = ["-wal", "-shm", "-journal"];

#[derive(Debug)]
pub(super) enum DatabaseFile {
    Missing,
    /// A file that is not a database of layersweep.
    Damaged(String),
    Database {
        /// `PRAGMA user_version`: number of migrations that were applied.
        version: u32,
        /// The log is not empty: the database is open now, or was not closed.
        unclosed: bool,
    },
}

/// Examines the database file in `dir` without changing anything.
pub(super) fn look(dir: &Path) -> io::Result<DatabaseFile> {
    let path = dir.join(DATABASE);
    let within = match within(&path) {
        Ok(within) => within,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DatabaseFile::Missing),
        Err(error) => return Err(error),
    };
    let unclosed = sqlite::start(&within, &beside(&path, "-wal"), LOG_HEADER)?.len() == LOG_HEADER;
    // The log may contain a newer first page than the file, or an intact one if a power cut damaged that of the file.
    // If the log cannot be merged, the file's own first page decides.
    let first = match unclosed.then(|| copy(&path)) {
        Some(Ok(Some(merged))) => merged,
        _ => sqlite::start(&within, &path, HEADER)?,
    };
    Ok(match schema_version(&first) {
        Ok(version) => DatabaseFile::Database { version, unclosed },
        Err(why) => DatabaseFile::Damaged(why.to_owned()),
    })
}

/// Reads the schema version from the first bytes of a database file, before SQLite may open it
/// (<https://www.sqlite.org/fileformat2.html>).
pub(super) fn schema_version(bytes: &[u8]) -> Result<u32, &'static str> {
    if bytes.is_empty() {
        return Err("it is empty");
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err("it is shorter than a header");
    };
    if !header.starts_with(b"SQLite format 3\0") {
        return Err("it is not an SQLite database");
    }
    if !matches!((header[18], header[19]), (1, 1) | (2, 2)) {
        return Err("its format version is unknown");
    }
    if be_u32(header, 68) != APPLICATION_ID {
        return Err("it is not a database of layersweep");
    }
    match be_u32(header, 60) {
        0 => Err("its schema has no version"),
        version => Ok(version),
    }
}

/// Reads the big-endian number at `offset`.
fn be_u32(header: &[u8; HEADER], offset: usize) -> u32 {
    u32::from_be_bytes([header[offset], header[offset + 1], header[offset + 2], header[offset + 3]])
}

/// Returns the content of the database at `path`, with its log merged into it, or `None` if there is no database.
pub(super) fn copy(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match within(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        within => sqlite::copy(&within?, path, MAX_COPY),
    }
}

/// Facts about the database file and its log that change when another process writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    database: quiet::InodeFacts,
    log: Option<quiet::InodeFacts>,
}

impl Stamp {
    /// Returns `None` if the facts cannot be read.
    pub(super) fn of(dir: &Path) -> Option<Self> {
        let path = dir.join(DATABASE);
        let log = match quiet::facts(&beside(&path, "-wal")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return None,
            log => log.ok(),
        };
        quiet::facts(&path).ok().map(|database| Self { database, log })
    }

    pub(super) fn log_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.length)
    }
}

/// Opens the directory of the file at `path`, once; fails if the file does not exist.
fn within(path: &Path) -> io::Result<Within> {
    quiet::facts(path)?;
    Ok(Within::at(path.parent()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(edit: impl FnOnce(&mut [u8])) -> Result<u32, &'static str> {
        let mut bytes = vec![0; HEADER];
        bytes[..16].copy_from_slice(b"SQLite format 3\0");
        bytes[18..20].copy_from_slice(&[2, 2]);
        bytes[60..64].copy_from_slice(&7u32.to_be_bytes());
        bytes[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        edit(&mut bytes);
        schema_version(&bytes)
    }

    #[test]
    fn header_is_checked() {
        assert_eq!(header(|_| ()), Ok(7));
        assert_eq!(header(|b| b[18..20].fill(1)), Ok(7));
        assert_eq!(header(|b| b[60..64].fill(0xff)), Ok(u32::MAX));
        for (edit, why) in [
            ((|b| b.fill(0)) as fn(&mut [u8]), "not an SQLite database"),
            (|b| b[18] = 3, "format version"),
            (|b| b[68] = 0, "not a database of layersweep"),
            (|b| b[60..64].fill(0), "no version"),
        ] {
            assert!(header(edit).unwrap_err().contains(why), "{why}");
        }
        assert!(schema_version(b"").unwrap_err().contains("empty"));
        assert!(schema_version(b"SQLite format 3\0").unwrap_err().contains("shorter"));
    }
}
