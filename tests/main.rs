//! The black-box tests: one program, so that what they share is compiled once. Each runs in a process of its own
//! (`tests/run.sh`).

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod border;
mod containerd;
mod edit;
mod gc;
mod history;
mod packages;
mod report;
mod sizes;
mod stores;
mod support;
