//! One foreign TOML file: typed keys, and for what does not fit, which line and why.
//!
//! The runtimes read their files with Go's BurntSushi/toml, which takes keys regardless of case
//! where there is no exact match; so is it done here.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::files::Files;

/// What could not be read or understood: path inside the root, and reason.
#[derive(Debug, Default)]
pub(super) struct Problems(pub(super) Vec<(PathBuf, String)>);

impl Problems {
    /// Notes a problem, once: two lookup rules may read the same file.
    pub(super) fn note(&mut self, file: &Path, reason: impl Into<String>) {
        let problem = (file.to_path_buf(), reason.into());
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }
}

/// Reads `path` and hands its top level to `use_it`; nothing happens if it cannot be parsed.
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
            problems.note(path, format!("line {line}: {}; the file is ignored", error.message()));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    /// The line, counted from 1, in which a byte lies.
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn wrong_type(&self, name: &str, value: &Spanned<DeValue<'_>>, want: &str, to: &mut Problems) {
        let line = self.line(value.span().start);
        let found = value.get_ref().type_str();
        to.note(self.path, format!("line {line}: {name} is to be {want}, not {found}; it is ignored"));
    }
}

/// A table of a file.
#[derive(Debug)]
pub(super) struct Table<'a> {
    file: File<'a>,
    table: &'a DeTable<'a>,
}

/// An array of strings. containers/storage 1.63 lets it carry `{append = true}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strings {
    /// The strings.
    pub(super) values: Vec<String>,
    /// What the array says of being appended to the earlier files' value.
    pub(super) append: Option<bool>,
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

    /// A string.
    pub(super) fn string(&self, name: &str, problems: &mut Problems) -> Option<String> {
        let value = self.get(name)?;
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.file.wrong_type(name, value, "a string", problems);
        }
        text.map(str::to_owned)
    }

    /// A boolean.
    pub(super) fn boolean(&self, name: &str, problems: &mut Problems) -> Option<bool> {
        let value = self.get(name)?;
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.file.wrong_type(name, value, "a boolean", problems);
        }
        boolean
    }

    /// An array of strings. Elements of other types are noted and left out.
    pub(super) fn strings(&self, name: &str, problems: &mut Problems) -> Option<Strings> {
        let value = self.get(name)?;
        let Some(array) = value.get_ref().as_array() else {
            self.file.wrong_type(name, value, "an array of strings", problems);
            return None;
        };
        let mut strings = Strings::default();
        for element in array.iter() {
            if let Some(text) = element.get_ref().as_str() {
                strings.values.push(text.to_owned());
            } else if let Some(table) = element.get_ref().as_table() {
                let attributes = Table { file: self.file, table };
                strings.append = attributes.boolean("append", problems).or(strings.append);
            } else {
                self.file.wrong_type(name, element, "an array of strings", problems);
            }
        }
        Some(strings)
    }
}
