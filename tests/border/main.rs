//! What others can plant, hold or hide, and that nothing of theirs is touched.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod border_names;
mod border_processes;
mod border_rootless;
mod border_runs;
mod border_scene;
mod border_stores;
mod border_symlinks;
mod border_tmp;
#[path = "../support/cri_server/mod.rs"]
mod cri_server;
#[path = "../support/mod.rs"]
mod support;
