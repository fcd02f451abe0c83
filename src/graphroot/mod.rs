//! containers/storage on disk: CRI-O's, Podman's and Buildah's common store. Only reads.

pub mod config;
