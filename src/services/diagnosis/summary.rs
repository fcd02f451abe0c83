//! The diagnosis in three sentences: how full the disk is, what uses it, and what can be freed.

use crate::model::FilesystemIx;
use crate::model::documents::urgency::FULL;
use crate::model::space::BytesAndInodes;
use crate::model::text::display::{bytes, listed, thousands};
use crate::policy::thresholds::{Counted, DiskThreshold};
use crate::services::diagnosis::{Cause, CauseGroup, CauseKind, Disk, LEAST, PartKind, Planned};

/// Minimum percentage of reserved bytes that is mentioned.
const RESERVED: f64 = 1.0;
/// Maximum number of causes named in the last sentence.
const NAMED: usize = 3;

/// Returns three sentences about the fullest disk. `complete`: everything could be read. `foreign`: the disk belongs
/// to a node that does not run.
pub fn summary(disks: &[Disk], causes: &[Cause], complete: bool, foreign: bool) -> [String; 3] {
    let Some((ix, disk)) = fullest(disks) else {
        return [
            "No filesystem with a store could be examined.".into(),
            "What uses the space is unknown.".into(),
            "How much can be freed is unknown.".into(),
        ];
    };
    let causes: Vec<_> = causes.iter().filter(|cause| cause.filesystem_ix == ix).collect();
    let mut last = remedy_sentence(disk, &causes, foreign);
    if !complete {
        last.push_str(" Something could not be read, so figures are lower bounds.");
    }
    [fullness_sentence(disks, disk), usage_sentence(disk, &causes), last]
}

/// Returns the disk that the summary describes: the fullest, by bytes or by inodes, of those that can fill up. A disk
/// past a threshold comes before one that is fuller, but past none.
pub(super) fn fullest(disks: &[Disk]) -> Option<(FilesystemIx, &Disk)> {
    let fullest = disks.iter().enumerate().rev().max_by(|(_, a), (_, b)| {
        let can_fill_up = b.is_full_by_design.cmp(&a.is_full_by_design);
        let by_threshold = has_room(b).cmp(&has_room(a));
        can_fill_up.then(by_threshold).then(most_used(a).total_cmp(&most_used(b)))
    });
    fullest.map(|(position, disk)| (position.into(), disk))
}

/// Returns the used percentage of bytes or inodes, whichever is larger.
pub(super) fn most_used(disk: &Disk) -> f64 {
    disk.used_percent().unwrap_or(-1.0).max(disk.inodes_percent().unwrap_or(-1.0))
}

fn fullness_sentence(disks: &[Disk], disk: &Disk) -> String {
    fn distance(disk: &Disk, threshold: &DiskThreshold) -> f64 {
        threshold.percent - disk.percent_of(threshold.of).unwrap_or(0.0)
    }
    let Some(percent) = disk.used_percent() else {
        return format!(
            "The usage of {} is unknown: its figures are inconsistent.",
            disk.filesystem.mount.display()
        );
    };
    let passed: Vec<_> = disk.acting(true).collect();
    let next = disk.acting(false).min_by(|a, b| distance(disk, a).total_cmp(&distance(disk, b)));
    let thresholds = match (passed.as_slice(), next) {
        ([], None) if percent >= FULL => "; no thresholds are set here".to_owned(),
        ([], None) => String::new(),
        ([], Some(next)) => format!(", below every threshold (next: {})", next),
        (passed, _) => {
            let names: Vec<_> = passed.iter().map(ToString::to_string).collect();
            format!(", above {}", listed(&names))
        }
    };
    let others = match disks.iter().filter(|disk| !disk.is_full_by_design).count() {
        0 | 1 => String::new(),
        many => format!(" (the fullest of {many} filesystems)"),
    };
    let by_bytes = percent >= FULL || passed.iter().any(|threshold| threshold.of == Counted::Bytes);
    let numbers = format!(
        "{percent:.1}% {}: {} of {} used, {} available{}{thresholds}",
        if by_bytes { "full" } else { "in use" },
        bytes(disk.filesystem.used_bytes),
        bytes(disk.filesystem.capacity_bytes),
        bytes(disk.filesystem.available_bytes),
        reserved(disk),
    );
    match (short_of_inodes(disk), disk.inodes_percent()) {
        (true, Some(_)) if disk.filesystem.inodes_free == 0 => format!(
            "{}{others} has no free inodes: all {} are used, so no file can be created; its bytes are \
                {numbers}.",
            disk.filesystem.mount.display(),
            disk.filesystem.inodes,
        ),
        (true, Some(inodes)) => format!(
            "{}{others} has used {inodes:.1}% of its {} inodes; its bytes are {numbers}.",
            disk.filesystem.mount.display(),
            disk.filesystem.inodes,
        ),
        _ => format!("{}{others} is {numbers}.", disk.filesystem.mount.display()),
    }
}

/// Returns a clause about bytes that are neither used nor available, if they are enough to make the numbers look
/// wrong.
fn reserved(disk: &Disk) -> String {
    let rest = disk.filesystem.reserved_bytes();
    if share(rest, disk.filesystem.capacity_bytes) > RESERVED {
        format!(", {} reserved for root or not available", bytes(rest))
    } else {
        String::new()
    }
}

