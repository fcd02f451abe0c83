//! `metrics`: figures of the last scans and deletions from the database, and the present usage of the filesystems.

use std::path::{Path, PathBuf};

use crate::disk::filesystem;
use crate::editor::ReserveFile;
use crate::history::counters::{self, Counter, LastRun};
use crate::history::figures::{self, BigImage, StoreFigures};
use crate::history::{Access, Degraded, SaveWarning, checkup};
use crate::model::Filesystem;
use crate::policy::Targets;
use crate::policy::forecast::Forecast;
use crate::services::database::{self, Database as OurDatabase};
use crate::services::error::{Error, Exit};
use crate::services::forecast;
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;

#[derive(Clone, Debug)]
pub struct MetricsData {
    pub version: &'static str,
    pub remembered: Remembered,
    /// Present usage of the filesystem of each store of [`Remembered::stores`]; `None` if it cannot be read.
    pub filesystems: Vec<Option<Filesystem>>,
    pub forecasts: Vec<Option<Forecast>>,
    pub targets: Targets,
    /// Reserve files of the stores, each with its bytes; 0 if it does not exist.
    pub reserve_files: Vec<(PathBuf, u64)>,
    pub database: DatabaseState,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remembered {
    pub stores: Vec<StoreFigures>,
    /// Largest images; each has its own metric.
    pub biggest: Vec<BigImage>,
    /// Sums over all runs. `None` if they cannot be read: there is no metric then, because 0 would look like a
    /// counter reset.
    pub counters: Option<Vec<Counter>>,
    pub last_runs: Vec<LastRun>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseState {
    /// The database can be read and is not damaged.
    pub ok: bool,
    /// Apparent size of the database and its log; `None` if there is no database.
    pub bytes: Option<u64>,
    /// Number of damaged databases that were set aside.
    pub set_aside: Option<u64>,
    /// Number of files that wait to be saved.
    pub waiting: Option<u64>,
}

#[derive(Debug)]
pub struct Gathered {
    pub facts: MetricsData,
    degraded: Vec<Degraded>,
    warnings: Vec<SaveWarning>,
    unreadable_stores: usize,
    /// The database exists and cannot be read.
    unreadable: bool,
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Named {
    pub images: u16,
    pub namespaces: usize,
    pub places: usize,
}

/// Reads the content of the metrics.
///
/// # Errors
/// When the database cannot be used.
pub fn gather(request: &Request, targets: Targets, named: Named) -> Result<Gathered, Error> {
    let mut database = OurDatabase::open(request, Access::Read)?;
    let (_, warnings) = database.apply_waiting()?;
    let (remembered, unreadable_stores) = database.read(|connection| {
        let mut all = figures::all(connection)?;
        for store in &mut all.stores {
            let namespaces = std::mem::take(&mut store.figures.namespaces);
            if named.namespaces > 0 {
                store.figures.namespaces = figures::largest_namespaces(namespaces, named.namespaces);
            }
            let places = std::mem::take(&mut store.figures.places);
            store.figures.places = figures::largest_places(places, named.places);
        }
        let remembered = Remembered {
            stores: all.stores,
            biggest: if named.images > 0 { figures::biggest(connection, named.images)? } else { Vec::new() },
            counters: if database.unreadable { None } else { Some(counters::all(connection)?) },
            last_runs: counters::last_runs(connection)?,
        };
        Ok((remembered, all.unreadable))
    })?;
    // The paths of another machine's records are not mounted on this one.
    let is_this_machine = request.sysroot.is_none();
    let filesystems: Vec<_> = remembered
        .stores
        .iter()
        .map(|store| filesystem::facts(store.key.root()).ok().filter(|_| is_this_machine))
        .collect();
    let known = filesystems.iter().flatten();
    let mut forecasts = database.read(|connection| forecast::of(connection, known))?.into_iter();
    let forecasts =
        filesystems.iter().map(|filesystem| filesystem.as_ref().and_then(|_| forecasts.next()?)).collect();
    let directory = &database.directory;
    let state = DatabaseState {
        ok: database.degraded.is_empty() && unreadable_stores == 0,
        bytes: checkup::bytes(directory),
        set_aside: checkup::quarantined(&directory.dir).ok().map(|found| found.len() as u64),
        waiting: checkup::waiting(directory).ok().map(|count| count as u64).filter(|_| is_this_machine),
    };
    // Without the store's filesystem, the metrics are made on another system, such as in a pod.
    let stores = remembered.stores.iter().zip(&filesystems).filter(|(_, filesystem)| filesystem.is_some());
    let reserve_files = stores
        .flat_map(|(store, _)| &store.figures.reserve_files)
        .filter_map(|path| Some((path.clone(), ReserveFile::at(path)?.taken_bytes())))
        .collect();
    let facts = MetricsData {
        version: env!("CARGO_PKG_VERSION"),
        remembered,
        filesystems,
        forecasts,
        targets,
        reserve_files,
        database: state,
    };
    let OurDatabase { directory, unreadable, degraded, .. } = database;
    Ok(Gathered { facts, degraded, warnings, unreadable_stores, unreadable, dir: directory.dir })
}

impl Gathered {
    pub fn stores(&self) -> impl Iterator<Item = &Path> {
        self.facts.remembered.stores.iter().map(|store| store.key.root())
    }

    /// Reports what is wrong or missing, and returns the exit code of the command.
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
