//! What a reader needs in five seconds: how urgent it is, and what to do first.

use serde::Serialize;

use crate::app::diagnosis::summary::{FULL, after, fullest, short_of_inodes};
use crate::app::diagnosis::{Action, Cause, Disk, Planned};
use crate::model::display::bytes;
use crate::model::names::names;
use crate::policy::thresholds::{Counted, Source};

/// So many things that need a decision are named.
const DECISIONS: usize = 3;

names! {
    /// How urgent it is.
    Urgency {
        /// The numbers of the disk contradict each other, or there is none.
        Unknown = "unknown",
        /// Nothing needs to be done.
        Calm = "calm",
        /// Past a threshold, or nearly full without any.
        Warning = "warning",
        /// Past a threshold of eviction, or nothing is available.
        Critical = "critical",
    }
}

/// How full the fullest filesystem is, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Advice {
    /// `critical`: past a threshold of eviction, or nothing available. `warning`: past another threshold,
    /// or nearly full without any. `calm`, or `unknown`.
    pub urgency: Urgency,
    /// How full the fullest filesystem is, in one line.
    pub headline: String,
    /// What to do, the first thing first; what deletes only unused data comes before what needs a
    /// decision. Empty where nothing is to be done.
    pub steps: Vec<AdvisedStep>,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StepDoc"))]
pub struct AdvisedStep {
    /// The exact command; null where `text` says what to do.
    pub command: Option<String>,
    /// What it does, or what to do.
    pub text: String,
    /// What it is expected to free.
    pub bytes: u64,
    /// A person has to decide. If false, it deletes only what nothing uses and nothing protects.
    pub needs_decision: bool,
}

/// Of the fullest filesystem. `foreign`: it is the disk of a node that does not run.
pub fn advice(disks: &[Disk], causes: &[Cause], foreign: bool) -> Advice {
    let Some((at, disk)) = fullest(disks) else {
        let headline = "No filesystem with a store could be examined".into();
        return Advice { urgency: Urgency::Unknown, headline, steps: Vec::new() };
    };
    let (urgency, headline) = urgency(disk);
    let mut steps = safe(disk, foreign);
    if urgency > Urgency::Calm {
        let theirs = causes.iter().filter(|cause| cause.at == at && cause.taken_by == Action::Operator);
        steps.extend(theirs.take(DECISIONS).map(|cause| AdvisedStep {
            command: None,
            text: match cause.remedy.as_str() {
                "" => cause.title.clone(),
                remedy => format!("{}: {remedy}", cause.title),
            },
            bytes: cause.bytes,
            needs_decision: true,
        }));
        if steps.is_empty() {
            steps.push(AdvisedStep {
                command: None,
                text: "move data away or enlarge the disk: nothing on it can be freed safely".into(),
                bytes: 0,
                needs_decision: true,
            });
        }
    }
    Advice { urgency, headline, steps }
}

fn urgency(disk: &Disk) -> (Urgency, String) {
    let (mount, facts) = (disk.filesystem.mount.display(), &disk.filesystem);
    let Some(percent) = disk.used_percent() else {
        return (Urgency::Unknown, format!("The usage of {mount} is unknown"));
    };
    let by_inodes = short_of_inodes(disk);
    let full = match disk.inodes_percent().filter(|_| by_inodes) {
        Some(inodes) => format!("{mount} has used {inodes:.1}% of its inodes"),
        None => format!("{mount} is {percent:.1}% full"),
    };
    let counted = if by_inodes { Counted::Inodes } else { Counted::Bytes };
    let passed: Vec<_> = disk.acting(true).collect();
    let eviction = |of: Option<Counted>| {
        let found = passed.iter().filter(|one| one.source == Source::Eviction);
        found.filter(|one| of.is_none_or(|of| one.of == of)).max_by(|a, b| a.percent.total_cmp(&b.percent))
    };
    if facts.available_bytes == 0 {
        return (Urgency::Critical, format!("{mount} is full: no byte is available"));
    }
    if facts.inodes > 0 && facts.inodes_free == 0 {
        return (Urgency::Critical, format!("{mount} is full: no inode is free"));
    }
    if let Some(eviction) = eviction(Some(counted)).or_else(|| eviction(None)) {
        return (Urgency::Critical, format!("{full}, past {eviction}"));
    }
    let next = disk.acting(false).filter(|one| one.source == Source::Eviction && one.of == counted);
    let next = next.min_by(|a, b| a.percent.total_cmp(&b.percent));
    let next = next.map_or_else(String::new, |next| format!("; {next}"));
    match passed.last() {
        Some(threshold) => (Urgency::Warning, format!("{full}, past {threshold}{next}")),
        None if percent >= FULL || by_inodes => {
            (Urgency::Warning, format!("{full}; no thresholds are set here"))
        }
        None if disk.thresholds.is_empty() => (Urgency::Calm, full),
        None => (Urgency::Calm, format!("{full}, below every threshold")),
    }
}

/// What we delete without a decision.
fn safe(disk: &Disk, foreign: bool) -> Vec<AdvisedStep> {
    let Planned { command, gc, sweep, .. } = &disk.planned;
    let when = if foreign { "once the node runs again, it " } else { "" };
    let mut freed = 0_u64;
    let mut commands = [
        (*command, *gc, "deletes unused images"),
        ("layersweep sweep --delete", *sweep, "deletes leaks that are proven unused"),
    ];
    commands.sort_by_key(|(_, back, _)| std::cmp::Reverse(back.bytes));
    commands
        .into_iter()
        .filter(|(_, back, _)| !back.is_nothing())
        .map(|(command, back, what)| {
            freed = freed.saturating_add(back.bytes);
            let inodes = match short_of_inodes(disk) {
                true => format!(" and {} inodes", back.inodes),
                false => String::new(),
            };
            let left = after(disk, freed).map(|left| format!(", which leaves {left:.1}%"));
            let size = bytes(back.bytes);
            AdvisedStep {
                command: Some(command.to_owned()),
                text: format!("{when}{what}: frees up to {size}{inodes}{}", left.unwrap_or_default()),
                bytes: back.bytes,
                needs_decision: false,
            }
        })
        .collect()
}
