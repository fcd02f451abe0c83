//! The program on containerd roots: live, under load, stopped, copied elsewhere.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use serde_json::Value;
use support::containerd::{self, Rig};
use support::fair;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, Run, list, number, text, texts};
use support::tree;

/// The duration of the load; `LAYERSWEEP_LOAD_SECONDS` makes it longer.
fn load() -> Duration {
    let seconds = std::env::var("LAYERSWEEP_LOAD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

fn scan(flag: &str, path: &Path) -> Run {
    let arguments = ["scan", "--format", "json", "--no-record", flag];
    program::layersweep(arguments.iter().map(std::ffi::OsStr::new).chain([path.as_os_str()]))
}

/// The fields of each image that a copy preserves. Allocated bytes differ if a file of the copy has more extents.
fn images(scan: &Value) -> BTreeMap<String, Vec<Value>> {
    let fields = ["names", "digests", "layers", "used_by", "listed_bytes"];
    let of = |image: &Value| fields.iter().map(|field| image[*field].clone()).collect();
    list(scan, "/images").iter().map(|image| (text(image, "/id").to_owned(), of(image))).collect()
}

#[test]
fn live_copied_and_foreign_roots_agree() {
    if !containerd::require_rig() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 800 * MIB, &[], &["strictatime"]);
    let root = loopfs.path().join("root");
    let rig = Rig::with_images(&root);
    rig.script("30-pods.sh", &[]);

    let live = scan("--containerd-root", &root).expect_code(0).json();
    let store = &live["stores"][0];
    assert_eq!((text(store, "/kind"), text(store, "/driver")), ("containerd", "overlayfs"));
    let cri: Vec<_> = rig.images().into_iter().map(|image| image.id.replace("sha256:", "")).collect();
    let ours = images(&live);
    assert_eq!(ours.len(), cri.len());
    assert!(cri.iter().all(|id| ours.contains_key(id)), "{cri:?}");
    let app_a =
        list(&live, "/images").iter().find(|image| texts(image, "/names") == ["reg.local/app-a:1"]).unwrap();
    assert_eq!(text(app_a, "/used_by/0/id"), rig.noted("pods", "ctr1"));
    assert_eq!(text(app_a, "/used_by/0/owner"), "containerd");
    assert_eq!(list(&live, "/containers").len(), 5);
    assert_eq!(list(&live, "/leaks"), &[] as &[Value]);
    fair::assert_shares_add_up(&live, "live");
    let by_namespace = fair::assert_usage_adds_up(&["--containerd-root".as_ref(), root.as_os_str()], "live");
    let flags = ["--containerd-root".as_ref(), root.as_os_str()];
    for below in [
        "",
        "io.containerd.content.v1.content/blobs/sha256",
        "io.containerd.snapshotter.v1.overlayfs/snapshots",
        "..",
    ] {
        let owners = fair::assert_owners_add_up(&flags, &root.join(below).canonicalize().unwrap(), "live");
        let rows = list(&owners, "/below/rows");
        fn has(rows: &[Value], kind: &str) -> bool {
            rows.iter().any(|row| row["kind"] == kind)
        }
        assert_eq!(owners["subject"], "directory", "{below}: {owners:#}");
        assert!(has(rows, "image"), "{below}: {owners:#}");
        assert_eq!(has(rows, "containers_running"), !below.contains("blobs"), "{below}: {owners:#}");
        assert_eq!(has(rows, "rest"), below == "..", "{below}: {owners:#}");
    }
    let groups = list(&by_namespace, "/filesystems/0/groups").iter();
    let named: Vec<_> = groups
        .filter(|group| number(group, "/containers") > 0)
        .map(|group| (text(group, "/name"), number(group, "/containers")))
        .collect();
    assert_eq!(named, [("default", 5)], "namespaces of pods, not containerd's: {by_namespace:#}");
    let explained =
        program::layersweep(["explain", "--containerd-root", root.to_str().unwrap(), "reg.local/app-a:1"]);
    // As `images` prints it: the start of an image's id is also the start of its configuration's id.
    let shown = program::layersweep(["images", "-q", "--containerd-root", root.to_str().unwrap()]);
    for id in shown.expect_code(0).stdout.lines().filter(|id| !id.contains('/')) {
        let short = &id[..12];
        let run = program::layersweep([
            "explain",
            "--containerd-root",
            root.to_str().unwrap(),
            "--format",
            "json",
            short,
        ]);
        assert_eq!(program::text(&run.expect_code(0).json(), "/subject"), "image", "{short}");
    }
    assert!(explained.expect_code(0).stdout.contains("app-a"));

    rig.stop();
    // Reading changes nothing: access times are kept too.
    let before = tree::listing(&root);
    let stopped = scan("--containerd-root", &root).expect_code(0).json();
    assert_eq!(tree::listing(&root), before, "the scan left a trace");
    assert_eq!(number(&stopped, "/stores/0/bytes/total"), support::du::bytes(&[&root]));

    let foreign = loopfs.path().join("disk");
    std::fs::create_dir_all(foreign.join("var/lib")).unwrap();
    std::fs::create_dir_all(foreign.join("etc")).unwrap();
    let copy = foreign.join("var/lib/containerd");
    let copied = Command::new("cp").args(["-a"]).arg(&root).arg(&copy).status();
    assert!(copied.unwrap().success());
    for (flag, path) in [("--containerd-root", copy.as_path()), ("--sysroot", &foreign)] {
        let there = scan(flag, path).expect_code(0).json();
        assert_eq!(images(&there), images(&stopped), "{flag}");
        assert_eq!(number(&there, "/stores/0/bytes/total"), support::du::bytes(&[&copy]), "{flag}");
        assert_eq!(list(&there, "/leaks"), &[] as &[Value], "{flag}");
    }
}

#[test]
fn scans_during_imports_and_removals_are_exact() {
    if !containerd::require_rig() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::with_images(&directory.path().join("root"));
    let root = rig.places().root;
    rig.script("30-pods.sh", &[]);
    // Images that the load does not touch: with unshared layers, and with shared ones.
    let steady = ["reg.local/base:1", "reg.local/app-a:1", "reg.local/app-b:1", "reg.local/app-d:1"];
    let of = |scan: &Value| -> Vec<Vec<Value>> {
        let fields = ["id", "names", "digests", "layers", "used_by", "listed_bytes", "total_bytes"];
        let images = list(scan, "/images").iter();
        let images = images
            .filter(|image| steady.iter().any(|name| texts(image, "/names").contains(&(*name).to_owned())));
        let mut rows: Vec<Vec<Value>> =
            images.map(|image| fields.iter().map(|field| image[*field].clone()).collect()).collect();
        rows.sort_by_key(|row| row[0].to_string());
        rows
    };
    // Before writeback, a big file may have one block of extents less.
    rustix::fs::sync();
    let before = of(&scan("--containerd-root", &root).expect_code(0).json());
    assert_eq!(before.len(), steady.len());

    let over = AtomicBool::new(false);
    let (scans, honest) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rig.shell(
                    "for i in zdup:1 multi:1 dup:gz1 app-c:1; do cri_remove_image reg.local/$i; done; \
                     C images import $RC/images.tar >/dev/null",
                );
            }
        });
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (mut scans, mut honest) = (0, 0);
            let start = Instant::now();
            while start.elapsed() < load() {
                let run = scan("--containerd-root", &root).expect_no_crash();
                assert!(matches!(run.code, 0 | 3), "{run:?}");
                let document = run.json();
                if run.code == 3 {
                    honest += 1;
                    assert!(!list(&document, "/warnings").is_empty(), "{run:?}");
                }
                assert_eq!(of(&document), before, "{run:?}");
                // Objects that are being made or removed are not leaks.
                let leaks = list(&document, "/leaks").iter();
                let called: Vec<_> = leaks.filter(|leak| leak["verdict"] != "keep").collect();
                assert!(called.is_empty(), "{called:#?}");
                scans += 1;
            }
            (scans, honest)
        }));
        over.store(true, Ordering::Relaxed);
        judged
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!("{scans} scans, {honest} of them incomplete");
    assert!(scans >= 10, "only {scans} scans");
    // containerd is not affected.
    assert_eq!(of(&scan("--containerd-root", &root).expect_code(0).json()), before);
    assert!(rig.images().len() >= 9);
    let log = rig.shell("grep -ciE 'level=(fatal|panic)|database|boltdb' $LOG || true");
    assert_eq!(log.trim(), "0", "containerd's log");
}
