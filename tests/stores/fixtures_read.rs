//! Every known kind of store is read: `fixtures/graphroot`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support;
use support::program::{self, layersweep, list, number, text, texts};
use support::{fixture, locks, tree};

/// Expected results of a scan of a fixture.
struct Expected {
    fixture: &'static str,
    /// True if the fixture is a sysroot with a store at the default place.
    sysroot: bool,
    images: usize,
    layers: usize,
    /// Names and owners of containers.
    containers: &'static [(&'static str, &'static str)],
    /// Lock files that a process holds during the scan.
    held: &'static [&'static str],
    /// Class and verdict of each leak.
    leaks: &'static [(&'static str, &'static str)],
    /// Checks for this fixture alone.
    special: fn(&Value),
}

const NOTHING: fn(&Value) = |_| {};

/// Two layers and one image, as each later library leaves them.
const LATER: Expected = Expected {
    fixture: "",
    sysroot: false,
    images: 1,
    layers: 2,
    containers: &[],
    held: &[],
    leaks: &[],
    special: |scan| assert_eq!(list(scan, "/images/0/layers").len(), 2),
};

const TABLE: [Expected; 14] = [
    Expected {
        fixture: "storage-1.59",
        held: &["overlay/tempdirs/lock-8"],
        leaks: &[("tempdirs", "keep"), ("tempdirs", "reclaim"), ("tempdirs", "reclaim")],
        ..LATER
    },
    Expected { fixture: "storage-1.61", ..LATER },
    Expected {
        fixture: "storage-1.62",
        held: &["overlay/tempdirs/lock-9", "overlay-layers/tmp/lock-9"],
        leaks: &[("tempdirs", "keep"), ("tempdirs", "keep")],
        ..LATER
    },
    Expected { fixture: "storage-1.63", ..LATER },
    Expected {
        fixture: "storage-1.64",
        held: &["overlay/staging/31415926/staging.lock"],
        leaks: &[("staging", "keep")],
        ..LATER
    },
    Expected {
        fixture: "c-storage-1.43",
        sysroot: false,
        images: 13,
        layers: 15,
        containers: &[("batch", "podman"), ("web", "podman"), ("wip", "buildah")],
        held: &[],
        leaks: &[],
        special: captured,
    },
    Expected {
        fixture: "toc-digest",
        sysroot: false,
        images: 1,
        layers: 2,
        containers: &[],
        held: &[],
        leaks: &[],
        special: |scan| {
            let image = &list(scan, "/images")[0];
            // The runtimes count a layer of unknown length as 0 bytes.
            assert_eq!(number(image, "/listed_bytes"), 1_203);
            let top = layer(scan, &texts(image, "/layers")[0]);
            assert_eq!(top["diff_id"], Value::Null);
        },
    },
    Expected {
        fixture: "crio-volatile",
        sysroot: false,
        images: 2,
        layers: 4,
        containers: &[("k8s_POD_web_default_1234_0", "cri-o"), ("k8s_web_web_default_1234_0", "cri-o")],
        held: &[],
        leaks: &[],
        special: |scan| {
            for container in list(scan, "/containers") {
                let pause = text(container, "/name").contains("POD");
                assert_eq!(container["sandbox"], pause, "{container:#}");
            }
            assert!(list(scan, "/images").iter().all(|image| image["in_use"] == true));
        },
    },
    Expected {
        fixture: "imagestore",
        sysroot: true,
        images: 1,
        layers: 3,
        containers: &[("web", "podman")],
        held: &[],
        leaks: &[],
        special: |scan| {
            assert_eq!(list(scan, "/images")[0]["in_use"], true);
            assert_eq!(list(scan, "/images/0/layers").len(), 2);
        },
    },
    Expected {
        fixture: "transient-store",
        sysroot: true,
        images: 1,
        layers: 3,
        containers: &[("k8s_web_web_default_1234_0", "cri-o")],
        held: &[],
        leaks: &[],
        special: |scan| assert_eq!(list(scan, "/images")[0]["in_use"], true),
    },
    Expected {
        fixture: "manifest-list",
        sysroot: false,
        images: 2,
        layers: 1,
        containers: &[],
        held: &[],
        leaks: &[],
        special: |scan| {
            let list = image(scan, "localhost/fix/list:1");
            assert_eq!(list["layers"], serde_json::json!([]));
            assert_eq!(list["manifest_list"], true);
            assert!(number(list, "/total_bytes") > 0, "its metadata costs something");
        },
    },
    Expected {
        fixture: "mapped-layers",
        sysroot: false,
        images: 1,
        layers: 3,
        containers: &[],
        held: &[],
        leaks: &[],
        special: |scan| {
            // The twin is deleted with the image, and not before.
            let image = &list(scan, "/images")[0];
            for layer in list(scan, "/layers") {
                assert_eq!(number(layer, "/refcount"), 1, "{layer:#}");
                assert_eq!(layer["images"][0], image["id"]);
            }
        },
    },
    Expected {
        fixture: "ascii-token",
        sysroot: false,
        images: 1,
        layers: 1,
        containers: &[],
        held: &[],
        leaks: &[],
        special: NOTHING,
    },
    Expected {
        fixture: "unknown-fields",
        sysroot: false,
        images: 1,
        layers: 3,
        containers: &[("later", "unknown")],
        held: &[],
        leaks: &[],
        special: NOTHING,
    },
];

