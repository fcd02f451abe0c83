//! containers/storage on disk: CRI-O's, Podman's and Buildah's common store. Only [`edit`] writes.
//!
//! [`config`] says which stores there are; [`snapshot`] reads their [`records`] and
//! directory listings as of one moment; [`units`] sorts every entry into what it belongs
//! to; [`inspect`] looks closer at what the records only name; [`fill`] turns all that and the
//! measured bytes into an inventory.

pub mod artifacts;
mod chains;
pub mod committed;
pub mod config;
pub mod cri_o;
pub mod edit;
pub mod fill;
pub mod inspect;
mod labels;
mod leaks;
pub mod leftovers;
mod locks;
pub mod needs;
mod owner;
pub mod places;
pub mod records;
mod since;
pub mod snapshot;
pub(in crate::stores) mod store;
pub mod units;
