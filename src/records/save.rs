//! Saving at the first chance.

use rusqlite::Transaction;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::db::{Error, Records};
use super::health::Degraded;
use super::spool::{Note, Spool, Waiting};

/// What became of something that was to be saved.
#[derive(Debug)]
pub struct Saved<R> {
    /// What `apply` said of it.
    pub result: R,
    /// Whether it is in the database now. If not, it waits, unless a note says that it is lost.
    pub kept: bool,
    /// How many that waited were saved as well.
    pub caught_up: usize,
    /// Why it was not saved.
    pub degraded: Vec<Degraded>,
    /// What to warn of besides.
    pub notes: Vec<Note>,
}

/// Saves `new`, and before it all that waits in `spool`, in one transaction, each exactly
/// once whenever we are killed. Where that fails, `new` goes to the spool, and `records` to a
/// copy in memory to which all of them are applied: ages read from it then are what they
/// would be had it been saved.
///
/// `apply` may be called more than once for the same item, each time with what the call before
/// did rolled back.
///
/// # Errors
/// When `apply` refuses `new` itself, or a newer layersweep has taken over the database.
pub fn save<T, R>(
    records: &mut Records,
    spool: &Spool,
    new: &T,
    mut apply: impl FnMut(&Transaction<'_>, &T) -> rusqlite::Result<R>,
) -> Result<Saved<R>, Error>
where
    T: Serialize + DeserializeOwned,
{
    let mut degraded = Vec::new();
    let mut notes = Vec::new();
    // Once more where the database turns out to be damaged: then there is a new one.
    for attempt in 0..2 {
        if !records.is_kept() {
            break;
        }
        match save_all(records, spool, new, &mut apply, &mut notes) {
            Ok((result, caught_up)) => return Ok(Saved { result, kept: true, caught_up, degraded, notes }),
            Err(Error::Degraded(why)) => degraded.push(*why),
            Err(error) => return Err(error),
        }
        if attempt == 0
            && let Some(damage @ Degraded::Corrupt { .. }) = degraded.last().cloned()
        {
            degraded.pop();
            match records.renew(damage) {
                Ok(renewed) => {
                    degraded.push(renewed);
                    continue;
                }
                Err(Error::Degraded(why)) => degraded.push(*why),
                Err(error) => return Err(error),
            }
        }
        degraded.extend(records.fall_back()?);
    }
    let (waiting, found) = spool.take_all::<T>();
    notes.extend(found);
    let result = records.write(|transaction| {
        catch_up(transaction, &waiting, &mut apply, |_, _| ())?;
        apply(transaction, new)
    })?;
    let put = spool.put(new);
    for note in &put {
        // It is applied to this copy already.
        if let Note::Kept { path, .. } = note
            && let Some(name) = path.file_name().and_then(|name| name.to_str())
        {
            records.write(|transaction| note_caught_up(transaction, name))?;
        }
    }
    notes.extend(put);
    Ok(Saved { result, kept: false, caught_up: 0, degraded, notes })
}

/// Applies all that waits in `spool` to `records`, a copy in memory, and leaves it waiting: what
/// is read from the copy then is what the next run will have saved. Says what to warn of.
///
/// # Errors
/// What SQLite says about the copy.
pub fn foresee<T: DeserializeOwned, R>(
    records: &mut Records,
    spool: &Spool,
    mut apply: impl FnMut(&Transaction<'_>, &T) -> rusqlite::Result<R>,
) -> Result<Vec<Note>, Error> {
    let (waiting, notes) = spool.take_all::<T>();
    if !waiting.is_empty() && !records.is_kept() {
        records.write(|transaction| catch_up(transaction, &waiting, &mut apply, |_, _| ()))?;
    }
    Ok(notes)
}

/// Saves all that waits and `new` after it.
fn save_all<T, R>(
    records: &mut Records,
    spool: &Spool,
    new: &T,
    apply: &mut impl FnMut(&Transaction<'_>, &T) -> rusqlite::Result<R>,
    notes: &mut Vec<Note>,
) -> Result<(R, usize), Error>
where
    T: DeserializeOwned,
{
    let (waiting, found) = spool.take_all::<T>();
    notes.extend(found);
    let mut refused = Vec::new();
    let done = records.write(|transaction| {
        let caught_up = catch_up(transaction, &waiting, apply, |at, cause| refused.push((at, cause)))?;
        Ok((apply(transaction, new)?, caught_up))
    })?;
    notes.extend(refused.iter().map(|(at, cause)| spool.refuse(&waiting[*at], cause)));
    // Nobody else has saved the same meanwhile: the database is ours alone.
    let paths: Vec<_> = waiting.into_iter().map(|item| item.path).collect();
    notes.extend(spool.done(&paths));
    Ok(done)
}

/// Applies what waits, but for what was saved before; tells `refuse` which cannot be applied.
pub(super) fn catch_up<T, R>(
    transaction: &Transaction<'_>,
    waiting: &[Waiting<T>],
    apply: &mut impl FnMut(&Transaction<'_>, &T) -> rusqlite::Result<R>,
    mut refuse: impl FnMut(usize, String),
) -> rusqlite::Result<usize> {
    let mut done = 0;
    for (at, item) in waiting.iter().enumerate() {
        // Killed between the commit and the removal of the file, we meet it once more.
        if note_caught_up(transaction, &item.name)? == 0 {
            continue;
        }
        transaction.execute_batch("SAVEPOINT item")?;
        match apply(transaction, &item.item) {
            Ok(_) => done += 1,
            // It would stand in the way of all that comes after it.
            Err(error) if is_refusal(&error) => {
                transaction.execute_batch("ROLLBACK TO item")?;
                refuse(at, error.to_string());
            }
            Err(error) => return Err(error),
        }
        transaction.execute_batch("RELEASE item")?;
    }
    // Names hold the time, so the last ones are the newest. A file that could not be removed
    // is met again within as many.
    transaction.execute(
        "DELETE FROM caught_up WHERE name NOT IN (SELECT name FROM caught_up ORDER BY name DESC LIMIT 2000)",
        [],
    )?;
    Ok(done)
}

/// Notes that the file `name` is saved; 0 if it was before.
fn note_caught_up(transaction: &Transaction<'_>, name: &str) -> rusqlite::Result<usize> {
    transaction.execute("INSERT OR IGNORE INTO caught_up (name) VALUES (?1)", [name])
}

/// Whether the item is at fault, and not the file.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    Degraded::from_sqlite(std::path::Path::new("/"), error).is_none()
}
