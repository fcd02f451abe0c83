//! Facts about images from the configuration, the history and the node's files, for plans and proofs.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use jiff::{SignedDuration, Timestamp};

use crate::config::Config;
use crate::execute::{FactsOf, Gauges, ImageFacts, PolicyContext};
use crate::history::ages::ImageAge;
use crate::history::pins::Pins;
use crate::model::rules::{Rule, Ruling};
use crate::model::space::Measured;
use crate::model::text::display::{count, with_causes};
use crate::model::{BackOff, Image, ImageIx, Inventory, Plan, StoreId};
use crate::node::{ImageNamers, Unreadable};
use crate::policy::rules::Judge;
use crate::policy::{Ages, Facts, Input, Policy, Task};
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer};
use crate::services::protect::FromNode;
use crate::services::request::Request;
use crate::services::scan::ScanResult;
use crate::services::state::{self, State};
use crate::stores;

/// Remedy for a declared set that cannot be read.
pub(crate) const REMEDY_OF_REFERENCES: &str =
    "correct it, or set protect.references_file = \"off\"; patterns belong in protect.names";

/// The context of a run: history, configuration and the node's files.
#[derive(Debug)]
pub struct NodeContext<'a> {
    request: Arc<Request>,
    config: Arc<Config>,
    stores: stores::ScanRequest,
    state: &'a State,
    /// Images that earlier runs could not remove, by store and id.
    back_offs: &'a HashMap<(StoreId, String), BackOff>,
    /// Images that only containers of this run's plan used, by store and id.
    released: HashSet<(StoreId, String)>,
}

impl<'a> NodeContext<'a> {
    /// Creates the context at the beginning of a run that scans `stores`.
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

    pub(crate) fn back_off(&self, store: &StoreId, id: &str) -> Option<&BackOff> {
        self.back_offs.get(&(store.clone(), id.to_owned()))
    }

    /// Notes the images that only the containers of the plan `gone` use. The scan of this run has seen them in use, but
    /// that does not keep them: the containers are deleted first.
    pub(crate) fn releases(&mut self, inventory: &Inventory, gone: &Plan) {
        let gone: HashSet<&str> = gone.steps.iter().map(|step| step.target.id.as_str()).collect();
        let mut users: HashMap<ImageIx, bool> = HashMap::new();
        for container in &inventory.containers {
            for image in container.images() {
                *users.entry(image).or_insert(true) &= gone.contains(container.id.as_str());
            }
        }
        let released = users.into_iter().filter(|(_, all_gone)| *all_gone);
        self.released = released.map(|(image, _)| key(inventory, image)).collect();
    }
}

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

/// Adds to the policy the images that the node's files protect.
///
/// # Errors
/// When such a file cannot be read: then nothing may be deleted.
pub fn protect(
    observer: &dyn Observer,
    config: &mut Config,
    request: &stores::ScanRequest,
) -> Result<(), Error> {
    read_protection(observer, config, request).map_err(|unreadable| refusal(&unreadable))
}

/// Error of a run that cannot read the images that the node's files protect.
fn refusal(unreadable: &Unreadable) -> Error {
    Error::refused(with_causes(unreadable)).hint(match unreadable.names {
        ImageNamers::StaticPods => {
            "fix it, or set protect.static_pods = \"off\" if static pods protect nothing"
        }
        ImageNamers::ReferencesFile => REMEDY_OF_REFERENCES,
        ImageNamers::Quadlets => "make it readable, or move it away if it is not needed",
        ImageNamers::CriO | ImageNamers::Containerd => "fix it, or move it away if it is not needed",
    })
}

/// Returns the error of a run that cannot read the images that the node's files protect, if there is one.
pub(crate) fn unknown_protection(config: &Config, request: &stores::ScanRequest) -> Option<Error> {
    FromNode::read(request, config).err().map(|unreadable| refusal(&unreadable))
}

/// Warns of references of the declared set that name no image, while an image of their repository has another tag.
pub(crate) fn warn_unmatched_references(observer: &dyn Observer, config: &Config, inventory: &Inventory) {
    let set = &config.images.protect.references;
    let unmatched = set.unmatched(&inventory.images).into_iter();
    let mut mistaken = unmatched.filter(|unmatched| unmatched.other_tag.is_some());
    let Some(first) = mistaken.next() else { return };
    let more = match mistaken.count() {
        0 => String::new(),
        number => format!("; {} like it", count(number, "more line is", "more lines are")),
    };
    let message = format!("{}, {first}{more}", set.file().display());
    observer.warn(Audience::Usual, &message, "`layersweep images` shows full names; correct the line");
}

fn read_protection(
    observer: &dyn Observer,
    config: &mut Config,
    request: &stores::ScanRequest,
) -> Result<(), Unreadable> {
    let found = FromNode::read(request, config)?;
    observer.findings(Audience::Usual, &found.findings);
    found.apply(&mut config.images.protect);
    Ok(())
}

/// Images that the node's files name now, and did not name when the run began; `Err`: the reason for which they are
/// unknown.
fn new_protection(request: &Request, config: &Config) -> Result<FromNode, String> {
    let request = request.stores().map_err(|error| error.message)?;
    FromNode::read(&request, config)
        .map(|found| found.without(&config.images.protect))
        .map_err(|unreadable| unknown_names(&unreadable))
}

fn unknown_names(unreadable: &Unreadable) -> String {
    match unreadable.names {
        ImageNamers::ReferencesFile => with_causes(unreadable),
        names => format!("{names} may name it: {}", with_causes(unreadable)),
    }
}

