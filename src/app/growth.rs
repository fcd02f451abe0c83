//! `usage --since`: compares the present state with a kept scan, and divides the growth.

use jiff::Timestamp;

use super::database::Database;
use super::error::{Error, Exit};
use super::observer::Observer;
use super::request::Request;
use super::{kept_scans, scan};
use crate::history::Access;
use crate::history::kept_scans::{self as history, Missing, ScanName};
use crate::model::growth::{FilesystemGrowth, growth};
use crate::model::refs::GroupBy;
use crate::model::scan_summary::ComparedScan;

/// Growth of all filesystems since a kept scan.
#[derive(Debug)]
pub struct Growth {
    /// Time that the user named.
    pub since: Timestamp,
    /// The kept scan: the last one that had begun at that time, or else the oldest.
    pub before: ComparedScan,
    /// The present state, not kept.
    pub after: ComparedScan,
    pub by: GroupBy,
    /// Filesystems that both scans contain.
    pub filesystems: Vec<FilesystemGrowth>,
}

impl Growth {
    /// Returns true if both scans read everything.
    pub fn is_complete(&self) -> bool {
        self.before.summary.complete && self.after.summary.complete
    }

    /// Returns the exit code of the command.
    pub fn exit(&self) -> Exit {
        if self.is_complete() { Exit::Done } else { Exit::Incomplete }
    }
}

/// Scans, and compares with the kept scan of the time `since`.
///
/// # Errors
/// When no scan is kept, or as [`crate::app::scan::scan`].
pub fn since(
    request: &Request,
    observer: &dyn Observer,
    since: Timestamp,
    by: GroupBy,
) -> Result<Growth, Error> {
    let database = Database::open(request, Access::Read)?.warn(observer);
    let kept = database.read(history::all)?;
    let found = match history::find(&kept, &ScanName::At(since)) {
        Err(Missing::Later(_)) => kept.iter().min_by_key(|scan| scan.at).ok_or(Missing::None),
        found => found,
    };
    let found = found.map_err(|_| match database.unreadable {
        true => Error::failed("the records cannot be read, so what grew is unknown")
            .hint("`layersweep doctor` shows what is wrong with them"),
        false => Error::failed("no scan is kept, so what grew is unknown")
            .hint("`layersweep scan` keeps one; the package's timer does so every five minutes"),
    })?;
    let mut before = database.read(|connection| history::load(connection, found))?;
    let scan = scan::scan(request, observer)?.scan;
    let after = ComparedScan { id: "now".into(), taken_at: scan.taken_at, summary: kept_scans::of(&scan) };
    // A store that the new scan did not read has not shrunk.
    if request.names_stores {
        before.summary.retain_common(&after.summary);
    }
    let filesystems = growth(&before.summary, &after.summary, by);
    Ok(Growth { since, before, after, by, filesystems })
}
