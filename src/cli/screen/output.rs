//! Output to stdout and stderr. Only results go to stdout.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use serde::Serialize;

use crate::cli::input::args::{Color, Format, GlobalFlags};
use crate::cli::screen::own_commands::{Notation, StoreFlags};
use crate::cli::screen::terminal;
use crate::report::text::{Screen, acts_on_terminal, safe, wrap_lines};
use crate::services::error::Error;

/// Sets the use of colours and styles; for `auto`, `NO_COLOR` and the terminal decide.
pub fn set_color(color: Color) {
    let choice = match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Prints text for people. On a terminal, longer lines are wrapped between words.
pub fn text(text: &str) -> Result<(), Error> {
    let screen = terminal::screen();
    match screen.width.filter(|_| screen.truncates) {
        Some(width) => script(&wrap_lines(&shown(text), width)),
        None => script(&shown(text)),
    }
}

static STORE_FLAGS: OnceLock<StoreFlags> = OnceLock::new();

pub fn set_store_flags(flags: &GlobalFlags) {
    let _ = STORE_FLAGS.set(StoreFlags::of(flags));
}

/// Adds the flags of this invocation to layersweep's own commands in a text.
pub fn with_store_flags(text: &str, notation: Notation) -> Cow<'_, str> {
    STORE_FLAGS.get().map_or_else(|| text.into(), |flags| flags.complete(text, notation))
}

/// Prepares text for this terminal: adds flags to commands, and replaces characters outside ASCII if the
/// locale is not UTF-8.
pub fn shown(text: &str) -> Cow<'_, str> {
    let text = with_store_flags(text, Notation::Text);
    if text.is_ascii() || terminal::is_unicode() { text } else { ascii(&text).into() }
}

/// Replaces layersweep's own signs with similar ones in ASCII, and escapes other characters.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '…' => out.push_str("..."),
            '→' => out.push_str("->"),
            '─' => out.push('-'),
            '│' | '├' => out.push('|'),
            '└' => out.push('`'),
            c if c.is_ascii() => out.push(c),
            c => out.extend(c.escape_unicode()),
        }
    }
    out
}

/// Prints text as it is. Only colours are removed where the output does not take them.
pub fn script(text: &str) -> Result<(), Error> {
    let mut stdout = anstream::AutoStream::auto(io::stdout().lock());
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::output)
}

/// Prints text for people to stderr, if it is not a result.
pub fn on_stderr(text: &str) -> Result<(), Error> {
    let mut stderr = anstream::AutoStream::auto(io::stderr().lock());
    let shown = match terminal::width(io::stderr()) {
        Some(width) => wrap_lines(&shown(text), width),
        None => shown(text).into_owned(),
    };
    stderr.write_all(shown.as_bytes()).and_then(|()| stderr.flush()).map_err(Error::output)
}

/// Prints a document for programs. On a terminal, the same characters as in tables are escaped, in the notation
/// of JSON, so the document stays the same.
pub fn json(document: &impl Serialize) -> Result<(), Error> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        let text = serde_json::to_string_pretty(document).map_err(io::Error::from).map_err(Error::output)?;
        return plain(&(escape(&with_store_flags(&text, Notation::Json)) + "\n"));
    }
    let no_flags = StoreFlags::default();
    let stdout = io::BufWriter::with_capacity(1 << 16, stdout.lock());
    let mut writer = STORE_FLAGS.get().unwrap_or(&no_flags).writer(stdout);
    serde_json::to_writer_pretty(&mut writer, document).map_err(io::Error::from).map_err(Error::output)?;
    writer.write_all(b"\n").and_then(|()| writer.finish()).map_err(Error::output)
}

/// Writes lines for programs as they come, without holding all of them.
pub fn lines(write: impl FnOnce(&mut dyn Write) -> Result<(), Error>) -> Result<(), Error> {
    let mut stdout = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    write(&mut stdout)?;
    stdout.flush().map_err(Error::output)
}

pub fn result<D: Serialize>(
    format: Format,
    document: &D,
    table: impl FnOnce(&D, &Screen) -> String,
) -> Result<(), Error> {
    match format {
        Format::Json => json(document),
        Format::Table => text(&table(document, &terminal::screen())),
    }
}

/// Escapes characters that control a terminal, in the notation of JSON.
fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for line in json.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        for c in line.chars() {
            if acts_on_terminal(c) {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")))
            } else {
                out.push(c)
            }
        }
        out.push_str(end);
    }
    out
}

/// Prints one id on each line, escaped only on a terminal.
pub fn ids<'a>(ids: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let terminal = io::stdout().is_terminal();
    let mut out = String::new();
    for id in ids {
        if terminal {
            out.push_str(&safe(id))
        } else {
            out.push_str(id)
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
    fn text_without_utf_8_is_ascii() {
        assert_eq!(ascii("├─ a…b │ └─ → ü"), "|- a...b | `- -> \\u{fc}");
    }

    #[test]
    fn escaped_json_is_the_same_document() {
        let name = "a\u{9b}31m\u{202e}b\nü";
        let text = serde_json::to_string_pretty(&serde_json::json!({ "name": name })).unwrap();
        let escaped = escape(&text);
        assert!(escaped.contains("\\u009b") && escaped.contains("\\u202e") && escaped.contains('ü'));
        assert!(!escaped.contains(['\u{9b}', '\u{202e}']));
        let back: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(back["name"], name);
    }
}
