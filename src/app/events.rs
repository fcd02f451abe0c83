//! What the kubelet would tell its node of a run, in its terms.

use crate::history::runs::Event;
use crate::model::display::bytes;
use crate::model::outcome::{Deletion, Outcome, OutcomeKind};
use crate::model::plan::{FilesystemPlan, PassEnd};
use crate::model::space::{BytesAndInodes, InvalidStats, Measured};
use crate::policy::kubelet::{CollectorReport, KubeletEvent};

/// The events of a run. `report` is the kubelet's own account, where its algorithm decided;
/// `failed_before`: the last run failed, too.
pub fn events(outcome: &Outcome, report: Option<&CollectorReport>, failed_before: bool) -> Vec<Event> {
    let mut events = match report {
        Some(report) => by_kubelet(report),
        None => by_us(outcome),
    };
    let failed = match report {
        Some(report) => report.failure.is_some(),
        None => matches!(outcome.kind(), OutcomeKind::Failed | OutcomeKind::NotReached),
    };
    if failed_before && failed {
        let first = outcome.plan.problems.first().map(|problem| problem.message.clone());
        let first = first.or_else(|| events.first().map(|event| event.message.clone()));
        events.push(failed_again(&first.unwrap_or_default()));
    }
    events
}

/// Told of a run that failed after another one that did.
pub(super) fn failed_again(message: &str) -> Event {
    let message = format!("failed again (2 or more consecutive runs): {message}");
    event(KubeletEvent::ImageGCFailed, message)
}

fn event(kind: KubeletEvent, message: String) -> Event {
    Event { reason: kind.as_str().into(), message }
}

/// What the kubelet tells by its own lights: nothing, where it believes that it has done its work.
fn by_kubelet(report: &CollectorReport) -> Vec<Event> {
    let message = report.failure.as_ref().map(ToString::to_string).unwrap_or_default();
    report.events.iter().map(|kind| event(*kind, message.clone())).collect()
}

fn by_us(outcome: &Outcome) -> Vec<Event> {
    let mut events = Vec::new();
    for plan in &outcome.plan.filesystems {
        let mount = outcome.plan.mounts.get(plan.filesystem.get());
        let mount = mount.map(|mount| mount.display().to_string()).unwrap_or_default();
        if let Some(Err(invalid @ (InvalidStats::NoCapacity | InvalidStats::Missing(_)))) = &plan.before {
            events.push(event(KubeletEvent::InvalidDiskCapacity, format!("{mount}: {invalid}")));
        }
        if plan.end == PassEnd::NotReached {
            let is_here = |one: &&Deletion| {
                let gain = one.step.gains.first().map(|gain| gain.filesystem);
                one.step.filesystem.or(gain) == Some(plan.filesystem)
            };
            let here = outcome.deletions.iter().filter(is_here);
            let freed = here.filter_map(|one| one.measured_bytes).sum();
            let wanted = match plan.wanted {
                BytesAndInodes { bytes: size, inodes: 0 } => bytes(size),
                BytesAndInodes { bytes: 0, inodes } => format!("{inodes} inodes"),
                BytesAndInodes { bytes: size, inodes } => format!("{} and {inodes} inodes", bytes(size)),
            };
            let why = match outcome.plan.problems.is_empty() {
                true => "nothing else could go (`layersweep usage` shows what uses the rest)",
                false => "not all that could go was deleted (see the errors)",
            };
            let message = format!(
                "{mount}: wanted to free {wanted}, but freed {}{}: {why}",
                was_freed(freed),
                freed_inodes(plan).map_or_else(String::new, |freed| format!(" and {freed} inodes"))
            );
            events.push(event(KubeletEvent::FreeDiskSpaceFailed, message));
        }
    }
    events
}

/// Inodes that are free now and were not, where some were wanted.
fn freed_inodes(plan: &FilesystemPlan) -> Option<u64> {
    let free = |space: &Option<Measured>| space.as_ref()?.as_ref().ok().map(|space| space.inodes_free);
    let freed = free(&plan.after)?.saturating_sub(free(&plan.before)?);
    (plan.wanted.inodes > 0).then_some(freed)
}

/// What was freed, where others may have written more meanwhile.
fn was_freed(measured_bytes: i64) -> String {
    match measured_bytes {
        0.. => bytes(measured_bytes.unsigned_abs()),
        less => format!("nothing ({} were written meanwhile)", bytes(less.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::was_freed;

    #[test]
    fn nothing_less_than_nothing_is_freed() {
        assert_eq!(was_freed(4096), "4.0 KiB");
        assert_eq!(was_freed(-277_942_272), "nothing (265.1 MiB were written meanwhile)");
    }
}
