//! Creates the database and quarantines a damaged one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::Connection;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::files::{self, DATABASE, SIDECARS, beside};
use super::health::{Degraded, Error};
use super::pins::{self, Pin};
use super::{checkup, open, schema};

/// Quarantines the damaged database and creates a new one with its keep-list. The caller holds the lock.
pub(super) fn renew(dir: &Path, damage: Degraded) -> Result<Degraded, Error> {
    let Degraded::Corrupt { path, cause, .. } = damage else {
        return Err(damage.into());
    };
    let Ok(Some(quarantined)) = quarantine(dir) else {
        return Err(Degraded::corrupt(&path, cause).into());
    };
    let keep_list_lost = create(dir)?;
    Ok(Degraded::Corrupt { path, cause, quarantined: Some(quarantined), keep_list_lost })
}

/// Creates the database in `dir`, which must not contain one. The caller holds the lock. The database appears complete
/// or not at all, because a partial one would look damaged.
///
/// If there are quarantined databases, the keep-list is copied from the latest. First detection and last use can be
/// read from the disk again, but pins cannot: if the list cannot be read, everything is pinned and `true` is returned.
pub(super) fn create(dir: &Path) -> Result<bool, Degraded> {
    let path = dir.join(DATABASE);
    let unfinished = dir.join("layersweep.db.new");
    // SQLite would read a log without a database into the new one, so it is quarantined first.
    quarantine(dir).map_err(|error| Degraded::from_io(dir, &error))?;
    discard(&unfinished);
    let last = last(dir).map_err(|error| Degraded::from_io(dir, &error))?;
    let pins = last.as_deref().map_or(Ok(Vec::new()), pins_of);
    let is_lost = pins.is_err();
    let pins = pins.unwrap_or_else(|why| vec![everything(last.as_deref().unwrap_or(dir), &why)]);
    let created = make(&unfinished, &pins).and_then(|()| {
        rename(&unfinished, &path).and_then(|()| sync(dir)).map_err(|error| Degraded::from_io(dir, &error))
    });
    if created.is_err() {
        discard(&unfinished);
    }
    created.map(|()| is_lost)
}

/// Reads the keep-list of a damaged database. The error is the reason why not all of it can be read.
fn pins_of(path: &Path) -> Result<Vec<Pin>, String> {
    let content = files::copy(path).map_err(|error| error.to_string())?.unwrap_or_default();
    match checked_pins(&content) {
        Ok((check, pins)) if check == "ok" => Ok(pins),
        Ok((damage, _)) => Err(damage),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the result of SQLite's integrity check of the keep-list, and the list.
fn checked_pins(content: &[u8]) -> rusqlite::Result<(String, Vec<Pin>)> {
    let mut damaged = Connection::open_in_memory()?;
    damaged.deserialize_read_exact("main", content, content.len(), true)?;
    open::configure(&damaged)?;
    // Without the check, a zeroed page would read as an empty list.
    let check: String = damaged.query_row("PRAGMA integrity_check(pins)", [], |row| row.get(0))?;
    Ok((check, pins::list(&damaged)?))
}

/// Returns a pin that keeps every image until the operator has restored the lost keep-list.
fn everything(quarantined: &Path, why: &str) -> Pin {
    let note = format!(
        "the keep-list was lost with {} ({why}); pin again what it kept, then remove this pin",
        quarantined.display()
    );
    Pin { pattern: "*".into(), note, added_at: Timestamp::now() }
}

fn last(dir: &Path) -> io::Result<Option<PathBuf>> {
    Ok(checkup::quarantined(dir)?.pop())
}

fn make(path: &Path, pins: &[Pin]) -> Result<(), Degraded> {
    let dir = path.parent().unwrap_or(path);
    // Created here, because SQLite would make it readable for all users.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Degraded::from_io(dir, &error))?;
    let filled = Connection::open(path).and_then(|mut connection| {
        open::configure(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        schema::fill(&mut connection)?;
        let transaction = connection.transaction()?;
        pins.iter().try_for_each(|pin| pins::put(&transaction, pin))?;
        transaction.commit()?;
        connection.close().map_err(|(_, error)| error)
    });
    filled.map_err(|error| {
        let cause = error.to_string();
        Degraded::from_sqlite(path, &error).unwrap_or(Degraded::Io { path: dir.to_path_buf(), cause })
    })?;
    if beside(path, "-wal").exists() {
        // Closing succeeds even if SQLite could not move the log into the file.
        return Err(Degraded::Io {
            path: dir.to_path_buf(),
            cause: "the new database is not complete".into(),
        });
    }
    file.sync_all().map_err(|error| Degraded::from_io(dir, &error))
}

fn discard(unfinished: &Path) {
    for path in ALL.map(|suffix| beside(unfinished, suffix)) {
        if let Err(error) = std::fs::remove_file(&path)
            && !is_absent(&error)
        {
            tracing::warn!("removing {}: {error}", path.display());
        }
    }
}

/// Renames the database in `dir`, if there is one, and its sidecar files, in such a way that SQLite can still open
/// them. Returns the new name of the database. The caller holds the lock.
pub(super) fn quarantine(dir: &Path) -> io::Result<Option<PathBuf>> {
    let path = dir.join(DATABASE);
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut names = (0..10_000).map(|number| match number {
        0 => beside(&path, &format!(".corrupt-{stamp}")),
        number => beside(&path, &format!(".corrupt-{stamp}.{number}")),
    });
    // The names of the sidecar files must be free too: SQLite would read a log of the same name with the database.
    let to = names
        .find(|to| {
            ALL.iter()
                .all(|suffix| beside(to, suffix).symlink_metadata().is_err_and(|error| is_absent(&error)))
        })
        .ok_or(io::ErrorKind::AlreadyExists)?;
    let mut quarantined = None;
    for suffix in ALL {
        match rename(&beside(&path, suffix), &beside(&to, suffix)) {
            Ok(()) if suffix.is_empty() => quarantined = Some(to.clone()),
            Err(error) if !is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    sync(dir)?;
    Ok(quarantined)
}

/// Suffixes of the database and its sidecar files, in the order of renaming. The database is first: without its log it
/// could look like an intact database of an earlier time. If the process is killed after the first, the log that is
/// left is quarantined when the new database is created.
const ALL: [&str; 4] = ["", SIDECARS[0], SIDECARS[1], SIDECARS[2]];

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Renames a file, but never replaces one.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The filesystem does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        other => other.map_err(io::Error::from),
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
