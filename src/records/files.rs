//! The database's files, read without SQLite and without a trace: before SQLite may open
//! them, and where it cannot.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::format::{HEADER, Header};
use crate::sys::{quiet, wal as log};

/// Name of the database in the state directory.
pub const DATABASE: &str = "layersweep.db";

/// A longer database, or a longer log, is not copied. Retention keeps it under 50 MiB.
const LONGEST_COPY: u64 = 512 << 20;

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
    let first = file.read(0, HEADER as u64)?;
    let wal = read_wal(&path)?;
    // The log may carry a newer first page than the file, and a sound one where a power cut
    // tore that of the file.
    let header = match log::first_page(&wal) {
        // SQLite throws the log of an empty file away.
        Some(page) if first.len() == HEADER => Header::parse(page),
        _ => Header::parse(&first),
    };
    Ok(match header {
        Ok(header) => Found::Database { header, unclosed: !wal.is_empty() },
        Err(why) => Found::Damaged(why.to_owned()),
    })
}

/// The content of the database in `dir` with its log, as one file without a log;
/// `None` where there is none. Never waits for a writer and is not disturbed by one.
///
/// # Errors
/// When it cannot be read, is too long, or was changed all the time.
pub(super) fn copy(dir: &Path) -> io::Result<Option<Vec<u8>>> {
    let path = dir.join(DATABASE);
    for attempt in 0..40u64 {
        std::thread::sleep(Duration::from_millis(attempt));
        let before = wal_start(&path)?;
        let Some(file) = open(&path)? else {
            return Ok(None);
        };
        let moment = file.moment()?;
        let database = file.read(0, LONGEST_COPY)?;
        // Read after the database: pages that a checkpoint moved there meanwhile are in the
        // log, and put over it once more, unless the log was begun anew.
        let wal = read_wal(&path)?;
        let same_log =
            before == wal.get(..before.len()).unwrap_or_default() && (before.is_empty() == wal.is_empty());
        if !same_log || (wal.is_empty() && (file.moment()? != moment || !file.is_at(&path))) {
            continue;
        }
        if quiet::facts(&beside(&path, "-journal")).is_ok_and(|journal| journal.length > 0) {
            return Err(io::Error::other("it has a rollback journal, which only SQLite can apply"));
        }
        let mut content = log::with_wal(database, &wal);
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
    let mut start = vec![0; 32];
    let length = file.read_at(&mut start, 0)?;
    start.truncate(length);
    Ok(start)
}

fn open(path: &Path) -> io::Result<Option<Handle>> {
    match quiet::open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(file) => {
            let metadata = file.metadata()?;
            Ok(Some(Handle { inode: (metadata.dev(), metadata.ino()), file: Some(file) }))
        }
    }
}

/// Which databases this process has open through SQLite, and files that may not be closed
/// as long as it has: POSIX takes away all of a process's record locks on a file when *any*
/// descriptor of it is closed, and another process could then remove the log under us.
static LIVE: Mutex<BTreeMap<(u64, u64), Connected>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Connected {
    connections: usize,
    waiting: Vec<File>,
}

fn live() -> MutexGuard<'static, BTreeMap<(u64, u64), Connected>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The database file opened by ourselves.
struct Handle {
    inode: (u64, u64),
    file: Option<File>,
}

impl Handle {
    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("closed"))
    }

    /// What tells one state of the file from another.
    fn moment(&self) -> io::Result<(u64, i64, i64)> {
        let metadata = self.file()?.metadata()?;
        Ok((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    }

    fn is_at(&self, path: &Path) -> bool {
        quiet::facts(path).is_ok_and(|facts| (facts.device, facts.inode) == self.inode)
    }

    fn read(&self, from: u64, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.file()?;
        let length = file.metadata()?.len();
        if from == 0 && limit == LONGEST_COPY && length > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too long to be copied"));
        }
        let length = length.saturating_sub(from).min(limit);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], from + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut live = live();
        let file = self.file.take();
        match live.get_mut(&self.inode) {
            Some(connected) => connected.waiting.extend(file),
            None => drop(file), // before anybody can connect
        }
    }
}

/// Says that SQLite has the database open; drop it after the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Live {
    inode: (u64, u64),
}

impl Live {
    /// For the file at `path`, before SQLite opens it.
    ///
    /// # Errors
    /// When it cannot be examined.
    pub(super) fn enter(path: &Path) -> io::Result<Self> {
        let facts = quiet::facts(path)?;
        let inode = (facts.device, facts.inode);
        live().entry(inode).or_default().connections += 1;
        Ok(Self { inode })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut live = live();
        if let Some(connected) = live.get_mut(&self.inode) {
            connected.connections -= 1;
            if connected.connections == 0 {
                live.remove(&self.inode);
            }
        }
    }
}
