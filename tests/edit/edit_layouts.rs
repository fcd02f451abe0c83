//! Deletions in stores with separate parts: a split imagestore, a transient store.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::Path;
use std::process::Command;

use layersweep::editor::{Editor, Error, Options, PlannedImage, Refusal, ReserveFile};
use layersweep::stores::containers_storage::places::StorePlaces;
use layersweep::stores::containers_storage::snapshot::{self, WriterPatience};
use layersweep::stores::containers_storage::units::{self, StorageUnit};
use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, text};
use support::store::{self, Store};
use support::{edit, small};

fn records(path: &Path) -> Vec<Value> {
    let content = std::fs::read(path).unwrap();
    serde_json::from_slice(&content).unwrap()
}

fn save(path: &Path, records: &[&Value]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, serde_json::to_vec(records).unwrap()).unwrap();
}

/// Moves a path, also to another filesystem.
fn mv(from: &Path, to: &Path) {
    store::succeed(Command::new("mv").args([from, to]));
}

/// Returns the files that have no record, by layersweep's reading.
fn debris(places: &StorePlaces) -> Vec<String> {
    let snapshot = snapshot::read(places, WriterPatience::default()).unwrap();
    assert!(snapshot.findings.is_empty(), "{:?}", snapshot.findings);
    let units = units::sort(&snapshot).0.into_iter();
    units
        .filter(|unit| matches!(unit.kind, StorageUnit::Orphan(_)))
        .map(|unit| unit.path.display().to_string())
        .collect()
}

fn planned(images: &[Value], name: &str) -> PlannedImage {
    let name = small::name(name);
    let image = images.iter().find(|image| program::texts(image, "/names").contains(&name));
    edit::planned(image.unwrap())
}

/// Moves images and their layers into an imagestore, as CRI-O does with `imagestore`; containers and their layers stay
/// in the graphroot, and so do the tar-splits: the library expects them only there.
fn split(store: &Store, imagestore: &Path) {
    let root = store.root();
    let containers = records(&store.record("containers.json"));
    let layers = records(&store.record("layers.json"));
    let (container_layers, images): (Vec<&Value>, Vec<&Value>) =
        layers.iter().partition(|layer| containers.iter().any(|container| container["layer"] == layer["id"]));
    std::fs::create_dir_all(imagestore.join("overlay/l")).unwrap();
    for layer in &images {
        let id = text(layer, "/id");
        let link = std::fs::read_to_string(root.join("overlay").join(id).join("link")).unwrap();
        for path in [format!("overlay/{id}"), format!("overlay/l/{link}")] {
            mv(&root.join(&path), &imagestore.join(&path));
        }
    }
    save(&store.record("layers.json"), &container_layers);
    save(&imagestore.join("overlay-layers/layers.json"), &images);
    std::fs::copy(store.record("layers.lock"), imagestore.join("overlay-layers/layers.lock")).unwrap();
    mv(&root.join("overlay-images"), &imagestore.join("overlay-images"));
    std::fs::create_dir(root.join("overlay-images")).unwrap();
    std::fs::write(root.join("overlay-images/images.lock"), b"").unwrap();
}

/// Makes a store with an imagestore, and lists the images that podman reported.
fn split_store() -> Option<(tempfile::TempDir, Store, Vec<Value>, StorePlaces)> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let images = store.images();
    let imagestore = dir.path().join("imagestore");
    split(&store, &imagestore);
    let places = StorePlaces { imagestores: vec![edit::root(&imagestore)], ..edit::places(&store) };
    Some((dir, store, images, places))
}

/// A layer that was quarantined in the graphroot, and later pulled again completely into the imagestore.
#[test]
fn new_images_in_imagestore_are_not_lost() {
    let Some((_dir, store, images, places)) = split_store() else { return };
    let other = images.iter().find(|image| image["names"][0] == small::name("other").as_str()).unwrap();
    let (image, layer) = (text(other, "/id"), program::texts(other, "/layers").remove(0));
    // `layersweep` in hexadecimal digits, a number, the layer, and 15 digits of the image.
    let name = format!("6c61796572737765657000{}f{}{}", &layer[..20], &image[..15], &image[..6]);
    let quarantined = store.root().join("overlay").join(&name);
    std::fs::create_dir(&quarantined).unwrap();
    let editor = Editor::new(&places, Options::default()).unwrap();
    assert!(editor.is_unfinished(), "{name}");
    let done = editor.resume(&[], &|_, _, _| false).unwrap();
    assert!(done.images.is_empty() && done.layers.is_empty(), "{done:?}");
    assert!(!quarantined.exists());
    assert!(places.imagestores[0].join("overlay").join(&layer).exists());
}

