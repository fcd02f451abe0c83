//! Policy for exited containers, sandboxes and pod logs: what is deleted, and why.
//!
//! Ages count from death, the total limit is met to the container, and nothing is deleted that the kubelet still
//! needs to know what has happened in a pod. Pure; the run works through CRI only, and never takes away anything
//! that runs.

pub mod exact;
pub mod logs;
mod types;

pub use types::{Container, ContainerPolicy, Pods, Removal, Sandbox, Verdicts};
