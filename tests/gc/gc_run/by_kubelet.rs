//! Plan of policy `kubelet`, which only a dry run makes: it uses the sizes that the runtime lists.

use layersweep::execute::ImageFacts;
use layersweep::execute::kubelet;
use layersweep::model::Pattern;
use layersweep::model::deletion::plan::Reason;
use layersweep::model::{OutcomeKind, Plan};
use layersweep::policy::Policy;
use layersweep::policy::compare::kubelet_policy;
use layersweep::policy::kubelet::{CollectorReport, KubeletEvent, KubeletFailure};

use super::ByName;
use super::IMAGES;
use super::IN_USE;
use super::Node;
use super::name;
use super::policy;
use crate::support::loopfs::Fs;

impl Node {
    fn plan_by_kubelet(&self, policy: &Policy) -> (Plan, CollectorReport) {
        let scan = self.scan();
        let context = ByName::new(self, policy);
        let facts = ImageFacts::now(&scan, &context, &mut self.remover()).unwrap();
        let theirs = kubelet_policy(policy).unwrap();
        let (plan, report, _) = kubelet::plan(&[], &scan, &context, &facts, theirs).unwrap();
        assert_eq!(self.names().len(), IMAGES, "nothing is deleted");
        (plan, report)
    }
}

/// Every listed size includes the shared base: the kubelet expects 10 MiB of each image and frees 6.
#[test]
fn kubelet_policy_trusts_listed_sizes() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let (plan, report) = node.plan_by_kubelet(&policy(75, 74));
    assert_eq!(report.failure, None, "the kubelet expects to have succeeded");
    let believed = i64::try_from(report.freed.freed_bytes).unwrap();
    let freed = i64::try_from(plan.predicted_bytes()).unwrap();
    let wanted = i64::try_from(report.wanted_bytes.unwrap()).unwrap();
    assert!(believed >= wanted && freed < wanted, "{believed} {wanted} {freed}");
    assert_eq!(plan.outcome, OutcomeKind::NotReached, "the disk says otherwise");
    assert!(plan.steps.iter().all(|step| step.cause.reason() == Reason::Space));
    // Longest idle first; the kubelet expects that the rest is not needed.
    let titles: Vec<_> = plan.steps.iter().map(|step| step.target.names[0].clone()).collect();
    assert_eq!(titles, (0..plan.steps.len()).map(name).collect::<Vec<_>>());
    fn kept(plan: &Plan, rule: &str) -> usize {
        plan.kept.iter().filter(|kept| kept.rule.as_str() == rule).count()
    }
    assert_eq!((kept(&plan, "in-use"), kept(&plan, "not-needed")), (1, IMAGES - 1 - plan.steps.len()));
}

/// Images that layersweep's rules keep are pinned for the kubelet: it does not try to delete them.
#[test]
fn images_kept_by_rules_are_not_tried() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    // Containers of podman are unknown to the kubelet.
    node.store.pin(&name(1));
    let mut policy = policy(75, 40);
    policy.protect.names = vec![Pattern::new(&name(2)).unwrap()];
    let (plan, report) = node.plan_by_kubelet(&policy);
    assert_eq!(plan.steps.len(), IMAGES - 3);
    assert!(matches!(report.failure, Some(KubeletFailure::NotEnoughFreed { .. })), "{:?}", report.failure);
    assert_eq!(report.events, [KubeletEvent::FreeDiskSpaceFailed]);
    assert_eq!(plan.outcome, OutcomeKind::NotReached);
    let mut kept: Vec<_> =
        plan.kept.iter().map(|kept| (kept.target.names[0].clone(), kept.rule.as_str())).collect();
    kept.sort_unstable();
    assert_eq!(kept, [(name(1), "in-use"), (name(2), "protected-name"), (name(IN_USE), "in-use")]);
}

/// An image that was never seen in use is infinitely old to the kubelet, unlike to layersweep.
#[test]
fn kubelet_policy_deletes_by_age() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    // `old-0` is 30 days old, `old-1` 29, the others less than the maximum age.
    let mut policy = policy(99, 98);
    policy.max_age = Some(jiff::SignedDuration::from_hours(24 * 28));
    let (plan, report) = node.plan_by_kubelet(&policy);
    assert_eq!(plan.steps.len(), IMAGES - 1);
    assert!(plan.steps.iter().all(|step| step.cause.reason() == Reason::Age));
    assert_eq!((report.freed.freed_bytes, report.wanted_bytes, report.failure), (0, None, None));
    assert_eq!((plan.trigger.age, plan.trigger.space), (true, false));
    assert_eq!(plan.outcome, OutcomeKind::Reached);
}
