//! What policy and records say of images, as plans and proofs ask for it.

use std::collections::HashMap;

use jiff::Timestamp;

use super::args::Global;
use super::failure::Failure;
use super::records::{self, Memory};
use super::surveying::{self, Surveyed};
use crate::config::Config;
use crate::gc::rules::Judge;
use crate::gc::{self, Ages, Attempts, Input, Known, Plan, Space};
use crate::inventory::rules::Ruling;
use crate::inventory::{ImageIx, Inventory, StoreKey};
use crate::records::attempts::Attempt;
use crate::survey::Request;

/// The records, and the configuration beside them.
#[derive(Debug)]
pub(super) struct Mind<'a> {
    pub(super) global: &'a Global,
    pub(super) memory: &'a Memory,
    /// Images that earlier runs could not remove, by store and id.
    pub(super) attempts: HashMap<(StoreKey, String), Attempts>,
}

impl<'a> Mind<'a> {
    /// What the records say at the beginning of a run.
    pub(super) fn new(global: &'a Global, memory: &'a Memory) -> Result<Self, Failure> {
        let attempts =
            memory.attempts()?.into_iter().map(|(image, Attempt { failures, next_try, last_error })| {
                (image, Attempts { failures, next_try, last_error })
            });
        Ok(Self { global, memory, attempts: attempts.collect() })
    }

    /// Earlier attempts, one entry an image.
    fn attempts_of(&self, inventory: &Inventory) -> impl Iterator<Item = Option<Attempts>> {
        let keys: Vec<_> = inventory.stores.iter().map(StoreKey::of).collect();
        inventory.images.iter().map(move |image| {
            let key = (keys[image.store.get()].clone(), image.id.clone());
            self.attempts.get(&key).cloned()
        })
    }
}

/// Adds to the policy what the node's own files protect.
pub(super) fn protect(_config: &mut Config, _request: &Request) -> Result<(), Failure> {
    Ok(())
}

/// What every rule says of one image of a survey, and what a collection would do by what the disk
/// and the records say. No runtime is asked.
pub(super) fn judge(
    global: &Global,
    config: &Config,
    surveyed: &Surveyed,
    at: ImageIx,
) -> Result<(Vec<Ruling>, Plan), Failure> {
    let survey = &surveyed.survey;
    let mut config = config.clone();
    protect(&mut config, &surveying::request(global)?)?;
    let mind = Mind::new(global, &surveyed.memory)?;
    let inventory = &survey.inventory;
    let ages: Vec<_> =
        (0..inventory.images.len()).map(|at| Ages::from(surveyed.ages.of(at.into()))).collect();
    // Our keep-list is in the inventory already.
    let known: Vec<_> =
        mind.attempts_of(inventory).map(|attempts| Known { attempts, ..Known::default() }).collect();
    let input = Input {
        inventory,
        refs: &survey.refs,
        ages: &ages,
        known: &known,
        policy: &config.images,
        now: surveyed.ages.now,
    };
    let measured: Vec<_> = inventory.filesystems.iter().map(Space::of).collect();
    Ok((Judge::new(input).rulings(at), gc::plan::plan(input, gc::run::Task::Policy, &measured)))
}

impl gc::run::Memory for Mind<'_> {
    fn now(&self) -> Timestamp {
        self.memory.now()
    }

    fn ages(&self, inventory: &Inventory) -> Vec<Ages> {
        let ages = self.memory.ages_now(inventory);
        (0..inventory.images.len()).map(|at| Ages::from(ages.of(at.into()))).collect()
    }

    fn known(&self, inventory: &Inventory) -> Vec<Known> {
        // Somebody may have added to it since the run began.
        let pins = records::pins_now(self.global);
        let known = inventory.images.iter().zip(self.attempts_of(inventory)).map(|(image, attempts)| {
            let pinned_by = match &pins {
                Some(pins) => pins.of(&image.names, &image.digests, &image.id),
                None => vec!["our keep-list may name it, but cannot be read".into()],
            };
            let new = pinned_by.into_iter().filter(|by| !image.pinned_by.contains(by)).collect();
            Known { pinned_by: new, attempts, ..Known::default() }
        });
        known.collect()
    }
}
