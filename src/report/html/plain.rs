//! What the page says without its script: the summary and the filesystems.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::report::text::{bytes, safe};

/// The fields of the document that the page itself needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    pub(super) generated_at: String,
    host: Option<String>,
    sysroot: Option<String>,
    verdict: Verdict,
    filesystems: Vec<Filesystem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verdict {
    urgency: String,
    headline: String,
    steps: Vec<PlainStep>,
    sentences: Vec<String>,
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PlainStep {
    command: Option<String>,
    text: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    text: String,
    bytes: u64,
    path: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filesystem {
    mount: String,
    capacity_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    inodes: u64,
    inodes_free: u64,
    parts: Vec<FilesystemPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FilesystemPart {
    label: String,
    bytes: u64,
    path: Option<String>,
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
pub(super) fn title(head: &Head) -> String {
    let place = head.host.as_deref().or(head.sysroot.as_deref());
    let place = place.map(|place| format!(" of {}", escape(place))).unwrap_or_default();
    let day = head.generated_at.get(..10).unwrap_or_default();
    format!("layersweep report{place}, {}", escape(day))
}

/// Summary, findings and filesystems as plain markup.
pub(super) fn summary(head: &Head) -> String {
    let mut out = String::new();
    let verdict = &head.verdict;
    // Writing to a String cannot fail.
    if !verdict.headline.is_empty() {
        let (urgency, headline) = (escape(&verdict.urgency), escape(&verdict.headline));
        let _ = writeln!(out, "<p><strong>{urgency}: {headline}</strong></p>");
    }
    if !verdict.steps.is_empty() {
        out.push_str("<ol>\n");
        for step in &verdict.steps {
            let command =
                step.command.as_deref().map(|command| format!("<code>{}</code>: ", escape(command)));
            let _ = writeln!(out, "<li>{}{}</li>", command.unwrap_or_default(), escape(&step.text));
        }
        out.push_str("</ol>\n");
    }
    for sentence in &head.verdict.sentences {
        let _ = writeln!(out, "<p>{}</p>", escape(sentence));
    }
    if !head.verdict.causes.is_empty() {
        let _ = writeln!(out, "<h2>Findings</h2>\n<ul>");
        for cause in &head.verdict.causes {
            let path = cause.path.as_deref().map(|path| format!(" ({})", escape(path)));
            let (text, path) = (escape(&cause.text), path.unwrap_or_default());
            let _ = writeln!(out, "<li>{}: {text}{path}</li>", bytes(cause.bytes));
        }
        out.push_str("</ul>\n");
    }
    for filesystem in &head.filesystems {
        let _ = writeln!(
            out,
            "<h2>{}</h2>\n<p>Of {}, {} used, {} available.{}</p>\n<table>",
            escape(&filesystem.mount),
            bytes(filesystem.capacity_bytes),
            bytes(filesystem.used_bytes),
            bytes(filesystem.available_bytes),
            match filesystem.inodes {
                0 => String::new(),
                all => format!(" Of {all} inodes, {} used.", all.saturating_sub(filesystem.inodes_free)),
            },
        );
        for part in &filesystem.parts {
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td class=\"num\">{}</td><td>{}</td></tr>",
                escape(&part.label),
                bytes(part.bytes),
                part.path.as_deref().map(escape).unwrap_or_default(),
            );
        }
        out.push_str("</table>\n");
    }
    out
}
