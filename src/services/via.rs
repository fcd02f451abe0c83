//! The ways of deletion: through the runtime, or directly in the stores. With `auto`, each store of a run has its own
//! way. A runtime that answers deletes in its own store. layersweep deletes directly in stores that no runtime owns.
//! Stores of a runtime that should answer and does not are left alone, and reported.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::Via;
use crate::cri::discover::Answers;
use crate::cri::{Client, CriProblem, Options};
use crate::disk::Progress;
use crate::execute::by_store::StoreRemover;
use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::editors::Editors;
use crate::execute::owner::{Owners, SilentOwner};
use crate::model::deletion::plan::{Phase, Plan, Problem};
use crate::model::text::display::shell_word;
use crate::model::{Inventory, OutcomeKind, StoreIx};
use crate::node::kubelet::Kubelet;
use crate::services::crio;
use crate::services::database;
use crate::services::error::Error;
use crate::services::gc_request::GcRequest;
use crate::services::protect;
use crate::services::request::Request;
use crate::services::reserve;
use crate::services::runtime::{self, NoRuntime};
use crate::services::store_editing;
use crate::stores::containers_storage::config::crio_start;
use crate::stores::{self, Measure, Scan};
use crate::sys::stop::flag;
use crate::sys::sysroot::Sysroot;
use crate::sys::users::calling_uid;

/// The ways of deletion of a run, used for planning and deleting.
#[derive(Debug)]
pub(crate) struct Deleter {
    /// Deletes in the stores of the runtime; `None`: stores are only edited.
    pub(crate) cri: Option<Box<CriRemover>>,
    /// Stores that the runtime does not own are edited.
    edits: bool,
    /// The stores of these owners are not edited.
    owners: Owners,
    /// Reason for which no store can be edited, although the runtime can delete in its own.
    obstacle: Option<String>,
    /// The runtime that should answer and does not. The run is for the other stores.
    silent: Option<NoRuntime>,
}

impl Deleter {
    /// Chooses by the configuration.
    ///
    /// # Errors
    /// When the runtime that should delete does not answer, and no other store can be edited.
    pub(crate) fn choose(gc_request: &GcRequest<'_>) -> Result<Self, Error> {
        Self::with(gc_request, &Options::default(), None)
    }

    /// The same for a command that only reads, with shorter timeouts. `scan`: its result.
    ///
    /// # Errors
    /// As [`Self::choose`].
    pub(crate) fn for_reading(gc_request: &GcRequest<'_>, scan: &Scan) -> Result<Self, Error> {
        Self::with(gc_request, &Options::default().probing(), Some(scan))
    }

    fn with(gc_request: &GcRequest<'_>, options: &Options, scan: Option<&Scan>) -> Result<Self, Error> {
        let GcRequest { request, config, while_runtime_runs, .. } = gc_request;
        // A signal cancels a request to a runtime that may never answer.
        let options = Options { cancel: Some(Arc::clone(flag())), ..options.clone() };
        let owners = Owners::new(runtime::named(request)?, !request.has_stores(), &options);
        let owners = if *while_runtime_runs { owners.ignored() } else { owners };
        match config.via {
            Via::Cri => Self::through(runtime::connect(request, &options)?, owners, request),
            Via::Direct => Ok(Self::directly(owners)),
            Via::Auto => Self::auto(request, &options, owners, scan),
        }
    }

    fn directly(owners: Owners) -> Self {
        Self { cri: None, edits: true, owners, obstacle: None, silent: None }
    }

    fn through(client: Client, owners: Owners, request: &Request) -> Result<Self, Error> {
        let remover = CriRemover::new(client)?;
        let reserve = reserve::of_runtime(&database::state_directory(request), remover.runtime_store());
        let cri = Some(Box::new(remover.with_reserve_file(reserve)));
        Ok(Self { cri, edits: false, owners, obstacle: None, silent: None })
    }

