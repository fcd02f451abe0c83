//! What a deletion was about to do, kept in our own state directory while it does it.
//!
//! A deletion that is killed between the image's record and the last layer's leaves layers
//! that look like a pull in progress: nobody may touch those for a day. With the note of what
//! we were about to do, our next run can finish at once. Without it (state directory full or
//! read-only) the sweep finishes a day later.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bin::{self, Bin, TEMPDIRS};
use super::error::Error;
use super::locks::noise64;
use super::place::KINDS;
use super::session::Session;
use super::{Deleted, Editor, directory, mounted};

/// A note that is as old as a forgotten one is no longer about this store.
const MOST_NOTES: usize = 1000;

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

#[derive(Serialize, Deserialize)]
struct Note {
    graphroot: PathBuf,
    #[serde(flatten)]
    intent: Intent,
}

impl Editor {
    fn notes_path(&self, intent: &Intent) -> Option<PathBuf> {
        let named = intent.image.as_deref().or(intent.container.as_deref());
        let first = named.or(intent.layers.first().map(String::as_str)).unwrap_or("of-leftovers");
        let directory = self.options.intents.as_ref()?;
        Some(directory.join(format!("deletion-{first}.json")))
    }

    /// Best effort: a deletion must work on a full disk as well.
    pub(super) fn note_intent(&self, intent: &Intent) {
        let Some(path) = self.notes_path(intent) else { return };
        let note = Note { graphroot: self.places.graphroot.clone(), intent: intent.clone() };
        let temporary = path.with_extension(format!("tmp{}", noise64()));
        let written = serde_json::to_vec(&note)
            .map_err(std::io::Error::from)
            .and_then(|content| std::fs::write(&temporary, content))
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
        let done = Session::open(self)?.run(|session| {
            let numbers: Vec<_> = notes.iter().map(|(_, intent)| intent.temporary.as_str()).collect();
            session.sweep_temporary(&numbers)?;
            notes.iter().try_for_each(|(_, intent)| session.finish_intent(intent))
        })?;
        for (path, _) in notes {
            let _ = std::fs::remove_file(path);
        }
        Ok(done)
    }

    fn notes(&self) -> Vec<(PathBuf, Intent)> {
        let Some(directory) = &self.options.intents else { return Vec::new() };
        let paths = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("deletion-") && is_json(path)
        };
        let notes = paths.filter(named).take(MOST_NOTES).filter_map(|path| {
            let note: Note = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
            (note.graphroot == self.places.graphroot).then_some((path, note.intent))
        });
        notes.collect()
    }
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
            let Some(driver) = &place.driver else { continue };
            let Some(tempdirs) = driver.below(TEMPDIRS)? else { continue };
            let names = tempdirs.names()?;
            for number in bin::numbers(&names).into_iter().filter(|number| ours.contains(number)) {
                let directory = tempdirs.path().join(format!("temp-dir-{number}"));
                if let Some(bin) = Bin::adopt(driver, TEMPDIRS.as_ref(), number)? {
                    found.push((at, directory, bin));
                }
            }
            if names.is_empty() {
                driver.remove_empty(TEMPDIRS);
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

    fn finish_intent(&mut self, intent: &Intent) -> Result<(), Error> {
        if let Some(image) = &intent.image {
            if self.records.image(image).is_some() {
                // It was killed before the first change, or the image has been pulled again.
                return Ok(());
            }
            if directory::id_of(image.as_ref()).is_some() {
                for place in 0..self.places.len() {
                    self.remove_image_directory(place, image);
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
        for id in &intent.layers {
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
