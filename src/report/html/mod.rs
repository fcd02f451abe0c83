//! The report as one page: the document, and pictures and tables drawn from it by a script in the page.
//!
//! The page loads nothing. Its content security policy allows the two scripts and the style that are in
//! it, by their digests, and nothing else: what a foreign string might smuggle in does not run.
//! The whole document is in it once, as JSON on one line, so that a reader of a ticket can take it out.

mod assets;
mod plain;

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::report::text::acts_on_terminal;

/// The page of a document of `layersweep report`, with its end of line.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn page(document: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(document)?;
    // The page reads its document as its script does: by the names of the fields.
    let read: Value = serde_json::from_str(&json)?;
    let (library, script) = (assets::LIBRARY, assets::script());
    let policy = format!(
        "default-src 'none'; script-src {} {}; style-src {}; base-uri 'none'; form-action 'none'",
        digest(library),
        digest(&script),
        digest(assets::STYLE),
    );
    Ok(fill(assets::PAGE, |name| match name {
        "policy" => policy.as_str().into(),
        "version" => env!("CARGO_PKG_VERSION").into(),
        "title" => plain::title(&read).into(),
        "generated" => plain::generated(&read).into(),
        "plain" => plain::summary(&read).into(),
        "style" => assets::STYLE.into(),
        "document" => embeddable(&json).into(),
        "library" => library.into(),
        "script" => script.as_str().into(),
        _ => Cow::Borrowed(""),
    }))
}

/// A source of the policy: the digest of an inline script or style.
fn digest(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// JSON that ends no element and starts no comment, whatever its strings say, and that can be shown on a
/// terminal. These characters occur in strings alone, where JSON has another way of writing them: it
/// stays the same document.
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

/// The template with what `value` says for every `{{name}}`. What is filled in is not looked at again.
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
