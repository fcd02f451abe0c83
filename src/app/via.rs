//! Who deletes. Where `auto` leaves it open: the runtime that answers; we ourselves where no
//! runtime owns the stores; nobody where the owning runtime should answer and does not.

use std::borrow::Cow;
use std::sync::Arc;

use super::database;
use super::error::Error;
use super::gc_request::GcRequest;
use super::request::Request;
use super::reserve;
use super::runtime;
use crate::config::Via;
use crate::cri::discover::Answers;
use crate::cri::{Client, CriProblem, Options};
use crate::disk::Progress;
use crate::execute::Remover;
use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::model::{Inventory, Owner, StoreIx, StoreKind};
use crate::node::kubelet::Kubelet;
use crate::stores::containers_storage::config::crio_start;
use crate::stores::{self, Measure};
use crate::sys::stop::flag;
use crate::sys::sysroot::Sysroot;

/// Who deletes: chosen once a run, and asked by everything that plans and deletes.
#[derive(Debug)]
pub(super) enum Deleter {
    /// The runtime.
    Cri(Box<CriRemover>),
    /// We do, in the stores themselves, while none of their owners runs.
    Direct(Owners),
}

impl Deleter {
    /// By the configuration.
    ///
    /// # Errors
    /// When the runtime that should delete does not answer.
    pub(super) fn choose(asked: &GcRequest<'_>) -> Result<Self, Error> {
        Self::with(asked, &Options::default(), None)
    }

    /// As [`Self::choose`], for a command that only reads: it waits less. `inventory` is what it has read.
    ///
    /// # Errors
    /// As [`Self::choose`].
    pub(super) fn for_reading(asked: &GcRequest<'_>, inventory: &Inventory) -> Result<Self, Error> {
        Self::with(asked, &Options::default().probing(), Some(inventory))
    }

    fn with(asked: &GcRequest<'_>, options: &Options, inventory: Option<&Inventory>) -> Result<Self, Error> {
        let GcRequest { request, config, while_runtime_runs, .. } = asked;
        // A signal does not wait for a listing that may never come.
        let options = Options { cancel: Some(Arc::clone(flag())), ..options.clone() };
        let client = match config.via {
            Via::Auto => choose(request, &options, inventory)
                .map_err(|error| without_direct(error, request, inventory))?,
            Via::Cri => Some(runtime::connect(request, &options)?),
            Via::Direct => None,
        };
        let Some(client) = client else {
            let owners = Owners::new(runtime::named(request)?, !request.has_stores(), &options);
            return Ok(Self::Direct(if *while_runtime_runs { owners.ignored() } else { owners }));
        };
        let remover = CriRemover::new(client)?;
        let reserve = reserve::of_runtime(&database::state_directory(request), remover.runtime_store());
        Ok(Self::Cri(Box::new(remover.with_reserve_file(reserve))))
    }

    pub(super) fn via(&self) -> Via {
        match self {
            Self::Cri(_) => Via::Cri,
            Self::Direct(_) => Via::Direct,
        }
    }

    /// The remover of images, which `direct` holds where it is made for this.
    pub(super) fn remover<'r, 'e: 'r>(
        &'e mut self,
        editors: &'e Editors,
        direct: &'r mut Option<DirectRemover<'e>>,
    ) -> &'r mut dyn Remover {
        match self {
            Self::Cri(remover) => remover.as_mut(),
            Self::Direct(owners) => direct.insert(DirectRemover::new(editors, owners)),
        }
    }
}

/// The node's runtimes, as far as they are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runtime {
    Answers,
    /// One should answer: its socket or its configuration is there, or a kubelet's.
    Silent,
    /// Nothing says that there is one.
    Absent,
}

/// By the kind of each store, and whether a runtime owns it. `None`: refused.
fn decide(runtime: Runtime, stores: &[(StoreKind, bool)]) -> Option<Via> {
    let is_owned = stores.iter().any(|(_, owned)| *owned);
    let can_be_edited = stores.iter().any(|(kind, _)| *kind == StoreKind::ContainersStorage);
    match runtime {
        Runtime::Answers => Some(Via::Cri),
        Runtime::Absent if can_be_edited && !is_owned => Some(Via::Direct),
        Runtime::Silent | Runtime::Absent => None,
    }
}

