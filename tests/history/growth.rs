//! `usage --since`: the growth of a recorded week, compared with the documents of `scan`.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::Node;
use support::program::{self, list, number, text};
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

/// Returns the same rows, with the paths outside the stores in one.
fn found_in_sum(growth: &Value) -> BTreeMap<String, [i64; 2]> {
    let mut rows: BTreeMap<String, [i64; 2]> = BTreeMap::new();
    for (name, bytes) in found(growth) {
        let name = if name.starts_with("path ") { "not_in_store".to_owned() } else { name };
        let sum = rows.entry(name).or_default();
        *sum = [sum[0] + bytes[0], sum[1] + bytes[1]];
    }
    rows
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
    let run = node.run(&["usage", "--since", "2999-01-01"]).expect_code(2);
    assert!(run.stderr.trim_end().ends_with(": this time is in the future"), "{run:?}");
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
        assert_eq!(found_in_sum(&growth), expected(scan, &now), "{days} days");
        assert!(found(&growth).contains_key(&format!("path {}/core", disk.path().display())), "{growth:#}");
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

/// Writes `mebibytes` MiB to a file that need not exist, and the directories around it.
fn fill(path: &Path, mebibytes: u64) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, vec![7; usize::try_from(mebibytes * MIB).unwrap()]).unwrap();
}

/// A volume, a dump, a directory of many small files and an old store grow; a container takes the inodes.
#[test]
fn grown_places_have_names() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::with(Fs::Ext4, 300 * MIB, &["-N", "20000"], &[]);
    let node = Node::of(small::still(&disk.path().join("lib/containers/storage")));
    node.store.podman(["volume", "create", "pgdata"]);
    let many = container(&node, "shop", "web-0", "many", 0, "");
    node.store.unmount();
    let volume = node.store.root().join("volumes/pgdata/_data/wal");
    let [dumps, spool, old, media] = [
        "srv/backup/dumps",
        "lib/app/spool",
        "lib/containers/old",
        "lib/nerdctl/1935db59/volumes/shop/media",
    ]
    .map(|path| disk.path().join(path));
    fill(&volume, 2);
    fill(&dumps.join("monday"), 6);
    fill(&spool.join("first"), 2);
    fill(&media.join("_data/a/one"), 2);
    node.scan();
    shift(&node.state, 1);

    fill(&volume, 25);
    fill(&dumps.join("tuesday"), 30);
    fill(&media.join("_data/a/two"), 14);
    fill(&media.join("_data/b/three"), 4);
    for number in 0..24 {
        std::fs::write(spool.join(number.to_string()), vec![7; 512 << 10]).unwrap();
    }
    fill(&old.join("overlay/0a/diff/file"), 9);
    std::fs::create_dir_all(old.join("overlay-layers")).unwrap();
    let records = std::fs::read(node.store.record("containers.json")).unwrap();
    let records: Value = serde_json::from_slice(&records).unwrap();
    let record = list(&records, "").iter().find(|record| text(record, "/id") == many).unwrap();
    let layer = node.store.root().join("overlay").join(text(record, "/layer")).join("diff");
    for number in 0..4400 {
        std::fs::write(layer.join(number.to_string()), "").unwrap();
    }
    disk.sync();

    let growth = node.json(&["usage", "--since", "1d"]);
    assert_adds_up(&growth);
    let rows = found(&growth);
    let grown = |row: &str| rows.get(row).map_or(0, |[before, after]| after - before);
    let path = |path: &Path| format!("path {}", path.display());
    for (row, mebibytes) in [
        (path(&dumps.join("tuesday")), 30),
        ("volume pgdata".to_owned(), 23),
        (path(&spool), 12),
        (path(&old), 9),
        (path(&media), 18),
    ] {
        let change = grown(&row) as u64;
        assert!((mebibytes * MIB - 100_000..mebibytes * MIB + 400_000).contains(&change), "{row}: {rows:#?}");
    }
    let elsewhere = grown("not_in_store") + grown("store_other");
    assert!(elsewhere.abs() < 1 << 20, "{elsewhere}: {rows:#?}");
    let shown = node.run(&["usage", "--since", "1d"]).expect_code(0).stdout;
    let first = shown.lines().nth(3).unwrap();
    assert!(first.starts_with(&format!("{}/tuesday ", dumps.display())), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(&format!(" explain {}/tuesday` shows what is in it.", dumps.display())),
        "{shown}"
    );
    assert!(shown.contains("\nvolume pgdata "), "{shown}");
    assert!(shown.contains("\nvolume shop/media of nerdctl "), "{shown}");

    // The report: the same names; the container that took the inodes; the old store once, with what `du` says.
    let report = node.json(&["report"]);
    let objects = list(&report, "/changes/0/objects");
    let names: Vec<_> = objects.iter().map(|object| text(object, "/name")).collect();
    for name in [
        format!("{}/tuesday", dumps.display()),
        "volume pgdata".to_owned(),
        old.display().to_string(),
        "volume shop/media of nerdctl".to_owned(),
    ] {
        assert!(names.contains(&name.as_str()), "{name}: {names:?}");
    }
    let causes = list(&report, "/verdict/causes");
    let about_old: Vec<_> =
        causes.iter().filter(|cause| cause.to_string().contains(old.to_str().unwrap())).collect();
    assert_eq!(about_old.len(), 1, "{about_old:#?}");
    assert_eq!(number(about_old[0], "/bytes"), crate::support::tree::du(&old), "{about_old:#?}");
    let about_media: Vec<_> =
        causes.iter().filter(|cause| cause.to_string().contains("/shop/media")).collect();
    assert_eq!(about_media.len(), 1, "{about_media:#?}");
    assert_eq!(text(about_media[0], "/title"), "volume shop/media of nerdctl");
    assert_eq!(
        text(about_media[0], "/command/shows"),
        "nerdctl --namespace shop volume inspect --size media"
    );
    let users = node.json(&["usage"]);
    let rows = list(&users, "/filesystems/0/rows");
    let row = rows.iter().find(|row| row["path"] == media.to_str().unwrap()).unwrap();
    assert_eq!(text(row, "/label"), "volume shop/media of nerdctl");
    let most = list(&users, "/filesystems/0/inode_users").first().unwrap().clone();
    assert!(text(&most, "/label").contains("many_web-0") && number(&most, "/inodes") >= 4400, "{most:#}");

    // Metrics name the largest places by bytes and by inodes, as many as the configuration says.
    node.scan();
    let run = program::layersweep(["metrics", "--state-dir", node.state.to_str().unwrap()]);
    let run = run.expect_code(0).stdout;
    for label in
        [r#"kind="volume",namespace="",name="pgdata""#, r#"kind="container",namespace="",name="web-0/many""#]
    {
        assert!(
            run.lines().any(|line| line.starts_with("layersweep_place_inodes{") && line.contains(label)),
            "{run}"
        );
    }
    assert!(
        run.contains(&format!(r#"kind="path",namespace="",name="{}/tuesday""#, dumps.display())),
        "{run}"
    );

    // A kept scan stays small.
    let database = rusqlite::Connection::open(node.state.join("layersweep.db")).unwrap();
    let largest: i64 =
        database.query_row("SELECT max(length(summary)) FROM kept_scans", [], |row| row.get(0)).unwrap();
    assert!(largest < 16 << 10, "{largest}");
}
