//! Collects dead containers, sandboxes and logs: through CRI, or without a runtime on the disk
//! itself; one at a time, each proven again right before it goes and measured after it.
//!
//! What runs is never touched, whatever a listing says: before a container is removed through CRI
//! (which every runtime does by force) its status is asked for afresh, its control group is looked for
//! among all processes, and the store's own records are read. Failures are collected; only a
//! runtime or a store that cannot be asked any more ends a run.

mod account;
mod carry;
mod deeds;
mod direct;
mod files;
mod foresee;
mod look;
mod plan;
mod proof;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use crate::cri::{Client, StorePlace};
use crate::execute::hands::Blind;
use crate::execute::measure::{Ended, Patience, tolerance};
use crate::execute::runtime_match::RuntimeStores;
use crate::node::places::Places;
use crate::policy::containers::Policy;
use crate::policy::containers::Reason;
use crate::policy::plan::Gain;
use crate::stores::{Request, Survey};
use account::Account;
use carry::{How, Way};
pub use direct::{Direct, own_store};
pub use foresee::Foreseen;
use look::Look;
use plan::Stage;

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A container.
    Container,
    /// A pod sandbox.
    Sandbox,
    /// A directory of logs, a container's log, or a link to one.
    Log,
}

impl Kind {
    /// As the documents have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Sandbox => "sandbox",
            Self::Log => "log",
        }
    }
}

/// Something that is to go.
#[derive(Clone, Debug, PartialEq)]
pub struct Doomed {
    /// What it is.
    pub kind: Kind,
    /// Id of the container or sandbox, path of a log.
    pub id: String,
    /// For people: `<namespace>/<pod>/<container>`, `<namespace>/<pod>`, the name of the log.
    pub names: Vec<String>,
    /// Why.
    pub reason: Reason,
    /// It is stopped before.
    pub stop_first: bool,
    /// What is expected to come back on the filesystems of the stores.
    pub gains: Vec<Gain>,
    /// Bytes of logs that are expected to come back, wherever those lie.
    pub log_bytes: u64,
}

impl Doomed {
    /// Bytes that are expected to come back.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.gains.iter().fold(self.log_bytes, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
    }
}

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stays {
    /// What it is.
    pub kind: Kind,
    /// As [`Doomed::id`].
    pub id: String,
    /// As [`Doomed::names`].
    pub names: Vec<String>,
    /// The rule that keeps it.
    pub rule: &'static str,
    /// Why, in words.
    pub detail: String,
}

/// A failure on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As [`Doomed::id`]; `None` where it is about all.
    pub id: Option<String>,
    /// What was being done: `list`, `prove`, `stop`, `remove`, `measure`.
    pub step: &'static str,
    /// What happened.
    pub message: String,
}

/// What goes and what stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What goes, in order: containers, sandboxes, logs.
    pub goes: Vec<Doomed>,
    /// What stays.
    pub kept: Vec<Stays>,
    /// What could not be looked at or done.
    pub problems: Vec<Problem>,
    /// Why no pod counts as gone, if so.
    pub pods_unknown: Option<String>,
    /// So many more dead containers stay than the total limit allows.
    pub over_total: usize,
}

/// A deletion that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Deletion {
    /// What it was.
    pub doomed: Doomed,
    /// When it was done (UTC).
    pub at: Timestamp,
    /// Bytes that came free; negative where others wrote more meanwhile.
    pub measured_bytes: i64,
    /// Percent used of the first filesystem that was expected to give something.
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
        let predicted = self.doomed.predicted_bytes();
        let off = (i128::from(self.measured_bytes) - i128::from(predicted)).unsigned_abs();
        off > u128::from(tolerance(predicted))
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A signal.
    Signal,
    /// What is needed to prove a deletion cannot be had: nothing more is deleted.
    Blind(String),
}

/// What became of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// The plan as it was carried out: what was to go, what stayed, what failed.
    pub plan: Plan,
    /// What was deleted, in order.
    pub deletions: Vec<Deletion>,
    /// Why it ended early, if so.
    pub stopped: Option<Stopped>,
}

/// Is told what happens, as it happens.
pub trait Witness {
    /// Something is about to be deleted; its proof is complete.
    fn begins(&mut self, _doomed: &Doomed) {}
    /// What was begun last was not touched after all.
    fn spared(&mut self, _doomed: &Doomed) {}
    /// Whether what was begun last is gone is not known.
    fn unproven(&mut self, _doomed: &Doomed, _message: &str) {}
    /// It is gone, as runtime and disk prove; what it gave back is not yet measured.
    fn gone(&mut self, _doomed: &Doomed) {}
    /// The result was measured.
    fn deleted(&mut self, _deletion: &Deletion) {}
    /// It would not go.
    fn refused(&mut self, _doomed: &Doomed, _message: &str) {}
}

