//! Policy for exited containers, sandboxes and pod logs: the objects that are deleted, and the reasons.
//!
//! Ages count from exit, the total limit is met exactly, and nothing is deleted that the kubelet still needs to
//! know the history of a pod. Pure; the run works only through CRI, and never removes a running container or
//! sandbox.

pub mod exact;
pub mod logs;
mod types;

pub use types::{Container, ContainerPolicy, Pods, Removal, Sandbox, Verdicts};
