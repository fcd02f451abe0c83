//! Text of `gc` and `rm`: a run that deletes objects, carried out or planned.

mod side_by_side;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use super::format::{
    DIFFERS, bytes, inodes, measured, name_or_id, never_pulled, percent, resumed, safe, short_id,
    signed_bytes,
};
use super::report::deletions::Deletions;
use super::screen::Screen;
use super::table::Table;
use crate::app::diagnosis::StoppedUse;
use crate::model::OutcomeKind;
use crate::model::display::{count, listed, thousands};
use crate::model::outcome::differs;
use crate::model::plan::{Phase, Reason, TargetKind};
use crate::model::rules::Rule;
use crate::report::json::{DeletionDoc, DocumentKind, GcDoc, GcFilesystemDoc, KeptDoc};

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
    out.push_str(&since_run_began(document));
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
    out.push_str(&absent(document, screen));
    for hint in &document.hints {
        out.push_str(&format!("hint: {}\n", safe(hint)));
    }
    if document.header.kind == DocumentKind::Gc && document.outcome == OutcomeKind::NotReached {
        match document.believed_bytes {
            Some(believed) if believed >= document.wanted_bytes => {
                out.push_str("The kubelet's algorithm believes that this is enough.\n");
            }
            _ => out.push_str(&remaining(document, screen)),
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
        for inode_use in &document.inode_use {
            out.push_str(&format!("{}\n", safe(&inode_use.text)));
        }
    }
    if document.header.kind == DocumentKind::Gc {
        out.push_str(&kept_not_repullable(document, screen));
    }
    out
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

/// Returns a deletion with the bytes that it frees on one filesystem, or `None` if it frees none there.
fn freed_on(deleted: &DeletionDoc, mount: &str) -> Option<DeletionDoc> {
    let freed = deleted.freed.iter().find(|freed| freed.filesystem == mount && freed.predicted_bytes > 0)?;
    let (predicted_bytes, measured_bytes) = (freed.predicted_bytes, freed.measured_bytes);
    Some(DeletionDoc {
        predicted_bytes,
        measured_bytes,
        usage_after_percent: freed.usage_after_percent,
        differs: deleted.differs && measured_bytes.is_some_and(|bytes| differs(predicted_bytes, bytes)),
        ..deleted.clone()
    })
}

/// Explains why the remaining images are kept: for each rule, the one with the most bytes first, the images and the
/// remedy.
fn remaining(document: &GcDoc, screen: &Screen) -> String {
    // Deleting images does not help against what is missing.
    let mut missed = document
        .filesystems
        .iter()
        .filter(|filesystem| filesystem.missing_bytes > 0 || filesystem.missing_inodes > 0)
        .peekable();
    let is_helpless = missed.peek().is_some()
        && missed.all(|filesystem| {
            let mut uses = document.inode_use.iter();
            let is_outside = uses.any(|used| used.is_outside && used.mount == filesystem.mount);
            filesystem.missing_bytes == 0 && (is_outside || filesystem.few_inodes.is_some())
        });
    if is_helpless {
        return String::new();
    }
    let images =
        document.kept.iter().filter(|kept| matches!(kept.kind, TargetKind::Image | TargetKind::Artifact));
    let mut rules: BTreeMap<Rule, Vec<&KeptDoc>> = BTreeMap::new();
    images.for_each(|kept| rules.entry(kept.rule).or_default().push(kept));
    let mut rules: Vec<_> = rules.into_iter().collect();
    let bytes =
        |kept: &[&KeptDoc]| kept.iter().fold(0, |sum: u64, kept| sum.saturating_add(kept.frees_bytes));
    rules.sort_by_key(|(_, kept)| Reverse((bytes(kept), kept.len())));
    let mut out = String::new();
    for (rule, kept) in rules {
        let stopped = document.stopped_use.as_ref().filter(|stopped| {
            rule == Rule::InUse && kept.iter().any(|kept| stopped.images.contains(&kept.id))
        });
        let reason = match stopped {
            Some(stopped) => Some(in_use(stopped, &kept)),
            None => reason_and_remedy(rule, &kept, document.header.generated_at, screen),
        };
        if let Some((state, remedy)) = reason {
            let verb = if kept.len() == 1 { "is" } else { "are" };
            out.push_str(&format!("{} {verb} {state}; {remedy}\n", count(kept.len(), "image", "images")));
        }
    }
    let is_explained = document.kept.iter().any(|kept| kept.rule == Rule::NotRepullable)
        || document.errors.iter().any(|error| error.phase == Phase::RemoveImage);
    if out.is_empty() && !is_explained {
        return "No image remains; `layersweep usage` shows what uses the disk.\n".to_owned();
    }
    out
}

/// Returns the state of images that a rule keeps, as an adjective, and what ends it; `None` if the run needed nothing
/// of them.
fn reason_and_remedy(
    rule: Rule,
    kept: &[&KeptDoc],
    now: Timestamp,
    screen: &Screen,
) -> Option<(String, String)> {
    let largest = kept.iter().max_by_key(|kept| kept.frees_bytes)?;
    let explain = safe(&largest.explain);
    let until = kept.iter().filter_map(|kept| kept.until).max().map(|until| screen.time_on(until, now));
    let says = |what: &str| format!("`{explain}` says {what}");
    let (state, remedy) = match rule {
        Rule::MinAge => match until {
            Some(until) => {
                (format!("too young until {until}"), "--min-age 0s lets gc delete them now".to_owned())
            }
            None => ("too young".to_owned(), "--min-age 0s lets gc delete them now".to_owned()),
        },
        Rule::BackingOff => (
            match until {
                Some(until) => format!("left alone until {until}, since a deletion failed"),
                None => "left alone, since a deletion failed".to_owned(),
            },
            says("why it failed"),
        ),
        Rule::InUse => ("in use".to_owned(), says("by which container")),
        Rule::Pinned => ("pinned".to_owned(), says("where")),
        Rule::SandboxImage => ("used for the sandboxes of pods".to_owned(), "they have to stay".to_owned()),
        Rule::StaticPod => ("named by a static pod".to_owned(), says("by which")),
        Rule::Quadlet => ("named by a quadlet".to_owned(), says("by which")),
        Rule::PullInProgress => ("being pulled".to_owned(), "run this again after the pull".to_owned()),
        Rule::ProtectedName => {
            let keys = "see protect.names and protect.references_file in the configuration";
            ("protected by name".to_owned(), keys.to_owned())
        }
        Rule::ProtectedLabel => {
            ("protected by label".to_owned(), "see protect.labels in the configuration".to_owned())
        }
        Rule::NewestOfRepository => {
            ("among the newest of a repository".to_owned(), "see keep_newest in the configuration".to_owned())
        }
        Rule::ReadOnlyStore => {
            ("in an additional store".to_owned(), "layersweep never deletes from such a store".to_owned())
        }
        Rule::DamagedStore => (
            "kept because records cannot be read".to_owned(),
            says("which; `layersweep sweep` shows the damage"),
        ),
        Rule::OutOfReach => ("out of reach".to_owned(), says("why")),
        Rule::AgeUnknown => ("of unknown age".to_owned(), "`layersweep scan` records it".to_owned()),
        Rule::UsedJustNow => ("in use when the run began".to_owned(), "run this again".to_owned()),
        Rule::FreesNothing => (
            match kept.len() {
                1 => "too small alone, or shares its bytes with what stays".to_owned(),
                _ => "too small alone, or share their bytes with what stays".to_owned(),
            },
            says("what one frees, and what is to be removed first"),
        ),
        Rule::RunEnded => ("not reached before the run ended".to_owned(), "run this again".to_owned()),
        Rule::RemovalFailed | Rule::Unmeasured | Rule::NotProven => {
            ("not deleted because of an error".to_owned(), says("more; see the errors above"))
        }
        _ => return None,
    };
    Some((state, remedy))
}

/// Returns the state of images in use of which stopped containers alone use some, and what ends that use.
fn in_use(stopped: &StoppedUse, kept: &[&KeptDoc]) -> (String, String) {
    let number = kept.iter().filter(|kept| stopped.images.contains(&kept.id)).count();
    let mut containers: Vec<_> = stopped.containers.iter().take(MOST).map(|name| safe(name)).collect();
    let more = stopped.containers.len().saturating_sub(MOST);
    containers.extend((more > 0).then(|| format!("{more} more")));
    let which = if number == kept.len() { "" } else { &format!(", {number} of them") };
    let state = format!(
        "in use{which} only by stopped containers: {} ({})",
        containers.join(", "),
        bytes(stopped.bytes)
    );
    (state, "`layersweep report` has the commands that remove these".to_owned())
}

/// Shortens an id, but not a path.
fn object(id: &str) -> String {
    if id.starts_with('/') { safe(id) } else { short_id(id) }
}

/// Minimum use of root's reserve that is mentioned: less is used by chance.
const MIN_OWED_BYTES: u64 = 1 << 20;

fn situation(document: &GcDoc, filesystem: &GcFilesystemDoc) -> String {
    let used = percent(filesystem.usage_before_percent);
    if document.header.kind == DocumentKind::Rm {
        return format!("{}: {used} used before\n", safe(&filesystem.mount));
    }
    let thresholds = match (document.high_percent, document.low_percent) {
        (Some(high), Some(low)) => format!("; thresholds: high {high}%, low {low}%"),
        _ => String::new(),
    };
    let thresholds = match document.min_free_bytes {
        Some(floor) => format!("{thresholds}; starts below {} available", bytes(floor)),
        None => thresholds,
    };
    let wanted = match (!filesystem.started.any(), filesystem.wanted_bytes, filesystem.wanted_inodes) {
        (true, ..) if document.deleted.iter().any(|deleted| deleted.reason == Reason::Age) => {
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
    format!("{}: {used} used before{inodes}{thresholds}: {wanted}{few}\n", safe(&filesystem.mount))
}

/// Formats the free inodes: `203 of 196,608 inodes free`.
fn inodes_free(filesystem: &GcFilesystemDoc, free: Option<u64>) -> String {
    format!("{} of {} inodes free", inodes(free), inodes(filesystem.inodes))
}

/// Returns the bytes that deletions for the space of other filesystems are predicted to free on this one.
fn freed_for_others(document: &GcDoc, filesystem: &GcFilesystemDoc) -> u64 {
    let several = document.filesystems.len() > 1;
    let for_space = document.deleted.iter().filter(|deleted| several && deleted.reason == Reason::Space);
    let here = for_space.filter_map(|deleted| freed_on(deleted, &filesystem.mount));
    here.fold(0, |sum, deleted| sum.saturating_add(deleted.predicted_bytes))
}

const GROUP: &str = "An image \"with N more\" and the N images below it share layers, which only the last deletion frees: \
                     delete all of them, or none.\n";

/// Formats what the rule `not-repullable` costs.
fn kept_not_repullable(document: &GcDoc, screen: &Screen) -> String {
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

/// Formats the table of these deletions after an empty line.
fn deletions(document: &GcDoc, all: &[&DeletionDoc], screen: &Screen) -> String {
    if all.is_empty() {
        return String::new();
    }
    let only_images = all.iter().all(|deleted| deleted.kind == TargetKind::Image);
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
                TargetKind::Image if deleted.names.is_empty() && screen.width.is_some() => {
                    format!("<none> {}", short_id(&deleted.id))
                }
                TargetKind::Image => screen.list(&deleted.names, "<none>", |name| safe(name)),
                kind => format!("{kind} {}", screen.list(&deleted.names, "<none>", |name| safe(name))),
            },
            // A log has a path instead of an id.
            if deleted.kind == TargetKind::Log { String::new() } else { short_id(&deleted.id) },
            reason(deleted),
            bytes(deleted.predicted_bytes),
        ];
        if is_done {
            cells.push(measured(deleted.measured_bytes, deleted.disturbed));
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
    let lost = never_pulled(all.iter().filter(|deleted| deleted.never_pulled).count());
    out.push_str(&lost.map_or_else(String::new, |text| screen.note(&text)));
    out
}

fn reason(deleted: &DeletionDoc) -> String {
    match deleted.group {
        Some(members) if members > 1 => format!("{}, with {} more", deleted.reason, members - 1),
        _ => deleted.reason.to_string(),
    }
}

/// Formats the kept objects by rule; for `rm`, each with its reason.
fn kept(document: &GcDoc, screen: &Screen) -> String {
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
fn since_run_began(document: &GcDoc) -> String {
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

fn ending(document: &GcDoc) -> String {
    let used = percent(document.usage_after_percent);
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
    match document.outcome {
        OutcomeKind::NotNeeded if document.resumed > 0 => "Nothing more was deleted.\n".into(),
        OutcomeKind::NotNeeded => "Nothing was deleted.\n".into(),
        OutcomeKind::Refused if document.deleted.is_empty() => "Refused: nothing was deleted.\n".into(),
        outcome => format!(
            "{}: {objects} deleted, {} ({} predicted){byproduct}{}; {used} used{inodes} now.{short}\n",
            words(document, outcome),
            freed(document),
            bytes(document.predicted_bytes),
            believed(document),
        ),
    }
}

fn freed(document: &GcDoc) -> String {
    match document.measured_bytes {
        Some(_) if document.deleted.iter().any(|deleted| deleted.disturbed) => {
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

/// Returns the result of a plan in parentheses.
fn as_planned(document: &GcDoc, outcome: OutcomeKind) -> &'static str {
    match (document.header.kind, outcome) {
        (_, OutcomeKind::Failed) => " (not all of it can be deleted: see the errors)",
        (_, OutcomeKind::Refused) => " (the rest is refused)",
        (_, OutcomeKind::NotReached) if is_reached_for_bytes(document) => {
            " (reaches the low threshold for bytes only)"
        }
        (_, OutcomeKind::NotReached) if lacks_inodes_alone(document) => " (does not free enough inodes)",
        (_, OutcomeKind::NotReached) => " (does NOT reach the low threshold)",
        (_, OutcomeKind::Reached) if document.trigger.space => " (reaches the low threshold)",
        _ => "",
    }
}

/// Returns true if the targets were missed for inodes alone.
fn is_reached_for_bytes(document: &GcDoc) -> bool {
    let mut filesystems = document.filesystems.iter();
    let missed = || document.filesystems.iter().filter(|filesystem| filesystem.missing_inodes > 0);
    filesystems.all(|filesystem| filesystem.missing_bytes == 0)
        && missed().any(|filesystem| filesystem.started.used || filesystem.started.free)
}

/// Returns true if inodes are missing after the run, and no bytes.
fn lacks_inodes_alone(document: &GcDoc) -> bool {
    let mut filesystems = document.filesystems.iter();
    filesystems.all(|filesystem| filesystem.missing_bytes == 0)
        && document.filesystems.iter().any(|filesystem| filesystem.missing_inodes > 0)
}

/// Formats the free inodes of the first filesystem that was short of them, if it is not any more.
fn enough_inodes(document: &GcDoc) -> String {
    let mut short = document.filesystems.iter().filter(|filesystem| filesystem.wanted_inodes > 0);
    let short = short.next().filter(|filesystem| filesystem.missing_inodes == 0);
    short.map_or_else(String::new, |filesystem| {
        format!(", {}", inodes_free(filesystem, filesystem.inodes_free_after))
    })
}

/// Formats the filesystems that are short of inodes after the run: `STILL FULL: 203 of 196,608 inodes free`.
fn still_short(document: &GcDoc) -> String {
    let several = document.filesystems.len() > 1;
    let short = document.filesystems.iter().filter(|filesystem| filesystem.missing_inodes > 0);
    let short = short.map(|filesystem| {
        let free = filesystem.inodes_free_after.zip(filesystem.inodes);
        let is_full = free.is_some_and(|(free, all)| free < all / 100);
        let words = if is_full { "STILL FULL" } else { "STILL SHORT OF INODES" };
        let on = if several { format!(" on {}", safe(&filesystem.mount)) } else { String::new() };
        let in_images = document.inode_use.iter().find(|inode_use| inode_use.mount == filesystem.mount);
        let in_images = in_images.map_or_else(String::new, |inode_use| {
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

#[cfg(test)]
mod tests;
