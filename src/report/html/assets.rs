//! Parts of the page that are the same in every report.

/// Frame of the page, with `{{name}}` for each value.
pub(super) const PAGE: &str = include_str!("assets/page.html");

pub(super) const STYLE: &str = include_str!("assets/page.css");

/// Layouts of hierarchies: d3-hierarchy as published, ISC licence (`assets/vendor`).
pub(super) const LIBRARY: &str = include_str!("assets/vendor/d3-hierarchy-3.1.3.min.js");

/// Parts of layersweep's script, each after those that it uses.
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

/// Returns layersweep's script in one piece, in a function that keeps its names out of the global scope.
pub(super) fn script() -> String {
    format!("(() => {{\n'use strict';\n{}}})();\n", PARTS.concat())
}
