//! Policy `kubelet` for real: its collector runs once over what the runtime lists, and deletes
//! through the same hands, proofs and measurements as [`crate::execute::Runner::run`].
//!
//! Its rules, order, roundings and believed bytes are its own. Our protections stand above them:
//! what our rules keep is shown to it as pinned, so that it never tries.

use std::sync::atomic::Ordering;

use crate::execute::deleting::{Deleter, Done};
use crate::execute::gauges::Gauges;
use crate::execute::hands::{Blind, Hands, Listing};
use crate::execute::proof::Proof;
use crate::execute::{Facts, Memory, Ran, Runner, Stopped, after};
use crate::model::refs::{Live, Root};
use crate::model::rules::{Rule, Ruling};
use crate::model::{FilesystemIx, ImageIx};
use crate::policy::input::Policy;
use crate::policy::kubelet::{
    self, Failure, FsStats, Gates, ListedContainer, ListedImage, Manager, Record, Records, Report, Runtime,
    RuntimeError,
};
use crate::policy::plan::{
    End, FilesystemPlan, Gain, Kept, Outcome, Plan, Problem, Reason, Step, Trigger, Verdict,
};
use crate::policy::rules::Judge;
use crate::policy::space::{Doubt, Measured, Space, Started, Wanted};
use crate::stores::{Request, Survey};

/// What it does without: it has no back-off, and a rule of its own for what was used just now.
const WAIVED: [Rule; 2] = [Rule::BackingOff, Rule::UsedJustNow];

/// What became of a run by policy `kubelet`.
#[derive(Clone, Debug)]
pub struct ByKubelet {
    /// What was done and what came of it, as measured. Its `plan` has no groups, and is judged
    /// by the measured usage: `NotReached` where the kubelet believes that it has done its work
    /// and the disk says otherwise.
    pub ran: Ran,
    /// The kubelet's own story: what it believes it freed, its events, its failure.
    pub report: Report,
}

/// The kubelet's settings, and which of its features count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theirs {
    /// See [`crate::policy::compare::kubelet_policy`].
    pub policy: kubelet::Policy,
    /// The features.
    pub gates: Gates,
}

/// Runs the kubelet's collector once. The kubelet is taken to be up for long, and to remember
/// what we do. [`Runner::task`] is not looked at.
///
/// # Errors
/// When what the hands need to know cannot be had in full, or no runtime is behind them: then
/// nothing was deleted.
pub fn run(runner: &mut Runner<'_>, survey: &Survey, theirs: Theirs) -> Result<ByKubelet, Blind> {
    let world = World::look(survey, runner.request, runner.policy, runner.memory, runner.hands)?;
    let gauges = Gauges::open(&survey.inventory);
    let before = gauges.measure();
    let (request, policy, memory) = (runner.request, runner.policy, runner.memory);
    let deleter = Deleter {
        survey,
        gauges: &gauges,
        proof: Proof { request, policy, memory, waived: &WAIVED },
        hands: &mut *runner.hands,
        witness: &mut *runner.witness,
        patience: runner.patience,
        deletions: Vec::new(),
        aside: Vec::new(),
        in_part: Vec::new(),
    };
    let stop = runner.stop;
    let act = Act::Delete { deleter: Box::new(deleter), stopped: &|| stop.load(Ordering::Relaxed) };
    let now = before.clone();
    Ok(world.collect(act, survey, policy, theirs, (before, now)))
}

/// What [`run`] would do if every prediction holds, after something else that is to go before it has
/// given back `made`.
///
/// # Errors
/// As there.
pub fn dry(
    made: &[Gain],
    survey: &Survey,
    request: &Request,
    policy: &Policy,
    memory: &dyn Memory,
    hands: &mut dyn Hands,
    theirs: Theirs,
) -> Result<ByKubelet, Blind> {
    let world = World::look(survey, request, policy, memory, hands)?;
    let before = Gauges::open(&survey.inventory).measure();
    let then = after(&before, made);
    Ok(world.collect(Act::Pretend, survey, policy, theirs, (before, then)))
}

/// What is known when the collector begins.
struct World {
    facts: Facts,
    listing: Listing,
    /// Why our rules keep each image, if they do.
    kept: Vec<Option<Ruling>>,
}

