//! Stores of containers/storage with the drivers btrfs and zfs.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::fs;

use serde_json::Value;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::{Node, document};
use support::program::{list, number, text};
use support::store::{self, Store};

fn image(name: &str, mebibytes: u64) -> ImageSpec {
    let base = LayerSpec { files: vec![2 * MIB], ..LayerSpec::new("base") };
    let top = LayerSpec { files: vec![mebibytes * MIB], ..LayerSpec::new(name) };
    ImageSpec { names: vec![format!("localhost/{name}:1")], layers: vec![base, top], label: name.to_owned() }
}

fn row(usage: &Value, kind: &str) -> u64 {
    let rows = list(usage, "/filesystems/0/rows").iter().filter(|row| text(row, "/kind") == kind);
    rows.map(|row| number(row, "/bytes")).sum()
}

#[test]
fn btrfs_layers_are_measured() {
    if !store::require_tools() || !Fs::Btrfs.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Btrfs, 400 * MIB);
    let store = Store::at(&loopfs.path().join("root"), "btrfs");
    store.load(&[image("one", 20), image("two", 10)]);
    loopfs.sync();
    let node = Node::of(store);
    let scan = node.scan();
    assert_eq!(text(&scan, "/stores/0/driver"), "btrfs");
    let one = support::node::image(&scan, "localhost/one:1");
    let frees = number(one, "/frees_bytes");
    assert!((20 * MIB..22 * MIB).contains(&frees), "without the shared base: {one:#}");
    let usage = node.json(&["usage"]);
    assert!(row(&usage, "store_other") < MIB && row(&usage, "unknown") == 0, "{usage:#}");
    let two = text(support::node::image(&scan, "localhost/two:1"), "/id")[..12].to_owned();
    node.store.podman(["untag", "localhost/two:1"]);
    let report = node.json(&["report"]);
    let mut causes = list(&report, "/verdict/causes").iter();
    let cause = causes.find(|cause| text(cause, "/kind") == "images-out-of-reach").unwrap();
    assert_eq!(text(cause, "/group"), "can-be-made-again", "{cause:#}");
    let command = text(cause, "/command/deletes");
    assert!(command.ends_with(&format!(" rmi localhost/one:1 {two}")), "{cause:#}");
    assert!((30 * MIB..40 * MIB).contains(&number(cause, "/frees_bytes")), "{cause:#}");
    // The layers of the store are subvolumes: remove them as podman does.
    node.store.podman(["rmi", "--all", "--force"]);
}

#[test]
fn zfs_layers_are_unknown() {
    if !store::require_tools() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 200 * MIB);
    let store = Store::of(&loopfs.path().join("root"), "vfs", &[image("one", 10)]);
    let root = store.root();
    // The same records with another driver. What the driver has on this filesystem does not matter.
    for kind in ["", "-layers", "-images", "-containers"] {
        let _ = fs::rename(root.join(format!("vfs{kind}")), root.join(format!("zfs{kind}")));
    }
    fs::rename(root.join("zfs/dir"), root.join("zfs/graph")).unwrap();
    let node = Node::of(store);
    let json = |words: &[&str]| document(node.run(&[words, &["--format", "json"]].concat()).expect_code(3));
    let scan = json(&["scan"]);
    assert_eq!(text(&scan, "/stores/0/driver"), "zfs");
    let one = support::node::image(&scan, "localhost/one:1");
    assert_eq!(one["frees_bytes"], Value::Null, "{one:#}");
    let explained = node.run(&["explain", "localhost/one:1"]).expect_code(3).stdout;
    assert!(explained.contains("deletion is not supported for the driver zfs"), "{explained}");
    let usage = json(&["usage"]);
    assert!(row(&usage, "unknown") >= 10 * MIB && row(&usage, "store_other") < MIB, "{usage:#}");
    let sweep = node.run(&["sweep"]).expect_code(3).stdout;
    assert!(!sweep.contains("every byte"), "{sweep}");
    let report = node.run(&["report"]).expect_code(3).stdout;
    for wrong in ["inspect it before deleting", "nothing to free", "Nothing can be freed"] {
        assert!(!report.contains(wrong), "{report}");
    }
    assert!(report.contains("could not be attributed"), "{report}");
}
