//! What policy and records say of images, as plans and proofs ask for it.

use std::collections::{HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};

use super::global::Global;
use crate::app::error::Error;
use crate::app::observer::{Observer as _, Weight};
use crate::app::protect::{self, FromNode};
use crate::app::scan::ScanResult;
use crate::app::state::{self, State};
use crate::config::Config;
use crate::execute::Recalled;
use crate::execute::containers::Plan as DeadPlan;
use crate::model::rules::Ruling;
use crate::model::{ImageIx, Inventory, StoreId};
use crate::node::{NamedImage, Unreadable, pulls, static_pods};
use crate::policy::Ages;
use crate::policy::Attempt;
use crate::policy::Input;
use crate::policy::Known;
use crate::policy::Plan;
use crate::policy::Space;
use crate::policy::input::Quadlet;
use crate::policy::names;
use crate::policy::rules::Judge;
use crate::stores::Request;
use crate::sys::sysroot::Sysroot;

/// The records, and the configuration beside them.
#[derive(Debug)]
pub(super) struct Mind<'a> {
    pub(super) global: &'a Global,
    pub(super) memory: &'a State,
    /// Images that earlier runs could not remove, by store and id.
    pub(super) attempts: HashMap<(StoreId, String), Attempt>,
    /// Images that nothing but containers of this run's plan used, by store and id.
    released: HashSet<(StoreId, String)>,
    config: &'a Config,
}

impl<'a> Mind<'a> {
    /// What the records say at the beginning of a run.
    pub(super) fn new(global: &'a Global, memory: &'a State, config: &'a Config) -> Result<Self, Error> {
        Ok(Self { global, memory, attempts: memory.attempts()?, released: HashSet::new(), config })
    }

    /// The containers of `gone` are to go. That the scan of this run saw them use an image, and
    /// nobody else, is no reason for it to stay.
    pub(super) fn releases(&mut self, inventory: &Inventory, gone: &DeadPlan) {
        let gone: HashSet<&str> = gone.goes.iter().map(|doomed| doomed.id.as_str()).collect();
        let mut users: HashMap<ImageIx, bool> = HashMap::new();
        for one in &inventory.containers {
            for image in one.images() {
                *users.entry(image).or_insert(true) &= gone.contains(one.id.as_str());
            }
        }
        let released = users.into_iter().filter(|(_, all_gone)| *all_gone);
        self.released = released.map(|(image, _)| key(inventory, image)).collect();
    }

    /// Earlier attempts, one entry an image.
    fn attempts_of(&self, inventory: &Inventory) -> impl Iterator<Item = Option<Attempt>> {
        let keys: Vec<_> = inventory.stores.iter().map(StoreId::of).collect();
        inventory.images.iter().map(move |image| {
            let key = (keys[image.store.get()].clone(), image.id.to_string());
            self.attempts.get(&key).cloned()
        })
    }
}

fn key(inventory: &Inventory, image: ImageIx) -> (StoreId, String) {
    let image = &inventory.images[image.get()];
    (StoreId::of(&inventory.stores[image.store.get()]), image.id.to_string())
}

/// Adds to the policy what the node's own files protect.
pub(super) fn protect(global: &Global, config: &mut Config, request: &Request) -> Result<(), Error> {
    read_protection(global, config, request).map_err(|unreadable| {
        Error::refused(told(&unreadable)).hint(match unreadable.names {
            "static pods" => {
                "mend it, or set protect.static_pods = \"off\" if static pods are not to protect images"
            }
            _ => "make it readable, or move it away if it is of no use",
        })
    })
}

/// With its cause.
fn told(unreadable: &Unreadable) -> String {
    match std::error::Error::source(unreadable) {
        Some(cause) => format!("{unreadable}: {cause}"),
        None => unreadable.to_string(),
    }
}

fn read_protection(global: &Global, config: &mut Config, request: &Request) -> Result<(), Unreadable> {
    let found = FromNode::read(request, config.static_pods.as_deref(), config.kubelet.root_dir.as_deref())?;
    global.findings(Weight::Usual, &found.findings);
    found.apply(&mut config.images.protect);
    Ok(())
}

/// What static pods name by now that they did not when the run began: `Err` where that cannot be
/// told any more.
fn new_static_pods(config: &Config) -> Result<Vec<NamedImage>, Unreadable> {
    let Some(manifests) = &config.static_pods else { return Ok(Vec::new()) };
    let mut named = static_pods::read(&Sysroot::live(), manifests)?.images;
    let known = &config.images.protect.static_pods;
    named.retain(|image| known.iter().all(|known| known.reference != image.reference));
    Ok(named)
}

/// What quadlets name by now that they did not when the run began.
fn new_quadlets(global: &Global, config: &Config) -> Result<Vec<Quadlet>, Unreadable> {
    let Ok(request) = global.request.stores() else { return Ok(Vec::new()) };
    let (mut named, _) = protect::quadlets(&request)?;
    let known: HashSet<_> =
        config.images.protect.quadlets.iter().map(|one| (&one.named.reference, &one.stores)).collect();
    named.retain(|one| !known.contains(&(&one.named.reference, &one.stores)));
    Ok(named)
}

/// What the kubelet is pulling by now that it did not pull when the run began.
fn new_pulls(config: &Config) -> Vec<NamedImage> {
    let mut named = pulls::read(&Sysroot::live(), config.kubelet.root_dir.as_deref()).images;
    let known = &config.images.protect.pulling;
    named.retain(|image| known.iter().all(|known| known.reference != image.reference));
    named
}