impl World {
    fn look(
        survey: &Survey,
        request: &Request,
        policy: &Policy,
        memory: &dyn Memory,
        hands: &mut dyn Hands,
    ) -> Result<Self, Blind> {
        let mut facts = Facts::gather(survey, request, memory, hands)?;
        let listing = facts.listing.take().ok_or_else(|| Blind {
            what: "policy kubelet goes by what a runtime lists, and there is none".into(),
            stale: false,
        })?;
        let judge = Judge::new(facts.input(survey, policy)).waiving(&WAIVED);
        let kept = (0..survey.inventory.images.len()).map(|at| judge.kept(at.into())).collect();
        Ok(Self { facts, listing, kept })
    }

    /// What the kubelet remembers of the images.
    fn records(&self, gates: Gates) -> Records {
        let records = self.listing.images.iter().filter_map(|(image, at)| {
            let ages = self.facts.ages.get((*at)?.get())?;
            let record = Record {
                first_detected: Some(ages.first_detected),
                last_used: ages.last_used,
                ..Record::default()
            };
            Some((kubelet::key(gates, &image.id, &image.handler), record))
        });
        records.collect()
    }

    fn collect(
        self,
        act: Act<'_>,
        survey: &Survey,
        policy: &Policy,
        theirs: Theirs,
        (before, spaces): (Vec<Measured>, Vec<Measured>),
    ) -> ByKubelet {
        let began = jiff::Timestamp::MIN;
        let mut manager = Manager::new(theirs.policy, theirs.gates, began, self.records(theirs.gates));
        let mut node = Node {
            survey,
            filesystem: survey.inventory.stores[self.listing.store.get()].filesystem,
            live: survey.refs.live(),
            act,
            spaces,
            by_space: None,
            fates: self.kept.iter().cloned().map(|kept| kept.map_or(Fate::Open, Fate::Kept)).collect(),
            listing: &self.listing,
            steps: Vec::new(),
            problems: Vec::new(),
            stopped: None,
        };
        let report = match node.is_stopped() {
            false => manager.garbage_collect(&mut node, self.facts.now),
            true => Report::default(),
        };
        node.measure();
        // Its own rule for what was used just now goes by its own clock.
        let facts = Facts { scanned: self.facts.now, ..self.facts };
        let judge = Judge::new(facts.input(survey, policy));
        node.told(report, theirs.policy, &judge, before)
    }
}

/// What is done when the kubelet asks for a removal.
enum Act<'a> {
    Delete { deleter: Box<Deleter<'a>>, stopped: &'a dyn Fn() -> bool },
    Pretend,
}

/// What becomes of an image.
enum Fate {
    Open,
    Kept(Ruling),
    Gone,
}

/// The node as the kubelet sees it.
struct Node<'a, 's> {
    survey: &'s Survey,
    /// The runtime's image filesystem.
    filesystem: FilesystemIx,
    live: Live<'s>,
    act: Act<'a>,
    /// The filesystems, as last measured or as predicted.
    spaces: Vec<Measured>,
    /// What the filesystem said when the space pass began; `None`: it has not begun.
    by_space: Option<Measured>,
    fates: Vec<Fate>,
    listing: &'s Listing,
    steps: Vec<Step>,
    problems: Vec<Problem>,
    stopped: Option<Stopped>,
}

impl Node<'_, '_> {
    fn is_stopped(&mut self) -> bool {
        if let Act::Delete { stopped, .. } = &self.act
            && self.stopped.is_none()
            && stopped()
        {
            self.stopped = Some(Stopped::Signal);
        }
        self.stopped.is_some()
    }

    fn measure(&mut self) {
        if let Act::Delete { deleter, .. } = &self.act {
            self.spaces = deleter.gauges.measure();
        }
    }

    fn space(&self) -> Measured {
        let space = self.spaces.get(self.filesystem.get()).cloned();
        space.unwrap_or(Err(Doubt::Missing("numbers")))
    }

    /// The image has left the disk.
    fn went(&mut self, at: ImageIx) {
        self.fates[at.get()] = Fate::Gone;
        self.live.remove(&self.survey.inventory, Root::Image(at));
        self.measure();
    }

