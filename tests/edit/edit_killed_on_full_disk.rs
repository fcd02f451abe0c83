//! Deletions that were killed or stopped on a disk without a free byte.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::SignedDuration;
use layersweep::editor::{BegunDeletion, Options, OrphanAt, PlannedImage, Refusal};
use layersweep::model::Orphan;
use serde_json::Value;

use super::edit_crash::{Recipe, kill_at};
use super::edit_nothing_prepared::{Disk, QUARANTINED, image, name};
use crate::support;
use support::archive::ImageSpec;
use support::edit;
use support::loopfs::{Fs, MIB};
use support::node;
use support::program::{self, list, text};
use support::store::{self, Store};

/// Returns the names below a layer's content; `None` if its directory is missing.
fn content(store: &Store, layer: &str) -> Option<BTreeSet<PathBuf>> {
    let top = store.root().join("overlay").join(layer);
    top.exists().then(|| edit::facts(&top.join("diff")).into_keys().collect())
}

fn cp(from: &Path, to: &Path) {
    store::succeed(Command::new("cp").arg("--sparse=always").args([from, to]));
}

/// Killed at every step: the image's content is complete or missing, never partly there; podman works with the other
/// images; the next run finishes the deletion on the full disk.
#[test]
fn killed_at_every_step() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    let mut survivors = edit::ids(&store.images());
    survivors.retain(|id| *id != target);
    let record = || -> Option<Value> {
        let records = std::fs::read(store.record("images.json")).unwrap();
        let records: Vec<Value> = serde_json::from_slice(&records).unwrap();
        records.into_iter().find(|image| image["id"] == target.as_str())
    };
    let top = text(&record().unwrap(), "/layer").to_owned();
    let whole = content(store, &top).unwrap();
    let image = store.images().into_iter().find(|image| text(image, "/id") == target).unwrap();
    let begun = edit::begun(store, &image);
    disk.fill();
    assert!(disk.is_full());
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("full");
    store.unmount();
    disk.loopfs.exchange(|image| cp(image, &copy));
    let mut steps: Vec<String> = Vec::new();
    loop {
        disk.loopfs.exchange(|image| cp(&copy, image));
        let step = kill_at(store, Recipe::Image, &target, steps.len() + 1);
        let context = format!("step {} ({step:?})", steps.len() + 1);
        println!("{context}");
        let is_recorded = record().is_some();
        assert!(
            !is_recorded || content(store, &top).is_none_or(|left| left == whole),
            "{context}: half a layer"
        );
        if step.as_ref().is_some_and(|step| !steps.contains(step)) {
            // Space is freed, and podman uses the store first.
            disk.empty_again();
            store.podman(["create", "--name", "other", "--network", "none", &name(5), "/x"]);
            store.podman(["rm", "other"]);
            if is_recorded {
                fn podman(store: &Store, words: &[&str]) -> program::Run {
                    let mut command = store.podman_command();
                    command.args(words);
                    program::run(&mut command)
                }
                let create =
                    podman(store, &["create", "--name", "lost", "--network", "none", &name(2), "/x"]);
                let mount = (create.code == 0).then(|| podman(store, &["mount", "lost"]));
                let works = mount.as_ref().is_some_and(|mount| mount.code == 0);
                assert_eq!(works, content(store, &top).is_some(), "{context}: {create:?} {mount:?}");
                if create.code == 0 {
                    store.podman(["rm", "lost"]);
                }
            }
            store.unmount();
            finish(&disk, &begun, &context);
            assert_eq!(edit::whole(store), survivors, "{context}, after podman");
            disk.loopfs.exchange(|image| cp(&copy, image));
            assert_eq!(kill_at(store, Recipe::Image, &target, steps.len() + 1), step, "{context}");
        }
        finish(&disk, &begun, &context);
        assert_eq!(edit::whole(store), survivors, "{context}");
        match step {
            Some(step) => steps.push(step),
            None => break,
        }
    }
    println!("{} steps: {steps:?}", steps.len());
    for wanted in ["layer quarantined", "layer emptied", "record file replaced"] {
        assert!(steps.iter().any(|step| step == wanted), "{wanted}: {steps:?}");
    }
    disk.empty_again();
    disk.podman_works();
}

