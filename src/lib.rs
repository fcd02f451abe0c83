//! layersweep: shows exactly what each container image holds on a node's disk, and frees space
//! exactly, safely and with a memory.
//!
//! The way of the data: disk -> records of the store ([`stores`]) -> [`model::Inventory`] ->
//! [`model::refs`] -> [`policy`] -> plan -> [`execute`] -> outcome -> [`history`] and [`report`].
//! A module imports only from those below it; `tests/architecture.rs` holds the list and fails on
//! an import that goes upwards and on any import circle between files.

pub mod app;
pub mod cli;
pub mod config;
pub mod cri;
pub mod disk;
pub mod execute;
pub mod history;
pub mod model;
pub mod node;
pub mod policy;
pub mod report;
pub mod stores;
pub mod sys;
