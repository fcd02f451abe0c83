//! Exited containers, sandboxes and logs: through CRI, or directly on the disk without a runtime.
//!
//! What runs is never touched, whatever a listing says: before a container is removed through CRI
//! (which every runtime does by force) its status is asked for afresh, its control group is looked for
//! among all processes, and the store's own records are read. Failures are collected; only a
//! runtime or a store that cannot be asked any more ends a run.

mod collection;
mod cri;
mod direct;
mod files;
mod look;

pub use collection::Scope;
pub use direct::{DiskContainers, own_store};
pub use look::CriContainers;