/// Simulates the next run. The journal is on another disk.
fn finish(disk: &Disk, begun: &BegunDeletion, context: &str) {
    let target = begun.image.as_str();
    let editor = edit::with(&disk.store, Options::default());
    editor
        .resume(std::slice::from_ref(begun), &|_, _, _| false)
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let images = std::fs::read_to_string(disk.store.record("images.json")).unwrap();
    if images.contains(&format!("\"id\":\"{target}\"")) {
        let planned = PlannedImage { id: target.to_owned(), ..Default::default() };
        editor.delete_image(&planned).map(drop).unwrap();
    }
    // These are leaks now, which a sweep deletes.
    for records in ["overlay-images", "overlay-layers"] {
        for entry in std::fs::read_dir(disk.store.root().join(records)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let kind = if name.starts_with(".tmp-") {
                Orphan::TempRecord
            } else if name == target {
                Orphan::ImageDirectory
            } else {
                continue;
            };
            edit::reclaim(&editor, &OrphanAt { kind, path }, SignedDuration::ZERO).unwrap();
        }
    }
}

/// A deletion that a killed run began is not finished if the image was pinned since.
#[test]
fn unfinished_image_with_new_pin_is_reported() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(&target);
    let editor = edit::with(store, Options::default());
    assert!(editor.is_unfinished());
    let keeps = |id: &str, names: &[String], digests: &[String]| {
        id == target && names == [name(2)] && digests.iter().any(|digest| digest.starts_with("sha256:"))
    };
    let error = editor.resume(&[], &keeps).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Lost { id, .. }) if *id == target), "{error}");
    assert!(disk.ids().contains(&target), "it is to stay");
    assert!(editor.is_unfinished(), "told until it is whole");
    store.podman(["rmi", &name(2)]);
    store.load(&[image(2)]);
    store.unmount();
    editor.resume(&[], &keeps).unwrap();
    assert!(disk.ids().contains(&target) && !editor.is_unfinished());
}

/// An image that was pulled onto the lost layer after the kill: no run deletes it, however often the layer's directory
/// was emptied meanwhile.
#[test]
fn image_pulled_onto_lost_layer_is_kept() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(&target);
    let later = "reg.local/later:1";
    store.load(&[ImageSpec { names: vec![later.into()], label: later.into(), ..image(2) }]);
    store.unmount();
    let later = disk.id(later);
    // A run without a file of records, and runs that have finished the deletion of the first image.
    for run in 0..3 {
        let error = edit::with(store, Options::default()).resume(&[], &|_, _, _| false).unwrap_err();
        let Some(Refusal::Lost { id, why }) = error.refusal() else { panic!("run {run}: {error}") };
        assert_eq!((id, why.as_str()), (&later, "it may have been pulled since"), "run {run}");
        assert!(disk.ids().contains(&later) && !disk.ids().contains(&target), "run {run}");
    }
    store.podman(["rmi", "reg.local/later:1"]);
    store.unmount();
    let editor = edit::with(store, Options::default());
    editor.resume(&[], &|_, _, _| false).unwrap();
    assert!(!editor.is_unfinished() && disk.signs().is_empty());
    assert_eq!(edit::podman_ids(store), Vec::from_iter(disk.ids()));
    store.unmount();
}

/// The same image, pulled again after the kill: its record is the same, and podman wrote it again.
#[test]
fn lost_image_pulled_again_is_kept() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(&target);
    let modified =
        || store.root().join("overlay-images").join(&target).metadata().unwrap().modified().unwrap();
    let marked = modified();
    store.load(&[image(2)]);
    store.unmount();
    assert_ne!(modified(), marked);
    for run in 0..2 {
        let error = edit::with(store, Options::default()).resume(&[], &|_, _, _| false).unwrap_err();
        assert!(
            matches!(error.refusal(), Some(Refusal::Lost { id, .. }) if *id == target),
            "run {run}: {error}"
        );
        assert!(disk.ids().contains(&target), "run {run}");
    }
}

