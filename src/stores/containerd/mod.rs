//! containerd's stores, read from their files alone. Only reads.
//!
//! [`config`] says which roots there are; [`read`] reads their databases ([`bolt`](crate::stores::bolt),
//! [`metadata`]) and directories; [`units`] sorts every entry into what it belongs to;
//! [`gc`] says what containerd's own garbage collection would keep, and for whom;
//! [`fill`] turns all that and the measured bytes into an inventory.

pub mod committed;
pub mod config;
pub mod content;
pub mod fill;
pub mod gc;
mod labels;
mod leaks;
mod listing;
pub mod metadata;
pub mod places;
pub mod read;
pub mod snapshot;
pub(in crate::stores) mod store;
pub mod units;
