//! One deletion: proven, carried out, looked after, measured. Every policy deletes through this.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::cri::is_no_space;
use crate::execute::gauges::Gauges;
use crate::execute::hands::{Blind, Hands, Removed};
use crate::execute::measure::{Ended, Gauge, Patience, Room};
use crate::execute::proof::{Found, GONE_WITHIN, Proof};
use crate::execute::{Deletion, Stopped, Witness};
use crate::model::rules::{Rule, Ruling};
use crate::model::{FilesystemIx, ImageIx, StoreId};
use crate::policy::plan::{Gain, Outcome, Step};
use crate::policy::space::Space;
use crate::stores::Survey;
use crate::stores::containers_storage::edit::NO_SPACE;
use crate::sys::stop;

/// Deletes images of a survey, one at a time.
pub(super) struct Deleter<'a> {
    /// The survey that was measured, whose images the steps mean.
    pub(super) survey: &'a Survey,
    pub(super) gauges: &'a Gauges,
    pub(super) proof: Proof<'a>,
    pub(super) hands: &'a mut dyn Hands,
    pub(super) witness: &'a mut dyn Witness,
    pub(super) patience: Patience,
    /// What was deleted, in order.
    pub(super) deletions: Vec<Deletion>,
    /// Why stores were left aside.
    pub(super) aside: Vec<String>,
    /// Images that are gone, and what of each would not go.
    pub(super) in_part: Vec<(ImageIx, String)>,
}

/// What came of a step.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The hands said that they removed it, true or not.
    pub(super) said_yes: bool,
}

/// Nothing can be proven any more.
pub(super) enum Lost {
    /// The image was not touched.
    Before(Blind),
    /// Nor was it, since its store is closed to us.
    Closed(String),
    /// Its removal was asked for; whether it is gone nobody knows.
    After(Blind),
}

impl Lost {
    /// Why the run ends, and what is to be told of the image.
    pub(super) fn told(self) -> (Stopped, Outcome) {
        let stopped = |what| if stop::is_asked() { Stopped::Signal } else { Stopped::Blind(what) };
        match self {
            Self::Before(blind) => (stopped(blind.what), Outcome::NotTried),
            Self::Closed(what) => (Stopped::Closed(what), Outcome::NotTried),
            Self::After(blind) => (stopped(blind.what.clone()), Outcome::Refused(blind.what)),
        }
    }
}

