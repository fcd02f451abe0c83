//! Deletions that killed runs had begun, by the entries of the journal.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::Path;
use std::process::Command;

use layersweep::editor::{BegunDeletion, IsKept, Options, Refusal};
use serde_json::Value;

use super::edit_crash::kill_after;
use crate::support;
use support::node::{self, Node};
use support::program::{self, list, text, texts};
use support::store::{self, Store};
use support::{edit, small};

const KEEPS_NONE: IsKept<'static> = &|_, _, _| false;

/// Makes a store in which the deletion of `other` was killed after its record was deleted. Returns the journal's entry
/// too.
fn killed(root: &Path) -> (Store, BegunDeletion) {
    let store = small::still(root);
    store.unmount();
    let images = store.images();
    let other = images.iter().find(|image| texts(image, "/names").contains(&small::name("other"))).unwrap();
    let begun = edit::begun(&store, other);
    kill_after(&store, &begun.image, "record file replaced");
    assert!(store.root().join("overlay").join(begun.layers[0].id.as_str()).exists());
    (store, begun)
}

#[test]
fn layers_of_a_begun_deletion_are_deleted() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, begun) = killed(&dir.path().join("root"));
    let editor = edit::with(&store, Options::default());
    // Without the entry, a pull may be making the layer.
    assert!(editor.resume(&[], KEEPS_NONE).unwrap().layers.is_empty());
    let done = editor.resume(std::slice::from_ref(&begun), KEEPS_NONE).unwrap();
    assert_eq!(done.layers, [begun.layers[0].id.as_str()]);
    edit::whole(&store);
    // A second call has nothing to do.
    assert!(!editor.resume(&[begun], KEEPS_NONE).unwrap().has_changed);
}

/// A layer that was pulled again while the clock was set back.
#[test]
fn recreated_layer_is_kept_whatever_the_clock_says() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, begun) = killed(&dir.path().join("root"));
    let path = store.record("layers.json");
    let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let layer = begun.layers[0].id.as_str();
    let record = records.iter_mut().find(|record| record["id"] == layer).unwrap();
    record["created"] = "2020-01-01T00:00:00Z".into();
    std::fs::write(&path, serde_json::to_vec(&records).unwrap()).unwrap();
    let editor = edit::with(&store, Options::default());
    assert!(editor.resume(std::slice::from_ref(&begun), KEEPS_NONE).unwrap().layers.is_empty());
    assert!(store.root().join("overlay").join(layer).exists());
}

/// A mounted layer is deleted after it is unmounted.
#[test]
fn mounted_layer_is_deleted_later() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, begun) = killed(&dir.path().join("root"));
    let layer = store.root().join("overlay").join(begun.layers[0].id.as_str());
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mount = support::loopfs::BindMount::new(&layer.join("diff"), &elsewhere);
    let editor = edit::with(&store, Options::default());
    let error = editor.resume(std::slice::from_ref(&begun), KEEPS_NONE).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Mounted { .. })), "{error}");
    assert!(layer.exists());
    drop(mount);
    editor.resume(&[begun], KEEPS_NONE).unwrap();
    assert!(!layer.exists());
    edit::whole(&store);
}

/// Killed between the image's record and its layers: a scan in between does not hide that from the next run, which
/// finishes the deletion.
#[test]
fn killed_run_is_finished_by_the_next() {
    if !store::require_tools() || !support::require_program("strace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::store(&dir.path().join("root")));
    node.store.unmount();
    let mut command = Command::new("strace");
    program::hermetic(&mut command);
    // The first rename there moves a layer's directory.
    let overlay = node.store.root().join("overlay");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-P"]).arg(overlay);
    command.args(["-e", "inject=renameat2:signal=KILL"]);
    command.arg(env!("CARGO_BIN_EXE_layersweep")).args(["rm", &small::name("other"), "--via", "direct"]);
    command.args(["-y", "--min-age", "0s", "--graphroot"]);
    command.arg(node.store.root()).arg("--runroot").arg(node.store.runroot());
    command.arg("--state-dir").arg(&node.state);
    assert!(!command.status().unwrap().success());
    fn begun(document: &Value) -> String {
        text(list(document, "/runs/0/deleted").last().unwrap(), "/outcome").to_owned()
    }
    assert_eq!(begun(&node.json(&["history"])), "unknown");
    let layers = || std::fs::read_dir(node.store.root().join("overlay")).unwrap().count();
    let before = layers();
    node.run(&["scan"]);
    assert_eq!(begun(&node.json(&["history"])), "deleted", "its layers are left");
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "98", "-y", "--format", "json"];
    let next = node::document(node.run(&words).expect_code(0));
    assert!(next["resumed"].as_u64().unwrap() > 0, "{next:#}");
    assert!(layers() < before);
    let history = node.json(&["history"]);
    let first = list(&history, "/runs").last().unwrap();
    assert_eq!(text(list(first, "/deleted").last().unwrap(), "/outcome"), "deleted", "{history:#}");
    edit::whole(&node.store);
}

