//! The last line of a run: its result and what was deleted.

use super::situation::inodes_free;
use crate::model::OutcomeKind;
use crate::model::deletion::plan::TargetKind;
use crate::model::text::display::{count, listed, thousands};
use crate::report::json::{DeletionDoc, DocumentKind, GcDoc};
use crate::report::text::format::{bytes, percent, safe, signed_bytes};

/// Counts the deletions by kind, for example `2 images` or `1 leak and 2 images`.
fn counted(document: &GcDoc) -> String {
    let kinds = [
        (TargetKind::Leak, "leaks"),
        (TargetKind::Container, "containers"),
        (TargetKind::Sandbox, "sandboxes"),
        (TargetKind::Log, "logs"),
        (TargetKind::Artifact, "artifacts"),
        (TargetKind::Image, "images"),
    ];
    let parts: Vec<_> = kinds
        .into_iter()
        .map(|(kind, plural)| {
            (kind, plural, document.deleted.iter().filter(|deleted| deleted.kind == kind).count())
        })
        .filter(|(.., number)| *number > 0)
        .map(|(kind, plural, number)| count(number, kind.as_str(), plural))
        .collect();
    if parts.is_empty() { "0 images".into() } else { listed(&parts) }
}

pub(super) fn ending(document: &GcDoc) -> String {
    let used = used_after(document);
    let objects = counted(document);
    let (short, inodes) = (still_short(document), enough_inodes(document));
    if document.dry_run {
        return match (document.outcome, document.deleted.len()) {
            (OutcomeKind::NotNeeded, _) => "Nothing would be deleted.\n".into(),
            (OutcomeKind::Refused, 0) => "Refused: nothing would be deleted.\n".into(),
            (outcome, 0) => {
                format!(
                    "Plan: nothing can be deleted, {used} used{inodes}{}.{short}\n",
                    as_planned(document, outcome)
                )
            }
            (outcome, _) => format!(
                "Plan: delete {objects}, free {}{}, {used} used{inodes} after{}.{short}\n",
                bytes(document.predicted_bytes),
                believed(document),
                as_planned(document, outcome),
            ),
        };
    }
    let byproduct = match document.byproduct_bytes {
        0 => String::new(),
        more => format!(", and {} of other garbage", bytes(more)),
    };
    let on = missed_on(document);
    match document.outcome {
        OutcomeKind::NotNeeded if document.resumed > 0 => "Nothing more was deleted.\n".into(),
        OutcomeKind::NotNeeded => "Nothing was deleted.\n".into(),
        OutcomeKind::Refused if document.deleted.is_empty() => "Refused: nothing was deleted.\n".into(),
        outcome => format!(
            "{}{on}: {objects} deleted, {} ({} predicted){byproduct}{}; {used} used{inodes} now.{short}\n",
            words(document, outcome),
            freed(document),
            bytes(document.predicted_bytes),
            believed(document),
        ),
    }
}

/// Formats what the deletions of a dry run are expected to cost, for each filesystem with the order `cheapest`.
pub(super) fn expected_pulls(document: &GcDoc) -> String {
    let several = document.filesystems.len() > 1;
    // Without a deletion there is no price.
    let priced = document.filesystems.iter().filter(|_| document.dry_run && !document.deleted.is_empty());
    let lines = priced.filter_map(|filesystem| {
        let pulls = filesystem.pulls?;
        let on = if several { format!(" for {}", safe(&filesystem.usage.mount)) } else { String::new() };
        let at_least = pulls.at_least_bytes.map_or_else(
            || "; the images that can be pulled again do not free enough".to_owned(),
            |at_least| format!("; no choice costs less than {}", bytes(at_least)),
        );
        let estimated = if pulls.is_estimated { " (some sizes of downloads are estimates)" } else { "" };
        Some(format!("expected pulls{on}: {}{at_least}{estimated}\n", bytes(pulls.bytes)))
    });
    lines.collect()
}

fn freed(document: &GcDoc) -> String {
    fn is_unmeasured(deleted: &DeletionDoc) -> bool {
        deleted.measured_bytes.is_none()
    }
    match document.measured_bytes {
        Some(_) if document.deleted.iter().any(|deleted| deleted.disturbed) => {
            "freed bytes unknown since others were writing".into()
        }
        // A signal ended a measurement.
        Some(0) if document.deleted.iter().any(is_unmeasured) => "freed bytes not measured".into(),
        Some(measured) if document.deleted.iter().any(is_unmeasured) => {
            format!("at least {} freed", signed_bytes(measured))
        }
        Some(measured) => format!("{} freed", signed_bytes(measured)),
        None => "- freed".into(),
    }
}

/// Formats the usage after the run: of each filesystem that was short of space, if there are several.
fn used_after(document: &GcDoc) -> String {
    let short = document.filesystems.iter().filter(|filesystem| filesystem.usage.started.any());
    let used = short.map(|filesystem| {
        format!("{} {}", safe(&filesystem.usage.mount), percent(filesystem.usage.usage_after_percent))
    });
    let used: Vec<_> = used.collect();
    if used.len() > 1 { listed(&used) } else { percent(document.usage_after_percent) }
}

