//! containerd's stores, read from their files alone. Read-only.
//!
//! [`config`] finds the roots; [`read`] reads their databases ([`bolt`](crate::stores::bolt),
//! [`metadata`]) and directories; [`units`] assigns every entry to a unit; [`gc`] computes
//! what containerd's own garbage collection would keep, and for which root; [`fill`] builds the inventory
//! from these and the measured bytes.

pub mod build_cache;
pub mod config;
pub mod content;
pub mod docker;
pub mod fill;
pub mod gc;
mod leaks;
mod listing;
pub mod metadata;
pub mod places;
pub mod read;
pub mod snapshot;
pub(crate) mod store;
mod tasks;
pub mod units;