/// A layer that a killed deletion emptied is no leak: it shows that the deletion has to be finished.
#[test]
fn mark_of_unfinished_deletion_is_not_swept() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(&target);
    let report = disk.json(0, &["sweep", "--min-age", "0s"]);
    let leak =
        list(&report, "/leaks").iter().find(|leak| text(leak, "/id").starts_with(QUARANTINED)).unwrap();
    assert_eq!((text(leak, "/verdict"), &leak["action"]), ("keep", &Value::Null), "{leak:#}");
    let path = PathBuf::from(text(leak, "/path"));
    let orphan = OrphanAt { kind: Orphan::LayerDirectory, path: path.clone() };
    let editor = edit::with(store, Options::default());
    let kept = edit::reclaim(&editor, &orphan, SignedDuration::ZERO).unwrap_err();
    assert!(kept.to_string().contains("has a record now"), "{kept}");
    editor.resume(&[], &|_, _, _| false).unwrap();
    assert!(!path.exists() && !disk.ids().contains(&target));
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

/// On a terminal, an interrupted deletion is finished after the answer, and the plan announces that.
#[test]
fn nothing_is_finished_before_confirmation() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    if !support::require_program("script") {
        return;
    }
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(&target);
    let is_there = || disk.ids().contains(&target);
    // `meanwhile` runs between question and answer.
    fn ask(disk: &Disk, store: &Store, flags: &str, meanwhile: &str, answer: &str) -> program::Run {
        let mut words = vec![env!("CARGO_BIN_EXE_layersweep").to_owned()];
        words.extend(flags.split(' ').map(str::to_owned));
        for (flag, path) in [
            ("graphroot", store.root().to_path_buf()),
            ("runroot", store.runroot()),
            ("state-dir", disk.state()),
        ] {
            words.extend([format!("--{flag}"), path.to_str().unwrap().to_owned()]);
        }
        let screen = tempfile::NamedTempFile::new().unwrap();
        let wait = r#"for _ in $(seq 100); do grep -qF '[y/N]' "$0" && break; sleep 0.1; done"#;
        let input =
            if answer.is_empty() { ":".to_owned() } else { format!("{wait}; {meanwhile}; echo {answer}") };
        let mut command = Command::new("sh");
        program::hermetic(&mut command);
        command.args(["-c", &format!("({input}) | script -qefc \"$1\" \"$0\"")]);
        program::run(command.arg(screen.path()).arg(words.join(" "))).expect_no_crash()
    }
    let flags = "gc --via direct --high 99 --low 98 --min-age 0s --no-progress --color never";
    let gc = |meanwhile: &str, answer: &str| ask(&disk, store, flags, meanwhile, answer);
    for flags in [flags, "sweep --delete --no-progress --color never"] {
        let no = ask(&disk, store, flags, ":", "n");
        assert!(no.stdout.contains("Finish the interrupted deletion? [y/N]"), "{no:?}");
        assert!(no.stdout.contains("Nothing was deleted."), "{no:?}");
        assert!(is_there(), "{no:?}");
    }
    // Pins that were made meanwhile are unknown.
    let database = disk.state().join("layersweep.db");
    let path = database.display();
    let unknown = gc(&format!("[ ! -e {path} ] || mv {path} {path}.away; ln -s {path} {path}"), "y");
    assert!(unknown.stdout.contains("the keep-list cannot be read"), "{unknown:?}");
    assert!(is_there(), "{unknown:?}");
    std::fs::remove_file(&database).unwrap();
    let _ = std::fs::rename(database.with_extension("db.away"), &database);
    fn pin(disk: &Disk, word: &str) {
        let mut command = program::command();
        program::run(command.args(["pin", word, &name(2), "--state-dir"]).arg(disk.state())).expect_code(0);
    }
    pin(&disk, "add");
    // The second run has nothing to do and reports the same.
    for _ in 0..2 {
        let kept = gc(":", "y");
        assert!(
            kept.code == 1 && kept.stdout.contains("an interrupted deletion removed a layer"),
            "{kept:?}"
        );
    }
    pin(&disk, "remove");
    let yes = gc(":", "y");
    assert!(yes.stdout.contains("Finished an interrupted run"), "{yes:?}");
    assert!(!is_there(), "{yes:?}");
    let none = gc(":", "");
    assert!(!none.stdout.contains("[y/N]"), "{none:?}");
}

