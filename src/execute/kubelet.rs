//! Plan of policy `kubelet`, for a dry run: the kubelet's collector runs once over the runtime's listings, and every
//! removal is predicted to succeed.
//!
//! The rules, the order, the rounding and the estimated bytes are the kubelet's. Images that layersweep's rules keep
//! are listed to it as pinned.

use crate::execute::gauges::Gauges;
use crate::execute::proof::{ImageFacts, PolicyContext};
use crate::execute::remover::PreconditionError;
use crate::model::deletion::plan::{
    self, Cause, FilesystemPlan, Gain, Kept, PassEnd, Phase, Problem, Step, Target, Trigger,
};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{BytesAndInodes, Measured, Space, Started};
use crate::model::{FilesystemIx, ImageIx, Inventory, OutcomeKind, Plan};
use crate::policy::Input;
use crate::policy::kubelet::{CollectorReport, KubeletFailure, KubeletPolicy, SimulatedNode};
use crate::policy::plan::ImageState;
use crate::policy::rules::Judge;
use crate::stores::Scan;

/// Rules that do not apply: the kubelet has no back-off, and another rule for recently used images.
const WAIVED: [Rule; 2] = [Rule::BackingOff, Rule::UsedJustNow];

/// Runs the kubelet's collector once, and returns the plan, the kubelet's own report (the bytes that it expects to
/// free, its failure) and the space of the filesystems before. `made` was freed before it begins. The kubelet is
/// assumed to have run for long, and to know the same ages as layersweep.
///
/// The plan has no groups. Its outcome is decided by the predicted usage: it is `NotReached` if the kubelet's estimate
/// reaches the low threshold and the predicted usage does not.
///
/// # Errors
/// When the remover uses no runtime: the collector needs the listings of one.
pub fn plan(
    made: &[Gain],
    scan: &Scan,
    context: &dyn PolicyContext,
    facts: &ImageFacts,
    policy: KubeletPolicy,
) -> Result<(Plan, CollectorReport, Vec<Measured>), PreconditionError> {
    let before = Gauges::open(&scan.inventory, None).measure();
    let mut spaces = before.clone();
    plan::apply(made, &mut spaces);
    let inventory = &scan.inventory;
    let listing = facts.listing.as_ref().ok_or_else(|| {
        PreconditionError::new("policy kubelet needs the listings of a runtime, but no runtime is used")
    })?;
    let input = facts.input(scan, context);
    let judge = Judge::new(input).waiving(&WAIVED);
    let mut node = SimulatedNode::new(inventory, &scan.refs, listing, spaces);
    let mut manager = node.manager(policy, &input);
    let mut states = ImageState::all(&judge, inventory);
    for (image, image_ix) in &mut node.images {
        // An image in no store that was read (an OCI artifact) cannot be judged, and is kept.
        image.pinned |= image_ix.is_none_or(|image_ix| matches!(states[image_ix.get()], ImageState::Kept(_)));
    }
    let report = manager.garbage_collect(&mut node, input.now);
    // The kubelet's rule for recent use has a clock of its own: as if the run had begun after everything that was used.
    let judge = Judge::new(Input { scanned: input.now, ..input });
    let (space, after) = (node.by_space.take(), node.space());
    let mut steps = Vec::new();
    for (image, step) in node.steps {
        states[image.get()] = ImageState::Gone;
        steps.push(step);
    }
    let run = KubeletRun { inventory, filesystem: node.filesystem, by_space: space, after, states, steps };
    Ok((run.plan(&report, policy, &judge), report, before))
}

struct KubeletRun<'s> {
    inventory: &'s Inventory,
    /// The runtime's image filesystem.
    filesystem: FilesystemIx,
    /// Space of the filesystem when the space pass began; `None`: it has not begun.
    by_space: Option<Measured>,
    after: Measured,
    states: Vec<ImageState>,
    steps: Vec<Step>,
}

