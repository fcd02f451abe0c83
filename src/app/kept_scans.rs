//! What a scan saw, as it is kept and compared.

use super::database::Database;
use super::paths::{own_path, own_paths};
use crate::history::Error;
use crate::history::kept_scans::{self, Packed, Scanned};
use crate::model::scan_summary::ScanSummary;
use crate::stores::Scan;

/// What a scan saw, under the names that the node itself has for it.
pub fn of(scan: &Scan) -> ScanSummary {
    let mut inventory = own_paths(scan);
    for filesystem in &mut inventory.filesystems {
        filesystem.mount = own_path(scan, &filesystem.mount);
    }
    ScanSummary::of(&inventory, &scan.refs, scan.is_complete())
}

/// Keeps what a scan saw, once it is recorded; what hinders that.
pub(super) fn keep(
    open: &mut Database,
    scan: &Scanned<'_>,
    packed: rusqlite::Result<Packed>,
) -> Option<String> {
    let packed = packed.map_err(Error::from);
    let kept = packed.and_then(|packed| open.records.write(|tx| kept_scans::store(tx, scan, &packed)));
    kept.err().map(|error| format!("this scan is not kept for `diff`: {error}"))
}
