//! Policy `kubelet` for real: it goes by what the runtime lists, and the disk tells how far that
//! carries.

use std::sync::atomic::Ordering;

use layersweep::execute::kubelet;
use layersweep::execute::measure::SettlePatience;
use layersweep::execute::{Gauges, PreconditionError, ProofContext, RemoverFacts, Run};
use layersweep::model::Pattern;
use layersweep::model::plan::Reason;
use layersweep::model::{Outcome, OutcomeKind, Plan, Stopped};
use layersweep::policy::Policy;
use layersweep::policy::compare::kubelet_policy;
use layersweep::policy::kubelet::{CollectorReport, KubeletEvent, KubeletFailure, KubeletPolicy};
use layersweep::sys::stop;

use super::ByName;
use super::IMAGES;
use super::IN_USE;
use super::Node;
use super::Told;
use super::assert_exact;
use super::name;
use super::policy;
use crate::support::cri_server::Removal;
use crate::support::loopfs::Fs;

fn theirs(policy: &Policy) -> KubeletPolicy {
    kubelet_policy(policy).unwrap()
}

impl Node {
    fn by_kubelet(
        &self,
        policy: &Policy,
        told: &mut Told,
    ) -> Result<(Outcome, CollectorReport), PreconditionError> {
        let scan = self.scan();
        let means = ProofContext { request: &self.request(), policy, context: &ByName };
        let mut run = Run::new(Gauges::open(&scan.inventory, None), SettlePatience::default(), told);
        let before = run.measure();
        let (plan, report) = kubelet::run(&mut run, &scan, &means, &mut self.remover(), theirs(policy))?;
        Ok((run.finish(plan, before), report))
    }

    fn dry_by_kubelet(&self, policy: &Policy) -> (Plan, CollectorReport) {
        let scan = self.scan();
        let means = ProofContext { request: &self.request(), policy, context: &ByName };
        let looked = RemoverFacts::now(&scan, &means, &mut self.remover()).unwrap();
        let (plan, report, _) = kubelet::plan(&[], &scan, &means, &looked, theirs(policy)).unwrap();
        (plan, report)
    }
}

/// Every listed size has the shared base in it, so that the kubelet believes 10 MiB of each image
/// and gets 6: it stops short of the low threshold and is content.
#[test]
fn it_believes_listed_sizes_and_stops_short() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let policy = policy(75, 74);
    let (dry, dry_report) = node.dry_by_kubelet(&policy);
    assert_eq!(node.names().len(), IMAGES, "a dry run deletes nothing");
    let mut told = Told::default();
    let (ran, report) = node.by_kubelet(&policy, &mut told).unwrap();
    assert_eq!(told.deleted, (0..told.deleted.len()).map(name).collect::<Vec<_>>(), "longest idle first");
    assert_eq!(report.failure, None, "it believes that it has done its work");
    let measured: i64 = ran.deletions.iter().filter_map(|one| one.measured_bytes).sum();
    let believed = i64::try_from(report.freed.freed_bytes).unwrap();
    let wanted = i64::try_from(report.wanted_bytes.unwrap()).unwrap();
    assert!(believed >= wanted && measured < wanted, "{believed} {wanted} {measured}");
    assert!(node.used_percent() > 74.0, "{}", node.used_percent());
    assert_eq!(ran.plan.outcome, OutcomeKind::NotReached, "the disk says otherwise");
    assert!(ran.deletions.iter().all(|one| one.step.cause.reason() == Reason::Space));
    assert_exact(&ran);
    assert_eq!(told.calls[..2], ["begins", "deleted"]);
    // The dry run is the run to come.
    let steps = |plan: &Plan| -> Vec<_> {
        plan.steps.iter().map(|step| (step.target.id.clone(), step.gains.clone())).collect()
    };
    assert_eq!(steps(&dry), steps(&ran.plan));
    assert_eq!((dry_report, dry.outcome), (report.clone(), ran.plan.outcome));
    // Of what is left it says that enough was freed.
    let kept = |rule: &str| ran.plan.kept.iter().filter(|kept| kept.rule.as_str() == rule).count();
    assert_eq!((kept("in-use"), kept("not-needed")), (1, IMAGES - 1 - told.deleted.len()));
}

