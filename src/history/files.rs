//! The database's files, read without a trace ([`sqlite::copy`]): before SQLite may open them, and
//! where it cannot.

use std::io;
use std::path::Path;

use super::schema::APPLICATION_ID;
use crate::sys::quiet::{self, Within};
use crate::sys::sqlite;
pub(super) use crate::sys::sqlite::beside;
use crate::sys::sqlite::{HEADER, LOG_HEADER};

/// Name of the database in the state directory.
pub const DATABASE: &str = "layersweep.db";

/// A longer database, or a longer log, is not copied. Retention keeps it under 50 MiB.
const LONGEST_COPY: u64 = 512 << 20;

/// The files that SQLite keeps beside a database.
pub(super) const SIDECARS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What lies in the place of the database.
#[derive(Debug)]
pub(super) enum DatabaseFile {
    Missing,
    /// A file that is no database of ours.
    Damaged(String),
    /// A database; whether it is sound remains to be seen.
    Database {
        /// `PRAGMA user_version`: how many migrations were applied.
        version: u32,
        /// There is something in the log: it is open now, or was not closed.
        unclosed: bool,
    },
}

/// Looks at what lies in `dir`; changes nothing.
pub(super) fn look(dir: &Path) -> io::Result<DatabaseFile> {
    let path = dir.join(DATABASE);
    let within = match within(&path) {
        Ok(within) => within,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DatabaseFile::Missing),
        Err(error) => return Err(error),
    };
    let unclosed = sqlite::start(&within, &beside(&path, "-wal"), LOG_HEADER)?.len() == LOG_HEADER;
    // The log may carry a newer first page than the file, and a sound one where a power cut tore that
    // of the file. What SQLite does not read it will say of the file itself.
    let first = match unclosed.then(|| copy(&path)) {
        Some(Ok(Some(merged))) => merged,
        _ => sqlite::start(&within, &path, HEADER)?,
    };
    Ok(match schema_version(&first) {
        Ok(version) => DatabaseFile::Database { version, unclosed },
        Err(why) => DatabaseFile::Damaged(why.to_owned()),
    })
}

/// What the first bytes of a database file say of its schema, before SQLite may open it
/// (<https://www.sqlite.org/fileformat2.html>).
pub(super) fn schema_version(bytes: &[u8]) -> Result<u32, &'static str> {
    if bytes.is_empty() {
        return Err("it is empty");
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err("it is shorter than a header");
    };
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if !header.starts_with(b"SQLite format 3\0") {
        return Err("it is not an SQLite database");
    }
    if !matches!((header[18], header[19]), (1, 1) | (2, 2)) {
        return Err("its format version is unknown");
    }
    if number(68) != APPLICATION_ID {
        return Err("it is not a database of layersweep");
    }
    match number(60) {
        0 => Err("its schema has no version"),
        version => Ok(version),
    }
}

/// The content of the database at `path` with its log, as one file without a log; `None` where there
/// is none.
pub(super) fn copy(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match within(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        within => sqlite::copy(&within?, path, LONGEST_COPY),
    }
}

/// What shows that others have written to the database: its file and its log, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    database: quiet::InodeFacts,
    log: Option<quiet::InodeFacts>,
}

impl Stamp {
    /// `None` where that cannot be told.
    pub(super) fn of(dir: &Path) -> Option<Self> {
        let path = dir.join(DATABASE);
        let log = match quiet::facts(&beside(&path, "-wal")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return None,
            log => log.ok(),
        };
        quiet::facts(&path).ok().map(|database| Self { database, log })
    }

    /// Length of the log.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.length)
    }
}

/// The directory of the file at `path`, opened once; fails where there is no such file.
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
    fn headers() {
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
