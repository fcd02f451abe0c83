//! Notes of deletions in progress, kept in our own state directory.
//!
//! A deletion that is killed between removing the image's record and the last layer's leaves
//! layers that look like a pull in progress, which must not be touched for a day. With the note our next
//! run can finish at once. Without it (state directory full or read-only) the sweep finishes a day later.

use std::fs::File;
use std::io::{Read as _, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use serde::{Deserialize, Serialize};

use super::editor::Editor;
use super::locks::noise64;
use crate::sys::clock::{self, ClockReading};

/// Nobody has killed more runs than this.
const MOST_NOTES: usize = 1000;

/// Later than this a sweep has finished what was begun, and layers of the same ids may have come.
const OBEYED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A note is a few kilobytes.
const LONGEST_NOTE: u64 = 1 << 20;

/// What is about to go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    /// The images whose records go first.
    pub(super) images: Vec<String>,
    /// The container whose record goes last.
    #[serde(default)]
    pub(super) container: Option<String>,
    /// Its layers, each before the one it is on.
    pub(super) layers: Vec<String>,
    /// Number of the temporary directory that is created if one is needed; the session's.
    pub(super) temporary: String,
}

/// What tells a layer from one with the same id that was pulled later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerIdentity {
    /// When its record says that it was created.
    pub(super) created: Option<Timestamp>,
    /// Inode of its directory, and when that was created, where the filesystem tells.
    pub(super) directory: Option<(u64, Option<Timestamp>)>,
}

impl LayerIdentity {
    /// Whether `now` is the same layer, as far as something of it is left.
    pub(super) fn is_still(&self, now: &Self) -> bool {
        let record = now.created.is_none() || now.created == self.created;
        let directory = now.directory.is_none() || now.directory == self.directory;
        record && directory
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    graphroot: PathBuf,
    /// Device and inode of the graphroot.
    store: (u64, u64),
    /// A graphroot may have a store for each driver.
    driver: String,
    /// The boot it was written in, and when.
    boot_id: String,
    at: Timestamp,
    /// One for each layer.
    identities: Vec<LayerIdentity>,
    #[serde(flatten)]
    pub(super) intent: Intent,
}

impl Note {
    /// The layers, with what tells them.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&String, &LayerIdentity)> {
        self.intent.layers.iter().zip(&self.identities)
    }

    /// Why it is not obeyed any more, if so.
    fn stale(&self, editor: &Editor, here: &Self) -> Option<&'static str> {
        let same_boot = self.boot_id == here.boot_id;
        // The numbers of some devices are others after a reboot.
        if self.store.1 != here.store.1 || (same_boot && self.store.0 != here.store.0) {
            return Some("it belongs to another store at the same path");
        }
        if editor.present().age(self.at) > OBEYED_FOR {
            return Some("it is too old");
        }
        (self.identities.len() != self.intent.layers.len()).then_some("it does not distinguish its layers")
    }
}

impl Editor {
    fn notes_path(&self, intent: &Intent) -> Option<PathBuf> {
        let named = intent.images.first().or(intent.container.as_ref());
        let first = named.or(intent.layers.first()).map_or("of-leftovers", String::as_str);
        let (device, inode) = self.places.graphroot.identity();
        let store = format!("{}-{device:x}-{inode:x}", self.places.driver);
        let directory = self.options.intents.as_ref()?;
        Some(directory.join(format!("deletion-{store}-{first}.json")))
    }

    /// A note on this store as of now.
    fn note(&self, intent: Intent, identities: Vec<LayerIdentity>) -> std::io::Result<Note> {
        let graphroot = self.places.graphroot.to_path_buf();
        let ClockReading { boot_id, .. } = clock::read()?;
        let (store, at) = (self.places.graphroot.identity(), self.present().now());
        Ok(Note { graphroot, store, driver: self.places.driver.clone(), boot_id, at, identities, intent })
    }

    /// Best effort: a deletion must work on a full disk as well.
    pub(super) fn note_intent(&self, intent: &Intent, identities: Vec<LayerIdentity>) {
        let Some(path) = self.notes_path(intent).filter(|path| path.parent().is_some_and(is_ours)) else {
            return;
        };
        let temporary = path.with_extension(format!("tmp{}", noise64()));
        let write = |content: Vec<u8>| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&content)
        };
        let written = self
            .note(intent.clone(), identities)
            .and_then(|note| serde_json::to_vec(&note).map_err(std::io::Error::from))
            .and_then(write)
            .and_then(|()| std::fs::rename(&temporary, &path));
        if let Err(error) = written {
            tracing::debug!(%error, path = %path.display(), "cannot write the note of this deletion; \
                continuing without it");
            let _ = std::fs::remove_file(temporary);
        }
    }

    pub(super) fn forget_intent(&self, intent: &Intent) {
        let Some(path) = self.notes_path(intent) else { return };
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove the note of a finished deletion");
        }
    }

    /// The notes on this store, and why those are not obeyed that are not.
    pub(super) fn notes(&self) -> Vec<(PathBuf, Result<Note, &'static str>)> {
        let Some(directory) = &self.options.intents else { return Vec::new() };
        let paths = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("deletion-") && path.extension().is_some_and(|extension| extension == "json")
        };
        let mut paths = paths.filter(named).take(MOST_NOTES).peekable();
        if paths.peek().is_none() {
            return Vec::new();
        }
        if !is_ours(directory) {
            tracing::warn!(path = %directory.display(), "ignoring notes: other users can write to their \
                directory");
            return Vec::new();
        }
        let Ok(here) = self.note(Intent::default(), Vec::new()) else { return Vec::new() };
        let notes = paths.filter_map(|path| {
            // Another version's is for that.
            let note: Note = serde_json::from_slice(&read_ours(&path)?).ok()?;
            if note.graphroot != *self.places.graphroot || note.driver != self.places.driver {
                return None;
            }
            Some((path, note.stale(self, &here).map_or(Ok(note), Err)))
        });
        notes.collect()
    }
}

/// Whether only we and root can have written there, since notes are acted upon.
fn is_ours(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| written_by_us(&stat) && kind(&stat).is_dir())
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn written_by_us(stat: &Stat) -> bool {
    let owner = stat.st_uid == rustix::process::geteuid().as_raw() || stat.st_uid == 0;
    owner && stat.st_mode & 0o022 == 0
}

/// A regular file that only we can have written.
fn read_ours(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if !written_by_us(&stat) || !kind(&stat).is_file() {
        tracing::warn!(path = %path.display(), "ignoring this note: another user may have written it");
        return None;
    }
    let mut content = Vec::new();
    File::from(file).take(LONGEST_NOTE).read_to_end(&mut content).ok()?;
    Some(content)
}
