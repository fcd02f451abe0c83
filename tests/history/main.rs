//! The database: runs, ages, uses, damage, and what is kept.

#![allow(clippy::unwrap_used)] // a test talks to its reader

mod diff_command;
mod history_commands;
mod records_alone;
mod records_faults;
mod records_journal;
mod records_kill;
mod records_observe;
mod records_retention;
#[path = "../support/mod.rs"]
mod support;
