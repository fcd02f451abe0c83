//! Carries out policy `kubelet`: its collector runs once over the runtime's listings, and deletes
//! through the same remover, proofs and measurements as [`crate::execute::images::run`].
//!
//! Its rules, order, roundings and believed bytes are its own. Our protections stand above them:
//! what our rules keep is shown to it as pinned, so that it never tries.

use crate::execute::executor::Run;
use crate::execute::gauges::Gauges;
use crate::execute::images::Images;
use crate::execute::proof::{ImageFacts, ProofContext, RemoverFacts};
use crate::execute::remover::{PreconditionError, Remover};
use crate::model::outcome::Stopped;
use crate::model::plan::{
    self, Cause, FilesystemPlan, Gain, Kept, PassEnd, Phase, Problem, Step, Target, Trigger,
};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{BytesAndInodes, InvalidStats, Measured, Space, Started};
use crate::model::{FilesystemIx, ImageIx, Inventory, OutcomeKind, Plan};
use crate::policy::StepOutcome;
use crate::policy::kubelet::{
    CollectorReport, FsStats, KubeletFailure, KubeletPolicy, ListedContainer, ListedImage, ListedNode,
    Runtime, RuntimeError,
};
use crate::policy::plan::ImageState;
use crate::policy::rules::Judge;
use crate::stores::Scan;

/// What it does without: it has no back-off, and a rule of its own for what was used just now.
const WAIVED: [Rule; 2] = [Rule::BackingOff, Rule::UsedJustNow];

/// Runs the kubelet's collector once, and returns the plan as it was carried out, and the kubelet's
/// own account: what it believes it freed, its events, its failure. The kubelet is taken to be up
/// for long, and to remember what we do.
///
/// The plan has no groups, and is judged by the measured usage: `NotReached` where the kubelet
/// believes that it has done its work and the disk says otherwise.
///
/// # Errors
/// When what the remover needs to know cannot be had in full, or no runtime is behind it: then
/// nothing was deleted.
pub fn run(
    run: &mut Run<'_>,
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover: &mut dyn Remover,
    policy: KubeletPolicy,
) -> Result<(Plan, CollectorReport), PreconditionError> {
    let remover_facts = RemoverFacts::now(scan, proof_context, remover)?;
    let spaces = run.measure();
    let act = Act { run, images: Images::new(scan, *proof_context, &WAIVED, remover) };
    collect(Some(act), scan, proof_context, &remover_facts, policy, spaces)
}

/// What [`run`] would do if every prediction holds, after something else has freed `made`.
///
/// # Errors
/// As there.
pub fn plan(
    made: &[Gain],
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover_facts: &RemoverFacts,
    policy: KubeletPolicy,
) -> Result<(Plan, CollectorReport, Vec<Measured>), PreconditionError> {
    let before = Gauges::open(&scan.inventory, None).measure();
    let mut then = before.clone();
    plan::apply(made, &mut then);
    let (plan, report) = collect(None, scan, proof_context, remover_facts, policy, then)?;
    Ok((plan, report, before))
}

/// What carries out the removals that the kubelet's collector asks for.
struct Act<'a, 'r> {
    run: &'a mut Run<'r>,
    images: Images<'a>,
}

/// One run of the collector. What our rules keep is known to it from the start. Without `act` it is a prediction.
fn collect(
    act: Option<Act<'_, '_>>,
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover_facts: &RemoverFacts,
    policy: KubeletPolicy,
    spaces: Vec<Measured>,
) -> Result<(Plan, CollectorReport), PreconditionError> {
    let inventory = &scan.inventory;
    let listing = remover_facts.listing.as_ref().ok_or_else(|| {
        PreconditionError::new("policy kubelet needs the listings of a runtime, and there is none")
    })?;
    let facts = ImageFacts::of(scan, proof_context, remover_facts);
    let input = facts.input(scan, proof_context.policy);
    let judge = Judge::new(input).waiving(&WAIVED);
    let listed = ListedNode::new(inventory, &scan.refs, listing, spaces);
    let mut manager = listed.manager(policy, &input);
    let mut node = KubeletNode {
        inventory,
        filesystem: listing.filesystem_in(inventory).unwrap_or(0.into()),
        listed,
        act,
        by_space: None,
        states: ImageState::all(&judge, inventory),
        steps: Vec::new(),
        problems: Vec::new(),
    };
    let report = match node.is_stopped() {
        false => manager.garbage_collect(&mut node, facts.now),
        true => CollectorReport::default(),
    };
    node.measure();
    // Its own rule for recent use has its own clock.
    let facts = facts.scanned_now();
    let judge = Judge::new(facts.input(scan, proof_context.policy));
    Ok((node.plan(&report, policy, &judge), report))
}

