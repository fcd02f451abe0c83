//! `history`: lists past runs, kept scans, and the past usage of the filesystems.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;

use crate::disk;
use crate::history::Access;
use crate::history::kept_scans::{self, KeptScan};
use crate::history::repull::{self, FoundRun};
use crate::history::runs::{self, DeletionRow, Query, Quiet, RunRow, TargetKind};
use crate::history::story::{self, Story};
use crate::history::usage::{self, Series};
use crate::model::repull::PullReferences;
use crate::model::text::display::shell_word;
use crate::services::database::Database;
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;

/// Source of facts about the past.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryOrigin {
    /// Path of the database; null if nothing was ever recorded.
    pub database: Option<String>,
    /// The database could be read or does not exist. If false, its content is unknown.
    pub complete: bool,
    /// Start of the time that is covered; null for all.
    pub since: Option<Timestamp>,
    /// Ids of runs that wait to be saved.
    #[serde(skip)]
    pub unsaved: HashSet<String>,
}

impl HistoryOrigin {
    pub fn of(database: &Database, since: Option<Timestamp>, unsaved: HashSet<String>) -> Self {
        Self { database: database.path(), complete: !database.unreadable, since, unsaved }
    }

    pub fn exit(&self) -> Exit {
        if self.complete { Exit::Done } else { Exit::Incomplete }
    }
}

#[derive(Clone, Debug)]
pub struct PastRuns {
    pub origin: HistoryOrigin,
    /// Runs, the newest first.
    pub runs: Vec<RunRow>,
    pub more: bool,
    /// Runs that are not listed because they did nothing.
    pub quiet: Quiet,
}

#[derive(Clone, Debug)]
pub struct PastImages {
    pub runs: PastRuns,
    /// The latest first; never empty.
    pub stories: Vec<Story>,
}

#[derive(Clone, Debug)]
pub struct Repull {
    pub origin: HistoryOrigin,
    /// `None` if the records contain no run that deleted an image.
    pub run: Option<FoundRun>,
    /// Deletions of the run, each with the references by which the image can be pulled again.
    pub images: Vec<(DeletionRow, PullReferences)>,
}

impl Repull {
    /// # Errors
    /// When images of several stores can be pulled again: one list of references would be pulled into one of them.
    pub fn check_is_of_one_store(&self) -> Result<(), Error> {
        let pullable = self
            .images
            .iter()
            .filter(|(_, references)| !matches!(references, PullReferences::None(_)))
            .map(|(deletion, _)| deletion);
        let stores = stores_of(pullable);
        match &self.run {
            Some(run) if stores.len() > 1 => Err(Error::usage(format!(
                "run {} deleted images in {} stores, and one list of references would be pulled into one of them",
                run.run_id,
                stores.len()
            ))
            .hint(name_one(&run.run_id, &stores))),
            _ => Ok(()),
        }
    }

    /// Returns the exit code: [`Exit::Incomplete`] if an image cannot be pulled again.
    pub fn exit(&self) -> Exit {
        if self.images.iter().any(|(_, references)| matches!(references, PullReferences::None(_))) {
            Exit::Incomplete
        } else {
            self.origin.exit()
        }
    }
}

#[derive(Clone, Debug)]
pub struct PastUsage {
    pub origin: HistoryOrigin,
    pub series: Vec<Series>,
    /// Runs that deleted something in the same time.
    pub runs: Vec<RunRow>,
}

#[derive(Debug)]
pub struct KeptScans {
    pub origin: HistoryOrigin,
    /// Scans, the oldest first.
    pub scans: Vec<KeptScan>,
}

/// Returns past runs with their deletions.
///
/// # Errors
/// When the database cannot be used.
pub fn past_runs(request: &Request, observer: &dyn Observer, query: &Query) -> Result<PastRuns, Error> {
    let (database, unsaved) = open_with_waiting(request, observer)?;
    read_runs(&database, unsaved, query)
}

/// Returns the stories of the images that `reference` names or named, with the runs that deleted them.
///
/// # Errors
/// When the database cannot be used, or does not know such an image.
pub fn past_images(
    request: &Request,
    observer: &dyn Observer,
    reference: &str,
    query: &Query,
) -> Result<PastImages, Error> {
    let (database, unsaved) = open_with_waiting(request, observer)?;
    let stories = database.read(|connection| story::find(connection, reference))?;
    if stories.is_empty() {
        return Err(no_such_image(&database, reference));
    }
    let mut runs = read_runs(&database, unsaved, &Query { kind: Some(TargetKind::Image), ..*query })?;
    let is_meant = |id: &String| stories.iter().any(|story| story.image_id == *id);
    for run in &mut runs.runs {
        run.deletions.retain(|deletion| is_meant(&deletion.id));
    }
    runs.runs.retain(|run| !run.deletions.is_empty());
    Ok(PastImages { runs, stories })
}

fn no_such_image(database: &Database, reference: &str) -> Error {
    let directory = database.directory.dir.display();
    let error = Error::failed(format!("the records in {directory} do not know an image {reference:?}"));
    if database.unreadable {
        return error.hint("the records cannot be read: `layersweep doctor` shows what is wrong with them");
    }
    error.hint(if database.found {
        "an image is recorded from the first scan on that finds it; `layersweep history` lists the runs"
    } else {
        "nothing has been recorded there; name another directory with --state-dir DIR"
    })
}

