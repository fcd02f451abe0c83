//! What the page says without its script: the summary and the filesystems.

use std::fmt::Write as _;

use serde_json::Value;

use crate::report::text::{bytes, safe};

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_default()
}

fn list<'a>(of: &'a Value, field: &str) -> &'a [Value] {
    of[field].as_array().map_or(&[], Vec::as_slice)
}

/// A foreign text as text of the page.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in safe(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The title of the window.
pub(super) fn title(document: &Value) -> String {
    let place = document["host"].as_str().or(document["sysroot"].as_str());
    let place = place.map(|place| format!(" of {}", escape(place))).unwrap_or_default();
    let day = text(document, "generated_at").get(..10).unwrap_or_default();
    format!("layersweep report{place}, {}", escape(day))
}

/// When the document was made.
pub(super) fn generated(document: &Value) -> String {
    escape(text(document, "generated_at"))
}

/// Summary, findings and filesystems as plain markup.
pub(super) fn summary(document: &Value) -> String {
    let mut out = String::new();
    let verdict = &document["verdict"];
    // Writing to a String cannot fail.
    if !text(verdict, "headline").is_empty() {
        let (urgency, headline) = (escape(text(verdict, "urgency")), escape(text(verdict, "headline")));
        let _ = writeln!(out, "<p><strong>{urgency}: {headline}</strong></p>");
    }
    if !list(verdict, "steps").is_empty() {
        out.push_str("<ol>\n");
        for step in list(verdict, "steps") {
            let command = step["command"].as_str();
            let command = command.map(|command| format!("<code>{}</code>: ", escape(command)));
            let _ = writeln!(out, "<li>{}{}</li>", command.unwrap_or_default(), escape(text(step, "text")));
        }
        out.push_str("</ol>\n");
    }
    for sentence in list(verdict, "sentences") {
        let _ = writeln!(out, "<p>{}</p>", escape(sentence.as_str().unwrap_or_default()));
    }
    if !list(verdict, "causes").is_empty() {
        let _ = writeln!(out, "<h2>Findings</h2>\n<ul>");
        for cause in list(verdict, "causes") {
            let path = cause["path"].as_str().map(|path| format!(" ({})", escape(path)));
            let (text, path) = (escape(text(cause, "text")), path.unwrap_or_default());
            let _ = writeln!(out, "<li>{}: {text}{path}</li>", bytes(number(cause, "bytes")));
        }
        out.push_str("</ul>\n");
    }
    list(document, "filesystems").iter().for_each(|one| filesystem(&mut out, one));
    out
}

fn filesystem(out: &mut String, filesystem: &Value) {
    let inodes = number(filesystem, "inodes");
    let _ = writeln!(
        out,
        "<h2>{}</h2>\n<p>Of {}, {} used, {} available.{}</p>\n<table>",
        escape(text(filesystem, "mount")),
        bytes(number(filesystem, "capacity_bytes")),
        bytes(number(filesystem, "used_bytes")),
        bytes(number(filesystem, "available_bytes")),
        match inodes {
            0 => String::new(),
            all => {
                let used = all.saturating_sub(number(filesystem, "inodes_free"));
                format!(" Of {all} inodes, {used} used.")
            }
        },
    );
    for part in list(filesystem, "parts") {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"num\">{}</td><td>{}</td></tr>",
            escape(text(part, "label")),
            bytes(number(part, "bytes")),
            escape(text(part, "path")),
        );
    }
    out.push_str("</table>\n");
}