    fn remove(&mut self, at: ImageIx) -> Result<(), RuntimeError> {
        if matches!(self.fates[at.get()], Fate::Gone) {
            // It was listed for another handler as well.
            return Ok(());
        }
        let reason = if self.by_space.is_some() { Reason::Space } else { Reason::Age };
        let inventory = &self.survey.inventory;
        let step = Step::new(inventory, &self.live, at, (reason, self.filesystem), &self.spaces);
        let done = match &mut self.act {
            Act::Delete { deleter, .. } => deleter.delete(&step),
            Act::Pretend => {
                for gain in &step.gains {
                    if let Some(Ok(space)) = self.spaces.get_mut(gain.filesystem.get()) {
                        *space = space.gained(gain.size.frees_bytes, gain.size.inodes);
                    }
                }
                Ok(Done { outcome: Outcome::Removed, said_yes: true })
            }
        };
        let Done { outcome, said_yes } = match done {
            Ok(done) => done,
            Err(lost) => {
                let (why, outcome) = lost.told();
                if let Stopped::Blind(what) | Stopped::Closed(what) = &why {
                    self.problem(None, "prove", what);
                }
                self.stopped = Some(why);
                Done { outcome, said_yes: false }
            }
        };
        match outcome {
            Outcome::Removed => {
                self.steps.push(step);
                self.went(at);
                Ok(())
            }
            Outcome::Gone => {
                self.went(at);
                Ok(())
            }
            Outcome::NotTried => Err(RuntimeError("the run ends here".into())),
            Outcome::Kept(ruling) => {
                let detail = format!("since the run began: {}", ruling.detail);
                self.fates[at.get()] = Fate::Kept(Ruling { detail: detail.clone(), ..ruling });
                Err(RuntimeError(detail))
            }
            Outcome::Refused(message) => {
                self.problem(Some(at), "remove-image", &message);
                let ruling = Ruling { rule: Rule::Refused, stays: true, detail: message.clone() };
                self.fates[at.get()] = Fate::Kept(ruling);
                // The kubelet believes what the runtime says.
                if said_yes { Ok(()) } else { Err(RuntimeError(message)) }
            }
        }
    }

    fn problem(&mut self, image: Option<ImageIx>, step: &'static str, message: &str) {
        self.problems.push(Problem { image, filesystem: None, step, message: message.to_owned() });
    }

    /// What became of it all.
    fn told(
        mut self,
        report: Report,
        theirs: kubelet::Policy,
        judge: &Judge<'_>,
        before: Vec<Measured>,
    ) -> ByKubelet {
        let part = self.part(&report, theirs);
        if let Some(doubt) = &part.doubt {
            self.problems.push(Problem {
                image: None,
                filesystem: Some(self.filesystem),
                step: "measure",
                message: doubt.to_string(),
            });
        }
        let age = self.steps.iter().any(|step| step.reason == Reason::Age);
        // A run that ended early has not judged the filesystem.
        let starts = |space: &Space| used_percent(space) >= i128::from(theirs.high_percent);
        let unjudged_and_full = part.end == End::Open && part.after.iter().flatten().any(starts);
        let verdict = match part.end {
            End::Doubtful => Verdict::Failed,
            End::NotReached => Verdict::NotReached,
            _ if unjudged_and_full || matches!(report.failure, Some(Failure::AgeDeletion(_))) => {
                Verdict::NotReached
            }
            End::Reached => Verdict::Reached,
            _ if age => Verdict::Reached,
            _ => Verdict::NotNeeded,
        };
        let kept = self.kept(&report, &part, judge);
        let plan = Plan {
            trigger: Trigger { space: part.started.any(), age },
            filesystems: vec![part],
            steps: self.steps,
            kept,
            problems: self.problems,
            verdict,
        };
        let (deletions, in_part) = match self.act {
            Act::Delete { deleter, .. } => (deleter.deletions, deleter.in_part),
            Act::Pretend => (Vec::new(), Vec::new()),
        };
        let ran = Ran {
            plan,
            deletions,
            before,
            after: self.spaces,
            stopped: self.stopped,
            left_aside: false,
            in_part,
        };
        ByKubelet { ran, report }
    }

