//! Results agree with podman's where podman is right; where podman is wrong, the filesystem decides.

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

/// Checks that names, digests and sizes of every image are those of `podman images`, and its layers those of
/// `podman image inspect`.
fn images_agree(store: &Store) {
    let podman = store.podman_json(["images", "--all", "--no-trunc", "--format", "json"]);
    let podman = by_id(podman.as_array().expect("a list"), "Id");
    let scanned = store.images();
    let scanned = by_id(&scanned, "id");
    assert_eq!(scanned.keys().collect::<Vec<_>>(), podman.keys().collect::<Vec<_>>());
    let layers = store.json("layers");
    let layers = by_id(list(&layers, "/layers"), "id");
    for (id, row) in podman {
        let image = scanned[&id];
        assert_eq!(number(image, "/listed_bytes"), number(row, "/Size"), "size of {row:#}");
        assert_eq!(names_of(image, "/names"), names_of(row, "/Names"));
        let scanned: BTreeSet<String> = texts(image, "/digests").into_iter().collect();
        assert!(scanned.contains(text(row, "/Digest")), "{image:#}");
        let repository_digests = names_of(row, "/RepoDigests");
        for digest in &repository_digests {
            let digest = digest.split_once('@').expect("NAME@DIGEST").1;
            assert!(scanned.contains(digest), "{digest}: {image:#}");
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
    let expected = texts(&inspected[0], "/RootFS/Layers");
    let scanned: Vec<String> =
        chain.iter().rev().map(|layer| text(layers[layer], "/diff_id").to_owned()).collect();
    assert_eq!(scanned, expected, "layers of {image:#}");
    for pair in chain.windows(2) {
        assert_eq!(text(layers[&pair[0]], "/parent"), pair[1]);
    }
    assert_eq!(layers[chain.last().expect("a base")]["parent"], Value::Null);
}

/// Checks that containers and the sizes of their written files are those of `podman ps --size`.
fn containers_agree(store: &Store, driver: &str) {
    let podman = store.podman_json(["ps", "--all", "--size", "--no-trunc", "--format", "json"]);
    let podman = by_id(podman.as_array().expect("a list"), "Id");
    let scan = store.json("scan");
    let scanned = by_id(list(&scan, "/containers"), "id");
    for (id, row) in &podman {
        let container = scanned[id];
        assert_eq!(text(container, "/owner"), "podman");
        assert_eq!(text(container, "/name"), text(row, "/Names/0"));
        assert_eq!(text(container, "/image_id"), text(row, "/ImageID"));
        match driver {
            // A layer of vfs is a whole root filesystem: the container's own files would have to be compared one by
            // one, which podman does and layersweep does not.
            "vfs" => assert_eq!(container["listed_bytes"], Value::Null),
            _ => {
                assert_eq!(number(container, "/listed_bytes"), number(row, "/Size/rwSize"), "size of {row:#}")
            }
        }
    }
    let external: Vec<_> = scanned.keys().filter(|id| !podman.contains_key(*id)).collect();
    let buildah = store.buildah(["containers", "--quiet", "--notruncate"]);
    let buildah: Vec<&str> = buildah.split_whitespace().collect();
    assert_eq!(external, buildah);
    for id in buildah {
        assert_eq!(text(scanned[id], "/owner"), "buildah");
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

/// podman 4.3.1 is wrong twice in `system df`. It counts what an image shares with another image as shared, but not
/// what a container uses: the image `data` has a container and cannot be removed, and still all of its own layer is
/// called unique. And it adds the unique sizes of unused images, which misses what only *they* share (`svc-b` to
/// `svc-d` and the parent of all three, if nothing else needs it). The expected value is what the filesystem frees.
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

    let predicted = usage::unused_reclaimable(&store.json("usage"));
    let before = loopfs.used_bytes();
    for image in images.iter().filter(|image| image["in_use"] == false) {
        store.remove_image(image);
    }
    let truth = before - loopfs.used_bytes();
    assert!(predicted.abs_diff(truth) <= (truth / 100).max(64 << 10), "said {predicted}, came {truth}");
}