/// What every rule says of one image of a survey, and what a collection would do by what the disk
/// and the records say. No runtime is asked.
pub(super) fn judge(
    global: &Global,
    config: &Config,
    surveyed: &ScanResult,
    at: ImageIx,
) -> Result<(Vec<Ruling>, Plan), Error> {
    foreseen(global, config, surveyed, |input, plan| (Judge::new(input).rulings(at), plan))
}

/// What a collection would do by what the disk and the records say. No runtime is asked.
pub(super) fn plan(global: &Global, config: &Config, surveyed: &ScanResult) -> Result<Plan, Error> {
    foreseen(global, config, surveyed, |_, plan| plan)
}

fn foreseen<T>(
    global: &Global,
    config: &Config,
    surveyed: &ScanResult,
    then: impl FnOnce(Input<'_>, Plan) -> T,
) -> Result<T, Error> {
    let survey = &surveyed.survey;
    let mut config = config.clone();
    // Whoever only asks is told what a run would do about it: keep everything.
    let unknown = read_protection(global, &mut config, &global.request.stores()?).err();
    let unknown: Vec<_> =
        unknown.iter().map(|why| format!("{} may name it: {}", why.names, told(why))).collect();
    let mind = Mind::new(global, &surveyed.state, &config)?;
    let inventory = &survey.inventory;
    let ages: Vec<_> =
        (0..inventory.images.len()).map(|at| Ages::from(surveyed.ages.of(at.into()))).collect();
    // Our keep-list is in the inventory already.
    let known: Vec<_> = mind
        .attempts_of(inventory)
        .map(|attempts| Known { attempts, pinned_by: unknown.clone(), ..Known::default() })
        .collect();
    let input = Input {
        inventory,
        refs: &survey.refs,
        ages: &ages,
        known: &known,
        policy: &config.images,
        now: surveyed.ages.now,
        scanned: surveyed.state.scanned(),
    };
    let measured: Vec<_> = inventory.filesystems.iter().map(Space::of).collect();
    Ok(then(input, crate::policy::plan::plan(input, crate::execute::Task::Policy, &measured)))
}

impl crate::execute::Memory for Mind<'_> {
    fn now(&self) -> Timestamp {
        self.memory.now()
    }

    fn scanned(&self) -> Timestamp {
        self.memory.scanned()
    }

    fn ages(&self, inventory: &Inventory) -> Vec<Ages> {
        let ages = self.memory.ages_now(inventory);
        // In use until just now, but not any more; a dry run, which records nothing, says the same.
        let just_now = self.scanned();
        let just_now = just_now.checked_sub(SignedDuration::from_micros(1)).unwrap_or(just_now);
        let age = |at: usize| {
            let age = Ages::from(ages.of(at.into()));
            if self.released.is_empty() || !self.released.contains(&key(inventory, at.into())) {
                return age;
            }
            Ages { last_used: Some(just_now), counted_from: age.first_detected.max(just_now), ..age }
        };
        (0..inventory.images.len()).map(age).collect()
    }

    fn known(&self, inventory: &Inventory) -> Vec<Known> {
        self.recall()(inventory)
    }

    fn recall(&self) -> Recalled<'_> {
        // Somebody may have added to them since the run began.
        let pins = state::pins_now(&self.global.request);
        let pods = new_static_pods(self.config);
        let quadlets = new_quadlets(self.global, self.config);
        let pulls = new_pulls(self.config);
        Box::new(move |inventory| {
            let known = inventory.images.iter().zip(self.attempts_of(inventory)).map(|(image, attempts)| {
                // What was pinned at the beginning stays so, whatever happens to the database.
                let mut pinned_by = self.memory.pins().of(&image.names, &image.digests, &image.id);
                match &pins {
                    Some(pins) => pinned_by.extend(pins.of(&image.names, &image.digests, &image.id)),
                    None => pinned_by.push("our keep-list may name it, but cannot be read".into()),
                }
                pinned_by.dedup();
                match &pods {
                    Ok(pods) => pinned_by.extend(
                        pods.iter()
                            .filter(|pod| names::means(&pod.reference, &image.names, &image.digests))
                            .map(|pod| format!("the static pod {}, which is new", pod.source)),
                    ),
                    Err(unreadable) => {
                        pinned_by.push(format!("static pods may name it: {}", told(unreadable)))
                    }
                }
                let store = &inventory.stores[image.store.get()];
                match &quadlets {
                    Ok(quadlets) => pinned_by.extend(
                        quadlets
                            .iter()
                            .filter(|one| one.means(store, image))
                            .map(|one| format!("the quadlet {}, which is new", one.named.source)),
                    ),
                    Err(unreadable) => pinned_by.push(format!("quadlets may name it: {}", told(unreadable))),
                }
                let mut pulls = pulls.iter();
                let means = |pull: &&NamedImage| names::means(&pull.reference, &image.names, &image.digests);
                pinned_by.extend(
                    pulls.find(means).map(|pull| format!("the kubelet, which pulls it now: {}", pull.source)),
                );
                let new = pinned_by.into_iter().filter(|by| !image.pinned_by.contains(by)).collect();
                Known { pinned_by: new, attempts, ..Known::default() }
            });
            known.collect()
        })
    }
}
