//! Packages, units and manifests.

mod built;
mod cluster_files;
mod packages_node;
mod packaging_config;
mod support_archives;
