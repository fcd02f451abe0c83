//! The diagnosis in three sentences: what is full, who holds it, what can be done.

use crate::app::diagnosis::{Action, Cause, CauseKind, Disk, PartKind, Planned};
use crate::model::FilesystemIx;
use crate::model::display::{bytes, listed};
use crate::model::space::BytesAndInodes;
use crate::policy::thresholds::{Counted, DiskThreshold};

/// From this share on a disk whose thresholds nobody has set counts as full.
pub(super) const FULL: f64 = 85.0;
/// From this share on what is reserved is told of.
const RESERVED: f64 = 1.0;
/// Causes named in the last sentence.
const NAMED: usize = 3;

/// How full the disk is, what fills it, what can be done. `complete`: everything could be read; `foreign`:
/// it is the disk of a node that does not run.
pub fn summary(disks: &[Disk], causes: &[Cause], complete: bool, foreign: bool) -> [String; 3] {
    let Some((at, disk)) = fullest(disks) else {
        return [
            "No filesystem with a store could be examined.".into(),
            "What uses the space is unknown.".into(),
            "How much can be freed is unknown.".into(),
        ];
    };
    let here: Vec<_> = causes.iter().filter(|cause| cause.at == at).collect();
    let mut last = done(disk, &here, foreign);
    if !complete {
        last.push_str(" Something could not be read, so figures are lower bounds.");
    }
    [full(disks, disk), held(disk, &here), last]
}

/// The disk that the summary describes: the fullest, by bytes or by inodes.
pub(super) fn fullest(disks: &[Disk]) -> Option<(FilesystemIx, &Disk)> {
    let percent =
        |disk: &Disk| disk.used_percent().unwrap_or(-1.0).max(disk.inodes_percent().unwrap_or(-1.0));
    let fullest = disks.iter().enumerate().rev().max_by(|(_, a), (_, b)| percent(a).total_cmp(&percent(b)));
    fullest.map(|(at, disk)| (at.into(), disk))
}

