//! What the commands say: contract, documentation, doctor, metrics and the report.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod cli_contract;
#[path = "../support/cri_server/mod.rs"]
mod cri_server;
mod docs_commands;
mod doctor_command;
mod metrics;
mod metrics_listen;
mod metrics_rules;
mod post_mortem;
mod report_html;
mod report_users;
#[path = "../support/mod.rs"]
mod support;
