//! What is read of stores: images, containers, leaks, artifacts, lenders; damaged, busy and read-only ones.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod artifact_runtime;
mod artifact_store;
mod busy_store;
#[path = "../support/cri_server/mod.rs"]
mod cri_server;
mod fixtures_read;
mod hostile;
mod leak_proofs;
mod lenders;
mod node_volumes;
mod podman_agrees;
mod read_only_proof;
mod scan_faults;
mod scan_kill;
mod scan_records;
mod settling;
mod storage_163;
mod store_config;
mod store_config_podman;
#[path = "../support/mod.rs"]
mod support;
mod traps;
