//! Packages, units and manifests.

mod built;
mod cluster_files;
mod kubernetes_manifests;
mod packages_node;
mod packages_stores;
mod packaging_config;
mod support_archives;
