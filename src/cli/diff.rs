//! `layersweep diff A B`

use std::io::Read;
use std::path::Path;

use jiff::Timestamp;

use super::global::Global;
use crate::app::comparison::{self, ScanSource};
use crate::cli::input::args::DiffArgs;
use crate::cli::input::values::Since;
use crate::cli::screen::output;
use crate::history::kept_scans::ScanName;
use crate::model::documents::read_scan::read_scan;
use crate::model::documents::scan_summary::ComparedScan;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

/// Scans that are compared by default.
const BEFORE: &str = "last~1";
const AFTER: &str = "last";
const FILE_MIB: u64 = 256;

pub(super) fn run(global: &Global, args: &DiffArgs) -> Result<Exit, Error> {
    let before = source(args.before.as_deref().unwrap_or(BEFORE))?;
    let after = source(args.after.as_deref().unwrap_or(AFTER))?;
    let compared = comparison::pair(&global.request, global, before, after)?;
    let document = json::diff(Timestamp::now(), &compared);
    output::result(global.format, &document, text::diff)?;
    Ok(if document.complete { Exit::Done } else { Exit::Incomplete })
}

/// Finds the scan that a word means: a file, the current state, or a recorded scan. A file with the name of a
/// recorded scan is named by its path: `./last`.
fn source(word: &str) -> Result<ScanSource, Error> {
    if word == "now" {
        return Ok(ScanSource::Now);
    }
    if let Some(name) = name(word) {
        return Ok(ScanSource::Kept(word.to_owned(), name));
    }
    if word == "-" || word.contains('/') || Path::new(word).is_file() {
        return of_file(word).map(ScanSource::Read);
    }
    Err(Error::usage(format!("no such scan: {word:?}")).hint(
        "now, last, last~3, the id of a scan (`layersweep history --scans` lists them), a time like \
         2026-11-20T10:00, or a file of `layersweep scan --format json`",
    ))
}

fn name(word: &str) -> Option<ScanName> {
    match word.strip_prefix("last") {
        Some("") => return Some(ScanName::Last(0)),
        Some(rest) => return Some(ScanName::Last(rest.strip_prefix('~')?.parse().ok()?)),
        None => {}
    }
    // An id like 20261120T100000Z-12ab3c; no time has this form.
    let is_id = word.len() >= 4
        && word.get(..4)?.bytes().all(|digit| digit.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && word.as_bytes().get(4).is_none_or(u8::is_ascii_digit);
    if is_id {
        Some(ScanName::Id(word.to_owned()))
    } else {
        Since::parse(word).ok().map(|since| ScanName::At(since.at(Timestamp::now())))
    }
}

fn of_file(word: &str) -> Result<ComparedScan, Error> {
    read_scan(&read_document(word)?, word.to_owned()).map_err(|why| refused(word, &why))
}

/// Reads the document of a saved scan.
pub(super) fn read_document(word: &str) -> Result<Vec<u8>, Error> {
    let text = if word == "-" {
        read(std::io::stdin().lock(), FILE_MIB)
    } else {
        std::fs::File::open(word).and_then(|file| read(file, FILE_MIB))
    };
    text.map_err(|error| Error::failed(format!("{word}: {error}")).hint(FILE_HINT))?
        .ok_or_else(|| refused(word, &format!("longer than {FILE_MIB} MiB")))
}

const FILE_HINT: &str = "name a file that `layersweep scan --format json` has written";

/// Returns the error for a file that is not the document of a scan.
pub(super) fn refused(word: &str, why: &str) -> Error {
    Error::usage(format!("{word}: {why}")).hint(FILE_HINT)
}

/// Reads everything, or returns `None` if it is longer than `max_mib` MiB.
fn read(from: impl Read, max_mib: u64) -> std::io::Result<Option<Vec<u8>>> {
    let max_bytes = max_mib << 20;
    let mut text = Vec::new();
    let length = from.take(max_bytes + 1).read_to_end(&mut text)?;
    Ok(u64::try_from(length).is_ok_and(|length| length <= max_bytes).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_file_is_refused_instead_of_cut() {
        let length = |bytes: u64| read(std::io::repeat(b' ').take(bytes), 1).unwrap().map(|text| text.len());
        assert_eq!((length(0), length(1 << 20), length((1 << 20) + 1)), (Some(0), Some(1 << 20), None));
    }

    #[test]
    fn scans_are_named_by_id_position_or_time() {
        fn time(text: &str) -> Option<ScanName> {
            Some(ScanName::At(text.parse().unwrap()))
        }
        fn id(text: &str) -> Option<ScanName> {
            Some(ScanName::Id(text.into()))
        }
        for (word, expected) in [
            ("last", Some(ScanName::Last(0))),
            ("last~3", Some(ScanName::Last(3))),
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
        assert!(matches!(name("36h"), Some(ScanName::At(_))));
        assert!(matches!(name("2026-11-20"), Some(ScanName::At(_))));
    }
}
