//! The story of an image that is gone, as `explain` and `history` tell it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use crate::support;
use support::node::{self, Node};
use support::program::{self, list, text, texts};
use support::{past, schema, small, store};

fn explain(node: &Node, reference: &str) -> Value {
    node.json(&["explain", reference])
}

/// Returns the text of a command that exits with 0.
fn shown(node: &Node, words: &[&str]) -> String {
    node.run(words).expect_code(0).stdout
}

fn remove(node: &Node, image: &str) {
    node.run(&["rm", image, "-y", "--via", "direct", "--min-age", "0s"]).expect_code(0);
}

#[test]
fn gone_image_has_a_story() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    let unknown = node.run(&["explain", "no-such-image"]).expect_code(1);
    assert!(unknown.stderr.contains("there are no records in"), "{unknown:?}");
    let scan = node.scan();
    let (other, b) = (small::name("other"), small::name("b"));
    let id = text(node::image(&scan, &b), "/id").to_owned();
    let digest = text(node::image(&scan, &b), "/digests/0").to_owned();

    // Deleted by layersweep, and by podman; no scan has noticed it yet.
    remove(&node, &other);
    node.store.podman(["rmi", &b]);
    let gone = shown(&node, &["explain", &other]);
    assert!(gone.contains("not there now: deleted by rm 20") && gone.contains(" (freed "), "{gone}");
    let gone = explain(&node, &other);
    assert_eq!(
        (text(&gone, "/subject"), text(&gone, "/earlier_images/0/presence")),
        ("absent-image", "absent")
    );
    let run_id = text(&gone, "/earlier_images/0/lives/0/deletion/run_id").to_owned();
    let gone = shown(&node, &["explain", &b]);
    assert!(gone.contains("not there now: removed by another program after the scan of 20"), "{gone}");

    // Loaded again, and noticed: by every name.
    node.store.load(&[small::image("other")]);
    node.scan();
    for reference in [b.as_str(), "small/b:1", "b:1", &digest, &id, &id[..12]] {
        let gone = explain(&node, reference);
        assert_eq!(text(&gone, "/earlier_images/0/id"), id, "{reference}: {gone:#}");
        assert_eq!(text(&gone, "/earlier_images/0/lives/0/ended_by"), "other", "{gone:#}");
        let history = node.json(&["history", reference]);
        assert_eq!(text(&history, "/images/0/id"), id, "{reference}: {history:#}");
    }
    let gone = shown(&node, &["explain", &b]);
    let (_, scans) = gone.split_once("removed by another program between the scans of ").unwrap();
    assert!(scans.contains(" and "), "{gone}");

    // The image that is back tells of its earlier life.
    let back = explain(&node, &other);
    let earlier = &list(&back, "/records/earlier_lives")[0];
    assert_eq!(
        (text(earlier, "/ended_by"), text(earlier, "/deletion/run_id")),
        ("layersweep", run_id.as_str())
    );
    let back = shown(&node, &["explain", &other]);
    assert!(back.contains("  before  20") && back.contains("deleted by rm 20"), "{back}");
    let story = shown(&node, &["history", &other]);
    let (times, events) = story.split_at(story.find("Times are in").unwrap());
    assert!(!events.is_empty());
    for line in times.lines() {
        assert!(line.starts_with("20") && line.contains(&other), "every line can be grepped: {line}");
    }
    for words in ["pulled again", "first detected", ": deleted by rm (freed ", &format!("run {run_id}")] {
        assert!(story.contains(words), "{words}: {story}");
    }
    let runs = shown(&node, &["history"]);
    let line = runs.lines().find(|line| line.contains(&other)).unwrap();
    assert!(line.trim_start().starts_with("20") && line.contains(&run_id), "{runs}");

    // A name that was moved or removed.
    node.store.podman(["tag", &small::name("a2"), "localhost/small/moved:1"]);
    node.store.podman(["untag", &small::name("a2"), &small::name("a2")]);
    for scanned in [false, true] {
        let renamed = explain(&node, "a2:1");
        assert_eq!(text(&renamed, "/earlier_images/0/presence"), "renamed", "{scanned}: {renamed:#}");
        assert_eq!(texts(&renamed, "/earlier_images/0/names_now"), ["localhost/small/moved:1"]);
        node.scan();
    }
    let renamed = shown(&node, &["explain", "a2:1"]);
    assert!(renamed.starts_with("image localhost/small/a2:1\n"), "{renamed}");
    assert!(renamed.contains("still there, now localhost/small/moved:1"), "{renamed}");

    // Another image with the name of one that is gone.
    node.store.podman(["tag", "localhost/small/moved:1", &b]);
    let namesake = shown(&node, &["explain", &b]);
    let expected = format!("the name was that of image {}: not there now: removed by another", &id[..12]);
    assert!(namesake.contains(&expected), "{namesake}");

    let unknown = node.run(&["explain", "no-such-image"]).expect_code(1);
    assert!(unknown.stderr.contains("do not know a deleted image of that name"), "{unknown:?}");
    let unknown = node.run(&["history", "no-such-image"]).expect_code(1);
    assert!(unknown.stderr.contains("do not know an image \"no-such-image\""), "{unknown:?}");
}

/// The records of a mounted disk are read, and nothing is written.
#[test]
fn mounted_disk_tells_its_own_story() {
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().join("var/lib/containers/storage");
    for (name, file) in [("overlay-layers", "layers.json"), ("overlay-images", "images.json")] {
        std::fs::create_dir_all(root.join(name)).unwrap();
        std::fs::write(root.join(name).join(file), "[]").unwrap();
    }
    std::fs::create_dir_all(root.join("overlay")).unwrap();
    let sysroot = disk.path().to_str().unwrap();
    let image = "quay.io/team/app:1.4.2";
    for command in ["explain", "history"] {
        let missing = program::layersweep([command, image, "--sysroot", sysroot]).expect_code(1);
        let (_, hint) = missing.stderr.split_once("hint: ").unwrap();
        assert!(!hint.contains("layersweep explain") && !hint.contains("layersweep history"), "{missing:?}");
    }
    let records = disk.path().join("var/lib/layersweep");
    std::fs::create_dir_all(&records).unwrap();
    past::ten_days(&records, Timestamp::now());
    let before = node::bytes(Path::new(sysroot));
    for command in ["explain", "history"] {
        let run = program::layersweep([command, "app:1.4.2", "--sysroot", sysroot]).expect_code(0);
        assert!(run.stdout.contains(image) && run.stdout.contains("deleted by gc"), "{run:?}");
        assert!(!run.stdout.contains('\u{202e}'), "{run:?}");
        let document = program::layersweep([command, image, "--sysroot", sysroot, "--format", "json"]);
        let document = document.expect_code(0).json();
        schema::assert_fits(command, &document);
    }
    assert_eq!(node::bytes(Path::new(sysroot)), before, "nothing was written");
}
