//! Records of `scan`, and their effect on the other commands, for scripts and people.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use jiff::{SignedDuration, Timestamp};
use layersweep::disk::size_cache::SETTLED_AFTER;
use serde_json::{Value, json};
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::{self, Node, image, time};
use support::program::{self, list, number, text, texts};
use support::store::{self, Store};
use support::{small, tree};

/// Every command that only reads, for an image of the small store.
const READING: [&[&str]; 8] = [
    &["images"],
    &["usage"],
    &["layers"],
    &["waste"],
    &["explain", "localhost/small/a:1"],
    &["history"],
    &["history", "usage"],
    &["pin", "list"],
];

fn of<'a>(document: &'a Value, name: &str) -> &'a Value {
    image(document, &small::name(name))
}

fn first_detected(document: &Value, name: &str) -> Timestamp {
    time(of(document, name), "/first_detected")
}

fn tools() -> bool {
    store::require_tools() && Fs::Ext4.require() && support::require_program("debugfs")
}

/// Returns the creation times of the layers and images of [`age`].
fn made() -> (Timestamp, Timestamp) {
    let [layers, images] = [40, 30].map(|days| {
        let then = Timestamp::now() - SignedDuration::from_hours(24 * days);
        Timestamp::from_second(then.as_second()).unwrap()
    });
    (layers, images)
}

/// Makes the images of a store as old as if they had been pulled long ago: the records of their layers are of `layers`,
/// and their metadata directories are born at `images`, except that of `late`, which is older than its layer.
fn age(disk: &LoopFs, store: &Store, (layers, images): (Timestamp, Timestamp), late: &str) {
    let path = store.record("layers.json");
    let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for record in &mut records {
        record["created"] = json!(layers.to_string());
    }
    std::fs::write(&path, serde_json::to_vec(&records).unwrap()).unwrap();
    let records: Vec<Value> =
        serde_json::from_slice(&std::fs::read(store.record("images.json")).unwrap()).unwrap();
    store.unmount();
    let requests = records.iter().flat_map(|record| {
        let born = if texts(record, "/names").contains(&small::name(late)) {
            layers - SignedDuration::from_hours(24)
        } else {
            images
        };
        let directory = store.record("images.json").with_file_name(text(record, "/id"));
        let directory = Path::new("/").join(directory.strip_prefix(disk.path()).unwrap());
        [("crtime_extra", "0".to_owned()), ("crtime", format!("@{}", born.as_second()))]
            .map(|(field, value)| format!("set_inode_field {} {field} {value}", directory.display()))
    });
    disk.debugfs(&requests.collect::<Vec<_>>());
}

