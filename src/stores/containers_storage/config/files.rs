//! The files of one reading of the configuration: each is looked for, listed and read once.
//!
//! Every home is asked by the same rules, and so for the same files of the system. Nothing is
//! kept longer than one reading, so that a later one sees what changed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::storage_conf::Settings;
use super::toml_file::Problems;
use crate::sys::sysroot::{Entry, Sysroot};

/// No configuration file is longer than this; what is, is none.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// So many directories above a path are looked for one by one.
const MOST_ANCESTORS: usize = 16;

type Once<K, V> = RefCell<HashMap<K, Rc<V>>>;

/// The files below one root, as they are when they are first asked for.
#[derive(Debug)]
pub(super) struct Files<'a> {
    pub(super) sysroot: &'a Sysroot,
    places: Once<PathBuf, io::Result<PathBuf>>,
    listings: Once<PathBuf, io::Result<Vec<Entry>>>,
    texts: Once<PathBuf, io::Result<String>>,
    settings: Once<Vec<PathBuf>, (Settings, Problems)>,
}

impl<'a> Files<'a> {
    pub(super) fn new(sysroot: &'a Sysroot) -> Self {
        Self {
            sysroot,
            places: Once::default(),
            listings: Once::default(),
            texts: Once::default(),
            settings: Once::default(),
        }
    }

    /// Where a path lies for us ([`Sysroot::resolve`]).
    pub(super) fn place(&self, path: &Path) -> Rc<io::Result<PathBuf>> {
        once(&self.places, path, || {
            // What a directory that is not there would hold is not there either: most homes have
            // none of what could be in them.
            let mut above: Vec<&Path> = path.ancestors().skip(1).take(MOST_ANCESTORS).collect();
            above.retain(|directory| directory.file_name().is_some());
            let missing = |directory: &&Path| {
                let place = once(&self.places, *directory, || self.sysroot.resolve(directory));
                matches!(&*place, Err(error) if is_not_found(error))
            };
            match above.iter().rev().any(missing) {
                true => Err(io::ErrorKind::NotFound.into()),
                false => self.sysroot.resolve(path),
            }
        })
    }

    /// Whether there is something, or something that keeps us from knowing.
    pub(super) fn exists(&self, path: &Path) -> bool {
        !matches!(&*self.place(path), Err(error) if is_not_found(error))
    }

    /// The facts of the directory that a path leads to, if there is one and they can be had.
    pub(super) fn metadata(&self, path: &Path) -> Option<std::fs::Metadata> {
        self.place(path).as_ref().as_ref().ok()?;
        let root = self.sysroot.open(path).ok()?;
        std::fs::File::from(root.fd().try_clone_to_owned().ok()?).metadata().ok()
    }

    /// What is in a directory ([`Sysroot::list`]).
    pub(super) fn list(&self, path: &Path) -> Rc<io::Result<Vec<Entry>>> {
        once(&self.listings, path, || match &*self.place(path) {
            Err(error) if is_not_found(error) => Err(io::ErrorKind::NotFound.into()),
            _ => self.sysroot.list(path),
        })
    }

    /// A file's text ([`Sysroot::read`]).
    pub(super) fn text(&self, path: &Path) -> Rc<io::Result<String>> {
        once(&self.texts, path, || self.sysroot.read(path, MAX_FILE_BYTES))
    }

    /// What these files of `storage.conf`'s say together.
    pub(super) fn settings(&self, files: &[PathBuf], problems: &mut Problems) -> Settings {
        let read = once(&self.settings, files, || {
            let mut problems = Problems::default();
            (Settings::read(self, files, &mut problems), problems)
        });
        let (settings, found) = &*read;
        found.0.iter().for_each(|(file, reason)| problems.note(file, reason.clone()));
        settings.clone()
    }
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// What is known of `key`, or else what `find` says.
fn once<K, Q, V>(known: &Once<K, V>, key: &Q, find: impl FnOnce() -> V) -> Rc<V>
where
    K: Hash + Eq + std::borrow::Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    if let Some(known) = known.borrow().get(key) {
        return Rc::clone(known);
    }
    let found = Rc::new(find());
    known.borrow_mut().insert(key.to_owned(), Rc::clone(&found));
    found
}
