//! Deletion intents of killed runs: whose they are, how long they stand.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::{Path, PathBuf};
use std::process::Command;

use layersweep::stores::containers_storage::edit::{Editor, Options, Refusal};
use layersweep::stores::containers_storage::places::StorePlaces;
use serde_json::{Value, json};

use super::edit_crash::kill_after;
use crate::support;
use support::program::{text, texts};
use support::store::{self, Store};
use support::{edit, small};

const NOBODY: layersweep::stores::containers_storage::edit::IsKept<'static> = &|_, _, _| false;

fn intents_in(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A store in which the deletion of `other` was killed once its record was gone, and the id of its layer.
fn killed(root: &Path, intents: &Path) -> (Store, String) {
    let store = small::still(root);
    store.unmount();
    let images = store.images();
    let other = images.iter().find(|image| texts(image, "/names").contains(&small::name("other"))).unwrap();
    let (id, layer) = (text(other, "/id"), texts(other, "/layers").remove(0));
    kill_after(&store, id, intents, "record file replaced");
    assert!(store.root().join("overlay").join(&layer).exists());
    (store, layer)
}

fn editor(store: &Store, intents: &Path) -> Editor {
    edit::with(store, options(intents))
}

fn options(intents: &Path) -> Options {
    Options { intents: Some(intents.to_path_buf()), ..Options::default() }
}

/// A graphroot may have a store for each driver, and two of them may have the same images.
#[test]
fn an_intent_is_of_one_store() {
    if !store::require_tools() {
        return;
    }
    let (dir, intents) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stores = ["a", "b"].map(|name| killed(&dir.path().join(name).join("root"), intents.path()));
    assert_eq!(intents_in(intents.path()).len(), 2, "one for each");
    for (store, _) in &stores {
        let root = store.root();
        std::fs::create_dir_all(root.join("vfs/dir")).unwrap();
        for kind in ["layers", "images", "containers"] {
            std::fs::create_dir(root.join(format!("vfs-{kind}"))).unwrap();
            std::fs::write(root.join(format!("vfs-{kind}/{kind}.lock")), b"").unwrap();
        }
        let places = StorePlaces { driver: "vfs".into(), ..edit::places(store) };
        let options = options(intents.path());
        let of_vfs = Editor::new(&places, options).unwrap();
        assert!(!of_vfs.is_unfinished());
        of_vfs.resume(NOBODY).unwrap();
        assert_eq!(intents_in(intents.path()).len(), 2, "it is of overlay");
        for entry in ["vfs", "vfs-layers", "vfs-images", "vfs-containers"] {
            store::succeed(Command::new("rm").arg("-r").arg(root.join(entry)));
        }
    }
    for (left, (store, layer)) in [1, 0].into_iter().zip(&stores) {
        assert_eq!(editor(store, intents.path()).resume(NOBODY).unwrap().layers, [layer.as_str()]);
        assert_eq!(intents_in(intents.path()).len(), left);
        edit::whole(store);
    }
}

/// Who only asks whether there is something to finish holds no lock, and changes nothing.
#[test]
fn an_intent_that_is_too_old_is_removed_by_who_finishes() {
    if !store::require_tools() {
        return;
    }
    let (dir, intents) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, layer) = killed(&dir.path().join("root"), intents.path());
    let path = intents_in(intents.path()).remove(0);
    let mut intent: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    intent["at"] = json!("2020-01-01T00:00:00Z");
    std::fs::write(&path, intent.to_string()).unwrap();
    let editor = editor(&store, intents.path());
    assert!(!editor.is_unfinished() && path.exists());
    editor.resume(NOBODY).unwrap();
    assert!(!path.exists());
    assert!(store.root().join("overlay").join(layer).exists(), "the sweep's by now");
}

/// What a mount keeps for now is finished once that is gone.
#[test]
fn an_intent_stands_while_its_layer_is_mounted() {
    if !store::require_tools() {
        return;
    }
    let (dir, intents) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, layer) = killed(&dir.path().join("root"), intents.path());
    let (layer_at, elsewhere) = (store.root().join("overlay").join(layer), dir.path().join("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    let mount = support::loopfs::BindMount::new(&layer_at.join("diff"), &elsewhere);
    let editor = editor(&store, intents.path());
    let error = editor.resume(NOBODY).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Mounted { .. })), "{error}");
    assert!(editor.is_unfinished() && layer_at.exists());
    drop(mount);
    editor.resume(NOBODY).unwrap();
    assert!(!editor.is_unfinished() && !layer_at.exists());
    edit::whole(&store);
}

/// One of the images has been pulled again, and its deletion begins and changes nothing: what was begun of the other is
/// finished nevertheless.
#[test]
fn an_intent_outlives_a_later_run_that_changes_nothing() {
    if !store::require_tools() {
        return;
    }
    let (dir, intents) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let images = store.images();
    let [first, second] = ["b", "other"].map(|image| {
        let name = small::name(image);
        images.iter().find(|image| texts(image, "/names").contains(&name)).unwrap().clone()
    });
    let targets = format!("{},{}", text(&first, "/id"), text(&second, "/id"));
    kill_after(&store, &targets, intents.path(), "record file replaced");
    store.load(&[small::image("b")]);
    store.unmount();
    // The new version of the records cannot take the place of the old one.
    let records = store.record("images.json");
    let away = records.with_extension("away");
    let on_step = {
        let (records, away) = (records.clone(), away.clone());
        move |step: &'static str| {
            if step == "temporary file written" {
                std::fs::rename(&records, &away).unwrap();
                std::fs::create_dir(&records).unwrap();
            }
        }
    };
    let options = Options { on_step: Some(Box::new(on_step)), ..options(intents.path()) };
    edit::with(&store, options).delete_images(&[edit::planned(&first)]).unwrap_err();
    std::fs::remove_dir(&records).unwrap();
    std::fs::rename(&away, &records).unwrap();
    let layer = |image: &Value| store.root().join("overlay").join(texts(image, "/layers").pop().unwrap());
    assert!(layer(&second).exists());
    let editor = editor(&store, intents.path());
    editor.resume(NOBODY).unwrap();
    assert!(layer(&first).exists() && !layer(&second).exists());
    assert!(!editor.is_unfinished() && intents_in(intents.path()).is_empty());
    edit::whole(&store);
}
