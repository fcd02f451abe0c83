//! Text of `gc` and `rm`: a run that deletes objects, carried out or planned.

mod side_by_side;

use std::collections::{BTreeMap, BTreeSet};

use unicode_width::UnicodeWidthStr;

use super::format::{DIFFERS, bytes, measured, name_or_id, percent, resumed, safe, short_id, signed_bytes};
use super::report::deletions::Deletions;
use super::screen::Screen;
use super::table::Table;
use crate::model::OutcomeKind;
use crate::model::display::{count, listed};
use crate::model::outcome::differs;
use crate::model::plan::Phase;
use crate::report::json::{DeletedDoc, GcDoc, GcFilesystemDoc, KeptDoc};

/// Width of notes if the output is not a terminal.
const WIDTH: usize = 80;

/// Formats the whole run.
pub fn gc(document: &GcDoc, screen: &Screen) -> String {
    let mut out = resumed(document.resumed);
    for comparison in &document.comparison {
        out.push_str(&side_by_side::side_by_side(document, comparison, screen));
    }
    // With several filesystems, each has its own block, and a deletion is in the block of every filesystem on
    // which it frees bytes.
    let several = document.filesystems.len() > 1;
    let mut has_block = false;
    for filesystem in &document.filesystems {
        if has_block {
            out.push('\n');
        }
        // The comparison contains the line about its filesystem.
        if document.comparison.iter().all(|both| both.mount != filesystem.mount) {
            out.push_str(&situation(document, filesystem));
        }
        if several {
            let here = document.deleted.iter().filter_map(|deleted| freed_on(deleted, &filesystem.mount));
            let here: Vec<_> = here.collect();
            has_block |= !here.is_empty();
            out.push_str(&deletions(document, &here.iter().collect::<Vec<_>>(), screen));
        }
    }
    let rest = document.deleted.iter().filter(|deleted| {
        !several
            || document.filesystems.iter().all(|filesystem| freed_on(deleted, &filesystem.mount).is_none())
    });
    let rest: Vec<_> = rest.collect();
    out.push_str(&deletions(document, &rest, screen));
    out.push_str(&kept(document, screen));
    if !document.errors.is_empty() {
        out.push('\n');
    }
    for error in &document.errors {
        let id = error.id.as_deref().map_or_else(String::new, |id| format!("{}: ", object(id)));
        out.push_str(&format!("failed: {}: {id}{}\n", error.phase, safe(&error.message)));
        if let Some(hint) = &error.hint {
            out.push_str(&format!("hint: {}\n", safe(hint)));
        }
    }
    for event in &document.events {
        out.push_str(&format!("event: {}: {}\n", event.reason, safe(&event.message)));
    }
    out.push('\n');
    out.push_str(&ending(document));
    if !screen.notes {
        return out;
    }
    for hint in &document.hints {
        out.push_str(&format!("hint: {}\n", safe(hint)));
    }
    if document.header.kind == "gc" && document.outcome == OutcomeKind::NotReached {
        match document.believed_bytes {
            Some(believed) if believed >= document.wanted_bytes => {
                out.push_str("The kubelet's algorithm believes that this is enough.\n");
            }
            _ => out.push_str(&remaining(document)),
        }
        for outside in &document.not_in_store {
            out.push_str(&format!("{}\n", safe(&outside.text)));
            let list = Deletions {
                causes: outside.deletions.iter().collect(),
                scarce: outside.scarce,
                low: outside.low_percent,
            };
            out.push_str(&list.list("What else can be deleted", screen, screen.width.unwrap_or(WIDTH)));
        }
    }
    out
}

/// Returns a deletion with the bytes that it frees on one filesystem, or `None` if it frees none there.
fn freed_on(deleted: &DeletedDoc, mount: &str) -> Option<DeletedDoc> {
    let freed = deleted.freed.iter().find(|freed| freed.filesystem == mount && freed.predicted_bytes > 0)?;
    let (predicted_bytes, measured_bytes) = (freed.predicted_bytes, freed.measured_bytes);
    Some(DeletedDoc {
        predicted_bytes,
        measured_bytes,
        usage_after_percent: freed.usage_after_percent,
        differs: deleted.differs && measured_bytes.is_some_and(|bytes| differs(predicted_bytes, bytes)),
        ..deleted.clone()
    })
}