/// Returns true if inodes are short, regardless of free bytes.
pub(super) fn short_of_inodes(disk: &Disk) -> bool {
    disk.scarce() == Counted::Inodes
}

fn usage_sentence(disk: &Disk, causes: &[&Cause]) -> String {
    let mut groups: Vec<(&'static str, u64)> = Vec::new();
    for part in &disk.parts {
        let [.., name] = part.kind.words();
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += part.bytes,
            None => groups.push((name, part.bytes)),
        }
    }
    groups.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let in_stores: u64 = disk
        .parts
        .iter()
        .filter(|part| PartKind::OF_STORES.contains(&part.kind) || part.store.is_some())
        .map(|part| part.bytes)
        .sum();
    let named: Vec<_> = groups
        .iter()
        .filter(|(_, sum)| share(*sum, disk.filesystem.used_bytes) >= 1.0)
        .take(NAMED)
        .map(|(name, sum)| {
            format!("{name} {} ({:.0}%)", bytes(*sum), share(*sum, disk.filesystem.used_bytes))
        })
        .collect();
    if named.is_empty() {
        return "Nothing is stored on it.".into();
    }
    let large_item = causes
        .iter()
        .filter(|cause| is_single(cause.kind))
        .max_by_key(|cause| cause.bytes)
        .filter(|cause| share(cause.bytes, disk.filesystem.used_bytes) >= 10.0);
    // Data that was not examined may be a single larger item.
    let unknown = causes.iter().filter(|cause| cause.kind == CauseKind::Other).map(|cause| cause.bytes).max();
    let largest = large_item
        .filter(|cause| unknown.is_none_or(|bytes| bytes < cause.bytes))
        .map_or_else(String::new, |cause| {
            format!("; the largest single item: {}, {}", cause.title, bytes(cause.bytes))
        });
    if in_stores == 0 {
        return format!(
            "{}No store is on it. Largest users: {}{largest}.",
            most_inodes(disk),
            listed(&named)
        );
    }
    if share(in_stores, disk.filesystem.used_bytes) < 50.0 {
        return format!(
            "{}Most of it is outside the stores, which use only {} ({:.0}%). Largest users: {}{largest}.",
            most_inodes(disk),
            bytes(in_stores),
            share(in_stores, disk.filesystem.used_bytes),
            listed(&named),
        );
    }
    let users = if short_of_inodes(disk) { "Largest users of its bytes" } else { "Largest users" };
    format!("{}{users}: {}{largest}.", most_inodes(disk), listed(&named))
}

/// Returns the sentence about the users of the inodes, if these are short.
fn most_inodes(disk: &Disk) -> String {
    let users: Vec<_> = disk
        .inode_users
        .iter()
        .take(NAMED)
        .filter(|_| short_of_inodes(disk))
        .map(|user| format!("{} {}", user.title(), thousands(user.inodes)))
        .collect();
    if users.is_empty() { String::new() } else { format!("Most inodes: {}. ", listed(&users)) }
}

/// Returns the sentence about the bytes that can be freed, by layersweep and by the operator.
fn remedy_sentence(disk: &Disk, causes: &[&Cause], foreign: bool) -> String {
    let automatic: Vec<_> = causes.iter().filter(|cause| cause.group == CauseGroup::Layersweep).collect();
    let scarce = disk.scarce();
    let (mut by_hand, mut to_judge) = (Vec::new(), Vec::new());
    for cause in causes {
        match cause.listed_group(scarce) {
            CauseGroup::CanBeMadeAgain | CauseGroup::StoppedContainer => by_hand.push(*cause),
            CauseGroup::OnlyYouCanJudge => to_judge.push(*cause),
            CauseGroup::Layersweep | CauseGroup::Kept => {}
        }
    }
    let manual: Vec<_> = [("you can free", " by hand", by_hand), ("only you can judge", "", to_judge)]
        .into_iter()
        .filter(|(.., causes)| !causes.is_empty())
        .map(|(verb, how, causes)| named(&causes, scarce, verb, how))
        .collect();
    let when = if foreign { "once the node runs again, " } else { "" };
    let Planned { command, gc, none, sweep, .. } = &disk.planned;
    let plans = [
        (format!("`{command}` (unused images"), gc),
        ("`layersweep sweep --delete` (leaks".to_owned(), sweep),
    ];
    let commands: Vec<_> = plans
        .iter()
        .filter(|(_, freed)| !freed.is_nothing())
        .map(|(command, freed)| format!("{command}, {})", bytes(freed.bytes)))
        .collect();
    let images = of_kind(&automatic, CauseKind::UnusedImages);
    let leaks = of_kind(&automatic, CauseKind::Leak);
    let is_stuck = commands.is_empty() && !has_room(disk);
    // Unused data that is not deleted now.
    let kept: Vec<_> = [
        (images > 0 && gc.is_nothing())
            .then(|| format!("`{command}` keeps the {} of unused images for now: {none}", bytes(images))),
        (leaks > 0 && sweep.is_nothing())
            .then(|| format!("{} of leaks cannot be deleted yet (see `layersweep sweep`)", bytes(leaks))),
    ]
    .into_iter()
    .flatten()
    .chain(
        out_of_reach(causes, manual.is_empty() && disk.filesystem.available_bytes == 0).filter(|_| is_stuck),
    )
    .collect();
    let mut out = match commands.is_empty() {
        true if !kept.is_empty() => capital(&kept.join("; ")),
        true if manual.is_empty() => {
            let unknown = disk
                .parts
                .iter()
                .filter(|part| part.kind == PartKind::Unknown)
                .fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
            if unknown > 0 {
                return format!(
                    "What could be freed is unknown: {} in the stores could not be attributed (see the warnings).",
                    bytes(unknown)
                );
            }
            return if has_room(disk) {
                "There is nothing to free.".into()
            } else {
                "Nothing can be freed safely: everything in the stores is in use; move data away or enlarge the \
                     disk."
                        .into()
            };
        }
        true => format!("`{command}` cannot free anything"),
        false => {
            let freed = BytesAndInodes {
                bytes: gc.bytes.saturating_add(sweep.bytes),
                inodes: gc.inodes.saturating_add(sweep.inodes),
            };
            let verb = if commands.len() == 1 { "frees" } else { "free" };
            let after = after(disk, freed.bytes)
                .map_or_else(String::new, |percent| format!(", which leaves {percent:.1}%"));
            let inodes =
                if short_of_inodes(disk) { format!(" and {} inodes", freed.inodes) } else { String::new() };
            let first =
                format!("{when}{} {verb} up to {}{inodes}{after}", listed(&commands), bytes(freed.bytes));
            capital(&[vec![first], kept].concat().join("; "))
        }
    };
    for clause in manual {
        out.push_str("; ");
        out.push_str(&clause);
    }
    out + "."
}

