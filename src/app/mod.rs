//! The use cases: each takes a request and returns a result. They know no flag and write to no stream;
//! what they say while they work goes to an [`observer::Observer`].

pub mod containers;
pub mod database;
pub mod diagnosis;
mod direct;
pub mod doctor;
pub mod error;
pub mod events;
pub mod gc;
pub mod kept_scans;
mod lock;
pub mod observer;
pub mod paths;
pub mod policy_context;
pub mod protect;
mod recorder;
pub mod request;
mod reserve;
mod resume;
mod rm;
pub mod runtime;
pub mod scan;
pub mod state;
pub mod sweep;
