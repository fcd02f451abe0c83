//! containers/storage on disk: CRI-O's, Podman's and Buildah's common store. Only [`edit`] writes.
//!
//! [`config`] finds the stores; [`snapshot`] reads their [`records`] and directory
//! listings consistently; [`units`] assigns every entry to a unit; [`inspect`] checks what the records
//! only name; [`fill`] builds the inventory from these and the measured bytes.

pub mod artifacts;
mod chains;
pub mod config;
pub mod cri_o;
pub mod edit;
pub mod fill;
pub mod inspect;
mod labels;
mod leaks;
mod lists;
mod locks;
pub mod needs;
mod owner;
pub mod places;
mod positions;
mod quarantine_name;
pub mod records;
mod since;
pub mod snapshot;
pub(crate) mod store;
pub mod temporary_files;
pub mod units;
