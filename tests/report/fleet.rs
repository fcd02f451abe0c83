//! `report --merge`: the documents of many nodes become one.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support;
use support::program::{self, Run, list, number, text};
use support::store::{self, succeed};
use support::{report_document, schema, small};

/// Makes documents of `nodes` nodes in a directory and returns their paths. `tests/rigs/fleet.py` describes them.
fn documents(directory: &Path, nodes: u32) -> Vec<PathBuf> {
    let sample = directory.join("sample");
    std::fs::write(&sample, report_document::one().to_string()).unwrap();
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rigs/fleet.py");
    succeed(Command::new("python3").arg(rig).arg(&sample).arg(directory).arg(nodes.to_string()));
    std::fs::remove_file(sample).unwrap();
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    paths
}

fn merge(files: &[impl AsRef<Path>], words: &[&str]) -> Run {
    let mut command = program::command();
    command.args(["report"]).args(words).arg("--merge").args(files.iter().map(AsRef::as_ref));
    program::run(&mut command).expect_no_crash()
}

/// Returns the merged document without its time.
fn merged(files: &[impl AsRef<Path>], code: i32) -> Value {
    let mut document = merge(files, &["--format", "json"]).expect_code(code).json();
    schema::assert_fits("report-merge", &document);
    document["generated_at"] = Value::Null;
    document
}

#[test]
fn real_documents_of_a_node_are_merged() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(dir.path());
    let files = ["scan", "report"].map(|command| {
        let file = dir.path().join(command);
        std::fs::write(&file, store.json(command).to_string()).unwrap();
        file
    });
    let scan = store.json("scan");
    // In a pod the host name is that of the pod.
    for command in ["scan", "report"] {
        let mut named = program::command();
        named.env("LAYERSWEEP_NODE_NAME", "node-7.example.org").args([command, "--format", "json"]);
        named.arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        let document = program::run(&mut named).expect_code(0).json();
        let name = if command == "scan" { "/node" } else { "/host" };
        assert_eq!(text(&document, name), "node-7.example.org");
    }
    let document = merged(&files, 0);
    // The report is the newer document of the same node.
    assert_eq!((number(&document, "/nodes/count"), number(&document, "/documents_older")), (1, 1));
    assert_eq!(text(&document, "/urgent/0/node"), text(&scan, "/node"));
    for field in ["images", "images_unused", "containers", "leaks", "reclaimable_bytes"] {
        let path = format!("/totals/{field}");
        assert_eq!(number(&document, &path), number(&scan, &path), "{field}");
    }
    assert_eq!(list(&document, "/images").len(), list(&scan, "/images").len());
}

#[test]
fn order_and_form_of_files_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let files = documents(dir.path(), 60);
    let first = merged(&files, 3);
    assert_eq!((number(&first, "/nodes/count"), number(&first, "/documents")), (60, 62));
    assert_eq!((number(&first, "/documents_older"), number(&first, "/nodes_with_older")), (2, 2));
    assert_eq!(number(&first, "/nodes/incomplete"), 2, "two nodes could not be read completely");
    let reversed: Vec<_> = files.iter().rev().collect();
    assert_eq!(merged(&reversed, 3), first);
    // All documents in one file, some of them on many lines, through a pipe.
    let mut all = Vec::new();
    for (place, file) in files.iter().enumerate() {
        let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        match place % 2 {
            0 => writeln!(all, "{document}").unwrap(),
            _ => writeln!(all, "{document:#}").unwrap(),
        }
    }
    let mut command = program::command();
    command.args(["report", "--format", "json", "--merge", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&all).unwrap();
    let output = child.wait_with_output().unwrap();
    let mut piped: Value = serde_json::from_slice(&output.stdout).unwrap();
    piped["generated_at"] = Value::Null;
    assert_eq!(piped, first);
}

