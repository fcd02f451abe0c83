//! What comes before images when we work on the disk ourselves: the owner must be away, what killed runs began is
//! finished, and on a full disk leaks make room to begin with. And what all need for that: the editors of a scan's
//! stores, and the plan of its leaks.

use super::database;
use super::error::Error;
use super::gc_request::{GcRequest, Only, Selection};
use super::request::Request;
use super::scan::ScanResult;
use super::state::pins_now;
use crate::config::{Config, Via};
use crate::editor::{self, Deleted};
use crate::execute::editors::Editors;
use crate::execute::owner::{Owners, Presence};
use crate::history::pins::Pins;
use crate::history::runs::DeletionRow;
use crate::model::plan::{Phase, Problem};
use crate::model::{Image, Inventory, StoreIx, StoreKind, is_of_docker};
use crate::policy::leaks::{self, LeakPlan, LeakRequest};
use crate::stores::Scan;
use crate::sys::namespaces;

/// Why nothing in a store itself may be deleted where not all processes are seen.
const HIDDEN: &str = "not all processes of this machine are visible, and any of them may use the stores";

/// No process that uses a store can be out of sight.
fn sees_all(request: &Request) -> bool {
    request.trust_pid_namespace || namespaces::sees_all_processes()
}

/// Refuses where a process that uses a store may be out of sight.
pub(super) fn check_namespace(request: &Request) -> Result<(), Error> {
    if sees_all(request) {
        return Ok(());
    }
    Err(Error::refused(format!("nothing was deleted: {HIDDEN}")).hint(
        "run it in the machine's own PID namespace (hostPID: true); on a node that is itself a container, \
               set trust_pid_namespace = true",
    ))
}

/// Refuses while an owner is at work, and where there is nothing to edit.
pub(super) fn check(owners: &Owners, scanned: &ScanResult, editors: &Editors) -> Result<(), Error> {
    let inventory = &scanned.scan.inventory;
    if editors.is_empty() {
        let why = inventory.stores.first().map(|store| {
            let why = editors.store(store).err().unwrap_or_default();
            format!("{}: {why}", store.root.display())
        });
        let error = Error::refused(format!("nothing was deleted: {}", why.unwrap_or_default()));
        return Err(error.hint(other_way(inventory, editors.need_their_user())));
    }
    owners
        .absent(inventory)
        .map_err(|presence| Error::refused(format!("nothing was deleted: {presence}")).hint(hint(&presence)))
}

/// The hint where no store can be edited.
fn other_way(inventory: &Inventory, needs_its_user: bool) -> &'static str {
    let is_dockers = |image: &Image| image.id.namespace().is_some_and(is_of_docker);
    match inventory.stores.first().map(|store| store.kind) {
        _ if needs_its_user => "run as the user whose store it is: podman unshare layersweep gc --via direct",
        Some(StoreKind::Containerd)
            if !inventory.images.is_empty() && inventory.images.iter().all(is_dockers) =>
        {
            "only Docker uses this store: delete images with `docker image rm`"
        }
        Some(StoreKind::Containerd) => {
            "use --via cri: containerd can delete on a full ext4 or XFS; where it cannot, free 1 MiB by hand first \
             (a log, the journal)"
        }
        _ => "use --via cri if it is CRI-O's store, else the tool whose store it is: podman image prune",
    }
}

fn hint(presence: &Presence) -> &'static str {
    match presence {
        Presence::Answers { .. } => "use --via cri, or stop the runtime; --while-runtime-runs deletes anyway",
        Presence::Unsure(_) => "stop the runtime, or add --while-runtime-runs if it does not own the store",
    }
}

