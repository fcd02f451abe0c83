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

/// Quarantines the damaged database and starts a new one with its keep-list; the caller holds the lock.
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

/// Creates the database in `dir`, which has none; the caller holds the lock. It appears complete or not
/// at all: a partial one would look damaged.
///
/// If there are quarantined databases, the keep-list is taken from the latest. First detection and last
/// use can be read from the disk again, pins cannot: if the list cannot be read, everything is pinned
/// and `true` is returned.
pub(super) fn create(dir: &Path) -> Result<bool, Degraded> {
    let path = dir.join(DATABASE);
    let unfinished = dir.join("layersweep.db.new");
    let failed = |error: io::Error| Degraded::from_io(dir, &error);
    // A log that lost its database would be read into the new one.
    quarantine(dir).map_err(failed)?;
    discard(&unfinished);
    let last = last(dir).map_err(failed)?;
    let pins = last.as_deref().map_or(Ok(Vec::new()), pins_of);
    let lost = pins.is_err();
    let pins = pins.unwrap_or_else(|why| vec![everything(last.as_deref().unwrap_or(dir), &why)]);
    let made = make(&unfinished, &pins)
        .and_then(|()| rename(&unfinished, &path).map_err(failed))
        .and_then(|()| sync(dir).map_err(failed));
    if made.is_err() {
        discard(&unfinished);
    }
    made.map(|()| lost)
}

/// The keep-list of a damaged database; or why not all of it can be read.
fn pins_of(path: &Path) -> Result<Vec<Pin>, String> {
    let content = files::copy(path).map_err(|error| error.to_string())?.unwrap_or_default();
    let read = || {
        let mut damaged = Connection::open_in_memory()?;
        damaged.deserialize_read_exact("main", content.as_slice(), content.len(), true)?;
        open::configure(&damaged)?;
        // A page that went to zero reads as an empty list.
        let sound: String = damaged.query_row("PRAGMA integrity_check(pins)", [], |row| row.get(0))?;
        Ok::<_, rusqlite::Error>((sound, pins::list(&damaged)?))
    };
    match read() {
        Ok((sound, pins)) if sound == "ok" => Ok(pins),
        Ok((damage, _)) => Err(damage),
        Err(error) => Err(error.to_string()),
    }
}

/// Keeps every image until an operator has restored the lost keep-list.
fn everything(quarantined: &Path, why: &str) -> Pin {
    let note = format!(
        "the keep-list was lost with {} ({why}); pin again what it kept, then remove this pin",
        quarantined.display()
    );
    Pin { pattern: "*".into(), note, added_at: Timestamp::now() }
}

/// The latest quarantined database.
fn last(dir: &Path) -> io::Result<Option<PathBuf>> {
    Ok(checkup::quarantined(dir)?.pop())
}

fn make(path: &Path, pins: &[Pin]) -> Result<(), Degraded> {
    let dir = path.parent().unwrap_or(path);
    let failed = |error: io::Error| Degraded::from_io(dir, &error);
    // SQLite would make it readable for all.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let refused = |error: rusqlite::Error| {
        let cause = error.to_string();
        Degraded::from_sqlite(path, &error).unwrap_or(Degraded::Io { path: dir.to_path_buf(), cause })
    };
    let filled = Connection::open(path).and_then(|mut connection| {
        open::configure(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        schema::fill(&mut connection)?;
        let transaction = connection.transaction()?;
        pins.iter().try_for_each(|pin| pins::put(&transaction, pin))?;
        transaction.commit()?;
        connection.close().map_err(|(_, error)| error)
    });
    filled.map_err(refused)?;
    if beside(path, "-wal").exists() {
        // Closing does not say when it could not move the log into the file.
        return Err(Degraded::Io {
            path: dir.to_path_buf(),
            cause: "the new database is not complete".into(),
        });
    }
    file.sync_all().map_err(failed)
}

/// Removes what was never a database.
fn discard(unfinished: &Path) {
    for path in ALL.map(|suffix| beside(unfinished, suffix)) {
        if let Err(error) = std::fs::remove_file(&path)
            && !is_absent(&error)
        {
            tracing::warn!("removing {}: {error}", path.display());
        }
    }
}

/// Renames the database in `dir`, if there is one, and its sidecar files so that SQLite can still open them, and
/// returns the new name of the database; the caller holds the lock.
pub(super) fn quarantine(dir: &Path) -> io::Result<Option<PathBuf>> {
    let path = dir.join(DATABASE);
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    // A log of the same name would be read together with it.
    let is_free = |to: &PathBuf| {
        ALL.iter().all(|suffix| beside(to, suffix).symlink_metadata().is_err_and(|error| is_absent(&error)))
    };
    let to = (0..10_000)
        .map(|number| if number == 0 { String::new() } else { format!(".{number}") })
        .map(|number| beside(&path, &format!(".corrupt-{stamp}{number}")))
        .find(is_free)
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

/// The database first: without its log it could pass for a sound one of an earlier time. A log that stays
/// behind when we are killed is moved when the new one is made.
const ALL: [&str; 4] = ["", SIDECARS[0], SIDECARS[1], SIDECARS[2]];

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Renames and never replaces.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A filesystem that does not know the flag.
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
