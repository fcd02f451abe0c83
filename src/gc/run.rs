//! Carries a plan out: one deletion at a time, each proven again right before it, each
//! measured after it.
//!
//! The planner decides, [`hands`] remove, `proof` looks again. Everything that is done is
//! told to a [`Witness`] at once, so that a run that is killed has still recorded it.

pub mod direct;
pub mod hands;
pub mod owner;
mod proof;
pub mod through_cri;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::measure::{Ended, Gauge, Patience, Room, tolerance};
use super::plan::{Next, Outcome, Plan, Planner, Problem, Step};
use super::policy::{Ages, Input, Known, Policy};
use super::space::{Doubt, Measured, Space};
use crate::inventory::{FilesystemIx, Image, Inventory};
use crate::survey::{Request, Survey};
use hands::{Hands, Removed};
use proof::Proof;

/// What is remembered of images, whatever inventory they are in: each look at the disk makes
/// a new one.
pub trait Memory {
    /// One entry an image, in the order of the inventory.
    fn ages(&self, inventory: &Inventory) -> Vec<Ages>;
    /// Likewise.
    fn known(&self, inventory: &Inventory) -> Vec<Known>;
}

/// Is told what happens, as it happens.
pub trait Witness {
    /// An image is about to be deleted.
    fn begins(&mut self, _image: &Image, _step: &Step) {}
    /// An image was deleted and the result measured.
    fn deleted(&mut self, _deletion: &Deletion) {}
    /// An image would not go; `attempt` failures in a row make it back off.
    fn refused(&mut self, _image: &Image, _message: &str) {}
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
}

/// All that a run works with.
pub struct Runner<'a> {
    /// How to look at the disk again.
    pub request: &'a Request,
    /// What to go by.
    pub policy: &'a Policy,
    /// Ages and the like.
    pub memory: &'a dyn Memory,
    /// What removes images.
    pub hands: &'a mut dyn Hands,
    /// Is told of everything.
    pub witness: &'a mut dyn Witness,
    /// Set by a signal: finish the deletion in flight and report.
    pub stop: &'a AtomicBool,
    /// How long to wait for late frees.
    pub patience: Patience,
}

impl std::fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The plan for `survey` without carrying it out: the same that [`Runner::run`] follows as long
/// as its predictions hold.
///
/// # Errors
/// When what the hands need to know cannot be had in full.
pub fn dry(
    survey: &Survey,
    policy: &Policy,
    memory: &dyn Memory,
    hands: &mut dyn Hands,
) -> Result<(Plan, Vec<Measured>), hands::Blind> {
    let mut known = memory.known(&survey.inventory);
    proof::add(&mut known, hands.look(&survey.inventory)?);
    let ages = memory.ages(&survey.inventory);
    let input = Input {
        inventory: &survey.inventory,
        refs: &survey.refs,
        ages: &ages,
        known: &known,
        policy,
        now: survey.taken_at,
    };
    let measured = Gauges::open(&survey.inventory).measure();
    Ok((super::plan::plan(input, &measured), measured))
}

