//! Foresees whether a run of `gc` would be refused, and which timer empties each store.

use super::check::{Check, Status};
use super::node::Node;
use super::{configuration, static_pods};
use crate::execute::way::Way;
use crate::model::Store;
use crate::model::text::display::{listed, shell_word};
use crate::node::timers::{self, GC, GC_SERVICE, OF_USER, TimerState};
use crate::services::paths::owners_store;
use crate::services::policy_context;
use crate::services::reach::Reach;
use crate::services::store_editing;
use crate::stores::Scan;
use crate::stores::containers_storage::config::users_stores;
use crate::sys::namespaces::SHOW_PROCESSES;

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
    let Some(reach) = node.reach() else { return Vec::new() };
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
        None if let Some(check) = hidden_processes(node, reach) => vec![check],
        None => vec![Check::ok(
            "",
            format!("no reason was found for which `{}` would be refused now", reach.command()),
        )],
    }
}

/// Reports that a run leaves the images of stores out because a process that uses one may be invisible.
fn hidden_processes(node: &Node<'_>, reach: &Reach) -> Option<Check> {
    let why = store_editing::obstacle(node.request)?;
    let scan = node.scan()?;
    let stores = scan.inventory.stores.iter().enumerate().filter(|(position, store)| {
        let is_closed = matches!(reach.ways.get(*position), Some(Way::Closed(_)));
        is_closed
            && store.kind.facts().is_editable
            && !store.read_only
            && owners_store(scan, (*position).into()).user.is_none()
    });
    let roots: Vec<_> = stores.map(|(_, store)| node.shown(&store.root)).collect();
    let message = format!("gc deletes no image in {}: {why}", listed(&roots));
    (!roots.is_empty()).then(|| Check::warning("", message, SHOW_PROCESSES))
}

/// Names the timer that empties each store with images.
pub(super) fn stores(node: &Node<'_>) -> Vec<Check> {
    let (Some(scan), Some(reach)) = (node.scan(), node.reach()) else { return Vec::new() };
    let inventory = &scan.inventory;
    let stores = inventory.stores.iter().enumerate().filter(|(position, store)| {
        !store.read_only && inventory.images.iter().any(|image| image.store.get() == *position)
    });
    let is_on = node.gc_timer().as_ref().is_ok_and(|timer| timer.state == TimerState::Enabled);
    let has_cron = timers::cron(&node.stores.sysroot, "gc").is_ok_and(|job| job.is_some());
    let caller = node.stores.environment.uid;
    let refused = Way::Closed("a run would be refused now".into());
    let checks = stores.map(|(position, store)| {
        let root = node.shown(&store.root);
        let user = match caller {
            0 => owners_store(scan, position.into()).user,
            uid => Some(scan.sysroot.user_name(uid)),
        };
        match (reach.ways.get(position).unwrap_or(&refused), user) {
            (Way::Direct | Way::Closed(_) | Way::Silent(_), Some(user)) => of_user(node, store, &user),
            (way @ (Way::Cri | Way::Direct), _) if is_on || has_cron => {
                let sealed = sealed_area(node, scan, position).filter(|_| is_on && *way == Way::Direct);
                let how = reach.way(position.into());
                let by = if is_on { GC } else { "the cron job for gc" };
                sealed.unwrap_or_else(|| Check::ok(root, format!("{by} empties it: images are {how}")))
            }
            (Way::Cri | Way::Direct, _) => Check::note(root, "no timer empties it"),
            (Way::Closed(why) | Way::Silent(why), _) => {
                Check::note(root, format!("no timer empties it: {why}"))
            }
        }
    });
    checks.collect()
}

/// Reports the first directory of a store that the sandbox of root's timer makes read-only.
fn sealed_area(node: &Node<'_>, scan: &Scan, position: usize) -> Option<Check> {
    let mut areas = scan.editable[position].as_ref()?.areas();
    let area = areas.find(|area| !timers::gc_may_write(&node.stores.sysroot, area))?;
    let (path, drop_in) = (node.shown(area), format!("/etc/systemd/system/{GC_SERVICE}.d"));
    let message = format!("{GC} cannot empty it: {GC_SERVICE} may not write there");
    let remedy = format!(
        "mkdir -p {drop_in} && printf '[Service]\\nReadWritePaths=%s\\n' {} >>{drop_in}/store.conf && systemctl daemon-reload",
        shell_word(&path)
    );
    Some(Check::warning(path, message, remedy))
}

/// Names the timer of the user who owns a store.
fn of_user(node: &Node<'_>, store: &Store, user: &str) -> Check {
    let (sysroot, root) = (&node.stores.sysroot, node.shown(&store.root));
    let users = users_stores(sysroot, &node.stores.environment);
    let mut configs = users.into_iter().filter(|user| {
        let mut graphroots = user.stores.iter().filter_map(|place| sysroot.resolve(&place.graphroot).ok());
        graphroots.any(|graphroot| graphroot == store.root)
    });
    if !configs.next().is_some_and(|owner| timers::is_on_for(sysroot, &owner.config)) {
        let enable = format!("as {user}: systemctl --user enable --now {OF_USER}");
        return Check::note(root, format!("no timer empties it; `{enable}` turns it on"));
    }
    if !timers::lingers(sysroot, user) {
        let message = format!("{OF_USER} of {user} empties it, but only while {user} is logged in");
        return Check::warning(root, message, format!("loginctl enable-linger {}", shell_word(user)));
    }
    Check::ok(root, format!("{OF_USER} of {user} empties it"))
}
