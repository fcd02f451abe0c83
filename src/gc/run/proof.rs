//! The proof right before a deletion: the records are read again, and every rule is asked
//! again about the one image that is to go.

use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Memory;
use super::hands::{Blind, Extra, Hands};
use crate::gc::policy::{Input, Known, Policy};
use crate::gc::rules::Judge;
use crate::inventory::{Image, ImageIx, Inventory};
use crate::survey::{self, Request, Survey, Weigh};
use crate::usage::Progress;

/// A record may outlive the runtime's answer for a moment.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// How often disk and runtime are asked again when they told of different moments.
const ATTEMPTS: u32 = 5;

/// Adds what the hands know to what is known.
pub(super) fn add(known: &mut Vec<Known>, extra: Vec<Extra>) {
    if known.len() < extra.len() {
        known.resize_with(extra.len(), Known::default);
    }
    for (known, extra) in known.iter_mut().zip(extra) {
        known.used_by.extend(extra.used_by);
        known.runtime_pins |= extra.runtime_pins;
        known.out_of_reach = known.out_of_reach.take().or(extra.out_of_reach);
    }
}

pub(super) struct Proof<'a> {
    pub(super) request: &'a Request,
    pub(super) policy: &'a Policy,
    pub(super) memory: &'a dyn Memory,
}

/// What a fresh look says of an image.
pub(super) enum Found {
    /// It is not there any more.
    Gone,
    /// A rule keeps it by now.
    Kept(String),
    /// It may go.
    MayGo(Box<Fresh>),
}

/// The look that allowed it.
pub(super) struct Fresh {
    pub(super) survey: Survey,
    pub(super) at: ImageIx,
}

impl Fresh {
    pub(super) fn image(&self) -> &Image {
        &self.survey.inventory.images[self.at.get()]
    }
}

impl Proof<'_> {
    fn look(&self) -> Result<Survey, survey::Error> {
        let request = Request { weigh: Weigh::Nothing, now: Timestamp::now(), ..self.request.clone() };
        survey::run(&request, &Progress::default())
    }

    /// Looks at disk and runtime, and asks every rule again.
    pub(super) fn of(&self, store: &Path, id: &str, hands: &mut dyn Hands) -> Result<Found, Blind> {
        let mut attempt = 1;
        loop {
            let survey = self.look().map_err(|error| Blind::disk(&error))?;
            match hands.look(&survey.inventory) {
                Ok(extra) => return Ok(self.judge(survey, store, id, extra)),
                Err(blind) if blind.stale && attempt < ATTEMPTS => {
                    tracing::debug!("{blind}; looking again");
                    attempt += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(blind) => return Err(blind),
            }
        }
    }

    fn judge(&self, survey: Survey, store: &Path, id: &str, extra: Vec<Extra>) -> Found {
        let Some(at) = find(&survey.inventory, store, id) else { return Found::Gone };
        let mut known = self.memory.known(&survey.inventory);
        add(&mut known, extra);
        let ages = self.memory.ages(&survey.inventory);
        let input = Input {
            inventory: &survey.inventory,
            refs: &survey.refs,
            ages: &ages,
            known: &known,
            policy: self.policy,
            now: survey.taken_at,
        };
        match Judge::new(input).kept(at) {
            Some(ruling) => Found::Kept(ruling.detail),
            None => Found::MayGo(Box::new(Fresh { survey, at })),
        }
    }

    /// Whether the store no longer has the image; waits a moment for it.
    pub(super) fn is_gone(&self, store: &Path, id: &str) -> Result<bool, survey::Error> {
        let began = Instant::now();
        loop {
            let survey = self.look()?;
            if find(&survey.inventory, store, id).is_none() {
                // Of damaged records nothing is proven by what they lack.
                let damaged = survey.inventory.stores.iter().any(|one| {
                    one.root == store && one.consistency == crate::inventory::Consistency::Damaged
                });
                return Ok(!damaged);
            }
            if began.elapsed() >= GONE_WITHIN {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn find(inventory: &Inventory, store: &Path, id: &str) -> Option<ImageIx> {
    let same = |image: &Image| image.id == id && inventory.stores[image.store.get()].root == store;
    inventory.images.iter().position(same).map(ImageIx::from)
}
