//! Policies for exited containers, sandboxes and pod logs: what is deleted, and why.
//!
//! Two policies decide, as with images. [`exact`] is ours: ages count from death, the total limit
//! is met to the container, and nothing goes that the kubelet still needs to know what has
//! happened in a pod. [`kubelet`] is the kubelet's algorithm, rule for rule. Both are pure; the run
//! works through CRI only, and never takes away anything that runs.

pub mod exact;
pub mod kubelet;
pub mod logs;
mod types;

pub use types::{Container, ContainerPolicy, Pods, Removal, Sandbox, Verdicts};
