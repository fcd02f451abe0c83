//! Tables and JSON. Takes results, decides nothing.

pub mod json;
pub mod text;
