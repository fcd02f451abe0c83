//! Comparing two scans: added, removed and changed objects, and sums that agree.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use serde_json::Value;

use crate::support;
use support::node::{self, Node};
use support::program::{self, list, number, text};
use support::store;
use support::{small, tree};

fn bytes(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {pointer} in {value:#}"))
}

/// Checks that the parts of every sum add up, and that every change is the difference of its values.
fn assert_adds_up(diff: &Value) {
    fn sum(value: &Value, what: &str) -> i64 {
        let [before, after, change] =
            ["before", "after", "change"].map(|name| bytes(value, &format!("{what}/{name}_bytes")));
        assert_eq!(after - before, change, "{value:#}");
        change
    }
    let stores = list(diff, "/stores");
    let of_stores: i64 = stores.iter().map(|store| sum(store, "/total")).sum();
    assert_eq!(sum(diff, "/totals"), of_stores);
    for store in stores {
        let shares: i64 = list(store, "/shares").iter().map(|share| sum(share, "")).sum();
        assert_eq!(shares, sum(store, "/total"), "{store:#}");
        assert_eq!(sum(store, "/layers") + bytes(store, "/rest_change_bytes"), shares, "{store:#}");
        let root = text(store, "/root");
        let layers = list(diff, "/layers").iter().filter(|layer| text(layer, "/store") == root);
        assert_eq!(layers.map(|layer| sum(layer, "")).sum::<i64>(), sum(store, "/layers"), "{diff:#}");
    }
    list(diff, "/filesystems").iter().for_each(|filesystem| {
        sum(filesystem, "/used");
    });
}

fn names<'a>(diff: &'a Value, change: &str, names: &str) -> Vec<&'a str> {
    let images = list(diff, "/images").iter().filter(|image| text(image, "/change") == change);
    let mut names: Vec<_> =
        images.flat_map(|image| list(image, names)).map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn added_removed_and_changed_images_are_shown() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::store(&dir.path().join("root")));
    let run = node.run(&["diff"]).expect_code(1);
    assert!(run.stderr.contains("no scan is kept") && run.stderr.contains("hint: "), "{run:?}");

    let first = node.scan();
    let run = node.run(&["diff"]).expect_code(1);
    assert!(run.stderr.contains("only 1 scan is kept"), "{run:?}");
    node.scan();
    let same = node.json(&["diff"]);
    assert_adds_up(&same);
    for kind in ["images", "layers", "containers", "leaks"] {
        assert_eq!(list(&same, &format!("/{kind}")).len(), 0, "{same:#}");
    }
    assert_eq!(bytes(&same, "/totals/change_bytes"), 0);

    // One image with two layers is added, one is removed, one gets a second name, a container grows.
    let du = tree::du(node.store.root());
    node.store.load(&small::deep());
    node.store.podman(["rmi", &small::name("other")]);
    node.store.podman(["tag", &small::name("b"), "localhost/small/again:1"]);
    let mounted = node.store.podman(["mount", "web"]);
    std::fs::write(std::path::Path::new(mounted.trim()).join("grown"), vec![1; 3 << 20]).unwrap();
    node.store.podman(["umount", "web"]);
    node.store.unmount();
    let now = node.json(&["diff", "last", "now"]);
    node.scan();
    let diff = node.json(&["diff"]);
    for diff in [&diff, &now] {
        assert_adds_up(diff);
        assert_eq!(
            bytes(diff, "/totals/change_bytes"),
            i64::try_from(tree::du(node.store.root())).unwrap() - i64::try_from(du).unwrap()
        );
        assert_eq!(names(diff, "added", "/names_after"), [small::name("deep")]);
        assert_eq!(names(diff, "removed", "/names_before"), [small::name("other")]);
        let altered = names(diff, "altered", "/names_after");
        assert!(altered.contains(&"localhost/small/again:1"), "{altered:?}");
        fn layers(diff: &Value, change: &str) -> usize {
            list(diff, "/layers").iter().filter(|layer| text(layer, "/change") == change).count()
        }
        assert_eq!(
            (layers(diff, "added"), layers(diff, "removed"), layers(diff, "grew")),
            (2, 1, 1),
            "{:#}",
            diff["layers"]
        );
        let on_disk: i64 = list(diff, "/layers")
            .iter()
            .filter(|layer| !layer["image"].is_null())
            .map(|layer| bytes(layer, "/change_bytes"))
            .sum();
        assert_eq!(bytes(diff, "/images_disk_change_bytes"), on_disk, "{diff:#}");
        for image in list(diff, "/images") {
            // `deep` shares no layer and `other` neither; a second name takes no byte.
            let expected = match text(image, "/change") {
                "added" => bytes(image, "/exclusive/after_bytes"),
                "removed" => -bytes(image, "/exclusive/before_bytes"),
                _ => 0,
            };
            let off = bytes(image, "/disk_change_bytes") - expected;
            assert!(off.abs() <= 64 << 10, "its own records are not counted: {image:#}");
        }
        let containers = list(diff, "/containers");
        assert_eq!((containers.len(), text(&containers[0], "/name")), (1, "web"), "{containers:#?}");
        assert!(bytes(&containers[0], "/change_bytes") >= 3 << 20, "{containers:#?}");
    }

    // By every name of a scan.
    let scans = node.json(&["history", "--scans"]);
    let scans = list(&scans, "/scans");
    assert_eq!(scans.len(), 3, "the last two, and the oldest of ten minutes: {scans:#?}");
    assert_eq!((text(&scans[0], "/name"), text(&scans[1], "/name")), ("last", "last~1"));
    let ids = [text(&scans[1], "/run_id"), text(&scans[0], "/run_id")];
    let file = dir.path().join("first.json");
    std::fs::write(&file, first.to_string()).unwrap();
    let file = file.to_str().unwrap();
    fn part(diff: &Value, name: &str) -> Value {
        diff[name].clone()
    }
    for words in [["diff", ids[0], ids[1]], ["diff", "last~1", ids[1]], ["diff", file, "last"]] {
        let again = node.json(&words);
        assert_adds_up(&again);
        for name in ["totals", "images", "layers", "containers", "leaks", "stores"] {
            assert_eq!(part(&again, name), part(&diff, name), "{words:?}");
        }
    }
    // In reverse order, every change is reversed.
    let back = node.json(&["diff", "last", "last~1"]);
    assert_eq!(bytes(&back, "/totals/change_bytes"), -bytes(&diff, "/totals/change_bytes"));
    assert_eq!(names(&back, "removed", "/names_before"), [small::name("deep")]);

    let shown = node.run(&["diff"]).expect_code(0).stdout;
    for words in
        [&small::name("deep"), "added", "removed", "grew", "web", "renamed", "Store ", "total on the disk"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let shown = node.run(&["history", "--scans"]).expect_code(0).stdout;
    assert!(ids.iter().all(|id| shown.contains(id)), "{shown}");

    // A word is a file only if it is written as a path.
    let cwd = tempfile::tempdir().unwrap();
    std::fs::write(cwd.path().join("last"), "{").unwrap();
    let there = |words: &[&str]| program::run(node.command(words).current_dir(cwd.path())).expect_no_crash();
    there(&["diff", "last~1", "last"]).expect_code(0);
    let run = there(&["diff", "last~1", "./last"]).expect_code(2);
    assert!(run.stderr.contains("not a JSON document"), "{run:?}");
    let run = node.run(&["diff", "1999-01-01", "last"]).expect_code(1);
    let (_, time) = run.stderr.split_once("the oldest kept scan is of ").unwrap();
    assert!(time.starts_with("20") && time.lines().next().unwrap().contains(" UTC"), "{run:?}");

    // A scan of only another store neither ends the series nor removes anything.
    let other = dir.path().join("other");
    empty_store(&other);
    let scan = ["scan", "--graphroot", other.to_str().unwrap(), "--state-dir", node.state.to_str().unwrap()];
    program::layersweep(scan).expect_code(0);
    let apart = node.json(&["diff"]);
    assert_adds_up(&apart);
    let seen: Vec<_> = list(&apart, "/stores").iter().map(|store| text(store, "/seen")).collect();
    assert_eq!(seen.iter().filter(|seen| **seen == "added").count(), 1, "{apart:#}");
    assert_eq!(seen.iter().filter(|seen| **seen == "removed").count(), 0, "{apart:#}");
    assert_eq!(list(&apart, "/images").len() + list(&apart, "/layers").len(), 0, "{apart:#}");
    // A scan of one of the two stores does not either.
    let part = node.json(&["diff", "last", "now"]);
    assert_eq!(list(&part, "/stores").len(), 1, "{part:#}");
    assert_eq!(text(&part, "/stores/0/seen"), "both", "{part:#}");
}

