//! Tables, JSON, metrics and the HTML page. Takes results, decides nothing.

pub mod html;
pub mod json;
pub mod metrics;
pub mod text;