/// Formats the filesystems above their low thresholds, if others have reached theirs.
fn missed_on(document: &GcDoc) -> String {
    let short = document.filesystems.iter().filter(|filesystem| filesystem.usage.started.any());
    let (missed, reached): (Vec<_>, Vec<_>) =
        short.partition(|filesystem| filesystem.outcome == OutcomeKind::NotReached);
    if missed.is_empty() || reached.is_empty() || document.outcome != OutcomeKind::NotReached {
        return String::new();
    }
    let mounts: Vec<_> = missed.iter().map(|filesystem| safe(&filesystem.usage.mount)).collect();
    format!(" on {}", listed(&mounts))
}

/// Formats the bytes that the kubelet's algorithm believes that the same deletions free.
fn believed(document: &GcDoc) -> String {
    document
        .believed_bytes
        .map_or_else(String::new, |believed| format!(", believed to be {}", bytes(believed)))
}

/// Returns the result of a plan in parentheses.
fn as_planned(document: &GcDoc, outcome: OutcomeKind) -> String {
    let words = match (document.header.kind, outcome) {
        (_, OutcomeKind::Failed) => " (not all of it can be deleted: see the errors)",
        (_, OutcomeKind::Refused) => " (the rest is refused)",
        (_, OutcomeKind::NotReached) if is_reached_for_bytes(document) => {
            " (reaches the low threshold for bytes only)"
        }
        (_, OutcomeKind::NotReached) if lacks_inodes_alone(document) => " (does not free enough inodes)",
        (_, OutcomeKind::NotReached) => {
            return format!(" (does NOT reach the low threshold{})", missed_on(document));
        }
        (_, OutcomeKind::Reached) if document.trigger.space => " (reaches the low threshold)",
        _ => "",
    };
    words.to_owned()
}

/// Returns true if the targets were missed for inodes alone.
fn is_reached_for_bytes(document: &GcDoc) -> bool {
    let mut filesystems = document.filesystems.iter();
    let missed = || document.filesystems.iter().filter(|filesystem| filesystem.missing_inodes > 0);
    filesystems.all(|filesystem| filesystem.missing_bytes == 0)
        && missed().any(|filesystem| filesystem.usage.started.used || filesystem.usage.started.free)
}

/// Returns true if inodes are missing after the run, and no bytes.
fn lacks_inodes_alone(document: &GcDoc) -> bool {
    let mut filesystems = document.filesystems.iter();
    filesystems.all(|filesystem| filesystem.missing_bytes == 0)
        && document.filesystems.iter().any(|filesystem| filesystem.missing_inodes > 0)
}

/// Formats the free inodes of the first filesystem that was short of them, if it is not any more.
fn enough_inodes(document: &GcDoc) -> String {
    let short = document
        .filesystems
        .iter()
        .find(|filesystem| filesystem.wanted_inodes > 0)
        .filter(|filesystem| filesystem.missing_inodes == 0);
    short.map_or_else(String::new, |filesystem| {
        format!(", {}", inodes_free(filesystem, filesystem.inodes_free_after))
    })
}

/// Formats the filesystems that are short of inodes after the run: `STILL FULL: 203 of 196,608 inodes free`.
fn still_short(document: &GcDoc) -> String {
    let several = document.filesystems.len() > 1;
    let short =
        document.filesystems.iter().filter(|filesystem| filesystem.missing_inodes > 0).map(|filesystem| {
            let free = filesystem.inodes_free_after.zip(filesystem.inodes);
            let is_full = free.is_some_and(|(free, all)| free < all / 100);
            let words = if is_full { "STILL FULL" } else { "STILL SHORT OF INODES" };
            let on = if several { format!(" on {}", safe(&filesystem.usage.mount)) } else { String::new() };
            let in_images = document
                .inode_use
                .iter()
                .find(|inode_use| inode_use.mount == filesystem.usage.mount)
                .map_or_else(String::new, |inode_use| {
                    format!("; images hold {}", thousands(inode_use.in_images))
                });
            format!(" {words}: {}{on}{in_images}.", inodes_free(filesystem, filesystem.inodes_free_after))
        });
    short.collect()
}

fn words(document: &GcDoc, outcome: OutcomeKind) -> &'static str {
    match (document.header.kind, outcome) {
        (DocumentKind::Rm, OutcomeKind::Reached) => "Done",
        (DocumentKind::Rm, OutcomeKind::Refused) => "Refused in part",
        (_, OutcomeKind::Reached) if !document.trigger.space => "Done by age",
        (_, OutcomeKind::Reached) => "Low threshold reached",
        (_, OutcomeKind::NotReached) if is_reached_for_bytes(document) => {
            "Low threshold reached for bytes only"
        }
        (_, OutcomeKind::NotReached) if lacks_inodes_alone(document) => "Not enough inodes freed",
        (_, OutcomeKind::NotReached) => "Low threshold NOT reached",
        (_, OutcomeKind::Refused) => "REFUSED in part",
        _ => "FAILED",
    }
}
