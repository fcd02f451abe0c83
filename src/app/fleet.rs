//! `report --merge`: sums over the documents of many nodes.
//!
//! Of a node with several documents only the newest counts. Its name and time are all that is remembered of a node, so
//! an older document cannot be subtracted: if there is one, all files are read a second time without the older ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use rayon::iter::{ParallelBridge as _, ParallelIterator as _};

use crate::model::documents::fleet::{Fleet, FleetSums};
use crate::model::documents::reader::NodeDocument;
use crate::services::documents::{DocumentStart, Documents, Position, Source, UnreadDocument, place};
use crate::services::error::Error;

const LISTED_PROBLEMS: usize = 100;

#[derive(Debug)]
pub struct Merged {
    pub fleet: Fleet,
    /// Number of documents, including those that could not be read.
    pub documents: u64,
    /// Documents that do not count because a newer one is of the same node.
    pub older: u64,
    pub nodes_with_older: u64,
    pub unread: u64,
    pub problems: Vec<UnreadDocument>,
}

/// Adds up the documents in files; `-` is standard input.
///
/// # Errors
/// If no document could be read.
pub fn merge(files: &[PathBuf]) -> Result<Merged, Error> {
    let sources: Vec<_> =
        files.iter().map(|path| Source::new(path).map_err(|error| error.to_string())).collect();
    let now = Timestamp::now();
    let mut round = Round::read(files, &sources, HashSet::new(), now);
    let older = std::mem::take(&mut round.older);
    let nodes_with_older = round.nodes_with_older.len() as u64;
    let older_count = older.len() as u64;
    if !older.is_empty() {
        round = Round::read(files, &sources, older, now);
    }
    let problems: Vec<_> = round
        .problems
        .into_iter()
        .map(|(position, reason)| UnreadDocument { place: place(files, position), reason })
        .collect();
    let fleet = round.sums.finish();
    if fleet.nodes.count == 0 {
        let first = problems.first().map(|problem| format!(": {}: {}", problem.place, problem.reason));
        return Err(Error::failed(format!(
            "no document of a node could be read{}",
            first.unwrap_or_default()
        ))
        .hint("name files that `layersweep scan --format json` or `layersweep report --format json` wrote"));
    }
    Ok(Merged {
        fleet,
        documents: round.documents,
        older: older_count,
        nodes_with_older,
        unread: round.unread,
        problems,
    })
}

/// One reading of all files.
#[derive(Debug)]
struct Round {
    sums: FleetSums,
    documents: u64,
    unread: u64,
    problems: BTreeMap<Position, String>,
    newest: HashMap<Box<str>, (Timestamp, Position)>,
    older: HashSet<Position>,
    nodes_with_older: HashSet<Box<str>>,
}

impl Round {
    /// Reads all documents except `skipped`, as many at a time as there are processors.
    fn read(
        files: &[PathBuf],
        sources: &[Result<Source, String>],
        skipped: HashSet<Position>,
        now: Timestamp,
    ) -> Self {
        let round = Mutex::new(Self {
            sums: FleetSums::new(now),
            documents: 0,
            unread: 0,
            problems: BTreeMap::new(),
            newest: HashMap::new(),
            older: HashSet::new(),
            nodes_with_older: HashSet::new(),
        });
        let locked = || round.lock().unwrap_or_else(PoisonError::into_inner);
        Documents::new(sources, DocumentStart::Brace).par_bridge().for_each(|(position, text)| {
            let document = match &text {
                Ok(_) if skipped.contains(&position) => return locked().documents += 1,
                Ok(text) => NodeDocument::read(text),
                Err(error) => Err(error.clone()),
            };
            locked().add(files, position, document);
        });
        round.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&mut self, files: &[PathBuf], position: Position, document: Result<NodeDocument<'_>, String>) {
        self.documents += 1;
        let document = match document {
            Ok(document) => document,
            Err(reason) => {
                self.unread += 1;
                self.problems.insert(position, reason);
                if self.problems.len() > LISTED_PROBLEMS {
                    self.problems.pop_last();
                }
                return;
            }
        };
        let (name, time) = document.origin();
        let name = name.map_or_else(|| nameless(files, position), str::to_owned);
        match self.newest.get_mut(name.as_str()) {
            None => {
                self.newest.insert(name.as_str().into(), (time, position));
                self.sums.add(name, &document);
            }
            Some(newest) => {
                let older = (*newest).min((time, position));
                *newest = (*newest).max((time, position));
                self.older.insert(older.1);
                self.nodes_with_older.insert(name.into());
            }
        }
    }
}

/// Returns the name of a node whose document has none: that of the file without its ending, with the line if it is not
/// the first.
fn nameless(files: &[PathBuf], position: Position) -> String {
    let stem = files
        .get(position.file)
        .and_then(|file| file.file_stem())
        .map_or_else(|| "-".into(), |stem| stem.to_string_lossy().into_owned());
    match position.line {
        0 | 1 => stem,
        line => format!("{stem}:{line}"),
    }
}
