//! Events of a run, under the names with which the kubelet emits the same events for its node.

use crate::history::runs::Event;
use crate::model::FilesystemIx;
use crate::model::display::bytes;
use crate::model::outcome::{Deletion, Outcome, OutcomeKind};
use crate::model::plan::{Cause, FilesystemPlan, PassEnd};
use crate::model::space::{BytesAndInodes, InvalidStats, Measured};
use crate::policy::kubelet::KubeletEvent;

/// Returns the events of a run. `failed_before`: the run before it failed too.
pub fn events(outcome: &Outcome, failed_before: bool) -> Vec<Event> {
    let mut events = events_of(outcome);
    if failed_before && matches!(outcome.kind(), OutcomeKind::Failed | OutcomeKind::NotReached) {
        let first = outcome.plan.problems.first().map(|problem| problem.message.clone());
        let first = first.or_else(|| events.first().map(|event| event.message.clone()));
        events.push(failed_again(&first.unwrap_or_default()));
    }
    events
}

/// Returns the event of a run that failed after a failed run.
pub(super) fn failed_again(message: &str) -> Event {
    let message = format!("failed again (2 or more consecutive runs): {message}");
    event(KubeletEvent::ImageGCFailed, message)
}

fn event(kind: KubeletEvent, message: String) -> Event {
    Event { reason: kind.as_str().into(), message }
}

fn events_of(outcome: &Outcome) -> Vec<Event> {
    let mut events = Vec::new();
    for plan in &outcome.plan.filesystems {
        let mount = outcome.plan.mounts.get(plan.filesystem.get());
        let mount = mount.map(|mount| mount.display().to_string()).unwrap_or_default();
        if let Some(Err(invalid @ (InvalidStats::NoCapacity | InvalidStats::Missing(_)))) = &plan.before {
            events.push(event(KubeletEvent::InvalidDiskCapacity, format!("{mount}: {invalid}")));
        }
        if plan.end == PassEnd::NotReached {
            let freed = freed_on(plan.filesystem, &outcome.deletions, |cause| cause == Cause::Space);
            let earlier = freed_on(plan.filesystem, &outcome.deletions, |cause| cause != Cause::Space);
            let wanted = match plan.wanted {
                BytesAndInodes { bytes: size, inodes: 0 } => bytes(size),
                BytesAndInodes { bytes: 0, inodes } => format!("{inodes} inodes"),
                BytesAndInodes { bytes: size, inodes } => format!("{} and {inodes} inodes", bytes(size)),
            };
            let why = match outcome.plan.problems.is_empty() {
                true => "nothing else may be deleted (`layersweep usage` shows what uses the rest)",
                false => "not everything planned was deleted (see the errors)",
            };
            let message = format!(
                "{mount}: {}wanted to free {wanted}, but freed {}{}{}{}: {why}",
                if earlier > 0 { "for space, the run still " } else { "" },
                was_freed(freed),
                freed_inodes(plan).map_or_else(String::new, |freed| format!(" and {freed} inodes")),
                written_meanwhile(plan, freed),
                match earlier {
                    1.. => format!(", after {} for other reasons", bytes(earlier.unsigned_abs())),
                    _ => String::new(),
                }
            );
            events.push(event(KubeletEvent::FreeDiskSpaceFailed, message));
        }
    }
    events
}

/// Returns the bytes that deletions for a cause freed on a filesystem. Only deletions for space count towards
/// [`FilesystemPlan::wanted`]: containers, leaks and images beyond their maximum age are deleted before that is
/// determined.
fn freed_on(filesystem: FilesystemIx, deletions: &[Deletion], is_cause: fn(Cause) -> bool) -> i64 {
    let counts = deletions.iter().filter(|deletion| is_cause(deletion.step.cause));
    counts.filter_map(|deletion| deletion.measured_on(filesystem)).fold(0, i64::saturating_add)
}