    fn auto(
        request: &Request,
        options: &Options,
        owners: Owners,
        scan: Option<&Scan>,
    ) -> Result<Self, Error> {
        // The runtimes of the node do not use the stores of a user.
        if calling_uid() != 0 && request.cri_endpoint.is_none() {
            return Ok(Self::directly(owners));
        }
        let (missing, is_expected, has_cri) = match ask(request, options) {
            AskedRuntime::Answers(client) => {
                let silent = SilentOwner { owns_daemons: true, crio_roots: crio_roots(request)? };
                let through = Self::through(*client, owners.sparing(silent), request)?;
                let obstacle = store_editing::obstacle(request).map(str::to_owned);
                return Ok(Self { edits: true, obstacle, ..through });
            }
            AskedRuntime::Silent(missing) => (missing, true, true),
            AskedRuntime::Absent { missing, has_cri } => (missing, false, has_cri),
        };
        let scan = match scan.map_or_else(|| records(request).map(Cow::Owned), |scan| Ok(Cow::Borrowed(scan)))
        {
            Ok(scan) => scan,
            Err(_) if is_expected => return Err(missing.into()),
            Err(error) => return Err(error),
        };
        let inventory = &scan.inventory;
        if let Some(refusal) = store_editing::only_by_tools(inventory) {
            return Err(refusal);
        }
        let silent = SilentOwner { owns_daemons: has_cri, crio_roots: crio_roots(request)? };
        let mut owned = stores_of(inventory).filter(|store_ix| silent.owns(inventory, *store_ix));
        let runtime = owned.next().map_or(runtime::ANY, |store_ix| inventory[store_ix].kind.runtime());
        let stores: Vec<_> = stores_of(inventory)
            .map(|store_ix| (is_editable(inventory, store_ix), silent.owns(inventory, store_ix)))
            .collect();
        match decide(is_expected, &stores) {
            EditableStores::All if !request.has_stores() => return Ok(Self::directly(owners)),
            EditableStores::All if owners.absent(inventory, &|ix| is_editable(inventory, ix)).is_ok() => {
                return Ok(Self::directly(owners));
            }
            // Named stores without a socket: the one that has to be named is not that of one store alone.
            EditableStores::Others if !missing.is_usage() => {
                let owners = owners.sparing(silent);
                let editors = store_editing::editors(request, &scan);
                let mut images = inventory.images.iter();
                let can_delete = images.any(|image| {
                    owners.spares(inventory, image.store).is_none()
                        && editors.store(&inventory[image.store]).is_ok()
                });
                if can_delete && store_editing::obstacle(request).is_none() {
                    return Ok(Self { silent: Some(missing), ..Self::directly(owners) });
                }
            }
            _ => {}
        }
        let can_edit = stores_of(inventory).any(|store_ix| is_editable(inventory, store_ix));
        Err(missing.into_error(runtime, can_edit))
    }

    /// Returns the way of the run; [`Via::Auto`] if that depends on the store.
    pub(crate) fn via(&self) -> Via {
        match &self.cri {
            None => Via::Direct,
            Some(_) if self.edits => Via::Auto,
            Some(_) => Via::Cri,
        }
    }

    /// Refuses a run that needs a runtime if that should answer and does not.
    pub(crate) fn into_answering(self) -> Result<Self, Error> {
        let Self { silent: Some(missing), .. } = self else { return Ok(self) };
        Err(missing.into_error(runtime::ANY, false))
    }

    pub(crate) fn remover<'r>(&'r mut self, editors: &'r Editors) -> StoreRemover<'r> {
        let direct = DirectRemover::new(editors, &self.owners);
        match self.cri.as_deref_mut() {
            Some(cri) if self.edits => {
                let direct = direct.beside(cri.runtime_store().clone(), self.obstacle.clone());
                StoreRemover::Both(cri, direct)
            }
            Some(cri) => StoreRemover::Cri(cri),
            None => StoreRemover::Direct(direct),
        }
    }

    /// Refuses a run that edits stores only, while an owner is running, or if no store can be edited.
    pub(crate) fn check(
        &self,
        request: &Request,
        inventory: &Inventory,
        editors: &Editors,
    ) -> Result<(), Error> {
        if self.cri.is_some() {
            return Ok(());
        }
        store_editing::check_namespace(request)?;
        store_editing::check(&self.owners, inventory, editors)
    }

    /// Returns the refusal for the stores of a runtime that should answer and does not; `None` without such stores.
    pub(crate) fn refused(&self, inventory: &Inventory) -> Option<Plan> {
        let mut problems: Vec<Problem> = Vec::new();
        let runtime_store = self.cri.as_ref().map(|remover| remover.runtime_store());
        for store_ix in stores_of(inventory) {
            let store = &inventory[store_ix];
            // The runtime that answers has its own store, and other daemons have theirs.
            let is_spared = self.edits
                && runtime_store.is_none_or(|own| is_editable(inventory, store_ix) && own.root != store.root);
            let why = self.owners.spares(inventory, store_ix).filter(|_| is_spared);
            let Some(why) = why else { continue };
            let has_images = inventory.images.iter().any(|image| image.store == store_ix);
            let root = store.root.to_string_lossy();
            if !has_images || problems.iter().any(|problem| problem.id.as_deref() == Some(&root)) {
                continue;
            }
            let runtime = store.kind.runtime();
            let start = self
                .silent
                .as_ref()
                .map_or_else(|| format!("start {runtime}"), |missing| missing.hint(runtime, false));
            let why = self.silent.as_ref().map_or(why, NoRuntime::to_string);
            let hint = if store.kind.facts().is_editable {
                let (flag, root) = (store.kind.facts().flag, shell_word(&root));
                format!(
                    "{start}; if it cannot run, `layersweep gc --via direct {flag} {root}` deletes without it"
                )
            } else {
                start
            };
            let problem = Problem::new(Some(root.into_owned()), Phase::Begin, why);
            problems.push(Problem { hint: Some(hint), ..problem });
        }
        let outcome = OutcomeKind::Refused;
        (!problems.is_empty()).then(|| Plan { problems, outcome, ..Plan::default() })
    }
}

