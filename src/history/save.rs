//! Saves records, or queues them if the database cannot be written.

use std::collections::HashSet;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::Transaction;

use super::db::Records;
use super::health::{Degraded, Error};
use super::pending::{Pending, Queue, SaveWarning, Waiting};

/// The result of saving.
#[derive(Debug)]
pub struct Saved {
    /// The record time of a scan; `None`: it was there already, or is no scan.
    pub recorded: Option<Timestamp>,
    /// Whether it is in the database now. If not, it waits, unless a warning says that it is lost.
    pub kept: bool,
    /// How many that waited were saved as well.
    pub caught_up: usize,
    /// Why it was not saved.
    pub degraded: Vec<Degraded>,
    /// What to warn of besides.
    pub warnings: Vec<SaveWarning>,
}

/// Saves `new`, and before it all that waits, in one transaction. Where that fails, `new` waits too,
/// and `records` becomes a copy in memory to which all of them are applied: ages read from it are
/// what they would be had it been saved.
///
/// # Errors
/// When `new` itself is refused, or a newer layersweep has taken over the database.
pub fn save(records: &mut Records, queue: &Queue, new: &Pending) -> Result<Saved, Error> {
    let mut degraded = Vec::new();
    let mut warnings = Vec::new();
    if records.is_kept() {
        match save_with_waiting(records, queue, (&mut degraded, &mut warnings), |tx| new.apply(tx)) {
            Ok((recorded, caught_up)) => {
                return Ok(Saved { recorded, kept: true, caught_up, degraded, warnings });
            }
            Err(Error::Degraded(why)) => degraded.push(*why),
            Err(error) => return Err(error),
        }
        degraded.extend(records.fall_back()?);
    }
    let (_, found) = apply_waiting(records, queue)?;
    warnings.extend(found);
    let recorded = records.write(|tx| new.apply(tx))?;
    warnings.extend(queue.put(new));
    Ok(Saved { recorded, kept: false, caught_up: 0, degraded, warnings })
}

/// Applies all that waits to `records`, a copy in memory, and leaves it waiting: what is read from the
/// copy then is what the next run will have saved. The ids of the runs, and what to warn of.
pub fn apply_waiting(
    records: &mut Records,
    queue: &Queue,
) -> Result<(HashSet<String>, Vec<SaveWarning>), Error> {
    let (waiting, warnings) = queue.all();
    if !waiting.is_empty() && !records.is_kept() {
        records.write(|tx| apply_all(tx, &waiting))?;
    }
    Ok((waiting.iter().map(|one| one.item.run_id().to_owned()).collect(), warnings))
}

/// Saves all that waits, and then what `apply` writes, in one transaction; how many waited. Once more where the
/// database turns out to be damaged: then there is a new one.
pub(super) fn save_with_waiting<R>(
    records: &mut Records,
    queue: &Queue,
    (degraded, warnings): (&mut Vec<Degraded>, &mut Vec<SaveWarning>),
    apply: impl Fn(&Transaction<'_>) -> rusqlite::Result<R>,
) -> Result<(R, usize), Error> {
    let (waiting, found) = queue.all();
    warnings.extend(found);
    let write = |tx: &Transaction<'_>| {
        let refused = apply_all(tx, &waiting)?;
        Ok((apply(tx)?, refused))
    };
    let mut written = records.write(write);
    if let Err(Error::Degraded(why)) = &written
        && let damage @ Degraded::Corrupt { .. } = why.as_ref()
    {
        degraded.push(records.renew(damage.clone())?);
        written = records.write(write);
    }
    let (result, refused) = written?;
    warnings.extend(refused.iter().map(|(at, cause)| queue.refuse(&waiting[*at], cause)));
    // No other process can have saved the same: we hold the lock.
    let done: Vec<_> = waiting.iter().map(|one| one.path.clone()).collect();
    warnings.extend(queue.done(&done));
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
