//! Cache of configuration files, and typed access to their TOML keys.
//!
//! The lookup rules apply to every home directory, so a node with many users reads the same system files many times.
//! [`Files`] resolves, lists and reads each path once. It lives for one discovery only, so the next one sees changes.
//!
//! A value of an unexpected type is ignored and reported with its line.
//!
//! The runtimes parse their files with Go's BurntSushi/toml. It matches a key case-insensitively if there is no exact
//! match, and so does this reader.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::types::{Problems, StorageSettings, Strings};
use crate::sys::quiet::{DirectoryEntry, is_absent};
use crate::sys::sysroot::Sysroot;

/// Maximum size of a configuration file; larger files are not read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum size of all files together. Any user can create configuration files, so their sum has to be limited.
const MAX_BYTES: u64 = 16 << 20;

/// Maximum number of strings in an array; the rest are ignored.
const MOST_TEXTS: usize = 1000;

/// Maximum number of parent directories of a path that are resolved one by one.
const MOST_ANCESTORS: usize = 16;

type Once<K, V> = RefCell<HashMap<K, Rc<V>>>;

/// The files below one root. Each is cached as it was at its first use.
#[derive(Debug)]
pub(super) struct Files<'a> {
    pub(super) sysroot: &'a Sysroot,
    resolved: Once<PathBuf, io::Result<PathBuf>>,
    listings: Once<PathBuf, io::Result<Vec<DirectoryEntry>>>,
    texts: Once<PathBuf, io::Result<String>>,
    /// Number of bytes that may still be read, of [`MAX_BYTES`].
    bytes_left: Cell<u64>,
    settings: Once<Vec<PathBuf>, (StorageSettings, Problems)>,
}

impl<'a> Files<'a> {
    pub(super) fn new(sysroot: &'a Sysroot) -> Self {
        Self {
            sysroot,
            resolved: Once::default(),
            listings: Once::default(),
            texts: Once::default(),
            bytes_left: Cell::new(MAX_BYTES),
            settings: Once::default(),
        }
    }

    /// Resolves a path ([`Sysroot::resolve`]).
    pub(super) fn resolve(&self, path: &Path) -> Rc<io::Result<PathBuf>> {
        once(&self.resolved, path, || {
            // Most homes have no configuration: a missing parent directory, once cached, answers for every path in it.
            let mut parents: Vec<&Path> = path.ancestors().skip(1).take(MOST_ANCESTORS).collect();
            parents.retain(|parent| parent.file_name().is_some());
            for parent in parents.iter().rev() {
                let resolved = once(&self.resolved, *parent, || self.sysroot.resolve(parent));
                if matches!(&*resolved, Err(error) if is_absent(error)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
            }
            self.sysroot.resolve(path)
        })
    }

    /// Returns false only if the path is known not to exist. A path that cannot be examined counts as existing.
    pub(super) fn exists(&self, path: &Path) -> bool {
        !matches!(&*self.resolve(path), Err(error) if is_absent(error))
    }

    /// Returns the metadata of the file or directory at `path`, or `None` if it cannot be opened.
    pub(super) fn metadata(&self, path: &Path) -> Option<std::fs::Metadata> {
        self.resolve(path).as_ref().as_ref().ok()?;
        let root = self.sysroot.open(path).ok()?;
        std::fs::File::from(root.fd().try_clone_to_owned().ok()?).metadata().ok()
    }

    /// Lists a directory ([`Sysroot::list`]).
    pub(super) fn list(&self, path: &Path) -> Rc<io::Result<Vec<DirectoryEntry>>> {
        once(&self.listings, path, || match &*self.resolve(path) {
            Err(error) if is_absent(error) => Err(io::ErrorKind::NotFound.into()),
            _ => self.sysroot.list(path),
        })
    }

    /// Reads a text file ([`Sysroot::read`]).
    pub(super) fn text(&self, path: &Path) -> Rc<io::Result<String>> {
        once(&self.texts, path, || {
            let left = self.bytes_left.get();
            let text = self.sysroot.read(path, MAX_FILE_BYTES.min(left))?;
            self.bytes_left.set(left.saturating_sub(text.len() as u64));
            Ok(text)
        })
    }

    /// Returns the combined settings of these `storage.conf` files, and notes their problems. `read` is called unless
    /// they are cached.
    pub(super) fn settings(
        &self,
        files: &[PathBuf],
        problems: &mut Problems,
        read: impl FnOnce(&mut Problems) -> StorageSettings,
    ) -> StorageSettings {
        let known = once(&self.settings, files, || {
            let mut problems = Problems::default();
            (read(&mut problems), problems)
        });
        let (settings, found) = &*known;
        found.found.iter().for_each(|(file, reason)| problems.note(file, reason.clone()));
        settings.clone()
    }
}

/// Returns the cached value of `key`, or calls `find` and caches its result.
fn once<K, Q, V>(cache: &Once<K, V>, key: &Q, find: impl FnOnce() -> V) -> Rc<V>
where
    K: Hash + Eq + std::borrow::Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    if let Some(value) = cache.borrow().get(key) {
        return Rc::clone(value);
    }
    let value = Rc::new(find());
    cache.borrow_mut().insert(key.to_owned(), Rc::clone(&value));
    value
}