/// Explains why the remaining images are kept.
fn remaining(document: &GcDoc) -> String {
    let rules: BTreeSet<&str> = document.kept.iter().map(|kept| kept.rule).collect();
    let has_failed = document.errors.iter().any(|error| error.phase == Phase::RemoveImage);
    if document.kept.is_empty() && !has_failed {
        return "No image remains; `layersweep usage` shows what uses the disk.\n".to_owned();
    }
    let young = document.kept.iter().find(|kept| kept.rule == "min-age").map(|kept| {
        format!("are too young (min-age: `layersweep explain {}` says for how long)", short_id(&kept.id))
    });
    let others = [
        (true, "are in use or protected"),
        (rules.contains("out-of-reach"), "are out of reach"),
        (rules.contains("frees-nothing"), "would free too little"),
        (rules.contains("backing-off") || has_failed, "could not be deleted and are tried again later"),
    ];
    let others = others.into_iter().filter(|(applies, _)| *applies).map(|(_, words)| words.to_owned());
    let why: Vec<_> = young.into_iter().chain(others).collect();
    format!("The remaining images {}; `layersweep usage` shows what uses the disk.\n", why.join(", or "))
}

/// Shortens an id, but not a path.
fn object(id: &str) -> String {
    if id.starts_with('/') { safe(id) } else { short_id(id) }
}

/// Minimum use of root's reserve that is mentioned: less is used by chance.
const MIN_OWED_BYTES: u64 = 1 << 20;

fn situation(document: &GcDoc, filesystem: &GcFilesystemDoc) -> String {
    let used = percent(filesystem.usage_before_percent);
    if document.header.kind == "rm" {
        return format!("{}: {used} used\n", safe(&filesystem.mount));
    }
    let thresholds = match (document.high_percent, document.low_percent) {
        (Some(high), Some(low)) => format!("; thresholds: high {high}%, low {low}%"),
        _ => String::new(),
    };
    let thresholds = match document.min_free_bytes {
        Some(floor) => format!("{thresholds}; starts below {} available", bytes(floor)),
        None => thresholds,
    };
    let wanted = match (filesystem.started.is_empty(), filesystem.wanted_bytes, filesystem.wanted_inodes) {
        (true, ..) if document.deleted.iter().any(|deleted| deleted.reason == "age") => {
            "no deletion needed for space, only by age".to_owned()
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
                "{} to free, the first {} of it for root's reserve",
                bytes(wanted),
                bytes(filesystem.owed_bytes)
            )
        }
        (false, wanted, 0) => format!("{} to free", bytes(wanted)),
        (false, 0, inodes) => format!("{inodes} inodes to free"),
        (false, wanted, inodes) => format!("{} and {inodes} inodes to free", bytes(wanted)),
    };
    let inodes = match filesystem.inodes_free_before {
        Some(free) if filesystem.wanted_inodes > 0 => format!(", {free} inodes free"),
        _ => String::new(),
    };
    format!("{}: {used} used{inodes}{thresholds}: {wanted}\n", safe(&filesystem.mount))
}

/// Returns the bytes that deletions for the space of other filesystems are predicted to free on this one.
fn freed_for_others(document: &GcDoc, filesystem: &GcFilesystemDoc) -> u64 {
    let several = document.filesystems.len() > 1;
    let for_space = document.deleted.iter().filter(|deleted| several && deleted.reason == "space");
    let here = for_space.filter_map(|deleted| freed_on(deleted, &filesystem.mount));
    here.fold(0, |sum, deleted| sum.saturating_add(deleted.predicted_bytes))
}

const GROUP: &str = "Images \"with N more\" share layers with those below them; together they free these.\n";

/// Prefix of names that podman gives to images built or loaded here. It is not a registry: see
/// containers-registries.conf(5).
const BUILT_HERE: &str = "localhost/";

/// Formats a hint about deleted images that no registry has: an operator can only pin such images.
fn built_here(all: &[&DeletedDoc]) -> String {
    let which = match all.iter().filter(|deleted| is_built_here(deleted)).count() {
        0 => return String::new(),
        1 => "1 image was built or loaded here and cannot be pulled again under its name".to_owned(),
        many => {
            format!("{many} images were built or loaded here and cannot be pulled again under their names")
        }
    };
    format!("{which}.\nTo keep such images: layersweep pin add '{BUILT_HERE}*'\n")
}