/// Returns how many bytes other processes wrote during the run, if the run freed all the wanted bytes and the target
/// was still not reached.
fn written_meanwhile(plan: &FilesystemPlan, freed: i64) -> String {
    let is_enough =
        plan.wanted.bytes > 0 && u64::try_from(freed).is_ok_and(|freed| freed >= plan.wanted.bytes);
    let written = match (available(plan.before.as_ref()), available(plan.after.as_ref())) {
        (Some(before), Some(after)) => freed - (after - before),
        _ => 0,
    };
    match is_enough && written > 0 {
        true => format!(" while {} were written", bytes(written.unsigned_abs())),
        false => String::new(),
    }
}

/// Returns the available bytes of a filesystem, without those that deletions still owe.
fn available(measured: Option<&Measured>) -> Option<i64> {
    let space = measured?.as_ref().ok()?;
    i64::try_from(space.available_bytes).ok()?.checked_sub_unsigned(space.owed_bytes)
}

/// Returns the number of inodes that became free, if the plan wanted some.
fn freed_inodes(plan: &FilesystemPlan) -> Option<u64> {
    let before = plan.before.as_ref()?.as_ref().ok()?;
    let after = plan.after.as_ref()?.as_ref().ok()?;
    (plan.wanted.inodes > 0).then(|| after.inodes_free.saturating_sub(before.inodes_free))
}

/// Returns the freed bytes in words. The measurement is negative if other processes wrote more meanwhile.
fn was_freed(measured_bytes: i64) -> String {
    match measured_bytes {
        0.. => bytes(measured_bytes.unsigned_abs()),
        less => format!("nothing ({} were written meanwhile)", bytes(less.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Plan;
    use crate::model::outcome::FreedOn;
    use crate::model::plan::{Step, Target, TargetKind};
    use crate::model::space::Space;

    fn space(mebibytes: u64) -> Option<Measured> {
        let available_bytes = mebibytes << 20;
        Some(Ok(Space { capacity_bytes: 1 << 30, available_bytes, owed_bytes: 0, inodes: 0, inodes_free: 0 }))
    }

    fn deletion(cause: Cause, mebibytes: i64) -> Deletion {
        let (kind, id, names) = (TargetKind::Image, "a".to_owned(), Vec::new());
        let target = Target { kind, store: None, id, names, leak: None };
        Deletion {
            step: Step { filesystem: Some(0.into()), ..Step::new(target, cause) },
            at: jiff::Timestamp::UNIX_EPOCH,
            measured_bytes: Some(mebibytes << 20),
            beside_bytes: 0,
            freed: vec![FreedOn { filesystem: 0.into(), bytes: mebibytes << 20, usage_after_percent: None }],
            byproduct_bytes: 0,
            usage_after_percent: None,
        }
    }

    /// A container is deleted before an image: the wanted bytes are those still needed after the container.
    #[test]
    fn container_bytes_do_not_count_as_wanted() {
        for (freed, after, expected) in [
            (
                50,
                150,
                "for space, the run still wanted to free 140.0 MiB, but freed 50.0 MiB, after 100.0 MiB for other \
                 reasons: ",
            ),
            (
                150,
                230,
                "wanted to free 140.0 MiB, but freed 150.0 MiB while 20.0 MiB were written, after 100.0 MiB for other \
                 reasons: ",
            ),
        ] {
            let filesystem = FilesystemPlan {
                before: space(100),
                after: space(after),
                wanted: BytesAndInodes { bytes: 140 << 20, inodes: 0 },
                end: PassEnd::NotReached,
                ..FilesystemPlan::new(0.into())
            };
            let outcome = Outcome {
                plan: Plan { filesystems: vec![filesystem], ..Plan::default() },
                deletions: vec![deletion(Cause::PodGone, 100), deletion(Cause::Space, freed)],
                repaired: Vec::new(),
                before: Vec::new(),
                after: Vec::new(),
                stopped: None,
            };
            let message = &events_of(&outcome)[0].message;
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn negative_measurement_is_reported_as_nothing() {
        assert_eq!(was_freed(4096), "4.0 KiB");
        assert_eq!(was_freed(-277_942_272), "nothing (265.1 MiB were written meanwhile)");
    }
}
