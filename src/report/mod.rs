//! Output formats: tables, JSON, metrics and the HTML page. They format results and decide nothing.

pub mod html;
pub mod json;
pub mod metrics;
pub mod text;
