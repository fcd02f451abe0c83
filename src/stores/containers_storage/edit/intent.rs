//! The deletion intent: a file in our own state directory that says what a run is about to delete.
//!
//! A deletion that is killed between removing the image's record and the last layer's leaves
//! layers that look like a pull in progress, which must not be touched for a day. With the intent our next
//! run can finish at once. Without it (state directory full or read-only) the sweep finishes a day later.

use std::fs::File;
use std::io::{Read as _, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use serde::{Deserialize, Serialize};

use super::editor::Editor;
use crate::sys::clock;

/// So many intents are read at most, should somebody fill the directory.
const MAX_INTENTS: usize = 1000;

/// An older intent is discarded: a sweep has finished what was begun, and layers of the same ids may have been pulled.
const INTENT_MAX_AGE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// An intent is a few kilobytes.
const LONGEST_INTENT: u64 = 1 << 20;

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

/// What is about to be deleted, and from which store.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Intent {
    graphroot: PathBuf,
    /// Device and inode of the graphroot.
    store: (u64, u64),
    /// A graphroot may have a store for each driver.
    driver: String,
    /// The boot it was written in, and when.
    boot_id: String,
    at: Timestamp,
    /// The images whose records go first.
    pub(super) images: Vec<String>,
    /// Its layers, each before the one it is on, as they were before the first change.
    pub(super) layers: Vec<(String, LayerIdentity)>,
    /// Number of the session, which is that of its temporary directory if one is needed.
    pub(super) temporary: String,
}

impl Intent {
    /// Why it is discarded, if so.
    fn stale(&self, editor: &Editor, boot_id: &str) -> Option<&'static str> {
        let (device, inode) = editor.places.graphroot.identity();
        // The numbers of some devices are others after a reboot.
        if self.store.1 != inode || (self.boot_id == boot_id && self.store.0 != device) {
            return Some("it belongs to another store at the same path");
        }
        (editor.present().age(self.at) > INTENT_MAX_AGE).then_some("it is too old")
    }
}

impl Editor {
    /// An intent to delete from this store, as of now.
    pub(super) fn new_intent(
        &self,
        images: Vec<String>,
        layers: Vec<(String, LayerIdentity)>,
        temporary: String,
    ) -> std::io::Result<Intent> {
        Ok(Intent {
            graphroot: self.places.graphroot.to_path_buf(),
            store: self.places.graphroot.identity(),
            driver: self.places.driver.clone(),
            boot_id: clock::read()?.boot_id,
            at: self.present().now(),
            images,
            layers,
            temporary,
        })
    }

    /// Each session has a name of its own, so that none replaces or removes what a killed run had begun.
    fn intent_path(&self, intent: &Intent) -> Option<PathBuf> {
        let directory = self.options.intents.as_ref()?;
        Some(directory.join(format!("intent-{}.json", intent.temporary)))
    }

    /// Best effort: a deletion must work on a full disk as well.
    pub(super) fn write_intent(&self, intent: &Intent) {
        let path = self.intent_path(intent).filter(|path| path.parent().is_some_and(is_ours));
        let Some(path) = path else { return };
        let temporary = path.with_extension("tmp");
        let write = |content: Vec<u8>| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&content)
        };
        let written = serde_json::to_vec(intent).map_err(std::io::Error::from).and_then(write);
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, &path)) {
            tracing::debug!(%error, path = %path.display(), "cannot write the deletion intent; \
                continuing without it");
            let _ = std::fs::remove_file(temporary);
        }
    }

    pub(super) fn remove_intent(&self, intent: &Intent) {
        let Some(path) = self.intent_path(intent) else { return };
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove the intent of a finished deletion");
        }
    }

    /// The intents of killed runs on this store; of those to be discarded, why.
    pub(super) fn intents(&self) -> Vec<(PathBuf, Result<Intent, &'static str>)> {
        let Some(directory) = &self.options.intents else { return Vec::new() };
        let paths = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("intent-") && path.extension().is_some_and(|extension| extension == "json")
        };
        let mut paths = paths.filter(named).take(MAX_INTENTS).peekable();
        if paths.peek().is_none() {
            return Vec::new();
        }
        if !is_ours(directory) {
            tracing::warn!(path = %directory.display(), "ignoring deletion intents: other users can write to \
                their directory");
            return Vec::new();
        }
        let Ok(now) = clock::read() else { return Vec::new() };
        let intents = paths.filter_map(|path| {
            // Another version's is for that.
            let intent: Intent = serde_json::from_slice(&read_ours(&path)?).ok()?;
            if intent.graphroot != *self.places.graphroot || intent.driver != self.places.driver {
                return None;
            }
            Some((path, intent.stale(self, &now.boot_id).map_or(Ok(intent), Err)))
        });
        intents.collect()
    }
}

/// Whether only we and root can have written there, since intents are acted upon.
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
        tracing::warn!(path = %path.display(), "ignoring this deletion intent: another user may have written it");
        return None;
    }
    let mut content = Vec::new();
    File::from(file).take(LONGEST_INTENT).read_to_end(&mut content).ok()?;
    Some(content)
}
