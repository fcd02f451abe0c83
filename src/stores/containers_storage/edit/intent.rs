//! What a deletion was about to do, kept in our own state directory while it does it.
//!
//! A deletion that is killed between the image's record and the last layer's leaves layers
//! that look like a pull in progress: nobody may touch those for a day. With the note of what
//! we were about to do, our next run can finish at once. Without it (state directory full or
//! read-only) the sweep finishes a day later.

use std::fs::File;
use std::io::{Read as _, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{FileType, Mode, OFlags, Stat, StatxFlags};
use serde::{Deserialize, Serialize};

use super::bin::{self, Bin, TEMPDIRS, TEMPDIRS_OF_RECORDS};
use super::error::Error;
use super::locks::{Guards, noise64};
use super::mounted::{self, Read};
use super::place::KINDS;
use super::session::Session;
use super::{Deleted, Editor, directory};
use crate::sys::beneath::AS_IT_IS;
use crate::sys::clock::{self, Reading};

/// Nobody has killed more runs than this.
const MOST_NOTES: usize = 1000;

/// Later than this a sweep has finished what was begun, and layers of the same ids may have come.
const OBEYED_FOR: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A note is a few kilobytes.
const LONGEST_NOTE: u64 = 1 << 20;

/// What is about to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intent {
    /// The image whose record goes first.
    pub(super) image: Option<String>,
    /// The container whose record goes last.
    #[serde(default)]
    pub(super) container: Option<String>,
    /// Its layers, each before the one it lies on.
    pub(super) layers: Vec<String>,
    /// Number of the temporary directory that is made if one is needed.
    pub(super) temporary: String,
}

impl Intent {
    pub(super) fn new(image: Option<&str>, layers: Vec<String>, session: &Session<'_>) -> Self {
        Self { image: image.map(str::to_owned), container: None, layers, temporary: session.number.clone() }
    }

    /// The deletion of a container.
    pub(super) fn of_container(id: &str, layers: Vec<String>, session: &Session<'_>) -> Self {
        Self { container: Some(id.to_owned()), ..Self::new(None, layers, session) }
    }
}

/// What tells a layer from one with the same id that was pulled later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// When its record says that it was made.
    created: Option<Timestamp>,
    /// Inode of its directory, and when that was made, where the filesystem tells.
    directory: Option<(u64, Option<Timestamp>)>,
}

impl Mark {
    /// Whether `now` is the same layer, as far as something of it is left.
    fn is_still(&self, now: &Self) -> bool {
        let record = now.created.is_none() || now.created == self.created;
        let directory = now.directory.is_none() || now.directory == self.directory;
        record && directory
    }
}

#[derive(Serialize, Deserialize)]
struct Note {
    graphroot: PathBuf,
    /// Device and inode of the graphroot.
    store: (u64, u64),
    /// The boot it was written in, and when.
    boot_id: String,
    at: Timestamp,
    /// One for each layer.
    marks: Vec<Mark>,
    #[serde(flatten)]
    intent: Intent,
}

impl Note {
    /// Why it is not obeyed any more, if so.
    fn stale(&self, editor: &Editor, here: &Self) -> Option<&'static str> {
        let same_boot = self.boot_id == here.boot_id;
        // The numbers of some devices are others after a reboot.
        if self.store.1 != here.store.1 || (same_boot && self.store.0 != here.store.0) {
            return Some("it is about another store that was in the same place");
        }
        if editor.present().age(self.at) > OBEYED_FOR {
            return Some("it is too old");
        }
        (self.marks.len() != self.intent.layers.len()).then_some("it does not tell its layers apart")
    }
}

impl Editor {
    fn notes_path(&self, intent: &Intent) -> Option<PathBuf> {
        let named = intent.image.as_deref().or(intent.container.as_deref());
        let first = named.or(intent.layers.first().map(String::as_str)).unwrap_or("of-leftovers");
        let directory = self.options.intents.as_ref()?;
        Some(directory.join(format!("deletion-{first}.json")))
    }

    /// A note on this store as of now.
    fn note(&self, intent: Intent, marks: Vec<Mark>) -> std::io::Result<Note> {
        let graphroot = self.places.graphroot.to_path_buf();
        let Reading { boot_id, .. } = clock::read()?;
        let (store, at) = (self.places.graphroot.identity(), self.present().now());
        Ok(Note { graphroot, store, boot_id, at, marks, intent })
    }

