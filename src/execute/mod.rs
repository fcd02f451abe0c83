//! Carries a plan out: one deletion at a time, each proven again right before it, each
//! measured after it.
//!
//! The planner decides, [`hands`] remove, `proof` looks again. Everything that is done is
//! told to a [`Witness`] at once, so that a run that is killed has still recorded it.

pub mod by_kubelet;
mod carry;
pub mod containers;
mod deleting;
pub mod direct;
pub mod editors;
mod gauges;
pub mod hands;
pub mod leaks;
pub mod measure;
pub mod owner;
mod proof;
pub mod runtime_match;
pub mod through_cri;
pub mod untag;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use crate::execute::measure::{Ended, Patience, tolerance};
use crate::model::{Image, ImageIx, Inventory};
use crate::policy::compare::{Comparison, compare};
use crate::policy::input::{Ages, Input, Known, Policy};
pub use crate::policy::plan::Task;
use crate::policy::plan::{Gain, Next, Plan, Planner, Problem, Step};
use crate::policy::space::Measured;
use crate::stores::containers_storage::edit::NO_SPACE;
use crate::stores::{Request, Survey};
use deleting::Deleter;
use gauges::Gauges;
use hands::{Blind, Hands};
use proof::Proof;

/// What is remembered of images, whatever inventory they are in: each look at the disk makes
/// a new one.
pub trait Memory {
    /// One entry an image, in the order of the inventory.
    fn ages(&self, inventory: &Inventory) -> Vec<Ages>;
    /// Likewise.
    fn known(&self, inventory: &Inventory) -> Vec<Known>;
    /// Reads afresh all that [`Self::known`] goes by, which may take long. What comes of it answers
    /// for any inventory, at once: between the last look at the disk and a removal there is no time
    /// for reading files.
    fn recall(&self) -> Recalled<'_> {
        Box::new(|inventory| self.known(inventory))
    }
    /// The present on the time line that [`Self::ages`] are on, which need not be that of the
    /// wall clock.
    fn now(&self) -> Timestamp;
    /// When the scan began that the run goes by, on the same time line.
    fn scanned(&self) -> Timestamp;
}

/// What [`Memory::known`] says of the images of an inventory.
pub type Recalled<'a> = Box<dyn Fn(&Inventory) -> Vec<Known> + 'a>;

/// Is told what happens, as it happens.
pub trait Witness {
    /// An image is about to be proven and then deleted at once: whatever takes time and has to be
    /// done before is done now.
    fn begins(&mut self, _image: &Image, _step: &Step) {}
    /// The image of the last [`Self::begins`] was not touched after all: the proof or the
    /// runtime would not have it.
    fn spared(&mut self, _image: &Image) {}
    /// The image of the last [`Self::begins`] is gone, as the store proves; what it gave back is
    /// not yet measured, which can take seconds.
    fn gone(&mut self, _image: &Image, _step: &Step) {}
    /// The image of the last [`Self::gone`]: the result was measured.
    fn deleted(&mut self, _deletion: &Deletion) {}
    /// An image would not go; `attempt` failures in a row make it back off.
    fn refused(&mut self, _image: &Image, _message: &str) {}
    /// The removal of an image was asked for, and the store cannot tell any more whether it is gone:
    /// no failure of the image's.
    fn unproven(&mut self, _image: &Image, _message: &str) {}
}

/// A deletion that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Deletion {
    /// Root of its store.
    pub store: std::path::PathBuf,
    /// The image's id.
    pub id: String,
    /// Its names when it went.
    pub names: Vec<String>,
    /// Why, and what was expected.
    pub step: Step,
    /// When it was done (UTC).
    pub at: Timestamp,
    /// Bytes that came free on the filesystems that were expected to give something, without
    /// what is booked as [`Self::byproduct_bytes`]; negative where others wrote more meanwhile.
    pub measured_bytes: i64,
    /// Bytes of leaks that this deletion took along (containerd's garbage collection runs with
    /// it): expected, and seen to come on top of the image's own.
    pub byproduct_bytes: u64,
    /// Percent used of the filesystem that it was done for.
    pub usage_after_percent: Option<f64>,
    /// How long the bytes took to come.
    pub waited: Duration,
    /// Why the waiting ended.
    pub ended: Ended,
}

