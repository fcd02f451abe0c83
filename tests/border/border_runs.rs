//! Runs that end within two seconds after a signal, whatever they wait for, without backing off from images that did
//! not fail; the next run finishes what they began.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use jiff::{SignedDuration, Timestamp};
use layersweep::editor::Options;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rusqlite::Connection;
use serde_json::Value;
use support::loopfs::{Fs, LoopFs};
use support::node::Node;
use support::program::{self, list, text};
use support::{edit, small, store};

const RM: [&str; 6] = ["rm", "-y", "--via", "direct", "--min-age", "0s"];

/// Makes a node with a small store; dropping the directory deletes it.
fn node() -> Option<(tempfile::TempDir, Node)> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = node_in(dir.path());
    Some((dir, node))
}

fn node_in(dir: &Path) -> Node {
    let node = Node::of(small::still(&dir.join("root")));
    node.store.unmount();
    node
}

fn rm(names: &[&str]) -> Vec<String> {
    let names = names.iter().map(|name| small::name(name));
    RM.iter().map(|&word| word.to_owned()).chain(names).chain(["--format".into(), "json".into()]).collect()
}

/// Takes the store's lock of the layers as another program does.
fn hold_layers(node: &Node) -> File {
    let path = node.store.record("layers.lock");
    let file = File::options().read(true).write(true).open(path).unwrap();
    let whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)).unwrap();
    file
}