/// What to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Containers and sandboxes.
    pub containers: bool,
    /// Logs of pods.
    pub logs: bool,
}

/// All that a run works with.
pub struct Collector<'a> {
    client: &'a Client,
    place: StorePlace,
    /// How to look at the disk again.
    pub request: &'a Request,
    /// What the kubelet keeps where.
    pub places: &'a Places,
    /// What to go by.
    pub policy: &'a Policy,
    /// What to collect.
    pub scope: Scope,
    /// Set by a signal: nothing more is begun.
    pub stop: &'a AtomicBool,
    /// How long to wait for late frees.
    pub patience: Patience,
}

impl std::fmt::Debug for Collector<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<'a> Collector<'a> {
    /// Finds out which store the runtime serves.
    ///
    /// # Errors
    /// When it does not say.
    pub fn new(
        client: &'a Client,
        request: &'a Request,
        places: &'a Places,
        policy: &'a Policy,
        scope: Scope,
        stop: &'a AtomicBool,
    ) -> Result<Self, Blind> {
        let place = client.store_place().map_err(|error| look::blind(&error))?;
        let place = place.ok_or_else(|| Blind {
            what: format!("{}: the runtime does not say where its containers lie", client.endpoint()),
            stale: false,
        })?;
        // containerd unlinks a writable layer with its next collection, seconds after its answer.
        let patience = Patience { still: Duration::from_secs(5), ..Patience::default() };
        Ok(Self { client, place, request, places, policy, scope, stop, patience })
    }

    /// The plan without carrying it out: the same that [`Self::run`] follows as long as nothing
    /// changes and everything goes that is to go. `survey` has measured the stores.
    ///
    /// # Errors
    /// When the runtime cannot be asked.
    pub fn dry(&self, survey: &Survey) -> Result<Plan, Blind> {
        let mut account = self.account(survey);
        carry::dry(&mut ThroughCri::new(self), self.scope, &mut account)
    }

    /// Carries out what the policy asks for.
    ///
    /// # Errors
    /// When the runtime cannot be asked at all: then nothing was deleted.
    pub fn run(&self, survey: &Survey, witness: &mut dyn Witness) -> Result<Ran, Blind> {
        let mut account = self.account(survey);
        let how = How { scope: self.scope, stop: self.stop, patience: self.patience };
        carry::run(&mut ThroughCri::new(self), how, &mut account, witness)
    }

    fn account<'s>(&self, survey: &'s Survey) -> Account<'s> {
        let own = RuntimeStores::find(&self.place, &survey.inventory).map(|stores| stores.own);
        Account::open(survey, own, self.places)
    }
}

/// The way through the runtime.
struct ThroughCri<'a> {
    collector: &'a Collector<'a>,
    look: Look<'a>,
}

impl<'a> ThroughCri<'a> {
    fn new(collector: &'a Collector<'a>) -> Self {
        Self { collector, look: Look::new(collector) }
    }
}

impl Way for ThroughCri<'_> {
    type Seen = look::Seen;

    fn look(&mut self) -> Result<Self::Seen, Blind> {
        self.look.look()
    }

    fn stage(&self, stage: Stage, seen: &Self::Seen, gone: &[Doomed]) -> Plan {
        plan::of(self.collector, stage, seen, gone)
    }

    fn prove(&mut self, doomed: &Doomed) -> Result<proof::Found, Blind> {
        proof::of(self.collector, doomed, &mut self.look)
    }

    fn remove(&self, doomed: &Doomed) -> Result<deeds::Done, Blind> {
        deeds::remove(self.collector, doomed)
    }
}

impl Plan {
    fn add(&mut self, other: Self) {
        self.goes.extend(other.goes);
        self.kept.extend(other.kept);
        self.problems.extend(other.problems);
        self.pods_unknown = self.pods_unknown.take().or(other.pods_unknown);
        self.over_total += other.over_total;
    }

    /// Moves something from what goes to what stays.
    fn spare(&mut self, doomed: Doomed, rule: &'static str, detail: String) {
        self.goes.retain(|other| (other.kind, &other.id) != (doomed.kind, &doomed.id));
        let Doomed { kind, id, names, .. } = doomed;
        self.kept.push(Stays { kind, id, names, rule, detail });
    }
}

impl Ran {
    fn blind(&mut self, blind: &Blind, stop: &AtomicBool) {
        // A signal also cuts short the question that was being asked.
        if stop.load(Ordering::Relaxed) {
            self.stopped = Some(Stopped::Signal);
            return;
        }
        self.stopped = Some(Stopped::Blind(blind.to_string()));
        self.plan.problems.push(Problem { id: None, step: "prove", message: blind.to_string() });
    }
}

/// The path that a log's id is.
fn path_of(doomed: &Doomed) -> PathBuf {
    PathBuf::from(&doomed.id)
}