/// Returns a clause for each reason why unused images are out of reach. `is_full`: some space must be freed by hand
/// before, so the largest files are named.
fn out_of_reach<'a>(causes: &'a [&'a Cause], is_full: bool) -> impl Iterator<Item = String> + 'a {
    let images =
        causes.iter().filter(|cause| cause.kind == CauseKind::ImagesOutOfReach && !cause.remedy.is_empty());
    // With a command, they are among what a person can free.
    let images = images.filter(|cause| cause.command.is_none());
    let clauses = images
        .map(|cause| format!("{} of unused images are out of reach: {}", bytes(cause.bytes), cause.remedy));
    let files =
        causes.iter().filter(move |cause| is_full && cause.kind == CauseKind::Other && cause.path.is_some());
    let largest = files.max_by_key(|cause| cause.bytes).filter(|_| clauses.clone().next().is_some());
    let largest = largest.map(|cause| {
        let path = cause.path.as_deref().unwrap_or_default();
        format!("only you can judge the largest files: {path} ({})", bytes(cause.bytes))
    });
    clauses.chain(largest)
}

/// Returns a clause that names causes of a group with the sum of what they hold.
fn named(causes: &[&Cause], scarce: Counted, verb: &str, how: &str) -> String {
    let shown = causes.iter().take(NAMED).map(|cause| match scarce {
        Counted::Bytes if cause.keeps_bytes >= LEAST => format!(
            "{} ({}, and then images of {})",
            cause.title,
            bytes(cause.frees_bytes),
            bytes(cause.keeps_bytes)
        ),
        Counted::Bytes => format!("{} ({})", cause.title, bytes(cause.frees_bytes)),
        // The title of a directory has the number of its files.
        Counted::Inodes => cause.title.clone(),
    });
    let shown: Vec<_> = shown.collect();
    let more = match causes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let sum = causes.iter().map(|cause| cause.gain(scarce)).fold(0, u64::saturating_add);
    let sum = match scarce {
        Counted::Bytes => bytes(sum),
        Counted::Inodes => format!("{} inodes", thousands(sum)),
    };
    format!("{verb} {sum}{how}: {}{more}", shown.join(", "))
}

/// Returns true if the disk is not full and is below all thresholds at which a program acts, or cannot fill up.
pub(crate) fn has_room(disk: &Disk) -> bool {
    disk.is_full_by_design
        || disk.used_percent().is_some_and(|percent| percent < FULL)
            && !short_of_inodes(disk)
            && disk.acting(true).next().is_none()
}

fn of_kind(causes: &[&&Cause], kind: CauseKind) -> u64 {
    causes.iter().filter(|cause| cause.kind == kind).map(|cause| cause.bytes).sum()
}

/// Returns the percentage that is used after `freed` bytes are freed, or `None` if it cannot be calculated.
pub(super) fn after(disk: &Disk, freed: u64) -> Option<f64> {
    disk.percent_after(Counted::Bytes, BytesAndInodes { bytes: freed, inodes: 0 })
}

/// Returns true if a cause of this kind is a single item, not a sum.
fn is_single(kind: CauseKind) -> bool {
    !matches!(kind, CauseKind::UnusedImages | CauseKind::ImagesOutOfReach | CauseKind::Other)
}

#[allow(clippy::cast_precision_loss)] // shown with one decimal at most
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + letters.as_str())
}
