//! `diff` and `usage --since`: two scans that were kept, are read from files or are made now.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::history::Access;
use crate::history::kept_scans::{self as history, Missing, ScanName};
use crate::model::documents::comparison::ScanComparison;
use crate::model::documents::scan_summary::{ComparedScan, SummaryStore};
use crate::services::database::Database;
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::request::Request;
use crate::services::{kept_scans, scan};

#[derive(Debug)]
pub enum ScanSource {
    /// A new scan, which is not kept.
    Now,
    /// A kept scan: its name as the user typed it, and as parsed.
    Kept(String, ScanName),
    Read(ComparedScan),
}

impl ScanSource {
    fn is_now(&self) -> bool {
        matches!(self, Self::Now)
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Read(_))
    }
}

/// Loads or makes both scans.
///
/// # Errors
/// When there is no such scan, when a new one fails, or when the two are of different nodes.
pub fn pair(
    request: &Request,
    observer: &dyn Observer,
    before: ScanSource,
    after: ScanSource,
) -> Result<ScanComparison, Error> {
    let is_any_read = before.is_read() || after.is_read();
    let first_is_now = before.is_now();
    let is_partial = (first_is_now || after.is_now()) && request.names_stores;
    let mut database = None;
    let mut before = obtain(request, observer, before, &mut database)?;
    let mut after = obtain(request, observer, after, &mut database)?;
    // Complete scans from this database are of one node, even if they have no store in common.
    if is_any_read || is_partial {
        check_same_node(&before, &after)?;
    }
    // A store that the new scan did not read is not reported as removed.
    if is_partial && first_is_now {
        after.summary.retain_common(&before.summary);
    } else if is_partial {
        before.summary.retain_common(&after.summary);
    }
    Ok(ScanComparison { before, after })
}

fn obtain(
    request: &Request,
    observer: &dyn Observer,
    source: ScanSource,
    database: &mut Option<Database>,
) -> Result<ComparedScan, Error> {
    let (word, name) = match source {
        ScanSource::Read(taken) => return Ok(taken),
        ScanSource::Now => return now(request, observer),
        ScanSource::Kept(word, name) => (word, name),
    };
    let database = match database {
        Some(database) => database,
        none => none.insert(Database::open(request, Access::Read)?.warn(observer)),
    };
    let scans = database.read(history::all)?;
    let found =
        history::find(&scans, &name).map_err(|missing| no_such_scan(&word, &missing, database.unreadable))?;
    database.read(|connection| history::load(connection, found))
}

fn now(request: &Request, observer: &dyn Observer) -> Result<ComparedScan, Error> {
    let scan = scan::scan(request, observer)?.scan;
    Ok(ComparedScan { id: "now".into(), taken_at: scan.taken_at, summary: kept_scans::of(request, &scan) })
}

/// Scans, and compares with the last kept scan that had begun at the time `since`, or else with the oldest.
///
/// # Errors
/// When no scan is kept, or as [`crate::services::scan::scan`].
pub fn since(request: &Request, observer: &dyn Observer, since: Timestamp) -> Result<ScanComparison, Error> {
    let database = Database::open(request, Access::Read)?.warn(observer);
    let kept = database.read(history::all)?;
    let begun = history::find(&kept, &ScanName::At(since)).ok();
    let found = begun.or_else(|| kept.iter().min_by_key(|scan| scan.at)).ok_or_else(|| {
        if database.unreadable {
            Error::failed("the records cannot be read, so what grew is unknown")
                .hint("`layersweep doctor` shows what is wrong with them")
        } else {
            Error::failed("no scan is kept, so what grew is unknown")
                .hint("`layersweep scan` keeps one; the package's timer does so every five minutes")
        }
    })?;
    let mut before = database.read(|connection| history::load(connection, found))?;
    let after = now(request, observer)?;
    // A store that the new scan did not read has not shrunk.
    if request.names_stores {
        before.summary.retain_common(&after.summary);
    }
    Ok(ScanComparison { before, after })
}

fn no_such_scan(word: &str, missing: &Missing, unreadable: bool) -> Error {
    const LIST: &str = "`layersweep history --scans` lists the kept scans";
    let (why, hint) = match missing {
        _ if unreadable => {
            ("the records cannot be read".to_owned(), "`layersweep doctor` shows what is wrong with them")
        }
        Missing::None => (
            missing.to_string(),
            "`layersweep scan` keeps one; `layersweep scan --format json` writes one to a file",
        ),
        Missing::Later(oldest) => {
            let local = oldest.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M %Z");
            (format!("the oldest kept scan is of {local}"), LIST)
        }
        missing => (missing.to_string(), LIST),
    };
    let file =
        if Path::new(word).is_file() { format!("; the file is named ./{word}") } else { String::new() };
    Error::failed(format!("{word}: {why}")).hint(format!("{hint}{file}"))
}

/// Returns an error if the scans have no store in common: they are of different nodes.
fn check_same_node(before: &ComparedScan, after: &ComparedScan) -> Result<(), Error> {
    let (here, there) = (before.summary.places(), after.summary.places());
    if !here.is_disjoint(&there) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} and {} have no store in common: the first has {}, the second {}",
        before.id,
        after.id,
        roots(&here),
        roots(&there)
    ))
    .hint("name two scans of the same node"))
}

fn roots(stores: &BTreeSet<&SummaryStore>) -> String {
    let roots: Vec<_> = stores.iter().map(|store| store.root.clone()).collect();
    if roots.is_empty() { "no store".to_owned() } else { roots.join(", ") }
}
