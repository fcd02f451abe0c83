//! Saves records together with the queued runs and uses.

use std::collections::HashSet;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::Transaction;

use super::db::Records;
use super::health::{Degraded, Error};
use super::pending::{Queue, SaveWarning, Waiting};
use super::run_record::put;
use super::scan_run::ScanRun;
use super::scans;

#[derive(Debug)]
pub struct Saved {
    /// Record time of the scan; `None` if it is not in the database.
    pub recorded: Option<Timestamp>,
    /// Number of queued runs that were saved too.
    pub caught_up: usize,
    pub degraded: Vec<Degraded>,
    pub warnings: Vec<SaveWarning>,
}

/// Saves all queued runs, a scan and then the queued uses, in one transaction: a queued use may be of an image that no
/// earlier scan has recorded.
///
/// If that fails, the scan is not recorded, and `records` becomes a copy in memory to which the queue and the scan are
/// applied: ages that are read from it are the same as if the scan had been saved.
///
/// # Errors
/// If SQLite rejects the scan itself, or a newer layersweep has migrated the database.
pub fn save(records: &mut Records, queue: &Queue, scan: &ScanRun<'_>) -> Result<Saved, Error> {
    let (mut degraded, mut warnings) = (Vec::new(), Vec::new());
    if records.is_kept() {
        let (uses, paths) = queue.uses();
        let saved = save_with_waiting(records, queue, (&mut degraded, &mut warnings), |tx| {
            let recorded = scans::record(tx, scan)?;
            uses.apply(tx)?;
            Ok(recorded)
        });
        match saved {
            Ok((recorded, caught_up)) => {
                warnings.extend(queue.done(&paths));
                return Ok(Saved { recorded: Some(recorded), caught_up, degraded, warnings });
            }
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

/// Applies all queued runs and uses to `records`, a copy in memory, and leaves them in the queue: the copy then contains
/// what the next scan will save. Returns the ids of the runs, and warnings.
pub fn apply_waiting(
    records: &mut Records,
    queue: &Queue,
) -> Result<(HashSet<String>, Vec<SaveWarning>), Error> {
    let (waiting, warnings) = queue.all();
    let (uses, paths) = queue.uses();
    let is_empty = waiting.is_empty() && paths.is_empty();
    if !is_empty && !records.is_kept() {
        records.write(|tx| apply_all(tx, &waiting).and_then(|_| uses.apply(tx)))?;
    }
    Ok((waiting.iter().map(|waiting| waiting.run.start.run_id.clone()).collect(), warnings))
}

/// Saves all queued runs and then what `apply` writes, in one transaction. Returns the number of queued runs that were
/// saved. If the database turns out to be damaged, it is renewed and the transaction repeated.
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
    warnings.extend(refused.iter().map(|(position, cause)| queue.refuse(&waiting[*position], cause)));
    // The lock is held, so no other process can have saved the same runs.
    let done: Vec<_> = waiting.iter().map(|waiting| waiting.path.clone()).collect();
    warnings.extend(queue.done(&done));
    Ok((result, waiting.len() - refused.len()))
}

/// Applies each queued run. Returns the positions of those that cannot be applied, with the reason.
fn apply_all(tx: &Transaction<'_>, waiting: &[Waiting]) -> rusqlite::Result<Vec<(usize, String)>> {
    let mut refused = Vec::new();
    for (position, Waiting { run, .. }) in waiting.iter().enumerate() {
        tx.execute_batch("SAVEPOINT item")?;
        match put(tx, run) {
            Ok(()) => {}
            // It would block all later runs, so it is skipped.
            Err(error) if is_refusal(&error) => {
                tx.execute_batch("ROLLBACK TO item")?;
                refused.push((position, error.to_string()));
            }
            Err(error) => return Err(error),
        }
        tx.execute_batch("RELEASE item")?;
    }
    Ok(refused)
}

/// Checks whether SQLite rejected the statement itself; otherwise the problem is the file.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    Degraded::from_sqlite(Path::new("/"), error).is_none()
}
