//! Containers and volumes whose facts are in several of podman's records: the store's, the files of a container, podman's
//! database.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::gc_document::deleted;
use crate::support::program::{self, Run, list, number, text, texts};
use crate::support::store::{self, Store};
use crate::support::{node, small};

fn small_store() -> Option<(tempfile::TempDir, Store)> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    Some((dir, store))
}

fn read(store: &Store, name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(store.record(name)).unwrap()).unwrap()
}

fn save(store: &Store, name: &str, records: &[Value]) {
    std::fs::write(store.record(name), serde_json::to_vec(records).unwrap()).unwrap();
}

fn run(store: &Store, words: &[&str]) -> Run {
    let mut command = program::command();
    command.args(words).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    command.arg("--state-dir").arg(store.scratch().join("state"));
    program::run(&mut command).expect_no_crash()
}

fn json(store: &Store, words: &[&str]) -> Value {
    node::document(run(store, &[words, &["--format", "json"]].concat()))
}

/// `podman commit` leaves buildah's file in the directory of podman's container.
#[test]
fn committed_container_stays_podmans() {
    let Some((_dir, store)) = small_store() else { return };
    store.podman(["commit", "-q", "web", "localhost/committed:1"]);
    let container = &read(&store, "containers.json")[0];
    let directory = store.root().join("overlay-containers").join(text(container, "/id"));
    assert!(directory.join("userdata/buildah.json").exists(), "podman has left no file of buildah");
    let scan = store.json("scan");
    assert_eq!(text(&scan, "/containers/0/owner"), "podman", "{scan:#}");
}

/// podman keeps the data of a volume of the driver `image` in a container of the store, which its database does not have.
#[test]
fn container_of_volume_is_not_forgotten() {
    let Some((_dir, store)) = small_store() else { return };
    let image = format!("image={}", small::name("other"));
    store.podman(["volume", "create", "--driver", "image", "--opt", &image, "vol1"]);
    let mut containers = read(&store, "containers.json");
    for container in &mut containers {
        container["created"] = json!("2026-01-01T00:00:00Z");
    }
    save(&store, "containers.json", &containers);
    store.unmount();
    let kept = containers.iter().find(|container| text(container, "/names/0") == "vol1+volume").unwrap();
    let data = store.root().join("overlay").join(text(kept, "/layer")).join("diff/data");
    std::fs::write(data, vec![1; 300_000]).unwrap();
    let sweep = json(&store, &["sweep"]);
    assert_eq!(list(&sweep, "/leaks"), [] as [Value; 0], "{sweep:#}");
    let explained = json(&store, &["explain", "vol1"]);
    assert_eq!(text(&explained, "/volume/name"), "vol1", "{explained:#}");
    assert!(number(&explained, "/bytes") >= 300_000, "{explained:#}");
    let shown = run(&store, &["explain", "vol1"]).stdout;
    assert!(shown.contains("volume  vol1 (podman)"), "{shown}");
    let images = store.json("images");
    assert_eq!(node::image(&images, &small::name("other"))["in_use"], true, "{images:#}");
}

#[test]
fn container_in_database_alone_is_explained() {
    let Some((_dir, store)) = small_store() else { return };
    let containers = read(&store, "containers.json");
    let (id, layer) = (text(&containers[0], "/id"), text(&containers[0], "/layer"));
    let mut layers = read(&store, "layers.json");
    layers.retain(|record| text(record, "/id") != layer);
    save(&store, "containers.json", &[]);
    save(&store, "layers.json", &layers);
    // What is left of its directory is a leak with its id.
    let explained = json(&store, &["explain", "web"]);
    assert_eq!(text(&explained, "/lost_container/name"), "web", "{explained:#}");
    assert_eq!(text(&explained, "/lost_container/image"), small::name("a"));
    let command = text(&explained, "/command/deletes");
    assert!(command.starts_with("podman") && command.ends_with(&format!(" rm {}", &id[..12])), "{command}");
    let shown = run(&store, &["explain", "web"]).stdout;
    assert!(shown.contains("only in podman's database"), "{shown}");
    // As podman removes it, the image can be deleted.
    store.podman(["rm", "web"]);
    store.unmount();
    run(&store, &["explain", "web"]).expect_code(1);
}

