//! Checks whether the runtime that owns a store is running: then only that runtime may remove images.
//!
//! The locks keep the store consistent in any case. But a runtime does not notice that another process deleted an
//! image: its listings would be out of date, and a container that it is just creating may have no record yet.

use std::path::PathBuf;

use crate::cri::discover;
use crate::cri::{Client, CriError, CriProblem, Endpoint, Options, RuntimeStore};
use crate::execute::remover::PreconditionError;
use crate::model::Inventory;
use crate::sys::sysroot::Sysroot;

#[derive(Clone, Debug)]
pub struct Owners {
    /// An owner may run (`--while-runtime-runs`): no socket is checked.
    ignored: bool,
    /// A socket that the user named; the node's sockets are checked as well.
    named: Option<Endpoint>,
    /// The stores were discovered and not named by the user, so a runtime on this node probably owns them.
    strict: bool,
    options: Options,
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
        Self { ignored: false, named, strict, options: options.probing() }
    }

    /// Disables the check (`--while-runtime-runs`).
    #[must_use]
    pub fn ignored(self) -> Self {
        Self { ignored: true, ..self }
    }

    /// Proves that no owner is running now.
    ///
    /// # Errors
    /// The first runtime that owns, or may own, one of the stores.
    pub fn absent(&self, inventory: &Inventory) -> Result<(), OwnerPresence> {
        if self.ignored {
            return Ok(());
        }
        if let Some(named) = &self.named {
            self.is_no_owner(named.clone(), inventory)?;
        }
        for candidate in discover::discover(&Sysroot::live()).candidates {
            if self.named.as_ref() == Some(&candidate.endpoint) {
                continue;
            }
            match self.is_no_owner(candidate.endpoint, inventory) {
                Err(OwnerPresence::Unsure(message)) if !self.strict => {
                    tracing::warn!("{message}; one of these stores may be its own")
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn is_no_owner(&self, endpoint: Endpoint, inventory: &Inventory) -> Result<(), OwnerPresence> {
        let answer = Client::connect(endpoint, self.options.clone())
            .and_then(|client| client.runtime_store().map(|store| (client, store)));
        match answer {
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(OwnerPresence::Unsure(error.to_string())),
            Ok((client, Some(store))) => match owned(&store, inventory) {
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

/// Root of the store in the inventory that this runtime owns.
fn owned(store: &RuntimeStore, inventory: &Inventory) -> Option<PathBuf> {
    let stores = inventory.stores.iter();
    let editable = stores.filter(|known| known.kind == store.kind && known.kind.facts().is_editable);
    let mut roots = editable.map(|known| &known.root);
    roots.find(|root| **root == store.root || Some(*root) == store.image_root.as_ref()).cloned()
}