fn start(node: &Node, words: &[String]) -> Child {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut command = node.command(&words);
    program::consent(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait_for(what: &str, child: &mut Child, there: impl Fn() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended before {what}");
        assert!(began.elapsed() < Duration::from_secs(60), "{what} never comes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the document of a run that a signal ends in less than two seconds, or null if it printed none.
fn ended_by(signal: Signal, child: Child) -> Value {
    let signalled = Instant::now();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let took = signalled.elapsed();
    assert!(took < Duration::from_secs(2), "{signal}: {took:?}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn outcomes(node: &Node) -> Vec<(String, String, bool)> {
    let history = node.json(&["history"]);
    let runs = list(&history, "/runs").iter().flat_map(|run| list(run, "/deleted"));
    let outcomes = runs.map(|row| {
        (text(row, "/names/0").to_owned(), text(row, "/outcome").to_owned(), row["confirmed"] == true)
    });
    outcomes.collect()
}

/// Number of deletions that were begun.
fn begun(node: &Node) -> i64 {
    let Some((database, _copy)) = node.database() else { return 0 };
    database.query_row("SELECT count(*) FROM deletions", [], |row| row.get(0)).unwrap_or(0)
}

fn attempts(node: &Node) -> i64 {
    let (database, _copy) = node.database().unwrap();
    database.query_row("SELECT count(*) FROM attempts", [], |row| row.get(0)).unwrap()
}

/// Returns the layer of an image from its record.
fn layer_of(node: &Node, image_name: &str) -> String {
    let images: Value =
        serde_json::from_slice(&std::fs::read(node.store.record("images.json")).unwrap()).unwrap();
    let mut images = images.as_array().unwrap().iter();
    let image = images.find(|image| image["names"].to_string().contains(&small::name(image_name)));
    text(image.unwrap(), "/layer").to_owned()
}

fn layer_dir(node: &Node, image: &str) -> PathBuf {
    node.store.root().join("overlay").join(layer_of(node, image))
}

/// Edits a record file of the store.
fn edit_records(node: &Node, name: &str, change: impl Fn(&mut Vec<Value>)) {
    let path = node.store.record(name);
    let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut records);
    std::fs::write(&path, serde_json::to_vec(&records).unwrap()).unwrap();
}

/// Deletes the record of an image, and changes the creation time of its layer.
fn forget_image(node: &Node, image: &str, created: Option<Timestamp>) {
    let layer = layer_of(node, image);
    edit_records(node, "images.json", |images| images.retain(|image| image["layer"] != layer.as_str()));
    edit_records(node, "layers.json", |layers| {
        for record in layers.iter_mut().filter(|record| record["id"] == layer.as_str()) {
            if let Some(created) = created {
                record["created"] = created.to_string().into();
            }
        }
    });
}

/// Makes enough files that unlinking them takes a while.
fn stuff(directory: &Path) {
    for part in 0..20 {
        let part = directory.join(format!("part-{part}"));
        std::fs::create_dir(&part).unwrap();
        for number in 0..5000 {
            File::create(part.join(number.to_string())).unwrap();
        }
    }
}

fn aside(node: &Node) -> bool {
    let Ok(entries) = std::fs::read_dir(node.store.root().join("overlay/tempdirs")) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("temp-dir-"))
}

#[test]
fn wait_for_lock_ends() {
    let Some((_dir, node)) = node() else { return };
    let mut documents = 0;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let held = hold_layers(&node);
        let before = begun(&node);
        let mut child = start(&node, &rm(&["other"]));
        wait_for("the deletion", &mut child, || begun(&node) > before);
        std::thread::sleep(Duration::from_millis(300));
        // On a busy machine a run may end at its deadline of two seconds, without a document.
        let document = ended_by(signal, child);
        if !document.is_null() {
            assert_eq!(document["outcome"], "failed");
            assert_eq!(list(&document, "/errors")[0]["step"], "stop", "{document:#}");
            documents += 1;
        }
        drop(held);
        assert_eq!(outcomes(&node), [], "nothing was asked for");
        assert_eq!(attempts(&node), 0);
    }
    assert!(documents > 0);
    node.json(
        &rm(&["other"])
            .iter()
            .map(String::as_str)
            .filter(|w| !["--format", "json"].contains(w))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn stopped_unlinking_is_finished_by_next_run() {
    let Some((_dir, node)) = node() else { return };
    stuff(&layer_dir(&node, "other").join("diff"));
    // The signal arrives during the measurement.
    for words in [&["scan", "--full"][..], &["gc", "-y", "--via", "direct"]] {
        let mut child = start(&node, &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let pid = child.id();
        wait_for("the tree to be measured", &mut child, || is_in_the_tree(pid));
        let began = Instant::now();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGTERM).unwrap();
        child.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{words:?}: {:?}", began.elapsed());
    }
    let mut child = start(&node, &rm(&["other"]));
    wait_for("the directory to be set aside", &mut child, || aside(&node));
    let document = ended_by(Signal::SIGTERM, child);
    assert!(aside(&node), "it was interrupted: {document:#}");
    let [(name, outcome, _)] = &outcomes(&node)[..] else { panic!("{:?}", outcomes(&node)) };
    assert_eq!(
        (name, outcome.as_str()),
        (&small::name("other"), "deleted"),
        "its record is gone, that is proven"
    );
    let history = node.json(&["history"]);
    assert_eq!(list(&history, "/runs")[0]["deleted"][0]["measured_bytes"], Value::Null);
    node.run(&["sweep", "--delete", "-y"]).expect_code(0);
    assert!(!aside(&node), "the next run has finished it");
    assert_eq!(edit::podman_ids(&node.store).len(), 4);
}

/// A signal between the layers of an image, whose record is gone by then: the next run deletes the others.
#[test]
fn layers_left_by_signal_are_deleted_by_next_run() {
    let Some((_dir, node)) = node() else { return };
    let records = node.store.record("images.json");
    let layers =
        || std::fs::read_to_string(node.store.record("layers.json")).unwrap().matches("\"id\"").count();
    let expected = layers();
    let mut interrupted = 0;
    for _ in 0..20 {
        node.store.load(&[small::tall()]);
        let mut child = start(&node, &rm(&["tall"]));
        wait_for("the record to go", &mut child, || {
            !std::fs::read_to_string(&records).unwrap_or_default().contains(&small::name("tall"))
        });
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        let left = layers() - expected;
        if left > 0 {
            interrupted += 1;
            let document: Value = serde_json::from_slice(&output.stdout).unwrap();
            let errors = list(&document, "/errors").iter().map(|error| text(error, "/message"));
            assert!(
                errors.into_iter().any(|error| error.ends_with("deletes the rest of it")),
                "{document:#}"
            );
            assert_eq!(document["deleted"][0]["measured_bytes"], Value::Null);
            let next =
                node.run(&["gc", "--via", "direct", "--high", "99", "--low", "98", "-y"]).expect_code(0);
            assert!(next.stdout.starts_with("Finished an interrupted run: "), "{next:?}");
        }
        assert_eq!(layers(), expected, "{left} layers were left");
        if interrupted == 2 {
            break;
        }
    }
    assert!(interrupted > 0, "no run was interrupted between two layers");
    assert_eq!(edit::podman_ids(&node.store).len(), 5);
}

/// Returns whether the process has a directory of [`stuff`] open.
fn is_in_the_tree(pid: u32) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    open.any(|path| path.to_string_lossy().contains("/diff/part-"))
}

/// A process has a file of the layer open, so that its bytes are not freed while the run waits for them. The store has
/// a filesystem of its own: on one that other tests share, what they free would end the wait.
#[test]
fn wait_for_late_frees_ends() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 256 << 20);
    let node = node_in(loopfs.path());
    let bulk = layer_dir(&node, "other").join("diff/bulk");
    std::fs::write(&bulk, vec![7; 32 << 20]).unwrap();
    let held = File::open(&bulk).unwrap();
    let mut child = start(&node, &rm(&["other"]));
    let records = node.store.record("images.json");
    wait_for("the record to go", &mut child, || {
        !std::fs::read_to_string(&records).unwrap().contains(&small::name("other")) && !aside(&node)
    });
    std::thread::sleep(Duration::from_millis(100));
    let document = ended_by(Signal::SIGTERM, child);
    drop(held);
    assert_eq!(document["outcome"], "failed", "{document:#}");
    assert_eq!(outcomes(&node)[0].1, "deleted");
}

#[test]
fn killed_run_is_finished() {
    let Some((_dir, node)) = node() else { return };
    stuff(&layer_dir(&node, "other").join("diff"));
    let mut child = start(&node, &rm(&["other"]));
    wait_for("the directory to be set aside", &mut child, || aside(&node));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let other = small::name("other");
    assert_eq!(outcomes(&node), [(other.clone(), "unknown".to_owned(), false)]);
    let history = node.run(&["history"]).expect_code(0).stdout;
    assert!(history.contains(&format!("unknown: {other}: started")), "{history}");
    node.scan();
    assert_eq!(outcomes(&node), [(other, "deleted".to_owned(), true)]);

    // A run that was killed before it changed anything.
    let held = hold_layers(&node);
    let mut child = start(&node, &rm(&["b"]));
    let has_unknown = || outcomes(&node).iter().any(|(_, outcome, _)| outcome == "unknown");
    wait_for("the deletion", &mut child, has_unknown);
    // The run is still in progress, so a scan does not decide the outcome.
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGSTOP).unwrap();
    drop(held);
    node.scan();
    assert!(has_unknown());
    child.kill().unwrap();
    child.wait().unwrap();
    node.scan();
    let b = outcomes(&node).into_iter().find(|(name, ..)| *name == small::name("b")).unwrap();
    assert_eq!((b.1.as_str(), b.2), ("failed", true), "it is still there");
    assert_eq!(attempts(&node), 0, "it does not back off");
}

