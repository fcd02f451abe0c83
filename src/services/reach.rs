//! The images that `gc` can delete here now. `explain`, `report`, `usage` and `images` ask the remover that a run would
//! use, so that their predictions match the run.
//!
//! If no run could begin (its runtime does not answer), they report that, and use the facts on the disk alone.

use std::collections::BTreeMap;

use crate::config::{Config, Via};
use crate::execute::ImageFacts;
use crate::execute::editors::Editors;
use crate::execute::way::Way;
use crate::model::text::display::shell_word;
use crate::model::{ImageIx, Inventory, OwnersStore, StoreIx};
use crate::policy::{Facts, PolicyKind};
use crate::services::error::Error;
use crate::services::gc_request::{GcRequest, Only, Selection};
use crate::services::observer::Observer;
use crate::services::paths::owners_store;
use crate::services::policy_context;
use crate::services::request::Request;
use crate::services::runtime;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;
use crate::services::store_editing;
use crate::services::via::Deleter;
use crate::stores::Scan;

/// The way in which images of a scan are deleted.
#[derive(Debug)]
pub struct Reach {
    /// Images are deleted directly in their stores, since no runtime is here.
    is_direct: bool,
    /// Reason for which a run could not begin now.
    pub refusal: Option<Error>,
    /// The remover's facts about the images; if no run could begin, the facts on the disk.
    pub(crate) facts: ImageFacts,
    /// Way of each store; empty if no run could begin.
    pub(crate) ways: Vec<Way>,
    /// Socket of the runtime that deletes; `None` without one.
    endpoint: Option<String>,
}

/// Scans, and asks what can be deleted; records nothing.
///
/// # Errors
/// As [`scan::scan`].
pub fn scan(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
) -> Result<(ScanResult, Reach), Error> {
    let mut scanned =
        scan::scan_with(request, observer, Purpose::Look, false, ScanOptions::for_policy(config))?;
    let reach = Reach::find(request, config, &mut scanned);
    Ok((scanned, reach))
}

impl Reach {
    /// Finds the way in which images of a scan are deleted. Adds to its inventory the images that are out of reach, and
    /// those that rules keep. On a disk that is mounted from another machine nothing is deleted: there, the command is
    /// the one to run on that machine.
    pub(crate) fn find(request: &Request, config: &Config, scanned: &mut ScanResult) -> Self {
        if scanned.scan.sysroot.is_foreign() {
            let closed = of_other_users(&scanned.scan);
            let images = scanned.scan.inventory.images.iter();
            let inventory = &scanned.scan.inventory;
            let out_of_reach = images.map(|image| {
                inventory.obstacle_of_store(image.store).or_else(|| closed.get(&image.store).cloned())
            });
            let facts = out_of_reach.map(|out_of_reach| Facts { out_of_reach, ..Facts::default() });
            let facts = ImageFacts::of(facts.collect());
            let closed = closed.into_keys().collect();
            let refusal = mark(request, config, scanned, closed, facts.out_of_reach());
            return Self { is_direct: false, refusal, facts, ways: Vec::new(), endpoint: None };
        }
        let editors = store_editing::editors(request, &scanned.scan);
        let reach = Self::ask(request, config, &scanned.scan, &editors);
        let closed = closed_stores(&scanned.scan.inventory, &editors);
        scanned.scan.inventory.silent_stores = silent_stores(&reach.ways);
        let unreadable = mark(request, config, scanned, closed, reach.facts.out_of_reach());
        Self { refusal: reach.refusal.or(unreadable), ..reach }
    }

    pub(crate) fn ask(request: &Request, config: &Config, scan: &Scan, editors: &Editors) -> Self {
        let is_seen = runtime::is_seen(request, scan);
        let (facts, is_direct) = match facts(request, config, scan, editors) {
            // No runtime exists here: its store can be edited.
            Err(_) if config.via == Via::Auto && !is_seen => {
                let direct = Config { via: Via::Direct, ..config.clone() };
                (facts(request, &direct, scan, editors), true)
            }
            facts => (facts, !is_seen),
        };
        match facts {
            Ok((facts, ways, endpoint)) => Self { is_direct, refusal: None, facts, ways, endpoint },
            Err(error) => {
                let facts = ImageFacts::of(of_users(&scan.inventory, editors));
                Self { is_direct, refusal: Some(error), facts, ways: Vec::new(), endpoint: None }
            }
        }
    }

