//! Packages, units and manifests.

mod cluster_files;
mod packages;
mod packages_node;
mod packaging_config;
#[path = "../support/mod.rs"]
mod support;
