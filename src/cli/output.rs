//! Results go to stdout, in one piece.

use std::io::{self, Write};

use serde::Serialize;

use super::args::Color;
use super::failure::Failure;

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
pub(super) fn text(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::AutoStream::auto(io::stdout().lock());
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Prints a document for programs.
pub(super) fn json(document: &impl Serialize) -> Result<(), Failure> {
    let stdout = io::stdout().lock();
    let mut stdout = io::BufWriter::with_capacity(1 << 16, stdout);
    serde_json::to_writer_pretty(&mut stdout, document).map_err(io::Error::from).map_err(Failure::Output)?;
    stdout.write_all(b"\n").and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Prints one id a line.
pub(super) fn ids<'a>(ids: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let mut out = String::new();
    for id in ids {
        out.push_str(id);
        out.push('\n');
    }
    text(&out)
}
