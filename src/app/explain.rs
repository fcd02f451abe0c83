//! `explain`: everything about one image, layer, container, leak or path.

use std::path::Path;

use super::containers::Containers;
use super::error::Error;
use super::observer::{Audience, Observer};
use super::path_usage::{self, Owned};
use super::policy_context;
use super::reach::Reach;
use super::request::Request;
use super::runtime;
use super::scan::{self, Also, ScanResult};
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

/// What is known of one thing.
#[derive(Debug)]
pub struct Explanation {
    /// The scan that it was found in.
    pub result: ScanResult,
    /// What it is; none where a path is no object, but a store or something that is in no store.
    pub subject: Option<Subject>,
    /// Of a path: who holds what is at and below it.
    pub owned: Option<Owned>,
    /// More about an image.
    pub image: Option<ImageExplanation>,
    /// Of a container: what a collection would do, where a runtime could be asked.
    pub containers: Option<Plan>,
}

/// More about an image.
#[derive(Debug)]
pub struct ImageExplanation {
    /// Its lives, the present one among them if it is recorded.
    pub lives: Vec<Life>,
    /// What every rule says of it.
    pub rulings: Vec<Ruling>,
    /// What a collection would do.
    pub plan: Plan,
    /// Command that deletes images here.
    pub reach: Reach,
}

/// Explains what `reference` means.
///
/// # Errors
/// When it means nothing or several things, a path does not exist, or the stores or the database cannot be read.
pub fn explain(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    reference: &str,
) -> Result<Explanation, Error> {
    let (mut result, subject, owned) = match lookup::is_path(reference) {
        false => {
            let result = scan::scan_with(request, observer, Purpose::Look, false, Also::labels(config))?;
            let subject = lookup::look_up(&result.scan, reference)?;
            (result, Some(subject), None)
        }
        true => {
            let also = Also { trees: true, ..Also::labels(config) };
            let mut result = scan::scan_with(request, observer, Purpose::Look, false, also)?;
            let located = lookup::locate(&result.scan, Path::new(reference))?;
            let subject = lookup::at_path(&result.scan, &located);
            let (owned, findings) = path_usage::owners(request, observer, config, &result.scan, &located);
            observer.findings(Audience::Usual, &findings);
            result.scan.inventory.findings.extend(findings);
            (result, subject, Some(owned))
        }
    };
    let image = match subject {
        Some(Subject::Image(at)) => {
            let lives = result.state.lives(&result.scan, at)?;
            let reach = Reach::find(request, config, &mut result);
            let (rulings, plan) =
                policy_context::judge(request, observer, config, (&result, &reach.facts), at)?;
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

/// What a collection of containers would do now, if there is a runtime to ask: what a container
/// is doing, and since when it is dead, only that knows.
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
