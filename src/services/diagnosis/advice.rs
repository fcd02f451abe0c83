//! Advice that can be read in five seconds: the urgency, and the first steps.

use serde::Serialize;

use crate::model::PrintedCommand;
use crate::model::documents::urgency::{FULL, Urgency};
use crate::model::text::display::bytes;
use crate::policy::thresholds::{Counted, Source};
use crate::services::diagnosis::summary::{after, fullest, short_of_inodes};
use crate::services::diagnosis::{Cause, CauseGroup, Disk, Planned};

/// Fullness of the fullest filesystem, and the next steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Advice {
    /// `critical`: past an eviction threshold, or nothing is available. `warning`: past another threshold, or nearly
    /// full without thresholds. `calm`, or `unknown`.
    pub urgency: Urgency,
    /// Fullness of the fullest filesystem, in one line.
    pub headline: String,
    /// Steps in the order in which to take them, the least risk first: deletions by layersweep, then what can be made
    /// again, stopped containers, and what only a person can judge. Empty if nothing has to be done.
    pub steps: Vec<AdvisedStep>,
}

/// A step that frees space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StepDoc"))]
pub struct AdvisedStep {
    /// The exact command, as in the causes; null if `text` describes the step.
    pub command: Option<PrintedCommand>,
    /// Effect of the command, or description of the step.
    pub text: String,
    /// Bytes that the step is expected to free.
    pub bytes: u64,
    /// A person has to decide. If false, the step deletes only data that is neither used nor protected.
    pub needs_decision: bool,
}

/// Returns the advice for the fullest filesystem. `foreign`: the disk belongs to a node that does not run.
pub fn advice(disks: &[Disk], causes: &[Cause], foreign: bool) -> Advice {
    let Some((ix, disk)) = fullest(disks) else {
        let headline = "No filesystem with a store could be examined".into();
        return Advice { urgency: Urgency::Unknown, headline, steps: Vec::new() };
    };
    let (urgency, headline) = urgency(disk);
    let mut steps = safe_steps(disk, foreign);
    if urgency > Urgency::Calm {
        let manual = causes.iter().filter(|cause| {
            let group = cause.listed_group(disk.scarce());
            cause.filesystem_ix == ix && !matches!(group, CauseGroup::Layersweep | CauseGroup::Kept)
        });
        steps.extend(manual.map(|cause| AdvisedStep {
            command: cause.command.clone(),
            text: step_of(cause),
            bytes: cause.frees_bytes,
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

/// Describes the step of a cause: its object, and that the command only shows it.
fn step_of(cause: &Cause) -> String {
    let title = match cause.command {
        Some(PrintedCommand::Shows(_)) => format!("shows {}, which only you can judge", cause.title),
        _ => cause.title.clone(),
    };
    if cause.remedy.is_empty() { title } else { format!("{title}: {}", cause.remedy) }
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
    if disk.is_full_by_design {
        return (Urgency::Calm, format!("{mount} is mounted read-only, so it cannot fill up"));
    }
    let counted = if by_inodes { Counted::Inodes } else { Counted::Bytes };
    let passed: Vec<_> = disk.acting(true).collect();
    if facts.available_bytes == 0 {
        return (Urgency::Critical, format!("{mount} is full: no byte is available"));
    }
    if facts.inodes > 0 && facts.inodes_free == 0 {
        return (Urgency::Critical, format!("{mount} is full: no inode is free"));
    }
    // Prefers the eviction thresholds of the resource that is short, bytes or inodes, and of these the highest.
    let eviction = passed.iter().filter(|threshold| threshold.source == Source::Eviction).max_by(|a, b| {
        let by_counted = (a.of == counted).cmp(&(b.of == counted));
        by_counted.then(a.percent.total_cmp(&b.percent))
    });
    if let Some(eviction) = eviction {
        return (Urgency::Critical, format!("{full}, past {eviction}"));
    }
    let next = disk
        .acting(false)
        .filter(|threshold| threshold.source == Source::Eviction && threshold.of == counted)
        .min_by(|a, b| a.percent.total_cmp(&b.percent))
        .map_or_else(String::new, |next| format!("; {next}"));
    match passed.last() {
        Some(threshold) => (Urgency::Warning, format!("{full}, past {threshold}{next}")),
        None if percent >= FULL || by_inodes => {
            (Urgency::Warning, format!("{full}; no thresholds are set here"))
        }
        None if disk.thresholds.is_empty() => (Urgency::Calm, full),
        None => (Urgency::Calm, format!("{full}, below every threshold")),
    }
}

/// Returns the steps that need no decision.
fn safe_steps(disk: &Disk, foreign: bool) -> Vec<AdvisedStep> {
    let Planned { command, gc, sweep, .. } = &disk.planned;
    let when = if foreign { "once the node runs again, it " } else { "" };
    let mut freed = 0_u64;
    let mut commands = [
        (*command, *gc, "deletes unused images"),
        ("layersweep sweep --delete", *sweep, "deletes leaks that are proven unused"),
    ];
    commands.sort_by_key(|(_, planned, _)| std::cmp::Reverse(planned.bytes));
    commands
        .into_iter()
        .filter(|(_, planned, _)| !planned.is_nothing())
        .map(|(command, planned, effect)| {
            freed = freed.saturating_add(planned.bytes);
            let inodes =
                if short_of_inodes(disk) { format!(" and {} inodes", planned.inodes) } else { String::new() };
            let left = after(disk, freed).map(|left| format!(", which leaves {left:.1}%"));
            let size = bytes(planned.bytes);
            AdvisedStep {
                command: Some(PrintedCommand::Deletes(command.to_owned())),
                text: format!("{when}{effect}: frees up to {size}{inodes}{}", left.unwrap_or_default()),
                bytes: planned.bytes,
                needs_decision: false,
            }
        })
        .collect()
}