#[test]
#[allow(clippy::disallowed_methods)] // a store of this test
fn layers_emptied_by_hand_are_named_by_doctor() {
    let Some((_dir, store)) = small_store() else { return };
    let check = |store: &Store| {
        let doctor = json(store, &["doctor"]);
        list(&doctor, "/checks").iter().find(|check| text(check, "/name") == "damaged-images").cloned()
    };
    assert_eq!(check(&store), None);
    let overlay = store.root().join("overlay");
    let entries = std::fs::read_dir(&overlay).unwrap().map(|entry| entry.unwrap().path());
    for directory in entries.filter(|path| path.is_dir()) {
        std::fs::remove_dir_all(directory).unwrap();
    }
    let check = check(&store).expect("a check");
    assert_eq!(text(&check, "/status"), "error");
    let message = text(&check, "/message");
    assert!(message.contains("layer-no-dir") && message.contains("5 images cannot be used"), "{message}");
    let sweep = json(&store, &["sweep"]);
    let leaks = list(&sweep, "/leaks").iter().filter(|leak| text(leak, "/class") == "layer-no-dir");
    assert_eq!(leaks.count(), read(&store, "layers.json").len(), "each once: {sweep:#}");
}

/// The dry run knows what the run knows: the record names no image, podman's database does.
#[test]
fn image_in_database_alone_is_in_use() {
    let Some((_dir, store)) = small_store() else { return };
    let mut containers = read(&store, "containers.json");
    let mut layers = read(&store, "layers.json");
    for layer in &mut layers {
        if layer["id"] == containers[0]["layer"] {
            layer.as_object_mut().unwrap().remove("parent");
        }
    }
    containers[0]["image"] = json!("");
    save(&store, "containers.json", &containers);
    save(&store, "layers.json", &layers);
    let images = store.json("images");
    let image = node::image(&images, &small::name("a"));
    assert_eq!(image["in_use"], true, "{image:#}");
    std::thread::sleep(Duration::from_millis(1500));
    let gc = ["gc", "--via", "direct", "--high", "99", "--low", "98", "--min-age", "0s", "--max-age=1s"];
    let planned = deleted(&json(&store, &[&gc[..], &["--dry-run"]].concat()));
    assert_eq!(planned, deleted(&json(&store, &[&gc[..], &["-y"]].concat())));
    assert!(!planned.contains(&small::name("a")), "{planned:?}");
}

/// A list in a list: what keeps the outer one keeps the members of the inner one.
#[test]
fn members_of_members_are_kept() {
    let Some((_dir, store)) = small_store() else { return };
    store.manifest_list("localhost/inner:1", &[&small::name("b")]);
    store.manifest_list("localhost/outer:1", &[&small::name("other")]);
    let images = read(&store, "images.json");
    let record = |name: &str| images.iter().find(|image| image["names"][0] == name).unwrap();
    let (inner, outer) = (record("localhost/inner:1"), record("localhost/outer:1"));
    let directory = store.root().join("overlay-images").join(text(outer, "/id"));
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(directory.join("manifest")).unwrap()).unwrap();
    let member = text(&manifest, "/manifests/0/digest");
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, content.replace(member, text(inner, "/digest"))).unwrap();
    }
    run(&store, &["pin", "add", "localhost/outer:1"]).expect_code(0);
    store.unmount();
    let images = json(&store, &["images"]);
    let unnamed: Vec<_> =
        list(&images, "/images").iter().filter(|image| texts(image, "/names").is_empty()).collect();
    let pinned: Vec<_> = unnamed.iter().map(|image| image["pinned"] == true).collect();
    // Of `b`, a member of the inner list, and `other`, which is a member no more.
    assert_eq!(pinned.iter().filter(|pinned| **pinned).count(), 1, "{unnamed:#?}");
    assert_eq!(node::image(&images, "localhost/inner:1")["pinned"], true);
}
