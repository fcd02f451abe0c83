//! The overlay driver's short names: `l/NAME` is a symlink to `../<id>/diff`, the layer's
//! file `link` holds the name, and the file `lower` of its descendants holds `l/NAME`
//! (container-libs, `storage/drivers/overlay/overlay.go`).
//!
//! Since library version 1.63 (Podman 6) a layer also has the file `lower-layers`, the ids of its
//! parents, and is mounted by that. Older layers still need the names in `l/`, and that version no
//! longer recreates a missing one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;

use super::found::{Fault, FaultOf, ShortName};
use crate::disk::{Fingerprint, stamp};
use crate::model::LeakClass;
use crate::stores::containers_storage::records::is_id;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::stores::leaks::Judgement;
use crate::sys::quiet::{Below, FileKind, Within, if_present};
use crate::sys::readlink::Untraced;

/// 500 parents, the driver's own limit, of 28 bytes each fit several times.
const MOST_LOWER_BYTES: u64 = 64 << 10;

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
    let mut lowers: Option<HashMap<String, User>> = None;
    found.stamps = vec![None; snapshot.layers.len()];
    for area in &areas {
        for ((id, name), stamp) in area.directories.iter().zip(&area.stamps) {
            let Some(layer) = complete(id) else { continue };
            found.stamps[layer] = *stamp;
            if let Name::There(_, inode) = name {
                found.short_names.push(ShortName { layer, device: area.device, inode: *inode });
            }
        }
        // A name that no `link` file has may belong to a directory with an empty one.
        let is_blank = |(_, name): &(&str, Name)| *name == Name::Blank;
        let targets = match area.directories.iter().any(is_blank) {
            true => area.targets(&area.unclaimed()),
            false => HashMap::new(),
        };
        let used = |name: &str| {
            let lowers = lowers.get_or_insert_with(|| all_lowers(&areas));
            lowers.get(name).cloned()
        };
        found.faults.extend(judge(area, complete, &targets, used));
    }
    found
}

/// One driver directory.
#[derive(Debug)]
pub(super) struct Area<'a> {
    pub(super) driver: PathBuf,
    pub(super) within: Within,
    /// Names in `l/` and their inodes.
    pub(super) names: HashMap<String, u64>,
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
        if directories.is_empty() {
            let (names, device) = list()?;
            let (directories, stamps) = (Vec::new(), Vec::new());
            return Ok(Self { driver, within, names, device, directories, stamps });
        }
        let below = within.below(&driver)?;
        let read = || directories.par_iter().map(|id| read(&below, id)).collect::<io::Result<Vec<_>>>();
        let (listed, read) = rayon::join(list, read);
        let ((names, device), read) = (listed?, read?);
        let named = directories.into_par_iter().zip(read);
        let (directories, stamps) =
            named.map(|(id, (text, stamp))| ((id, Name::new(text, &names)), stamp)).unzip();
        Ok(Self { driver, within, names, device, directories, stamps })
    }

    /// Names that no `link` file has, in order.
    pub(super) fn unclaimed(&self) -> Vec<String> {
        let claimed = || {
            self.directories.iter().filter_map(|(_, name)| match name {
                Name::There(name, inode) => Some((name.as_str(), *inode)),
                _ => None,
            })
        };
        // Each name has an inode of its own: mostly they need not be compared as texts.
        let mut inodes: Vec<u64> = claimed().map(|(_, inode)| inode).collect();
        inodes.sort_unstable();
        inodes.dedup();
        if inodes.len() == self.names.len() {
            return Vec::new();
        }
        let claimed: HashSet<&str> = claimed().map(|(name, _)| name).collect();
        let unclaimed = self.names.keys().filter(|name| !claimed.contains(name.as_str()));
        let mut unclaimed: Vec<_> = unclaimed.cloned().collect();
        unclaimed.sort_unstable();
        unclaimed
    }

    /// Where names lead, as far as that can be read.
    fn targets(&self, names: &[String]) -> HashMap<String, OsString> {
        if names.is_empty() {
            return HashMap::new();
        }
        let directory = self.within.directory(&self.driver.join("l"));
        let Ok(untraced) = directory.and_then(|directory| Untraced::of(directory.as_fd())) else {
            return HashMap::new();
        };
        let read = |name: &String| Some((name.clone(), untraced.target(OsStr::new(name)).ok()?));
        names.iter().filter_map(read).collect()
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

/// A directory that has a name in its `lower` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) id: String,
    /// It has no `lower-layers`: every library version mounts it by the name.
    pub(super) needs_name: bool,
}

