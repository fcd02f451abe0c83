//! The proof right before a deletion: the records are read again, and every rule is asked
//! again about the one image that is to go.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::disk::Progress;
use crate::execute::hands::{Blind, Extra, Hands};
use crate::execute::{Facts, Memory, Recalled};
use crate::model::rules::{Rule, Ruling};
use crate::model::{Consistency, Image, ImageIx, Inventory, LabelsOf, StoreId, StoreIx};
use crate::policy::input::{Known, Policy};
use crate::policy::rules::Judge;
use crate::stores::containers_storage::artifacts;
use crate::stores::{self, Request, Survey, Weigh};
use crate::sys::stop;

/// A record may outlive the runtime's answer for a moment.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(10);
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
    /// Rules that are not asked.
    pub(super) waived: &'static [Rule],
}

/// A store's place in an inventory. Where it is not, nothing is known of its images.
fn find_store(key: &StoreId, inventory: &Inventory) -> Result<StoreIx, Blind> {
    let found = inventory.stores.iter().position(|store| StoreId::of(store) == *key);
    found.map(StoreIx::from).ok_or_else(|| Blind {
        what: format!("the store {} could not be read any more", key.root().display()),
        stale: false,
    })
}

/// What a fresh look says of an image.
pub(super) enum Found {
    /// It is not there any more.
    Gone,
    /// A rule keeps it by now.
    Kept(Ruling),
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

/// What the records say now, unmeasured.
fn look(request: &Request, labels: LabelsOf) -> Result<Survey, stores::Error> {
    let request = Request { weigh: Weigh::Nothing, now: Timestamp::now(), labels, ..request.clone() };
    stores::run(&request, &Progress::default())
}

/// Looks at the disk and then asks the hands, again and again until both tell of the same moment.
pub(super) fn look_together(
    request: &Request,
    labels: &LabelsOf,
    hands: &mut dyn Hands,
) -> Result<(Survey, Vec<Extra>), Blind> {
    let mut attempt = 1;
    loop {
        let survey = look(request, labels.clone()).map_err(|error| Blind::disk(&error))?;
        match hands.look(&survey.inventory) {
            Ok(extra) => return Ok((survey, extra)),
            Err(blind) if blind.stale && attempt < ATTEMPTS && !stop::is_asked() => {
                tracing::debug!("{blind}; looking again");
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            Err(blind) => return Err(blind),
        }
    }
}

impl Proof<'_> {
    /// Looks at disk and runtime, and asks every rule again. `recalled` is what took time to read.
    pub(super) fn of(
        &self,
        store: &StoreId,
        id: &str,
        hands: &mut dyn Hands,
        recalled: &Recalled<'_>,
    ) -> Result<Found, Blind> {
        let (survey, extra) = look_together(self.request, &self.request.labels.only(id), hands)?;
        self.judge(survey, store, id, extra, recalled)
    }

    fn judge(
        &self,
        survey: Survey,
        store: &StoreId,
        id: &str,
        extra: Vec<Extra>,
        recalled: &Recalled<'_>,
    ) -> Result<Found, Blind> {
        let store = find_store(store, &survey.inventory)?;
        let Some(at) = find(&survey.inventory, store, id) else {
            // Of damaged records nothing is proven by what they lack.
            return match is_damaged(&survey.inventory, store) {
                true => Err(damaged(&survey.inventory, store)),
                false => Ok(Found::Gone),
            };
        };
        let facts = Facts::with(&survey.inventory, self.memory, recalled, extra);
        let kept = Judge::new(facts.input(&survey, self.policy)).waiving(self.waived).kept(at);
        Ok(match kept {
            Some(ruling) => Found::Kept(ruling),
            None => Found::MayGo(Box::new(Fresh { survey, at })),
        })
    }

    /// Whether the store no longer has the image that `fresh` allowed to delete; waits for so long for
    /// that.
    ///
    /// An error means that the store cannot tell.
    pub(super) fn is_gone(&self, fresh: &Fresh, within: Duration) -> Result<bool, Blind> {
        let began = Instant::now();
        loop {
            let is_there = self.is_there(fresh)?;
            // After a signal one look has to do.
            let waited = if stop::is_asked() { GONE_WITHIN } else { began.elapsed() };
            if let Some(is_there) = is_there.filter(|is_there| !is_there || waited >= within) {
                return Ok(!is_there);
            }
            // Records may be caught half-written.
            if waited >= GONE_WITHIN {
                return match is_there {
                    Some(is_there) => Ok(!is_there),
                    None => Err(damaged(&fresh.survey.inventory, fresh.image().store)),
                };
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the store has the image; `None` where it is not there and the records are damaged. Of a
    /// graphroot the records are read where they were found: other stores say nothing of that.
    fn is_there(&self, fresh: &Fresh) -> Result<Option<bool>, Blind> {
        let (image, at) = (fresh.image(), fresh.image().store);
        let records =
            fresh.survey.places[at.get()].as_ref().filter(|places| places.driver != artifacts::DRIVER);
        if let Some(places) = records {
            let request = Request { weigh: Weigh::Nothing, ..self.request.clone() };
            return stores::has_image(&request, places, &image.id).map_err(|error| {
                let root = places.graphroot.display();
                Blind { what: format!("the store {root} could not be read any more: {error}"), stale: false }
            });
        }
        let store = StoreId::of(&fresh.survey.inventory.stores[at.get()]);
        let inventory = look(self.request, LabelsOf::Nobody).map_err(|error| Blind::disk(&error))?.inventory;
        let at = find_store(&store, &inventory)?;
        let is_there = find(&inventory, at, &image.id).is_some();
        Ok((is_there || !is_damaged(&inventory, at)).then_some(is_there))
    }
}

fn is_damaged(inventory: &Inventory, store: StoreIx) -> bool {
    inventory.stores[store.get()].consistency == Consistency::Damaged
}

fn damaged(inventory: &Inventory, store: StoreIx) -> Blind {
    let root = inventory.stores[store.get()].root.display();
    Blind { what: format!("the records of the store {root} can no longer be read in full"), stale: false }
}

fn find(inventory: &Inventory, store: StoreIx, id: &str) -> Option<ImageIx> {
    let same = |image: &Image| image.id == id && image.store == store;
    inventory.images.iter().position(same).map(ImageIx::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Store, StoreKind};

    fn store(root: &str, driver: &str) -> Store {
        Store {
            kind: StoreKind::ContainersStorage,
            root: root.into(),
            driver: driver.into(),
            filesystem: 0.into(),
            read_only: false,
            origin: String::new(),
            consistency: Consistency::Consistent,
        }
    }

    fn inventory(stores: &[Store]) -> Inventory {
        Inventory { stores: stores.to_vec(), ..Inventory::default() }
    }

    /// One root can hold the stores of two drivers, and an image of the one proves nothing of
    /// the other.
    #[test]
    fn a_store_is_known_by_its_driver_too() {
        let both = inventory(&[store("/store", "overlay"), store("/store", "vfs")]);
        for (at, one) in both.stores.iter().enumerate() {
            assert_eq!(find_store(&StoreId::of(one), &both), Ok(at.into()));
        }
        // containerd's may be called by another snapshotter when the first is in use.
        let containerd = |driver| Store { kind: StoreKind::Containerd, ..store("/store", driver) };
        let key = StoreId::of(&containerd("native"));
        assert_eq!(find_store(&key, &inventory(&[containerd("overlayfs")])), Ok(0.into()));
    }

    /// The images of a store that was not read are not gone.
    #[test]
    fn a_store_that_was_not_read_proves_nothing() {
        let key = StoreId::of(&store("/store", "overlay"));
        let blind = find_store(&key, &inventory(&[store("/other", "overlay")])).unwrap_err();
        assert!(blind.what.contains("/store") && !blind.stale, "{blind}");
    }
}
