//! Checks whether the runtime that owns a store is running: then only that runtime may remove images.
//!
//! Its listings would be old after a deletion behind its back, and a container that it is just
//! creating may have no record yet. The locks would keep the store whole all the same; what they
//! cannot do is make the runtime ask again.

use std::path::PathBuf;

use crate::cri::discover;
use crate::cri::{Client, CriError, CriProblem, Endpoint, Options, RuntimeStore};
use crate::execute::remover::PreconditionError;
use crate::model::{Inventory, StoreKind};
use crate::sys::sysroot::Sysroot;

/// Where to look for owners.
#[derive(Clone, Debug)]
pub struct Owners {
    /// An owner may run (`--while-runtime-runs`): nobody is asked.
    ignored: bool,
    /// A socket that was named; the node's own are looked at as well.
    named: Option<Endpoint>,
    /// The stores were found and not named, so that a socket on this node is likely theirs.
    strict: bool,
    options: Options,
}

/// A runtime that answers, or may be there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Presence {
    /// It answers, and the store is its own.
    #[error("{runtime} is running on {endpoint} and owns the store {}", root.display())]
    Answers {
        /// Name and version.
        runtime: String,
        endpoint: String,
        root: PathBuf,
    },
    /// A runtime is running, but its store is unknown.
    #[error("cannot determine whether the owner of the store is running: {0}")]
    Unsure(String),
}

impl From<Presence> for PreconditionError {
    fn from(presence: Presence) -> Self {
        Self::new(presence.to_string())
    }
}

impl Owners {
    /// Owners at `named` and at the sockets that the node's files and usual places name. If
    /// `strict`, one of those that does not tell its store may be the owner; the one at `named`
    /// may in any case.
    #[must_use]
    pub fn new(named: Option<Endpoint>, strict: bool, options: &Options) -> Self {
        Self { ignored: false, named, strict, options: options.probing() }
    }

    /// Owners may run: `--while-runtime-runs`.
    #[must_use]
    pub fn ignored(self) -> Self {
        Self { ignored: true, ..self }
    }

    /// Asks them now.
    ///
    /// # Errors
    /// The first runtime that owns, or may own, one of the stores.
    pub fn absent(&self, inventory: &Inventory) -> Result<(), Presence> {
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
                Err(Presence::Unsure(what)) if !self.strict => {
                    tracing::warn!("{what}; one of these stores may be its own")
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn is_no_owner(&self, endpoint: Endpoint, inventory: &Inventory) -> Result<(), Presence> {
        let asked = Client::connect(endpoint, self.options.clone())
            .and_then(|client| client.runtime_store().map(|store| (client, store)));
        match asked {
            Err(error) if is_nobody(&error) => Ok(()),
            Err(error) => Err(Presence::Unsure(error.to_string())),
            Ok((client, Some(store))) => match owned(&store, inventory) {
                Some(root) => {
                    let version = client.version();
                    let runtime = format!("{} {}", version.runtime_name, version.runtime_version);
                    Err(Presence::Answers { runtime, endpoint: client.endpoint().to_string(), root })
                }
                None => Ok(()),
            },
            Ok((client, None)) => Err(Presence::Unsure(format!(
                "{} at {} does not report where its images are stored",
                client.version().runtime_name,
                client.endpoint()
            ))),
        }
    }
}

/// No runtime of containers/storage is behind that socket.
fn is_nobody(error: &CriError) -> bool {
    matches!(
        error.problem,
        // An old API is that of containerd 1.5 or CRI-O 1.22: the one has other stores, the other
        // could be the owner.
        CriProblem::NotRunning(_)
            | CriProblem::NotListening
            | CriProblem::NoCri(_)
            | CriProblem::NotGrpc(_)
            // Only containerd says so.
            | CriProblem::Starting(_)
    )
}

/// The root of the store that is this runtime's, if one of the inventory is.
fn owned(store: &RuntimeStore, inventory: &Inventory) -> Option<PathBuf> {
    if store.store_type != StoreKind::ContainersStorage {
        return None;
    }
    let same = |root: &PathBuf| *root == store.root || Some(root) == store.image_root.as_ref();
    let stores = inventory.stores.iter().filter(|store| store.kind == StoreKind::ContainersStorage);
    stores.map(|store| &store.root).find(|root| same(root)).cloned()
}