#[test]
fn unusable_document_is_named_and_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = documents(dir.path(), 4);
    files.remove(0);
    let expected = merged(&files, 0);
    let mut put = |name: &str, content: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, content).unwrap();
        files.push(file);
    };
    put("broken", "{\"schema_version\":1,\"kind\":\"scan\"");
    put("other", "\n{\"schema_version\":1,\"kind\":\"diff\"}\n{\"schema_version\":7,\"kind\":\"scan\"}\n");
    put("binary", "\u{1b}[2J\0\0");
    let packed = dir.path().join("packed.gz");
    std::fs::write(&packed, [0x1f, 0x8b, 8, 0, b'\n', b'{', 0xff]).unwrap();
    files.extend([packed, dir.path().join("none"), dir.path().to_path_buf()]);
    let run = merge(&files, &[]).expect_code(3);
    for line in [
        "broken: it is not a JSON document: EOF",
        "other:2: it is a document of kind \"diff\"",
        "other:3: its schema_version is 7, and only 1 is known",
        "binary: it is not a JSON document",
        "packed.gz: it is compressed: `zcat ",
        "it is a directory: name its files, ",
        "none: No such file or directory",
    ] {
        assert!(run.stderr.contains(line), "{line}: {run:?}");
    }
    assert_eq!(run.stderr.lines().count(), 7, "{run:?}");
    assert!(run.stdout.contains("7 documents could not be read: the sums are lower bounds."), "{run:?}");
    let document = merged(&files, 3);
    assert_eq!((number(&document, "/documents"), number(&document, "/documents_unread")), (10, 7));
    assert_eq!(list(&document, "/unread").len(), 7);
    for field in ["nodes", "totals", "forecasts", "urgent", "images", "leaks"] {
        assert_eq!(document[field], expected[field], "{field}");
    }
    // Without any document there is nothing to show.
    let run = merge(&files[files.len() - 6..], &[]).expect_code(1);
    assert!(run.stderr.contains("no document of a node could be read"), "{run:?}");
}

#[test]
fn page_replaces_no_document() {
    let dir = tempfile::tempdir().unwrap();
    let files = documents(dir.path(), 2);
    let before = std::fs::read(&files[0]).unwrap();
    let other_path = dir.path().join(".").join(files[0].file_name().unwrap());
    let run = merge(&files, &["--html", other_path.to_str().unwrap()]).expect_code(2);
    assert!(run.stderr.contains("node-0.json: is one of the files to read"), "{run:?}");
    assert_eq!(std::fs::read(&files[0]).unwrap(), before);
}

#[test]
fn foreign_names_do_not_control_screen_or_page() {
    const HOSTILE: &str = "\u{1b}[31m</script><img src=x onerror=alert(1)>\u{202e}";
    let dir = tempfile::tempdir().unwrap();
    let files = documents(dir.path(), 2);
    let mut document: Value = serde_json::from_slice(&std::fs::read(&files[1]).unwrap()).unwrap();
    document["host"] = HOSTILE.into();
    document["scan"]["images"][0]["names"] = Value::from(vec![HOSTILE]);
    document["scan"]["images"][0]["frees_bytes"] = (1_u64 << 40).into();
    document["scan"]["images"][0]["in_use"] = false.into();
    document["scan"]["images"][0]["pinned"] = false.into();
    std::fs::write(&files[1], document.to_string()).unwrap();
    let broken = dir.path().join("\u{1b}[31m");
    std::fs::write(&broken, "x").unwrap();
    let files = [&files[0], &files[1], &broken];
    let run = merge(&files, &[]).expect_code(3);
    for screen in [&run.stdout, &run.stderr] {
        assert!(!screen.contains(['\u{1b}', '\u{202e}']), "{screen}");
        assert!(screen.contains("\\u{1b}[31m"), "{screen}");
    }
    let page = dir.path().join("page.html");
    merge(&files, &["--html", page.to_str().unwrap()]).expect_code(3);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.contains(['\u{1b}', '\u{202e}']) && !page.contains("<img"), "{page}");
    assert!(page.contains("&lt;img src=x"));
    let document = report_document::in_page(&page);
    schema::assert_fits("report-merge", &document);
    assert!(list(&document, "/urgent").iter().any(|node| text(node, "/node") == HOSTILE));
}

