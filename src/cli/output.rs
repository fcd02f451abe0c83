//! Output to stdout and stderr. Only results go to stdout.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use serde::Serialize;

use super::args::{Color, Format, GlobalFlags};
use super::terminal;
use crate::app::error::Error;
use crate::model::display::shell_word;
use crate::report::text::{Screen, acts_on_terminal, safe, wrap_lines};

/// Sets the use of colours and styles; for `auto`, `NO_COLOR` and the terminal decide.
pub(super) fn set_color(color: Color) {
    let choice = match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Prints text for people. On a terminal, longer lines are wrapped between words.
pub(super) fn text(text: &str) -> Result<(), Error> {
    let screen = terminal::screen();
    match screen.width.filter(|_| screen.truncates) {
        Some(width) => script(&wrap_lines(&shown(text), width)),
        None => script(&shown(text)),
    }
}

/// Start of a layersweep command in a text. Flags are inserted after it, so that a copied command acts on the
/// same stores.
const COMMAND: &str = "`layersweep";

const PROGRAM: &str = "layersweep";

/// Commands to which no flags are added if the flags name another root (`--sysroot`): these commands delete nothing
/// there, and must run on the node that owns the disk.
const DELETING: [&str; 3] = ["gc", "rm", "sweep"];

/// Flags that a command in a text needs to act on the same stores.
struct StoreFlags {
    text: String,
    /// True if the flags name another root.
    is_foreign: bool,
}

static STORE_FLAGS: OnceLock<StoreFlags> = OnceLock::new();

/// Sets the stores, configuration and records that commands in a text name.
pub(super) fn set_store_flags(flags: &GlobalFlags) {
    let graphroots = flags.graphroot.iter().map(|path| ("graphroot", path));
    let roots = flags.containerd_root.iter().map(|path| ("containerd-root", path));
    let others = [
        ("sysroot", &flags.sysroot),
        ("runroot", &flags.runroot),
        ("config", &flags.config),
        ("state-dir", &flags.state_dir),
    ];
    let others = others.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?)));
    let endpoint = flags.cri_endpoint.iter().map(|uri| ("cri-endpoint", uri.clone()));
    let stores = graphroots.chain(roots).map(|(name, path)| (name, path.display().to_string()));
    let others = others.map(|(name, path)| (name, path.display().to_string()));
    let all = stores.chain(endpoint).chain(others);
    let text: String = all.map(|(name, value)| format!(" --{name} {}", safe(&shell_word(&value)))).collect();
    let _ = STORE_FLAGS.set(StoreFlags { text, is_foreign: flags.sysroot.is_some() });
}

/// Prepares text for this terminal: adds flags to commands, and replaces characters outside ASCII if the
/// locale is not UTF-8.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    let text: Cow<'_, str> = match STORE_FLAGS.get() {
        Some(flags) if !flags.text.is_empty() => with_flags(text, flags).into(),
        _ => text.into(),
    };
    if text.is_ascii() || terminal::is_unicode() { text } else { ascii(&text).into() }
}

/// Adds the flags to a command of a document.
pub(super) fn command(command: &str) -> String {
    let quoted = format!("`{command}`");
    let whole = STORE_FLAGS.get().map_or_else(|| quoted.clone(), |flags| with_flags(&quoted, flags));
    whole.trim_matches('`').to_owned()
}

fn with_flags(text: &str, flags: &StoreFlags) -> String {
    let lines = text.split_inclusive('\n').map(|line| match deletes(line) && !flags.is_foreign {
        true => line.replacen(PROGRAM, &format!("{PROGRAM}{}", flags.text), 1).into(),
        false => Cow::from(line),
    });
    let text: String = lines.collect();
    let mut parts = text.split(COMMAND);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(COMMAND);
        // The text may be wrapped here.
        let word = part.split_whitespace().next().unwrap_or_default().trim_end_matches('`');
        let is_command = part.starts_with(char::is_whitespace);
        if is_command && !(flags.is_foreign && DELETING.contains(&word)) {
            out.push_str(&flags.text);
        }
        out.push_str(part);
    }
    out
}

/// Returns true for an indented line that is a command: the lists of a report have them without quotes.
fn deletes(line: &str) -> bool {
    let mut words = line.split_whitespace();
    line.starts_with(' ')
        && words.next() == Some(PROGRAM)
        && words.next().is_some_and(|word| DELETING.contains(&word))
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
pub(super) fn script(text: &str) -> Result<(), Error> {
    let mut stdout = anstream::AutoStream::auto(io::stdout().lock());
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::output)
}

/// Prints text for people to stderr, if it is not a result.
pub(super) fn on_stderr(text: &str) -> Result<(), Error> {
    let mut stderr = anstream::AutoStream::auto(io::stderr().lock());
    let shown = match terminal::width(io::stderr()) {
        Some(width) => wrap_lines(&shown(text), width),
        None => shown(text).into_owned(),
    };
    stderr.write_all(shown.as_bytes()).and_then(|()| stderr.flush()).map_err(Error::output)
}

/// Prints a document for programs. On a terminal, the same characters as in tables are escaped, in the notation
/// of JSON, so the document stays the same.
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

/// Prints a result in the format of `--format`.
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

/// Escapes characters that control a terminal, in the notation of JSON.
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

/// Prints one id on each line, escaped only on a terminal.
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

    #[test]
    fn command_in_a_text_names_the_stores() {
        fn shown(text: &str, is_foreign: bool) -> String {
            with_flags(text, &StoreFlags { text: " --graphroot /x".into(), is_foreign })
        }
        assert_eq!(
            shown("layersweep: see `layersweep usage`, `x`.", false),
            "layersweep: see `layersweep --graphroot /x usage`, `x`."
        );
        assert_eq!(
            shown("`layersweep\n    scan` and `layersweep gc`", false),
            "`layersweep --graphroot /x\n    scan` and `layersweep --graphroot /x gc`"
        );
        assert_eq!(
            shown("`layersweep gc` or `layersweep scan`", true),
            "`layersweep gc` or `layersweep --graphroot /x scan`"
        );
        // A list of a report.
        let list =
            "layersweep deletes, because nothing uses it:\n   1 GiB\n      layersweep gc --via direct\n";
        assert_eq!(shown(list, false), list.replace("layersweep gc", "layersweep --graphroot /x gc"));
        assert_eq!(shown(list, true), list);
    }
}
