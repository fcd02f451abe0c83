//! `layersweep rm REF...`

use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::deletion;
use super::global::Global;
use crate::cli::input::args::RmArgs;
use crate::config::Config;
use crate::node::image_lists;
use crate::services::error::{Error, Exit};
use crate::services::gc_request::{GcRequest, ListLine, Selection};
use crate::services::observer::{Audience, Observer as _};
use crate::sys::sysroot::Sysroot;

const MOST_BYTES: u64 = 16 << 20;

/// Name of standard input.
const STDIN: &str = "-";

pub(super) fn run(global: &Global, config: &Config, args: &RmArgs) -> Result<Exit, Error> {
    if args.file.iter().any(|file| file == STDIN) && !global.yes && !args.dry_run {
        let message = "the list is read from standard input, so nothing can be asked: nothing was deleted";
        return Err(Error::usage(message).hint(
            "add -y to delete without a question, --dry-run to see what would be deleted, or name a file",
        ));
    }
    let mut listed = Vec::new();
    for file in &args.file {
        let lines = list(file)?;
        if lines.is_empty() {
            global.warn(Audience::Usual, &format!("{file}: the list names no image"), "see what wrote it");
        }
        listed.extend(lines);
    }
    let request = GcRequest {
        request: &global.request,
        config,
        selection: Selection::Rm { references: &args.references, listed: &listed, all_tags: args.all_tags },
        dry_run: args.dry_run,
        while_runtime_runs: args.while_runtime_runs,
    };
    deletion::run(global, request)
}

fn list(file: &str) -> Result<Vec<ListLine>, Error> {
    let text = if file == STDIN { read_stdin() } else { read_file(Path::new(file)) };
    let text = text.map_err(|error| bad(&format!("{file}: {error}")))?;
    let listed = image_lists::listed(&text)
        .map_err(|line| bad(&format!("{}: {}", place(file, line.number), line.why)))?
        .into_iter()
        .map(|(number, reference)| ListLine {
            place: place(file, number),
            reference: reference.into(),
            store: None,
        });
    Ok(listed.collect())
}

fn place(file: &str, number: usize) -> String {
    match file {
        STDIN => format!("standard input, line {number}"),
        file => format!("{file}:{number}"),
    }
}

/// Reads a regular file. A link is followed: files of a ConfigMap are links.
fn read_file(file: &Path) -> std::io::Result<String> {
    // A shell passes the output of a command as `/dev/fd/63`.
    if std::fs::metadata(file).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(std::io::Error::other("it is not a regular file; `-` reads from standard input"));
    }
    Sysroot::live().read(&std::path::absolute(file)?, MOST_BYTES)
}

fn read_stdin() -> std::io::Result<String> {
    let mut text = String::new();
    let length = std::io::stdin().lock().take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if length as u64 > MOST_BYTES {
        Err(std::io::Error::other(format!("longer than the limit of {MOST_BYTES} bytes")))
    } else {
        Ok(text)
    }
}

fn bad(message: &str) -> Error {
    Error::usage(format!("{message}; nothing was deleted")).hint(
        "a list has one reference, whole digest or whole id a line; # begins a comment; `-` reads from standard input",
    )
}