#[test]
fn held_lock_is_waited_for_once() {
    let Some((_dir, node)) = node() else { return };
    let held = hold_layers(&node);
    let words = rm(&["other", "b", "a2"]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let run = node.run(&words);
    assert!(run.took < Duration::from_secs(35), "{run:?}");
    let document = run.expect_code(5).json();
    assert_eq!(document["outcome"], "refused");
    let errors = list(&document, "/errors");
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0]["step"], "lock");
    assert!(text(&errors[0], "/message").contains("layers.lock"));
    assert_eq!(attempts(&node), 0);
    drop(held);
    node.run(&words).expect_code(0);
}

/// A problem of one store does not affect another.
#[test]
fn inaccessible_store_is_skipped() {
    if !Fs::Ext4.require() {
        return;
    }
    let Some((_dir, node)) = node() else { return };
    let disk = LoopFs::new(Fs::Ext4, 64 << 20);
    let second = small::store(&disk.path().join("root"));
    second.unmount();
    let words = ["gc", "-y", "--via", "direct", "--only", "images", "--max-age", "1s", "--min-age", "0s"];
    let words = [&words[..], &["--high", "100", "--low", "99", "--format", "json"]].concat();
    let both = [&words[..], &["--graphroot", second.root().to_str().unwrap()]].concat();
    fn gone(document: &Value) -> std::collections::BTreeMap<String, i32> {
        let stores = list(document, "/deleted").iter().map(|row| text(row, "/store").to_owned());
        let mut counts = std::collections::BTreeMap::new();
        stores.for_each(|store| *counts.entry(store).or_insert(0) += 1);
        counts
    }
    fn root(store: &store::Store) -> String {
        store.root().to_str().unwrap().to_owned()
    }
    node.scan();
    std::thread::sleep(Duration::from_secs(2));

    let held = hold_layers(&node);
    let run = node.run(&both);
    drop(held);
    let document = support::node::document(run.expect_code(5));
    assert_eq!(gone(&document), [(root(&second), 4)].into(), "{document:#}");
    let errors = list(&document, "/errors");
    assert_eq!((errors.len(), text(&errors[0], "/step")), (1, "lock"), "{errors:#?}");
    assert!(text(&errors[0], "/message").contains(&root(&node.store)), "{errors:#?}");
    assert_eq!(attempts(&node), 0);

    // The same on a full disk without a reserve file.
    node.store.podman(["rmi", &small::name("a2"), &small::name("b")]);
    node.store.unmount();
    second.load(&["base", "other"].map(small::image));
    second.unmount();
    std::fs::remove_file(second.root().join(".layersweep-reserve")).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    support::reserve_file::fill_to_the_last_byte(&disk);
    let document = support::node::document(node.run(&both).expect_code(1));
    assert_eq!(gone(&document), [(root(&node.store), 2)].into(), "{document:#}");
    let errors = list(&document, "/errors");
    assert_eq!((errors.len(), text(&errors[0], "/step")), (1, "remove"), "{errors:#?}");
    assert!(text(&errors[0], "/message").contains("no space left"), "{errors:#?}");
    assert_eq!(attempts(&node), 0);
}