impl Runner<'_> {
    /// Carries out what the policy asks for.
    ///
    /// # Errors
    /// When what the hands need to know cannot be had in full: then nothing was deleted.
    pub fn run(&mut self, survey: &Survey) -> Result<Ran, hands::Blind> {
        let inventory = &survey.inventory;
        let mut known = self.memory.known(inventory);
        proof::add(&mut known, self.hands.look(inventory)?);
        let ages = self.memory.ages(inventory);
        let input = Input {
            inventory,
            refs: &survey.refs,
            ages: &ages,
            known: &known,
            policy: self.policy,
            now: survey.taken_at,
        };
        let gauges = Gauges::open(inventory);
        let before = gauges.measure();
        let mut measured = before.clone();
        let mut planner = Planner::new(input);
        let mut deletions = Vec::new();
        let mut stopped = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                stopped = Some(Stopped::Signal);
                break;
            }
            let Next::Delete(step) = planner.next(&measured) else { break };
            match self.step(survey, &gauges, step) {
                Ok((outcome, deletion)) => {
                    deletions.extend(deletion);
                    planner.answer(outcome);
                }
                Err(blind) => {
                    planner.answer(Outcome::Refused(blind.to_string()));
                    stopped = Some(Stopped::Blind(blind.to_string()));
                    break;
                }
            }
            measured = gauges.measure();
        }
        let after = gauges.measure();
        let mut plan = planner.finish(&after);
        if let Some(Stopped::Blind(message)) = &stopped
            && !plan.problems.iter().any(|problem| problem.message == *message)
        {
            let message = message.clone();
            plan.problems.push(Problem { image: None, filesystem: None, step: "prove", message });
        }
        Ok(Ran { plan, deletions, before, after, stopped })
    }

    /// Proves, deletes, looks, measures.
    fn step(
        &mut self,
        survey: &Survey,
        gauges: &Gauges,
        step: Step,
    ) -> Result<(Outcome, Option<Deletion>), hands::Blind> {
        let inventory = &survey.inventory;
        let image = &inventory.images[step.image.get()];
        let store = inventory.stores[image.store.get()].root.clone();
        let proof = Proof { request: self.request, policy: self.policy, memory: self.memory };
        let fresh = match proof.of(&store, &image.id, self.hands)? {
            proof::Found::Gone => return Ok((Outcome::Gone, None)),
            proof::Found::Kept(why) => return Ok((Outcome::InUse(why), None)),
            proof::Found::MayGo(fresh) => fresh,
        };
        let names = fresh.image().names.clone();
        self.witness.begins(image, &step);
        let before: Vec<_> =
            step.gains.iter().map(|gain| (gain.filesystem, gauges.room(gain.filesystem))).collect();
        let byproduct = self.hands.byproduct(inventory, &survey.refs);
        let removed = self.hands.remove(&fresh.survey.inventory, fresh.at);
        let gone = match &removed {
            Removed::Refused(_) => Ok(false),
            // Whatever the answer was, only the store tells.
            Removed::Answered | Removed::InDoubt(_) => proof.is_gone(&store, &image.id),
        };
        let refusal = match (removed, gone) {
            (_, Ok(true)) => None,
            (Removed::Refused(message) | Removed::InDoubt(message), Ok(false)) => Some(message),
            (Removed::Answered, Ok(false)) => {
                Some(format!("{} said that it is removed, but it is still there", self.hands.name()))
            }
            (_, Err(error)) => return Err(hands::Blind::disk(&error)),
        };
        if let Some(message) = refusal {
            self.witness.refused(image, &message);
            return Ok((Outcome::Refused(message), None));
        }
        let deletion = self.measured(gauges, step, &before, byproduct, (store, image.id.clone(), names));
        self.witness.deleted(&deletion);
        Ok((Outcome::Removed, Some(deletion)))
    }

    fn measured(
        &self,
        gauges: &Gauges,
        step: Step,
        before: &[(FilesystemIx, Option<Room>)],
        byproduct: u64,
        (store, id, names): (std::path::PathBuf, String, Vec<String>),
    ) -> Deletion {
        let began = Instant::now();
        let mut total = 0_i64;
        let mut ended = Ended::Came;
        for (filesystem, before) in before {
            let (Some(gauge), Some(before)) = (gauges.of(*filesystem), before) else { continue };
            let predicted = step.predicted_on(*filesystem).saturating_add(byproduct);
            match gauge.settle(before, predicted, self.patience) {
                Ok(settled) => {
                    total = total.saturating_add(settled.measured_bytes);
                    if settled.why != Ended::Came {
                        ended = settled.why;
                    }
                }
                Err(error) => tracing::warn!("measuring {}: {error}", gauge.path().display()),
            }
        }
        let own = i64::try_from(step.predicted_bytes()).unwrap_or(i64::MAX);
        let on_top = u64::try_from(total.saturating_sub(own)).unwrap_or(0);
        let byproduct_bytes = byproduct.min(on_top);
        let usage = gauges.room(step.filesystem).and_then(|room| space(&room).ok());
        Deletion {
            store,
            id,
            names,
            at: Timestamp::now(),
            measured_bytes: total.saturating_sub(i64::try_from(byproduct_bytes).unwrap_or(i64::MAX)),
            byproduct_bytes,
            usage_after_percent: usage.map(|space| space.used_percent()),
            waited: began.elapsed(),
            ended,
            step,
        }
    }
}

/// A gauge for each filesystem of an inventory; none where it cannot be opened.
struct Gauges(Vec<Result<Gauge, String>>);

impl Gauges {
    fn open(inventory: &Inventory) -> Self {
        let gauge = |at: usize| {
            let at = FilesystemIx::from(at);
            // Through a directory of a store, not through the mount point, which something else
            // may be mounted over.
            let store = inventory.stores.iter().find(|store| store.filesystem == at);
            let node = || inventory.nodes.iter().find(|node| node.filesystem == at && node.path.is_dir());
            let path = store.map(|store| &store.root).or_else(|| node().map(|node| &node.path));
            let path = path.unwrap_or(&inventory.filesystems[at.get()].mount);
            Gauge::open(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Self((0..inventory.filesystems.len()).map(gauge).collect())
    }

    fn of(&self, at: FilesystemIx) -> Option<&Gauge> {
        self.0.get(at.get())?.as_ref().ok()
    }

    fn room(&self, at: FilesystemIx) -> Option<Room> {
        self.of(at)?.room().ok()
    }

    fn measure(&self) -> Vec<Measured> {
        let measure = |gauge: &Result<Gauge, String>| match gauge {
            Ok(gauge) => match gauge.room() {
                Ok(room) => space(&room),
                Err(error) => Err(Doubt::Failed(error.to_string())),
            },
            Err(error) => Err(Doubt::Failed(error.clone())),
        };
        self.0.iter().map(measure).collect()
    }
}

fn space(room: &Room) -> Measured {
    Space::of_room(room)
}