impl Deletion {
    /// What came differs from what was predicted by more than a filesystem's own noise.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let predicted = self.step.predicted_bytes();
        let off = (i128::from(self.measured_bytes) - i128::from(predicted)).unsigned_abs();
        off > u128::from(tolerance(predicted))
    }
}

/// Why a run ended before its plan did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A signal.
    Signal,
    /// What is needed to prove a deletion cannot be had: nothing more is deleted.
    Blind(String),
    /// The stores are closed to us: a lock is held by others, or mounts cannot be read.
    Closed(String),
}

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The plan as it was carried out.
    pub plan: Plan,
    /// What was deleted, in order.
    pub deletions: Vec<Deletion>,
    /// What each filesystem of the inventory said before and after.
    pub before: Vec<Measured>,
    /// After.
    pub after: Vec<Measured>,
    /// Why it ended early, if so.
    pub stopped: Option<Stopped>,
    /// Stores were left aside, since they are closed to us.
    pub left_aside: bool,
    /// Images that are gone, and what of each stays on the disk.
    pub in_part: Vec<(ImageIx, String)>,
}

/// All that a run works with.
pub struct Runner<'a> {
    /// How to look at the disk again.
    pub request: &'a Request,
    /// What to go by.
    pub policy: &'a Policy,
    /// What to do. Named images are places in the inventory of the survey that
    /// [`Self::run`] is given.
    pub task: Task<'a>,
    /// Ages and the like.
    pub memory: &'a dyn Memory,
    /// What removes images.
    pub hands: &'a mut dyn Hands,
    /// Is told of everything.
    pub witness: &'a mut dyn Witness,
    /// Set by a signal: nothing more is begun.
    pub stop: &'a AtomicBool,
    /// How long to wait for late frees.
    pub patience: Patience,
}

impl std::fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner")
            .field("policy", &self.policy)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// The plan for `survey` without carrying it out: the same that [`Runner::run`] follows as long
/// as its predictions hold, after something else that is to go before it has given back `made`. What
/// the filesystems say is as of now.
///
/// # Errors
/// When what the hands need to know cannot be had in full.
pub fn dry(
    made: &[Gain],
    survey: &Survey,
    request: &Request,
    policy: &Policy,
    task: Task<'_>,
    memory: &dyn Memory,
    hands: &mut dyn Hands,
) -> Result<(Plan, Vec<Measured>), Blind> {
    let facts = Facts::gather(survey, request, memory, hands)?;
    let measured = Gauges::open(&survey.inventory).measure();
    let then = after(&measured, made);
    Ok((crate::policy::plan::plan(facts.input(survey, policy), task, &then), measured))
}

/// What filesystems will say when `made` has come back.
fn after(measured: &[Measured], made: &[Gain]) -> Vec<Measured> {
    let mut then = measured.to_vec();
    for gain in made {
        if let Some(Ok(space)) = then.get_mut(gain.filesystem.get()) {
            *space = space.gained(gain.size.frees_bytes, gain.size.inodes);
        }
    }
    then
}

/// Both policies side by side, for the runtime's image filesystem; `None` where there is no runtime
/// behind the hands, or the filesystem's numbers cannot be believed.
///
/// # Errors
/// When what the hands need to know cannot be had in full.
pub fn side_by_side(
    survey: &Survey,
    request: &Request,
    policy: &Policy,
    memory: &dyn Memory,
    hands: &mut dyn Hands,
    theirs: crate::policy::kubelet::Policy,
) -> Result<Option<Comparison>, Blind> {
    let facts = Facts::gather(survey, request, memory, hands)?;
    let measured = Gauges::open(&survey.inventory).measure();
    let Some(listing) = &facts.listing else { return Ok(None) };
    Ok(compare(facts.input(survey, policy), &measured, listing, theirs))
}