/// Makes directories of layers without a record, which a sweep deletes together.
fn make_orphans(store: &Store, count: usize) -> Vec<String> {
    let ids = (0..count).map(|number| format!("{:064x}", 0xabc_0000 + number));
    let made = ids.inspect(|id| {
        let content = store.root().join("overlay").join(id).join("diff");
        std::fs::create_dir_all(&content).unwrap();
        std::fs::write(content.join("file"), [7; 9000]).unwrap();
    });
    made.collect()
}

const SWEEP: [&str; 5] = ["sweep", "--delete", "-y", "--min-age", "0s"];

/// A sweep moves many directories aside at once and deletes them afterwards. Killed in between, all are recorded, each
/// once: those that were moved are deleted by the next run.
#[test]
fn killed_sweep_records_each_deletion() {
    if !store::require_tools() || !support::require_program("strace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    node.store.unmount();
    let orphans = make_orphans(&node.store, 20);
    fn left(node: &Node, orphans: &[String]) -> usize {
        let overlay = node.store.root().join("overlay");
        orphans.iter().filter(|id| overlay.join(id).exists()).count()
    }
    fn deletions(node: &Node) -> Vec<(String, String)> {
        let history = node.json(&["history", "--kind", "leak"]);
        let runs = list(&history, "/runs").iter().flat_map(|run| list(run, "/deleted"));
        let rows = runs.map(|row| (text(row, "/outcome").to_owned(), text(row, "/id").to_owned()));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    }
    let mut command = Command::new("strace");
    program::hermetic(&mut command);
    let overlay = node.store.root().join("overlay");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=renameat2", "-P"]).arg(overlay);
    command.args(["-e", "inject=renameat2:signal=KILL:when=13"]);
    command.arg(env!("CARGO_BIN_EXE_layersweep")).args(SWEEP).arg("--graphroot").arg(node.store.root());
    command.arg("--runroot").arg(node.store.runroot()).arg("--state-dir").arg(&node.state);
    assert!(!command.status().unwrap().success());
    let gone = orphans.len() - left(&node, &orphans);
    assert!((12..=13).contains(&gone), "{gone}");
    node.run(&["scan"]);
    let recorded = deletions(&node);
    assert_eq!(recorded.len(), gone, "{recorded:?}");
    assert!(recorded.iter().all(|(outcome, _)| outcome == "deleted"), "{recorded:?}");
    node.run(&SWEEP).expect_code(0);
    assert_eq!(left(&node, &orphans), 0);
    let mut expected: Vec<_> = orphans.into_iter().map(|id| ("deleted".to_owned(), id)).collect();
    expected.sort();
    assert_eq!(deletions(&node), expected);
    edit::whole(&node.store);
}

/// Directories that a sweep announces and then keeps leave no record of a deletion.
#[test]
fn kept_orphans_leave_no_record() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    node.store.unmount();
    make_orphans(&node.store, 3);
    let lock = node.store.record("layers.lock");
    std::fs::rename(&lock, dir.path().join("lock")).unwrap();
    node.run(&SWEEP).expect_code(5);
    let history = || list(&node.json(&["history", "--kind", "leak"]), "/runs").to_vec();
    assert_eq!(history(), Vec::<Value>::new());
    std::fs::rename(dir.path().join("lock"), &lock).unwrap();
    node.run(&SWEEP).expect_code(0);
    assert_eq!(list(&history()[0], "/deleted").len(), 3);
}

/// While a person is asked, another run can delete; what it has deleted is no error after the answer.
#[test]
fn question_of_sweep_stops_no_other_run() {
    if !store::require_tools() || !support::require_program("script") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    node.store.unmount();
    make_orphans(&node.store, 3);
    let program = env!("CARGO_BIN_EXE_layersweep");
    let places = format!(
        "--graphroot {} --runroot {} --state-dir {}",
        node.store.root().display(),
        node.store.runroot().display(),
        node.state.display()
    );
    let screen = tempfile::NamedTempFile::new().unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    let question = format!("{program} sweep --delete --min-age 0s --no-progress --color never {places}");
    let log = other.path().display();
    let meanwhile = format!("{program} {} {places} >{log} 2>&1; echo code $? >>{log}", SWEEP.join(" "));
    let wait = r#"for _ in $(seq 100); do grep -qF '[y/N]' "$0" && break; sleep 0.1; done"#;
    let mut command = Command::new("sh");
    program::hermetic(&mut command);
    command.args(["-c", &format!("({wait}; {meanwhile}; echo y) | script -qefc \"$1\" \"$0\"")]);
    let asked = program::run(command.arg(screen.path()).arg(question)).expect_no_crash();
    let other = std::fs::read_to_string(other.path()).unwrap();
    assert!(asked.stdout.contains("Delete these 3 findings"), "{asked:?}");
    assert!(other.ends_with("code 0\n"), "{other}");
    assert_eq!(asked.code, 0, "{asked:?}");
    let history = node.json(&["history", "--kind", "leak"]);
    let rows: Vec<_> = list(&history, "/runs").iter().flat_map(|run| list(run, "/deleted")).collect();
    assert_eq!(rows.len(), 3, "{history:#}");
    edit::whole(&node.store);
}