#[test]
fn ages_come_from_records_after_first_scan() {
    if !tools() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let node = Node::of(small::still(disk.path()));
    let (layers, images) = made();
    age(&disk, &node.store, (layers, images), "b");

    let before = node.json(&["images"]);
    for (name, since) in [("base", images), ("a", images), ("a2", images), ("b", layers), ("other", images)] {
        assert_eq!(first_detected(&before, name), since, "{name}");
        assert_eq!(of(&before, name)["first_detected_from"], "disk", "{name}");
    }
    let unrecorded = node.run(&["explain", &small::name("a")]).expect_code(0).stdout;
    assert!(unrecorded.contains("proven by the creation of its metadata directory"), "{unrecorded}");

    let started = Timestamp::now();
    let first = node.scan();
    for name in ["base", "a", "a2", "b", "other"] {
        let image = of(&first, name);
        assert_eq!(image["first_detected"], of(&before, name)["first_detected"], "{name}");
        assert_eq!(
            (&image["first_detected_from"], &image["lives"]),
            (&json!("records"), &json!(1)),
            "{name}"
        );
        let used = name == "a";
        assert_eq!(number(image, "/use_count"), u64::from(used), "{name}");
        assert_eq!(image["last_used"].is_string(), used, "{name}");
    }
    let used = time(of(&first, "a"), "/last_used");
    assert!(used >= started - SignedDuration::from_secs(1) && used <= Timestamp::now(), "{used}");

    node.store.podman(["rm", "web"]);
    let second = node.scan();
    let a = of(&second, "a");
    assert_eq!((time(a, "/last_used"), number(a, "/use_count")), (used, 1), "used no longer, once used");
    for name in ["base", "a", "a2", "b", "other"] {
        assert_eq!(of(&second, name)["first_detected"], of(&first, name)["first_detected"], "{name}");
    }

    for (made, image) in [("again", "a"), ("new", "b")] {
        node.store.podman(["create", "--name", made, "--network", "none", &small::name(image), "/x"]);
    }
    let third = node.scan();
    assert_eq!(number(of(&third, "a"), "/use_count"), 2);
    assert!(time(of(&third, "a"), "/last_used") > used);
    assert_eq!(number(of(&third, "b"), "/use_count"), 1);
    assert_eq!(number(of(&node.scan(), "b"), "/use_count"), 1, "the same container again");
    assert_eq!(node.json(&["images"])["images"][0]["first_detected_from"], "records");

    let explained = node.json(&["explain", &small::name("b")]);
    let known = &explained["records"];
    assert_eq!((&known["rule"], time(known, "/first_detected")), (&json!("creation"), layers));
    fn evidence<'a>(known: &'a Value, kind: &str) -> &'a Value {
        list(known, "/evidence").iter().find(|row| row["kind"] == kind).unwrap()
    }
    assert_eq!(time(evidence(known, "top-layer"), "/at"), layers);
    assert_eq!(text(known, "/decided_by/kind"), "top-layer");
    let shown = node.run(&["explain", &small::name("b")]).expect_code(0).stdout;
    let since = format!("on this disk since {}", layers.to_string()[..16].replace('T', " "));
    for part in [&since, "(40d), proven by the record of its top layer", "used    1 time, last "] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
}

#[test]
fn returning_image_starts_new_life() {
    if !tools() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let node = Node::of(small::still(disk.path()));
    age(&disk, &node.store, made(), "b");
    let before = first_detected(&node.scan(), "other");

    // Removed during a scan.
    node.store.podman(["rmi", &small::name("other")]);
    let without = node.scan();
    assert_eq!(list(&without, "/images").len(), 4);
    let gone = time(&without, "/generated_at");
    node.store.load(&[small::image("other")]);
    let unrecorded = node.json(&["images"]);
    assert_eq!(
        (number(of(&unrecorded, "other"), "/lives"), &of(&unrecorded, "other")["first_detected_from"]),
        (2, &json!("disk"))
    );
    let back = node.scan();
    let other = of(&back, "other");
    assert_eq!((number(other, "/lives"), &other["first_detected_from"]), (2, &json!("records")));
    assert!(time(other, "/first_detected") > gone, "{other:#}");

    // Removed and pulled again between two scans.
    let second = time(other, "/first_detected");
    node.store.podman(["rmi", &small::name("other")]);
    node.store.load(&[small::image("other")]);
    let again = node.scan();
    assert_eq!(number(of(&again, "other"), "/lives"), 3);
    assert!(first_detected(&again, "other") > second);

    let known = node.json(&["explain", &small::name("other")]);
    assert_eq!(number(&known, "/records/life"), 3);
    let lives: Vec<_> =
        list(&known, "/records/earlier_lives").iter().map(|life| time(life, "/first_detected")).collect();
    assert_eq!(lives, [second, before]);
    let told = node.run(&["explain", &small::name("other")]).expect_code(0).stdout;
    let line = format!("before  {} to ", before.to_string()[..19].replace('T', " "));
    assert_eq!(told.matches("  before  ").count(), 2, "{told}");
    assert!(
        told.contains(&line) && told.contains("proven by the creation of its metadata directory"),
        "{line:?} in {told}"
    );
    // The other images existed all the time.
    assert_eq!(number(of(&again, "a"), "/lives"), 1);
}