    pub fn command(&self) -> &'static str {
        if self.is_direct { "layersweep gc --via direct" } else { "layersweep gc" }
    }

    /// Returns the command for these stores alone, with the socket of the runtime: in named stores a runtime deletes only
    /// if it is named as well.
    pub(crate) fn command_in(&self, inventory: &Inventory, stores: &[StoreIx]) -> String {
        let mut command = self.command().to_owned();
        for store in stores.iter().map(|store_ix| &inventory[*store_ix]) {
            let root = shell_word(&store.root.to_string_lossy());
            command.push_str(&format!(" {} {root}", store.kind.facts().flag));
        }
        let endpoint = self.endpoint.as_ref().filter(|_| !stores.is_empty());
        endpoint
            .iter()
            .for_each(|endpoint| command.push_str(&format!(" --cri-endpoint {}", shell_word(endpoint))));
        command
    }

    /// Way in which a run deletes images of a store, as a clause.
    pub(crate) fn way(&self, store_ix: StoreIx) -> &'static str {
        match self.ways.get(store_ix.get()) {
            Some(Way::Direct) => "deleted directly in its store",
            _ => "deleted through the runtime",
        }
    }

    pub fn refused(&self) -> Option<String> {
        let refusal = self.refusal.as_ref()?;
        Some(match &refusal.hint {
            Some(hint) => format!("{} ({hint})", refusal.reason()),
            None => refusal.reason().to_owned(),
        })
    }
}

/// Facts about the images from the remover that a run would use, the ways of their stores, and the runtime's socket.
fn facts(
    request: &Request,
    config: &Config,
    scan: &Scan,
    editors: &Editors,
) -> Result<(ImageFacts, Vec<Way>, Option<String>), Error> {
    let selection = Selection::Gc { only: vec![Only::Images], policy: PolicyKind::Exact, compare: false };
    let gc_request = GcRequest { request, config, selection, dry_run: true, while_runtime_runs: false };
    let mut deleter = Deleter::for_reading(&gc_request, scan)?;
    deleter.check(request, &scan.inventory, editors)?;
    let endpoint = deleter.cri.as_ref().map(|cri| cri.client().endpoint().to_string());
    let mut remover = deleter.remover(editors);
    let facts = ImageFacts::of_remover(scan, &request.stores()?, &mut remover)?;
    Ok((facts, remover.ways(&scan.inventory), endpoint))
}

/// Adds to the inventory of a scan the images that rules keep, and the stores and images that are out of reach. Returns
/// the error of a run that cannot read the rules' files.
pub(crate) fn mark(
    request: &Request,
    config: &Config,
    scanned: &mut ScanResult,
    closed_stores: Vec<StoreIx>,
    out_of_reach: BTreeMap<ImageIx, String>,
) -> Option<Error> {
    let (protected, unreadable) = policy_context::protected(request, config, scanned);
    let inventory = &mut scanned.scan.inventory;
    inventory.protected = protected;
    inventory.closed_stores = closed_stores;
    inventory.out_of_reach = out_of_reach;
    unreadable
}

/// Returns the stores on a disk of another node that belong to other users than root, with the reason as a clause. Root
/// does not edit them on that node either.
fn of_other_users(scan: &Scan) -> BTreeMap<StoreIx, String> {
    let stores = scan.inventory.stores.iter().enumerate();
    let closed = stores.filter(|(_, store)| store.kind.facts().is_editable).filter_map(|(ix, _)| {
        let OwnersStore { graphroot, user } = owners_store(scan, ix.into());
        Some((ix.into(), format!("{} belongs to {}", graphroot.display(), user?)))
    });
    closed.collect()
}

/// Facts on the disk alone: images in stores that only their users, podman or Docker can edit are out of reach in any
/// case.
fn of_users(inventory: &Inventory, editors: &Editors) -> Vec<Facts> {
    let images = inventory.images.iter().map(|image| {
        let store = &inventory[image.store];
        let out_of_tool = inventory.obstacle_of_store(image.store);
        let out_of_reach = out_of_tool.or_else(|| editors.stays_closed(store));
        Facts { out_of_reach, ..Facts::default() }
    });
    images.collect()
}

pub(crate) fn closed_stores(inventory: &Inventory, editors: &Editors) -> Vec<StoreIx> {
    let stores = inventory.stores.iter().enumerate();
    let closed = stores.filter(|(_, store)| store.kind.facts().is_editable && editors.store(store).is_err());
    closed.map(|(store_ix, _)| store_ix.into()).collect()
}

/// Returns the stores whose runtime should answer, and does not.
pub(crate) fn silent_stores(ways: &[Way]) -> Vec<StoreIx> {
    let silent = ways.iter().enumerate().filter(|(_, way)| matches!(way, Way::Silent(_)));
    silent.map(|(store_ix, _)| store_ix.into()).collect()
}