/// A name in a locked store does not block images or names in another store, and the lock is waited for once.
#[test]
fn names_in_inaccessible_store_do_not_block_others() {
    let Some((_dir, node)) = node() else { return };
    let dir = tempfile::tempdir().unwrap();
    let second = small::store(&dir.path().join("root"));
    for (store, image) in [(&node.store, "other"), (&node.store, "b"), (&second, "a2"), (&second, "base")] {
        store.podman(["tag", &small::name(image), &format!("reg.local/{image}:x")]);
        store.unmount();
    }
    let held = hold_layers(&node);
    let names = ["--all-tags", "reg.local/other:x", "reg.local/a2:x", "reg.local/b:x", "reg.local/base:x"];
    let words = ["--format", "json", "--graphroot", second.root().to_str().unwrap()];
    let run = node.run(&[&RM[..], &words, &names].concat());
    drop(held);
    assert!(run.took < Duration::from_secs(35), "{:?}", run.took);
    let document = support::node::document(run.expect_code(5));
    let gone: Vec<_> = list(&document, "/deleted").iter().map(|row| row["names"].to_string()).collect();
    assert_eq!(gone.len(), 2, "{document:#}");
    for name in ["reg.local/a2:x", "reg.local/base:x"] {
        assert!(gone.iter().any(|names| names.contains(name)), "{document:#}");
    }
    let errors = list(&document, "/errors");
    assert!(errors.len() == 1 && text(&errors[0], "/step") == "lock", "{errors:#?}");
}