    /// Best effort: a deletion must work on a full disk as well.
    fn note_intent(&self, intent: &Intent, marks: Vec<Mark>) {
        let Some(path) = self.notes_path(intent).filter(|path| path.parent().is_some_and(is_ours)) else {
            return;
        };
        let temporary = path.with_extension(format!("tmp{}", noise64()));
        let write = |content: Vec<u8>| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&content)
        };
        let written = self
            .note(intent.clone(), marks)
            .and_then(|note| serde_json::to_vec(&note).map_err(std::io::Error::from))
            .and_then(write)
            .and_then(|()| std::fs::rename(&temporary, &path));
        if let Err(error) = written {
            tracing::debug!(%error, path = %path.display(), "the deletion goes on without a note");
            let _ = std::fs::remove_file(temporary);
        }
    }

    pub(super) fn forget_intent(&self, intent: &Intent) {
        let Some(path) = self.notes_path(intent) else { return };
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "a note of a finished deletion stays");
        }
    }

    /// Finishes the deletions that a killed run of ours began in this store: layers that
    /// nothing has come to use since, directories of images whose record is gone, containers whose
    /// layer is gone, temporary files and directories of dead processes. Call it before a run; without notes it does
    /// nothing, and takes no lock.
    ///
    /// # Errors
    /// When the locks cannot be had, the records cannot be read, or a deletion fails. What is in
    /// use now is no error: it stays.
    pub fn resume(&self) -> Result<Deleted, Error> {
        // A note is of the graphroot's layers; what a deletion of artifacts leaves a sweep finds.
        if self.is_of_artifacts() {
            return Ok(Deleted::default());
        }
        let notes = self.notes();
        if notes.is_empty() {
            return Ok(Deleted::default());
        }
        let read = match notes.iter().any(|(_, intent, _)| intent.container.is_some()) {
            true => Read::Processes,
            false => Read::Mounts,
        };
        let done = Session::open(self, read)?.run(|session| {
            let numbers: Vec<_> = notes.iter().map(|(_, intent, _)| intent.temporary.as_str()).collect();
            session.sweep_temporary(&numbers)?;
            notes.iter().try_for_each(|(_, intent, marks)| session.finish_intent(intent, marks))
        })?;
        for (path, ..) in notes {
            let _ = std::fs::remove_file(path);
        }
        Ok(done)
    }

    /// The notes on this store that still stand; the others are dropped.
    fn notes(&self) -> Vec<(PathBuf, Intent, Vec<Mark>)> {
        let Some(directory) = &self.options.intents else { return Vec::new() };
        let paths = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("deletion-") && is_json(path)
        };
        let mut paths = paths.filter(named).take(MOST_NOTES).peekable();
        if paths.peek().is_none() {
            return Vec::new();
        }
        if !is_ours(directory) {
            tracing::warn!(path = %directory.display(), "notes are not obeyed: others may write there");
            return Vec::new();
        }
        let empty = Intent { image: None, container: None, layers: Vec::new(), temporary: String::new() };
        let Ok(here) = self.note(empty, Vec::new()) else { return Vec::new() };
        let notes = paths.filter_map(|path| {
            let content = read_ours(&path)?;
            let note: Result<Note, _> = serde_json::from_slice(&content);
            let graphroot = match &note {
                Ok(note) => note.graphroot.clone(),
                Err(_) => serde_json::from_slice::<Graphroot>(&content).ok()?.graphroot,
            };
            if graphroot != *self.places.graphroot {
                return None;
            }
            let stale = match &note {
                Ok(note) => note.stale(self, &here),
                Err(_) => Some("it is in no form that is known"),
            };
            if let Some(why) = stale {
                tracing::info!(path = %path.display(), "a note of a killed deletion is dropped: {why}");
                let _ = std::fs::remove_file(path);
                return None;
            }
            note.ok().map(|note| (path, note.intent, note.marks))
        });
        notes.collect()
    }
}

/// Of a note that is not understood.
#[derive(Deserialize)]
struct Graphroot {
    graphroot: PathBuf,
}

/// Whether nobody but us and root can have written there: what is noted is done.
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
        tracing::warn!(path = %path.display(), "this note is not obeyed: others may have written it");
        return None;
    }
    let mut content = Vec::new();
    File::from(file).take(LONGEST_NOTE).read_to_end(&mut content).ok()?;
    Some(content)
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

