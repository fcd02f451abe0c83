//! Objects that are kept, and the rules that keep them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use unicode_width::UnicodeWidthStr;

use crate::model::deletion::plan::TargetKind;
use crate::model::rules::Rule;
use crate::model::text::display::count;
use crate::report::json::{DocumentKind, GcDoc, KeptDoc};
use crate::report::text::format::{bytes, name_or_id, safe};
use crate::report::text::screen::Screen;
use crate::report::text::table::Table;

/// Formats the kept objects by rule; for `rm`, each with its reason.
pub(super) fn kept(document: &GcDoc, screen: &Screen) -> String {
    let mut table;
    if document.header.kind == DocumentKind::Rm {
        table = Table::new(screen, &["STAYS", "RULE", "WHY"]);
        for kept in &document.kept {
            table.row(vec![name_or_id(&kept.names, &kept.id), kept.rule.to_string(), safe(&kept.detail)]);
        }
        table.fit(&[], &[(0, 20), (2, 30)]);
    } else {
        let mut rules: BTreeMap<(TargetKind, Rule), Vec<&KeptDoc>> = BTreeMap::new();
        for kept in &document.kept {
            rules.entry((kept.kind, kept.rule)).or_default().push(kept);
        }
        let mut rules: Vec<_> = rules.into_iter().collect();
        // Images last, as among the deletions.
        rules.sort_by_key(|((kind, rule), kept)| {
            (*kind == TargetKind::Image, kind.as_str(), Reverse(kept.len()), rule.as_str())
        });
        let only_images = rules.iter().all(|((kind, _), _)| *kind == TargetKind::Image);
        table =
            Table::new(screen, &["KEPT BY RULE", if only_images { ">IMAGES" } else { ">COUNT" }, "WHICH"]);
        for ((kind, rule), kept) in rules {
            let rule = if kind == TargetKind::Image { rule.to_string() } else { format!("{kind}: {rule}") };
            table.row(vec![rule, kept.len().to_string(), which(&kept, screen)]);
        }
        table.fit(&[], &[(2, 30)]);
    }
    table.block()
}

/// Formats the reasons to keep images that came up during the run, each once. The table of `rm` has them.
pub(super) fn since_run_began(document: &GcDoc) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let kept = document.kept.iter().filter(|_| document.header.kind == DocumentKind::Gc);
    for kept in kept.filter(|kept| kept.since_run_began) {
        *reasons.entry(&kept.detail).or_default() += 1;
    }
    let lines = reasons.into_iter().take(MOST);
    lines
        .map(|(reason, number)| format!("{}: {}\n", count(number, "image", "images"), safe(reason)))
        .collect()
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
pub(super) const MOST: usize = 3;

fn first_names(kept: &[&KeptDoc], number: usize) -> String {
    let listed = kept.iter().take(number).map(|kept| name_or_id(&kept.names, &kept.id));
    let names = listed.collect::<Vec<_>>().join(", ");
    match kept.len().saturating_sub(number) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

pub(super) fn kept_not_repullable(document: &GcDoc, screen: &Screen) -> String {
    let kept: Vec<_> = document.kept.iter().filter(|kept| kept.rule == Rule::NotRepullable).collect();
    if kept.is_empty() {
        return String::new();
    }
    let frees = kept.iter().fold(0, |sum: u64, kept| sum.saturating_add(kept.frees_bytes));
    screen.note(&format!(
        "{} stay with {} never pulled: perhaps no registry has such an image; protect.not_repullable = \"never\" \
         allows their deletion.",
        bytes(frees),
        count(kept.len(), "image", "images")
    ))
}
