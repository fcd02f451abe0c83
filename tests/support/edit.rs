//! Edits a test's store, and checks its consistency afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use layersweep::editor::{BegunDeletion, Deleted, Editor, Error, Options, OrphanAt, PlannedImage};
use layersweep::model::deletion::plan::LayerIdentity;
use layersweep::stores::containers_storage::places::StorePlaces;
use layersweep::sys::root::Root;
use serde_json::Value;

use super::program::{self, list, text};
use super::store::Store;

/// Opens a directory of a store.
pub fn root(path: &Path) -> Root {
    Root::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the places of a store.
pub fn places(store: &Store) -> StorePlaces {
    places_at(store.root(), &store.runroot(), store.driver())
}

/// Returns the places of a store that another process made.
pub fn places_at(graphroot: &Path, runroot: &Path, driver: &str) -> StorePlaces {
    StorePlaces {
        databases: Vec::new(),
        caches: Vec::new(),
        temporary: Vec::new(),
        graphroot: root(graphroot),
        imagestores: Vec::new(),
        runroots: Root::open(runroot).into_iter().collect(),
        driver: driver.to_owned(),
        other_drivers: Vec::new(),
        primary: true,
        read_only: false,
        foreign: false,
        allowance: layersweep::sys::allowance::Allowance::default(),
    }
}

/// Returns an editor with default options and a short timeout.
pub fn editor(store: &Store) -> Editor {
    with(store, Options::default())
}

/// Returns an editor with these options and a short timeout.
pub fn with(store: &Store, options: Options) -> Editor {
    // As in the program: a helper process reads the other processes.
    layersweep::sys::processes::helper::set_program(env!("CARGO_BIN_EXE_layersweep"));
    let options = Options { patience: Duration::from_secs(10), ..options };
    Editor::new(&places(store), options).expect("a store that can be edited")
}

/// Removes one orphan in its own session.
pub fn reclaim(editor: &Editor, orphan: &OrphanAt, min_age: SignedDuration) -> Result<Deleted, Error> {
    let mut set_aside = editor.set_aside(std::slice::from_ref(orphan), min_age)?;
    let removed = set_aside.remove(&orphan.path);
    set_aside.end();
    removed.expect("the first orphan is reached")
}

/// Returns the journal's entry for a deletion of an image (of `images[]`) that begins now.
pub fn begun(store: &Store, image: &Value) -> BegunDeletion {
    let records: Vec<Value> =
        serde_json::from_slice(&std::fs::read(store.record("layers.json")).expect("the layers' records"))
            .expect("JSON");
    let layers = program::texts(image, "/layers").into_iter().map(|id| {
        let record = records.iter().find(|record| record["id"] == id.as_str());
        let created = record.map(|record| text(record, "/created").parse().expect("a time"));
        LayerIdentity { created, id: id.as_str().into() }
    });
    BegunDeletion { image: text(image, "/id").to_owned(), layers: layers.collect() }
}

/// Deletes an image of `images[]`.
pub fn delete(editor: &Editor, image: &Value) -> Deleted {
    let deleted = editor.delete_image(&planned(image)).expect("nothing uses the image");
    assert_eq!(deleted.failures, []);
    assert_eq!(deleted.images, [text(image, "/id")]);
    deleted
}

/// Returns an image of `images[]` as a plan names it.
pub fn planned(image: &Value) -> PlannedImage {
    let names = Some(program::texts(image, "/names"));
    PlannedImage { id: text(image, "/id").to_owned(), names, lists: Vec::new() }
}

/// Checks that a scan of the store finds no leak and nothing missing. Returns the ids of the images.
pub fn whole(store: &Store) -> Vec<String> {
    ids(&whole_images(store))
}

/// Like [`whole`]; returns `images[]`.
pub fn whole_images(store: &Store) -> Vec<Value> {
    list(&whole_scan(store), "/images").to_vec()
}

/// Like [`whole`]; returns the scan.
pub fn whole_scan(store: &Store) -> Value {
    let scan = store.json("scan");
    assert!(list(&scan, "/leaks").is_empty(), "{:#}", scan["leaks"]);
    assert!(list(&scan, "/warnings").is_empty(), "{:#}", scan["warnings"]);
    if store.driver() == "overlay" {
        links_fit(&store.root().join("overlay"));
    }
    scan
}

/// Returns the sorted ids of `images[]`.
pub fn ids(images: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = images.iter().map(|image| text(image, "/id").to_owned()).collect();
    ids.sort();
    ids
}

/// Returns the sorted ids of the images that podman lists.
pub fn podman_ids(store: &Store) -> Vec<String> {
    let listed = store.podman(["images", "--all", "--quiet", "--no-trunc"]);
    let mut ids: Vec<String> = listed.lines().map(|id| id.trim_start_matches("sha256:").to_owned()).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Names of the entries of a directory.
fn entries(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).expect("listing");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// Checks that every link leads to a layer, every layer has its link, and nothing temporary is left.
fn links_fit(overlay: &Path) {
    let links = overlay.join("l");
    let all = entries(overlay);
    assert!(!all.iter().any(|name| name == "tempdirs"), "tempdirs is left");
    let mut known = Vec::new();
    for name in all.iter().filter(|name| name.len() == 64) {
        let link = std::fs::read_to_string(overlay.join(name).join("link")).expect("a layer's link");
        assert!(links.join(&link).exists(), "{name}: {link} leads nowhere");
        known.push(link);
    }
    for name in entries(&links) {
        assert!(known.contains(&name), "l/{name} belongs to no layer");
    }
}

/// Copy of a store (both roots), to be restored at its own path, where podman expects it.
#[derive(Debug)]
pub struct Copy {
    pairs: Vec<(PathBuf, PathBuf)>,
}

impl Copy {
    /// Copies the store into `to`.
    pub fn of(store: &Store, to: &Path) -> Self {
        store.unmount();
        let parts = [("root", store.root().to_path_buf()), ("run", store.runroot())];
        let libpod = ("libpod", store.scratch().join("libpod"));
        let pairs: Vec<_> =
            parts.into_iter().chain([libpod]).map(|(name, path)| (path, to.join(name))).collect();
        std::fs::create_dir_all(to).expect("making the copy's directory");
        for (path, copy) in &pairs {
            mirror(path, copy);
        }
        Self { pairs }
    }

    /// Makes the store as it was when it was copied.
    pub fn restore(&self, store: &Store) {
        store.unmount();
        for (path, copy) in &self.pairs {
            mirror(copy, path);
        }
    }
}

/// Makes `to` the same as `from`.
fn mirror(from: &Path, to: &Path) {
    for arguments in [vec!["rm", "-rf", "--one-file-system"], vec!["cp", "-a", "--reflink=auto"]] {
        let mut command = std::process::Command::new(arguments[0]);
        command.args(&arguments[1..]);
        if arguments[0] == "cp" {
            command.arg(from);
        }
        super::store::succeed(command.arg(to));
    }
}

/// Returns the facts of every path below `top` that an edit would change. Reading the store again does not change
/// them.
pub fn facts(top: &Path) -> std::collections::BTreeMap<PathBuf, (u64, u64, (i64, i64))> {
    let listing = super::tree::listing(top).into_iter();
    listing.map(|(path, facts)| (path, (facts.inode, facts.size, facts.ctime))).collect()
}
