//! What configuration, history and the node's own files say of images, as plans and proofs ask for it.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use jiff::{SignedDuration, Timestamp};

use super::error::Error;
use super::observer::{Audience, Observer};
use super::protect::FromNode;
use super::request::Request;
use super::scan::ScanResult;
use super::state::{self, State};
use crate::config::Config;
use crate::execute::{FactsOf, ImageFacts, PolicyContext};
use crate::history::ages::ImageAge;
use crate::history::pins::Pins;
use crate::model::display::with_causes;
use crate::model::rules::{Rule, Ruling};
use crate::model::{BackOff, Filesystem, ImageIx, Inventory, Plan, StoreId};
use crate::node::{ImageNamers, Unreadable};
use crate::policy::rules::Judge;
use crate::policy::{Ages, Facts, Input, Policy, Task};
use crate::stores;

/// The records, and the configuration beside them.
#[derive(Debug)]
pub struct NodeContext<'a> {
    request: Arc<Request>,
    config: Arc<Config>,
    stores: stores::ScanRequest,
    state: &'a State,
    /// Images that earlier runs could not remove, by store and id.
    back_offs: &'a HashMap<(StoreId, String), BackOff>,
    /// Images that nothing but containers of this run's plan used, by store and id.
    released: HashSet<(StoreId, String)>,
}

impl<'a> NodeContext<'a> {
    /// The context at the beginning of a run, which scans `stores`.
    pub fn new(request: &Request, state: &'a State, config: &Config, stores: stores::ScanRequest) -> Self {
        Self {
            request: Arc::new(request.clone()),
            config: Arc::new(config.clone()),
            stores,
            state,
            back_offs: &state.back_offs,
            released: HashSet::new(),
        }
    }

    pub(super) fn back_off(&self, store: &StoreId, id: &str) -> Option<&BackOff> {
        self.back_offs.get(&(store.clone(), id.to_owned()))
    }

    /// The containers of `gone` are to be deleted. That the scan of this run saw them use an image, and
    /// nobody else, is no reason for it to stay.
    pub(super) fn releases(&mut self, inventory: &Inventory, gone: &Plan) {
        let gone: HashSet<&str> = gone.steps.iter().map(|step| step.target.id.as_str()).collect();
        let mut users: HashMap<ImageIx, bool> = HashMap::new();
        for one in &inventory.containers {
            for image in one.images() {
                *users.entry(image).or_insert(true) &= gone.contains(one.id.as_str());
            }
        }
        let released = users.into_iter().filter(|(_, all_gone)| *all_gone);
        self.released = released.map(|(image, _)| key(inventory, image)).collect();
    }
}

/// One entry an image.
fn back_offs_of(
    back_offs: &HashMap<(StoreId, String), BackOff>,
    inventory: &Inventory,
) -> impl Iterator<Item = Option<BackOff>> {
    let keys = inventory.store_ids();
    inventory.images.iter().map(move |image| {
        let key = (keys[image.store.get()].clone(), image.id.to_string());
        back_offs.get(&key).cloned()
    })
}

fn key(inventory: &Inventory, image: ImageIx) -> (StoreId, String) {
    let image = &inventory[image];
    (StoreId::of(&inventory[image.store]), image.id.to_string())
}

/// Adds to the policy what the node's own files protect.
///
/// # Errors
/// When one of them cannot be read: then nothing may be deleted.
pub fn protect(
    observer: &dyn Observer,
    config: &mut Config,
    request: &stores::ScanRequest,
) -> Result<(), Error> {
    read_protection(observer, config, request).map_err(|unreadable| {
        Error::refused(with_causes(&unreadable)).hint(match unreadable.names {
            ImageNamers::StaticPods => {
                "fix it, or set protect.static_pods = \"off\" if static pods protect nothing"
            }
            ImageNamers::Quadlets => "make it readable, or move it away if it is not needed",
            ImageNamers::CriO | ImageNamers::Containerd => "fix it, or move it away if it is not needed",
        })
    })
}

