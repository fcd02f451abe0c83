//! What a scan saw, as it is kept and compared.

use super::database::Database;
use super::paths::{own_path, own_paths};
use crate::history::pictures::{self, Fate};
use crate::history::scans::Recorded;
use crate::model::picture::Picture;
use crate::stores::Survey;

/// What a survey saw, under the names that the node itself has for it.
pub fn of(survey: &Survey) -> Picture {
    let mut inventory = own_paths(survey);
    for filesystem in &mut inventory.filesystems {
        filesystem.mount = own_path(survey, &filesystem.mount);
    }
    Picture::of(&inventory, &survey.refs, survey.is_complete())
}

/// Keeps what a scan saw, once it is recorded. What there is to say about that, unless it is kept like
/// any other.
pub(super) fn keep(
    open: &mut Database,
    scan: &Recorded,
    all_stores: bool,
    picture: &Picture,
) -> Option<String> {
    let seen = pictures::Scanned { run_id: &scan.run_id, at: scan.observed.record_time, all_stores };
    match open.records.write(|tx| pictures::store(tx, &seen, picture)) {
        Ok(Fate::Kept) => None,
        Ok(Fate::Late) => {
            Some("this scan is not kept for `diff`: one that ran beside it was recorded later, and is".into())
        }
        Err(error) => Some(format!("this scan is not kept for `diff`: {error}")),
    }
}
