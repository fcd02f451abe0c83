//! From configuration to stores whose records have been read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Error, Request};
use crate::graphroot::config::{self, Discovery, Pin, StoreConfig};
use crate::graphroot::snapshot::{self, Places, Snapshot};
use crate::graphroot::units::{self, Unit};
use crate::inventory::Finding;

/// A store whose records have been read.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) snapshot: Snapshot,
    pub(super) units: Vec<Unit>,
    pub(super) origin: String,
    /// Graphroots of the additional image stores that it reads from.
    pub(super) additional: Vec<PathBuf>,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    /// Additional image stores come before the stores that read from them.
    pub(super) candidates: Vec<Candidate>,
    pub(super) pins: Vec<Pin>,
    pub(super) findings: Vec<Finding>,
}

pub(super) fn find(request: &Request) -> Result<Found, Error> {
    let Discovery { stores, pins, problems } = config::discover(&request.sysroot, &request.environment);
    let mut found = Found { pins, ..Found::default() };
    for (path, message) in problems {
        found.findings.push(Finding { path, message, incomplete: false });
    }
    let named = !request.graphroots.is_empty();
    let stores = if named {
        let of = |path: &PathBuf| config::named(&request.sysroot, &request.environment, path);
        request.graphroots.iter().map(of).collect()
    } else {
        stores
    };
    let mut looked = Vec::new();
    let mut unreadable = None;
    for store in stores {
        let before = found.candidates.len();
        match found.store(request, &store) {
            Ok(()) => {}
            Err(Error::Unreadable { path, source }) if !named => {
                // Another user's store, say; ours may be readable.
                let message = format!("cannot be read: {source}");
                found.findings.push(Finding { path: path.clone(), message, incomplete: true });
                unreadable.get_or_insert(Error::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        if named && found.candidates.len() == before && !found.knows(request, &store.graphroot) {
            return Err(Error::NotAStore { path: store.graphroot });
        }
        looked.push(store.graphroot);
    }
    match unreadable {
        _ if !found.candidates.is_empty() => Ok(found),
        Some(error) => Err(error),
        None => Err(Error::NoneFound { looked }),
    }
}

impl Found {
    /// The same directory may be named twice.
    fn knows(&self, request: &Request, graphroot: &Path) -> bool {
        let path = request.sysroot.resolve(graphroot);
        path.is_ok_and(|path| self.candidates.iter().any(|known| known.snapshot.places.graphroot == path))
    }

    fn store(&mut self, request: &Request, store: &StoreConfig) -> Result<(), Error> {
        let mut additional = Vec::new();
        for path in &store.additional_image_stores {
            let config = StoreConfig {
                graphroot: path.clone(),
                imagestore: None,
                other_imagestores: Vec::new(),
                additional_image_stores: Vec::new(),
                driver: None,
                origin: format!("additional image store of {}", store.graphroot.display()),
                ..store.clone()
            };
            // A store that is missing here is one that nothing comes from.
            if let Ok(graphroot) = request.sysroot.resolve(path) {
                self.areas(request, &config, true)?;
                additional.push(graphroot);
            }
        }
        let first = self.candidates.len();
        self.areas(request, store, false)?;
        for candidate in &mut self.candidates[first..] {
            candidate.additional.clone_from(&additional);
        }
        Ok(())
    }

    /// Reads the store once for each driver that has records in it.
    fn areas(&mut self, request: &Request, store: &StoreConfig, read_only: bool) -> Result<(), Error> {
        if self.knows(request, &store.graphroot) {
            return Ok(());
        }
        let unreadable = |source| Error::Unreadable { path: store.graphroot.clone(), source };
        let graphroot = match request.sysroot.resolve(&store.graphroot) {
            Ok(path) => path,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let drivers = match snapshot::drivers_in(&graphroot) {
            Ok(drivers) => drivers,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let resolve = |paths: Vec<&PathBuf>| -> Vec<PathBuf> {
            let mut found: Vec<_> =
                paths.into_iter().filter_map(|path| request.sysroot.resolve(path).ok()).collect();
            found.dedup();
            found
        };
        let imagestores = resolve(store.imagestore.iter().chain(&store.other_imagestores).collect());
        let runroots = match (&request.runroot, read_only) {
            (_, true) => Vec::new(),
            (Some(named), false) => resolve(vec![named]),
            (None, false) => resolve(std::iter::once(&store.runroot).chain(&store.other_runroots).collect()),
        };
        let first =
            store.driver.as_ref().filter(|driver| drivers.contains(driver)).or(drivers.first()).cloned();
        for driver in &drivers {
            let places = Places {
                graphroot: graphroot.clone(),
                imagestores: imagestores.clone(),
                runroots: runroots.clone(),
                driver: driver.clone(),
                other_drivers: drivers.iter().filter(|other| *other != driver).cloned().collect(),
                primary: Some(driver) == first.as_ref(),
                read_only,
                foreign: request.sysroot.is_foreign(),
            };
            let snapshot = snapshot::read(&places, request.patience).map_err(unreadable)?;
            self.candidates.push(Candidate {
                units: units::sort(&snapshot),
                snapshot,
                origin: store.origin.clone(),
                additional: Vec::new(),
            });
        }
        Ok(())
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
