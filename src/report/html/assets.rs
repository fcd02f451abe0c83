//! The parts of the page that are the same in every report.

/// The frame of the page, with `{{name}}` where something is filled in.
pub(super) const PAGE: &str = include_str!("assets/page.html");

/// Its style.
pub(super) const STYLE: &str = include_str!("assets/page.css");

/// Layouts of hierarchies: d3-hierarchy, ISC licence (`assets/vendor`), as published.
pub(super) const LIBRARY: &str = include_str!("assets/vendor/d3-hierarchy-3.1.3.min.js");

/// Our own script, in the order in which its parts know each other.
const PARTS: [&str; 10] = [
    include_str!("assets/core.js"),
    include_str!("assets/model.js"),
    include_str!("assets/table.js"),
    include_str!("assets/zoom.js"),
    include_str!("assets/icicle.js"),
    include_str!("assets/treemap.js"),
    include_str!("assets/filesystems.js"),
    include_str!("assets/usage.js"),
    include_str!("assets/tables.js"),
    include_str!("assets/main.js"),
];

/// Our own script in one piece, which leaves no names behind.
pub(super) fn script() -> String {
    format!("(() => {{\n'use strict';\n{}}})();\n", PARTS.concat())
}
