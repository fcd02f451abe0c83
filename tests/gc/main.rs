//! Deletions through CRI and directly: what goes, what stays, and what is said of it.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod cri_client;
#[path = "../support/cri_server/mod.rs"]
mod cri_server;
mod cri_sockets;
mod gc_ages;
mod gc_article;
mod gc_command;
mod gc_containers;
mod gc_containers_command;
mod gc_containers_faults;
mod gc_direct;
mod gc_direct_containers;
mod gc_faults;
mod gc_protection;
mod gc_refusals;
mod gc_rm;
mod gc_run;
mod gc_runtime;
mod gc_targets;
mod kubelet_vectors;
mod node_pulls;
#[path = "../support/pods/mod.rs"]
mod pods;
mod protection;
#[path = "../support/mod.rs"]
mod support;
mod sweep_command;
mod timer_day;