#[test]
fn readers_write_nothing() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    let all: Vec<_> = READING.into_iter().chain([&["scan", "--no-record"][..]]).collect();
    for &words in &all {
        node.run(words).expect_code(0);
        assert!(!node.state.exists(), "{words:?} made the state directory");
    }
    node.scan();
    node.run(&["pin", "add", "quay.io/*"]).expect_code(0);
    let state = node.state.parent().unwrap();
    let (bytes, listing) = (node::bytes(state), tree::listing(state));
    for &words in &all {
        node.json(words);
        let changed = tree::differences(&listing, &tree::listing(state));
        assert!(changed.is_empty(), "{words:?}: {changed:#?}");
    }
    assert!(node::bytes(state) == bytes);
}

#[test]
fn pins_keep_and_are_counted() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    fn row(usage: &Value, kind: &str) -> u64 {
        let row = list(usage, "/stores/0/rows").iter().find(|row| row["kind"] == kind);
        row.map_or(0, |row| number(row, "/count"))
    }
    let counts = || {
        let usage = node.json(&["usage"]);
        (row(&usage, "images_pinned"), row(&usage, "images_unused"), number(&usage, "/totals/images_unused"))
    };
    fn pinned(document: &Value) -> Vec<String> {
        let pinned = list(document, "/images").iter().filter(|image| image["pinned"] == true);
        pinned.flat_map(|image| texts(image, "/names")).collect::<Vec<_>>()
    }
    assert_eq!(counts(), (0, 4, 4));
    node.run(&["pin", "add", "localhost/small/b*", "--note", "until Monday"]).expect_code(0);
    let images = node.json(&["images"]);
    let mut names = pinned(&images);
    names.sort();
    assert_eq!(names, [small::name("b"), small::name("base")]);
    let by = texts(of(&images, "b"), "/pinned_by");
    assert!(by.len() == 1 && by[0].contains("localhost/small/b*"), "{by:?}");
    assert_eq!(counts(), (2, 2, 2));
    assert_eq!(pinned(&node.scan()).len(), 2, "a scan honours them too");
    let list_of = node.json(&["pin", "list"]);
    assert_eq!(
        (&list_of["pins"][0]["pattern"], &list_of["pins"][0]["note"]),
        (&json!("localhost/small/b*"), &json!("until Monday"))
    );

    for (words, code) in
        [(&["pin", "add", "["][..], 2), (&["pin", "add", "good", "{"], 2), (&["pin", "remove", "b"], 1)]
    {
        let run = node.run(words).expect_code(code);
        assert!(run.stderr.starts_with("error: ") && run.stdout.is_empty(), "{run:?}");
    }
    assert_eq!(list(&node.json(&["pin", "list"]), "/pins").len(), 1, "all or nothing");
    let removed = node.json(&["pin", "remove", "localhost/small/b*"]);
    assert_eq!(texts(&removed, "/removed"), ["localhost/small/b*"]);
    assert_eq!(counts(), (0, 4, 4));
    assert_eq!(pinned(&node.json(&["images"])), [""; 0]);
}

