//! The proof right before a deletion.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::cri::RuntimeContainerState;
use crate::disk::Progress;
use crate::execute::containers::look::Look;
use crate::execute::containers::{Collector, Doomed, Kind, files, plan};
use crate::execute::hands::Blind;
use crate::execute::runtime_match::RuntimeStores;
use crate::model::{Container, ContainerState, Inventory, StoreKind};
use crate::policy::containers::Decides;
use crate::policy::containers::Reason;
use crate::policy::containers::Verdicts;
use crate::stores::{self, Request, Weigh};
use crate::sys::cgroups;

/// What a fresh look says.
pub(super) enum Found {
    /// It is not there any more.
    Gone,
    /// A rule keeps it by now.
    Kept { rule: &'static str, detail: String },
    /// It may go.
    MayGo,
}

fn kept(rule: &'static str, detail: impl Into<String>) -> Found {
    Found::Kept { rule, detail: detail.into() }
}

/// Looks at runtime, kubelet, processes and disk again.
pub(super) fn of(collector: &Collector<'_>, doomed: &Doomed, look: &mut Look<'_>) -> Result<Found, Blind> {
    match doomed.kind {
        Kind::Container => container(collector, doomed, look),
        Kind::Sandbox => sandbox(collector, doomed, look),
        Kind::Log => files::prove(collector, doomed, look),
    }
}

fn container(collector: &Collector<'_>, doomed: &Doomed, look: &mut Look<'_>) -> Result<Found, Blind> {
    let seen = look.look()?;
    if !seen.containers.iter().any(|one| one.id == doomed.id) {
        return Ok(Found::Gone);
    }
    let verdicts = plan::containers(collector, &seen);
    // The kubelet's floor goes below its own limit: what is asked again is whether it is dead.
    let by_limit = matches!(doomed.reason, Reason::PerUnit | Reason::Total);
    if !(by_limit && collector.policy.decides == Decides::Kubelet)
        && let Some(found) = spared(&verdicts, &doomed.id)
    {
        return Ok(found);
    }
    // The last question before the deed, and the one that counts: a runtime removes by force.
    let Some(details) = look.fresh(&doomed.id)? else { return Ok(Found::Gone) };
    match details.state {
        RuntimeContainerState::Exited => {}
        RuntimeContainerState::Running => return Ok(kept("running", "it is running by now")),
        RuntimeContainerState::Created => {
            let was = seen.containers.iter().find(|one| one.id == doomed.id).map(|one| one.state);
            if was != Some(RuntimeContainerState::Created) {
                return Ok(kept("running", "the runtime contradicts itself about its state"));
            }
        }
        RuntimeContainerState::Unknown if doomed.stop_first => {}
        RuntimeContainerState::Unknown => {
            return Ok(kept("state-unknown", "the runtime does not know its state by now"));
        }
    }
    if let Some(found) = process_in(&doomed.id) {
        return Ok(found);
    }
    let inventory = disk(collector)?;
    match on_disk(&inventory, collector, &doomed.id)? {
        Some((one, StoreKind::Containerd)) if one.state == ContainerState::Running => {
            Ok(kept("running", "the runtime says that it has ended, but its root filesystem is in use"))
        }
        _ => Ok(Found::MayGo),
    }
}

fn sandbox(collector: &Collector<'_>, doomed: &Doomed, look: &mut Look<'_>) -> Result<Found, Blind> {
    let seen = look.look()?;
    if !seen.sandboxes.iter().any(|one| one.id == doomed.id) {
        return Ok(Found::Gone);
    }
    if let Some(found) = spared(&plan::sandboxes(collector, &seen, &BTreeSet::new()), &doomed.id) {
        return Ok(found);
    }
    if let Some(found) = process_in(&doomed.id) {
        return Ok(found);
    }
    // Its removal takes along, by force, every container in it. A listing that left one out shows
    // nothing of it; the records on the disk do.
    let inventory = disk(collector)?;
    let own = stores(&inventory, collector)?.own;
    let inside = inventory.containers.iter().find(|one| {
        one.store == own && one.id != doomed.id && one.sandbox_id.as_deref() == Some(doomed.id.as_str())
    });
    match inside {
        Some(one) => {
            Ok(kept("has-containers", format!("its container {} is on the disk, but not listed", one.name)))
        }
        None => Ok(Found::MayGo),
    }
}

fn spared(verdicts: &Verdicts, id: &str) -> Option<Found> {
    if verdicts.takes(id).is_some() {
        return None;
    }
    let stays = verdicts.kept.iter().find(|kept| kept.id == id);
    Some(stays.map_or(Found::Gone, |stays| kept(stays.rule, stays.detail.clone())))
}

fn process_in(id: &str) -> Option<Found> {
    match cgroups::process_in(id) {
        Ok(None) => None,
        Ok(Some(pid)) => {
            Some(kept("running", format!("the runtime says that it has ended, but process {pid} is in it")))
        }
        Err(error) => Some(kept("running", format!("whether anything runs in it cannot be told: {error}"))),
    }
}

/// The records on the disk, now.
pub(super) fn disk(collector: &Collector<'_>) -> Result<Inventory, Blind> {
    let request = Request { weigh: Weigh::Nothing, now: Timestamp::now(), ..collector.request.clone() };
    let survey = stores::run(&request, &Progress::default()).map_err(|error| Blind::disk(&error))?;
    Ok(survey.inventory)
}

pub(super) fn stores(inventory: &Inventory, collector: &Collector<'_>) -> Result<RuntimeStores, Blind> {
    RuntimeStores::find(&collector.place, inventory).ok_or_else(|| Blind {
        what: format!(
            "the store of {} is {}, which was not read",
            collector.client.endpoint(),
            collector.place.root.display()
        ),
        stale: false,
    })
}

/// A container or sandbox of the runtime's own store.
pub(super) fn on_disk<'i>(
    inventory: &'i Inventory,
    collector: &Collector<'_>,
    id: &str,
) -> Result<Option<(&'i Container, StoreKind)>, Blind> {
    let own = stores(inventory, collector)?.own;
    let kind = inventory.stores[own.get()].kind;
    let found = inventory.containers.iter().find(|one| one.store == own && one.id == id);
    Ok(found.map(|one| (one, kind)))
}
