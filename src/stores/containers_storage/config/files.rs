//! The files of one reading of the configuration: each is located, listed and read once. Access to
//! their TOML keys is typed; a value of another type is reported with its line.
//!
//! Every home directory follows the same rules and so reads the same system files. Nothing is
//! cached beyond one reading, so that the next one sees changes.
//!
//! The runtimes read their files with Go's BurntSushi/toml, which matches keys case-insensitively
//! where there is no exact match; this reader does the same.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::types::{Problems, Settings, Strings};
use crate::sys::quiet::{DirectoryEntry, is_absent};
use crate::sys::sysroot::Sysroot;

/// No configuration file is longer than this; what is, is none.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// All files together. Any user may have some.
const MAX_BYTES: u64 = 16 << 20;

/// Maximum number of texts in an array; the rest are ignored.
const MOST_TEXTS: usize = 1000;

/// So many directories above a path are looked for one by one.
const MOST_ANCESTORS: usize = 16;

type Once<K, V> = RefCell<HashMap<K, Rc<V>>>;

/// The files below one root, as they are when they are first asked for.
#[derive(Debug)]
pub(super) struct Files<'a> {
    pub(super) sysroot: &'a Sysroot,
    places: Once<PathBuf, io::Result<PathBuf>>,
    listings: Once<PathBuf, io::Result<Vec<DirectoryEntry>>>,
    texts: Once<PathBuf, io::Result<String>>,
    /// Of [`MAX_BYTES`].
    bytes_left: Cell<u64>,
    settings: Once<Vec<PathBuf>, (Settings, Problems)>,
}

impl<'a> Files<'a> {
    pub(super) fn new(sysroot: &'a Sysroot) -> Self {
        Self {
            sysroot,
            places: Once::default(),
            listings: Once::default(),
            texts: Once::default(),
            bytes_left: Cell::new(MAX_BYTES),
            settings: Once::default(),
        }
    }

    /// The resolved path ([`Sysroot::resolve`]).
    pub(super) fn place(&self, path: &Path) -> Rc<io::Result<PathBuf>> {
        once(&self.places, path, || {
            // What a directory that is not there would hold is not there either: most homes have
            // none of what could be in them.
            let mut above: Vec<&Path> = path.ancestors().skip(1).take(MOST_ANCESTORS).collect();
            above.retain(|directory| directory.file_name().is_some());
            let missing = |directory: &&Path| {
                let place = once(&self.places, *directory, || self.sysroot.resolve(directory));
                matches!(&*place, Err(error) if is_absent(error))
            };
            match above.iter().rev().any(missing) {
                true => Err(io::ErrorKind::NotFound.into()),
                false => self.sysroot.resolve(path),
            }
        })
    }

    /// Whether there is something, or something that keeps us from knowing.
    pub(super) fn exists(&self, path: &Path) -> bool {
        !matches!(&*self.place(path), Err(error) if is_absent(error))
    }

    /// The facts of the directory that a path leads to, if there is one and they can be had.
    pub(super) fn metadata(&self, path: &Path) -> Option<std::fs::Metadata> {
        self.place(path).as_ref().as_ref().ok()?;
        let root = self.sysroot.open(path).ok()?;
        std::fs::File::from(root.fd().try_clone_to_owned().ok()?).metadata().ok()
    }

    /// What is in a directory ([`Sysroot::list`]).
    pub(super) fn list(&self, path: &Path) -> Rc<io::Result<Vec<DirectoryEntry>>> {
        once(&self.listings, path, || match &*self.place(path) {
            Err(error) if is_absent(error) => Err(io::ErrorKind::NotFound.into()),
            _ => self.sysroot.list(path),
        })
    }

    /// A file's text ([`Sysroot::read`]).
    pub(super) fn text(&self, path: &Path) -> Rc<io::Result<String>> {
        once(&self.texts, path, || {
            let left = self.bytes_left.get();
            let text = self.sysroot.read(path, MAX_FILE_BYTES.min(left))?;
            self.bytes_left.set(left.saturating_sub(text.len() as u64));
            Ok(text)
        })
    }

    /// What these files of `storage.conf`'s say together; `read` reads them.
    pub(super) fn settings(
        &self,
        files: &[PathBuf],
        problems: &mut Problems,
        read: impl FnOnce(&mut Problems) -> Settings,
    ) -> Settings {
        let known = once(&self.settings, files, || {
            let mut problems = Problems::default();
            (read(&mut problems), problems)
        });
        let (settings, found) = &*known;
        found.found.iter().for_each(|(file, reason)| problems.note(file, reason.clone()));
        settings.clone()
    }
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

/// Reads `path` and passes its top level to `use_it`, unless it cannot be parsed.
pub(super) fn with_file(
    files: &Files<'_>,
    path: &Path,
    problems: &mut Problems,
    use_it: impl FnOnce(&Table<'_>, &mut Problems),
) {
    let text = files.text(path);
    let text = match &*text {
        Ok(text) => text,
        Err(error) => return problems.note(path, format!("reading it: {error}")),
    };
    match DeTable::parse(text) {
        Ok(table) => {
            let file = File { path, text };
            use_it(&Table { file, table: table.get_ref() }, problems);
        }
        Err(error) => {
            let line = error.span().map_or(1, |span| File { path, text }.line(span.start));
            problems.note(path, format!("line {line}: {}", error.message()));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    /// The line of a byte, counted from 1.
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong_type(&self, name: &str, value: &Spanned<DeValue<'_>>, want: &str, to: &mut Problems) {
        let line = self.line(value.span().start);
        let found = value.get_ref().type_str();
        to.note(self.path, format!("line {line}: {name} must be {want}, not {found}; ignored"));
    }
}

/// A table of a file.
#[derive(Debug)]
pub(super) struct Table<'a> {
    file: File<'a>,
    table: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// The file that this is of, inside the root.
    pub(super) fn path(&self) -> &'a Path {
        self.file.path
    }

    fn get(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name).or_else(|| {
            let same = |key: &str| key.eq_ignore_ascii_case(name);
            self.table.iter().find(|(key, _)| same(key.get_ref())).map(|(_, value)| value)
        })
    }

    /// A table in this table.
    pub(super) fn table(&self, name: &str, problems: &mut Problems) -> Option<Table<'a>> {
        let value = self.get(name)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.file.wrong_type(name, value, "a table", problems);
        }
        Some(Table { file: self.file, table: table? })
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

    /// An array of strings. Elements of other types are left out, and the first is noted.
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
                let attributes = Table { file: self.file, table };
                strings.append = attributes.boolean("append", problems).or(strings.append);
            } else if !std::mem::replace(&mut is_noted, true) {
                self.file.wrong_type(name, element, "an array of strings", problems);
            }
        }
        Some(strings)
    }
}
