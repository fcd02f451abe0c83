//! What the kubelet keeps on this node's disk: which pods it knows, and their logs.
//! Only reads.

pub mod logs;
pub mod places;
pub mod pods;
