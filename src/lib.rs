//! layersweep: shows exactly what each container image holds on a node's disk, and frees space
//! exactly, safely and with a memory.
//!
//! The way of the data: disk -> records of the stores ([`stores`]) -> [`model::Inventory`] ->
//! [`model::refs`] (reference counts, exclusive bytes) -> [`policy`] -> [`model::Plan`] -> [`execute`],
//! one step at a time, each proven, removed, confirmed and measured -> [`model::outcome`] ->
//! [`history`] and [`report`].
//!
//! A module imports only from floors below its own; `tests/architecture.rs` fails on an import that
//! goes upwards and on any import circle between files.
//!
//! | floor | modules |
//! |---|---|
//! | 8 | [`cli`]: flags in, one call of `app`, one rendering out |
//! | 7 | [`report`]: results of `app` as text, JSON, HTML, metrics |
//! | 6 | [`app`]: the use cases; knows no flag, writes to no stream |
//! | 5 | [`config`]: files and flags; [`execute`]: what deletes, one step at a time |
//! | 4 | [`policy`]: what is deleted, pure; [`history`]: SQLite; [`cri`]: the runtime; [`editor`]: the only writer of a graphroot |
//! | 3 | [`stores`]: finding and reading stores |
//! | 2 | [`disk`]: bytes of trees; [`node`]: the kubelet's files |
//! | 1 | [`model`]: what exists, plans, outcomes, pure; [`sys`]: system calls |

// Files of tests/support that our own tests share name the crate as the others do.
#[cfg(test)]
extern crate self as layersweep;

pub mod app;
pub mod cli;
pub mod config;
pub mod cri;
pub mod disk;
pub mod editor;
pub mod execute;
pub mod history;
pub mod model;
pub mod node;
pub mod policy;
pub mod report;
pub mod stores;
pub mod sys;
