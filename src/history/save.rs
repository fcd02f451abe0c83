//! Saves records, with those that wait.

use std::collections::HashSet;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::Transaction;

use super::db::Records;
use super::health::{Degraded, Error};
use super::pending::{Queue, SaveWarning, Waiting};
use super::run_record::put;
use super::scan_record::ScanRun;
use super::scans;

/// The result of saving a scan.
#[derive(Debug)]
pub struct Saved {
    /// Its record time, where it is in the database now.
    pub recorded: Option<Timestamp>,
    /// Number of runs that waited and were saved as well.
    pub caught_up: usize,
    /// Why it was not saved.
    pub degraded: Vec<Degraded>,
    pub warnings: Vec<SaveWarning>,
}

/// Saves a scan, and before it all runs that wait, in one transaction. Where that fails, the scan is not
/// recorded, and `records` becomes a copy in memory to which all of them are applied: ages read from it are
/// what they would be had it been saved.
///
/// # Errors
/// When the scan itself is refused, or a newer layersweep has taken over the database.
pub fn save(records: &mut Records, queue: &Queue, scan: &ScanRun) -> Result<Saved, Error> {
    let (mut degraded, mut warnings) = (Vec::new(), Vec::new());
    if records.is_kept() {
        match save_with_waiting(records, queue, (&mut degraded, &mut warnings), |tx| scans::record(tx, scan))
        {
            Ok((at, caught_up)) => return Ok(Saved { recorded: Some(at), caught_up, degraded, warnings }),
            Err(Error::Degraded(why)) => degraded.push(*why),
            Err(error) => return Err(error),
        }
        degraded.extend(records.fall_back()?);
    }
    let (_, found) = apply_waiting(records, queue)?;
    warnings.extend(found);
    records.write(|tx| scans::record(tx, scan))?;
    Ok(Saved { recorded: None, caught_up: 0, degraded, warnings })
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
    Ok((waiting.iter().map(|one| one.run.start.run_id.clone()).collect(), warnings))
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
        match put(tx, &one.run) {
            Ok(()) => {}
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