fn read_protection(
    observer: &dyn Observer,
    config: &mut Config,
    request: &stores::ScanRequest,
) -> Result<(), Unreadable> {
    let found = FromNode::read(request, config.static_pods.as_deref(), config.kubelet.root_dir.as_deref())?;
    observer.findings(Audience::Usual, &found.findings);
    found.apply(&mut config.images.protect);
    Ok(())
}

/// What the node's own files name by now that they did not when the run began; `Err`: what they name is
/// unknown, and why.
fn new_protection(request: &Request, config: &Config) -> Result<FromNode, String> {
    let request = request.stores().map_err(|error| error.message)?;
    let (pods, kubelet) = (config.static_pods.as_deref(), config.kubelet.root_dir.as_deref());
    FromNode::read(&request, pods, kubelet)
        .map(|found| found.without(&config.images.protect))
        .map_err(|unreadable| unknown_names(&unreadable))
}

fn unknown_names(unreadable: &Unreadable) -> String {
    format!("{} may name it: {}", unreadable.names, with_causes(unreadable))
}

/// What every rule says of one image of a scan, and what a collection would do.
///
/// # Errors
/// When the database or the stores' configuration cannot be read.
pub fn judge(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    (scanned, facts): (&ScanResult, &ImageFacts),
    at: ImageIx,
) -> Result<(Vec<Ruling>, Plan), Error> {
    planned(request, observer, config, (scanned, facts), |input, plan| (Judge::new(input).rulings(at), plan))
}

/// What a collection would do.
///
/// # Errors
/// As [`judge`].
pub fn plan(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scanned: (&ScanResult, &ImageFacts),
) -> Result<Plan, Error> {
    planned(request, observer, config, scanned, |_, plan| plan)
}

/// Rules that keep an image whatever its age and the filesystem.
const CONFIGURED: &[Rule] = &[
    Rule::SandboxImage,
    Rule::StaticPod,
    Rule::Quadlet,
    Rule::ProtectedName,
    Rule::ProtectedLabel,
    Rule::NewestOfRepository,
];

/// Returns the images that the configuration or the node's files keep, and why.
pub(super) fn protected(
    request: &Request,
    config: &Config,
    scanned: &ScanResult,
) -> BTreeMap<ImageIx, String> {
    let mut policy = config.images.clone();
    let (pods, kubelet) = (config.static_pods.as_deref(), config.kubelet.root_dir.as_deref());
    // A file that cannot be read makes a run refuse; the command of that run reports it.
    if let Ok(stores) = request.stores()
        && let Ok(found) = FromNode::read(&stores, pods, kubelet)
    {
        found.apply(&mut policy.protect);
    }
    let inventory = &scanned.scan.inventory;
    let all = || (0..inventory.images.len()).map(ImageIx::from);
    let facts: Vec<_> = all()
        .map(|image_ix| Facts { ages: Some(ages_of(scanned.ages.of(image_ix))), ..Facts::default() })
        .collect();
    let judge = Judge::new(Input {
        inventory,
        refs: &scanned.scan.refs,
        facts: &facts,
        full_filesystems: &[],
        policy: &policy,
        now: scanned.ages.now,
        scanned: scanned.state.scanned,
    });
    let kept = all().filter_map(|at| {
        let ruling = judge.rulings(at).into_iter().find(|one| one.stays && CONFIGURED.contains(&one.rule))?;
        Some((at, ruling.detail))
    });
    kept.collect()
}

