//! Records a scan: its content, the filesystem usage, and the run itself.

use jiff::{SignedDuration, Timestamp};
use rusqlite::Transaction;
use serde::{Deserialize, Serialize};

use super::figures::{self, Figures};
use super::observe::observe;
use super::scan_record::ScanRecord;
use super::{runs, usage};

/// A scan that is to be recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanRun {
    /// Id of its run, as [`runs::new_id`] makes it.
    pub run_id: String,
    pub record: ScanRecord,
    /// How long it took.
    pub seconds: f64,
    /// Everything could be read.
    pub complete: bool,
    /// Counts and bytes of the stores of `scan_record`, in their order.
    pub figures: Vec<Figures>,
    /// All stores of the node were looked for: none was named in their place.
    pub all_stores: bool,
}

/// Records a scan; its record time, `None`: it is recorded already. Of stores that were scanned later than by
/// this one, nothing is taken.
pub fn record(to: &Transaction<'_>, scan: &ScanRun) -> rusqlite::Result<Option<Timestamp>> {
    if runs::known(to, &scan.run_id)?.is_some() {
        return Ok(None);
    }
    let at = observe(to, &scan.record)?;
    usage::record(to, at, &scan.record.filesystems)?;
    figures::record(to, at, scan)?;
    let start = runs::Start { run_id: scan.run_id.clone(), ..runs::Start::of(runs::Command::Scan, at) };
    let outcome = if scan.complete { runs::OutcomeKind::Done } else { runs::OutcomeKind::Incomplete };
    let took = SignedDuration::try_from_secs_f64(scan.seconds.max(0.0)).unwrap_or_default();
    let ended = at.checked_add(took).unwrap_or(at);
    runs::record(to, &start, &runs::RunEnd::of(ended, outcome))?;
    thin(to, at)?;
    Ok(Some(at))
}

/// Sums up and forgets what is too old to be kept one by one.
pub fn thin(to: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    usage::thin(to, now)?;
    runs::thin(to, now)
}
