//! The use cases: takes a request, returns a result. Knows no flag and writes to no stream.

pub mod diagnosis;
pub mod doctor;
pub mod protect;