/// The ruling of every rule on one image of a scan, and the plan of a collection.
///
/// # Errors
/// When the database or the stores' configuration cannot be read.
pub fn judge(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    (scanned, facts): (&ScanResult, &ImageFacts),
    image_ix: ImageIx,
) -> Result<(Vec<Ruling>, Plan), Error> {
    with_input(request, observer, config, (scanned, facts), |input, measured| {
        (Judge::new(input).rulings(image_ix), crate::policy::plan::plan(input, Task::Policy, measured))
    })
}

/// The plan of a collection.
///
/// # Errors
/// As [`judge`].
pub fn plan(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scanned: (&ScanResult, &ImageFacts),
) -> Result<Plan, Error> {
    with_input(request, observer, config, scanned, |input, measured| {
        crate::policy::plan::plan(input, Task::Policy, measured)
    })
}

/// Rules that keep an image regardless of its age and its filesystem.
const CONFIGURED: &[Rule] = &[
    Rule::SandboxImage,
    Rule::StaticPod,
    Rule::Quadlet,
    Rule::ProtectedName,
    Rule::ProtectedLabel,
    Rule::NewestOfRepository,
    Rule::NotRepullable,
];

/// Rules whose images only the node's files name.
const FROM_FILES: [Rule; 4] = [Rule::SandboxImage, Rule::StaticPod, Rule::Quadlet, Rule::PullInProgress];

/// Images that the configuration or the node's files keep, each with the first ruling that does; and the error with
/// which a run is refused, if a file cannot be read.
pub(crate) fn protected(
    request: &Request,
    config: &Config,
    scanned: &ScanResult,
) -> (BTreeMap<ImageIx, Ruling>, Option<Error>) {
    let mut policy = config.images.clone();
    let found = request.stores().map(|stores| FromNode::read(&stores, config));
    let refused = match found {
        Ok(Ok(found)) => {
            found.apply(&mut policy.protect);
            None
        }
        Ok(Err(unreadable)) => Some(refusal(&unreadable)),
        Err(error) => Some(error),
    };
    let inventory = &scanned.scan.inventory;
    let all = (0..inventory.images.len()).map(ImageIx::from);
    let facts: Vec<_> = all
        .clone()
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
    let kept = all.filter_map(|image_ix| {
        let mut rulings = judge.rulings(image_ix).into_iter();
        let ruling = rulings.find(|ruling| ruling.keeps && CONFIGURED.contains(&ruling.rule))?;
        Some((image_ix, ruling))
    });
    (kept.collect(), refused)
}

/// Calls `then` with the input of a plan, and the numbers of the filesystems.
///
/// # Errors
/// As [`judge`].
pub(crate) fn with_input<T>(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    (scanned, facts): (&ScanResult, &ImageFacts),
    then: impl FnOnce(Input<'_>, &[Measured]) -> T,
) -> Result<T, Error> {
    let scan = &scanned.scan;
    let mut config = config.clone();
    // A run would be refused. A command that only reads keeps every image instead.
    let unknown = read_protection(observer, &mut config, &request.stores()?).err();
    let unknown: Vec<_> = unknown.iter().map(unknown_names).collect();
    if !unknown.is_empty() {
        config.images.protect.unread.extend(FROM_FILES);
        config.images.protect.unread.extend(config.references_file.as_ref().map(|_| Rule::ProtectedName));
    }
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
    // As `gc` does: it counts what root has used of its reserve.
    Ok(then(input, &Gauges::open(inventory, None).measure()))
}

fn reasons_of(pins: &Pins, image: &Image) -> Vec<String> {
    let reasons = pins.of(&image.names, &image.digests, &image.id);
    reasons.into_iter().map(|reason| reason.text).collect()
}

fn ages_of(age: &ImageAge) -> Ages {
    Ages {
        first_detected: age.first_detected,
        last_used: age.last_used,
        use_count: age.use_count,
        returns: age.life.saturating_sub(1),
        counted_from: age.counted_from,
    }
}

impl NodeContext<'_> {
    fn ages(&self, inventory: &Inventory) -> Vec<Ages> {
        let ages = self.state.ages_now(inventory);
        // Released images were in use until just before the scan. A dry run, which records nothing, predicts the same.
        let just_now = self.scanned();
        let just_now = just_now.checked_sub(SignedDuration::from_micros(1)).unwrap_or(just_now);
        let ages = (0..inventory.images.len()).map(ImageIx::from).map(|image_ix| {
            let age = ages_of(ages.of(image_ix));
            if self.released.is_empty() || !self.released.contains(&key(inventory, image_ix)) {
                return age;
            }
            Ages { last_used: Some(just_now), counted_from: age.first_detected.max(just_now), ..age }
        });
        ages.collect()
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
        // A user may have pinned more images since the run began.
        let pins = pins.or_else(|| state::pins_now(&self.request));
        // The node's files are read while the disk is read, which takes about as long.
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
                    // Pins at the beginning of the run hold even if the database cannot be read any more.
                    let mut pinned_by = reasons_of(&self.state.pins, image);
                    match &pins {
                        Some(pins) => pinned_by.extend(reasons_of(pins, image)),
                        None => pinned_by.push("the keep-list may name it, but cannot be read".into()),
                    }
                    pinned_by.dedup();
                    match &*new {
                        Ok(new) => pinned_by.extend(new.names(inventory, image)),
                        Err(unknown) => pinned_by.push(unknown.clone()),
                    }
                    pinned_by.retain(|reason| image.pinned_by.iter().all(|pin| pin.text != *reason));
                    Facts { ages: Some(ages), pinned_by, back_off, ..Facts::default() }
                });
            known.collect()
        })
    }
}
