//! Comparison of the policies: the images that each would delete, the bytes that it would believe it freed, the bytes
//! really freed, and the bytes that are expected to be pulled again. Pure: the kubelet's collector runs on a simulated
//! runtime over the inventory.

use std::collections::HashSet;

use serde::Serialize;

use crate::model::deletion::plan::{ExpectedPulls, Step};
use crate::model::space::{Measured, Space, Started};
use crate::model::text::display::two_decimals;
use crate::model::text::names::names;
use crate::model::{FilesystemIx, ImageIx, Inventory, Plan};
use crate::policy::cheapest::costs::PullCosts;
use crate::policy::input::{DeletionOrder, Input, Policy};
use crate::policy::kubelet::{self, IMAGE_GC_PERIOD, KubeletPolicy, Listing, SimulatedNode};
use crate::policy::plan::{Task, plan};

/// Maximum number of simulated runs that each change something. After them, the result is shown as it is.
const MAX_RUNS: usize = 100;

names! {
    ComparedPolicy {
        Kubelet = "kubelet",
        /// layersweep's policy with the order `idle`.
        Idle = "idle",
        /// layersweep's policy with the order `cheapest`.
        Cheapest = "cheapest",
    }
}

/// The policies on one filesystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    #[serde(skip)]
    pub filesystem: FilesystemIx,
    /// Percentage used before, two decimals.
    pub usage_before_percent: f64,
    /// Prediction for each policy: `kubelet` where a runtime lists its images and the targets are percentages, `idle`,
    /// `cheapest`.
    pub policies: Vec<Prediction>,
}

impl Comparison {
    #[must_use]
    pub fn of(&self, policy: ComparedPolicy) -> Option<&Prediction> {
        self.policies.iter().find(|prediction| prediction.policy == policy)
    }
}

