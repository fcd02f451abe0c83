//! layersweep: says to the byte what each container image holds on a node's disk, and
//! takes space back exactly, safely and with a memory.
//!
//! The way of the data: the disk -> the stores' records ([`graphroot`], [`containerd`]) and what they
//! weigh ([`usage`]) -> the [`inventory`] -> its reference counts ([`inventory::refs`])
//! -> tables and JSON ([`report`]). A module imports only from those below it:
//!
//! | module | may know |
//! |---|---|
//! | [`cli`] | everything |
//! | [`report`] | `gc`, `history`, `survey`, `inventory` |
//! | [`config`] | `gc`, `cri`, `sys` |
//! | [`gc`] | `cri`, `history`, `survey`, `graphroot`, `node`, `usage`, `inventory`, `sys` |
//! | [`history`] | `usage`, `inventory`, `sys` |
//! | [`cri`] | `node`, `sys` |
//! | [`survey`] | `graphroot`, `containerd`, `node`, `usage`, `inventory`, `sys` |
//! | [`graphroot`], [`containerd`] | `usage`, `inventory`, `sys` |
//! | [`node`], [`usage`] | `inventory`, `sys` |
//! | [`inventory`], [`sys`] | nobody |
//!
//! `tests/architecture.rs` fails on an import that goes upwards.

pub mod cli;
pub mod config;
pub mod containerd;
pub mod cri;
pub mod gc;
pub mod graphroot;
pub mod history;
pub mod inventory;
pub mod node;
pub mod report;
pub mod survey;
pub mod sys;
pub mod usage;