#[test]
fn history_contains_every_scan() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    let mut used = Vec::new();
    for _ in 0..3 {
        let scan = node.scan();
        used.push(number(&scan, "/filesystems/0/capacity_bytes"));
    }
    node.run(&["scan", "--no-record"]).expect_code(0);
    let history = node.json(&["history"]);
    assert_eq!(list(&history, "/runs").len(), 0, "there is nothing to tell of a scan");
    assert_eq!(history["quiet"]["scans"], 3);
    assert_eq!(text(&history, "/database"), node.state.join("layersweep.db").to_str().unwrap());
    let all = node.json(&["history", "--all"]);
    let runs = list(&all, "/runs");
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!(
            (&run["command"], &run["outcome"], &run["runs"]),
            (&json!("scan"), &json!("done"), &json!(1))
        );
        let (started, ended) = (time(run, "/started_at"), time(run, "/ended_at"));
        assert!(started < ended && ended <= Timestamp::now() + SignedDuration::from_secs(1), "{run:#}");
    }
    let times: Vec<_> = runs.iter().map(|run| time(run, "/started_at")).collect();
    assert!(times[0] > times[1] && times[1] > times[2], "the newest first: {times:?}");

    // Each reading is a point; the present one is the last.
    let series = node.json(&["history", "usage"]);
    let points = list(&series, "/filesystems/0/points");
    assert_eq!(points.iter().map(|point| number(point, "/readings")).collect::<Vec<_>>(), [1; 4]);
    let database = rusqlite::Connection::open(node.state.join("layersweep.db")).unwrap();
    database.execute("UPDATE usage SET at = at - 300000000", []).unwrap();
    database.close().unwrap();
    used.push(number(&node.scan(), "/filesystems/0/capacity_bytes"));
    let series = node.json(&["history", "usage"]);
    let points = list(&series, "/filesystems/0/points");
    assert_eq!(points.iter().map(|point| number(point, "/readings")).collect::<Vec<_>>(), [1; 5]);
    assert_eq!(number(&points[3], "/capacity_bytes"), used[3]);
    assert!(time(&points[3], "/at") > times[0]);

    let told = node.run(&["history"]).expect_code(0);
    assert!(told.stdout.contains("4 scans") && told.stderr.is_empty(), "{told:?}");
    let told = node.run(&["history", "--all"]).expect_code(0).stdout;
    assert_eq!(told.lines().filter(|line| line.contains(" scan: done in ")).count(), 4, "{told}");
    let table = node.run(&["history", "usage"]).expect_code(0).stdout;
    let rows = table.lines().filter(|line| line.starts_with("20")).count();
    assert_eq!(rows, 5, "{table}");
}

#[test]
fn second_scan_measures_little() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    // Younger layers are measured again.
    std::thread::sleep(SETTLED_AFTER.unsigned_abs() + Duration::from_secs(2));
    fn figures(scan: &Value) -> Vec<String> {
        let mut lines = Vec::new();
        for (of, id, fields) in [
            ("/layers", "id", &["bytes", "apparent_bytes", "inodes", "refcount"][..]),
            (
                "/images",
                "id",
                &["total_bytes", "shared_bytes", "exclusive_bytes", "frees_bytes", "listed_bytes"],
            ),
            ("/containers", "id", &["bytes"]),
            ("/stores", "root", &["bytes", "reclaimable_bytes"]),
        ] {
            lines.extend(list(scan, of).iter().map(|row| {
                format!("{} {:?}", row[id], fields.iter().map(|name| &row[*name]).collect::<Vec<_>>())
            }));
        }
        lines
    }
    fn effort(scan: &Value) -> (u64, u64) {
        (number(scan, "/scan/cached_layers"), number(scan, "/scan/measured_layers"))
    }
    let first = node.scan();
    let layers = list(&first, "/layers").len() as u64;
    assert_eq!(effort(&first), (0, layers));
    let second = node.scan();
    let (cached, measured) = effort(&second);
    assert!(cached >= 3 && cached + measured == layers, "{cached} + {measured} of {layers}");
    assert_eq!(figures(&second), figures(&first));
    let full = node.json(&["scan", "--full"]);
    assert_eq!(effort(&full), (0, layers));
    assert_eq!(figures(&full), figures(&first));
    let unrecorded = node.json(&["scan", "--no-record"]);
    assert!(effort(&unrecorded).0 > 0, "a scan without recording uses the remembered sizes");
}