/// The queries of `docs/fleet.md` and the command must agree on every sum.
#[test]
fn sums_are_those_of_sql() {
    if !support::require_program("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let files = documents(dir.path(), 300);
    let document = merged(&files, 3);
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rigs/fleet-sql.sh");
    let answers = succeed(Command::new(rig).arg("fleet.md").arg(dir.path()));
    let mut answers = answers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let totals = answers.next().unwrap();
    for (column, path) in [
        ("nodes", "/nodes/count"),
        ("store_bytes", "/totals/store_bytes"),
        ("reclaimable_bytes", "/totals/reclaimable_bytes"),
        ("incomplete", "/nodes/incomplete"),
    ] {
        assert_eq!(totals[0][column].as_u64().unwrap(), number(&document, path), "{column}");
    }
    assert_rows(&answers.next().unwrap(), &document["images"], 400);
    let on_nodes = answers.next().unwrap();
    let on_nodes = on_nodes.as_array().unwrap();
    let name = "registry.example.org/team-3/service-71:8";
    let images = list(&document, "/images").iter();
    let image =
        images.clone().find(|image| image["names"].as_array().unwrap().contains(&name.into())).unwrap();
    let nodes: BTreeSet<_> = on_nodes.iter().map(|row| row["node"].as_str().unwrap()).collect();
    assert_eq!(nodes.len() as u64, number(image, "/nodes_unused"));
    let frees: u64 = on_nodes.iter().map(|row| row["frees_bytes"].as_u64().unwrap()).sum();
    assert_eq!(frees, number(image, "/unused_frees_bytes"));
    let disks = answers.next().unwrap();
    assert_eq!(disks.as_array().unwrap().len(), 300, "each node has one disk");
    for node in list(&document, "/urgent") {
        let disk = disks.as_array().unwrap().iter().find(|disk| disk["node"] == node["node"]).unwrap();
        assert_eq!(disk["used_percent"], node["used_percent"], "{node}");
        let full_at = node["full_at"].as_str().map(|time| time.parse::<jiff::Timestamp>().unwrap());
        let full_in = full_at.map(|time| time.duration_since(jiff::Timestamp::now()).as_secs().max(0));
        let of_sql = disk["full_in_seconds"].as_i64();
        let is_same = full_in.zip(of_sql).map_or(full_in == of_sql, |(a, b)| a.abs_diff(b) < 600);
        assert!(is_same, "{node} {disk}");
    }
    // Both count from now, a few seconds apart.
    let forecasts = answers.next().unwrap();
    assert_eq!(forecasts.as_array().unwrap().len(), 4);
    for (row, object) in forecasts.as_array().unwrap().iter().zip(list(&document, "/forecasts")) {
        assert_eq!(row["within_seconds"], object["within_seconds"]);
        assert!(number(row, "/nodes").abs_diff(number(object, "/nodes")) <= 1, "{row} {object}");
    }
    assert_rows(&answers.next().unwrap(), &document["leaks"], 3);
}

/// Fails unless both lists have this length, and each row of the answer has the values of the document.
fn assert_rows(answer: &Value, listed: &Value, length: usize) {
    let (answer, listed) = (answer.as_array().unwrap(), listed.as_array().unwrap());
    assert_eq!((answer.len(), listed.len()), (length, length));
    for (row, object) in answer.iter().zip(listed) {
        for (column, value) in row.as_object().unwrap().iter().filter(|(column, _)| *column != "name") {
            assert_eq!(*value, object[column], "{column}: {row} {object}");
        }
    }
}
