//! `doctor`: checks the node without changing it.
//!
//! The node is read once (`node::Node`). Each row of `CHECKS` then checks one aspect of it.

mod check;
mod configuration;
mod containers;
mod crio;
mod database;
mod fullness;
mod gc;
mod kubelet;
mod node;
mod runs;
mod runtime;
mod state_directory;
mod static_pods;
mod stores;
pub mod suggest;
mod thresholds;
mod timers;

use crate::config::{Config, ConfigProblem};
use crate::services::error::Error;
use crate::services::request::Request;

pub use check::{Check, Status};
use node::Node;

type CheckRow = (&'static str, fn(&Node<'_>) -> Vec<Check>);

/// All checks, in the order of the output. `docs/doctor.md` describes each of them.
const CHECKS: [CheckRow; 35] = [
    ("configuration", configuration::files),
    ("patterns", configuration::patterns),
    ("references-file", configuration::references),
    ("min-free", configuration::free_space),
    ("permissions", configuration::permissions),
    ("store", stores::stores),
    ("store-finding", stores::findings),
    ("damaged-images", stores::damaged_images),
    ("not-repullable", stores::not_repullable),
    ("socket", |node| node.runtime.sockets.clone()),
    ("runtime", |node| node.runtime.chosen.clone()),
    ("gc", gc::refusals),
    ("kubelet-files", kubelet::files),
    ("kubelet-settings", |node| node.settings(thresholds::validity)),
    ("kubelet-eviction", |node| node.settings(thresholds::dropped)),
    ("image-age", |node| node.settings(thresholds::age)),
    ("kubelet-order", |node| node.settings(thresholds::order)),
    ("our-thresholds", |node| node.settings(thresholds::our_bytes)),
    ("our-inodes", |node| node.settings(thresholds::our_inodes)),
    ("container-gc", |node| node.settings(containers::limits)),
    ("disk-usage", fullness::filesystems),
    ("crio-start", crio::start),
    ("static-pods", static_pods::manifests),
    ("state-directory", state_directory::directory),
    ("database", database::file),
    ("unsaved", database::unsaved),
    ("run", runs::under_way),
    ("last-scan", runs::last_scan),
    ("last-runs", runs::last_gc),
    ("clock", state_directory::clock),
    ("reserve", state_directory::reserve_files),
    ("scan-timer", timers::scan),
    ("gc-timer", timers::gc),
    ("store-timer", gc::stores),
    ("hold", timers::holds),
];

#[derive(Debug)]
pub struct Findings {
    pub checks: Vec<Check>,
    pub complete: bool,
}

/// Examines the node. `problems` are the errors in the configuration.
///
/// # Errors
/// When the request itself cannot be used.
pub fn doctor(request: &Request, config: &Config, problems: &[ConfigProblem]) -> Result<Findings, Error> {
    let mut node = Node::read(request, config, problems)?;
    node.runtime = runtime::ask(&node);
    node.settings = kubelet::settings(&node);
    let mut checks = Vec::new();
    for (name, run) in CHECKS {
        checks.extend(run(&node).into_iter().map(|check| Check { name, ..check }));
    }
    Ok(Findings { complete: checks.iter().all(|check| !check.is_unread), checks })
}
