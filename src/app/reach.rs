//! What `gc` can delete here now, and how: `explain`, `report`, `usage` and `images` ask the remover that a run would
//! delete with, so that they promise what the run does.
//!
//! If no run could begin (its runtime does not answer), they say so, and use the facts of the disk alone.

use super::error::Error;
use super::gc_request::{GcRequest, Only, Selection};
use super::observer::Observer;
use super::policy_context;
use super::request::Request;
use super::runtime;
use super::scan::{self, ScanOptions, ScanResult};
use super::state::Purpose;
use super::store_editing;
use super::via::Deleter;
use crate::config::{Config, Via};
use crate::execute::ImageFacts;
use crate::execute::editors::Editors;
use crate::model::{Inventory, StoreIx, StoreKind};
use crate::policy::{Facts, PolicyKind};

const DIRECT: &str = "layersweep gc --via direct";

/// The way in which images of a scan are deleted.
#[derive(Debug)]
pub struct Reach {
    /// The command that deletes images here.
    pub command: &'static str,
    /// Why a run could not begin now.
    pub refusal: Option<Error>,
    /// The remover's facts about the images; if no run could begin, those of the disk.
    pub(super) facts: ImageFacts,
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
        scan::scan_with(request, observer, Purpose::Look, false, ScanOptions::with_labels(config))?;
    let reach = Reach::find(request, config, &mut scanned);
    Ok((scanned, reach))
}

impl Reach {
    /// Asks what would delete images of a scan, and notes in its inventory what is out of reach, and what rules
    /// keep. Nothing is deleted
    /// from a disk that is mounted elsewhere: then it is the node's runtime, once that runs.
    pub(super) fn find(request: &Request, config: &Config, scanned: &mut ScanResult) -> Self {
        scanned.scan.inventory.protected = policy_context::protected(request, config, scanned);
        if scanned.scan.sysroot.is_foreign() {
            let facts = ImageFacts::default();
            return Self { command: "layersweep gc", refusal: None, facts };
        }
        let editors = store_editing::editors(request, &scanned.scan);
        let reach = Self::ask(request, config, scanned, &editors);
        let inventory = &mut scanned.scan.inventory;
        inventory.closed_stores = closed_stores(inventory, &editors);
        inventory.out_of_reach = reach.facts.out_of_reach();
        reach
    }

    fn ask(request: &Request, config: &Config, scanned: &ScanResult, editors: &Editors) -> Self {
        let is_seen = runtime::is_seen(request, &scanned.scan);
        let through = |via| facts(request, &Config { via, ..config.clone() }, scanned, editors);
        let (found, command) = match through(config.via) {
            // Of a runtime that is not even there: its store can be edited.
            Err(_) if config.via == Via::Auto && !is_seen => (through(Via::Direct), DIRECT),
            found if is_seen => (found, "layersweep gc"),
            found => (found, DIRECT),
        };
        match found {
            Ok(facts) => Self { command, refusal: None, facts },
            Err(error) => {
                let facts = ImageFacts::of(of_users(&scanned.scan.inventory, editors));
                Self { command, refusal: Some(error), facts }
            }
        }
    }

    /// Why nothing can be deleted now, as a clause.
    pub fn refused(&self) -> Option<String> {
        let Error { message, hint, .. } = self.refusal.as_ref()?;
        let message = message.strip_prefix("nothing was deleted: ").unwrap_or(message);
        Some(match hint {
            Some(hint) => format!("{message} ({hint})"),
            None => message.to_owned(),
        })
    }
}

/// The facts about the images that the remover of a run has.
fn facts(
    request: &Request,
    config: &Config,
    scanned: &ScanResult,
    editors: &Editors,
) -> Result<ImageFacts, Error> {
    let selection = Selection::Gc { only: vec![Only::Images], policy: PolicyKind::Exact };
    let asked = GcRequest { request, config, selection, dry_run: true, while_runtime_runs: false };
    let mut deleter = Deleter::for_reading(&asked, &scanned.scan.inventory)?;
    if let Deleter::Direct(owners) = &deleter {
        store_editing::check_namespace(request)?;
        store_editing::check(owners, scanned, editors)?;
    }
    let stores = request.stores()?;
    Ok(ImageFacts::of_remover(&scanned.scan, &stores, deleter.remover(editors, &mut None))?)
}

/// Stores that only their users can edit: true of them whatever deletes.
fn of_users(inventory: &Inventory, editors: &Editors) -> Vec<Facts> {
    let images = inventory.images.iter().map(|image| {
        let store = &inventory[image.store];
        Facts { out_of_reach: editors.needs_its_user(store), ..Facts::default() }
    });
    images.collect()
}

fn closed_stores(inventory: &Inventory, editors: &Editors) -> Vec<StoreIx> {
    let stores = inventory.stores.iter().enumerate();
    let closed = stores
        .filter(|(_, store)| store.kind == StoreKind::ContainersStorage && editors.store(store).is_err());
    closed.map(|(at, _)| at.into()).collect()
}