/// Returns the images that a run deleted, in the named stores if stores are named. `run_id`: its id; `None` for the last
/// run that deleted an image.
///
/// # Errors
/// When the database cannot be used or does not know the run, or the run deleted images in other stores alone.
pub fn repull(request: &Request, observer: &dyn Observer, run_id: Option<&str>) -> Result<Repull, Error> {
    let (database, unsaved) = open_with_waiting(request, observer)?;
    let run = database.read(|connection| repull::run(connection, run_id))?;
    if let (None, Some(run_id)) = (&run, run_id) {
        return Err(no_such_run(&database, run_id));
    }
    let mut images = match &run {
        Some(run) => database.read(|connection| repull::deleted_images(connection, &run.run_id))?,
        None => Vec::new(),
    };
    let stores = stores_of(images.iter().map(|(deletion, _)| deletion));
    images.retain(|(deletion, _)| deletion.store.as_ref().is_none_or(|store| request.means(store.root())));
    if let Some(run) = run.as_ref().filter(|_| images.is_empty() && !stores.is_empty()) {
        let message = format!("run {} deleted no image in the named store", run.run_id);
        return Err(Error::usage(message).hint(name_one(&run.run_id, &stores)));
    }
    let images = images.into_iter().map(|(deletion, image)| (deletion, image.pull_references()));
    Ok(Repull { origin: HistoryOrigin::of(&database, None, unsaved), run, images: images.collect() })
}

/// Returns the flags that name the stores of these deletions, each once.
fn stores_of<'a>(deletions: impl Iterator<Item = &'a DeletionRow>) -> BTreeSet<String> {
    let stores = deletions.filter_map(|deletion| deletion.store.as_ref());
    let flags = stores.map(|store| {
        format!("{} {}", store.kind().facts().flag, shell_word(&store.root().to_string_lossy()))
    });
    flags.collect()
}

/// Formats the commands that print the references of one store.
fn name_one(run_id: &str, stores: &BTreeSet<String>) -> String {
    let commands = stores.iter().map(|store| format!("`layersweep history --repull {run_id} {store}`"));
    format!("name the store: {}", commands.collect::<Vec<_>>().join(" or "))
}

fn no_such_run(database: &Database, run_id: &str) -> Error {
    let directory = database.directory.dir.display();
    Error::usage(format!("the records in {directory} do not know a run {run_id:?}")).hint(
        if database.unreadable { "the records cannot be read: `layersweep doctor` shows what is wrong with them" } else { "`layersweep history --limit 0` lists the runs with their ids; `last` is the last that deleted images" },
    )
}

/// Opens the database and applies the runs that wait to be saved; also returns their ids.
fn open_with_waiting(
    request: &Request,
    observer: &dyn Observer,
) -> Result<(Database, HashSet<String>), Error> {
    let mut database = Database::open(request, Access::Read)?.warn(observer);
    let (unsaved, notes) = database.apply_waiting()?;
    notes.iter().for_each(|note| observer.warn(Audience::Usual, &note.to_string(), ""));
    Ok((database, unsaved))
}

/// Returns past runs from an open database.
///
/// # Errors
/// When the database cannot be read.
pub fn read_runs(database: &Database, unsaved: HashSet<String>, query: &Query) -> Result<PastRuns, Error> {
    let ((runs, more), quiet) = database
        .read(|connection| Ok((runs::list(connection, query)?, runs::quiet(connection, query.since)?)))?;
    Ok(PastRuns { origin: HistoryOrigin::of(database, query.since, unsaved), runs, more, quiet })
}

/// Returns the scans that `diff` can compare.
///
/// # Errors
/// When the database cannot be used.
pub fn kept_scans(
    request: &Request,
    observer: &dyn Observer,
    since: Option<Timestamp>,
) -> Result<KeptScans, Error> {
    let database = Database::open(request, Access::Read)?.warn(observer);
    let scans = database.read(kept_scans::all)?;
    Ok(KeptScans { origin: HistoryOrigin::of(&database, since, HashSet::new()), scans })
}

/// Returns the past usage of the filesystems. `path`: only of the filesystem that is mounted there or contained it.
///
/// # Errors
/// When the database cannot be used, or has no readings of that filesystem.
pub fn past_usage(
    request: &Request,
    observer: &dyn Observer,
    since: Option<Timestamp>,
    path: Option<&Path>,
) -> Result<PastUsage, Error> {
    let (database, unsaved) = open_with_waiting(request, observer)?;
    let known = database.read(usage::filesystems)?;
    let mount = match path {
        None => None,
        Some(path) => Some(usage::mount_of(&known, path).ok_or_else(|| unknown(path, &known))?),
    };
    let (mut series, runs) = database.read(|connection| {
        Ok((usage::series(connection, since, mount)?, runs::that_deleted(connection, since)?))
    })?;
    if request.sysroot.is_none() {
        let mounts = series.iter().map(|series| Path::new(&series.filesystem.mount));
        // A filesystem that is not mounted now has no present reading.
        let present: Vec<_> = mounts
            .filter_map(|mount| disk::filesystem::of(mount).ok())
            .map(|(filesystem, _)| filesystem)
            .collect();
        usage::add_present(&mut series, Timestamp::now(), &present);
    }
    Ok(PastUsage { origin: HistoryOrigin::of(&database, since, unsaved), series, runs })
}

fn unknown(path: &Path, known: &[usage::KnownFilesystem]) -> Error {
    let mut mounts: Vec<_> = known.iter().map(|known| known.mount.as_str()).collect();
    mounts.dedup();
    Error::usage(format!("--filesystem {}: no readings of that filesystem", path.display())).hint(
        match mounts.as_slice() {
            [] => "`layersweep scan` records how full the filesystems of its stores are".into(),
            mounts => format!("there are readings of {}", mounts.join(", ")),
        },
    )
}
