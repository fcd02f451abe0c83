//! The story of a disk, on one screen.

use super::format::safe;
use super::screen::Screen;
use crate::report::json::ReportDoc;

/// The story.
#[must_use]
pub fn report(document: &ReportDoc, _screen: &Screen) -> String {
    let mut out = String::new();
    for sentence in &document.verdict.sentences {
        out.push_str(&safe(sentence));
        out.push('\n');
    }
    out
}