impl Session<'_> {
    /// Half-written record files, which are dead since the store's locks are ours, and our own
    /// temporary directories.
    fn sweep_temporary(&mut self, ours: &[&str]) -> Result<(), Error> {
        let mut found = Vec::new();
        for (at, place) in self.places.iter().enumerate() {
            for (guards, _) in KINDS {
                let Some(records) = place.records(guards) else { continue };
                for name in records.names()? {
                    if name.as_encoded_bytes().starts_with(b".tmp-") {
                        self.done.removed += u64::from(records.unlink(&name)?);
                    }
                }
            }
            let of_records = place.records(Guards::Layers).map(|records| (records, TEMPDIRS_OF_RECORDS));
            let of_driver = place.driver.as_ref().map(|driver| (driver, TEMPDIRS));
            for (parent, holder) in of_driver.into_iter().chain(of_records) {
                let Some(tempdirs) = parent.below(holder)? else { continue };
                let names = tempdirs.names()?;
                for number in bin::numbers(&names).into_iter().filter(|number| ours.contains(number)) {
                    let directory = tempdirs.path().join(format!("temp-dir-{number}"));
                    if let Some(bin) = Bin::adopt(parent, holder.as_ref(), number)? {
                        found.push((at, directory, bin));
                    }
                }
                if names.is_empty() {
                    parent.remove_empty(holder);
                }
            }
        }
        for (place, path, bin) in found {
            match self.prove_unmounted(&[mounted::Doomed { path: &path, words: Vec::new() }]) {
                Ok(()) => self.adopt(place, bin),
                Err(refusal) => tracing::info!(%refusal, "a temporary directory stays"),
            }
        }
        Ok(())
    }

    /// Notes what is about to go, and by what it is known again.
    pub(super) fn note_intent(&self, intent: &Intent) {
        let marks = intent.layers.iter().map(|id| self.mark(id)).collect();
        self.editor.note_intent(intent, marks);
    }

    fn mark(&self, id: &str) -> Mark {
        let created = self.records.layer(id).and_then(|layer| layer.created);
        let layers = self.places.iter().filter_map(|place| place.layers.as_ref());
        let wish = StatxFlags::INO | StatxFlags::BTIME;
        let directory = layers.into_iter().find_map(|layers| {
            let stat = rustix::fs::statx(layers.fd(), id, AS_IT_IS, wish).ok()?;
            let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
            let nanoseconds = i32::try_from(stat.stx_btime.tv_nsec).unwrap_or(0);
            let born = Timestamp::new(stat.stx_btime.tv_sec, nanoseconds).ok().filter(|_| known);
            Some((stat.stx_ino, born))
        });
        Mark { created, directory }
    }

    fn finish_intent(&mut self, intent: &Intent, marks: &[Mark]) -> Result<(), Error> {
        if let Some(image) = &intent.image {
            if self.records.image(image).is_some() {
                // It was killed before the first change, or the image has been pulled again.
                return Ok(());
            }
            if directory::id_of(image.as_ref()).is_some() {
                for place in 0..self.places.len() {
                    self.remove_image_directory(place, image)?;
                }
            }
        }
        // Its record, which names the layer, keeps what is left of that.
        if let Some(container) = &intent.container {
            match self.finish_container(container) {
                Err(Error::Refused(refusal)) => {
                    tracing::info!(%refusal, container, "a container whose deletion was killed stays");
                    return Ok(());
                }
                other => other?,
            }
        }
        for (id, mark) in intent.layers.iter().zip(marks) {
            if !mark.is_still(&self.mark(id)) {
                tracing::info!(layer = id, "a layer of a deletion that was killed has come anew, and stays");
                return Ok(());
            }
            match self.finish_layer(id) {
                Err(Error::Refused(refusal)) => {
                    tracing::info!(%refusal, layer = id, "a layer of a deletion that was killed stays");
                    return Ok(());
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn finish_layer(&mut self, id: &str) -> Result<(), Error> {
        if self.records.layer(id).is_some() {
            self.prove_unreferenced(id)?;
            self.outside.prove_layers(&[id.to_owned()])?;
            let doomed = self.prove_layers(&[id.to_owned()])?;
            return self.delete_proven(&doomed);
        }
        // Its record went first (no marks): an orphan directory by now, or nothing.
        for place in 0..self.places.len() {
            let layers = self.places[place].layers.as_ref();
            let there = layers.map_or(Ok(false), |layers| layers.has(id))?;
            if there && directory::id_of(id.as_ref()).is_some() {
                self.reclaim_layer_directory(place, id)?;
            }
        }
        if directory::id_of(id.as_ref()).is_some() {
            self.prove_layer_unnamed(id)?;
            self.remove_layer_data(id)?;
        }
        Ok(())
    }
}