#[test]
fn images_in_split_imagestore_are_deleted() {
    let Some((_dir, store, images, places)) = split_store() else { return };
    let imagestore = places.imagestores[0].to_path_buf();
    assert_eq!(debris(&places), [""; 0]);
    let editor = Editor::new(&places, Options::default()).unwrap();
    let error = editor.delete_image(&planned(&images, "a")).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::UsedByContainer { .. })), "{error}");
    let container_layers = std::fs::read(store.record("layers.json")).unwrap();
    fn token(path: &Path) -> Vec<u8> {
        std::fs::read(path.join("overlay-layers/layers.lock")).unwrap()
    }
    let before = (token(store.root()), token(&imagestore));
    let mut left = 5;
    for name in ["other", "a2", "b", "base"] {
        let deleted = editor.delete_image(&planned(&images, name)).unwrap();
        assert_eq!(deleted.layers.len(), usize::from(name != "base"), "{name}");
        left -= 1;
        let records = records(&imagestore.join("overlay-images/images.json"));
        assert_eq!(records.len(), left);
        assert_eq!(debris(&places), [""; 0], "{name}");
        for id in &deleted.layers {
            assert!(!imagestore.join("overlay").join(id).exists());
            assert!(!store.root().join(format!("overlay-layers/{id}.tar-split.gz")).exists());
        }
    }
    let after = (token(store.root()), token(&imagestore));
    assert!(before.0 != after.0 && before.1 != after.1, "both tokens are written");
    assert_eq!(std::fs::read(store.record("layers.json")).unwrap(), container_layers);
    assert!(!imagestore.join("overlay/tempdirs").exists());
    let layers = records(&imagestore.join("overlay-layers/layers.json"));
    assert_eq!(std::fs::read_dir(imagestore.join("overlay/l")).unwrap().count(), layers.len());
    assert_eq!(layers.len(), 2, "the layers of the container");
}

/// The graphroot has no room for a token. Deleting the imagestore's layers on another disk frees none there.
#[test]
fn unwritable_token_costs_no_image() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 64 * MIB, &["-b", "4096", "-m", "0"], &[]);
    let store = small::still(&loopfs.path().join("root"));
    store.unmount();
    let (images, dir) = (store.images(), tempfile::tempdir().unwrap());
    split(&store, dir.path());
    let places = StorePlaces { imagestores: vec![edit::root(dir.path())], ..edit::places(&store) };
    let reserve_files = ReserveFile::of_store(&places, &dir.path().join("none")).unwrap();
    assert!(reserve_files.iter().all(|file| file.prepare().unwrap()));
    // The space of the moved files is freed by the journal's next commit.
    loopfs.sync();
    support::reserve_file::fill_to_the_last_byte(&loopfs);
    let before = edit::facts(dir.path());
    let editor = Editor::new(&places, Options::default()).unwrap();
    let error = editor.delete_image(&planned(&images, "other")).unwrap_err();
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(edit::facts(dir.path()), before);
    // The reserve file on the token's disk provides the room.
    let editor = Editor::new(&places, Options { reserve_files, ..Options::default() }).unwrap();
    assert!(editor.delete_image(&planned(&images, "other")).unwrap().reserve_file_released);
}

#[test]
fn images_in_transient_store_are_deleted() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let images = store.images();
    // The runroot has the records of containers and their layers, and their only lock.
    let run = store.runroot();
    let containers = records(&store.record("containers.json"));
    let layers = records(&store.record("layers.json"));
    let (container_layers, others): (Vec<&Value>, Vec<&Value>) =
        layers.iter().partition(|layer| layer["id"] == containers[0]["layer"]);
    save(&run.join("overlay-containers/volatile-containers.json"), &containers.iter().collect::<Vec<_>>());
    save(&run.join("overlay-layers/volatile-layers.json"), &container_layers);
    save(&store.record("layers.json"), &others);
    std::fs::remove_file(store.record("containers.json")).unwrap();
    std::fs::rename(store.record("containers.lock"), run.join("overlay-containers/containers.lock")).unwrap();
    let places = edit::places(&store);
    assert_eq!(debris(&places), [""; 0]);
    let editor = edit::editor(&store);
    let error = editor.delete_image(&planned(&images, "a")).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::UsedByContainer { .. })), "{error}");
    // Without its runroot, its containers are unknown.
    let blind = StorePlaces { runroots: Vec::new(), ..places.clone() };
    let blind = Editor::new(&blind, Options::default()).unwrap();
    let error = blind.delete_image(&planned(&images, "other")).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::NoLockFile(_))), "{error}");
    editor.delete_image(&planned(&images, "other")).unwrap();
    assert_eq!(debris(&places), [""; 0]);
    assert!(!store.record("containers.lock").exists(), "a lock file was made");
}