#[test]
fn concurrent_scans_are_all_recorded() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    // The first scans create the database together.
    for round in 1..=2 {
        let scans: Vec<_> = (0..4)
            .map(|_| {
                let mut command = node.command(&["scan", "--format", "json"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for scan in scans {
            let output = scan.wait_with_output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
            let scan: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((number(of(&scan, "a"), "/use_count"), number(of(&scan, "a"), "/lives")), (1, 1));
        }
        let all = node.json(&["history", "--all"]);
        assert_eq!(list(&all, "/runs").len(), 4 * round);
    }
    let images = node.json(&["images"]);
    assert!(["a", "b", "other"].into_iter().all(|name| first_detected(&images, name) < Timestamp::now()));
}

/// Returns the program as on a node whose disk is mounted at `disk`: there the disk is below `/var/lib`.
fn on_node(disk: &Path, words: &[&str]) -> Command {
    const SCRIPT: &str = "mount -t tmpfs none /var/lib && cd /var/lib && mkdir -p containers layersweep \
        && mount --bind \"$1/var/lib/containers\" containers \
        && mount --bind \"$1/var/lib/layersweep\" layersweep && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    program::hermetic(&mut command);
    command.env_remove("LAYERSWEEP_STATE_DIR");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]).arg(disk);
    command.arg(env!("CARGO_BIN_EXE_layersweep")).args(words);
    command.args(["--format", "json", "--graphroot", "/var/lib/containers/storage"]);
    command
}

#[test]
fn records_of_dead_node_are_only_read() {
    if !tools() || !support::require_program("unshare") {
        return;
    }
    let disk = LoopFs::with(Fs::Ext4, 64 * MIB, &[], &["strictatime"]);
    let lib = disk.path().join("var/lib");
    std::fs::create_dir_all(lib.join("layersweep")).unwrap();
    let store = small::still(&lib.join("containers/storage"));
    age(&disk, &store, made(), "b");
    fn scan(disk: &LoopFs, words: &[&str]) -> Value {
        node::document(program::run(&mut on_node(disk.path(), words)).expect_code(0))
    }
    let first = scan(&disk, &["scan"]);
    assert_eq!(of(&first, "a")["first_detected_from"], "records");
    // A use that only the records contain.
    store.podman(["rm", "web"]);
    store.unmount();
    let living = scan(&disk, &["scan"]);
    program::run(&mut on_node(disk.path(), &["pin", "add", "localhost/small/other"])).expect_code(0);
    disk.remount();

    // The records are read before access times are compared.
    let (bytes, listing) = (node::bytes(&lib.join("layersweep")), tree::listing(disk.path()));
    for words in [
        &["scan"][..],
        &["images"],
        &["usage"],
        &["explain", "localhost/small/a:1"],
        &["history", "--all"],
        &["pin", "list"],
    ] {
        for explicit in [false, true] {
            let mut command = program::command();
            command.env_remove("LAYERSWEEP_STATE_DIR").args(words).args(["--format", "json"]);
            command.arg("--sysroot").arg(disk.path()).args(["--graphroot", "/var/lib/containers/storage"]);
            if explicit {
                command.args(["--state-dir", "/var/lib/layersweep"]);
            }
            let document = node::document(program::run(&mut command).expect_code(0));
            match words[0] {
                "scan" | "images" => {
                    for name in ["base", "a", "a2", "b", "other"] {
                        let (image, known) = (of(&document, name), of(&living, name));
                        assert_eq!(image["first_detected_from"], "records", "{name}");
                        for field in ["first_detected", "last_used", "use_count", "lives"] {
                            assert_eq!(image[field], known[field], "{name}: {field}");
                        }
                        assert_eq!(image["pinned"], name == "other", "{name}");
                    }
                    assert_eq!(number(of(&document, "a"), "/use_count"), 1);
                }
                "explain" => assert_eq!(document["records"]["first_detected_from"], "records"),
                "history" => assert_eq!(list(&document, "/runs").len(), 2),
                "pin" => assert_eq!(list(&document, "/pins").len(), 1),
                _ => {}
            }
        }
    }
    let changed = tree::differences(&listing, &tree::listing(disk.path()));
    assert!(changed.is_empty(), "{changed:#?}");
    assert!(node::bytes(&lib.join("layersweep")) == bytes);
}
