//! Summaries of scans for `diff`.

use crate::history::Error;
use crate::history::kept_scans::{self, Packed, Scanned};
use crate::model::documents::scan_summary::ScanSummary;
use crate::services::database::Database;
use crate::services::paths::{node_path, with_node_paths};
use crate::stores::Scan;

/// Returns the summary of a scan. Paths are those that the node itself uses, without the sysroot.
pub fn of(scan: &Scan) -> ScanSummary {
    let mut inventory = with_node_paths(scan);
    for filesystem in &mut inventory.filesystems {
        filesystem.mount = node_path(scan, &filesystem.mount);
    }
    ScanSummary::of(&inventory, &scan.refs, scan.is_complete())
}

/// Saves the summary of a recorded scan. Returns a message if that fails.
pub(crate) fn keep(
    open: &mut Database,
    scan: &Scanned<'_>,
    packed: rusqlite::Result<Packed>,
) -> Option<String> {
    let packed = packed.map_err(Error::from);
    let kept = packed.and_then(|packed| open.records.write(|tx| kept_scans::store(tx, scan, &packed)));
    kept.err().map(|error| format!("this scan is not kept for `diff`: {error}"))
}