fn planned<T>(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    (scanned, facts): (&ScanResult, &ImageFacts),
    then: impl FnOnce(Input<'_>, Plan) -> T,
) -> Result<T, Error> {
    let scan = &scanned.scan;
    let mut config = config.clone();
    // Whoever only asks is told what a run would do about it: keep everything.
    let unknown = read_protection(observer, &mut config, &request.stores()?).err();
    let unknown: Vec<_> = unknown.iter().map(unknown_names).collect();
    let inventory = &scan.inventory;
    // The keep-list is in the inventory already.
    let mut all_facts: Vec<_> = back_offs_of(&scanned.state.back_offs, inventory)
        .enumerate()
        .map(|(position, back_off)| Facts {
            ages: Some(ages_of(scanned.ages.of(position.into()))),
            back_off,
            pinned_by: unknown.clone(),
            ..Facts::default()
        })
        .collect();
    all_facts.iter_mut().zip(&facts.of_images).for_each(|(facts, more)| facts.add(more.clone()));
    let input = Input {
        inventory,
        refs: &scan.refs,
        facts: &all_facts,
        full_filesystems: &facts.full_filesystems,
        policy: &config.images,
        now: scanned.ages.now,
        scanned: scanned.state.scanned,
    };
    let measured: Vec<_> = inventory.filesystems.iter().map(Filesystem::space).collect();
    Ok(then(input, crate::policy::plan::plan(input, Task::Policy, &measured)))
}

fn ages_of(age: &ImageAge) -> Ages {
    Ages {
        first_detected: age.first_detected,
        last_used: age.last_used,
        use_count: age.use_count,
        counted_from: age.counted_from,
    }
}

impl NodeContext<'_> {
    /// One entry an image.
    fn ages(&self, inventory: &Inventory) -> Vec<Ages> {
        let ages = self.state.ages_now(inventory);
        // In use until just now, but not any more; a dry run, which records nothing, says the same.
        let just_now = self.scanned();
        let just_now = just_now.checked_sub(SignedDuration::from_micros(1)).unwrap_or(just_now);
        let age = |at: usize| {
            let age = ages_of(ages.of(at.into()));
            if self.released.is_empty() || !self.released.contains(&key(inventory, at.into())) {
                return age;
            }
            Ages { last_used: Some(just_now), counted_from: age.first_detected.max(just_now), ..age }
        };
        (0..inventory.images.len()).map(age).collect()
    }
}

impl PolicyContext for NodeContext<'_> {
    fn scan_request(&self) -> &stores::ScanRequest {
        &self.stores
    }

    fn policy(&self) -> &Policy {
        &self.config.images
    }

    fn now(&self) -> Timestamp {
        self.state.now()
    }

    fn scanned(&self) -> Timestamp {
        self.state.scanned
    }

    fn read_facts(&self, pins: Option<Pins>) -> FactsOf<'_> {
        // Somebody may have added to them since the run began.
        let pins = pins.or_else(|| state::pins_now(&self.request));
        // Read while the disk is: it takes about as long.
        let (request, config) = (Arc::clone(&self.request), Arc::clone(&self.config));
        let reading = thread::Builder::new().spawn(move || new_protection(&request, &config));
        let new = LazyCell::new(move || match reading.map(thread::JoinHandle::join) {
            Ok(Ok(new)) => new,
            _ => new_protection(&self.request, &self.config),
        });
        Box::new(move |inventory| {
            let known = inventory
                .images
                .iter()
                .zip(back_offs_of(self.back_offs, inventory))
                .zip(self.ages(inventory))
                .map(|((image, back_off), ages)| {
                    // What was pinned at the beginning stays so, whatever happens to the database.
                    let listed = |pins: &Pins| {
                        let reasons = pins.of(&image.names, &image.digests, &image.id);
                        reasons.into_iter().map(|reason| reason.text)
                    };
                    let mut pinned_by: Vec<_> = listed(&self.state.pins).collect();
                    match &pins {
                        Some(pins) => pinned_by.extend(listed(pins)),
                        None => pinned_by.push("the keep-list may name it, but cannot be read".into()),
                    }
                    pinned_by.dedup();
                    match &*new {
                        Ok(new) => pinned_by.extend(new.names(inventory, image)),
                        Err(unknown) => pinned_by.push(unknown.clone()),
                    }
                    pinned_by.retain(|by| image.pinned_by.iter().all(|pin| pin.text != *by));
                    Facts { ages: Some(ages), pinned_by, back_off, ..Facts::default() }
                });
            known.collect()
        })
    }
}
