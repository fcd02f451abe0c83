//! `history export` and `replay`: the past of a real node, and traces in files.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::process::Command;

use serde_json::Value;

use crate::support;
use crate::support::archive::{ImageSpec, LayerSpec};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::node::Node;
use crate::support::program::{self, Run, list, number, text, texts};
use crate::support::traces::{self, TraceShape};
use crate::support::{schema, slot, store};

/// Images of 6 MiB each on a common base; the last one is in use.
const IMAGES: usize = 7;

fn node_on(loopfs: &LoopFs) -> Node {
    let layer =
        |name: String, bytes: u64| LayerSpec { files: vec![bytes], younger: slot(), ..LayerSpec::new(&name) };
    let images: Vec<_> = (0..IMAGES)
        .map(|number| ImageSpec {
            names: vec![format!("reg.local/replayed-{number}:1")],
            layers: vec![layer("replay-base".into(), 4 * MIB), layer(format!("replay-{number}"), 6 * MIB)],
            label: format!("replayed-{number}"),
        })
        .collect();
    let store = store::Store::of(&loopfs.path().join("graphroot"), "overlay", &images);
    let used = format!("reg.local/replayed-{}:1", IMAGES - 1);
    store.podman(["create", "--name", "app", "--network", "none", &used, "/x"]);
    store.unmount();
    let state = store.scratch().join("state");
    Node::of(store).with_state(&state)
}