impl KubeletRun<'_> {
    fn plan(self, report: &CollectorReport, policy: KubeletPolicy, judge: &Judge<'_>) -> Plan {
        let part = self.part(report, policy);
        let mut problems = Vec::new();
        if let Some(invalid) = &part.invalid {
            let mount = self.inventory[self.filesystem].mount.display().to_string();
            problems.push(Problem::new(Some(mount), Phase::Measure, invalid.to_string()));
        }
        if let Some(failure) = &report.failure {
            // The same text as in the kubelet's log.
            problems.push(Problem::new(None, Phase::Kubelet, failure.to_string()));
        }
        let age = self.steps.iter().any(|step| step.cause == Cause::Age);
        // A run that ended early has not judged the filesystem.
        let mut spaces = part.after.iter().flatten();
        let is_full = spaces.any(|space| used_percent(space) >= i128::from(policy.high_percent));
        let unjudged_and_full = part.end == PassEnd::Open && is_full;
        let outcome = match part.end {
            PassEnd::Invalid => OutcomeKind::Failed,
            PassEnd::NotReached => OutcomeKind::NotReached,
            _ if unjudged_and_full || matches!(report.failure, Some(KubeletFailure::AgeDeletion(_))) => {
                OutcomeKind::NotReached
            }
            PassEnd::Reached => OutcomeKind::Reached,
            _ if age => OutcomeKind::Reached,
            _ => OutcomeKind::NotNeeded,
        };
        let kept = self.kept(report, &part, judge);
        Plan {
            trigger: Trigger { space: part.started.any(), age },
            mounts: self.inventory.mounts(),
            filesystems: vec![part],
            steps: self.steps,
            kept,
            problems,
            notes: Vec::new(),
            outcome,
        }
    }

    fn part(&self, report: &CollectorReport, policy: KubeletPolicy) -> FilesystemPlan {
        let after = self.after.clone();
        let invalid = self.by_space.clone().and_then(Result::err);
        let end = match (&after, report.wanted_bytes) {
            _ if invalid.is_some() => PassEnd::Invalid,
            (Ok(after), Some(_)) if policy.is_at_low(after) => PassEnd::Reached,
            (_, Some(_)) => PassEnd::NotReached,
            (_, None) if report.usage_percent.is_some() => PassEnd::NotNeeded,
            (_, None) => PassEnd::Open,
        };
        let wanted = report.wanted_bytes.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
        FilesystemPlan {
            filesystem: self.filesystem,
            before: self.by_space.clone(),
            after: Some(after),
            started: Started { used: report.wanted_bytes.is_some(), ..Started::default() },
            wanted: BytesAndInodes { bytes: wanted, inodes: 0 },
            end,
            few_inodes: None,
            invalid,
            pulls: None,
        }
    }

    fn kept(&self, report: &CollectorReport, part: &FilesystemPlan, judge: &Judge<'_>) -> Vec<Kept> {
        let states = self.states.iter().enumerate();
        let kept = states.filter_map(|(position, state)| {
            let image_ix = ImageIx::from(position);
            let ruling = match state {
                ImageState::Gone => return None,
                ImageState::Kept(ruling) => ruling.clone(),
                ImageState::Candidate => why_candidate_stays(image_ix, report, part, judge),
            };
            Some(Kept::new(Target::image(self.inventory, image_ix), ruling))
        });
        kept.collect()
    }
}

fn why_candidate_stays(
    image_ix: ImageIx,
    report: &CollectorReport,
    part: &FilesystemPlan,
    judge: &Judge<'_>,
) -> Ruling {
    let rulings = judge.rulings(image_ix);
    match rulings.into_iter().find(|ruling| ruling.rule == Rule::UsedJustNow && ruling.keeps) {
        Some(ruling) => ruling,
        None if part.end == PassEnd::Open => Ruling::ended_early(),
        None if let Some(invalid) = &part.invalid => Ruling::keeps(Rule::Unmeasured, invalid.to_string()),
        None if report.wanted_bytes.is_some() => {
            Ruling::keeps(Rule::NotNeeded, "by the kubelet's estimate, enough was freed before its turn")
        }
        None => {
            let used = report.usage_percent.unwrap_or_default();
            Ruling::keeps(Rule::NotNeeded, format!("{used} % used, rounded as the kubelet does"))
        }
    }
}

/// Percent used as the kubelet rounds it.
fn used_percent(space: &Space) -> i128 {
    100 - i128::from(space.available_bytes) * 100 / i128::from(space.capacity_bytes.max(1))
}
