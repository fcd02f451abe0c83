//! Text of `gc` and `rm`: a run that deletes objects, carried out or planned. [`gc`] lists the sections of the screen.

mod deletions;
mod ending;
mod kept;
mod remaining;
mod side_by_side;
mod situation;

use super::format::{resumed, safe, short_id};
use super::screen::Screen;
use crate::model::text::display::listed;
use crate::report::json::{DocumentKind, GcDoc};

pub fn gc(document: &GcDoc, screen: &Screen) -> String {
    let mut out = resumed(document.resumed);
    for comparison in &document.comparison {
        out.push_str(&side_by_side::side_by_side(document, comparison, screen));
    }
    out.push_str(&filesystems(document, screen));
    out.push_str(&kept::kept(document, screen));
    out.push_str(&kept::since_run_began(document));
    out.push_str(&failures(document));
    out.push('\n');
    out.push_str(&ending::ending(document));
    out.push_str(&ending::expected_pulls(document));
    let is_gc = document.header.kind == DocumentKind::Gc;
    if !screen.notes {
        // The journal of a timer names the stores that the run left full.
        return if is_gc {
            out + &remaining::closed_stores(document) + &remaining::without_store(document)
        } else {
            out
        };
    }
    out.push_str(&absent(document, screen));
    for hint in &document.hints {
        out.push_str(&format!("hint: {}\n", safe(hint)));
    }
    if is_gc {
        out.push_str(&remaining::missed(document, screen));
        out.push_str(&remaining::without_store(document));
        out.push_str(&kept::kept_not_repullable(document, screen));
    }
    out
}

/// Formats each filesystem with its deletions. With several filesystems, each has its own block, and a deletion is in the
/// block of every filesystem on which it frees bytes.
fn filesystems(document: &GcDoc, screen: &Screen) -> String {
    let mut out = String::new();
    let several = document.filesystems.len() > 1;
    let mut has_block = false;
    for filesystem in &document.filesystems {
        if has_block {
            out.push('\n');
        }
        // The comparison contains the line about its filesystem.
        if document.comparison.iter().all(|comparison| comparison.mount != filesystem.usage.mount) {
            out.push_str(&situation::situation(document, filesystem));
        }
        if several {
            let here: Vec<_> = document
                .deleted
                .iter()
                .filter_map(|deleted| deletions::freed_on(deleted, &filesystem.usage.mount))
                .collect();
            has_block |= !here.is_empty();
            let each: Vec<_> = here.iter().collect();
            out.push_str(&deletions::deletions(document, Some(filesystem), &each, screen));
        }
    }
    let rest: Vec<_> = document
        .deleted
        .iter()
        .filter(|deleted| {
            !several
                || document
                    .filesystems
                    .iter()
                    .all(|filesystem| deletions::freed_on(deleted, &filesystem.usage.mount).is_none())
        })
        .collect();
    let only = document.filesystems.first().filter(|_| !several);
    out + &deletions::deletions(document, only, &rest, screen)
}

/// Formats the failures of a run, and the events that the kubelet would have recorded.
fn failures(document: &GcDoc) -> String {
    let mut out = String::new();
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
    out
}

/// Shortens an id, but not a path.
fn object(id: &str) -> String {
    if id.starts_with('/') { safe(id) } else { short_id(id) }
}

/// Maximum number of lines of a list that are named.
const MOST_ABSENT: usize = 5;

/// Formats the lines of the lists that name no image here, which is usual for a list of a whole fleet.
fn absent(document: &GcDoc, screen: &Screen) -> String {
    let mut names: Vec<_> = document.absent.iter().take(MOST_ABSENT).map(|line| safe(line)).collect();
    let number = document.absent.len();
    if number == 0 {
        return String::new();
    }
    if number > MOST_ABSENT {
        names.push(format!("{} more", number - MOST_ABSENT));
    }
    let lines = if number == 1 {
        "1 line of the list names".to_owned()
    } else {
        format!("{number} lines of the list name")
    };
    screen.note(&format!("{lines} no image of this node: {}.", listed(&names)))
}

#[cfg(test)]
mod tests;
