//! layersweep shows the exact bytes of each container image on a node's disk, deletes unused images and leaks
//! safely, and records uses and deletions.
//!
//! Flow of the data: disk -> records of the stores ([`stores`]) -> [`model::Inventory`] ->
//! [`model::refs`] (reference counts, exclusive bytes) -> [`policy`] -> [`model::Plan`] -> [`execute`],
//! which proves, deletes, confirms and measures one step after another -> [`model::deletion::outcome`] ->
//! [`history`] and [`report`].
//!
//! A module imports only from modules on lower floors; `tests/architecture.rs` fails on an import from a
//! higher floor and on an import cycle between files.
//!
//! | floor | modules |
//! |---|---|
//! | 9 | [`cli`]: parses flags, calls `app` once and writes the result |
//! | 8 | [`report`]: results of `app` as text, JSON, HTML, metrics |
//! | 7 | [`app`]: the use cases; independent of flags and streams |
//! | 6 | [`services`]: the steps that use cases share |
//! | 5 | [`config`]: files and flags; [`execute`]: deletes one step after another |
//! | 4 | [`policy`]: decides what is deleted, pure; [`history`]: SQLite; [`cri`]: the runtime; [`editor`]: the only writer of a graphroot |
//! | 3 | [`stores`]: finds and reads stores |
//! | 2 | [`disk`]: bytes of trees; [`node`]: the kubelet's files |
//! | 1 | [`model`]: objects, plans and outcomes, pure; [`sys`]: system calls |

// Files in tests/support that unit tests share refer to the crate by its name.
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
pub mod services;
pub mod stores;
pub mod sys;
