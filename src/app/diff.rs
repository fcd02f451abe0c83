//! `diff`: two scans, kept, read from files or made now.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::tz::TimeZone;

use super::database::Database;
use super::error::Error;
use super::observer::Observer;
use super::request::Request;
use super::{kept_scans, scan};
use crate::history::Access;
use crate::history::kept_scans::{self as history, Missing, ScanName};
use crate::model::scan_summary::{ComparedScan, SummaryStore};

/// Which scan is meant.
#[derive(Debug)]
pub enum DiffSource {
    /// A new one, which is not kept.
    Now,
    /// One that is kept; in front, how the user named it.
    Kept(String, ScanName),
    /// One that was read from a file.
    Read(ComparedScan),
}

/// Two scans of one node, ready to be compared.
#[derive(Debug)]
pub struct Pair {
    /// The earlier one, as named.
    pub before: ComparedScan,
    /// The later one, as named.
    pub after: ComparedScan,
}

/// Finds or makes both scans.
///
/// # Errors
/// When there is no such scan, when a new one fails, or when the two are of different nodes.
pub fn pair(
    request: &Request,
    observer: &dyn Observer,
    before: DiffSource,
    after: DiffSource,
) -> Result<Pair, Error> {
    let is_now = |source: &DiffSource| matches!(source, DiffSource::Now);
    let is_read = |source: &DiffSource| matches!(source, DiffSource::Read(_));
    let read = is_read(&before) || is_read(&after);
    let first_is_now = is_now(&before);
    let part = (first_is_now || is_now(&after)) && request.names_stores;
    let mut database = None;
    let mut before = take(request, observer, before, &mut database)?;
    let mut after = take(request, observer, after, &mut database)?;
    // The scans of one node are of that node, even if no store of the first is left.
    if read || part {
        same_node(&before, &after)?;
    }
    // What was not looked at is not gone.
    if part && first_is_now {
        after.summary.retain_common(&before.summary);
    } else if part {
        before.summary.retain_common(&after.summary);
    }
    Ok(Pair { before, after })
}

fn take(
    request: &Request,
    observer: &dyn Observer,
    source: DiffSource,
    database: &mut Option<Database>,
) -> Result<ComparedScan, Error> {
    let (word, name) = match source {
        DiffSource::Read(taken) => return Ok(taken),
        DiffSource::Now => {
            let scan = scan::scan(request, observer)?.scan;
            return Ok(ComparedScan {
                id: "now".into(),
                taken_at: scan.taken_at,
                summary: kept_scans::of(&scan),
            });
        }
        DiffSource::Kept(word, name) => (word, name),
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
        Missing::Later(at) => {
            let local = at.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M");
            (format!("the oldest kept scan is of {local}"), LIST)
        }
        missing => (missing.to_string(), LIST),
    };
    let file = match Path::new(word).is_file() {
        true => format!("; the file is named ./{word}"),
        false => String::new(),
    };
    Error::failed(format!("{word}: {why}")).hint(format!("{hint}{file}"))
}

/// Refuses to compare scans of different nodes.
fn same_node(before: &ComparedScan, after: &ComparedScan) -> Result<(), Error> {
    let (here, there) = (before.summary.places(), after.summary.places());
    if !here.is_disjoint(&there) {
        return Ok(());
    }
    let roots = |places: BTreeSet<&SummaryStore>| {
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
