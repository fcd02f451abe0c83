//! Preparations for changing stores directly: the checks that no owner is running and all processes are visible, the
//! deletions that killed runs began, the leaks that make room on a full disk, and the editors of a scan's stores.

use crate::config::Config;
use crate::editor::{self, Deleted};
use crate::execute::editors::Editors;
use crate::execute::owner::{OwnerPresence, Owners};
use crate::execute::way::Way;
use crate::history::pins::Pins;
use crate::history::runs::DeletionRow;
use crate::model::deletion::plan::{Phase, Problem};
use crate::model::{Inventory, StoreIx, is_of_docker};
use crate::policy::leaks::{self, LeakPlan, LeakRequest};
use crate::services::database;
use crate::services::error::Error;
use crate::services::gc_request::{GcRequest, Only, Selection};
use crate::services::request::Request;
use crate::services::scan::ScanResult;
use crate::services::state::pins_now;
use crate::stores::Scan;
use crate::sys::namespaces::{self, HIDDEN_PROCESSES, SHOW_PROCESSES};

fn sees_all(request: &Request) -> bool {
    request.trust_pid_namespace || namespaces::sees_all_processes()
}

/// Returns the reason for which no store can be edited: a process that uses one may be invisible.
pub(crate) fn obstacle(request: &Request) -> Option<&'static str> {
    (!sees_all(request)).then_some(HIDDEN_PROCESSES)
}

/// Refuses to change stores if a process that uses one may be invisible.
pub(crate) fn check_namespace(request: &Request) -> Result<(), Error> {
    if sees_all(request) {
        return Ok(());
    }
    Err(Error::nothing_deleted(HIDDEN_PROCESSES).hint(SHOW_PROCESSES))
}

/// Returns a refusal if each store with images belongs to a daemon that alone deletes there: Docker's own store. Without
/// any image that can be read, each store has to.
pub(crate) fn only_by_tools(inventory: &Inventory) -> Option<Error> {
    let of_images = inventory.images.iter().map(|image| inventory[image.store].kind);
    let all = inventory.stores.iter().filter(|_| inventory.images.is_empty()).map(|store| store.kind);
    let mut kinds = of_images.chain(all).peekable();
    let first = *kinds.peek()?;
    let tool = first.facts().tool.filter(|_| kinds.all(|kind| kind == first))?;
    let message = format!("layersweep deletes nothing in {}'s own store", first.runtime());
    if let Some(why) = inventory.out_of_tool.values().next() {
        return Some(Error::nothing_deleted(format!("{message}: {why}")));
    }
    Some(Error::nothing_deleted(message).hint(format!(
        "`{tool} rmi NAME` deletes an image, `{tool} rm NAME` a stopped container, `{tool} builder prune` build cache"
    )))
}

/// Refuses while an owner is running, or if no store can be edited.
pub(crate) fn check(owners: &Owners, inventory: &Inventory, editors: &Editors) -> Result<(), Error> {
    if let Some(refusal) = only_by_tools(inventory) {
        return Err(refusal);
    }
    if editors.is_empty() {
        let why = inventory.stores.first().map(|store| {
            let why = editors.store(store).err().unwrap_or_default();
            format!("{}: {why}", store.root.display())
        });
        let error = Error::nothing_deleted(why.unwrap_or_default());
        return Err(error.hint(other_way(inventory, editors.need_their_user())));
    }
    let absent = owners.absent(inventory, &|store_ix| {
        owners.spares(inventory, store_ix).is_none() && editors.store(&inventory[store_ix]).is_ok()
    });
    absent.map_err(|presence| Error::nothing_deleted(&presence).hint(hint(&presence)))
}

fn other_way(inventory: &Inventory, needs_its_user: bool) -> &'static str {
    let images = &inventory.images;
    let is_dockers_alone =
        !images.is_empty() && images.iter().all(|image| image.id.namespace().is_some_and(is_of_docker));
    match inventory.stores.first().map(|store| store.kind.facts().is_editable) {
        _ if needs_its_user => "run this command as the user whose store it is, behind `podman unshare`",
        Some(false) if is_dockers_alone => {
            "only Docker uses this store: delete images with `docker image rm`"
        }
        Some(false) => {
            "use --via cri: containerd can delete on a full ext4 or XFS; where it cannot, free 1 MiB by hand first \
             (a log, the journal)"
        }
        _ => "use --via cri if it is CRI-O's store, else the tool whose store it is",
    }
}