/// On a full disk the filesystem is synchronised with the store's locks held: in a child process, which can be
/// abandoned, and not by the process that holds the locks.
#[test]
fn holder_of_locks_does_not_synchronise() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    let log = disk.store.scratch().join("trace");
    let flags = ["-o", log.to_str().unwrap(), "-e", "trace=syncfs,execve"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    let document = node::document(program::run(&mut command).expect_no_crash().expect_code(0));
    assert!(!list(&document, "/deleted").is_empty(), "{document:#}");
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<_> = log.lines().filter_map(|line| line.split_once(' ')).collect();
    let (holder, _) = lines[0];
    let is_sync = |line: &str| line.trim_start().starts_with("syncfs(");
    assert!(lines.iter().any(|(pid, line)| *pid != holder && is_sync(line)), "{log}");
    assert!(!lines.iter().any(|(pid, line)| *pid == holder && is_sync(line)), "{log}");
}

const GC: [&str; 10] = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s", "-y"];

/// A run that is stopped while it empties the layer: the image does not count as refused, and the next run finishes it.
#[test]
fn stopped_while_the_layer_is_emptied() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    // Each unlink takes this many microseconds: the layer is emptied for a second, and the rest of the run after the
    // signal takes a fraction of the two seconds that it has.
    let flags = ["-e", "trace=unlinkat", "-e", "inject=unlinkat:delay_exit=40000"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    fn quarantined(disk: &Disk) -> bool {
        let names = std::fs::read_dir(disk.store.root().join("overlay")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(QUARANTINED))
    }
    assert!(
        (0..3000).any(|_| quarantined(&disk) || (std::thread::sleep(Duration::from_millis(10)), false).1)
    );
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    let pid = children.split_whitespace().next().unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(quarantined(&disk), "{output:?}");
    if output.stdout.is_empty() {
        // On a busy machine, the deadline ends the run before it prints its document.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("stopped by a signal; the next run finishes"), "{output:?}");
    } else {
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(list(&document, "/deleted").is_empty(), "{document:#}");
        let mut kept = list(&document, "/kept").iter();
        assert!(!kept.any(|image| text(image, "/rule") == "removal-failed"), "{document:#}");
    }
    let next = disk.json(0, &GC);
    assert!(!quarantined(&disk), "{next:#}");
    assert_eq!(text(&next, "/outcome"), "not_needed", "{next:#}");
    let history = disk.json(0, &["history"]);
    let gone = list(&history, "/runs/0/deleted");
    assert_eq!(gone.len(), 1, "{history:#}");
    for deletion in gone {
        assert_eq!(
            (text(deletion, "/outcome"), &deletion["error"]),
            ("deleted", &Value::Null),
            "{history:#}"
        );
        assert!(!disk.ids().contains(text(deletion, "/id")));
    }
    disk.empty_again();
    disk.podman_works();
}

/// The layers held too little: the image does not count as refused, and the history records the deletion that the
/// next run finishes.
#[test]
fn deletion_without_room_is_in_history() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    // There is no room for the image records.
    let images = disk.store.root().join("overlay-images");
    let path = images.to_str().unwrap();
    let flags = ["-e", "trace=renameat", "-P", path, "-e", "inject=renameat:error=ENOSPC"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    let document = node::document(program::run(&mut command).expect_no_crash().expect_code(1));
    assert!(!disk.signs().is_empty(), "{document:#}");
    assert!(list(&document, "/deleted").is_empty(), "{document:#}");
    let begun: Vec<_> = list(&disk.json(0, &["history"]), "/runs/0/deleted").to_vec();
    assert_eq!(begun.len(), 1, "{document:#}");
    assert!(begun.iter().all(|deletion| text(deletion, "/outcome") == "unknown"), "{begun:#?}");
    disk.json(0, &GC);
    let history = disk.json(0, &["history"]);
    let before = list(&history, "/runs/0/deleted");
    assert_eq!(before.len(), begun.len(), "{history:#}");
    assert!(
        before.iter().all(|deletion| {
            text(deletion, "/outcome") == "deleted" && !disk.ids().contains(text(deletion, "/id"))
        }),
        "{history:#}"
    );
    disk.empty_again();
    disk.podman_works();
}
