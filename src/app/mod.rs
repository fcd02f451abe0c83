//! The use cases: a module for each command.
//!
//! A use case takes a request and returns a result. It is independent of the command line and does not write to
//! stdout or stderr: it passes messages to an [`crate::services::observer::Observer`].

pub mod comparison;
pub mod completion;
pub mod doctor;
pub mod explain;
pub mod fits;
pub mod fleet;
pub mod gc;
pub mod history;
pub mod metrics;
pub mod path_usage;
pub mod pins;
pub mod replay;
pub mod report;
mod rm;
pub mod sweep;
pub mod usage;
pub mod waste;
