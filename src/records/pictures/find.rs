//! Which scan somebody means.

use jiff::Timestamp;
use rusqlite::Connection;

use crate::records::values::{time, unsigned};

/// A scan that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its place in the order of scans.
    pub(super) id: i64,
    /// Id of its run.
    pub run_id: String,
    /// When it began.
    pub at: Timestamp,
    /// Everything could be read.
    pub complete: bool,
    /// Allocated bytes of all stores.
    pub bytes: u64,
}

/// How a scan is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// The newest, or so many before it.
    Last(usize),
    /// Its id, or the start of it.
    Id(String),
    /// The last one that had begun by then.
    At(Timestamp),
}

/// Why none is meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// None is kept at all.
    #[error("no scan is kept to compare with")]
    None,
    /// There are not that many.
    #[error("{}", match .0 { 1 => "only 1 scan is kept".to_owned(), many => format!("only {many} scans are kept") })]
    Few(usize),
    /// The first is later.
    #[error("the oldest kept scan is of {0}")]
    Later(Timestamp),
    /// No id begins so.
    #[error("no kept scan has that id")]
    Unknown,
    /// Several do.
    #[error("it could be any of {}", .0.join(", "))]
    Ambiguous(Vec<String>),
}

/// All kept scans, the oldest first.
///
/// # Errors
/// What SQLite says.
pub fn all(connection: &Connection) -> rusqlite::Result<Vec<Kept>> {
    connection
        .prepare_cached("SELECT id, run_id, at, complete, bytes FROM kept_scans ORDER BY id")?
        .query_map([], |row| {
            Ok(Kept {
                id: row.get("id")?,
                run_id: row.get("run_id")?,
                at: time(row, "at")?,
                complete: row.get("complete")?,
                bytes: unsigned(row, "bytes")?,
            })
        })?
        .collect()
}

/// The scan among `scans`, the oldest first, that is meant.
///
/// # Errors
/// When none is, or more than one.
pub fn find<'a>(scans: &'a [Kept], name: &Name) -> Result<&'a Kept, Missing> {
    if scans.is_empty() {
        return Err(Missing::None);
    }
    match name {
        Name::Last(back) => scans.iter().rev().nth(*back).ok_or(Missing::Few(scans.len())),
        Name::At(time) => scans
            .iter()
            .filter(|scan| scan.at <= *time)
            .max_by_key(|scan| scan.at)
            .ok_or(Missing::Later(scans[0].at)),
        Name::Id(id) => {
            let found: Vec<_> = scans.iter().filter(|scan| scan.run_id.starts_with(id.as_str())).collect();
            match found.as_slice() {
                [] => Err(Missing::Unknown),
                [one] => Ok(one),
                several => match several.iter().find(|scan| scan.run_id == *id) {
                    Some(exact) => Ok(exact),
                    None => Err(Missing::Ambiguous(
                        several.iter().take(5).map(|scan| scan.run_id.clone()).collect(),
                    )),
                },
            }
        }
    }
}