#[test]
fn image_in_use_is_kept_without_back_off() {
    let Some((dir, node)) = node() else { return };
    let target = dir.path().join("mounted");
    std::fs::create_dir(&target).unwrap();
    let none = None::<&str>;
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&layer_dir(&node, "other").join("diff")), &target, none, flags, none).unwrap();
    let words = rm(&["other", "b"]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let run = node.run(&words);
    nix::mount::umount(&target).unwrap();
    let document = run.expect_code(5).json();
    assert_eq!(list(&document, "/deleted").len(), 1, "{document:#}");
    let kept = list(&document, "/kept").iter().find(|kept| kept["names"][0] == small::name("other").as_str());
    assert_eq!(kept.unwrap()["rule"], "in-use", "{document:#}");
    assert!(list(&document, "/errors").is_empty(), "{document:#}");
    assert_eq!(attempts(&node), 0);
}

/// The layer of a running pull, created an hour before the clock leapt by two days.
#[test]
fn clock_leap_makes_no_layer_old() {
    let Some((_dir, node)) = node() else { return };
    let layer = layer_dir(&node, "other");
    let two_days_ago = Timestamp::now().checked_sub(SignedDuration::from_hours(49)).unwrap();
    forget_image(&node, "other", Some(two_days_ago));
    let leak = |node: &Node| {
        let found = node.json(&["sweep"]);
        let leaks = list(&found, "/leaks").to_vec();
        leaks
            .into_iter()
            .find(|leak| layer.ends_with(text(leak, "/id")))
            .unwrap_or_else(|| panic!("{found:#}"))
    };
    assert_eq!(leak(&node)["verdict"], "reclaim", "without a leap");
    node.scan();
    // As if the clock had been two days behind at its last reading, a moment ago.
    let database = Connection::open(node.state.join("layersweep.db")).unwrap();
    database.execute("UPDATE clock SET wall = wall - ?1", [48_i64 * 3600 * 1_000_000]).unwrap();
    drop(database);
    for _ in 0..2 {
        let leak = leak(&node);
        assert_eq!(leak["verdict"], "keep", "{leak:#}");
        let age = leak["age_seconds"].as_i64().unwrap();
        assert!((3500..3900).contains(&age), "{age}");
        // The run records the leap.
        node.run(&["sweep", "--delete", "-y"]).expect_code(0);
        assert!(layer.exists());
    }
    assert!(layer.join("diff").exists());
}

/// A deletion is killed and finished by the next run; if the image was pulled again in between, its layers are kept.
#[test]
fn layers_pulled_after_a_killed_deletion_stay() {
    let Some((_dir, node)) = node() else { return };
    let editor = |on_step| edit::with(&node.store, Options { on_step, ..Options::default() });
    let killed = |step: &'static str| {
        let editor = editor(Some(Box::new(move |now: &'static str| assert_ne!(now, step, "killed here"))));
        let images = node.store.images();
        let other =
            images.iter().find(|image| image["names"].to_string().contains(&small::name("other"))).unwrap();
        let (planned, begun) = (edit::planned(other), edit::begun(&node.store, other));
        let dies = std::panic::AssertUnwindSafe(|| editor.delete_image(&planned));
        assert!(std::panic::catch_unwind(dies).is_err());
        begun
    };
    let begun = [killed("image directory removed")];
    // Nothing was pulled since: the layer is deleted.
    let resumed = editor(None).resume(&begun, &|_, _, _| false).unwrap();
    assert_eq!(resumed.layers.len(), 1);

    node.store.load(&[small::image("other")]);
    node.store.unmount();
    let begun = [killed("image directory removed")];
    // Another program finishes the deletion, and pulls the image again.
    editor(None).resume(&begun, &|_, _, _| false).unwrap();
    node.store.load(&[small::image("other")]);
    node.store.unmount();
    let layer = layer_dir(&node, "other");
    // The state of an unfinished pull.
    forget_image(&node, "other", None);
    let resumed = editor(None).resume(&begun, &|_, _, _| false).unwrap();
    assert!(resumed.layers.is_empty() && layer.join("diff").exists(), "{resumed:?}");
}
