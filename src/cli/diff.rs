//! `layersweep diff A B`

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use jiff::Timestamp;

use super::args::{DiffArgs, Format};
use super::global::Global;
use super::values::Since;
use super::{output, terminal};
use crate::app::database::Database;
use crate::app::error::{Error, Exit};
use crate::app::kept_scans;
use crate::app::scan;
use crate::history::Access;
use crate::history::pictures::{self, Missing, Name};
use crate::model::picture::{Place, Taken};
use crate::report::{json, text};

/// What is compared unless it is named.
const BEFORE: &str = "last~1";
const AFTER: &str = "last";
/// Looks, and keeps nothing.
const NOW: &str = "now";
/// No longer file is read; a scan of 20,000 layers is some 20 MB.
const FILE_MIB: u64 = 256;

/// Where a scan is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Now,
    Records,
}

pub(super) fn run(global: &Global, own: &DiffArgs) -> Result<Exit, Error> {
    let mut open = None;
    let (mut before, first) = taken(global, own.before.as_deref().unwrap_or(BEFORE), &mut open)?;
    let (mut after, second) = taken(global, own.after.as_deref().unwrap_or(AFTER), &mut open)?;
    let is = |source: Source| first == source || second == source;
    let part = is(Source::Now) && global.request.names_stores;
    // The scans of one node are of that node, even if no store of the first is left.
    if is(Source::File) || part {
        same_node(&before, &after)?;
    }
    // What was not looked at has not gone.
    if part && first == Source::Now {
        after.picture.only_what_is_in(&before.picture);
    } else if part {
        before.picture.only_what_is_in(&after.picture);
    }
    let document = json::diff(Timestamp::now(), &before, &after);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::diff(&document, &terminal::screen()))?,
    }
    Ok(if document.complete { Exit::Done } else { Exit::Incomplete })
}

fn same_node(before: &Taken, after: &Taken) -> Result<(), Error> {
    let (here, there) = (before.picture.places(), after.picture.places());
    if !here.is_disjoint(&there) {
        return Ok(());
    }
    let roots = |places: BTreeSet<&Place>| {
        let roots: Vec<_> = places.iter().map(|place| place.root.clone()).collect();
        if roots.is_empty() { "no store".to_owned() } else { roots.join(", ") }
    };
    Err(Error::usage(format!(
        "{} and {} have no store in common: the first has {}, the second {}",
        before.id,
        after.id,
        roots(here),
        roots(there)
    ))
    .hint("name two scans of the same node"))
}

/// The scan that a word means: a file, the present, or one of the records, which are opened for the
/// first. A file whose name is such a word is named by its path: `./last`.
fn taken(global: &Global, word: &str, open: &mut Option<Database>) -> Result<(Taken, Source), Error> {
    if word == NOW {
        let surveyed = scan::scan(&global.request, global)?;
        let survey = &surveyed.survey;
        let taken = Taken { id: NOW.into(), at: survey.taken_at, picture: kept_scans::of(survey) };
        return Ok((taken, Source::Now));
    }
    let is_file = || Path::new(word).is_file();
    let Some(name) = name(word) else {
        if word == "-" || word.contains('/') || is_file() {
            return Ok((of_file(word)?, Source::File));
        }
        return Err(Error::usage(format!("{word:?} names no scan")).hint(
            "now, last, last~3, the id of a scan (`layersweep history --scans` lists them), a time like \
                   2026-11-20T10:00, or a file of `layersweep scan --format json`",
        ));
    };
    let open = match open {
        Some(open) => open,
        none => none.insert(Database::open(&global.request, global, Access::Read)?),
    };
    let scans = open.read(pictures::all)?;
    let found = pictures::find(&scans, &name).map_err(|missing| {
        let (why, hint) = match missing {
            _ if open.unreadable => {
                ("the records cannot be read".to_owned(), "`layersweep doctor` tells what is wrong with them")
            }
            Missing::None => (
                missing.to_string(),
                "`layersweep scan` keeps one; `layersweep scan --format json` writes one to a file",
            ),
            Missing::Later(at) => (
                format!("the oldest kept scan is of {}", terminal::screen().minute(at)),
                "`layersweep history --scans` lists the scans that are kept",
            ),
            missing => (missing.to_string(), "`layersweep history --scans` lists the scans that are kept"),
        };
        let file = if is_file() { format!("; the file is named ./{word}") } else { String::new() };
        Error::failed(format!("{word}: {why}")).hint(format!("{hint}{file}"))
    })?;
    let taken = open.read(|connection| pictures::load(connection, found))?;
    Ok((taken, Source::Records))
}

/// What is meant by a word that is no file.
fn name(word: &str) -> Option<Name> {
    match word.strip_prefix("last") {
        Some("") => return Some(Name::Last(0)),
        Some(rest) => return Some(Name::Last(rest.strip_prefix('~')?.parse().ok()?)),
        None => {}
    }
    // 20261120T100000Z-12ab3c: as no other time is written.
    let is_id = word.len() >= 4
        && word.get(..4)?.bytes().all(|digit| digit.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && word.as_bytes().get(4).is_none_or(u8::is_ascii_digit);
    match is_id {
        true => Some(Name::Id(word.to_owned())),
        false => Since::parse(word).ok().map(|since| Name::At(since.at(Timestamp::now()))),
    }
}

fn of_file(word: &str) -> Result<Taken, Error> {
    let unreadable = |error: std::io::Error| {
        Error::failed(format!("{word}: {error}"))
            .hint("name a file that `layersweep scan --format json` has written")
    };
    let refused = |why: String| {
        Error::usage(format!("{word}: {why}"))
            .hint("name a file that `layersweep scan --format json` has written")
    };
    let text = if word == "-" {
        read(std::io::stdin().lock(), FILE_MIB)
    } else {
        std::fs::File::open(word).and_then(|file| read(file, FILE_MIB))
    };
    let text = text.map_err(unreadable)?.ok_or_else(|| refused(format!("longer than {FILE_MIB} MiB")))?;
    json::scan_of(&text, word.to_owned()).map_err(refused)
}

/// All that there is; `None` where that is more than so many MiB.
fn read(from: impl Read, most_mib: u64) -> std::io::Result<Option<Vec<u8>>> {
    let most = most_mib << 20;
    let mut text = Vec::new();
    let length = from.take(most + 1).read_to_end(&mut text)?;
    Ok(u64::try_from(length).is_ok_and(|length| length <= most).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_not_cut() {
        let length = |bytes: u64| read(std::io::repeat(b' ').take(bytes), 1).unwrap().map(|text| text.len());
        assert_eq!((length(0), length(1 << 20), length((1 << 20) + 1)), (Some(0), Some(1 << 20), None));
    }

    #[test]
    fn words_for_scans() {
        let time = |text: &str| Some(Name::At(text.parse().unwrap()));
        let id = |text: &str| Some(Name::Id(text.into()));
        for (word, expected) in [
            ("last", Some(Name::Last(0))),
            ("last~3", Some(Name::Last(3))),
            ("last~", None),
            ("last3", None),
            ("20261120T100000Z-12ab3c", id("20261120T100000Z-12ab3c")),
            ("20261120", id("20261120")),
            ("2026", id("2026")),
            ("2026-11-20T10:00:00Z", time("2026-11-20T10:00:00Z")),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(name(word), expected, "{word}");
        }
        assert!(matches!(name("36h"), Some(Name::At(_))));
        assert!(matches!(name("2026-11-20"), Some(Name::At(_))));
    }
}
