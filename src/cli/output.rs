//! Results go to stdout, in one piece.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::args::{Color, Format};
use super::terminal;
use crate::app::error::Error;
use crate::report::text::{Screen, acts_on_terminal, safe};

/// Settles whether styles are kept; `NO_COLOR` and the terminal decide for `auto`.
pub(super) fn set_color(color: Color) {
    let choice = match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Prints text for people.
pub(super) fn text(text: &str) -> Result<(), Error> {
    let mut stdout = anstream::AutoStream::auto(io::stdout().lock());
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::output)
}

/// Shows text to a person on stderr: what is no result.
pub(super) fn on_stderr(text: &str) -> Result<(), Error> {
    let mut stderr = anstream::AutoStream::auto(io::stderr().lock());
    stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).map_err(Error::output)
}

/// Prints a document for programs. A person may look at it on a terminal, so there it is
/// escaped as tables are; it stays the same document.
pub(super) fn json(document: &impl Serialize) -> Result<(), Error> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        let text = serde_json::to_string_pretty(document).map_err(io::Error::from).map_err(Error::output)?;
        return plain(&(escape(&text) + "\n"));
    }
    let mut stdout = io::BufWriter::with_capacity(1 << 16, stdout.lock());
    serde_json::to_writer_pretty(&mut stdout, document).map_err(io::Error::from).map_err(Error::output)?;
    stdout.write_all(b"\n").and_then(|()| stdout.flush()).map_err(Error::output)
}

/// Prints a result as `--format` says.
pub(super) fn result<D: Serialize>(
    format: Format,
    document: &D,
    table: impl FnOnce(&D, &Screen) -> String,
) -> Result<(), Error> {
    match format {
        Format::Json => json(document),
        Format::Table => text(&table(document, &terminal::screen())),
    }
}

/// What acts on a terminal, in JSON's own way of writing it.
fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for line in json.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        for c in line.chars() {
            match acts_on_terminal(c) {
                true => out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
                false => out.push(c),
            }
        }
        out.push_str(end);
    }
    out
}

/// Prints one id a line: as it is for programs, escaped for people.
pub(super) fn ids<'a>(ids: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let terminal = io::stdout().is_terminal();
    let mut out = String::new();
    for id in ids {
        match terminal {
            true => out.push_str(&safe(id)),
            false => out.push_str(id),
        }
        out.push('\n');
    }
    plain(&out)
}

fn plain(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_a_terminal_stays_the_same_document() {
        let name = "a\u{9b}31m\u{202e}b\nü";
        let text = serde_json::to_string_pretty(&serde_json::json!({ "name": name })).unwrap();
        let escaped = escape(&text);
        assert!(escaped.contains("\\u009b") && escaped.contains("\\u202e") && escaped.contains('ü'));
        assert!(!escaped.contains(['\u{9b}', '\u{202e}']));
        let back: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(back["name"], name);
    }
}