/// Checks the real store: names, chains and sizes are those that podman reported at the capture.
fn captured(scan: &Value) {
    for (name, chain, listed) in [
        ("localhost/mk/base:1", 1, 5_407_056),
        ("localhost/mk/runtime:1", 2, 7_911_936),
        ("localhost/mk/svc-a2:1", 4, 8_818_167),
        ("localhost/mk/list:1", 0, 514),
    ] {
        let image = image(scan, name);
        assert_eq!(texts(image, "/layers").len(), chain, "{name}");
        assert_eq!(number(image, "/listed_bytes"), listed, "{name}");
    }
    let two_names = image(scan, "localhost/mk/svc-a2:latest");
    assert_eq!(texts(two_names, "/names").len(), 2);
    let dangling = list(scan, "/images").iter().filter(|image| image["names"] == serde_json::json!([]));
    assert_eq!(dangling.count(), 1);
    let web = image(scan, "localhost/mk/svc-a:1");
    assert_eq!(text(web, "/used_by/0/name"), "web");
    let base = image(scan, "localhost/mk/base:1");
    let shared = layer(scan, &texts(base, "/layers")[0]);
    // Eleven images (all but pause and the list) and three containers are built on it.
    assert_eq!(number(shared, "/refcount"), 14);
}

fn image<'a>(scan: &'a Value, name: &str) -> &'a Value {
    let images = list(scan, "/images");
    let found = images.iter().find(|image| texts(image, "/names").iter().any(|n| n == name));
    found.unwrap_or_else(|| panic!("no image {name} in {images:#?}"))
}

fn layer<'a>(scan: &'a Value, id: &str) -> &'a Value {
    let found = list(scan, "/layers").iter().find(|layer| layer["id"] == id);
    found.unwrap_or_else(|| panic!("no layer {id}"))
}

fn scan(expected: &Expected, placed: &Path) -> Value {
    if expected.sysroot {
        let sysroot = placed.to_str().unwrap();
        return layersweep(["scan", "--format", "json", "--sysroot", sysroot]).expect_code(0).json();
    }
    program::json_of("scan", placed, &placed.join("no-runroot"))
}

#[test]
fn each_fixture_is_read_as_expected() {
    for expected in &TABLE {
        let dir = tempfile::tempdir().unwrap();
        let placed = fixture::place(expected.fixture, dir.path());
        if expected.fixture == "storage-1.61" {
            for name in ["overlay/tempdirs", "overlay/staging", "overlay-layers/tmp"] {
                std::fs::create_dir(placed.join(name)).unwrap();
            }
        }
        let _held: Vec<_> = expected.held.iter().map(|name| locks::write_lock(&placed.join(name))).collect();
        let before = tree::listing(&placed);
        let scan = scan(expected, &placed);
        let what = expected.fixture;
        assert_eq!(list(&scan, "/stores").len(), 1, "{what}");
        assert_eq!(list(&scan, "/images").len(), expected.images, "{what}");
        assert_eq!(list(&scan, "/layers").len(), expected.layers, "{what}");
        let mut containers: Vec<_> = list(&scan, "/containers")
            .iter()
            .map(|container| (text(container, "/name"), text(container, "/owner")))
            .collect();
        containers.sort_unstable();
        assert_eq!(containers, expected.containers, "{what}");
        // A working container of buildah counts as forgotten once the fixture is a day old.
        let forgotten = expected.containers.iter().filter(|(_, owner)| *owner == "buildah").count();
        let (leaks, listed): (Vec<_>, Vec<_>) =
            list(&scan, "/leaks").iter().partition(|leak| leak["class"] == "forgotten-container");
        let mut listed: Vec<_> =
            listed.into_iter().map(|leak| (text(leak, "/class"), text(leak, "/verdict"))).collect();
        listed.sort_unstable();
        assert_eq!(listed, expected.leaks, "{what}: {scan:#}");
        assert!(leaks.len() <= forgotten, "{what}: {leaks:#?}");
        assert_eq!(list(&scan, "/warnings"), [] as [Value; 0], "{what}");
        (expected.special)(&scan);
        let changes = tree::differences(&before, &tree::listing(&placed));
        assert!(changes.is_empty(), "{what}: {changes:#?}");
    }
}

#[test]
fn no_fixture_is_forgotten() {
    let top = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/graphroot");
    for entry in std::fs::read_dir(top).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            let name = entry.file_name();
            let known = TABLE.iter().any(|expected| *expected.fixture == *name);
            assert!(known, "{name:?} is read by no test");
        }
    }
}
