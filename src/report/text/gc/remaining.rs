//! Why a run that missed its target did not delete more, and what ends that.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::kept::MOST;
use crate::model::OutcomeKind;
use crate::model::deletion::plan::{Phase, TargetKind};
use crate::model::rules::Rule;
use crate::model::text::display::count;
use crate::report::json::{GcDoc, KeptDoc};
use crate::report::text::format::{bytes, name_or_id, safe};
use crate::report::text::report::deletions::Deletions;
use crate::report::text::screen::Screen;
use crate::services::diagnosis::StoppedHolders;

/// Width of notes if the output is not a terminal.
const WIDTH: usize = 80;

/// Formats what a run that missed its target leaves: the images that are kept, and the other users of the disk.
pub(super) fn missed(document: &GcDoc, screen: &Screen) -> String {
    let is_missed = document.outcome == OutcomeKind::NotReached
        || (document.outcome == OutcomeKind::Refused
            && document.filesystems.iter().any(|filesystem| filesystem.outcome == OutcomeKind::NotReached));
    if !is_missed {
        return String::new();
    }
    let mut out = match document.believed_bytes {
        Some(believed) if believed >= document.wanted_bytes => {
            "The kubelet's algorithm believes that this is enough.\n".to_owned()
        }
        _ => remaining(document, screen),
    };
    for outside in document.not_in_store.iter().filter(|outside| outside.has_store) {
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
    out
}

/// Formats the full filesystems without a store: one line for each.
pub(super) fn without_store(document: &GcDoc) -> String {
    let full = document.not_in_store.iter().filter(|outside| !outside.has_store);
    full.map(|outside| format!("{}\n", safe(&outside.text))).collect()
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
            let is_outside = uses.any(|used| used.is_outside && used.mount == filesystem.usage.mount);
            filesystem.missing_bytes == 0 && (is_outside || filesystem.few_inodes.is_some())
        });
    if is_helpless {
        return String::new();
    }
    let images =
        document.kept.iter().filter(|kept| matches!(kept.kind, TargetKind::Image | TargetKind::Artifact));
    let mut rules: BTreeMap<Rule, Vec<&KeptDoc>> = BTreeMap::new();
    images
        .filter(|kept| kept.rule != Rule::OutOfReach || kept.closed_store.is_none())
        .for_each(|kept| rules.entry(kept.rule).or_default().push(kept));
    let mut rules: Vec<_> = rules.into_iter().collect();
    let bytes =
        |kept: &[&KeptDoc]| kept.iter().fold(0, |sum: u64, kept| sum.saturating_add(kept.frees_bytes));
    rules.sort_by_key(|(rule, kept)| (Reverse((bytes(kept), kept.len())), rule.as_str()));
    let mut out = closed_stores(document);
    for (rule, kept) in rules {
        let verb = if kept.len() == 1 { "is" } else { "are" };
        if rule == Rule::InUse {
            out.push_str(&format!(
                "{} {verb} in use{}\n",
                count(kept.len(), "image", "images"),
                in_use(&document.stopped, kept)
            ));
        } else if let Some((state, remedy)) =
            reason_and_remedy(rule, &kept, document.header.generated_at, screen)
        {
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

/// Formats the stores in which the run deletes nothing, on filesystems that are still too full: one line for each. The
/// errors have those that were refused.
pub(super) fn closed_stores(document: &GcDoc) -> String {
    let lines = document.stores.iter().enumerate().filter_map(|(position, store)| {
        let kept = document.kept.iter().filter(|kept| kept.rule == Rule::OutOfReach);
        let here: Vec<_> = kept.filter(|kept| kept.closed_store == Some(position)).collect();
        let mut filesystems = document.filesystems.iter();
        let is_full = filesystems.any(|filesystem| {
            filesystem.usage.mount == store.mount && filesystem.outcome == OutcomeKind::NotReached
        });
        let is_refused = document.errors.iter().any(|error| error.id.as_deref() == Some(&store.root));
        if here.is_empty() || !is_full || is_refused {
            return None;
        }
        let verb = if here.len() == 1 { "is" } else { "are" };
        let sum = bytes(store.unused_bytes);
        let images = count(here.len(), "unused image", "unused images");
        let root = safe(&store.root);
        let remedy = safe(store.remedy.as_ref().or(store.why.as_ref()).map_or("", String::as_str));
        Some(format!("{images} ({sum}) {verb} in {root}; {remedy}\n"))
    });
    lines.collect()
}

/// Returns the state of images that a rule keeps, as an adjective, and what ends it; `None` if the run needed nothing
/// of them.
pub(super) fn reason_and_remedy(
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

/// Describes the users of images in use: the stopped containers that alone keep some of them, and the users of the largest
/// others.
fn in_use(stopped: &StoppedHolders, kept: Vec<&KeptDoc>) -> String {
    let number = kept.len();
    let (held, mut used): (Vec<_>, Vec<_>) =
        kept.into_iter().partition(|kept| stopped.keeps(&kept.store, &kept.id));
    let which = match held.len() {
        0 => String::new(),
        held if held == number => format!(" only by stopped containers{}", names(stopped)),
        held => format!(", {held} of them only by stopped containers{}", names(stopped)),
    };
    used.sort_by(|a, b| b.frees_bytes.cmp(&a.frees_bytes).then_with(|| a.id.cmp(&b.id)));
    let named = used.iter().take(MOST);
    let named =
        named.map(|kept| format!("\n  {}: {}", name_or_id(&kept.names, &kept.id), safe(&kept.detail)));
    let more = used.get(MOST).map_or_else(String::new, |next| {
        format!("\n  and {} more; `{}` says by which container", used.len() - MOST, safe(&next.explain))
    });
    format!("{which}{}{more}", named.collect::<String>())
}

/// Names the containers that keep images from deletion, with what their removal lets free.
fn names(stopped: &StoppedHolders) -> String {
    let removals = stopped.removals.iter();
    let removals =
        removals.filter(|removal| removal.images.iter().any(|image| stopped.keeps(&image.store, &image.id)));
    let mut containers: Vec<_> = removals.flat_map(|removal| &removal.containers).collect();
    containers.sort_by(|a, b| (&a.store, &a.id).cmp(&(&b.store, &b.id)));
    containers.dedup_by(|a, b| (&a.store, &a.id) == (&b.store, &b.id));
    let mut names: Vec<_> = containers.iter().take(MOST).map(|container| safe(&container.name)).collect();
    let more = containers.len().saturating_sub(MOST);
    names.extend((more > 0).then(|| format!("{more} more")));
    let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    format!("{names} ({})", bytes(stopped.keeps_bytes))
}