    fn part(&self, report: &Report, theirs: kubelet::Policy) -> FilesystemPlan {
        let after = self.space();
        let doubt = self.by_space.clone().and_then(Result::err);
        let end = match (&after, report.wanted_bytes) {
            _ if doubt.is_some() => End::Doubtful,
            (Ok(after), Some(_)) if is_at_low(after, theirs.low_percent) => End::Reached,
            (_, Some(_)) => End::NotReached,
            (_, None) if report.usage_percent.is_some() => End::NotNeeded,
            (_, None) => End::Open,
        };
        let wanted = report.wanted_bytes.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
        FilesystemPlan {
            filesystem: self.filesystem,
            before: self.by_space.clone(),
            after: Some(after),
            started: Started { used: report.wanted_bytes.is_some(), ..Started::default() },
            wanted: Wanted { bytes: wanted, inodes: 0 },
            end,
            doubt,
        }
    }

    fn kept(&self, report: &Report, part: &FilesystemPlan, judge: &Judge<'_>) -> Vec<Kept> {
        let ended = self.stopped.is_some() || part.end == End::Open;
        let open = |image: ImageIx| {
            let rulings = judge.rulings(image);
            match rulings.into_iter().find(|one| one.rule == Rule::UsedJustNow && one.stays) {
                Some(ruling) => (ruling.rule, ruling.detail),
                None if ended => (Rule::RunEnded, "the run was ended before its turn".into()),
                None if part.doubt.is_some() => {
                    (Rule::Unmeasured, part.doubt.iter().map(ToString::to_string).collect())
                }
                None if report.wanted_bytes.is_some() => {
                    (Rule::NotNeeded, "enough was believed to be freed before its turn".into())
                }
                None => {
                    let used = report.usage_percent.unwrap_or_default();
                    (Rule::NotNeeded, format!("{used} % are used, as the kubelet rounds it"))
                }
            }
        };
        let fates = self.fates.iter().enumerate();
        let kept = fates.filter_map(|(at, fate)| {
            let image = ImageIx::from(at);
            let (rule, detail) = match fate {
                Fate::Gone => return None,
                Fate::Kept(ruling) => (ruling.rule, ruling.detail.clone()),
                Fate::Open => open(image),
            };
            Some(Kept { image, rule, detail })
        });
        kept.collect()
    }
}

/// Percent used as the kubelet rounds it.
fn used_percent(space: &Space) -> i128 {
    100 - i128::from(space.available_bytes) * 100 / i128::from(space.capacity_bytes.max(1))
}

fn is_at_low(space: &Space, low_percent: i64) -> bool {
    i128::from(space.available_bytes) * 100
        >= i128::from(space.capacity_bytes) * i128::from(100 - low_percent)
}

impl Runtime for Node<'_, '_> {
    fn list_images(&mut self) -> Result<Vec<ListedImage>, RuntimeError> {
        let shown = |(image, at): &(ListedImage, Option<ImageIx>)| {
            // What lies in no store that we read (an OCI artifact) is not ours to judge.
            let kept = at.is_none_or(|at| matches!(self.fates[at.get()], Fate::Kept(_)));
            ListedImage { pinned: image.pinned || kept, ..image.clone() }
        };
        Ok(self.listing.images.iter().map(shown).collect())
    }

    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, RuntimeError> {
        Ok(self.listing.containers.iter().map(|(container, _)| container.clone()).collect())
    }

    fn mounted_images(&mut self, container: &ListedContainer) -> Result<Vec<String>, RuntimeError> {
        let found = self.listing.containers.iter().find(|(one, _)| one.id == container.id);
        Ok(found.map(|(_, mounted)| mounted.clone()).unwrap_or_default())
    }

    fn image_filesystem(&mut self) -> Result<FsStats, RuntimeError> {
        self.measure();
        let space = self.space();
        self.by_space = Some(space.clone());
        match space {
            Ok(space) => Ok(FsStats {
                capacity_bytes: Some(space.capacity_bytes),
                available_bytes: Some(space.available_bytes),
            }),
            Err(Doubt::NoCapacity) => Ok(FsStats { capacity_bytes: Some(0), available_bytes: None }),
            // To the kubelet, missing means full. Not to us.
            Err(doubt) => Err(RuntimeError(doubt.to_string())),
        }
    }

    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), RuntimeError> {
        if self.is_stopped() {
            return Err(RuntimeError("the run was ended".into()));
        }
        let same = |image: &ListedImage| image.id == id && (handler.is_empty() || image.handler == handler);
        let found = self.listing.images.iter().find(|(image, _)| same(image));
        match found.and_then(|(_, at)| *at) {
            Some(at) => self.remove(at),
            None => Err(RuntimeError("no such image".into())),
        }
    }
}
