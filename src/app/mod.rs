//! The use cases: each takes a request and returns a result. They know no flag and write to no stream;
//! what they say while they work goes to an [`observer::Observer`].

pub mod database;
pub mod diagnosis;
pub mod doctor;
pub mod error;
pub mod kept_scans;
pub mod observer;
pub mod paths;
pub mod protect;
pub mod request;
pub mod scan;
pub mod state;
