//! Packages, units and manifests.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod cluster_files;
mod packages;
mod packages_node;
mod packaging_config;
#[path = "../support/mod.rs"]
mod support;