#[derive(Debug)]
enum AskedRuntime {
    Answers(Box<Client>),
    /// A runtime should answer: there is its socket, its configuration, or a kubelet.
    Silent(NoRuntime),
    /// No runtime is expected to answer: there is no sign of one, or only a socket without CRI, or stores are named and a
    /// runtime answers that need not own them. `has_cri`: a containerd may serve CRI.
    Absent {
        missing: NoRuntime,
        has_cri: bool,
    },
}

/// Asks the runtime that the request names, or else those of the node.
fn ask(request: &Request, options: &Options) -> AskedRuntime {
    fn connected(client: Result<Client, NoRuntime>) -> AskedRuntime {
        client.map_or_else(AskedRuntime::Silent, |client| AskedRuntime::Answers(client.into()))
    }
    if request.cri_endpoint.is_some() {
        return connected(runtime::connect(request, options));
    }
    let answers = runtime::ask(options);
    // A runtime deletes from named stores only if its socket is named as well.
    if !request.has_stores() && !answers.runtimes.is_empty() {
        return connected(runtime::choose(answers));
    }
    let is_expected = is_expected(&answers, &Kubelet::read(&Sysroot::live()), &Sysroot::live());
    let has_cri = !answers.silent.iter().any(|(_, error)| matches!(error.problem, CriProblem::NoCri(_)));
    let missing =
        if request.has_stores() { runtime::unnamed() } else { runtime::none_answers(&answers.silent) };
    if is_expected { AskedRuntime::Silent(missing) } else { AskedRuntime::Absent { missing, has_cri } }
}

/// Stores that can be edited although no runtime answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EditableStores {
    All,
    /// Those that no runtime owns.
    Others,
    None,
}

/// Decides which stores can be edited although no runtime answers. `is_expected`: one should answer. `stores`: for each
/// store, true if it can be edited, and true if a runtime owns it. If one should answer and owns none of the stores, it
/// is unknown which store is its own.
fn decide(is_expected: bool, stores: &[(bool, bool)]) -> EditableStores {
    let is_owned = stores.iter().any(|(_, owned)| *owned);
    let is_other = stores.iter().any(|(is_editable, owned)| *is_editable && !owned);
    match (is_other, is_owned) {
        (true, true) => EditableStores::Others,
        (true, false) if !is_expected => EditableStores::All,
        _ => EditableStores::None,
    }
}

fn stores_of(inventory: &Inventory) -> impl Iterator<Item = StoreIx> + use<> {
    (0..inventory.stores.len()).map(StoreIx::from)
}

fn is_editable(inventory: &Inventory, store_ix: StoreIx) -> bool {
    inventory[store_ix].kind.facts().is_editable
}

/// Roots of the stores that CRI-O's configuration names; none if it has none here or has never run, since a package of
/// podman may install a configuration.
fn crio_roots(request: &Request) -> Result<Vec<PathBuf>, Error> {
    let stores = request.stores()?;
    Ok(if has_crio(&stores.sysroot) { protect::crio_stores(&stores) } else { Vec::new() })
}

/// Returns true if CRI-O is configured here and has run.
pub(crate) fn has_crio(sysroot: &Sysroot) -> bool {
    crio::has_run(sysroot) && crio_start(sysroot).is_some()
}

/// Reads the stores' records now.
fn records(request: &Request) -> Result<Scan, Error> {
    let scan_request = stores::ScanRequest { measure: Measure::RecordsAndMounts, ..request.stores()? };
    Ok(stores::run(&scan_request, &Progress::default())?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_without_runtime_are_edited() {
        let (podman, containerd) = (true, false);
        let (owned, free) = (true, false);
        let (expected, absent) = (true, false);
        for (is_expected, stores, scope) in [
            // Podman alone, with the stores of its users.
            (absent, &[(podman, free)][..], EditableStores::All),
            (absent, &[(podman, free), (podman, free)], EditableStores::All),
            // Docker's containerd has no CRI, so its store counts as not owned: no runtime has to answer for it.
            (absent, &[(podman, free), (containerd, free)], EditableStores::All),
            // The store has containers of CRI-O, so CRI-O owns it, although there is no other sign of CRI-O.
            (absent, &[(podman, owned)], EditableStores::None),
            (absent, &[(podman, free), (podman, owned)], EditableStores::Others),
            // containerd owns its store, and only containerd can delete there.
            (absent, &[(podman, free), (containerd, owned)], EditableStores::Others),
            (absent, &[(containerd, owned)], EditableStores::None),
            (absent, &[(containerd, free)], EditableStores::None),
            (absent, &[], EditableStores::None),
            // CRI-O or containerd is stopped, or starting. The store may be its own.
            (expected, &[(podman, free)], EditableStores::None),
            (expected, &[(podman, owned)], EditableStores::None),
            (expected, &[(containerd, owned)], EditableStores::None),
            (expected, &[(podman, free), (containerd, owned)], EditableStores::Others),
            (expected, &[(podman, free), (podman, owned)], EditableStores::Others),
        ] {
            assert_eq!(decide(is_expected, stores), scope, "{is_expected} {stores:?}");
        }
    }
}
