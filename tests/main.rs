//! The black-box tests: one program, so that the shared code is compiled once. Each test runs in a separate process
//! (`tests/run.sh`).

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod border;
mod containerd;
mod docker;
mod edit;
mod gc;
mod history;
mod packages;
mod report;
mod sizes;
mod stores;
mod support;
