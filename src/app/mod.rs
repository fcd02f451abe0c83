//! The use cases: a module for each command, and the modules that they share.
//!
//! A use case takes a request and returns a result. It is independent of the command line and does not write to
//! stdout or stderr: it passes messages to an [`observer::Observer`].

mod by_hand;
pub mod comparison;
pub mod completion;
mod containers;
mod crio;
pub mod database;
pub mod diagnosis;
pub mod doctor;
pub mod error;
pub mod events;
pub mod explain;
pub mod fits;
pub mod fleet;
pub mod forecast;
pub mod gc;
pub mod gc_request;
pub mod history;
mod interrupted;
pub mod kept_scans;
pub mod metrics;
pub mod observer;
pub mod outside;
pub mod path_usage;
pub mod paths;
pub mod pins;
pub mod policy_context;
pub mod protect;
pub mod reach;
mod recorder;
pub mod report;
pub mod request;
pub mod reserve;
mod rm;
mod run;
mod running;
pub mod runtime;
pub mod scan;
mod scan_recording;
pub mod state;
mod store_editing;
pub mod sweep;
pub mod usage;
pub mod user_records;
mod via;
