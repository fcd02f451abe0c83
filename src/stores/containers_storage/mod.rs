//! Reader for containers/storage, the store that CRI-O, Podman and Buildah share. Only [`crate::editor`] writes to it.
//!
//! [`config`] finds the stores. [`snapshot`] reads their [`records`] and directory listings consistently. [`units`]
//! assigns every directory entry to a unit. [`inspect`] checks the files that records only name. [`fill`] builds the
//! inventory from all of these and from the measured bytes.

pub mod artifacts;
pub(in crate::stores) mod blob_cache;
pub(crate) mod chains;
pub mod config;
pub mod cri_o;
pub(in crate::stores) mod engine;
pub mod fill;
pub mod inspect;
pub(in crate::stores) mod inspection;
mod labels;
pub(crate) mod leaks;
pub(crate) mod lists;
pub(crate) mod locks;
pub mod needs;
mod origin;
pub mod outside;
pub(crate) mod owner;
pub mod places;
mod positions;
pub(crate) mod quarantine_name;
pub mod records;
pub(crate) mod since;
pub mod snapshot;
pub(crate) mod store;
pub(in crate::stores) mod tar_split;
pub mod temporary_files;
pub mod units;
