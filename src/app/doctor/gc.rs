//! Foresees whether a run of `gc` would be refused.

use super::check::{Check, Status};
use super::node::Node;
use super::{configuration, static_pods};
use crate::services::policy_context;
use crate::services::reach::Reach;
use crate::services::store_editing;

/// Returns true if a run is refused because of the configuration, the records, the static pods or the declared set of
/// images, which other checks report.
fn is_refused_by_files(node: &Node<'_>) -> bool {
    !node.problems.is_empty()
        || node.database.as_ref().map_or(true, |database| database.unreadable)
        || [static_pods::manifests(node), configuration::references(node)]
            .concat()
            .iter()
            .any(|check| check.is_unread)
}

/// Asks, as a run does, the runtime and the editors of the stores; reasons that another check reports are left out.
pub(super) fn refusals(node: &Node<'_>) -> Vec<Check> {
    let Some(scan) = node.scan().filter(|_| !node.is_foreign()) else { return Vec::new() };
    let editors = store_editing::editors(node.request, scan);
    let reach = Reach::ask(node.request, node.config, scan, &editors);
    let is_reported = node.runtime.chosen.iter().any(|check| check.status >= Status::Warning);
    let is_refused_by_files = is_refused_by_files(node);
    // Quadlets and the runtimes' settings have no check of their own.
    let unreadable = policy_context::unknown_protection(node.config, &node.stores);
    let refusal = reach.refusal.as_ref().or(unreadable.as_ref().filter(|_| !is_refused_by_files));
    match refusal {
        Some(_) if is_reported => Vec::new(),
        Some(refusal) => {
            let remedy = refusal.hint.clone().unwrap_or_else(|| "see `layersweep gc --dry-run`".into());
            vec![Check::warning("", format!("gc would be refused now: {}", refusal.reason()), remedy)]
        }
        None if is_refused_by_files => Vec::new(),
        None => vec![Check::ok(
            "",
            format!("no reason was found for which `{}` would be refused now", reach.command()),
        )],
    }
}