impl Deleter<'_> {
    /// Proves, deletes, looks, measures.
    pub(super) fn delete(&mut self, step: &Step) -> Result<Done, Lost> {
        let inventory = &self.survey.inventory;
        let image = &inventory.images[step.image.get()];
        let store = StoreId::of(&inventory.stores[image.store.get()]);
        let untouched = |outcome| Ok(Done { outcome, said_yes: false });
        // Whatever takes time comes before the look: a proof is as good as it is young.
        let recalled = self.proof.memory.recall();
        let byproduct = self.hands.byproduct(inventory, &self.survey.refs);
        self.witness.begins(image, step);
        let before = self.rooms(step, &byproduct);
        let fresh = match self.proof.of(&store, &image.id, self.hands, &recalled) {
            Ok(Found::MayGo(fresh)) => fresh,
            other => {
                self.witness.spared(image);
                return match other {
                    Ok(Found::Kept(ruling)) => untouched(Outcome::Kept(ruling)),
                    Ok(_) => untouched(Outcome::Gone),
                    Err(blind) => Err(Lost::Before(blind)),
                };
            }
        };
        let removed = self.hands.remove(&fresh.survey.inventory, fresh.at);
        let gone = match &removed {
            Removed::NotAsked(what) => {
                self.witness.spared(image);
                return Err(Lost::Before(Blind { what: what.clone(), stale: false }));
            }
            Removed::Closed(what) => {
                self.witness.spared(image);
                return Err(Lost::Closed(what.clone()));
            }
            Removed::Aside(what) => {
                self.witness.spared(image);
                self.aside.push(what.clone());
                return untouched(Outcome::Kept(Ruling {
                    rule: Rule::OutOfReach,
                    stays: true,
                    detail: what.clone(),
                }));
            }
            Removed::Kept(what) => {
                self.witness.spared(image);
                return untouched(Outcome::Kept(Ruling {
                    rule: Rule::InUse,
                    stays: true,
                    detail: what.clone(),
                }));
            }
            Removed::Refused(_) => Ok(false),
            // Whatever the answer was, only the store tells. After a failure nothing more is to
            // come: on a full disk every removal fails, and there may be thousands.
            Removed::Failed(_) | Removed::InPart(_) => self.proof.is_gone(&fresh, Duration::ZERO),
            Removed::Answered | Removed::InDoubt(_) | Removed::NotFound(_) => {
                self.proof.is_gone(&fresh, GONE_WITHIN)
            }
        };
        let gone = gone.map_err(|blind| {
            self.witness.unproven(image, &blind.what);
            Lost::After(blind)
        })?;
        let said_yes = matches!(removed, Removed::Answered);
        if let (Removed::InPart(message), true, false) = (&removed, gone, stop::is_asked()) {
            self.in_part.push((step.image, format!("removed in part: {message}")));
        }
        let refusal = match (removed, gone) {
            // Somebody else was faster.
            (Removed::NotFound(_), true) => {
                self.witness.spared(image);
                return untouched(Outcome::Gone);
            }
            (_, true) => None,
            (Removed::Answered, false) => {
                Some(format!("{} said that it is removed, but it is still there", self.hands.name()))
            }
            (
                Removed::Refused(message)
                | Removed::Kept(message)
                | Removed::Aside(message)
                | Removed::Closed(message)
                | Removed::Failed(message)
                | Removed::InPart(message)
                | Removed::InDoubt(message)
                | Removed::NotFound(message)
                | Removed::NotAsked(message),
                false,
            ) => Some(message),
        };
        if let Some(message) = refusal {
            if stop::is_asked() {
                // What was asked for may still happen.
                self.witness.unproven(image, &message);
                return Err(Lost::After(Blind { what: message, stale: false }));
            }
            if is_no_space(&message) || message.contains(NO_SPACE) {
                // The next one would fail likewise, and there may be thousands.
                self.witness.refused(image, &message);
                return Err(Lost::After(Blind { what: message, stale: false }));
            }
            self.witness.refused(image, &message);
            return Ok(Done { outcome: Outcome::Refused(message), said_yes });
        }
        let names = fresh.image().names.clone();
        self.witness.gone(image, step);
        let at = Timestamp::now();
        let measured = self.measure(step, &before, &byproduct);
        let space = self.gauges.room(step.filesystem).and_then(|room| Space::of_room(&room).ok());
        let deletion = Deletion {
            store: store.root().to_path_buf(),
            id: image.id.to_string(),
            names,
            step: step.clone(),
            at,
            measured_bytes: measured.own_bytes,
            byproduct_bytes: measured.byproduct_bytes,
            usage_after_percent: space.map(|space| space.used_percent()),
            waited: measured.began.elapsed(),
            ended: measured.ended,
        };
        self.witness.deleted(&deletion);
        self.deletions.push(deletion);
        Ok(Done { outcome: Outcome::Removed, said_yes })
    }

    /// The filesystems on which something is expected to come back, and their room now.
    fn rooms(&self, step: &Step, byproduct: &[Gain]) -> Vec<Before> {
        let mut on: Vec<_> = step.gains.iter().chain(byproduct).map(|gain| gain.filesystem).collect();
        on.sort_unstable();
        on.dedup();
        on.into_iter().map(|at| (at, self.gauges.room(at), self.own_bytes(at))).collect()
    }

    /// What the hands hold of it for themselves.
    fn own_bytes(&self, at: FilesystemIx) -> i64 {
        let device = self.gauges.of(at).and_then(Gauge::device);
        i64::try_from(device.map_or(0, |device| self.hands.own_bytes(device))).unwrap_or(i64::MAX)
    }

    fn measure(&self, step: &Step, before: &[Before], byproduct: &[Gain]) -> CameBack {
        let began = Instant::now();
        let mut total = 0_i64;
        let mut ended = Ended::Came;
        for (filesystem, before, own_before) in before {
            let (Some(gauge), Some(before)) = (self.gauges.of(*filesystem), before) else {
                tracing::warn!(
                    "one of the filesystems cannot be measured; what came back there is not counted"
                );
                continue;
            };
            let predicted = step.predicted_on(*filesystem).saturating_add(bytes_on(byproduct, *filesystem));
            match gauge.settle(before, predicted, self.patience) {
                Ok(settled) => {
                    let own = self.own_bytes(*filesystem).saturating_sub(*own_before);
                    total = total.saturating_add(settled.measured_bytes).saturating_add(own);
                    if settled.why != Ended::Came {
                        ended = settled.why;
                    }
                }
                Err(error) => tracing::warn!("measuring {}: {error}", gauge.path().display()),
            }
        }
        let own = i64::try_from(step.predicted_bytes()).unwrap_or(i64::MAX);
        let on_top = u64::try_from(total.saturating_sub(own)).unwrap_or(0);
        let expected = byproduct.iter().fold(0_u64, |sum, gain| sum.saturating_add(gain.size.frees_bytes));
        let byproduct_bytes = expected.min(on_top);
        let own_bytes = total.saturating_sub(i64::try_from(byproduct_bytes).unwrap_or(i64::MAX));
        CameBack { own_bytes, byproduct_bytes, began, ended }
    }
}

/// A filesystem on which something is expected to come back, its room before, and what of it the
/// hands held for themselves then.
type Before = (FilesystemIx, Option<Room>, i64);

/// What a deletion gave back.
struct CameBack {
    own_bytes: i64,
    byproduct_bytes: u64,
    began: Instant,
    ended: Ended,
}

fn bytes_on(gains: &[Gain], filesystem: FilesystemIx) -> u64 {
    let here = gains.iter().filter(|gain| gain.filesystem == filesystem);
    here.fold(0, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
}
