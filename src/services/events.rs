//! Events of a run, under the names with which the kubelet emits the same events for its node.

use crate::history::runs::Event;
use crate::model::deletion::outcome::{Outcome, OutcomeKind};
use crate::model::deletion::plan::{PassEnd, Phase, Plan};
use crate::model::rules::Rule;
use crate::model::space::InvalidStats;
use crate::model::text::display::count;
use crate::policy::kubelet::KubeletEvent;
use crate::policy::space::Targets;

/// Returns the events of a run. `failed_before`: the run before it failed too.
pub fn events(outcome: &Outcome, targets: &Targets, failed_before: bool) -> Vec<Event> {
    let mut events = events_of(outcome, targets);
    if failed_before && matches!(outcome.kind(), OutcomeKind::Failed | OutcomeKind::NotReached) {
        let first = outcome
            .plan
            .problems
            .first()
            .map(|problem| problem.message.clone())
            .or_else(|| events.first().map(|event| event.message.clone()));
        events.push(failed_again(&first.unwrap_or_default()));
    }
    events
}

/// Returns the event of a run that failed after a failed run.
pub(crate) fn failed_again(message: &str) -> Event {
    let message = format!("failed again (2 or more consecutive runs): {message}");
    event(KubeletEvent::ImageGCFailed, message)
}

fn event(kind: KubeletEvent, message: String) -> Event {
    Event { reason: kind.as_str().into(), message }
}

fn events_of(outcome: &Outcome, targets: &Targets) -> Vec<Event> {
    let mut events = Vec::new();
    for plan in &outcome.plan.filesystems {
        let mount = outcome
            .plan
            .mounts
            .get(plan.filesystem.get())
            .map(|mount| mount.display().to_string())
            .unwrap_or_default();
        if let Some(Err(invalid @ (InvalidStats::NoCapacity | InvalidStats::Missing(_)))) = &plan.before {
            events.push(event(KubeletEvent::InvalidDiskCapacity, format!("{mount}: {invalid}")));
        }
        if plan.end == PassEnd::NotReached {
            // A store whose runtime is silent has a problem of its own, and perhaps a disk of its own.
            let of_others = outcome.plan.problems.iter().all(|problem| match problem.filesystem {
                Some(ix) => ix != plan.filesystem,
                None => problem.phase == Phase::Begin && problem.id.is_some(),
            });
            let why = if of_others {
                too_young(&outcome.plan).unwrap_or_else(|| {
                    "nothing else may be deleted (`layersweep usage` shows what uses the rest)".to_owned()
                })
            } else {
                "not everything planned was deleted (see the errors)".to_owned()
            };
            let missing = targets.missing(plan);
            let message =
                format!("{mount}: {missing} of the wanted {} are still not free: {why}", plan.wanted);
            events.push(event(KubeletEvent::FreeDiskSpaceFailed, message));
        }
    }
    events
}

/// Formats the images that will be deletable later; `None` if there are none.
fn too_young(plan: &Plan) -> Option<String> {
    let young = plan.kept.iter().filter(|kept| kept.rule == Rule::MinAge && kept.target.is_image());
    let until: Vec<_> = young.filter_map(|kept| kept.until).collect();
    let last = until.iter().max()?.strftime("%Y-%m-%d %H:%M:%S UTC");
    Some(format!("{} too young until {last}", count(until.len(), "image is", "images are")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::deletion::plan::{FilesystemPlan, Kept, Target, TargetKind};
    use crate::model::rules::Ruling;
    use crate::model::space::{BytesAndInodes, Measured, Space, Started};
    use crate::policy::space::Thresholds;

    fn space(mebibytes: u64) -> Option<Measured> {
        let available_bytes = mebibytes << 20;
        Some(Ok(Space { capacity_bytes: 1 << 30, available_bytes, owed_bytes: 0, inodes: 0, inodes_free: 0 }))
    }

    /// The bytes that the run freed are in its summary, and nowhere else.
    #[test]
    fn missed_target_says_what_is_missing() {
        let filesystem = FilesystemPlan {
            before: space(100),
            after: space(230),
            started: Started { used: true, ..Started::default() },
            wanted: BytesAndInodes { bytes: 207 << 20, inodes: 0 },
            end: PassEnd::NotReached,
            ..FilesystemPlan::new(0.into())
        };
        let mut outcome = Outcome {
            plan: Plan { filesystems: vec![filesystem], mounts: vec!["/var".into()], ..Plan::default() },
            deletions: Vec::new(),
            repaired: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            stopped: None,
        };
        let targets = Targets { used: Some(Thresholds { high: 75, low: 70 }), ..Targets::default() };
        assert_eq!(
            events_of(&outcome, &targets)[0].message,
            "/var: 77.2 MiB of the wanted 207.0 MiB are still not free: nothing else may be deleted (`layersweep usage` \
             shows what uses the rest)"
        );
        let target =
            Target { kind: TargetKind::Image, store: None, id: "aa".into(), names: vec![], leak: None };
        let until = jiff::Timestamp::from_second(60).ok();
        outcome.plan.kept = vec![Kept { until, ..Kept::new(target, Ruling::keeps(Rule::MinAge, "young")) }];
        let message = &events_of(&outcome, &targets)[0].message;
        assert!(
            message.ends_with("not free: 1 image is too young until 1970-01-01 00:01:00 UTC"),
            "{message}"
        );
    }
}
