//! Foresees whether a run of `gc` would be refused.

use super::check::{Check, Status};
use super::node::Node;
use super::static_pods;
use crate::app::reach::Reach;
use crate::app::store_editing;

/// Returns true if a run is refused because of the configuration, the records or the static pods, which other checks
/// report.
fn is_refused_by_files(node: &Node<'_>) -> bool {
    !node.problems.is_empty()
        || node.database.as_ref().map_or(true, |database| database.unreadable)
        || static_pods::manifests(node).iter().any(|check| check.is_unread)
}

/// Asks, as a run does, the runtime and the editors of the stores; reasons that another check reports are left out.
pub(super) fn refusals(node: &Node<'_>) -> Vec<Check> {
    let Some(scan) = node.scan().filter(|_| !node.is_foreign()) else { return Vec::new() };
    let editors = store_editing::editors(node.request, scan);
    let reach = Reach::ask(node.request, node.config, scan, &editors);
    let is_reported = node.runtime.chosen.iter().any(|check| check.status >= Status::Warning);
    match (reach.refused(), reach.refusal) {
        (Some(_), _) if is_reported => Vec::new(),
        (Some(why), Some(refusal)) => {
            let remedy = refusal.hint.unwrap_or_else(|| "see `layersweep gc --dry-run`".into());
            let why = why.strip_suffix(&format!(" ({remedy})")).unwrap_or(&why);
            vec![Check::warning("", format!("`{}` would be refused now: {why}", reach.command), remedy)]
        }
        _ if is_refused_by_files(node) => Vec::new(),
        _ => vec![Check::ok(
            "",
            format!("no reason was found for which `{}` would be refused now", reach.command),
        )],
    }
}
