//! Checks whether the runtime that owns a store is running: then only that runtime may remove images.
//!
//! The locks keep the store consistent in any case. But a runtime does not notice that another process deleted an
//! image: its listings would be out of date, and a container that it is just creating may have no record yet.

use std::path::PathBuf;

use crate::cri::discover;
use crate::cri::{Client, CriError, CriProblem, Endpoint, Options, RuntimeStore};
use crate::execute::remover::PreconditionError;
use crate::model::{Inventory, Store, StoreIx};
use crate::sys::sysroot::Sysroot;
use crate::sys::users::calling_uid;

#[derive(Clone, Debug)]
pub struct Owners {
    /// An owner may run (`--while-runtime-runs`): no socket is checked.
    ignored: bool,
    /// A socket that the user named; the node's sockets are checked as well.
    named: Option<Endpoint>,
    /// The stores were discovered and not named by the user, so a runtime on this node probably owns them.
    strict: bool,
    /// The calling user is not root. A socket that denies access belongs to another user, and that user's runtime does
    /// not write to the stores of the caller.
    of_user: bool,
    /// Its stores are not edited, although no owner answers; `None`: an owner that does not answer does not count.
    silent: Option<SilentOwner>,
    options: Options,
}

/// Runtime that owns stores and should answer, but does not.
#[derive(Clone, Debug)]
pub struct SilentOwner {
    /// Stores of the kinds that only daemons use are its own.
    pub owns_daemons: bool,
    /// Roots that CRI-O's configuration names.
    pub crio_roots: Vec<PathBuf>,
}

impl SilentOwner {
    /// Returns true if it owns the store. A store that can be edited is CRI-O's if that has containers in it or is
    /// configured to use it.
    #[must_use]
    pub fn owns(&self, inventory: &Inventory, store_ix: StoreIx) -> bool {
        if inventory[store_ix].kind.facts().is_of_runtime {
            return self.owns_daemons;
        }
        self.crio_roots.contains(&inventory[store_ix].root) || inventory.is_of_runtime(store_ix)
    }
}

/// A runtime that owns a store, or may own it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerPresence {
    #[error("{runtime} is running on {endpoint} and owns the store {}", root.display())]
    Answers { runtime: String, endpoint: String, root: PathBuf },
    /// A runtime is running, but its store is unknown.
    #[error("cannot determine whether the owner of the store is running: {0}")]
    Unsure(String),
}

impl From<OwnerPresence> for PreconditionError {
    fn from(presence: OwnerPresence) -> Self {
        Self::new(presence.to_string())
    }
}

impl Owners {
    /// The owners at `named`, at the sockets in the node's configuration and at the usual sockets. If `strict`, a
    /// runtime of the node that does not report its store may be the owner; the one at `named` may be in any case.
    #[must_use]
    pub fn new(named: Option<Endpoint>, strict: bool, options: &Options) -> Self {
        let of_user = calling_uid() != 0;
        Self { ignored: false, named, strict, of_user, silent: None, options: options.probing() }
    }

    /// Keeps the stores of an owner that does not answer.
    #[must_use]
    pub fn sparing(self, silent: SilentOwner) -> Self {
        Self { silent: Some(silent), ..self }
    }

    /// Returns the reason, as a clause, for which a store is kept for an owner that does not answer.
    #[must_use]
    pub fn spares(&self, inventory: &Inventory, store_ix: StoreIx) -> Option<String> {
        let is_owned = self.silent.as_ref().is_some_and(|silent| silent.owns(inventory, store_ix));
        is_owned.then(|| format!("{} does not answer", inventory[store_ix].kind.runtime()))
    }

    /// Disables the check (`--while-runtime-runs`).
    #[must_use]
    pub fn ignored(self) -> Self {
        Self { ignored: true, ..self }
    }

    /// Proves that no owner of the stores for which `edits` returns true is running now.
    ///
    /// # Errors
    /// The first runtime that owns, or may own, one of these stores.
    pub fn absent(
        &self,
        inventory: &Inventory,
        edits: &dyn Fn(StoreIx) -> bool,
    ) -> Result<(), OwnerPresence> {
        if self.ignored {
            return Ok(());
        }
        let stores = inventory.stores.iter().enumerate();
        let edited = stores.filter(|(position, _)| edits((*position).into())).map(|(_, store)| store);
        let edited: Vec<_> = edited.collect();
        if let Some(named) = &self.named {
            self.is_no_owner(named.clone(), &edited)?;
        }
        for candidate in discover::discover(&Sysroot::live()).candidates {
            if self.named.as_ref() == Some(&candidate.endpoint) {
                continue;
            }
            match self.is_no_owner(candidate.endpoint, &edited) {
                Err(OwnerPresence::Unsure(message)) if !self.strict => {
                    tracing::warn!("{message}; one of these stores may be its own")
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn is_no_owner(&self, endpoint: Endpoint, edited: &[&Store]) -> Result<(), OwnerPresence> {
        let answer = Client::connect(endpoint, self.options.clone())
            .and_then(|client| client.runtime_store().map(|store| (client, store)));
        match answer {
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) if self.of_user && matches!(error.problem, CriProblem::Denied) => Ok(()),
            Err(error) => Err(OwnerPresence::Unsure(error.to_string())),
            Ok((client, Some(store))) => match owned(&store, edited) {
                Some(root) => {
                    let version = client.version();
                    let runtime = format!("{} {}", version.runtime_name, version.runtime_version);
                    Err(OwnerPresence::Answers { runtime, endpoint: client.endpoint().to_string(), root })
                }
                None => Ok(()),
            },
            Ok((client, None)) => Err(OwnerPresence::Unsure(format!(
                "{} at {} does not report where its images are stored",
                client.version().runtime_name,
                client.endpoint()
            ))),
        }
    }
}

/// Returns true if no runtime with a store of containers/storage listens on the socket.
fn is_absent(error: &CriError) -> bool {
    matches!(
        error.problem,
        // Not `OldApi`: it is the API of containerd 1.5, which has other stores, and of CRI-O 1.22, which may be the
        // owner.
        CriProblem::NotRunning(_)
            | CriProblem::NotListening
            | CriProblem::NoCri(_)
            | CriProblem::NotGrpc(_)
            // Only containerd answers this.
            | CriProblem::Starting(_)
    )
}

/// Root of the edited store that this runtime owns.
fn owned(store: &RuntimeStore, edited: &[&Store]) -> Option<PathBuf> {
    let mut roots = edited.iter().filter(|known| known.kind == store.kind).map(|known| &known.root);
    roots.find(|root| **root == store.root || Some(*root) == store.image_root.as_ref()).cloned()
}