/// The node as the kubelet sees it.
struct KubeletNode<'a, 'r, 's> {
    inventory: &'s Inventory,
    /// The runtime's image filesystem.
    filesystem: FilesystemIx,
    listed: ListedNode<'s>,
    /// `None`: every removal is taken to succeed.
    act: Option<Act<'a, 'r>>,
    /// What the filesystem said when the space pass began; `None`: it has not begun.
    by_space: Option<Measured>,
    states: Vec<ImageState>,
    steps: Vec<Step>,
    problems: Vec<Problem>,
}

impl KubeletNode<'_, '_, '_> {
    fn delete(&mut self, step: &Step) -> StepOutcome {
        let Some(Act { run, images }) = &mut self.act else { return StepOutcome::Removed };
        run.step(step, images)
    }

    fn is_stopped(&mut self) -> bool {
        self.act.as_mut().is_some_and(|act| act.run.is_stopped())
    }

    fn stopped(&self) -> Option<&Stopped> {
        self.act.as_ref()?.run.stopped.as_ref()
    }

    /// What the filesystems say now; of a prediction that is known already.
    fn measure(&mut self) {
        if let Some(act) = &self.act {
            self.listed.spaces = act.run.measure();
        }
    }

    /// Marks the image as deleted.
    fn went(&mut self, at: ImageIx, gains: &[Gain]) {
        self.states[at.get()] = ImageState::Gone;
        self.listed.went(at, gains);
        self.measure();
    }

    fn remove(&mut self, at: ImageIx) -> Result<(), RuntimeError> {
        if matches!(self.states[at.get()], ImageState::Gone) {
            // It was listed for another handler as well.
            return Ok(());
        }
        let cause = if self.by_space.is_some() { Cause::Space } else { Cause::Age };
        let step = self.listed.step(at, cause, self.filesystem);
        match self.delete(&step) {
            StepOutcome::Removed => {
                self.went(at, &step.gains);
                self.steps.push(step);
                Ok(())
            }
            StepOutcome::AlreadyGone => {
                self.went(at, &[]);
                Ok(())
            }
            StepOutcome::NotTried => Err(RuntimeError("the run was stopped".into())),
            StepOutcome::Kept(ruling) => self.stays(at, ruling),
            StepOutcome::StoreSkipped(why) | StepOutcome::MakesNoRoom { why, .. } => {
                self.stays(at, Ruling::keeps(Rule::OutOfReach, why.message))
            }
            StepOutcome::Failed(problem) => Err(RuntimeError(self.failed(at, problem))),
            // The kubelet trusts the runtime's answer.
            StepOutcome::StillThere(problem) => {
                self.failed(at, problem);
                Ok(())
            }
        }
    }

    fn failed(&mut self, at: ImageIx, problem: Problem) -> String {
        let message = problem.message.clone();
        self.problems.push(problem);
        self.states[at.get()] = ImageState::Kept(Ruling::keeps(Rule::RemovalFailed, message.clone()));
        message
    }

    fn stays(&mut self, at: ImageIx, ruling: Ruling) -> Result<(), RuntimeError> {
        let ruling = ruling.since_run_began();
        let detail = ruling.detail.clone();
        self.states[at.get()] = ImageState::Kept(ruling);
        Err(RuntimeError(detail))
    }

    fn plan(mut self, report: &CollectorReport, policy: KubeletPolicy, judge: &Judge<'_>) -> Plan {
        let part = self.part(report, policy);
        if let Some(invalid) = &part.invalid {
            let mount = self.inventory[self.filesystem].mount.display().to_string();
            self.problems.push(Problem::new(Some(mount), Phase::Measure, invalid.to_string()));
        }
        if let Some(Stopped::Unproven(what)) = self.stopped() {
            self.problems.push(Problem::new(None, Phase::Prove, what.clone()));
        }
        if let Some(failure) = &report.failure {
            // As in the kubelet's own log.
            self.problems.push(Problem::new(None, Phase::Kubelet, failure.to_string()));
        }
        let age = self.steps.iter().any(|step| step.cause == Cause::Age);
        // A run that ended early has not judged the filesystem.
        let starts = |space: &Space| used_percent(space) >= i128::from(policy.high_percent);
        let unjudged_and_full = part.end == PassEnd::Open && part.after.iter().flatten().any(starts);
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
            problems: self.problems,
            notes: Vec::new(),
            outcome,
        }
    }

    fn part(&self, report: &CollectorReport, policy: KubeletPolicy) -> FilesystemPlan {
        let after = self.listed.space(self.filesystem);
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
            invalid,
        }
    }

    fn kept(&self, report: &CollectorReport, part: &FilesystemPlan, judge: &Judge<'_>) -> Vec<Kept> {
        let ended = self.stopped().is_some() || part.end == PassEnd::Open;
        let open = |image: ImageIx| {
            let rulings = judge.rulings(image);
            match rulings.into_iter().find(|one| one.rule == Rule::UsedJustNow && one.stays) {
                Some(ruling) => ruling,
                None if ended => Ruling::ended_early(),
                None if let Some(invalid) = &part.invalid => {
                    Ruling::keeps(Rule::Unmeasured, invalid.to_string())
                }
                None if report.wanted_bytes.is_some() => Ruling::keeps(
                    Rule::NotNeeded,
                    "by the kubelet's estimate, enough was freed before its turn",
                ),
                None => {
                    let used = report.usage_percent.unwrap_or_default();
                    Ruling::keeps(Rule::NotNeeded, format!("{used} % used, rounded as the kubelet does"))
                }
            }
        };
        let states = self.states.iter().enumerate();
        let kept = states.filter_map(|(at, state)| {
            let image = ImageIx::from(at);
            let ruling = match state {
                ImageState::Gone => return None,
                ImageState::Kept(ruling) => ruling.clone(),
                ImageState::Candidate => open(image),
            };
            Some(Kept::new(Target::image(self.inventory, image), ruling))
        });
        kept.collect()
    }
}

