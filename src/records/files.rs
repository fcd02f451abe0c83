//! The database's files, read without a trace: before SQLite may open them, and where it cannot.
//!
//! No file may be read here while this process has it open through SQLite: POSIX takes away all of a
//! process's record locks on a file when *any* descriptor of it is closed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::header::{HEADER, Header};
use crate::sys::{quiet, sqlite};

/// Name of the database in the state directory.
pub const DATABASE: &str = "layersweep.db";

/// A longer database, or a longer log, is not copied. Retention keeps it under 50 MiB.
const LONGEST_COPY: u64 = 512 << 20;

/// Length of the header of a log.
const WAL_HEADER: usize = 32;

/// The files that SQLite keeps beside a database.
pub(super) const SIDECARS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// `path` with `suffix` behind its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// What lies in the place of the database.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing.
    Missing,
    /// A file that is no database of ours.
    Damaged(String),
    /// A database; whether it is sound remains to be seen.
    Database {
        header: Header,
        /// There is something in the log: it is open now, or was not closed.
        unclosed: bool,
    },
}

/// Looks at what lies in `dir`; changes nothing.
///
/// # Errors
/// When it cannot be read.
pub(super) fn look(dir: &Path) -> io::Result<Found> {
    let path = dir.join(DATABASE);
    let Some(file) = open(&path)? else {
        return Ok(Found::Missing);
    };
    let unclosed = wal_start(&path)?.len() == WAL_HEADER;
    // The log may carry a newer first page than the file, and a sound one where a power cut tore that
    // of the file. What SQLite does not read it will say of the file itself.
    let first = match unclosed.then(|| copy(&path)) {
        Some(Ok(Some(merged))) => merged,
        _ => read(&file, HEADER as u64)?,
    };
    Ok(match Header::parse(&first) {
        Ok(header) => Found::Database { header, unclosed },
        Err(why) => Found::Damaged(why.to_owned()),
    })
}

/// The content of the database at `path` with its log, as one file without a log;
/// `None` where there is none. Never waits for a writer and is not disturbed by one.
///
/// # Errors
/// When it cannot be read, is too long, or was changed all the time.
pub(super) fn copy(path: &Path) -> io::Result<Option<Vec<u8>>> {
    for attempt in 0..40u64 {
        std::thread::sleep(Duration::from_millis(attempt));
        let before = wal_start(path)?;
        let Some(file) = open(path)? else {
            return Ok(None);
        };
        let moment = moment(&file)?;
        if moment.length > LONGEST_COPY {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long to be copied"));
        }
        let database = read(&file, LONGEST_COPY)?;
        // Read after the database: pages that a checkpoint moved there meanwhile are in the
        // log, and put over it once more, unless the log was begun anew.
        let wal = read_wal(path)?;
        let same_log =
            before == wal.get(..before.len()).unwrap_or_default() && (before.is_empty() == wal.is_empty());
        let is_there = quiet::facts(path)
            .is_ok_and(|facts| (facts.device, facts.inode) == (moment.device, moment.inode));
        if !same_log || (wal.is_empty() && (self::moment(&file)? != moment || !is_there)) {
            continue;
        }
        if quiet::facts(&beside(path, "-journal")).is_ok_and(|journal| journal.length > 0) {
            return Err(io::Error::other("it has a rollback journal, which only SQLite can apply"));
        }
        let mut content = match (wal.len() > WAL_HEADER).then(|| sqlite::merged(&database, &wal)) {
            Some(Ok(merged)) => merged,
            // Damaged: what is wrong shows where it is opened.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => database,
            Some(Err(error)) => return Err(error),
            None => database,
        };
        if let Some(versions @ [2, 2]) = content.get_mut(18..20) {
            versions.fill(1); // a database in memory has no log
        }
        return Ok(Some(content));
    }
    Err(io::Error::other("it was changed again and again while it was read"))
}

fn read_wal(path: &Path) -> io::Result<Vec<u8>> {
    match quiet::read(&beside(path, "-wal"), LONGEST_COPY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// The log's header, which is another one each time the log is begun anew.
fn wal_start(path: &Path) -> io::Result<Vec<u8>> {
    let file = match quiet::open_file(&beside(path, "-wal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut start = vec![0; WAL_HEADER];
    let length = file.read_at(&mut start, 0)?;
    start.truncate(length);
    Ok(start)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match quiet::open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// What tells one state of a file from another.
#[derive(PartialEq, Eq)]
struct Moment {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

fn moment(file: &File) -> io::Result<Moment> {
    let facts = file.metadata()?;
    Ok(Moment {
        device: facts.dev(),
        inode: facts.ino(),
        length: facts.len(),
        modified: (facts.mtime(), facts.mtime_nsec()),
    })
}

/// At most so many bytes from the start.
fn read(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