#[test]
fn replay_deletes_what_the_run_deleted() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 90 * MIB);
    let node = node_on(&loopfs);
    node.scan();
    // The first run of the replay is a second after the scan, and before the real one.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let flags = ["--high", "40", "--low", "30", "--min-age", "0s"];
    let run = node.run(&[&["gc", "-y", "--via", "direct", "--format", "json"][..], &flags].concat());
    let run: Value = serde_json::from_str(&run.expect_no_crash().stdout).unwrap();
    let deleted: Vec<_> =
        list(&run, "/deleted").iter().map(|deletion| text(deletion, "/id").to_owned()).collect();
    assert!(!deleted.is_empty() && deleted.len() < IMAGES, "{run:#}");

    let trace = node.run(&["history", "export"]).expect_code(0).stdout;
    for line in trace.lines() {
        schema::assert_fits("trace", &serde_json::from_str(line).unwrap());
    }
    let by_layersweep = trace.lines().filter(|line| line.contains(r#""by":"layersweep""#)).count();
    assert_eq!(by_layersweep, deleted.len(), "{trace}");

    // Runs each second: the first one sees what the run saw.
    let replayed = node.json(&[&["replay", "--every", "1s"][..], &flags].concat());
    let ids: Vec<_> = list(&replayed, "/deleted").iter().map(|deletion| text(deletion, "/id")).collect();
    assert_eq!(ids, deleted.iter().map(|id| format!("0/{id}")).collect::<Vec<_>>(), "{replayed:#}\n{trace}");
    let rows: Vec<_> = list(&replayed, "/rows")
        .iter()
        .map(|row| (text(row, "/policy"), number(row, "/deletions")))
        .collect();
    assert_eq!(&rows[..2], [("exact", deleted.len() as u64), ("recorded", deleted.len() as u64)]);

    let hashed = node.run(&["history", "export", "--hash-names"]).expect_code(0).stdout;
    assert!(!hashed.contains("replayed-") && !hashed.contains(&deleted[0]), "{hashed}");
    assert_eq!(hashed.lines().count(), trace.lines().count());

    let suggested = node.run(&["doctor", "--suggest"]).expect_code(0).stdout;
    assert!(suggested.contains("14 days are needed") && !suggested.contains("[images]"), "{suggested}");
    let document = node.json(&["doctor", "--suggest"]);
    schema::assert_fits("doctor-suggest", &document);
    assert_eq!(list(&document, "/suggestions").len(), 0);
}

fn replay(words: &[&str]) -> Run {
    program::layersweep([&["replay"], words].concat())
}

#[test]
fn fleet_is_replayed_once_for_each_value() {
    let dir = tempfile::tempdir().unwrap();
    let mut text_of_many = String::new();
    for seed in 0..3 {
        let (header, events) = traces::generated(TraceShape { days: 10, images: 40, sigma: 1.0, seed });
        text_of_many += &traces::lines(&header, &events);
    }
    let many = dir.path().join("many.ndjson");
    let broken = dir.path().join("broken.ndjson");
    std::fs::write(&many, &text_of_many).unwrap();
    std::fs::write(&broken, "{\"kind\":\"scan\"}\n").unwrap();
    let many = many.to_str().unwrap();
    let vary = ["--vary", "max-age=1d,3d,off", "--high", "90", "--format", "json"];
    let document = replay(&[&[many][..], &vary].concat()).expect_code(0).json();
    schema::assert_fits("replay", &document);
    assert_eq!((number(&document, "/traces"), number(&document, "/generated")), (3, 3));
    let again: Vec<_> =
        list(&document, "/rows").iter().map(|row| number(row, "/pulled_again_bytes")).collect();
    assert!(again.len() == 3 && again[0] > again[1] && again[1] > again[2], "{again:?}");
    let values: Vec<_> = list(&document, "/rows").iter().map(|row| text(row, "/value")).collect();
    assert_eq!(values, ["1d", "3d", "off"]);

    let page = dir.path().join("page.html");
    let html = ["--html", page.to_str().unwrap()];
    let run = replay(&[&[many][..], &vary[..4], &html].concat()).expect_code(0);
    assert!(run.stdout.is_empty(), "{run:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert_eq!(page.matches("<polyline").count(), 3, "bytes again, peak and mean");
    assert_eq!(page.matches("<circle").count(), 3 * 3);
    let (_, json) = page.split_once("id=\"report\">\n").unwrap();
    let embedded: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(embedded["rows"], document["rows"]);
    replay(&[many, "--html", many]).expect_code(2);

    let both = replay(&[many, broken.to_str().unwrap()]).expect_code(3);
    assert!(both.stdout.contains("3 generated, of no real node"), "{both:?}");
    assert!(both.stderr.contains("broken.ndjson: it does not begin with"), "{both:?}");
    let none = replay(&[broken.to_str().unwrap()]).expect_code(1);
    assert!(none.stderr.contains("hint: name files that `layersweep history export` wrote"), "{none:?}");
    for wrong in ["max-age", "colour=1", "max-age=soon", "low=99"] {
        replay(&[many, "--vary", wrong]).expect_code(2);
    }
    assert!(texts(&document, "/unread").is_empty());
}

/// The query of `docs/replay.md` on one result for each node, and one replay of all nodes, must agree.
#[test]
fn sums_of_single_nodes_are_those_of_sql() {
    if !support::require_program("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--vary", "max-age=1d,7d", "--format", "json"];
    let (mut files, mut results) = (Vec::new(), String::new());
    for seed in 0..3 {
        let (header, events) = traces::generated(TraceShape { days: 10, images: 40, sigma: 1.0, seed });
        let file = dir.path().join(format!("{seed}.trace"));
        std::fs::write(&file, traces::lines(&header, &events)).unwrap();
        files.push(file.to_str().unwrap().to_owned());
        let one = replay(&[&[files[seed as usize].as_str()][..], &flags].concat()).expect_code(0).json();
        results += &format!("{one}\n");
    }
    std::fs::write(dir.path().join("results.ndjson"), results).unwrap();
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    let all = replay(&[&files[..], &flags].concat()).expect_code(0).json();
    let rig = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rigs/fleet-sql.sh");
    let answer = store::succeed(Command::new(rig).arg("replay.md").arg(dir.path()));
    let answer: Value = serde_json::from_str(answer.trim()).unwrap();
    for (of_sql, row) in answer.as_array().unwrap().iter().zip(list(&all, "/rows")) {
        assert_eq!(text(of_sql, "/max_age"), text(row, "/value"));
        assert_eq!(number(of_sql, "/nodes"), 3);
        assert_eq!(number(of_sql, "/deletions"), number(row, "/deletions"));
        assert_eq!(number(of_sql, "/bytes_again"), number(row, "/pulled_again_bytes"));
        assert_eq!(of_sql["peak"], row["peak_percent"]);
    }
}