/// Which directory has a name in its `lower` file: one that needs the name, if there is one.
fn all_lowers(areas: &[Area<'_>]) -> HashMap<String, User> {
    let mut all: HashMap<String, User> = HashMap::new();
    // Missing names alone: a hostile `lower` file may have any number of others.
    let missing = areas.iter().flat_map(|area| &area.directories).filter_map(|(_, name)| match name {
        Name::Missing(text) => Some(text.as_str()),
        _ => None,
    });
    let names: HashSet<&str> = missing.collect();
    for area in areas {
        let texts: Vec<_> = area
            .directories
            .par_iter()
            .filter_map(|(id, _)| {
                let directory = area.driver.join(id);
                let text = area.within.read(&directory.join("lower"), MOST_LOWER_BYTES).ok()?;
                let needs_name = area.within.facts(&directory.join("lower-layers")).is_err();
                Some((User { id: (*id).to_owned(), needs_name }, text))
            })
            .collect();
        for (user, text) in texts {
            for part in String::from_utf8_lossy(&text).trim().split(':') {
                let name = part.rsplit('/').next().unwrap_or(part);
                if !names.contains(name) {
                    continue;
                }
                let known = all.entry(name.to_owned()).or_insert_with(|| user.clone());
                if user.needs_name && !known.needs_name {
                    *known = user.clone();
                }
            }
        }
    }
    all
}

/// `../<id>/diff`.
fn layer_of(target: &OsStr) -> Option<&str> {
    let id = target.to_str()?.strip_prefix("../")?.strip_suffix("/diff")?;
    is_id(id).then_some(id)
}

/// What follows from what was read; `layer` finds those that are recorded and complete.
pub(super) fn judge(
    area: &Area<'_>,
    layer: impl Fn(&str) -> Option<usize>,
    targets: &HashMap<String, OsString>,
    mut used: impl FnMut(&str) -> Option<User>,
) -> Vec<Fault> {
    let links = area.driver.join("l");
    let mut found = Vec::new();
    let named = targets.iter().filter_map(|(name, target)| Some((layer_of(target)?, name.as_str())));
    let names_of_blank: HashMap<&str, &str> = named.collect();
    let wrong = area.directories.iter().filter(|(_, name)| !matches!(name, Name::There(..)));
    for (id, name) in wrong {
        let Some(layer) = layer(id) else { continue };
        let (path, judged) = match name {
            // A name with a slash leads elsewhere and is none of ours.
            Name::Missing(name) if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => continue,
            Name::There(name, _) | Name::Missing(name) => {
                let needed_by = used(name).filter(|user| user.needs_name).map(|user| user.id);
                (links.join(name), missing_name(name, needed_by.as_deref()))
            }
            Name::Blank => {
                let name = names_of_blank.get(id).copied();
                (area.driver.join(id).join("link"), blank_link(name))
            }
        };
        found.push(Fault { of: FaultOf::Layer(layer), path, judged });
    }
    found
}

/// Judges a layer's empty `link` file; `name` is what `l/` has for the layer.
fn blank_link(name: Option<&str>) -> Judgement {
    let what = "the layer's `link` file is empty or missing, so the layer cannot be mounted";
    let evidence = match name {
        Some(name) => format!("{what}; its name is {name}"),
        None => format!("{what}; it needs a new name"),
    };
    Judgement::of(LeakClass::MissingLink, evidence)
}

/// Judges a layer's name that is not in `l/`; `needed_by` is a layer that is mounted by that name.
/// Library versions up to 1.62 recreate the name at a mount; later ones fail.
fn missing_name(name: &str, needed_by: Option<&str>) -> Judgement {
    let what = format!("the layer's short name {name} is missing");
    let evidence = match needed_by {
        Some(child) => format!("{what}; Podman 6 cannot mount layer {child}, which needs it, without repair"),
        None => format!("{what}; no layer needs it to be mounted"),
    };
    Judgement::of(LeakClass::MissingLink, evidence)
}

#[cfg(test)]
mod tests;
