//! Whether anything is mounted on, from or below what is to be removed, in any namespace.

use std::path::{Path, PathBuf};

use super::error::Refusal;
use crate::sys::namespaces::{self, Location, Seen};

/// The mounts of all processes as of one moment.
#[derive(Debug)]
pub(super) struct Mounts {
    seen: Vec<Seen>,
}

/// What is to be removed.
#[derive(Debug)]
pub(super) struct Doomed<'a> {
    /// Its absolute path.
    pub(super) path: &'a Path,
    /// Words of an overlay's options that mean it: a layer's id, the names of its links.
    pub(super) words: Vec<&'a str>,
}

impl Mounts {
    /// Reads them now.
    pub(super) fn read() -> Result<Self, Refusal> {
        namespaces::all().map(|seen| Self { seen }).map_err(|error| Refusal::MountsUnknown(error.to_string()))
    }

    /// Refuses if a mount needs any of `doomed`.
    pub(super) fn prove_unused(&self, doomed: &[Doomed<'_>]) -> Result<(), Refusal> {
        for doomed in doomed {
            let place = namespaces::locate(doomed.path, &self.seen);
            if let Some(user) = self.seen.iter().find(|seen| uses(seen, doomed, place.as_ref())) {
                let path: PathBuf = doomed.path.to_path_buf();
                return Err(Refusal::Mounted { path, at: user.mount.mount_point.clone(), pid: user.pid });
            }
        }
        Ok(())
    }
}

fn uses(seen: &Seen, doomed: &Doomed<'_>, place: Option<&Location>) -> bool {
    let below = |location: &Location| place.is_some_and(|place| location.is_within(place));
    seen.mount.mount_point.starts_with(doomed.path)
        || below(&seen.shows)
        || seen.covers.as_ref().is_some_and(below)
        || (seen.mount.fstype.contains("overlay") && doomed.words.iter().any(|word| has(&seen.options, word)))
}

/// Ids and link names are long and random, so they need no boundaries.
fn has(options: &[u8], word: &str) -> bool {
    !word.is_empty() && options.windows(word.len()).any(|part| part == word.as_bytes())
}
