//! `metrics`: what the last scans found, what was deleted since, and how full the filesystems are now.

use std::path::{Path, PathBuf};

use super::database::{self, Database as OurDatabase};
use super::error::{Error, Exit};
use super::forecast;
use super::observer::{Audience, Observer};
use super::request::Request;
use crate::disk::filesystem;
use crate::history::counters::{self, Counter, LastRun};
use crate::history::figures::{self, BigImage, StoreFigures};
use crate::history::{Access, Degraded, SaveWarning, checkup};
use crate::model::Filesystem;
use crate::policy::Targets;
use crate::policy::forecast::Forecast;

/// All that the metrics say.
#[derive(Clone, Debug)]
pub struct MetricsData {
    /// Version of the program.
    pub version: &'static str,
    /// What the database says.
    pub remembered: Remembered,
    /// The filesystem of each store of [`Remembered::stores`], as it is now; `None` where it cannot
    /// be asked.
    pub filesystems: Vec<Option<Filesystem>>,
    /// When each of them is full, if it goes on filling.
    pub forecasts: Vec<Option<Forecast>>,
    /// When `gc` deletes, as configured.
    pub targets: Targets,
    /// Our own state.
    pub database: DatabaseState,
}

/// What the database says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    /// Stores and what their last scans found.
    pub stores: Vec<StoreFigures>,
    /// Images with a metric of their own.
    pub biggest: Vec<BigImage>,
    /// Sums; `None`: they cannot be read, and there is no metric. 0 would look like a counter reset.
    pub counters: Option<Vec<Counter>>,
    /// The last run of each command.
    pub last_runs: Vec<LastRun>,
}

/// The state of our own database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseState {
    /// It can be read and is sound.
    pub ok: bool,
    /// Length of the database and its log; `None` where there is none.
    pub bytes: Option<u64>,
    /// Damaged ones that were set aside.
    pub set_aside: Option<u64>,
    /// Files that wait to be saved.
    pub waiting: Option<u64>,
}

/// The facts, and what is wrong with their source.
#[derive(Debug)]
pub struct Gathered {
    /// What the metrics say.
    pub facts: MetricsData,
    degraded: Vec<Degraded>,
    warnings: Vec<SaveWarning>,
    /// So many stores whose figures cannot be read.
    unreadable_stores: usize,
    /// There is a database that cannot be read.
    unreadable: bool,
    dir: PathBuf,
}

/// Reads the facts anew. `top`: so many of the largest images get a metric of their own.
///
/// # Errors
/// When the database cannot be used.
pub fn gather(request: &Request, targets: Targets, top: u16) -> Result<Gathered, Error> {
    let mut open = OurDatabase::open(request, Access::Read)?;
    let (_, warnings) = open.apply_waiting()?;
    let (remembered, unreadable_stores) = open.read(|from| {
        let all = figures::all(from)?;
        let remembered = Remembered {
            stores: all.stores,
            biggest: if top > 0 { figures::biggest(from, top)? } else { Vec::new() },
            counters: if open.unreadable { None } else { Some(counters::all(from)?) },
            last_runs: counters::last_runs(from)?,
        };
        Ok((remembered, all.unreadable))
    })?;
    // On another machine's disk nothing is mounted where it was.
    let here = request.sysroot.is_none();
    let filesystem = |root: &Path| filesystem::facts(root).ok().filter(|_| here);
    let filesystems: Vec<_> = remembered.stores.iter().map(|store| filesystem(store.key.root())).collect();
    let mut forecasts = open.read(|from| forecast::of(from, filesystems.iter().flatten()))?.into_iter();
    let forecasts = filesystems.iter().map(|one| one.as_ref().and_then(|_| forecasts.next()?)).collect();
    let directory = &open.directory;
    let database = DatabaseState {
        ok: open.degraded.is_empty() && unreadable_stores == 0,
        bytes: checkup::bytes(directory),
        set_aside: checkup::quarantined(&directory.dir).ok().map(|found| found.len() as u64),
        waiting: checkup::waiting(directory).ok().map(|count| count as u64).filter(|_| here),
    };
    let facts = MetricsData {
        version: env!("CARGO_PKG_VERSION"),
        remembered,
        filesystems,
        forecasts,
        targets,
        database,
    };
    let OurDatabase { directory, unreadable, degraded, .. } = open;
    Ok(Gathered { facts, degraded, warnings, unreadable_stores, unreadable, dir: directory.dir })
}

impl Gathered {
    /// Roots of the stores that somebody has scanned.
    pub fn stores(&self) -> impl Iterator<Item = &Path> {
        self.facts.remembered.stores.iter().map(|store| store.key.root())
    }

    /// Says what is wrong or missing; how the command ends.
    pub fn report(&self, observer: &dyn Observer) -> Exit {
        database::warn_of_saving(observer, &self.degraded, &self.warnings);
        let dir = self.dir.display();
        if self.unreadable_stores > 0 {
            let stores = match self.unreadable_stores {
                1 => "one store".to_owned(),
                many => format!("{many} stores"),
            };
            let message = format!("the figures of {stores} in {dir} cannot be read");
            observer.warn(Audience::Usual, &message, "`layersweep scan` rewrites them");
        } else if self.facts.remembered.stores.is_empty() && !self.unreadable {
            observer.note(&format!("no scan is recorded in {dir}; `layersweep scan` records one"));
        }
        if self.unreadable || self.unreadable_stores > 0 { Exit::Incomplete } else { Exit::Done }
    }
}
