//! What podman says of a store and is right, we say too; where podman is wrong, the
//! filesystem is the judge.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{list, number, text, texts};
use support::store::{self, Store};
use support::usage;

fn by_id<'a>(items: &'a [Value], key: &str) -> BTreeMap<String, &'a Value> {
    items.iter().map(|item| (item[key].as_str().expect("an id").to_owned(), item)).collect()
}

/// Names, digests and sizes of every image are those of `podman images`, and its layers
/// those of `podman image inspect`.
fn images_agree(store: &Store) {
    let podman = store.podman_json(["images", "--all", "--no-trunc", "--format", "json"]);
    let podman = by_id(podman.as_array().expect("a list"), "Id");
    let ours = store.images();
    let ours = by_id(&ours, "id");
    assert_eq!(ours.keys().collect::<Vec<_>>(), podman.keys().collect::<Vec<_>>());
    let layers = store.json("layers");
    let layers = by_id(list(&layers, "/layers"), "id");
    for (id, theirs) in podman {
        let image = ours[&id];
        assert_eq!(number(image, "/listed_bytes"), number(theirs, "/Size"), "size of {theirs:#}");
        assert_eq!(names_of(image, "/names"), names_of(theirs, "/Names"));
        let ours: BTreeSet<String> = texts(image, "/digests").into_iter().collect();
        assert!(ours.contains(text(theirs, "/Digest")), "{image:#}");
        let repository_digests = names_of(theirs, "/RepoDigests");
        for digest in &repository_digests {
            let digest = digest.split_once('@').expect("NAME@DIGEST").1;
            assert!(ours.contains(digest), "{digest}: {image:#}");
        }
        chain_agrees(store, image, &layers);
    }
}

fn names_of(value: &Value, pointer: &str) -> BTreeSet<String> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => BTreeSet::new(),
        Some(_) => texts(value, pointer).into_iter().collect(),
    }
}

fn chain_agrees(store: &Store, image: &Value, layers: &BTreeMap<String, &Value>) {
    let chain = texts(image, "/layers");
    if chain.is_empty() {
        return; // a manifest list; podman would show the image it points to
    }
    let id = text(image, "/id");
    let inspected = store.podman_json(["image", "inspect", id]);
    let theirs = texts(&inspected[0], "/RootFS/Layers");
    let ours: Vec<String> =
        chain.iter().rev().map(|layer| text(layers[layer], "/diff_id").to_owned()).collect();
    assert_eq!(ours, theirs, "layers of {image:#}");
    for pair in chain.windows(2) {
        assert_eq!(text(layers[&pair[0]], "/parent"), pair[1]);
    }
    assert_eq!(layers[chain.last().expect("a base")]["parent"], Value::Null);
}

/// Containers and the sizes of what they have written are those of `podman ps --size`.
fn containers_agree(store: &Store, driver: &str) {
    let podman = store.podman_json(["ps", "--all", "--size", "--no-trunc", "--format", "json"]);
    let podman = by_id(podman.as_array().expect("a list"), "Id");
    let scan = store.json("scan");
    let ours = by_id(list(&scan, "/containers"), "id");
    for (id, theirs) in &podman {
        let container = ours[id];
        assert_eq!(text(container, "/owner"), "podman");
        assert_eq!(text(container, "/name"), text(theirs, "/Names/0"));
        assert_eq!(text(container, "/image_id"), text(theirs, "/ImageID"));
        match driver {
            // A layer of vfs is a whole root filesystem: what the container wrote would have
            // to be compared file by file, which podman does and we do not.
            "vfs" => assert_eq!(container["listed_bytes"], Value::Null),
            _ => assert_eq!(
                number(container, "/listed_bytes"),
                number(theirs, "/Size/rwSize"),
                "size of {theirs:#}"
            ),
        }
    }
    let external: Vec<_> = ours.keys().filter(|id| !podman.contains_key(*id)).collect();
    let buildah = store.buildah(["containers", "--quiet", "--notruncate"]);
    let buildah: Vec<&str> = buildah.split_whitespace().collect();
    assert_eq!(external, buildah);
    for id in buildah {
        assert_eq!(text(ours[id], "/owner"), "buildah");
    }
}

#[test]
fn on_the_overlay_rig() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(&dir.path().join("root"), "overlay");
    images_agree(&store);
    containers_agree(&store, "overlay");
}

#[test]
fn on_the_vfs_rig() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(&dir.path().join("root"), "vfs");
    images_agree(&store);
    containers_agree(&store, "vfs");
}

#[test]
fn on_the_forest() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::forest(&dir.path().join("root"), "overlay");
    images_agree(&store);
}

/// podman 4.3.1 is wrong twice in `system df`. It takes what an image shares with another
/// image, but not what a container uses, for shared: the image `data` has a container and
/// cannot be removed, and still all of its own layer is called unique. And it adds the
/// unique sizes of images that nothing uses, which misses what only *they* share (`svc-b`
/// to `svc-d` and the parent of all three, when nothing else needs it). Ours is what the
/// filesystem gives back.
#[test]
fn reclaimable_bytes_match_filesystem() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 512 * MIB);
    let store = Store::rig(&loopfs.path().join("root"), "overlay");
    store.podman(["rm", "web"]); // svc-a and its family are free now, `data` is not

    let verbose = store.podman(["system", "df", "--verbose"]);
    let row = verbose.lines().find(|line| line.contains("localhost/mk/data"));
    let row = row.expect("podman lists the image data");
    assert!(row.contains("68.31MB"), "podman is right now, say so: {row}");
    let images = store.images();
    let data = images
        .iter()
        .find(|image| texts(image, "/names") == ["localhost/mk/data:1"])
        .expect("the image data");
    assert_eq!(data["in_use"], true);
    let metadata_only = number(data, "/frees_bytes");
    assert!(metadata_only < 1 << 20, "its layer is in use: {data:#}");

    let ours = usage::unused_reclaimable(&store.json("usage"));
    let before = loopfs.used_bytes();
    for image in images.iter().filter(|image| image["in_use"] == false) {
        store.remove_image(image);
    }
    let truth = before - loopfs.used_bytes();
    assert!(ours.abs_diff(truth) <= (truth / 100).max(64 << 10), "said {ours}, came {truth}");
}
