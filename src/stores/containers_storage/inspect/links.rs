//! Short names of the overlay driver.
//!
//! `l/NAME` is a symlink to `../<id>/diff`. The layer's file `link` contains `NAME`, and the file `lower` of its
//! descendants contains `l/NAME` (container-libs, `storage/drivers/overlay/overlay.go`).
//!
//! Since library version 1.63 (Podman 6), a layer also has the file `lower-layers` with the ids of its parents, and the
//! library uses that file to mount it. Older layers still need the names in `l/`, but this version no longer recreates a
//! missing name.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use rayon::prelude::*;

use crate::disk::{Fingerprint, stamp};
use crate::model::LeakClass;
use crate::stores::containers_storage::inspection::{FaultOf, Inconsistency, ShortName};
use crate::stores::containers_storage::records::is_id;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::stores::leaks::Judgement;
use crate::sys::quiet::{Below, FileKind, Within, if_present};

/// Maximum size of a `link` file. A name has 26 letters.
const MOST_LINK_BYTES: u64 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkName {
    /// A name that is in `l/`, and its inode.
    Present(String, u64),
    Missing(String),
    /// The file is empty or missing.
    Blank,
}

/// Faults, names and stamps found in the driver's directories.
#[derive(Debug, Default)]
pub(super) struct LinksFound {
    pub(super) faults: Vec<Inconsistency>,
    pub(super) short_names: Vec<ShortName>,
    /// Stamp of each layer's directory, and true if its `diff` is a directory; by position of the layer.
    pub(super) stamps: Vec<Option<(Fingerprint, bool)>>,
}

/// Inspects every area. An area that cannot be read completely is skipped.
pub(super) fn look(snapshot: &Snapshot) -> LinksFound {
    let mut found = LinksFound::default();
    if snapshot.places.driver != "overlay" {
        return found;
    }
    let areas: Vec<_> =
        snapshot.places.areas().filter_map(|area| LinkArea::read(snapshot, area).ok()).collect();
    found.stamps = vec![None; snapshot.layers.len()];
    for area in &areas {
        for ((id, name), stamp) in area.directories.iter().zip(&area.stamps) {
            let Some(layer) = complete_layer(snapshot, id) else { continue };
            found.stamps[layer] = *stamp;
            if let LinkName::Present(_, inode) = name {
                found.short_names.push(ShortName { layer, device: area.device, inode: *inode });
            }
        }
        found.faults.extend(judge(area, |id| complete_layer(snapshot, id)));
    }
    found
}

/// Returns the position of the layer with this id, unless it is flagged incomplete.
fn complete_layer(snapshot: &Snapshot, id: &str) -> Option<usize> {
    snapshot.layer_at(OsStr::new(id)).filter(|position| !snapshot.layers[*position].incomplete)
}

#[derive(Debug)]
pub(super) struct LinkArea<'a> {
    pub(super) driver: PathBuf,
    /// `st_dev` of `l/`.
    pub(super) device: u64,
    /// Directories of layers, in order, with the content of their `link` files.
    pub(super) directories: Vec<(&'a str, LinkName)>,
    /// Stamp of each directory, and true if its `diff` is a directory; `None` if they could not be determined.
    pub(super) stamps: Vec<Option<(Fingerprint, bool)>>,
}

impl<'a> LinkArea<'a> {
    fn read(snapshot: &'a Snapshot, area: &Path) -> io::Result<Self> {
        let within = snapshot.places.within();
        let driver = area.join(&snapshot.places.driver);
        let links = driver.join("l");
        let directories: Vec<_> = snapshot
            .entries(&driver)
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .filter_map(|entry| entry.name.to_str().filter(|name| is_id(name)))
            .collect();
        let below = within.below(&driver)?;
        let (listed, contents) = rayon::join(
            || list(&within, &links),
            || directories.par_iter().map(|id| read(&below, id)).collect::<io::Result<Vec<_>>>(),
        );
        let ((names, device), contents) = (listed?, contents?);
        let (directories, stamps) = directories
            .into_par_iter()
            .zip(contents)
            .map(|(id, (text, stamp))| ((id, LinkName::new(text, &names)), stamp))
            .unzip();
        Ok(Self { driver, device, directories, stamps })
    }
}

/// Returns the inodes of the symlinks in `l/`, by name, and the device of that directory.
fn list(within: &Within, links: &Path) -> io::Result<(HashMap<String, u64>, u64)> {
    let Some(names) = if_present(within.symlinks(links))? else { return Ok((HashMap::new(), 0)) };
    Ok((names, within.facts(links)?.device))
}

/// Returns the content of the directory's `link` file, and the directory's stamp as in [`LinkArea`]. Both are read with a single lookup of
/// the directory, since lookups take most of the time in a large store.
fn read(below: &Below, id: &str) -> io::Result<(String, Option<(Fingerprint, bool)>)> {
    let id = Path::new(id);
    let (stamp, text) = match below.directory(id) {
        Ok(directory) => {
            (stamp::of_directory(directory.as_fd()).ok(), directory.read(Path::new("link"), MOST_LINK_BYTES))
        }
        // The directory may be a mount. The measurement decides whether to enter it, so there is no stamp here.
        Err(_) => (None, below.read(&id.join("link"), MOST_LINK_BYTES)),
    };
    let text = if_present(text)?.unwrap_or_default();
    Ok((String::from_utf8_lossy(&text).trim().to_owned(), stamp))
}

impl LinkName {
    pub(super) fn new(text: String, names: &HashMap<String, u64>) -> Self {
        match names.get(&text) {
            _ if text.is_empty() => Self::Blank,
            Some(inode) => Self::Present(text, *inode),
            None => Self::Missing(text),
        }
    }
}

/// Finds layers without a short name, among those for which `layer` returns a position.
///
/// Library versions up to 1.62 recreate a missing name when they mount the layer. Later versions do not, and they cannot
/// mount a descendant that has no `lower-layers`.
pub(super) fn judge(area: &LinkArea<'_>, layer: impl Fn(&str) -> Option<usize>) -> Vec<Inconsistency> {
    let links = area.driver.join("l");
    let mut faults = Vec::new();
    for (id, name) in &area.directories {
        let (path, evidence) = match name {
            LinkName::Present(..) => continue,
            // A name with a slash would be a path outside `l/`.
            LinkName::Missing(name) if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => continue,
            LinkName::Missing(name) => (
                links.join(name),
                format!(
                    "the layer's short name {name} is missing: Podman 6 cannot mount layers of older libraries on it"
                ),
            ),
            LinkName::Blank => (
                area.driver.join(id).join("link"),
                "the layer's `link` file is empty or missing, so the layer cannot be mounted".into(),
            ),
        };
        if let Some(layer) = layer(id) {
            let judged = Judgement::of(LeakClass::MissingLink, evidence);
            faults.push(Inconsistency { of: FaultOf::Layer(layer), path, judged });
        }
    }
    faults
}

#[cfg(test)]
mod tests;
