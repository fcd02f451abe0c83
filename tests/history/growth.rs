//! `usage --since`: the growth of a recorded week, compared with the documents of `scan`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::Node;
use support::program::{list, number, text};
use support::{small, store};

fn bytes(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {pointer} in {value:#}"))
}

/// Creates a container as CRI-O does, with its metadata and name; a sandbox has the name `POD`. Returns its id.
fn container(node: &Node, namespace: &str, pod: &str, name: &str, attempt: u32, sandbox: &str) -> String {
    let image = small::name(if namespace == "shop" { "a" } else { "other" });
    let full = format!("k8s_{name}_{pod}_{namespace}_uid_{attempt}");
    let mut metadata = json!({
        "pod-name": format!("k8s_{pod}_{namespace}_uid_0"), "pod-id": sandbox, "image-name": image, "name": full,
        "metadata-name": name, "uid": "uid", "created-at": 1, "pod": name == "POD", "attempt": attempt,
    });
    if name == "POD" {
        metadata["namespace"] = namespace.into();
    }
    let words = ["create-container", "--metadata", &metadata.to_string(), "--name", &full, &image];
    node.store.storage(words).split_whitespace().next().unwrap().to_owned()
}

/// Writes a file of `mebibytes` MiB to the writable layer of a container.
fn write(node: &Node, container: &str, file: &str, mebibytes: u64) {
    let records = std::fs::read(node.store.record("containers.json")).unwrap();
    let records: Value = serde_json::from_slice(&records).unwrap();
    let found = records.as_array().unwrap().iter().find(|record| text(record, "/id") == container);
    let layer = node.store.root().join("overlay").join(text(found.unwrap(), "/layer")).join("diff");
    std::fs::write(layer.join(file), vec![7; usize::try_from(mebibytes * MIB).unwrap()]).unwrap();
}

fn shift(state: &Path, days: i64) {
    let database = rusqlite::Connection::open(state.join("layersweep.db")).unwrap();
    database.execute("UPDATE kept_scans SET at = at - ?1", [days * 86_400_000_000]).unwrap();
}

/// Returns the bytes of each row according to two documents of `scan`, before and after, without those of `rest`.
fn expected(before: &Value, after: &Value) -> BTreeMap<String, [i64; 2]> {
    let mut rows: BTreeMap<String, [i64; 2]> = BTreeMap::new();
    for (position, scan) in [before, after].into_iter().enumerate() {
        let mut add = |row: String, bytes: i64| rows.entry(row).or_default()[position] += bytes;
        for (kind, share) in [("leaks", "leaks"), ("metadata", "metadata"), ("store_other", "other")] {
            add(kind.to_owned(), bytes(scan, &format!("/stores/0/bytes/{share}")));
        }
        add(
            "not_in_store".to_owned(),
            bytes(scan, "/filesystems/0/used_bytes") - bytes(scan, "/stores/0/bytes/total"),
        );
        for container in list(scan, "/containers") {
            let parts: Vec<_> = text(container, "/name").split('_').collect();
            let name = match parts.as_slice() {
                ["k8s", "POD", pod, ..] => format!("{pod} (sandbox)"),
                ["k8s", name, pod, ..] => format!("{pod}/{name}"),
                _ => text(container, "/name").to_owned(),
            };
            add(format!("container {name}"), bytes(container, "/bytes"));
        }
        for layer in list(scan, "/layers").iter().filter(|layer| !list(layer, "/images").is_empty()) {
            // A layer of both scans counts for its present image.
            let present = list(after, "/layers").iter().find(|other| other["id"] == layer["id"]);
            let image = text(present.unwrap_or(layer), "/images/0");
            let images = list(after, "/images").iter().chain(list(before, "/images"));
            let image = images.into_iter().find(|known| text(known, "/id") == image).unwrap();
            let name = list(image, "/names").first().map_or("", |name| name.as_str().unwrap());
            add(format!("images {}", name.trim_end_matches(":1")), bytes(layer, "/bytes"));
        }
    }
    rows.retain(|_, bytes| *bytes != [0, 0]);
    rows
}

fn found(growth: &Value) -> BTreeMap<String, [i64; 2]> {
    let rows = list(growth, "/filesystems/0/rows").iter().filter(|row| row["kind"] != "rest");
    let name = |row: &Value| match row["name"].as_str() {
        Some(name) => format!("{} {name}", text(row, "/kind")),
        None => text(row, "/kind").to_owned(),
    };
    rows.map(|row| (name(row), [bytes(row, "/before_bytes"), bytes(row, "/after_bytes")])).collect()
}

fn assert_adds_up(growth: &Value) {
    let filesystem = &growth["filesystems"][0];
    for field in ["before_bytes", "after_bytes", "change_bytes"] {
        let sum: i64 = list(filesystem, "/rows").iter().map(|row| bytes(row, &format!("/{field}"))).sum();
        assert_eq!(sum, bytes(filesystem, &format!("/used/{field}")), "{field}: {growth:#}");
    }
    let changes: Vec<_> = list(filesystem, "/rows")
        .iter()
        .filter(|row| row["kind"] != "rest")
        .map(|row| bytes(row, "/change_bytes"))
        .collect();
    assert!(changes.is_sorted_by(|a, b| a >= b), "the largest growth first: {growth:#}");
}

#[test]
fn growth_of_a_week_equals_scans() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 400 * MIB);
    let node = Node::of(small::still(&disk.path().join("storage")));
    let run = node.run(&["usage", "--since", "7d"]).expect_code(1);
    assert!(
        run.stdout.is_empty() && run.stderr.contains("no scan is kept") && run.stderr.contains("hint: "),
        "{run:?}"
    );

    let pod = container(&node, "shop", "web-0", "POD", 0, "web-0");
    let writer = container(&node, "shop", "web-0", "writer", 0, &pod);
    let batch = container(&node, "batch", "job-1", "POD", 0, "job-1");
    let job = container(&node, "batch", "job-1", "job", 0, &batch);
    write(&node, &job, "result", 2);
    let first = node.scan();
    shift(&node.state, 4);

    // The job ends and its image is deleted, an image is pulled on a base that is there, the writer writes.
    node.store.storage(["delete-container", &job]);
    node.store.storage(["delete-container", &batch]);
    node.store.podman(["rmi", &small::name("other")]);
    node.store.load(&small::deep());
    write(&node, &writer, "log", 8);
    let second = node.scan();
    shift(&node.state, 2);

    // The image comes back with another job, and the writer was restarted.
    node.store.load(&[small::image("other")]);
    let job = container(&node, "batch", "job-2", "job", 0, "");
    write(&node, &job, "result", 1);
    node.store.storage(["delete-container", &writer]);
    let writer = container(&node, "shop", "web-0", "writer", 1, &pod);
    write(&node, &writer, "log", 20);
    let third = node.scan();
    shift(&node.state, 1);
    write(&node, &writer, "log-2", 5);
    std::fs::write(disk.path().join("core"), vec![1; 3 << 20]).unwrap();

    rustix::fs::syncfs(std::fs::File::open(disk.path()).unwrap()).unwrap();
    let now = node.json(&["scan", "--no-record"]);
    for (days, scan) in [(7, &first), (3, &second), (1, &third)] {
        let growth = node.json(&["usage", "--since", &format!("{days}d")]);
        assert_adds_up(&growth);
        assert_eq!(growth["begins_later"], false, "{growth:#}");
        assert_eq!(bytes(&growth, "/seconds") / 86_400, days);
        for (moment, scan) in [("before", scan), ("after", &now)] {
            assert_eq!(
                bytes(&growth, &format!("/filesystems/0/used/{moment}_bytes")),
                bytes(scan, "/filesystems/0/used_bytes"),
                "{moment}: {growth:#}"
            );
        }
        let used = bytes(&growth, "/filesystems/0/used/change_bytes");
        let per_day = bytes(&growth, "/filesystems/0/bytes_per_day");
        assert!((per_day - used / days).abs() <= used.abs() / 1000 + 1, "{per_day} {used}");
        assert_eq!(found(&growth), expected(scan, &now), "{days} days");
        for by in ["namespace", "owner", "repository", "registry"] {
            assert_adds_up(&node.json(&["usage", "--since", &format!("{days}d"), "--by", by]));
        }
    }
    // Nothing is as old: the oldest scan is compared, and the screen says so.
    let earlier = node.json(&["usage", "--since", "30d"]);
    assert_eq!((&earlier["begins_later"], bytes(&earlier, "/seconds") / 86_400), (&json!(true), 7));
    let shown = node.run(&["usage", "--since", "30d"]).expect_code(0).stdout;
    assert!(shown.starts_with("The kept scans begin at 20"), "{shown}");

    // The first row is the answer.
    let shown = node.run(&["usage", "--since", "7d"]).expect_code(0).stdout;
    let row = shown.lines().nth(3).unwrap();
    assert!(row.starts_with("container web-0/writer "), "{shown}");
    assert!(row.contains(" shop ") && row.ends_with(&small::name("a")), "{shown}");
    assert!(row.contains("+25.0 MiB") && row.contains("+3.6 MiB"), "{shown}");
    assert!(shown.contains("web-0/writer writes to its own layer"), "{shown}");
    let shown = node.run(&["usage", "--since", "7d", "--by", "namespace"]).expect_code(0).stdout;
    assert!(shown.lines().nth(3).unwrap().starts_with("shop "), "{shown}");
    let growth = node.json(&["usage", "--since", "7d", "--by", "namespace"]);
    // The image of the job is as large as before: it is no growth that it came back.
    let batch = list(&growth, "/filesystems/0/rows").iter().find(|row| row["name"] == "batch").unwrap();
    assert!(bytes(batch, "/change_bytes") < -(MIB as i64) / 2, "{batch:#}");

    // The same rows in the report.
    let report = node.json(&["report"]);
    let changes = list(&report, "/changes");
    assert_eq!(changes.len(), 2, "{changes:#?}");
    let grown = list(&changes[1], "/objects").first().unwrap();
    assert_eq!(text(grown, "/name"), "container web-0/writer of namespace shop", "{changes:#?}");
    assert!(number(grown, "/change_bytes") >= 5 * MIB, "{changes:#?}");
}
