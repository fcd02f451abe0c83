//! Names that are taken from an image which keeps others: nothing comes free, and the image stays.

use crate::execute::hands::{Blind, Hands, Removed};
use crate::execute::{Facts, Memory, proof};
use crate::model::rules::{Rule, Ruling};
use crate::model::{Image, ImageIx, Inventory, LabelsOf, StoreId};
use crate::policy::input::Policy;
use crate::policy::rules::Judge;
use crate::stores::{Request, Survey};

/// Rules that keep an image for what would be lost with it. With a name nothing is.
const WAIVED: [Rule; 6] =
    [Rule::InUse, Rule::ProtectedLabel, Rule::AgeUnknown, Rule::MinAge, Rule::UsedJustNow, Rule::BackingOff];

/// Names to be taken from one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untag {
    /// The image, which has others.
    pub image: ImageIx,
    /// Its names that go.
    pub names: Vec<String>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The names are gone; in a dry run: they would go.
    Done,
    /// This rule keeps them.
    Kept(Ruling),
    /// The attempt failed.
    Refused(String),
}

/// What is needed besides the survey and the hands.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// How to look at the disk again.
    pub request: &'a Request,
    /// What to go by.
    pub policy: &'a Policy,
    /// Pins and the like.
    pub memory: &'a dyn Memory,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// What would become of each, nothing changed.
///
/// # Errors
/// When what the hands need to know cannot be had in full.
pub fn dry(
    untags: &[Untag],
    survey: &Survey,
    context: Context<'_>,
    hands: &mut dyn Hands,
) -> Result<Vec<Outcome>, Blind> {
    if untags.is_empty() {
        return Ok(Vec::new());
    }
    let facts = Facts::gather(survey, context.request, context.memory, hands)?;
    let outcome = |untag: &Untag| match judge(survey, &facts, context.policy, untag.image, &untag.names) {
        Some(ruling) => Outcome::Kept(ruling),
        None => Outcome::Done,
    };
    Ok(untags.iter().map(outcome).collect())
}

/// Takes the names of one, proven right before.
///
/// # Errors
/// When what the proof needs cannot be had: nothing was changed.
pub fn run(
    untag: &Untag,
    survey: &Survey,
    context: Context<'_>,
    hands: &mut dyn Hands,
) -> Result<Outcome, Blind> {
    let planned = &survey.inventory.images[untag.image.get()];
    let store = StoreId::of(&survey.inventory.stores[planned.store.get()]);
    let recalled = context.memory.recall();
    let (fresh, extra) = proof::look_together(context.request, &LabelsOf::Nobody, hands)?;
    let Some(at) = find(&fresh.inventory, &store, planned) else {
        return Ok(Outcome::Refused("it is not there any more".into()));
    };
    let facts = Facts::with(&fresh.inventory, context.memory, &recalled, extra);
    if let Some(ruling) = judge(&fresh, &facts, context.policy, at, &untag.names) {
        return Ok(Outcome::Kept(ruling));
    }
    Ok(match hands.untag(&fresh.inventory, at, &untag.names) {
        Removed::Answered => Outcome::Done,
        Removed::NotAsked(what) | Removed::Closed(what) | Removed::Aside(what) => {
            return Err(Blind { what, stale: false });
        }
        Removed::Kept(why)
        | Removed::Refused(why)
        | Removed::NotFound(why)
        | Removed::Failed(why)
        | Removed::InPart(why)
        | Removed::InDoubt(why) => Outcome::Refused(why),
    })
}

fn find(inventory: &Inventory, store: &StoreId, planned: &Image) -> Option<ImageIx> {
    let same =
        |image: &Image| image.id == planned.id && StoreId::of(&inventory.stores[image.store.get()]) == *store;
    inventory.images.iter().position(same).map(ImageIx::from)
}

/// The rule that keeps `names`: asked of an image that has no others.
fn judge(survey: &Survey, facts: &Facts, policy: &Policy, at: ImageIx, names: &[String]) -> Option<Ruling> {
    let mut inventory = survey.inventory.clone();
    inventory.images[at.get()].names = names.to_vec();
    let input = crate::policy::Input { inventory: &inventory, ..facts.input(survey, policy) };
    Judge::new(input).waiving(&WAIVED).kept(at)
}
