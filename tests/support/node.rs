//! A node as its operator sees it: a store, a state directory and the program.

use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

use super::program::{self, Run, list, text, texts};
use super::schema;
use super::store::Store;

/// A store and the state directory of its records.
#[derive(Debug)]
pub struct Node {
    pub store: Store,
    /// The state directory, which need not exist.
    pub state: PathBuf,
    _dir: TempDir,
}

impl Node {
    /// Returns a node whose state directory does not exist yet.
    pub fn of(store: Store) -> Self {
        let dir = tempfile::Builder::new().prefix("layersweep-node-").tempdir().expect("making a directory");
        Self { store, state: dir.path().join("state"), _dir: dir }
    }

    /// Moves the records to another directory.
    pub fn with_state(self, state: &Path) -> Self {
        Self { state: state.to_path_buf(), ..self }
    }

    /// Returns the program with the flags of this node.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(&self.state);
        command
    }

    /// Runs the program.
    pub fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    /// Returns the document of a command that must exit with 0; the document must fit its schema.
    pub fn json(&self, words: &[&str]) -> Value {
        document(self.run(&[words, &["--format", "json"]].concat()).expect_code(0))
    }

    /// Returns a scan that must exit with 0 and without warnings.
    pub fn scan(&self) -> Value {
        let run = self.run(&["scan", "--format", "json"]).expect_code(0);
        assert_eq!(run.stderr, "");
        let scan = document(run);
        assert_eq!(list(&scan, "/warnings").len(), 0, "{:#}", scan["warnings"]);
        scan
    }

    /// Opens a copy of the database and its log with SQLite itself, so that the original does not change; `None` if
    /// there is no database. The directory contains the copy.
    pub fn database(&self) -> Option<(Connection, TempDir)> {
        let copy = tempfile::tempdir().expect("making a directory");
        for name in ["layersweep.db", "layersweep.db-wal"] {
            // The last process that closes the database removes the log.
            match std::fs::copy(self.state.join(name), copy.path().join(name)) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied.expect("copying the database")),
            }
        }
        let path = copy.path().join("layersweep.db");
        path.exists().then(|| (Connection::open(path).expect("opening the database"), copy))
    }

    /// Returns the names in the state directory; empty if it does not exist.
    pub fn state_names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.state) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Fails unless the document fits the schema of its kind.
pub fn assert_fits(document: &Value) {
    // `rm` reports the same as `gc`.
    let kind = text(document, "/kind");
    schema::assert_fits(if kind == "rm" { "gc" } else { kind }, document);
}

/// The document of a run, which must fit its schema.
pub fn document(run: Run) -> Value {
    let document = run.json();
    assert_fits(&document);
    document
}

/// Returns the image with a name from `images[]` of a document.
pub fn image<'a>(document: &'a Value, name: &str) -> &'a Value {
    let found =
        list(document, "/images").iter().find(|image| texts(image, "/names").iter().any(|n| n == name));
    found.unwrap_or_else(|| panic!("no image {name} in {document:#}"))
}

/// Returns a required field as a time.
pub fn time(value: &Value, pointer: &str) -> Timestamp {
    text(value, pointer).parse().unwrap_or_else(|error| panic!("{pointer}: {error}"))
}

/// Returns the content of every file below a directory.
pub fn bytes(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files =
        walkdir::WalkDir::new(dir).sort_by_file_name().into_iter().map(|entry| entry.expect("an entry"));
    let files = files.filter(|entry| entry.file_type().is_file()).map(walkdir::DirEntry::into_path);
    files.map(|path| (path.clone(), std::fs::read(path).expect("reading a file"))).collect()
}