fn is_built_here(deleted: &DeletedDoc) -> bool {
    let mut names = deleted.names.iter();
    deleted.kind == "image" && names.len() > 0 && names.all(|name| name.starts_with(BUILT_HERE))
}

/// Formats the table of these deletions after an empty line.
fn deletions(document: &GcDoc, all: &[&DeletedDoc], screen: &Screen) -> String {
    if all.is_empty() {
        return String::new();
    }
    let only_images = all.iter().all(|deleted| deleted.kind == "image");
    let first = if only_images { "IMAGE" } else { "WHAT" };
    let mut headings = vec![first, "ID", "REASON", ">PREDICTED"];
    let is_done = !document.dry_run;
    if is_done {
        headings.push(">MEASURED");
    }
    headings.extend([">USED AFTER", ""]);
    let mut table = Table::new(screen, &headings);
    for deleted in all {
        let mut cells = vec![
            match deleted.kind {
                "image" if deleted.names.is_empty() && screen.width.is_some() => {
                    format!("<none> {}", short_id(&deleted.id))
                }
                "image" => screen.list(&deleted.names, "<none>", |name| safe(name)),
                kind => format!("{kind} {}", screen.list(&deleted.names, "<none>", |name| safe(name))),
            },
            // A log has a path instead of an id.
            if deleted.kind == "log" { String::new() } else { short_id(&deleted.id) },
            reason(deleted),
            bytes(deleted.predicted_bytes),
        ];
        if is_done {
            cells.push(measured(deleted.measured_bytes, deleted.others_wrote));
        }
        cells.push(deleted.usage_after_percent.map_or_else(|| "-".into(), |used| format!("{used:.2}%")));
        cells.push(if deleted.differs { "!".into() } else { String::new() });
        table.row(cells);
    }
    table.add_stores(all.iter().map(|deleted| deleted.store.as_str()));
    table.fit(&[1], &[(0, 24)]);
    let mut out = table.block();
    if all.iter().any(|deleted| deleted.group.is_some_and(|members| members > 1)) {
        out.push_str(&screen.note(GROUP.trim_end()));
    }
    if all.iter().any(|deleted| deleted.differs) {
        out.push_str(&screen.note(DIFFERS.trim_end()));
    }
    if screen.notes {
        out.push_str(&built_here(all));
    }
    out
}

fn reason(deleted: &DeletedDoc) -> String {
    match deleted.group {
        Some(members) if members > 1 => format!("{}, with {} more", deleted.reason, members - 1),
        _ => deleted.reason.to_owned(),
    }
}

/// Formats the kept objects by rule; for `rm`, each with its reason.
fn kept(document: &GcDoc, screen: &Screen) -> String {
    let mut table;
    if document.header.kind == "rm" {
        table = Table::new(screen, &["STAYS", "RULE", "WHY"]);
        for kept in &document.kept {
            table.row(vec![name_or_id(&kept.names, &kept.id), kept.rule.into(), safe(&kept.detail)]);
        }
        table.fit(&[], &[(0, 20), (2, 30)]);
    } else {
        let mut rules: BTreeMap<(bool, &str, &str), Vec<&KeptDoc>> = BTreeMap::new();
        for kept in &document.kept {
            rules.entry((kept.kind == "image", kept.kind, kept.rule)).or_default().push(kept);
        }
        let mut rules: Vec<_> = rules.into_iter().collect();
        // Images last, as among the deletions.
        rules
            .sort_by_key(|((image, kind, rule), kept)| (*image, *kind, std::cmp::Reverse(kept.len()), *rule));
        let only_images = rules.iter().all(|((image, ..), _)| *image);
        table =
            Table::new(screen, &["KEPT BY RULE", if only_images { ">IMAGES" } else { ">COUNT" }, "WHICH"]);
        for ((image, kind, rule), kept) in rules {
            let rule = if image { rule.to_owned() } else { format!("{kind}: {rule}") };
            table.row(vec![rule, kept.len().to_string(), which(&kept, screen)]);
        }
        table.fit(&[], &[(2, 30)]);
    }
    table.block()
}

