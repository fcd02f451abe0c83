//! How many bytes a tree holds, what a filesystem gives back, and sizes kept from earlier scans.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod archive;
mod filesystem_costs;
mod frees_bytes;
mod inode_chunks;
mod loopfs;
mod rescan;
mod rescan_frees;
mod sum_is_du;
#[path = "../support/mod.rs"]
mod support;
mod walker;
mod walker_descriptors;
