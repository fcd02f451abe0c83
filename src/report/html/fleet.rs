//! The sums of many nodes as a single HTML page: tables without a script.

use jiff::tz::TimeZone;

use super::escape;
use super::still::{StillPage, section, table};
use crate::report::json::FleetDoc;
use crate::report::text::{self, Screen};

/// Maximum number of rows of a table.
const ROWS: usize = 500;

/// Builds the page of a merge, with its end of line.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn fleet_page(document: &FleetDoc) -> serde_json::Result<String> {
    let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
    let mut content = String::new();
    for sentence in text::fleet_sentences(document) {
        content.push_str(&format!("<p>{}</p>\n", escape(&sentence)));
    }
    for rows in text::fleet_sections(document, ROWS) {
        let more = match rows.omitted {
            0 => String::new(),
            omitted => format!("<p class=\"note\">{}</p>\n", escape(&text::fleet_omitted(omitted))),
        };
        content.push_str(&section(rows.title, &(table(rows.headings, &rows.rows) + &more)));
    }
    if !document.unread.is_empty() {
        let lines = document
            .unread
            .iter()
            .map(|unread| format!("<li>{}</li>\n", escape(&format!("{}: {}", unread.place, unread.reason))));
        let list = format!("<ul class=\"plain\">\n{}</ul>\n", lines.collect::<String>());
        content.push_str(&section("Documents that could not be read", &list));
    }
    let page = StillPage {
        title: &text::fleet_title(document, &screen),
        generated_at: document.header.generated_at,
        command: "report --merge",
        content: &content,
    };
    page.build(document)
}