/// What our rules keep is pinned to its eyes: it does not try, and does not fail for it.
#[test]
fn what_our_rules_keep_it_does_not_try() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    // Containers of podman are unknown to the kubelet.
    node.store.pin(&name(1));
    let mut policy = policy(75, 40);
    policy.protect.names = vec![Pattern::new(&name(2)).unwrap()];
    node.server.take_calls();
    let (ran, report) = node.by_kubelet(&policy, &mut Told::default()).unwrap();
    assert_eq!(node.names(), [name(1), name(2), name(IN_USE)]);
    let calls = node.server.take_calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("RemoveImage")).count(), IMAGES - 3);
    assert!(matches!(report.failure, Some(KubeletFailure::NotEnoughFreed { .. })), "{:?}", report.failure);
    assert_eq!(report.events, [KubeletEvent::FreeDiskSpaceFailed]);
    assert_eq!(ran.plan.outcome, OutcomeKind::NotReached);
    let mut rules: Vec<_> = ran.plan.kept.iter().map(|kept| kept.rule.as_str()).collect();
    rules.sort_unstable();
    assert_eq!(rules, ["in-use", "in-use", "protected-name"]);
}

/// The runtime lies of one image and refuses another: the kubelet believes the one and fails for
/// the other. What came is measured all the same.
#[test]
fn a_runtime_that_fails() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(0), Removal::Lie), (name(1), Removal::Refuse)];
    });
    let mut told = Told::default();
    let (ran, report) = node.by_kubelet(&policy(75, 40), &mut told).unwrap();
    assert_eq!(node.names(), [name(0), name(1), name(IN_USE)]);
    assert!(matches!(&report.failure, Some(KubeletFailure::Deletion(failed)) if failed.len() == 1));
    assert_eq!(report.freed.deleted.len(), IMAGES - 2, "the one it was lied about among them");
    assert_eq!((ran.deletions.len(), told.refused.len()), (IMAGES - 3, 1));
    let of_rule = |rule| ran.plan.kept.iter().filter(|kept| kept.rule.as_str() == rule).count();
    assert_eq!((of_rule("refused"), of_rule("in-use")), (1, 2));
    assert_exact(&ran);
}

#[test]
fn a_runtime_that_dies() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    node.server.behave(|behaviour| behaviour.removals = vec![(name(1), Removal::DieAfter)]);
    let mut told = Told::default();
    let (ran, report) = node.by_kubelet(&policy(75, 40), &mut told).unwrap();
    assert_eq!(told.deleted, [name(0), name(1)], "the second one went, as the disk says");
    assert!(matches!(ran.stopped, Some(Stopped::Unproven(_))), "{:?}", ran.stopped);
    assert!(report.failure.is_some());
    assert!(ran.plan.problems.iter().any(|problem| problem.phase.as_str() == "prove"));
    assert!(ran.plan.kept.iter().all(|kept| ["run-ended", "in-use"].contains(&kept.rule.as_str())));
}

#[test]
fn a_signal_ends_it_after_the_deletion_in_flight() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    // The flag is the process's: each test has one of its own.
    let act = || stop::flag().store(true, Ordering::Relaxed);
    let mut told = Told { before: Some((name(1), Box::new(act))), ..Told::default() };
    let ran = node.by_kubelet(&policy(75, 40), &mut told).unwrap().0;
    assert_eq!(ran.stopped, Some(Stopped::Signal));
    assert_eq!(told.deleted, [name(0), name(1)]);
    assert_eq!(node.names().len(), IMAGES - 2);
    let (again, _) = node.by_kubelet(&policy(75, 40), &mut told).unwrap();
    assert_eq!((again.deletions.len(), again.stopped), (0, Some(Stopped::Signal)));
}

/// What was never seen in use is infinitely old to the kubelet, unlike to us.
#[test]
fn by_age() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    // `old-0` is 30 days old, `old-1` 29, the others less than the maximum age.
    let mut policy = policy(99, 98);
    policy.max_age = Some(jiff::SignedDuration::from_hours(24 * 28));
    let (ran, report) = node.by_kubelet(&policy, &mut Told::default()).unwrap();
    assert_eq!(ran.plan.steps.len(), IMAGES - 1);
    assert!(ran.plan.steps.iter().all(|step| step.cause.reason() == Reason::Age));
    assert_eq!((report.freed.freed_bytes, report.wanted_bytes, report.failure), (0, None, None));
    assert_eq!((ran.plan.trigger.age, ran.plan.trigger.space), (true, false));
    assert_eq!(ran.plan.outcome, OutcomeKind::Reached);
    assert_eq!(node.names(), [name(IN_USE)]);
}
