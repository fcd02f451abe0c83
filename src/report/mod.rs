//! Tables, JSON and metrics. Takes results, decides nothing.

pub mod json;
pub mod metrics;
pub mod text;
