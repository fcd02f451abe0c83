//! A run of garbage collection, carried out or planned.

use std::collections::BTreeMap;

use super::format::{bytes, safe, short_id};
use super::table::Table;
use crate::report::json::{DeletedDoc, GcDoc, GcFilesystemDoc};

/// The whole run.
#[must_use]
pub fn gc(document: &GcDoc) -> String {
    let mut out = String::new();
    for filesystem in &document.filesystems {
        out.push_str(&situation(document, filesystem));
    }
    if !document.deleted.is_empty() {
        out.push('\n');
        out.push_str(&deletions(document));
    }
    out.push('\n');
    out.push_str(&kept(document));
    for error in &document.errors {
        let id = error.id.as_deref().map_or_else(String::new, |id| format!("{}: ", short_id(id)));
        out.push_str(&format!("{}: {id}{}\n", safe(&error.step), safe(&error.message)));
    }
    out.push_str(&ending(document));
    out
}

fn situation(document: &GcDoc, filesystem: &GcFilesystemDoc) -> String {
    let used =
        filesystem.usage_before_percent.map_or_else(|| "unknown".into(), |used| format!("{used:.2} %"));
    let marks = match (document.high_percent, document.low_percent) {
        (Some(high), Some(low)) => format!(", high {high}, low {low}"),
        _ => String::new(),
    };
    let wanted = match (filesystem.started.is_empty(), filesystem.wanted_bytes, filesystem.wanted_inodes) {
        (true, ..) => "nothing to free".to_owned(),
        (false, wanted, 0) => format!("{} to free", bytes(wanted)),
        (false, 0, inodes) => format!("{inodes} inodes to free"),
        (false, wanted, inodes) => format!("{} and {inodes} inodes to free", bytes(wanted)),
    };
    format!("{}: {used} used{marks}: {wanted}\n", safe(&filesystem.mount))
}

fn deletions(document: &GcDoc) -> String {
    let mut headings = vec!["IMAGE", "ID", "REASON", ">PREDICTED"];
    if !document.dry_run {
        headings.push(">MEASURED");
    }
    headings.push(">USED");
    let mut table = Table::new(&headings);
    for deleted in &document.deleted {
        let mut cells = vec![
            name(deleted),
            short_id(&deleted.id),
            match deleted.group {
                Some(members) => format!("{}, {members} together", deleted.reason),
                None => deleted.reason.to_owned(),
            },
            bytes(deleted.predicted_bytes),
        ];
        if !document.dry_run {
            cells.push(deleted.measured_bytes.map_or_else(|| "-".into(), signed));
        }
        cells.push(deleted.usage_after_percent.map_or_else(|| "-".into(), |used| format!("{used:.2} %")));
        table.row(cells);
    }
    table.render()
}

fn name(deleted: &DeletedDoc) -> String {
    match deleted.names.as_slice() {
        [] => "<none>".into(),
        [one] => safe(one),
        [first, more @ ..] => format!("{} +{}", safe(first), more.len()),
    }
}

/// Bytes with a sign.
pub(super) fn signed(measured: i64) -> String {
    let size = bytes(measured.unsigned_abs());
    if measured < 0 { format!("-{size}") } else { size }
}

fn kept(document: &GcDoc) -> String {
    if document.kept.is_empty() {
        return String::new();
    }
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for kept in &document.kept {
        *rules.entry(kept.rule).or_default() += 1;
    }
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by_key(|(rule, count)| (std::cmp::Reverse(*count), *rule));
    let rules: Vec<_> = rules.into_iter().map(|(rule, count)| format!("{rule} {count}")).collect();
    format!("{} images stay: {}\n", document.kept.len(), rules.join(", "))
}

fn ending(document: &GcDoc) -> String {
    let used = document.usage_after_percent.map_or_else(|| "unknown".into(), |used| format!("{used:.2} %"));
    let images = match document.deleted.len() {
        1 => "1 image".to_owned(),
        count => format!("{count} images"),
    };
    if document.dry_run {
        return match document.outcome {
            "not_needed" => "nothing would be deleted\n".into(),
            outcome => format!(
                "dry run: {images} would go and give back {}; {used} used then ({})\n",
                bytes(document.predicted_bytes),
                words(outcome)
            ),
        };
    }
    let byproduct = match document.byproduct_bytes {
        0 => String::new(),
        more => format!(", and {} of garbage that went along", bytes(more)),
    };
    match document.outcome {
        "not_needed" => "nothing was deleted\n".into(),
        outcome => format!(
            "{}: {images} gave back {} ({} predicted){byproduct}; {used} used now\n",
            words(outcome),
            document.measured_bytes.map_or_else(|| "-".into(), signed),
            bytes(document.predicted_bytes),
        ),
    }
}

fn words(outcome: &str) -> &str {
    match outcome {
        "reached" => "low mark reached",
        "not_reached" => "low mark NOT reached",
        other => other,
    }
}