/// Result of one policy, in as many runs as it needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PredictionDoc"))]
pub struct Prediction {
    /// `kubelet`, `idle` or `cheapest`; the last two are the orders of policy `exact`.
    pub policy: ComparedPolicy,
    /// Runs that did something, or failed.
    pub runs: Vec<PredictedRun>,
    /// Number of images deleted for this filesystem, or that free something on it.
    pub deleted: usize,
    /// Deleted images that were never pulled, so that no registry may have them.
    pub never_pulled: usize,
    /// Bytes that the policy believes it freed.
    pub believed_bytes: u64,
    /// Bytes freed on the filesystem.
    pub freed_bytes: u64,
    /// Bytes that are expected to be pulled again for these images; the lower bound only for `cheapest`.
    pub pulls: ExpectedPulls,
    /// Percentage used in the end, two decimals.
    pub usage_after_percent: f64,
    /// The low threshold is reached.
    pub reached: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PredictedRunDoc"))]
pub struct PredictedRun {
    /// Ids of these images, in order.
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
pub fn kubelet_policy(policy: &Policy) -> Option<KubeletPolicy> {
    let marks = policy.targets.used?;
    Some(KubeletPolicy {
        high_percent: marks.high.into(),
        low_percent: marks.low.into(),
        min_age: policy.min_age,
        max_age: policy.max_age.unwrap_or_default(),
        ..KubeletPolicy::default()
    })
}

/// Compares the policies on the runtime's image filesystem, which is that of the store it writes to. Without a listing of
/// a runtime, the kubelet is left out, and the filesystem is the first one that is short of space.
///
/// The simulated kubelet has been running for long and remembers everything in layersweep's records, which is more
/// than a kubelet knows after a restart. No rules apply besides its own. `None` if the numbers of the filesystem
/// are invalid.
#[must_use]
pub fn compare(
    input: Input<'_>,
    measured: &[Measured],
    listing: Option<&Listing>,
    kubelet_policy: Option<KubeletPolicy>,
) -> Option<Comparison> {
    let [(idle, idle_plan), (cheapest, cheapest_plan)] =
        [(ComparedPolicy::Idle, DeletionOrder::Idle), (ComparedPolicy::Cheapest, DeletionOrder::Cheapest)]
            .map(|(compared, order)| {
                let policy = Policy { order, ..input.policy.clone() };
                (compared, plan(Input { policy: &policy, ..input }, Task::Policy, measured))
            });
    let filesystem = match listing {
        Some(listing) => listing.filesystem_in(input.inventory)?,
        None => idle_plan.shown()?.filesystem,
    };
    let space = measured.get(filesystem.get())?.clone().ok()?;
    let costs = PullCosts::of(&input);
    let kubelet = listing.zip(kubelet_policy).map(|(listing, policy)| {
        let mut node = SimulatedNode::new(input.inventory, input.refs, listing, measured.to_vec());
        node.keeps_artifacts = true;
        let (prediction, images) = predict_kubelet(input, node, space, policy);
        prediction.priced(&input, &costs, images)
    });
    let planned = [(idle, idle_plan), (cheapest, cheapest_plan)].map(|(policy, plan)| {
        let (prediction, images) = predict_exact(policy, &plan, filesystem, space, &input);
        prediction.priced(&input, &costs, images)
    });
    Some(Comparison {
        filesystem,
        usage_before_percent: two_decimals(space.used_percent()),
        policies: kubelet.into_iter().chain(planned).collect(),
    })
}

/// Runs the collector until it deletes nothing more. `space`: numbers of the image filesystem before. Returns also the
/// deleted images.
fn predict_kubelet(
    input: Input<'_>,
    mut node: SimulatedNode<'_>,
    space: Space,
    policy: KubeletPolicy,
) -> (Prediction, Vec<ImageIx>) {
    let mut manager = node.manager(policy, &input);
    let ids =
        |images: &[ImageIx]| images.iter().map(|image| input.inventory[*image].id.to_string()).collect();
    let mut after = space;
    let mut streak = kubelet::FailureStreak::default();
    let (mut runs, mut images) = (Vec::new(), Vec::new());
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
        images.extend_from_slice(&deleted);
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
    (prediction(ComparedPolicy::Kubelet, runs, &after, policy.is_at_low(&after)), images)
}

/// Returns what the plan does on one filesystem, and the images that it deletes for it or that free something there: a
/// plan deletes on every filesystem that is short of space.
fn predict_exact(
    policy: ComparedPolicy,
    plan: &Plan,
    filesystem: FilesystemIx,
    space: Space,
    input: &Input<'_>,
) -> (Prediction, Vec<ImageIx>) {
    let steps = plan.steps.iter();
    let steps: Vec<_> = steps
        .filter(|step| step.filesystem == Some(filesystem) || step.predicted_on(filesystem) > 0)
        .collect();
    let part = plan.filesystems.iter().find(|part| part.filesystem == filesystem);
    let after = part.and_then(|part| part.after.clone()?.ok()).unwrap_or(space);
    let freed_bytes = steps.iter().map(|step| step.predicted_on(filesystem)).fold(0, u64::saturating_add);
    let run = PredictedRun {
        deleted: steps.iter().map(|step| step.target.id.clone()).collect(),
        still_there: vec![],
        wanted_bytes: part.map_or(0, |part| part.wanted.bytes),
        believed_bytes: freed_bytes,
        freed_bytes,
        usage_after_percent: two_decimals(after.used_percent()),
        failure: None,
        events: vec![],
    };
    let runs = if run.deleted.is_empty() { vec![] } else { vec![run] };
    let all = Started { used: true, free: true, inodes: false };
    let is_reached = input.policy.targets.wanted(all, &after).bytes == 0;
    let at_least_bytes = part.and_then(|part| part.pulls?.at_least_bytes);
    let pulls = ExpectedPulls { at_least_bytes, ..ExpectedPulls::default() };
    (Prediction { pulls, ..prediction(policy, runs, &after, is_reached) }, images(input.inventory, &steps))
}

fn prediction(
    policy: ComparedPolicy,
    runs: Vec<PredictedRun>,
    after: &Space,
    is_reached: bool,
) -> Prediction {
    Prediction {
        policy,
        deleted: runs.iter().map(|run| run.deleted.len()).sum(),
        never_pulled: 0,
        // The runtime's listing says the sizes.
        believed_bytes: runs.iter().map(|run| run.believed_bytes).fold(0, u64::saturating_add),
        freed_bytes: runs.iter().map(|run| run.freed_bytes).fold(0, u64::saturating_add),
        pulls: ExpectedPulls::default(),
        usage_after_percent: two_decimals(after.used_percent()),
        reached: is_reached,
        runs,
    }
}

impl Prediction {
    /// Adds what the deleted images are expected to cost. The kubelet may delete one more than once.
    fn priced(mut self, input: &Input<'_>, costs: &PullCosts, mut images: Vec<ImageIx>) -> Self {
        images.sort_unstable();
        images.dedup();
        let cost = costs.of_images(input, &images);
        self.pulls = ExpectedPulls { bytes: cost.bytes(), is_estimated: cost.is_estimated, ..self.pulls };
        self.never_pulled = images.iter().filter(|image| !costs.can_return(**image)).count();
        self
    }
}

/// Returns the images that the steps delete. Another store may have images with the same ids.
fn images(inventory: &Inventory, steps: &[&Step]) -> Vec<ImageIx> {
    let targets = steps.iter().map(|step| (step.target.store.as_ref(), step.target.id.as_str()));
    let deleted: HashSet<_> = targets.collect();
    let stores = inventory.store_ids();
    let images = (0..).map(ImageIx::from).zip(&inventory.images);
    let of_steps =
        images.filter(|(_, image)| deleted.contains(&(stores.get(image.store.get()), image.id.as_str())));
    of_steps.map(|(ix, _)| ix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::refs::Refs;
    use crate::model::{Image, NodeIx, Owner};
    use crate::policy::Ages;
    use crate::policy::Policy;
    use crate::policy::input::Facts;
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
        let both = prediction(ComparedPolicy::Kubelet, vec![run.clone(), run], &made.space(), false);
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
        let both =
            compare(input, &[Ok(made.space())], Some(&Scenario::listing(&inventory)), Some(kubelet)).unwrap();
        assert!((both.usage_before_percent - 77.0).abs() < 0.01, "{}", both.usage_before_percent);
        for prediction in &both.policies {
            println!(
                "{}: {} runs, {} images, {} bytes believed, {} freed, {:.2} % in the end, {:?}",
                prediction.policy,
                prediction.runs.len(),
                prediction.deleted,
                prediction.believed_bytes,
                prediction.freed_bytes,
                prediction.usage_after_percent,
                prediction.pulls,
            );
        }
        let [kubelet_runs, exact, cheapest] = &both.policies[..] else { panic!("{both:?}") };
        assert!(cheapest.reached && cheapest.pulls.bytes <= exact.pulls.bytes, "{cheapest:?}");
        assert!(cheapest.pulls.at_least_bytes.unwrap() <= cheapest.pulls.bytes, "{cheapest:?}");
        assert_eq!(kubelet_runs.runs.len(), 3);
        assert_eq!(format!("{:.0}", kubelet_runs.usage_after_percent), "72");
        assert!(!kubelet_runs.reached);
        for run in &kubelet_runs.runs {
            assert!(run.believed_bytes >= run.wanted_bytes, "each run believes that it has succeeded");
            assert!(run.freed_bytes < run.wanted_bytes);
            assert_eq!(run.failure, None);
        }
        assert_eq!(exact.runs.len(), 1);
        assert!(exact.reached);
        // An image that a container has mounted is in use.
        let mut listing = Scenario::listing(&inventory);
        let first = &kubelet_runs.runs[0].deleted[0];
        listing.containers[0].mounted_images.push(first.clone());
        let mounted = compare(input, &[Ok(made.space())], Some(&listing), Some(kubelet)).unwrap();
        assert!(mounted.policies[0].runs.iter().all(|run| !run.deleted.contains(first)));
        let plan = plan(input, Task::Policy, &[Ok(made.space())]);
        let last = plan.steps.last().unwrap();
        let before = plan.filesystems[0].after.clone().unwrap().unwrap();
        let before = Space { available_bytes: before.available_bytes - last.predicted_bytes(), ..before };
        assert!(before.used_percent() > 69.0, "every deleted image was necessary");
    }

    /// Another store, on a disk of its own, has the same images.
    #[test]
    fn another_disk_does_not_change_the_columns() {
        let made = Scenario::article();
        let alone = made.inventory();
        let (listing, policy) = (Scenario::listing(&alone), marks(74, 69));
        let mut both = alone.clone();
        both.filesystems.extend(alone.filesystems.clone());
        both.filesystems[1].mount = "/home".into();
        both.stores.extend(alone.stores.clone());
        (both.stores[1].root, both.stores[1].filesystem) = ("/home/storage".into(), 1.into());
        let offset = |node: &NodeIx| NodeIx::from(node.get() + alone.nodes.len());
        both.nodes.extend(alone.nodes.iter().cloned().map(|mut node| {
            (node.store, node.filesystem) = (1.into(), 1.into());
            node.needs = node.needs.iter().map(offset).collect();
            node
        }));
        both.images.extend(alone.images.iter().cloned().map(|image| {
            let holds = image.holds.iter().map(offset).collect();
            Image { store: 1.into(), holds, ..image }
        }));
        let compared = |inventory: &Inventory, facts: &[Facts], measured: &[Measured]| {
            let input = Input {
                inventory,
                refs: &Refs::new(inventory),
                facts,
                full_filesystems: &[],
                policy: &policy,
                now: made.now,
                scanned: made.now,
            };
            compare(input, measured, Some(&listing), kubelet_policy(&policy)).unwrap()
        };
        let measured = [Ok(made.space()), Ok(made.space())];
        let facts = made.facts();
        let twice = [facts.clone(), facts.clone()].concat();
        let one = compared(&alone, &facts, &measured[..1]);
        assert_eq!(compared(&both, &twice, &measured), one);
        let [_, idle, cheapest] = &one.policies[..] else { panic!("{one:?}") };
        assert!(cheapest.pulls.bytes <= idle.pulls.bytes && idle.never_pulled == 0, "{one:?}");
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
        let both =
            compare(input, &[Ok(made.space())], Some(&Scenario::listing(&inventory)), Some(kubelet)).unwrap();
        let last = both.policies[0].runs.last().unwrap();
        assert!(last.deleted.is_empty() && last.failure.is_some());
        assert!(last.events.contains(&"ImageGCFailed"), "{:?}", last.events);
        assert_eq!(both.policies[0].deleted, 138, "only the runtime's refusal keeps the other 30");
        assert_eq!(both.policies[1].deleted, 138);
        let plan = plan(input, Task::Policy, &[Ok(made.space())]);
        assert!(plan.problems.is_empty(), "policy exact does not even try");
    }
}
