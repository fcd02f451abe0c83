//! A disk of the node on which no store is, full of a pod's log and the journal: `usage`, `report` and `gc` name it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use serde_json::Value;
use support::loopfs::{BindMount, Fs, LoopFs, MIB};
use support::program::{self, Run, list, number, text};
use support::small;
use support::store::{self, Store};

/// A node whose root is a directory: the store is on one disk, `/var/log` on another.
struct Node {
    // Dropped in this order.
    _mounts: Vec<BindMount>,
    _store: Store,
    root: tempfile::TempDir,
    _disks: [LoopFs; 2],
}

fn inside(root: &tempfile::TempDir, path: &str) -> PathBuf {
    root.path().join(path.trim_start_matches('/'))
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let [disk, logs] = [64, 40].map(|mebibytes| LoopFs::new(Fs::Ext4, mebibytes * MIB));
        let store = small::still(&disk.path().join("graphroot"));
        store.unmount();
        let pod = logs.path().join("pods/shop_cart-0_11111111-2222-4333-8444-555555555555/cart");
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(pod.join("0.log"), vec![7; 24 << 20]).unwrap();
        std::fs::create_dir_all(logs.path().join("journal/0123")).unwrap();
        std::fs::write(logs.path().join("journal/0123/system.journal"), vec![7; 7 << 20]).unwrap();
        logs.sync();
        let mut mounts = Vec::new();
        let program = Path::new(env!("CARGO_BIN_EXE_layersweep"));
        for file in ["/run/program", "/dev/null", "/etc/containers/storage.conf"] {
            std::fs::create_dir_all(inside(&root, file).parent().unwrap()).unwrap();
            std::fs::write(inside(&root, file), "").unwrap();
        }
        let graphroot = "/var/lib/containers";
        std::fs::write(
            inside(&root, "/etc/containers/storage.conf"),
            format!(
                "[storage]\ndriver = \"overlay\"\ngraphroot = \"{graphroot}/graphroot\"\nrunroot = \"/run/runroot\"\n"
            ),
        )
        .unwrap();
        let directories = ["/usr", "/lib", "/lib64", "/proc"].map(Path::new);
        let directories = directories.into_iter().filter(|path| path.is_dir()).map(|path| (path, path));
        let disks = [(disk.path(), Path::new(graphroot)), (logs.path(), Path::new("/var/log"))];
        let files = [(program, Path::new("/run/program")), (Path::new("/dev/null"), Path::new("/dev/null"))];
        for (source, target) in directories.chain(disks).chain(files) {
            let target = inside(&root, target.to_str().unwrap());
            if source.is_dir() {
                std::fs::create_dir_all(&target).unwrap();
            }
            mounts.push(BindMount::new(source, &target));
        }
        Self { _mounts: mounts, _store: store, root, _disks: [disk, logs] }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new("chroot");
        program::hermetic(&mut command);
        // Beside the store, so that this machine's own disk is not one of the node's.
        command.env("LAYERSWEEP_STATE_DIR", "/var/lib/containers/state");
        program::run(command.arg(self.root.path()).arg("/run/program").args(arguments)).expect_no_crash()
    }
}

fn disk<'a>(document: &'a Value, mount: &str) -> &'a Value {
    let disks = list(document, "/filesystems");
    assert_eq!(disks.len(), 2, "{disks:#?}");
    disks.iter().find(|disk| text(disk, "/mount").ends_with(mount)).unwrap()
}

#[test]
fn full_disk_without_store_is_named() {
    if !store::require_tools() {
        return;
    }
    let node = Node::new();
    let usage = node.run(&["usage", "--format", "json"]).expect_code(0).json();
    let logs = disk(&usage, "/var/log");
    let rows = list(logs, "/rows");
    assert!(rows.iter().all(|row| row["in_store"] == false || number(row, "/bytes") == 0), "{rows:#?}");
    let pods = rows.iter().find(|row| text(row, "/kind") == "logs" && number(row, "/bytes") >= 24 * MIB);
    assert!(pods.is_some(), "{rows:#?}");
    let sum: u64 = rows.iter().map(|row| number(row, "/bytes")).sum();
    assert_eq!(sum, number(logs, "/used_bytes"));

    let report = node.run(&["report", "--format", "json"]).expect_code(0).json();
    assert!(text(&report, "/verdict/headline").starts_with("/var/log is "), "{:#}", report["verdict"]);
    let causes = list(&report, "/verdict/causes");
    let log = causes.iter().find(|cause| text(cause, "/kind") == "log").unwrap();
    assert_eq!((text(log, "/id"), text(log, "/filesystem")), ("shop/cart-0", "/var/log"));

    for arguments in [&["gc", "-y"][..], &["gc", "--dry-run"]] {
        let run = node.run(arguments).expect_code(0);
        let line = run.stdout.lines().find(|line| line.starts_with("/var/log is "));
        let line = line.unwrap_or_else(|| panic!("{arguments:?}: {run:?}"));
        assert!(line.contains("no store") && line.contains("logs of pods 24.0 MiB"), "{line}");
    }
    // Named stores alone are read.
    let named = ["usage", "--graphroot", "/var/lib/containers/graphroot", "--format", "json"];
    let named = node.run(&named).expect_code(0).json();
    assert_eq!(list(&named, "/filesystems").len(), 1);
}