/// Leaks that go before any image: all that are safe where the configuration says so; else, on a
/// full disk, as many as it takes to begin.
///
/// # Errors
/// Why none may go: told once, and the images go all the same where a runtime removes them.
pub(super) fn leaks(
    asked: &GcRequest<'_>,
    via: Via,
    config: &Config,
    scanned: &ScanResult,
    editors: &Editors,
) -> Result<Option<LeakPlan>, String> {
    let all = match &asked.selection {
        Selection::Gc { only, .. } if only.is_empty() => config.leaks.delete,
        Selection::Gc { only, .. } => only.contains(&Only::Leaks),
        Selection::Rm { .. } => false,
    };
    let inventory = &scanned.scan.inventory;
    let full =
        if all || via != Via::Direct { Vec::new() } else { editors.full_filesystems(inventory, |_| true) };
    if !all && full.is_empty() {
        return Ok(None);
    }
    let leaks = LeakRequest { min_age: config.leaks.min_age, ..LeakRequest::default() };
    let plan = plan_leaks(&scanned.scan, &leaks, editors);
    let plan = if all { plan } else { plan.to_make_room(inventory, &full) };
    if plan.order.is_empty() {
        return Ok(None);
    }
    match sees_all(asked.request) {
        true => Ok(Some(plan)),
        false => Err(format!("no leak was deleted: {HIDDEN} (hostPID: true, or trust_pid_namespace = true)")),
    }
}

/// The editors of a scan's stores.
pub(super) fn editors(request: &Request, scan: &Scan) -> Editors {
    Editors::of(scan, &database::state_directory(request).dir, request.trust_pid_namespace)
}

/// What is to become of each leak of a scan.
pub(super) fn plan_leaks(scan: &Scan, leaks: &LeakRequest, editors: &Editors) -> LeakPlan {
    let stores = &scan.inventory.stores;
    let closed = |store: StoreIx| editors.store(&stores[store.get()]).err().map(str::to_owned);
    leaks::plan(&scan.inventory, &scan.refs, leaks, scan.taken_at, &closed)
}

/// How many things were deleted or mended.
fn objects(done: &Deleted) -> usize {
    let named = done.images.len() + done.layers.len() + done.orphans.len();
    // Else temporary files, or a layer that got its name back.
    named.max(usize::from(done.has_changed || done.removed > 0))
}

/// What came of the deletions that killed runs had begun.
#[derive(Debug, Default)]
pub(super) struct Resumed {
    /// How many images, layers, containers and temporary files are deleted or mended.
    pub(super) objects: usize,
    /// What could not be finished.
    pub(super) problems: Vec<Problem>,
}

/// Finishes what killed runs began, by whatever way images are deleted now. The keep-list is read again.
pub(super) fn finish_killed_runs(request: &Request, editors: &Editors, begun: &[DeletionRow]) -> Resumed {
    if check_namespace(request).is_err() {
        if editors.are_unfinished(begun) {
            tracing::warn!(
                "not all processes are visible, so an interrupted run is not finished now (hostPID: true)"
            );
        }
        return Resumed::default();
    }
    // A person may have pinned something while being asked.
    let Some(pins) = pins_now(request) else {
        tracing::warn!("the keep-list cannot be read, so an interrupted run is not finished now");
        return Resumed::default();
    };
    resume(editors, begun, &pins)
}

/// Finishes what killed runs began. What is pinned by now stays.
pub(super) fn resume(editors: &Editors, begun: &[DeletionRow], pins: &Pins) -> Resumed {
    let mut resumed = Resumed::default();
    let is_pinned = |id: &str, names: &[String], digests: &[String]| !pins.of(names, digests, id).is_empty();
    for (store, result) in editors.resume(begun, &is_pinned) {
        match result {
            Ok(done) => resumed.objects += objects(&done),
            Err(error) => {
                if let editor::Error::Stopped { done, .. } = &error {
                    resumed.objects += objects(done);
                }
                let root = store.root().to_string_lossy().into_owned();
                resumed.problems.push(Problem::new(Some(root), Phase::Resume, &error));
            }
        }
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::scenario::Scenario;

    #[test]
    fn a_store_of_docker_alone_needs_docker() {
        let mut inventory = Scenario::article().inventory();
        inventory.stores[0].kind = StoreKind::Containerd;
        assert!(other_way(&inventory, false).contains("--via cri"));
        for image in &mut inventory.images {
            image.id = format!("moby/{}", image.id).as_str().into();
        }
        assert!(other_way(&inventory, false).contains("`docker image rm`"));
        inventory.images[0].id = "default/00".into();
        assert!(other_way(&inventory, false).contains("--via cri"));
    }
}