/// The runtime to delete through; `None`: in the stores themselves.
///
/// # Errors
/// The owner of a store should answer and does not, or nothing tells which of several runtimes it is.
fn choose(
    request: &Request,
    options: &Options,
    inventory: Option<&Inventory>,
) -> Result<Option<Client>, Error> {
    if request.cri_endpoint.is_some() {
        return runtime::connect(request, options).map(Some);
    }
    let answers = runtime::ask(options);
    // A runtime deletes from named stores only if its socket is named as well.
    let is_named = request.has_stores();
    let runtime = match answers.runtimes.is_empty() {
        false if !is_named => Runtime::Answers,
        _ if is_expected(&answers, &Kubelet::read(&Sysroot::live()), &Sysroot::live()) => Runtime::Silent,
        _ => Runtime::Absent,
    };
    let stores = match runtime {
        Runtime::Absent => {
            let inventory = match inventory {
                Some(inventory) => Cow::Borrowed(inventory),
                None => Cow::Owned(records(request)?),
            };
            if is_named && Owners::new(None, false, options).absent(&inventory).is_err() {
                return Err(runtime::unnamed());
            }
            owned(&inventory, &answers)
        }
        Runtime::Answers | Runtime::Silent => Vec::new(),
    };
    match decide(runtime, &stores) {
        Some(Via::Direct) => Ok(None),
        None if is_named => Err(runtime::unnamed()),
        _ => runtime::choose(answers).map(Some),
    }
}

/// No remedy that does not work: on a node without a store of containers/storage nothing can be edited.
fn without_direct(error: Error, request: &Request, inventory: Option<&Inventory>) -> Error {
    let can_be_edited = |inventory: &Inventory| {
        inventory.stores.iter().any(|store| store.kind == StoreKind::ContainersStorage)
    };
    let is_direct_possible = match inventory {
        Some(inventory) => can_be_edited(inventory),
        None => records(request).map_or(true, |inventory| can_be_edited(&inventory)),
    };
    if is_direct_possible { error } else { runtime::without_direct(error) }
}

/// What the stores' records say now.
fn records(request: &Request) -> Result<Inventory, Error> {
    let asked = stores::ScanRequest { measure: Measure::RecordsAndMounts, ..request.stores()? };
    Ok(stores::run(&asked, &Progress::default())?.inventory)
}

/// Whether a runtime should answer on this node.
pub(super) fn is_expected(answers: &Answers, kubelet: &Kubelet, sysroot: &Sysroot) -> bool {
    // Docker's containerd has the usual socket, too, and no CRI behind it.
    let is_other = |problem: &CriProblem| matches!(problem, CriProblem::NoCri(_) | CriProblem::NotGrpc(_));
    let mut silent = answers.silent.iter();
    silent.any(|(candidate, error)| candidate.configured || !is_other(&error.problem))
        || kubelet.is_here()
        || crio_start(sysroot).is_some()
}

/// The kind of each store, and whether a runtime owns it.
fn owned(inventory: &Inventory, answers: &Answers) -> Vec<(StoreKind, bool)> {
    let without_cri = answers.silent.iter().any(|(_, error)| matches!(error.problem, CriProblem::NoCri(_)));
    let is_of_crio = |at: StoreIx| {
        inventory.containers.iter().any(|container| container.store == at && container.owner == Owner::CriO)
    };
    let stores = inventory.stores.iter().enumerate();
    let owned = stores.map(|(at, store)| match store.kind {
        StoreKind::Containerd => (store.kind, !without_cri),
        StoreKind::ContainersStorage => (store.kind, is_of_crio(at.into())),
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_removes_where_auto_leaves_it_open() {
        use Runtime::{Absent, Answers, Silent};
        use StoreKind::{Containerd, ContainersStorage as Podman};
        let (owned, free) = (true, false);
        let (cri, direct, refused) = (Some(Via::Cri), Some(Via::Direct), None);
        for (runtime, stores, expected) in [
            // Podman alone, with the stores of its users.
            (Absent, &[(Podman, free)][..], direct),
            (Absent, &[(Podman, free), (Podman, free)], direct),
            // Docker's containerd beside it has no CRI, so it owns no store that a runtime should answer for.
            (Absent, &[(Podman, free), (Containerd, free)], direct),
            // CRI-O's containers are in it, though CRI-O has left nothing else.
            (Absent, &[(Podman, owned)], refused),
            (Absent, &[(Podman, free), (Podman, owned)], refused),
            // containerd owns its store; and nobody but containerd deletes there.
            (Absent, &[(Podman, free), (Containerd, owned)], refused),
            (Absent, &[(Containerd, owned)], refused),
            (Absent, &[(Containerd, free)], refused),
            (Absent, &[], refused),
            // CRI-O or containerd is stopped, or starting.
            (Silent, &[(Podman, free)], refused),
            (Silent, &[(Podman, owned)], refused),
            (Silent, &[(Containerd, owned)], refused),
            (Answers, &[(Podman, owned)], cri),
            (Answers, &[(Containerd, owned)], cri),
            // One run has one remover: podman's images stay, unless its store is named.
            (Answers, &[(Podman, free), (Containerd, owned)], cri),
        ] {
            assert_eq!(decide(runtime, stores), expected, "{runtime:?} {stores:?}");
        }
    }
}