/// Formats as many names as fit on a line, at most [`MOST`].
fn which(kept: &[&KeptDoc], screen: &Screen) -> String {
    // Width of the two columns before this one, with a long name of a rule.
    const BEFORE: usize = 26;
    let candidates = (1..=MOST).rev().map(|number| first_names(kept, number));
    let mut fitting =
        candidates.filter(|text| screen.width.is_none_or(|width| text.width() + BEFORE <= width));
    fitting.next().unwrap_or_else(|| first_names(kept, 1))
}

/// Maximum number of names of kept objects on a line.
const MOST: usize = 3;

fn first_names(kept: &[&KeptDoc], number: usize) -> String {
    let names: Vec<_> = kept.iter().take(number).map(|kept| name_or_id(&kept.names, &kept.id)).collect();
    let names = names.join(", ");
    match kept.len().saturating_sub(number) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// Counts the deletions by kind, for example `2 images` or `1 leak and 2 images`.
fn counted(document: &GcDoc) -> String {
    let kinds = [
        ("leak", "leaks"),
        ("container", "containers"),
        ("sandbox", "sandboxes"),
        ("log", "logs"),
        ("artifact", "artifacts"),
        ("image", "images"),
    ];
    let parts: Vec<_> = kinds
        .into_iter()
        .map(|(kind, plural)| {
            (kind, plural, document.deleted.iter().filter(|deleted| deleted.kind == kind).count())
        })
        .filter(|(.., number)| *number > 0)
        .map(|(kind, plural, number)| count(number, kind, plural))
        .collect();
    if parts.is_empty() { "0 images".into() } else { listed(&parts) }
}

fn ending(document: &GcDoc) -> String {
    let used = percent(document.usage_after_percent);
    let images = counted(document);
    let short = document.filesystems.iter().find(|filesystem| filesystem.wanted_inodes > 0);
    let inodes = short.and_then(|filesystem| filesystem.inodes_free_after);
    let inodes = inodes.map_or_else(String::new, |free| format!(", {free} inodes free"));
    if document.dry_run {
        return match (document.outcome, document.deleted.len()) {
            (OutcomeKind::NotNeeded, _) => "Nothing would be deleted.\n".into(),
            (OutcomeKind::Refused, 0) => "Refused: nothing would be deleted.\n".into(),
            (outcome, _) => format!(
                "{}: would delete {images} and free {}{}; {used} used{inodes} after.\n",
                words(document, outcome),
                bytes(document.predicted_bytes),
                believed(document),
            ),
        };
    }
    let byproduct = match document.byproduct_bytes {
        0 => String::new(),
        more => format!(", and {} of other garbage", bytes(more)),
    };
    match document.outcome {
        OutcomeKind::NotNeeded if document.resumed > 0 => "Nothing more was deleted.\n".into(),
        OutcomeKind::NotNeeded => "Nothing was deleted.\n".into(),
        OutcomeKind::Refused if document.deleted.is_empty() => "Refused: nothing was deleted.\n".into(),
        outcome => format!(
            "{}: {images} deleted, {} ({} predicted){byproduct}{}; {used} used{inodes} now.\n",
            words(document, outcome),
            freed(document),
            bytes(document.predicted_bytes),
            believed(document),
        ),
    }
}

fn freed(document: &GcDoc) -> String {
    match document.measured_bytes {
        Some(_) if document.deleted.iter().any(|deleted| deleted.others_wrote) => {
            "freed bytes unknown since others were writing".into()
        }
        Some(measured) => format!("{} freed", signed_bytes(measured)),
        None => "- freed".into(),
    }
}

/// Formats the bytes that the kubelet's algorithm believes that the same deletions free.
fn believed(document: &GcDoc) -> String {
    document
        .believed_bytes
        .map_or_else(String::new, |believed| format!(", believed to be {}", bytes(believed)))
}

fn words(document: &GcDoc, outcome: OutcomeKind) -> &'static str {
    match (document.header.kind, outcome) {
        ("rm", OutcomeKind::Reached) => "Done",
        ("rm", OutcomeKind::Refused) => "Refused in part",
        (_, OutcomeKind::Reached) if !document.trigger.space => "Done by age",
        (_, OutcomeKind::Reached) => "Low threshold reached",
        (_, OutcomeKind::NotReached) => "Low threshold NOT reached",
        (_, OutcomeKind::Refused) => "REFUSED in part",
        _ => "FAILED",
    }
}

#[cfg(test)]
mod tests;