fn hint(presence: &OwnerPresence) -> &'static str {
    match presence {
        OwnerPresence::Answers { .. } => {
            "use --via cri, or stop the runtime; --while-runtime-runs deletes anyway"
        }
        OwnerPresence::Unsure(_) => {
            "stop the runtime, or add --while-runtime-runs if it does not own the store"
        }
    }
}

/// Leaks that are deleted before any image: all safe ones if the request or the configuration says so; otherwise, on a
/// full disk, as many as are needed to begin.
///
/// # Errors
/// The reason for which no leak may be deleted. It is reported once, and a runtime can still delete images.
pub(crate) fn leaks(
    gc_request: &GcRequest<'_>,
    ways: &[Way],
    config: &Config,
    scanned: &ScanResult,
    editors: &Editors,
) -> Result<Option<LeakPlan>, String> {
    let all = match &gc_request.selection {
        Selection::Gc { only, .. } if only.is_empty() => config.leaks.delete,
        Selection::Gc { only, .. } => only.contains(&Only::Leaks),
        Selection::Rm { .. } => false,
    };
    let inventory = &scanned.scan.inventory;
    let full = if all {
        Vec::new()
    } else {
        editors.full_filesystems(inventory, |store_ix, _| ways[store_ix.get()] == Way::Direct)
    };
    if !all && full.is_empty() {
        return Ok(None);
    }
    let leaks = LeakRequest { min_age: config.leaks.min_age, ..LeakRequest::default() };
    let plan = plan_leaks(&scanned.scan, &leaks, editors);
    let plan = if all { plan } else { plan.to_make_room(inventory, &full) };
    if plan.order.is_empty() {
        return Ok(None);
    }
    if sees_all(gc_request.request) {
        Ok(Some(plan))
    } else {
        Err(format!("no leak was deleted: {HIDDEN_PROCESSES} (hostPID: true, or trust_pid_namespace = true)"))
    }
}

pub(crate) fn editors(request: &Request, scan: &Scan) -> Editors {
    Editors::of(scan, &database::state_directory(request).dir, request.trust_pid_namespace)
}

pub(crate) fn plan_leaks(scan: &Scan, leaks: &LeakRequest, editors: &Editors) -> LeakPlan {
    leaks::plan(&scan.inventory, &scan.refs, leaks, scan.taken_at, &|store: StoreIx| {
        editors.store(&scan.inventory[store]).err().map(str::to_owned)
    })
}

fn objects(done: &Deleted) -> usize {
    let listed = done.images.len() + done.layers.len() + done.orphans.len();
    // Temporary files and repaired links are not listed: they count as one object.
    listed.max(usize::from(done.has_changed || done.removed > 0))
}

#[derive(Debug, Default)]
pub(crate) struct Resumed {
    /// Number of deleted or repaired images, layers, containers and temporary files.
    pub(crate) objects: usize,
    /// Deletions that could not be finished.
    pub(crate) problems: Vec<Problem>,
}

/// Finishes the deletions of killed runs, by whatever way images are deleted now. Reads the keep-list again.
pub(crate) fn finish_killed_runs(request: &Request, editors: &Editors, begun: &[DeletionRow]) -> Resumed {
    if check_namespace(request).is_err() {
        if editors.are_unfinished(begun) {
            tracing::warn!(
                "not all processes are visible, so an interrupted run is not finished now (hostPID: true)"
            );
        }
        return Resumed::default();
    }
    // A person may have pinned an image before answering.
    let Some(pins) = pins_now(request) else {
        tracing::warn!("the keep-list cannot be read, so an interrupted run is not finished now");
        return Resumed::default();
    };
    resume(editors, begun, &pins)
}

/// Finishes the deletions of killed runs. Keeps images that are pinned by now.
pub(crate) fn resume(editors: &Editors, begun: &[DeletionRow], pins: &Pins) -> Resumed {
    let mut resumed = Resumed::default();
    let results =
        editors.resume(begun, &|id, names: &[String], digests| !pins.of(names, digests, id).is_empty());
    for (store, result) in results {
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
    use crate::model::StoreKind;
    use crate::policy::scenario::Scenario;

    #[test]
    fn store_of_docker_alone_needs_docker() {
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
