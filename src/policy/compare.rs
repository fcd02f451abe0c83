//! Comparison of both policies: the images that each would delete, the bytes that the kubelet would believe it
//! freed, and the bytes really freed. Pure: the kubelet's collector runs on a simulated runtime over the inventory.

use serde::Serialize;

use crate::model::space::{Measured, Space};
use crate::model::text::display::two_decimals;
use crate::model::{FilesystemIx, ImageIx, Plan};
use crate::policy::input::Input;
use crate::policy::kubelet::{self, IMAGE_GC_PERIOD, Listing, SimulatedNode};
use crate::policy::plan::{Task, plan};

/// Maximum number of simulated runs that each change something. After them, the result is shown as it is.
const MAX_RUNS: usize = 100;

/// Both policies on one filesystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    #[serde(skip)]
    pub filesystem: FilesystemIx,
    /// Percentage used before, two decimals.
    pub usage_before_percent: f64,
    /// Prediction for the kubelet.
    pub kubelet: Prediction,
    /// Prediction for policy `exact`.
    pub exact: Prediction,
}

/// Result of one policy, in as many runs as it needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PredictionDoc"))]
pub struct Prediction {
    /// Runs that did something, or failed.
    pub runs: Vec<PredictedRun>,
    /// Number of deleted images.
    pub deleted: usize,
    /// Bytes that the policy believes it freed.
    pub believed_bytes: u64,
    /// Bytes freed on the filesystem.
    pub freed_bytes: u64,
    /// Percentage used in the end, two decimals.
    pub usage_after_percent: f64,
    /// The low threshold is reached.
    pub reached: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PredictedRunDoc"))]
pub struct PredictedRun {
    /// Ids of the deleted images, in order.
    pub deleted: Vec<String>,
    /// Artifacts that the runtime reported as deleted but did not delete.
    pub still_there: Vec<String>,
    /// Bytes that the run wanted to free.
    pub wanted_bytes: u64,
    /// Bytes that the policy believes it freed.
    pub believed_bytes: u64,
    /// Bytes freed on the filesystem.
    pub freed_bytes: u64,
    /// Percentage used afterwards, two decimals.
    pub usage_after_percent: f64,
    /// Reason why it failed.
    pub failure: Option<String>,
    /// Events on the node, with the kubelet's names.
    pub events: Vec<&'static str>,
}

/// Returns the settings of the kubelet that correspond to a policy of layersweep. `None` if the policy has no
/// thresholds in percent used, because the kubelet has no others.
#[must_use]
pub fn kubelet_policy(policy: &crate::policy::Policy) -> Option<kubelet::KubeletPolicy> {
    let marks = policy.targets.used?;
    Some(kubelet::KubeletPolicy {
        high_percent: marks.high.into(),
        low_percent: marks.low.into(),
        min_age: policy.min_age,
        max_age: policy.max_age.unwrap_or_default(),
        ..kubelet::KubeletPolicy::default()
    })
}

/// Compares both policies on the runtime's image filesystem, which is that of the store it writes to.
///
/// The simulated kubelet has been running for long and remembers everything in layersweep's records, which is more
/// than a kubelet knows after a restart. No rules apply besides its own. `None` if the numbers of the filesystem
/// are invalid.
#[must_use]
pub fn compare(
    input: Input<'_>,
    measured: &[Measured],
    listing: &Listing,
    kubelet_policy: kubelet::KubeletPolicy,
) -> Option<Comparison> {
    let filesystem = listing.filesystem_in(input.inventory)?;
    let space = measured.get(filesystem.get())?.clone().ok()?;
    let mut node = SimulatedNode::new(input.inventory, input.refs, listing, measured.to_vec());
    node.keeps_artifacts = true;
    let plan = plan(input, Task::Policy, measured);
    Some(Comparison {
        filesystem,
        usage_before_percent: two_decimals(space.used_percent()),
        kubelet: predict_kubelet(input, node, space, kubelet_policy),
        exact: predict_exact(&plan, filesystem, space, &kubelet_policy),
    })
}

/// Runs the collector until it deletes nothing more. `space`: numbers of the image filesystem before.
fn predict_kubelet(
    input: Input<'_>,
    mut node: SimulatedNode<'_>,
    space: Space,
    policy: kubelet::KubeletPolicy,
) -> Prediction {
    let mut manager = node.manager(policy, &input);
    let ids =
        |images: &[ImageIx]| images.iter().map(|image| input.inventory[*image].id.to_string()).collect();
    let mut after = space;
    let mut streak = kubelet::FailureStreak::default();
    let mut runs = Vec::new();
    let mut now = input.now;
    let mut idle_runs = 0;
    while runs.len() < MAX_RUNS {
        let before = after.available_bytes;
        let report = manager.garbage_collect(&mut node, now);
        now = now.checked_add(IMAGE_GC_PERIOD).unwrap_or(now);
        let reports = streak.reports(report.failure.is_some());
        let deleted: Vec<_> = std::mem::take(&mut node.steps).into_iter().map(|(image, _)| image).collect();
        let still_there = std::mem::take(&mut node.still_there);
        idle_runs = if deleted.is_empty() && !still_there.is_empty() { idle_runs + 1 } else { 0 };
        after = node.space().unwrap_or(after);
        let changed = !report.freed.deleted.is_empty();
        if !changed && report.failure.is_none() {
            break;
        }
        let mut events: Vec<_> = report.events.iter().map(|event| event.as_str()).collect();
        events.extend(reports.then_some(kubelet::KubeletEvent::ImageGCFailed.as_str()));
        runs.push(PredictedRun {
            deleted: ids(&deleted),
            still_there: ids(&still_there),
            wanted_bytes: report.wanted_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            believed_bytes: report.freed.freed_bytes,
            freed_bytes: after.available_bytes.saturating_sub(before),
            usage_after_percent: two_decimals(after.used_percent()),
            failure: report.failure.map(|failure| failure.to_string()),
            events,
        });
        if !changed {
            // The next run would fail in the same way, and every run after it.
            break;
        }
        if idle_runs == 2 {
            // An artifact that is found again counts as new. From the second such run on, nothing changes.
            break;
        }
    }
    prediction(runs, &after, &policy)
}

fn predict_exact(
    plan: &Plan,
    filesystem: FilesystemIx,
    space: Space,
    policy: &kubelet::KubeletPolicy,
) -> Prediction {
    let part = plan.filesystems.iter().find(|part| part.filesystem == filesystem);
    let after = part.and_then(|part| part.after.clone()?.ok()).unwrap_or(space);
    let freed_bytes =
        plan.steps.iter().map(|step| step.predicted_on(filesystem)).fold(0, u64::saturating_add);
    let run = PredictedRun {
        deleted: plan.steps.iter().map(|step| step.target.id.clone()).collect(),
        still_there: vec![],
        wanted_bytes: part.map_or(0, |part| part.wanted.bytes),
        believed_bytes: freed_bytes,
        freed_bytes,
        usage_after_percent: two_decimals(after.used_percent()),
        failure: None,
        events: vec![],
    };
    let runs = if run.deleted.is_empty() { vec![] } else { vec![run] };
    prediction(runs, &after, policy)
}

fn prediction(runs: Vec<PredictedRun>, after: &Space, policy: &kubelet::KubeletPolicy) -> Prediction {
    Prediction {
        deleted: runs.iter().map(|run| run.deleted.len()).sum(),
        // The runtime's listing says the sizes.
        believed_bytes: runs.iter().map(|run| run.believed_bytes).fold(0, u64::saturating_add),
        freed_bytes: runs.iter().map(|run| run.freed_bytes).fold(0, u64::saturating_add),
        usage_after_percent: two_decimals(after.used_percent()),
        reached: policy.is_at_low(after),
        runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Owner;
    use crate::model::refs::Refs;
    use crate::policy::Ages;
    use crate::policy::Policy;
    use crate::policy::scenario::Scenario;
    use crate::policy::space::{Targets, Thresholds};

    fn marks(high: u8, low: u8) -> Policy {
        Policy {
            targets: Targets { used: Some(Thresholds { high, low }), ..Targets::default() },
            ..Policy::default()
        }
    }

    /// A runtime may list any size.
    #[test]
    fn sums_of_listed_sizes_saturate() {
        let made = Scenario::article();
        let kubelet = kubelet_policy(&marks(74, 69)).unwrap();
        let run = PredictedRun {
            deleted: vec!["a".into()],
            still_there: vec![],
            wanted_bytes: 1,
            believed_bytes: u64::MAX - 1,
            freed_bytes: 5,
            usage_after_percent: 77.0,
            failure: None,
            events: vec![],
        };
        let both = prediction(vec![run.clone(), run], &made.space(), &kubelet);
        assert_eq!((both.believed_bytes, both.freed_bytes), (u64::MAX, 10));
    }

    /// The node of the article: the kubelet makes three runs. Each of them believes that it has succeeded, but the
    /// disk is still far above the low threshold. One run of policy `exact` reaches it.
    #[test]
    fn kubelet_needs_three_runs_and_exact_one() {
        let made = Scenario::article();
        assert_eq!((made.images.len(), made.containers.len()), (168, 45));
        let inventory = made.inventory();
        let refs = Refs::new(&inventory);
        let (facts, policy) = (made.facts(), marks(74, 69));
        let input = Input {
            inventory: &inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &policy,
            now: made.now,
            scanned: made.now,
        };
        let kubelet = kubelet_policy(&policy).unwrap();
        let both = compare(input, &[Ok(made.space())], &Scenario::listing(&inventory), kubelet).unwrap();
        assert!((both.usage_before_percent - 77.0).abs() < 0.01, "{}", both.usage_before_percent);
        for (policy, prediction) in [("kubelet", &both.kubelet), ("exact", &both.exact)] {
            println!(
                "{policy}: {} runs, {} images, {} bytes believed, {} freed, {:.2} % in the end",
                prediction.runs.len(),
                prediction.deleted,
                prediction.believed_bytes,
                prediction.freed_bytes,
                prediction.usage_after_percent
            );
        }
        assert_eq!(both.kubelet.runs.len(), 3);
        assert_eq!(format!("{:.0}", both.kubelet.usage_after_percent), "72");
        assert!(!both.kubelet.reached);
        for run in &both.kubelet.runs {
            assert!(run.believed_bytes >= run.wanted_bytes, "each run believes that it has succeeded");
            assert!(run.freed_bytes < run.wanted_bytes);
            assert_eq!(run.failure, None);
        }
        assert_eq!(both.exact.runs.len(), 1);
        assert!(both.exact.reached);
        // An image that a container has mounted is in use.
        let mut listing = Scenario::listing(&inventory);
        let first = &both.kubelet.runs[0].deleted[0];
        listing.containers[0].mounted_images.push(first.clone());
        let mounted = compare(input, &[Ok(made.space())], &listing, kubelet).unwrap();
        assert!(mounted.kubelet.runs.iter().all(|run| !run.deleted.contains(first)));
        let plan = plan(input, Task::Policy, &[Ok(made.space())]);
        let last = plan.steps.last().unwrap();
        let before = plan.filesystems[0].after.clone().unwrap().unwrap();
        let before = Space { available_bytes: before.available_bytes - last.predicted_bytes(), ..before };
        assert!(before.used_percent() > 69.0, "every deleted image was necessary");
    }

    /// The kubelet does not know podman's containers: every run tries to delete their images, without success.
    #[test]
    fn image_in_use_by_podman_fails_every_run() {
        let mut made = Scenario::article();
        for image in &mut made.images {
            image.ages = Ages::new(made.now, image.ages.last_used, image.ages.use_count);
        }
        let mut inventory = made.inventory();
        for container in &mut inventory.containers {
            container.owner = Owner::Podman;
        }
        let refs = Refs::new(&inventory);
        let policy = Policy { min_age: jiff::SignedDuration::ZERO, ..marks(1, 0) };
        let facts = made.facts();
        let input = Input {
            inventory: &inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &policy,
            now: made.now + jiff::SignedDuration::from_secs(1),
            scanned: made.now + jiff::SignedDuration::from_secs(1),
        };
        let kubelet = kubelet_policy(&policy).unwrap();
        let both = compare(input, &[Ok(made.space())], &Scenario::listing(&inventory), kubelet).unwrap();
        let last = both.kubelet.runs.last().unwrap();
        assert!(last.deleted.is_empty() && last.failure.is_some());
        assert!(last.events.contains(&"ImageGCFailed"), "{:?}", last.events);
        assert_eq!(both.kubelet.deleted, 138, "only the runtime's refusal keeps the other 30");
        assert_eq!(both.exact.deleted, 138);
        let plan = plan(input, Task::Policy, &[Ok(made.space())]);
        assert!(plan.problems.is_empty(), "policy exact does not even try");
    }
}
