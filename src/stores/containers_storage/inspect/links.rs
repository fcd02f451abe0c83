//! The overlay driver's short names: `l/NAME` is a symlink to `../<id>/diff`, the layer's
//! file `link` holds the name, and the file `lower` of its descendants holds `l/NAME`
//! (container-libs, `storage/drivers/overlay/overlay.go`).
//!
//! Since library version 1.63 (Podman 6) a layer also has the file `lower-layers`, the ids of its
//! parents, and is mounted by that. Older layers still need the names in `l/`, and that version no
//! longer recreates a missing one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use rayon::prelude::*;

use super::found::{Fault, FaultOf, ShortName};
use crate::disk::{Fingerprint, stamp};
use crate::model::LeakClass;
use crate::stores::containers_storage::records::is_id;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::stores::leaks::Judgement;
use crate::sys::quiet::{Below, FileKind, if_present};

/// A name has 26 letters.
const MOST_LINK_BYTES: u64 = 256;

/// What the `link` file of a directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// It is in `l/`, and has this inode there.
    There(String, u64),
    /// It is not.
    Missing(String),
    Blank,
}

/// What was found in the driver's directories.
#[derive(Debug, Default)]
pub(super) struct LinksFound {
    pub(super) faults: Vec<Fault>,
    pub(super) short_names: Vec<ShortName>,
    /// By position of the layer: the stamp of its directory.
    pub(super) stamps: Vec<Option<Fingerprint>>,
}

/// Looks at every area. An area where something could not be read has no faults, and no names.
pub(super) fn look(snapshot: &Snapshot) -> LinksFound {
    let mut found = LinksFound::default();
    if snapshot.places.driver != "overlay" {
        return found;
    }
    let areas: Vec<_> = snapshot.places.areas().filter_map(|area| Area::read(snapshot, area).ok()).collect();
    let complete = |id: &str| snapshot.layer_at(OsStr::new(id)).filter(|at| !snapshot.layers[*at].incomplete);
    found.stamps = vec![None; snapshot.layers.len()];
    for area in &areas {
        for ((id, name), stamp) in area.directories.iter().zip(&area.stamps) {
            let Some(layer) = complete(id) else { continue };
            found.stamps[layer] = *stamp;
            if let Name::There(_, inode) = name {
                found.short_names.push(ShortName { layer, device: area.device, inode: *inode });
            }
        }
        found.faults.extend(judge(area, complete));
    }
    found
}

/// One driver directory.
#[derive(Debug)]
pub(super) struct Area<'a> {
    pub(super) driver: PathBuf,
    /// `st_dev` of `l/`.
    pub(super) device: u64,
    /// Layer directories, in order, and what their `link` file says.
    pub(super) directories: Vec<(&'a str, Name)>,
    /// Of each of them; `None` where it could not be taken.
    pub(super) stamps: Vec<Option<Fingerprint>>,
}

impl<'a> Area<'a> {
    fn read(snapshot: &'a Snapshot, area: &Path) -> io::Result<Self> {
        let within = snapshot.places.within();
        let driver = area.join(&snapshot.places.driver);
        let links = driver.join("l");
        let list = || {
            let Some(names) = if_present(within.symlinks(&links))? else { return Ok((HashMap::new(), 0)) };
            Ok::<_, io::Error>((names, within.facts(&links)?.device))
        };
        let directories: Vec<_> = snapshot
            .entries(&driver)
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .filter_map(|entry| entry.name.to_str().filter(|name| is_id(name)))
            .collect();
        let below = within.below(&driver)?;
        let read = || directories.par_iter().map(|id| read(&below, id)).collect::<io::Result<Vec<_>>>();
        let (listed, read) = rayon::join(list, read);
        let ((names, device), read) = (listed?, read?);
        let named = directories.into_par_iter().zip(read);
        let (directories, stamps) =
            named.map(|(id, (text, stamp))| ((id, Name::new(text, &names)), stamp)).unzip();
        Ok(Self { driver, device, directories, stamps })
    }
}

/// What the directory's `link` file says, and the directory's stamp: of a large store it takes long to
/// look up each directory once more.
fn read(below: &Below, id: &str) -> io::Result<(String, Option<Fingerprint>)> {
    let id = Path::new(id);
    let (stamp, text) = match below.directory(id) {
        Ok(directory) => {
            (stamp::of_directory(directory.as_fd()).ok(), directory.read(Path::new("link"), MOST_LINK_BYTES))
        }
        // A mount, perhaps: whoever measures it knows which are entered.
        Err(_) => (None, below.read(&id.join("link"), MOST_LINK_BYTES)),
    };
    let text = if_present(text)?.unwrap_or_default();
    Ok((String::from_utf8_lossy(&text).trim().to_owned(), stamp))
}

impl Name {
    pub(super) fn new(text: String, names: &HashMap<String, u64>) -> Self {
        match names.get(&text) {
            _ if text.is_empty() => Self::Blank,
            Some(inode) => Self::There(text, *inode),
            None => Self::Missing(text),
        }
    }
}

/// Layers, of those that `layer` finds as recorded and complete, that have no short name. Library versions up to 1.62
/// make a missing one anew at a mount; later ones cannot mount layers on it that have no `lower-layers`.
pub(super) fn judge(area: &Area<'_>, layer: impl Fn(&str) -> Option<usize>) -> Vec<Fault> {
    let links = area.driver.join("l");
    let fault = |(id, name): &(&str, Name)| {
        let (path, evidence) = match name {
            Name::There(..) => return None,
            // A name with a slash leads elsewhere.
            Name::Missing(name) if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => return None,
            Name::Missing(name) => (
                links.join(name),
                format!(
                    "the layer's short name {name} is missing: Podman 6 cannot mount layers of older libraries on it"
                ),
            ),
            Name::Blank => (
                area.driver.join(id).join("link"),
                "the layer's `link` file is empty or missing, so the layer cannot be mounted".into(),
            ),
        };
        let judged = Judgement::of(LeakClass::MissingLink, evidence);
        Some(Fault { of: FaultOf::Layer(layer(id)?), path, judged })
    };
    area.directories.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests;
