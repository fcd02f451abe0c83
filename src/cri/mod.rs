//! CRI v1 client: finds a node's runtime, lists its objects and removes them. Async code stays inside this module:
//! every call blocks until its answer or its deadline.
//!
//! The runtime's answer alone is never a proof. containerd never refuses and reports success for objects that it did
//! not remove, CRI-O omits containers whose creation has not finished, and no listing says that it is partial.
//! Answers are therefore compared with the disk, and an image counts as deleted only if the disk confirms it.

mod client;
mod connection;
mod deadlines;
pub mod discover;
mod endpoint;
mod error;
pub mod in_use;
mod raw;
mod runtime_store;
mod types;

pub use crate::stores::RuntimeStore;
pub use client::Client;
pub use deadlines::Options;
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::{CriError, CriProblem};
pub use types::{ContainerDetails, RuntimeContainer, RuntimeImage, RuntimeSandbox};