/// What is known of the images of a survey when a run begins.
struct Facts {
    ages: Vec<Ages>,
    known: Vec<Known>,
    now: Timestamp,
    scanned: Timestamp,
    /// What the runtime lists; `None`: there is none, or nobody asks.
    listing: Option<hands::Listing>,
}

impl Facts {
    fn gather(
        survey: &Survey,
        request: &Request,
        memory: &dyn Memory,
        hands: &mut dyn Hands,
    ) -> Result<Self, Blind> {
        let (extra, listing) = carry::look(survey, request, hands)?;
        Ok(Self { listing, ..Self::with(&survey.inventory, memory, &memory.recall(), extra) })
    }

    fn with(
        inventory: &Inventory,
        memory: &dyn Memory,
        recalled: &Recalled<'_>,
        extra: Vec<hands::Extra>,
    ) -> Self {
        let mut known = recalled(inventory);
        proof::add(&mut known, extra);
        Self {
            ages: memory.ages(inventory),
            known,
            now: memory.now(),
            scanned: memory.scanned(),
            listing: None,
        }
    }

    fn input<'a>(&'a self, survey: &'a Survey, policy: &'a Policy) -> Input<'a> {
        Input {
            inventory: &survey.inventory,
            refs: &survey.refs,
            ages: &self.ages,
            known: &self.known,
            policy,
            now: self.now,
            scanned: self.scanned,
        }
    }
}

impl Runner<'_> {
    /// Carries out the task.
    ///
    /// # Errors
    /// When what the hands need to know cannot be had in full: then nothing was deleted.
    pub fn run(&mut self, survey: &Survey) -> Result<Ran, Blind> {
        let facts = Facts::gather(survey, self.request, self.memory, self.hands)?;
        let gauges = Gauges::open(&survey.inventory);
        let before = gauges.measure();
        let mut measured = before.clone();
        let mut planner = Planner::new(facts.input(survey, self.policy), self.task);
        let (request, policy, memory) = (self.request, self.policy, self.memory);
        let mut deleter = Deleter {
            survey,
            gauges: &gauges,
            proof: Proof { request, policy, memory, waived: self.task.waived() },
            hands: &mut *self.hands,
            witness: &mut *self.witness,
            patience: self.patience,
            deletions: Vec::new(),
            aside: Vec::new(),
            in_part: Vec::new(),
        };
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                stopped = Some(Stopped::Signal);
                break;
            }
            let Next::Delete(step) = planner.next(&measured) else { break };
            match deleter.delete(&step) {
                Ok(done) => planner.answer(done.outcome),
                Err(lost) => {
                    let (why, outcome) = lost.told();
                    planner.answer(outcome);
                    stopped = Some(why);
                    break;
                }
            }
            measured = gauges.measure();
        }
        let Deleter { deletions, aside, in_part, .. } = deleter;
        let after = gauges.measure();
        let mut plan = planner.finish(&after);
        let left_aside = !aside.is_empty();
        let step_of = |message: &String| if message.contains(NO_SPACE) { "remove" } else { "lock" };
        let ended = match &stopped {
            Some(Stopped::Blind(message)) => Some(("prove", message.clone())),
            Some(Stopped::Closed(message)) => Some(("lock", message.clone())),
            Some(Stopped::Signal) | None => None,
        };
        let aside = aside.into_iter().map(|message| (step_of(&message), message));
        for (step, message) in aside.chain(ended) {
            if !plan.problems.iter().any(|problem| problem.message == message) {
                plan.problems.push(Problem { image: None, filesystem: None, step, message });
            }
        }
        Ok(Ran { plan, deletions, before, after, stopped, left_aside, in_part })
    }
}
