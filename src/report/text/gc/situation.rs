//! State of a filesystem before a run, and what is missing there.

use super::deletions::freed_on;
use crate::model::OutcomeKind;
use crate::model::deletion::plan::Reason;
use crate::model::text::display::thousands;
use crate::report::json::{DeletionDoc, DocumentKind, GcDoc, GcFilesystemDoc};
use crate::report::text::format::{bytes, inodes, percent, safe};

/// Minimum use of root's reserve that is mentioned: less is used by chance.
const MIN_OWED_BYTES: u64 = 1 << 20;

pub(super) fn situation(document: &GcDoc, filesystem: &GcFilesystemDoc) -> String {
    let used = percent(filesystem.usage.usage_before_percent);
    if document.header.kind == DocumentKind::Rm {
        return format!("{}: {used} used before\n", safe(&filesystem.usage.mount));
    }
    let thresholds = match (document.high_percent, document.low_percent) {
        (Some(high), Some(low)) => format!("; thresholds: high {high}%, low {low}%"),
        _ => String::new(),
    };
    let thresholds = match document.min_free_bytes {
        Some(floor) => format!("{thresholds}; starts below {} available", bytes(floor)),
        None => thresholds,
    };
    let wanted = match (!filesystem.usage.started.any(), filesystem.wanted_bytes, filesystem.wanted_inodes) {
        (true, ..) if freed_here(document, filesystem, Reason::Age).next().is_some() => {
            let how = if filesystem.ended_by_age { " after those by age" } else { ", only by age" };
            format!("no deletion needed for space{how}")
        }
        (true, ..) if filesystem.outcome == OutcomeKind::Failed => "cannot be judged".to_owned(),
        (true, ..) => match freed_for_others(document, filesystem) {
            0 => "no deletion needed".to_owned(),
            freed => {
                format!("no deletion needed, but those for other filesystems free {} here", bytes(freed))
            }
        },
        (false, wanted, 0) if filesystem.owed_bytes >= MIN_OWED_BYTES => {
            format!(
                "{} to free (the first {} only refill root's reserve)",
                bytes(wanted),
                bytes(filesystem.owed_bytes)
            )
        }
        (false, wanted, 0) => format!("{} to free", bytes(wanted)),
        (false, 0, missing) => format!("{} inodes to free", thousands(missing)),
        (false, wanted, missing) => {
            format!("{} and {} inodes to free", bytes(wanted), thousands(missing))
        }
    };
    let few = filesystem.few_inodes.map_or_else(String::new, |few| match few {
        0 => "; deleting images would free no inodes".to_owned(),
        few => {
            format!("; no image is deleted for inodes: all that may be deleted hold only {}", thousands(few))
        }
    });
    let inodes = match filesystem.wanted_inodes {
        0 => String::new(),
        _ => format!(", {}", inodes_free(filesystem, filesystem.inodes_free_before)),
    };
    format!("{}: {used} used before{inodes}{thresholds}: {wanted}{few}\n", safe(&filesystem.usage.mount))
}

/// Formats the free inodes: `203 of 196,608 inodes free`.
pub(super) fn inodes_free(filesystem: &GcFilesystemDoc, free: Option<u64>) -> String {
    format!("{} of {} inodes free", inodes(free), inodes(filesystem.inodes))
}

/// Returns the bytes that deletions for the space of other filesystems are predicted to free on this one.
fn freed_for_others(document: &GcDoc, filesystem: &GcFilesystemDoc) -> u64 {
    let several = document.filesystems.len() > 1;
    let here = freed_here(document, filesystem, Reason::Space).filter(|_| several);
    here.fold(0, |sum, deleted| sum.saturating_add(deleted.predicted_bytes))
}

/// Returns the deletions for a reason that free something on a filesystem.
fn freed_here(
    document: &GcDoc,
    filesystem: &GcFilesystemDoc,
    reason: Reason,
) -> impl Iterator<Item = DeletionDoc> {
    let for_reason = document.deleted.iter().filter(move |deleted| deleted.reason == reason);
    for_reason.filter_map(|deleted| freed_on(deleted, &filesystem.usage.mount))
}