/// Percent used as the kubelet rounds it.
fn used_percent(space: &Space) -> i128 {
    100 - i128::from(space.available_bytes) * 100 / i128::from(space.capacity_bytes.max(1))
}

impl Runtime for KubeletNode<'_, '_, '_> {
    fn list_images(&mut self) -> Result<Vec<ListedImage>, RuntimeError> {
        let shown = |(image, at): &(ListedImage, Option<ImageIx>)| {
            // What lies in no store that we read (an OCI artifact) is not ours to judge.
            let kept = at.is_none_or(|at| matches!(self.states[at.get()], ImageState::Kept(_)));
            ListedImage { pinned: image.pinned || kept, ..image.clone() }
        };
        Ok(self.listed.images.iter().map(shown).collect())
    }

    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        Ok(self.listed.containers())
    }

    fn image_filesystem(&mut self) -> Result<FsStats, RuntimeError> {
        self.measure();
        let space = self.listed.space(self.filesystem);
        self.by_space = Some(space.clone());
        match space {
            Ok(space) => Ok(space.into()),
            Err(InvalidStats::NoCapacity) => Ok(FsStats { capacity_bytes: Some(0), available_bytes: None }),
            // The kubelet treats missing numbers as full. We do not.
            Err(invalid) => Err(RuntimeError(invalid.to_string())),
        }
    }

    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), RuntimeError> {
        if self.is_stopped() {
            return Err(RuntimeError("the run was ended".into()));
        }
        match self.listed.find(id, handler)? {
            Some(at) => self.remove(at),
            None => Err(RuntimeError("it is in no store that was read".into())),
        }
    }
}
