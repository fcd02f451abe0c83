//! One run of `gc` on a node with a real containerd, podman's store on a disk of its own, and the store of another user:
//! each store is emptied in its own way, or has one line that says who can.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::process::Command;

use crate::support;
use serde_json::Value;
use support::archive::{ImageSpec, LayerSpec};
use support::containerd_node::{ContainerdNode, image};
use support::gc_document::{assert_exact, deleted, rule};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{list, text};
use support::reserve_file::used_percent;
use support::store::{self, Store, succeed};

const LOW: &str = "72";

/// A disk with a store of podman, filled to 80 %.
struct PodmanDisk {
    store: Store,
    loopfs: LoopFs,
}

impl PodmanDisk {
    fn new(prefix: &str, images: usize, mebibytes: u64) -> Self {
        let specs: Vec<_> = (0..images)
            .map(|number| ImageSpec {
                names: vec![name(prefix, number)],
                layers: [(format!("{prefix}-base"), 1), (format!("{prefix}-{number}"), 6)]
                    .map(|(layer, size)| LayerSpec { files: vec![size * MIB], ..LayerSpec::new(&layer) })
                    .into(),
                label: name(prefix, number),
            })
            .collect();
        let loopfs = LoopFs::new(Fs::Ext4, mebibytes * MIB);
        let store = Store::of(&loopfs.path().join("graphroot"), "overlay", &specs);
        store.unmount();
        Self { store, loopfs }
    }
}

fn name(prefix: &str, number: usize) -> String {
    format!("reg.local/{prefix}-{number}:1")
}

/// Writes a file so that this much of the disk is used.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // bytes of small disks
fn fill(loopfs: &LoopFs, percent: f64, file: &str) {
    let sizes = rustix::fs::statvfs(loopfs.path()).unwrap();
    let missing = (percent - used_percent(loopfs)) / 100.0 * (sizes.f_blocks * sizes.f_frsize) as f64;
    std::fs::write(loopfs.path().join(file), vec![7; missing as usize]).unwrap();
    loopfs.sync();
}

#[test]
fn one_run_empties_every_store() {
    if !store::require_tools() {
        return;
    }
    let images: Vec<_> =
        (0..8).map(|number| image(&[&format!("old-{number}")], &format!("old-{number}"), 4)).collect();
    let Some(node) = ContainerdNode::new(Fs::Ext4, 320 * MIB, &images) else { return };
    let (podman, alice) = (PodmanDisk::new("podman", 8, 160), PodmanDisk::new("alice", 3, 80));
    podman.store.podman(["create", "--name", "app", "--network", "none", &name("podman", 0), "/x"]);
    podman.store.unmount();
    succeed(Command::new("chown").args(["-R", "5001:5001"]).arg(alice.store.root()));
    let low = LOW.parse::<f64>().unwrap();
    let mut stores = Vec::new();
    for store in [&podman.store, &alice.store] {
        let (root, runroot) = (store.root().display().to_string(), store.runroot());
        std::fs::create_dir_all(&runroot).unwrap();
        stores.extend(["--graphroot".to_owned(), root, "--runroot".into(), runroot.display().to_string()]);
    }
    let stores: Vec<_> = stores.iter().map(String::as_str).collect();
    // A run with nothing to do creates the reserve file, which later runs do not count.
    node.run(&[&["gc", "--high", "99", "--low", "98"], stores.as_slice()].concat()).expect_code(0);
    for loopfs in [&node.loopfs, &podman.loopfs, &alice.loopfs] {
        fill(loopfs, 80.0, "filler");
    }
    let words = [&["gc", "--high", "75", "--low", LOW, "--min-age", "0s"], stores.as_slice()].concat();
    let run = |more: &[&str]| node.run(&[&words, more].concat());
    let json = |code: i32, more: &[&str]| {
        support::node::document(run(&[more, &["--format", "json"]].concat()).expect_code(code))
    };
    let dry = json(4, &["--dry-run"]);
    let shown = run(&["--dry-run"]).expect_code(4).stdout;
    let command = "`as uid 5001: podman unshare layersweep --runroot ";
    let lines: Vec<_> = shown.lines().filter(|line| line.contains(command)).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("3 unused images ("), "{shown}");

    let real = json(4, &[]);
    assert_eq!(deleted(&dry), deleted(&real));
    assert_exact(&real);
    for loopfs in [&node.loopfs, &podman.loopfs] {
        assert!(used_percent(loopfs) <= low, "{}: {}", loopfs.path().display(), used_percent(loopfs));
    }
    for prefix in ["old", "podman"] {
        assert!(deleted(&real).iter().any(|name| name.contains(prefix)), "{real:#}");
    }
    assert_eq!(rule(&real, &name("podman", 0)), "in-use");
    assert_eq!(rule(&real, &name("alice", 0)), "out-of-reach");
    assert_eq!(text(&real, "/via"), "auto");
    let via = |of: &Value, root: &std::path::Path| {
        let store = list(of, "/stores").iter().find(|store| text(store, "/root") == root.to_str().unwrap());
        store.unwrap()["via"].clone()
    };
    assert_eq!(via(&real, &node.root()), "cri");
    assert_eq!(via(&real, podman.store.root()), "direct");
    assert_eq!(via(&real, alice.store.root()), Value::Null);

    // The runtime is dead: the other store is emptied, and the runtime's store has its line.
    node.kill();
    fill(&podman.loopfs, 80.0, "more");
    let dead = json(5, &[]);
    assert!(used_percent(&podman.loopfs) <= low, "{dead:#}");
    let errors = list(&dead, "/errors");
    assert_eq!(errors.len(), 1, "{dead:#}");
    assert_eq!(text(&errors[0], "/id"), node.root().to_str().unwrap());
    assert_eq!(text(&dead, "/outcome"), "refused");
    assert_eq!(text(&dead, "/via"), "direct");
    let ids = podman.store.podman(["images", "--quiet"]);
    assert!(!ids.is_empty(), "the image in use");
    podman.store.unmount();
}