/// Reads and parses `path`, and passes its top-level table to `apply`. Notes a problem if that fails.
pub(super) fn with_file(
    files: &Files<'_>,
    path: &Path,
    problems: &mut Problems,
    apply: impl FnOnce(&TomlTable<'_>, &mut Problems),
) {
    let text = files.text(path);
    let text = match &*text {
        Ok(text) => text,
        Err(error) => return problems.note(path, format!("reading it: {error}")),
    };
    match DeTable::parse(text) {
        Ok(table) => {
            let file = ConfigFile { path, text };
            apply(&TomlTable { file, table: table.get_ref() }, problems);
        }
        Err(error) => {
            let line = error.span().map_or(1, |span| ConfigFile { path, text }.line(span.start));
            problems.note(path, format!("line {line}: {}", error.message()));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ConfigFile<'a> {
    path: &'a Path,
    text: &'a str,
}

impl ConfigFile<'_> {
    /// Returns the number of the line that contains the byte at `offset`, counted from 1.
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong_type(&self, name: &str, value: &Spanned<DeValue<'_>>, expected: &str, problems: &mut Problems) {
        let line = self.line(value.span().start);
        let found = value.get_ref().type_str();
        problems.note(self.path, format!("line {line}: {name} must be {expected}, not {found}; ignored"));
    }
}

/// A TOML table and the file that contains it.
#[derive(Debug)]
pub(super) struct TomlTable<'a> {
    file: ConfigFile<'a>,
    table: &'a DeTable<'a>,
}

impl<'a> TomlTable<'a> {
    pub(super) fn path(&self) -> &'a Path {
        self.file.path
    }

    fn get(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name).or_else(|| {
            let mut entries = self.table.iter();
            entries.find(|(key, _)| key.get_ref().eq_ignore_ascii_case(name)).map(|(_, value)| value)
        })
    }

    pub(super) fn table(&self, name: &str, problems: &mut Problems) -> Option<TomlTable<'a>> {
        let value = self.get(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.file.wrong_type(name, value, "a table", problems);
        }
        Some(TomlTable { file: self.file, table: table? })
    }

    pub(super) fn string(&self, name: &str, problems: &mut Problems) -> Option<String> {
        let value = self.get(name)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.file.wrong_type(name, value, "a string", problems);
        }
        text.map(str::to_owned)
    }

    pub(super) fn boolean(&self, name: &str, problems: &mut Problems) -> Option<bool> {
        let value = self.get(name)?;
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.file.wrong_type(name, value, "a boolean", problems);
        }
        boolean
    }

    /// Returns an array of strings. Elements of other types are skipped; the first of them is noted as a problem.
    pub(super) fn strings(&self, name: &str, problems: &mut Problems) -> Option<Strings> {
        let value = self.get(name)?;
        let Some(array) = value.get_ref().as_array() else {
            self.file.wrong_type(name, value, "an array of strings", problems);
            return None;
        };
        let mut strings = Strings::default();
        let mut is_noted = false;
        for element in array.iter() {
            if strings.values.len() == MOST_TEXTS {
                let reason = format!("{name} has more than {MOST_TEXTS} elements; the rest are ignored");
                problems.note(self.file.path, reason);
                break;
            }
            if let Some(text) = element.get_ref().as_str() {
                strings.values.push(text.to_owned());
            } else if let Some(table) = element.get_ref().as_table() {
                let attributes = TomlTable { file: self.file, table };
                strings.append = attributes.boolean("append", problems).or(strings.append);
            } else if !std::mem::replace(&mut is_noted, true) {
                self.file.wrong_type(name, element, "an array of strings", problems);
            }
        }
        Some(strings)
    }
}