/// What is full.
fn full(disks: &[Disk], disk: &Disk) -> String {
    let Some(percent) = disk.used_percent() else {
        return format!(
            "The usage of {} is unknown: its figures are inconsistent.",
            disk.filesystem.mount.display()
        );
    };
    let distance = |one: &DiskThreshold| one.percent - disk.percent_of(one.of).unwrap_or(0.0);
    let passed: Vec<_> = disk.acting(true).collect();
    let next = disk.acting(false).min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let thresholds = match (passed.as_slice(), next) {
        ([], None) if percent >= FULL => "; no thresholds are set here".to_owned(),
        ([], None) => String::new(),
        ([], Some(next)) => format!(", below every threshold (next: {})", next),
        (passed, _) => {
            let names: Vec<_> = passed.iter().map(ToString::to_string).collect();
            format!(", above {}", listed(&names))
        }
    };
    let others = match disks.len() {
        0 | 1 => String::new(),
        many => format!(" (the fullest of {many} filesystems with stores)"),
    };
    let by_bytes = percent >= FULL || passed.iter().any(|one| one.of == Counted::Bytes);
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

/// What is neither used nor available, where it is enough to make the numbers look wrong.
fn reserved(disk: &Disk) -> String {
    let rest = disk.filesystem.reserved_bytes();
    match share(rest, disk.filesystem.capacity_bytes) > RESERVED {
        true => format!(", {} reserved for root or not available", bytes(rest)),
        false => String::new(),
    }
}

/// Inodes are short, regardless of free bytes.
pub(super) fn short_of_inodes(disk: &Disk) -> bool {
    disk.inodes_percent().is_some_and(|percent| percent >= FULL)
        || disk.acting(true).any(|one| one.of == Counted::Inodes)
}

/// Who holds it.
fn held(disk: &Disk, causes: &[&Cause]) -> String {
    let mut groups: Vec<(&'static str, u64)> = Vec::new();
    for part in &disk.parts {
        let [.., name] = part.kind.words();
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += part.bytes,
            None => groups.push((name, part.bytes)),
        }
    }
    groups.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let ours: u64 = disk
        .parts
        .iter()
        .filter(|part| PartKind::OF_STORES.contains(&part.kind))
        .map(|part| part.bytes)
        .sum();
    let named: Vec<_> = groups
        .iter()
        .filter(|(_, sum)| *sum > 0)
        .take(NAMED)
        .map(|(name, sum)| {
            format!("{name} {} ({:.0}%)", bytes(*sum), share(*sum, disk.filesystem.used_bytes))
        })
        .collect();
    if named.is_empty() {
        return "Nothing is stored on it.".into();
    }
    let foremost = causes.iter().filter(|cause| is_single(cause.kind)).max_by_key(|cause| cause.bytes);
    let foremost = foremost.filter(|cause| share(cause.bytes, disk.filesystem.used_bytes) >= 10.0);
    // What was not looked into may be a single thing, too.
    let unknown = causes.iter().filter(|cause| cause.kind == CauseKind::Other).map(|cause| cause.bytes).max();
    let foremost = foremost.filter(|cause| unknown.is_none_or(|bytes| bytes < cause.bytes));
    let foremost = foremost.map_or_else(String::new, |cause| {
        format!("; the largest single item: {}, {}", cause.title, bytes(cause.bytes))
    });
    if share(ours, disk.filesystem.used_bytes) < 50.0 {
        return format!(
            "Most of it is not container storage, which uses only {} ({:.0}%). It is used by {}{foremost}.",
            bytes(ours),
            share(ours, disk.filesystem.used_bytes),
            listed(&named),
        );
    }
    let what = if short_of_inodes(disk) { "Its bytes are" } else { "It is" };
    format!("{what} used by {}{foremost}.", listed(&named))
}

/// What can be done, and how much it gives.
fn done(disk: &Disk, causes: &[&Cause], foreign: bool) -> String {
    let ours: Vec<_> = causes.iter().filter(|cause| cause.taken_by == Action::Layersweep).collect();
    let theirs: Vec<_> = causes.iter().filter(|cause| cause.taken_by == Action::Operator).collect();
    let sum = |causes: &[&&Cause]| causes.iter().map(|cause| cause.bytes).sum::<u64>();
    let when = if foreign { "once the node runs again, " } else { "" };
    let Planned { command, gc, none, sweep } = &disk.planned;
    let goes = [
        (format!("`{command}` (unused images"), gc),
        ("`layersweep sweep --delete` (leaks".to_owned(), sweep),
    ];
    let commands: Vec<_> = goes
        .iter()
        .filter(|(_, back)| !back.is_nothing())
        .map(|(command, back)| format!("{command}, {})", bytes(back.bytes)))
        .collect();
    let images = of_kind(&ours, CauseKind::UnusedImages);
    let leaks = of_kind(&ours, CauseKind::Leak);
    // What nothing uses, and what stays all the same.
    let stays: Vec<_> = [
        (images > 0 && gc.is_nothing()).then(|| {
            format!("`{command}` deletes no image now: {none} ({} of images are unused)", bytes(images))
        }),
        (leaks > 0 && sweep.is_nothing())
            .then(|| format!("{} of leaks cannot be deleted yet (see `layersweep sweep`)", bytes(leaks))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut out = match commands.is_empty() {
        true if !stays.is_empty() => capital(&stays.join("; ")),
        true if theirs.is_empty() => {
            return match held_by_nobody(disk) {
                true => "There is nothing to free.".into(),
                false => {
                    "Nothing can be freed safely: everything in the stores is in use, and the rest is not \
                        container data; move data away or enlarge the disk."
                        .into()
                }
            };
        }
        true => "Nothing is freed automatically".to_owned(),
        false => {
            let back = BytesAndInodes {
                bytes: gc.bytes.saturating_add(sweep.bytes),
                inodes: gc.inodes.saturating_add(sweep.inodes),
            };
            let verb = if commands.len() == 1 { "frees" } else { "free" };
            let after = after(disk, back.bytes)
                .map_or_else(String::new, |percent| format!(", which leaves {percent:.1}%"));
            let inodes = match short_of_inodes(disk) {
                true => format!(" and {} inodes", back.inodes),
                false => String::new(),
            };
            let first =
                format!("{when}{} {verb} up to {}{inodes}{after}", listed(&commands), bytes(back.bytes));
            capital(&[vec![first], stays].concat().join("; "))
        }
    };
    if !theirs.is_empty() {
        let named: Vec<_> = theirs
            .iter()
            .take(NAMED)
            .map(|cause| format!("{} ({})", cause.title, bytes(cause.bytes)))
            .collect();
        let more = match theirs.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let hold = format!("{} need a manual decision: {}{more}", bytes(sum(&theirs)), named.join(", "));
        out.push_str(&format!("; {hold}"));
    }
    out + "."
}

fn held_by_nobody(disk: &Disk) -> bool {
    disk.used_percent().is_some_and(|percent| percent < FULL)
        && !short_of_inodes(disk)
        && disk.acting(true).next().is_none()
}

fn of_kind(causes: &[&&Cause], kind: CauseKind) -> u64 {
    causes.iter().filter(|cause| cause.kind == kind).map(|cause| cause.bytes).sum()
}

/// Percent used after `back` bytes are freed.
pub(super) fn after(disk: &Disk, back: u64) -> Option<f64> {
    disk.used_percent()?;
    // The first bytes fill up root's reserve, whose size is not known here.
    if disk.filesystem.available_bytes == 0 && disk.filesystem.fstype.starts_with("ext") {
        return None;
    }
    let taken =
        disk.filesystem.capacity_bytes.saturating_sub(disk.filesystem.available_bytes).saturating_sub(back);
    Some(share(taken, disk.filesystem.capacity_bytes))
}

/// One thing, not a sum of many.
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
