//! `layersweep pin add|remove|list`

use jiff::Timestamp;

use super::args::{Format, PinArgs, PinCommand};
use super::global::Global;
use super::{output, terminal};
use crate::app::database::Database;
use crate::app::error::{Error, Exit};
use crate::app::observer::{Observer as _, Weight};
use crate::history::Access;
use crate::history::known::{self, Known, Life};
use crate::history::pins::{self, Pattern, Pin};
use crate::report::{json, text};

pub(super) fn run(global: &Global, own: &PinArgs) -> Result<Exit, Error> {
    match &own.command {
        PinCommand::Add { patterns, note } => add(global, patterns, note.as_deref()),
        PinCommand::Remove { patterns } => remove(global, patterns),
        PinCommand::List => {
            let records = Database::open(&global.request, global, Access::Read)?;
            print(global, &records, Vec::new(), Vec::new(), true)?;
            Ok(if records.unreadable { Exit::Incomplete } else { Exit::Done })
        }
    }
}

fn add(global: &Global, patterns: &[String], note: Option<&str>) -> Result<Exit, Error> {
    // All are read before one is written.
    let patterns = patterns.iter().map(|text| Pattern::parse(text)).collect::<Result<Vec<_>, _>>();
    let patterns = patterns.map_err(|error| {
        Error::usage(error.to_string()).hint(
            "a pattern is a glob like docker.io/library/nginx:*, a digest or an image id: see \
               `layersweep pin add --help`",
        )
    })?;
    let mut records = writable(global)?;
    let now = Timestamp::now();
    let done = records.write(|tx| {
        patterns.iter().map(|pattern| pins::add(tx, pattern, note, now)).collect::<rusqlite::Result<Vec<_>>>()
    })?;
    let known = records.read(known::images)?;
    let mut added = Vec::new();
    for (pattern, done) in patterns.iter().zip(done) {
        match done {
            pins::Added::New => added.push(pattern.text().to_owned()),
            pins::Added::Noted => {
                global.note(&format!("{:?} was pinned already; its note is new", pattern.text()))
            }
            pins::Added::Already => global.note(&format!("{:?} was pinned already", pattern.text())),
        }
        if done == pins::Added::New
            && !pattern.text().contains(['/', '*', '?', '{', '['])
            && !is_id(pattern.text())
        {
            let text = pattern.text();
            global.note(&format!(
                "{text:?} is no full reference like docker.io/library/nginx:1.27; `*/{text}` matches them"
            ));
        }
    }
    print(global, &records, added, Vec::new(), false)?;
    for pattern in &patterns {
        tell_reach(global, pattern, &known);
    }
    Ok(Exit::Done)
}

/// How many images a pattern covers, of those that the last scan saw. Nothing where there was none.
fn tell_reach(global: &Global, pattern: &Pattern, known: &Known) {
    let (all, text) = (known.all().count(), pattern.text());
    // The records have no digests of manifests.
    let covers = |life: &&Life| pattern.covers(&life.names, &[] as &[&str], &life.image_id);
    match known.all().filter(covers).count() {
        _ if all == 0 => {}
        0 if text.contains("sha256:") => {}
        0 => global.warn(
            Weight::Usual,
            &format!("{text:?} covers none of the {all} images that the last scan saw"),
            "it will cover images that come and match; `layersweep images` shows names in full",
        ),
        some => global.note(&format!("{text:?} covers {some} of the {all} images that the last scan saw")),
    }
}

fn remove(global: &Global, patterns: &[String]) -> Result<Exit, Error> {
    refuse_sysroot(global)?;
    // Where there is no database there is nothing to remove, and none is made.
    let known = Database::open(&global.request, global, Access::Read)?.read(pins::list)?;
    let (removed, missing): (Vec<_>, Vec<_>) =
        patterns.iter().cloned().partition(|pattern| known.iter().any(|pin| pin.pattern == *pattern));
    if removed.is_empty() {
        return Err(not_there(&missing, &known));
    }
    let mut records = writable(global)?;
    records.write(|tx| {
        removed.iter().map(|pattern| pins::remove(tx, pattern)).collect::<rusqlite::Result<Vec<_>>>()
    })?;
    print(global, &records, Vec::new(), removed, false)?;
    match missing.is_empty() {
        true => Ok(Exit::Done),
        false => Err(not_there(&missing, &known)),
    }
}

fn not_there(missing: &[String], known: &[Pin]) -> Error {
    let mut near: Vec<_> = missing.iter().flat_map(|pattern| pins::near(known, pattern)).collect();
    near.sort_unstable();
    near.dedup();
    let quoted: Vec<_> = missing.iter().map(|pattern| format!("{pattern:?}")).collect();
    Error::failed(format!("not pinned: {}", quoted.join(", "))).hint(match near.as_slice() {
        [] => "`layersweep pin list` lists what is".into(),
        near => format!("pinned and near to it: {}", near.join(", ")),
    })
}

/// Digits alone, or a digest: no name of an image.
fn is_id(text: &str) -> bool {
    text.starts_with("sha256:") || text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn writable(global: &Global) -> Result<Database, Error> {
    refuse_sysroot(global)?;
    Database::open_to_keep(&global.request, global)
}

fn refuse_sysroot(global: &Global) -> Result<(), Error> {
    match global.request.sysroot {
        None => Ok(()),
        Some(_) => {
            Err(Error::usage("--sysroot: nothing is ever written there, so the keep-list cannot be changed")
                .hint("leave out --sysroot to change the keep-list of this machine"))
        }
    }
}

/// For people: the list where it was asked for, else what changed. For programs: the list.
fn print(
    global: &Global,
    records: &Database,
    added: Vec<String>,
    removed: Vec<String>,
    whole: bool,
) -> Result<(), Error> {
    let mut document =
        json::pins(Timestamp::now(), records.path(), !records.unreadable, records.read(pins::list)?);
    document.added = added;
    document.removed = removed;
    match global.format {
        Format::Json => output::json(&document),
        Format::Table if whole && global.quiet => {
            output::ids(document.pins.iter().map(|pin| pin.pattern.as_str()))
        }
        Format::Table if whole => output::text(&text::pins(&document, &terminal::screen())),
        Format::Table => output::text(&text::pins_changed(&document)),
    }
}
