//! The report as a single HTML page: the JSON document, and pictures and tables drawn from it by a script in
//! the page.
//!
//! The page loads nothing. Its content security policy allows only the two scripts and the style that it
//! contains, by their digests, so a script smuggled in by the name of an image does not run. The whole
//! document is in the page once, as JSON on one line, so that a reader of a ticket can extract it.

mod assets;
mod fleet;
mod replay;
mod still;

use std::borrow::Cow;
use std::fmt::Write as _;

use anstream::adapter::strip_str;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::report::json::ReportDoc;
use crate::report::text::{self, Screen, acts_on_terminal, safe};
pub use fleet::fleet_page;
pub use replay::replay_page;

/// Builds the page of a report, with its end of line. `in_json` and `in_text` add flags to layersweep's own commands.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn page(
    report: &ReportDoc,
    in_json: &dyn for<'a> Fn(&'a str) -> Cow<'a, str>,
    in_text: &dyn for<'a> Fn(&'a str) -> Cow<'a, str>,
) -> serde_json::Result<String> {
    let generated_at = report.header.generated_at;
    let place = report
        .host
        .as_ref()
        .or(report.sysroot.as_ref())
        .map(|place| format!(" of {}", safe(place)))
        .unwrap_or_default();
    let title = format!("layersweep report{place}, {}", generated_at.strftime("%Y-%m-%d"));
    let json = serde_json::to_string(report)?;
    Ok(page_with(&in_json(&json), &title, &generated_at.to_string(), &in_text(&plain(report))))
}

/// Builds the text of a page without scripts: the advice, and the report as text.
fn plain(report: &ReportDoc) -> String {
    let advice = &report.verdict.advice;
    let mut out = format!("{}: {}\n", advice.urgency, safe(&advice.headline));
    for step in &advice.steps {
        let command =
            step.command.as_ref().map(|command| format!("`{}`: ", command.text())).unwrap_or_default();
        out.push_str(&format!("- {}\n", safe(&format!("{command}{}", step.text))));
    }
    let screen =
        Screen { width: Some(100), unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
    format!("{out}\n{}", strip_str(&text::report(report, &screen)))
}

/// Builds the page of any document like a report, with its title, its time and its plain text for a reader
/// without scripts.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn page_of(
    document: &impl Serialize,
    title: &str,
    generated: &str,
    plain: &str,
) -> serde_json::Result<String> {
    Ok(page_with(&serde_json::to_string(document)?, title, generated, plain))
}

fn page_with(json: &str, title: &str, generated: &str, plain: &str) -> String {
    let (library, script) = (assets::LIBRARY, assets::script());
    let policy = format!(
        "default-src 'none'; script-src {} {}; style-src {}; base-uri 'none'; form-action 'none'",
        digest(library),
        digest(&script),
        digest(assets::STYLE),
    );
    fill(assets::PAGE, |name| match name {
        "policy" => policy.as_str().into(),
        "version" => env!("CARGO_PKG_VERSION").into(),
        "title" => escape(title).into(),
        "generated" => escape(generated).into(),
        "plain" => escape(plain).into(),
        "style" => assets::STYLE.into(),
        "document" => embeddable(json).into(),
        "library" => library.into(),
        "script" => script.as_str().into(),
        _ => Cow::Borrowed(""),
    })
}

/// Returns the source expression of the policy for an inline script or style: its digest.
fn digest(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// Escapes plain text for the page. Characters that control a terminal are escaped too, except ends of lines.
fn escape(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(safe).collect();
    let text = lines.join("\n").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Escapes JSON so that no string in it can end the element or start a comment, or control a terminal.
///
/// These characters occur only in strings, where JSON has another notation for them, so the document stays
/// the same.
fn embeddable(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        if matches!(c, '<' | '>' | '&') || acts_on_terminal(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Replaces every `{{name}}` of the template with the value of the name. Values are not searched for names.
fn fill<'a>(template: &str, value: impl Fn(&str) -> Cow<'a, str>) -> String {
    let mut out = String::with_capacity(1 << 18);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        match after.split_once("}}") {
            Some((name, after)) => {
                out.push_str(&value(name));
                rest = after;
            }
            None => {
                out.push_str("{{");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
