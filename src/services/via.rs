//! The way of deletion: through the runtime, or directly in the stores. With `auto`, a runtime that answers deletes. If
//! no runtime owns the stores, layersweep deletes directly. If a runtime should answer and does not, the run is
//! refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::config::Via;
use crate::cri::discover::Answers;
use crate::cri::{Client, CriProblem, Options};
use crate::disk::Progress;
use crate::execute::Remover;
use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::model::{Inventory, Owner, StoreIx};
use crate::node::kubelet::Kubelet;
use crate::services::database;
use crate::services::error::Error;
use crate::services::gc_request::GcRequest;
use crate::services::request::Request;
use crate::services::reserve;
use crate::services::runtime::{self, NoRuntime};
use crate::stores::containers_storage::config::crio_start;
use crate::stores::{self, Measure};
use crate::sys::stop::flag;
use crate::sys::sysroot::Sysroot;

/// The way of deletion, chosen once for each run and used for planning and deleting.
#[derive(Debug)]
pub(crate) enum Deleter {
    Cri(Box<CriRemover>),
    /// In the stores themselves, while none of their owners runs (with `--while-runtime-runs` also while one runs).
    Direct(Owners),
}

impl Deleter {
    /// Chooses by the configuration.
    ///
    /// # Errors
    /// When the runtime that should delete does not answer.
    pub(crate) fn choose(gc_request: &GcRequest<'_>) -> Result<Self, Error> {
        Self::with(gc_request, &Options::default(), None)
    }

    /// The same for a command that only reads, with shorter timeouts. `inventory`: the result of its scan.
    ///
    /// # Errors
    /// As [`Self::choose`].
    pub(crate) fn for_reading(gc_request: &GcRequest<'_>, inventory: &Inventory) -> Result<Self, Error> {
        Self::with(gc_request, &Options::default().probing(), Some(inventory))
    }