/// Makes an empty store.
fn empty_store(root: &std::path::Path) {
    for (name, file) in [("overlay-layers", "layers.json"), ("overlay-images", "images.json")] {
        std::fs::create_dir_all(root.join(name)).unwrap();
        std::fs::write(root.join(name).join(file), "[]").unwrap();
    }
    std::fs::create_dir_all(root.join("overlay")).unwrap();
}

#[test]
fn scan_of_mounted_disk_belongs_to_node() {
    let disk = tempfile::tempdir().unwrap();
    let root = disk.path().join("var/lib/containers/storage");
    empty_store(&root);
    fn on_disk(disk: &tempfile::TempDir, words: &[&str]) -> Value {
        let words = [&["--sysroot", disk.path().to_str().unwrap()], words].concat();
        program::layersweep(words).expect_code(0).json()
    }
    let scan = on_disk(&disk, &["scan", "--format", "json"]);
    assert_eq!(text(&scan, "/sysroot"), std::fs::canonicalize(disk.path()).unwrap().to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scan.json");
    std::fs::write(&file, scan.to_string()).unwrap();
    std::fs::write(root.join("overlay-layers/more"), vec![1; 64 << 10]).unwrap();
    let diff = on_disk(&disk, &["diff", file.to_str().unwrap(), "now", "--format", "json"]);
    assert_adds_up(&diff);
    assert_eq!(list(&diff, "/stores").len(), 1, "{diff:#}");
    assert_eq!(text(&diff, "/stores/0/root"), "/var/lib/containers/storage");
    assert_eq!(bytes(&diff, "/totals/change_bytes"), 64 << 10, "{diff:#}");
}

#[test]
fn incomparable_scans_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    fn put(dir: &tempfile::TempDir, name: &str, content: &str) -> String {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
    fn scan(root: &str, complete: bool) -> String {
        format!(
            r#"{{"schema_version":1,"kind":"scan","generated_at":"2026-11-20T10:00:00Z","complete":{complete},
               "filesystems":[],"images":[],"layers":[],"containers":[],"leaks":[],
               "stores":[{{"kind":"containers-storage","root":"{root}","driver":"overlay",
               "filesystem":"/","reclaimable_bytes":0,
               "bytes":{{"images":1,"containers":0,"build_cache":0,"leaks":0,"metadata":0,"other":0}}}}],
               "totals":{{"images":0,"images_unused":0,"containers":0,"leaks":0,"bytes":1,"reclaimable_bytes":0}}}}"#
        )
    }
    let (here, there) = (put(&dir, "a", &scan("/a", true)), put(&dir, "b", &scan("/b", true)));
    let (partial, broken) = (put(&dir, "p", &scan("/a", false)), put(&dir, "x", "{"));
    let missing = dir.path().join("missing").to_str().unwrap().to_owned();
    fn diff(a: &str, b: &str) -> program::Run {
        support::program::layersweep(["diff", a, b])
    }
    for (a, b, code, words) in [
        (&here, &there, 2, "no store in common"),
        (&here, &broken, 2, "not a JSON document"),
        (&here, &missing, 1, "No such file"),
    ] {
        let run = diff(a, b).expect_code(code);
        assert!(run.stdout.is_empty() && run.stderr.starts_with("error: "), "{run:?}");
        assert!(run.stderr.contains(words) && run.stderr.contains("hint: "), "{run:?}");
    }
    diff(&here, &here).expect_code(0);
    let run = diff(&here, &partial).expect_code(3);
    assert!(run.stdout.contains("The second could not read everything"), "{run:?}");
    let document = support::program::layersweep(["diff", &here, &partial, "--format", "json"]).expect_code(3);
    node::assert_fits(&document.json());
    assert_eq!(number(&document.json(), "/totals/after_bytes"), 1);
}
