//! Saves records, or queues them if the database cannot be written.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::Transaction;

use super::db::Records;
use super::error::Error;
use super::health::Degraded;
use super::pending::{Note, Pending, Queue, Waiting};
use super::scans::Recorded;

/// The result of saving.
#[derive(Debug)]
pub struct Saved {
    /// What a scan changed; `None`: it was there already, or is no scan.
    pub recorded: Option<Recorded>,
    /// Whether it is in the database now. If not, it waits, unless a note says that it is lost.
    pub kept: bool,
    /// How many that waited were saved as well.
    pub caught_up: usize,
    /// Why it was not saved.
    pub degraded: Vec<Degraded>,
    /// What to warn of besides.
    pub notes: Vec<Note>,
}

/// Saves `new`, and before it all that waits, in one transaction. Where that fails, `new` waits too,
/// and `records` becomes a copy in memory to which all of them are applied: ages read from it are
/// what they would be had it been saved.
///
/// # Errors
/// When `new` itself is refused, or a newer layersweep has taken over the database.
pub fn save(records: &mut Records, queue: &Queue, new: &Pending) -> Result<Saved, Error> {
    let mut degraded = Vec::new();
    let mut notes = Vec::new();
    // Once more where the database turns out to be damaged: then there is a new one.
    for attempt in 0..2 {
        if !records.is_kept() {
            break;
        }
        match save_with_waiting(records, queue, &mut notes, |tx| new.apply(tx)) {
            Ok((recorded, caught_up)) => {
                return Ok(Saved { recorded, kept: true, caught_up, degraded, notes });
            }
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
    let (_, found) = apply_waiting(records, queue)?;
    notes.extend(found);
    let recorded = records.write(|tx| new.apply(tx))?;
    notes.extend(queue.put(new));
    Ok(Saved { recorded, kept: false, caught_up: 0, degraded, notes })
}

/// Applies all that waits to `records`, a copy in memory, and leaves it waiting: what is read from the
/// copy then is what the next run will have saved. The ids of the runs, and what to warn of.
pub fn apply_waiting(records: &mut Records, queue: &Queue) -> Result<(HashSet<String>, Vec<Note>), Error> {
    let (waiting, notes) = queue.all();
    if !waiting.is_empty() && !records.is_kept() {
        records.write(|tx| apply_all(tx, &waiting))?;
    }
    Ok((waiting.iter().map(|one| one.item.run_id().to_owned()).collect(), notes))
}

/// Saves all that waits, and then what `apply` writes, in one transaction; how many waited.
pub(super) fn save_with_waiting<R>(
    records: &mut Records,
    queue: &Queue,
    notes: &mut Vec<Note>,
    apply: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<R>,
) -> Result<(R, usize), Error> {
    let (waiting, found) = queue.all();
    notes.extend(found);
    let (result, refused) = records.write(|tx| {
        let refused = apply_all(tx, &waiting)?;
        Ok((apply(tx)?, refused))
    })?;
    notes.extend(refused.iter().map(|(at, cause)| queue.refuse(&waiting[*at], cause)));
    // No other process can have saved the same: we hold the lock.
    let done: Vec<_> = waiting.iter().map(|one| one.path.clone()).collect();
    notes.extend(queue.done(&done));
    Ok((result, waiting.len() - refused.len()))
}

/// Applies each; which could not be, and why.
fn apply_all(tx: &Transaction<'_>, waiting: &[Waiting]) -> rusqlite::Result<Vec<(usize, String)>> {
    let mut refused = Vec::new();
    for (at, one) in waiting.iter().enumerate() {
        tx.execute_batch("SAVEPOINT item")?;
        match one.item.apply(tx) {
            Ok(_) => {}
            // It would stand in the way of all that comes after it.
            Err(error) if is_refusal(&error) => {
                tx.execute_batch("ROLLBACK TO item")?;
                refused.push((at, error.to_string()));
            }
            Err(error) => return Err(error),
        }
        tx.execute_batch("RELEASE item")?;
    }
    Ok(refused)
}

/// Whether the item is at fault, and not the file.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    Degraded::from_sqlite(Path::new("/"), error).is_none()
}