    fn with(
        gc_request: &GcRequest<'_>,
        options: &Options,
        inventory: Option<&Inventory>,
    ) -> Result<Self, Error> {
        let GcRequest { request, config, while_runtime_runs, .. } = gc_request;
        // A signal cancels a request to a runtime that may never answer.
        let options = Options { cancel: Some(Arc::clone(flag())), ..options.clone() };
        let client = match config.via {
            Via::Auto => choose(request, &options, inventory)?,
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

    pub(crate) fn via(&self) -> Via {
        match self {
            Self::Cri(_) => Via::Cri,
            Self::Direct(_) => Via::Direct,
        }
    }

    pub(crate) fn remover<'r, 'e: 'r>(
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuntimeState {
    Answers,
    /// A runtime should answer: there is its socket, its configuration, or a kubelet.
    Silent,
    /// No runtime is expected to answer: there is no sign of one, or only a socket without CRI, or stores are named and a
    /// runtime answers that need not own them.
    Absent,
}

/// Chooses the way of deletion. `stores`: for each store, true if it can be edited, and true if a runtime owns it.
/// `None`: refused.
fn decide(runtime: RuntimeState, stores: &[(bool, bool)]) -> Option<Via> {
    let is_owned = stores.iter().any(|(_, owned)| *owned);
    let can_be_edited = stores.iter().any(|(is_editable, _)| *is_editable);
    match runtime {
        RuntimeState::Answers => Some(Via::Cri),
        RuntimeState::Absent if can_be_edited && !is_owned => Some(Via::Direct),
        RuntimeState::Silent | RuntimeState::Absent => None,
    }
}

/// The runtime to delete through; `None`: directly in the stores.
///
/// # Errors
/// When the owner of a store should answer and does not, or when several runtimes may be the owner.
fn choose(
    request: &Request,
    options: &Options,
    inventory: Option<&Inventory>,
) -> Result<Option<Client>, Error> {
    if request.cri_endpoint.is_some() {
        let client = runtime::connect(request, options).map(Some);
        return client.map_err(|missing| refusal(missing, request, inventory));
    }
    let answers = runtime::ask(options);
    // A runtime deletes from named stores only if its socket is named as well.
    let is_named = request.has_stores();
    let runtime = match answers.runtimes.is_empty() {
        false if !is_named => RuntimeState::Answers,
        _ if is_expected(&answers, &Kubelet::read(&Sysroot::live()), &Sysroot::live()) => {
            RuntimeState::Silent
        }
        _ => RuntimeState::Absent,
    };
    let stores = match runtime {
        RuntimeState::Absent => {
            let inventory = match inventory {
                Some(inventory) => Cow::Borrowed(inventory),
                None => Cow::Owned(records(request)?),
            };
            if is_named && Owners::new(None, false, options).absent(&inventory).is_err() {
                return Err(refusal(runtime::unnamed(), request, Some(&inventory)));
            }
            owned(&inventory, &answers)
        }
        RuntimeState::Answers | RuntimeState::Silent => Vec::new(),
    };
    match decide(runtime, &stores) {
        Some(Via::Direct) => Ok(None),
        None if is_named => Err(refusal(runtime::unnamed(), request, inventory)),
        _ => runtime::choose(answers).map(Some).map_err(|missing| refusal(missing, request, inventory)),
    }
}

/// Returns the error for a missing runtime. Its hint names the deletion in the stores only on a node with a store that
/// can be edited.
fn refusal(missing: NoRuntime, request: &Request, inventory: Option<&Inventory>) -> Error {
    fn can_be_edited(inventory: &Inventory) -> bool {
        inventory.stores.iter().any(|store| store.kind.facts().is_editable)
    }
    let is_direct_possible = match inventory {
        Some(inventory) => can_be_edited(inventory),
        None => records(request).map_or(true, |inventory| can_be_edited(&inventory)),
    };
    missing.into_error(is_direct_possible)
}

fn records(request: &Request) -> Result<Inventory, Error> {
    let scan_request = stores::ScanRequest { measure: Measure::RecordsAndMounts, ..request.stores()? };
    Ok(stores::run(&scan_request, &Progress::default())?.inventory)
}

pub(crate) fn is_expected(answers: &Answers, kubelet: &Kubelet, sysroot: &Sysroot) -> bool {
    let mut silent = answers.silent.iter();
    silent.any(|(candidate, error)| {
        // Docker's containerd listens on the usual socket, too, but without CRI.
        let is_other = matches!(error.problem, CriProblem::NoCri(_) | CriProblem::NotGrpc(_));
        candidate.configured || !is_other
    }) || kubelet.is_here()
        || crio_start(sysroot).is_some()
}

/// For each store: true if it can be edited, and true if a runtime owns it.
fn owned(inventory: &Inventory, answers: &Answers) -> Vec<(bool, bool)> {
    let without_cri = answers.silent.iter().any(|(_, error)| matches!(error.problem, CriProblem::NoCri(_)));
    let crio_containers = inventory.containers.iter().filter(|container| container.owner == Owner::CriO);
    let crio_stores: HashSet<StoreIx> = crio_containers.map(|container| container.store).collect();
    let stores = inventory.stores.iter().enumerate();
    let owned = stores.map(|(position, store)| {
        let kind = store.kind.facts();
        let is_owned = if kind.is_of_runtime { !without_cri } else { crio_stores.contains(&position.into()) };
        (kind.is_editable, is_owned)
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_chooses_by_runtime_and_owners() {
        use RuntimeState::{Absent, Answers, Silent};
        let (podman, containerd) = (true, false);
        let (owned, free) = (true, false);
        let (cri, direct, refused) = (Some(Via::Cri), Some(Via::Direct), None);
        for (runtime, stores, expected) in [
            // Podman alone, with the stores of its users.
            (Absent, &[(podman, free)][..], direct),
            (Absent, &[(podman, free), (podman, free)], direct),
            // Docker's containerd has no CRI, so its store counts as not owned: no runtime has to answer for it.
            (Absent, &[(podman, free), (containerd, free)], direct),
            // The store has containers of CRI-O, so CRI-O owns it, although there is no other sign of CRI-O.
            (Absent, &[(podman, owned)], refused),
            (Absent, &[(podman, free), (podman, owned)], refused),
            // containerd owns its store, and only containerd can delete there.
            (Absent, &[(podman, free), (containerd, owned)], refused),
            (Absent, &[(containerd, owned)], refused),
            (Absent, &[(containerd, free)], refused),
            (Absent, &[], refused),
            // CRI-O or containerd is stopped, or starting.
            (Silent, &[(podman, free)], refused),
            (Silent, &[(podman, owned)], refused),
            (Silent, &[(containerd, owned)], refused),
            (Answers, &[(podman, owned)], cri),
            (Answers, &[(containerd, owned)], cri),
            // A run uses one remover: podman's images are kept unless its store is named.
            (Answers, &[(podman, free), (containerd, owned)], cri),
        ] {
            assert_eq!(decide(runtime, stores), expected, "{runtime:?} {stores:?}");
        }
    }
}
