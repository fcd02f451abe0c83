//! `explain`: shows all facts about an image, layer, container, leak or path.

use std::path::Path;

use super::containers::Containers;
use super::error::Error;
use super::observer::{Audience, Observer};
use super::path_usage::{self, Owned};
use super::policy_context;
use super::reach::Reach;
use super::request::Request;
use super::runtime;
use super::scan::{self, ScanOptions, ScanResult};
use super::state::Purpose;
use crate::config::Config;
use crate::cri::Options;
use crate::execute::containers::Scope;
use crate::execute::cri::CriRemover;
use crate::history::known::Life;
use crate::model::Plan;
use crate::model::rules::Ruling;
use crate::stores::Scan;
use crate::stores::lookup::{self, Subject};

/// All that is known of an object or path.
#[derive(Debug)]
pub struct Explanation {
    /// The scan that contains it.
    pub result: ScanResult,
    /// The object; `None` for the path of a store or of a file outside the stores.
    pub subject: Option<Subject>,
    /// Owners of the files at and below a path.
    pub owned: Option<Owned>,
    /// More facts, if the object is an image.
    pub image: Option<ImageExplanation>,
    /// Plan of a collection, if the object is a container and a runtime answered.
    pub containers: Option<Plan>,
}

/// Facts about an image.
#[derive(Debug)]
pub struct ImageExplanation {
    /// Stays of the image in the store, with the present one if that is recorded.
    pub lives: Vec<Life>,
    /// Result of every rule.
    pub rulings: Vec<Ruling>,
    /// Plan of a collection.
    pub plan: Plan,
    /// Command that deletes images on this node.
    pub reach: Reach,
}

/// Explains the object or path that `reference` names.
///
/// # Errors
/// When it names no object or several, a path does not exist, or the stores or the database cannot be read.
pub fn explain(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    reference: &str,
) -> Result<Explanation, Error> {
    let (mut result, subject, owned) = match lookup::is_path(reference) {
        false => {
            let result =
                scan::scan_with(request, observer, Purpose::Look, false, ScanOptions::with_labels(config))?;
            let subject = lookup::look_up(&result.scan, reference)?;
            (result, Some(subject), None)
        }
        true => {
            let options = ScanOptions { trees: true, ..ScanOptions::with_labels(config) };
            let mut result = scan::scan_with(request, observer, Purpose::Look, false, options)?;
            let located = lookup::locate(&result.scan, Path::new(reference))?;
            let subject = lookup::at_path(&result.scan, &located);
            let (owned, findings) = path_usage::owners(request, observer, config, &result.scan, &located);
            observer.findings(Audience::Usual, &findings);
            result.scan.inventory.findings.extend(findings);
            (result, subject, Some(owned))
        }
    };
    let image = match subject {
        Some(Subject::Image(image_ix)) => {
            let lives = result.state.lives(&result.scan, image_ix)?;
            let reach = Reach::find(request, config, &mut result);
            let (rulings, plan) =
                policy_context::judge(request, observer, config, (&result, &reach.facts), image_ix)?;
            Some(ImageExplanation { lives, rulings, plan, reach })
        }
        _ => None,
    };
    let containers = match subject {
        Some(Subject::Container(_)) => containers(request, config, &result.scan),
        _ => None,
    };
    Ok(Explanation { result, subject, owned, image, containers })
}

/// Plans a collection of containers. Returns `None` if no runtime answers: only the runtime knows the state of a
/// container and when it exited.
fn containers(request: &Request, config: &Config, scan: &Scan) -> Option<Plan> {
    if request.sysroot.is_some() {
        return None;
    }
    let client = runtime::connect(request, &Options::default().probing()).ok()?;
    let stores = request.stores().ok()?;
    let scope = Scope { containers: true, logs: false };
    let plan = CriRemover::new(client)
        .and_then(|remover| Containers::of(config, scope).by(&remover, &stores).plan(scan));
    plan.map_err(|error| tracing::info!("whether gc would delete it is unknown: {error}")).ok()
}
