//! Deletions that were killed or stopped on a disk without a free byte.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::SignedDuration;
use layersweep::model::Orphan;
use layersweep::stores::containers_storage::edit::{Error, Options, OrphanAt, PlannedImage, Refusal};
use serde_json::Value;

use super::edit_crash::{Recipe, kill_after, kill_at};
use super::edit_nothing_prepared::{Disk, QUARANTINED, image, name, parent, twin};
use crate::support;
use support::archive::ImageSpec;
use support::edit;
use support::loopfs::{Fs, MIB};
use support::node;
use support::program::{self, list, text};
use support::store::{self, Store};

/// The names below a layer's content; `None` where its directory is missing.
fn content(store: &Store, layer: &str) -> Option<BTreeSet<PathBuf>> {
    let top = store.root().join("overlay").join(layer);
    top.exists().then(|| edit::facts(&top.join("diff")).into_keys().collect())
}

fn cp(from: &Path, to: &Path) {
    store::succeed(Command::new("cp").arg("--sparse=always").args([from, to]));
}

/// Killed at every step: what the image's record names is whole or missing as a whole, never in between;
/// podman works with the others; our next run finishes, on the full disk.
#[test]
fn killed_at_every_step() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    killed_at_every_step_of(&disk, &[disk.id(&name(2))]);
}

/// The same with two images that have all their layers in common.
#[test]
fn killed_at_every_step_of_two() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    disk.store.podman(["rmi", "reg.local/third-2:1"]);
    disk.store.unmount();
    killed_at_every_step_of(&disk, &[disk.id(&name(2)), disk.id(&twin(2).names[0])]);
}

/// The same with an image and its parent, which has the layer that makes the room.
#[test]
fn killed_at_every_step_of_an_image_with_its_parent() {
    let Some(disk) = Disk::with_parents(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    killed_at_every_step_of(&disk, &[disk.id(&parent(2).names[0]), disk.id(&name(2))]);
}

fn killed_at_every_step_of(disk: &Disk, targets: &[String]) {
    let store = &disk.store;
    let target = targets.join(",");
    let intents = disk.loopfs.path().join("intents");
    std::fs::create_dir(&intents).unwrap();
    let mut survivors = edit::ids(&store.images());
    survivors.retain(|id| !targets.contains(id));
    let records = || -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(store.record("images.json")).unwrap()).unwrap()
    };
    let top = |id: &String| -> String {
        let records = records();
        records.iter().find(|one| one["id"] == id.as_str()).unwrap()["layer"].as_str().unwrap().to_owned()
    };
    let tops: Vec<_> = targets.iter().map(|id| (top(id), content(store, &top(id)).unwrap())).collect();
    // The topmost that all of them have.
    let top = tops[0].0.clone();
    disk.fill();
    assert!(disk.is_full());
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("full");
    store.unmount();
    disk.loopfs.exchange(|image| cp(image, &copy));
    let mut steps: Vec<String> = Vec::new();
    loop {
        disk.loopfs.exchange(|image| cp(&copy, image));
        let step = kill_at(store, Recipe::Image, &target, &intents, steps.len() + 1);
        let at = format!("step {} ({step:?})", steps.len() + 1);
        println!("{at}");
        let recorded =
            records().iter().filter(|one| targets.iter().any(|id| one["id"] == id.as_str())).count();
        assert!([0, targets.len()].contains(&recorded), "{at}: {recorded}");
        let is_recorded = recorded > 0;
        for (top, whole) in tops.iter().filter(|_| is_recorded) {
            assert!(content(store, top).is_none_or(|left| left == *whole), "{at}: half a layer");
        }
        if step.as_ref().is_some_and(|step| !steps.contains(step)) {
            // Somebody makes room, and podman comes first.
            disk.empty_again();
            store.podman(["create", "--name", "other", "--network", "none", &name(5), "/x"]);
            store.podman(["rm", "other"]);
            if is_recorded {
                let podman = |words: &[&str]| {
                    let mut command = store.podman_command();
                    command.args(words);
                    program::run(&mut command)
                };
                let create = podman(&["create", "--name", "lost", "--network", "none", &name(2), "/x"]);
                let mount = (create.code == 0).then(|| podman(&["mount", "lost"]));
                let works = mount.as_ref().is_some_and(|mount| mount.code == 0);
                assert_eq!(works, content(store, &top).is_some(), "{at}: {create:?} {mount:?}");
                if create.code == 0 {
                    store.podman(["rm", "lost"]);
                }
            }
            store.unmount();
            finish(disk, targets, &intents, &at);
            assert_eq!(edit::whole(store), survivors, "{at}, after podman");
            disk.loopfs.exchange(|image| cp(&copy, image));
            assert_eq!(kill_at(store, Recipe::Image, &target, &intents, steps.len() + 1), step, "{at}");
        }
        finish(disk, targets, &intents, &at);
        assert_eq!(edit::whole(store), survivors, "{at}");
        assert_eq!(std::fs::read_dir(&intents).unwrap().count(), 0, "{at}: an intent is left");
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

fn finish(disk: &Disk, targets: &[String], intents: &Path, at: &str) {
    let options = Options { intents: Some(intents.to_path_buf()), ..Options::default() };
    let editor = edit::with(&disk.store, options);
    editor.resume(&|_, _, _| false).unwrap_or_else(|error| panic!("{at}: {error}"));
    let images = std::fs::read_to_string(disk.store.record("images.json")).unwrap();
    let left = targets.iter().filter(|id| images.contains(&format!("\"id\":\"{id}\"")));
    let left: Vec<_> = left.map(|id| PlannedImage { id: id.clone(), ..Default::default() }).collect();
    if !left.is_empty() {
        editor.delete_images(&left).map(drop).unwrap();
    }
    // Where there was room for it, nothing tells of what was killed while it was written.
    for records in ["overlay-images", "overlay-layers"] {
        for entry in std::fs::read_dir(disk.store.root().join(records)).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with(".tmp-") {
                let orphan = OrphanAt { kind: Orphan::TempRecord, path };
                editor.reclaim(&orphan, SignedDuration::ZERO).unwrap();
            }
        }
    }
}

/// What a killed run had begun is finished for the image that it had chosen, and for no other; not even for
/// that one, if it is to stay by now.
#[test]
fn only_the_chosen_image_is_finished() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    let intents = disk.killed(std::slice::from_ref(&target));
    let editor = edit::with(store, Options { intents: Some(intents), ..Options::default() });
    assert!(editor.is_unfinished());
    let keeps = |id: &str, names: &[String], digests: &[String]| {
        id == target && names == [name(2)] && digests.iter().any(|digest| digest.starts_with("sha256:"))
    };
    let told = editor.resume(&keeps).unwrap_err();
    assert!(matches!(told.refusal(), Some(Refusal::Lost { id, .. }) if *id == target), "{told}");
    assert!(disk.ids().contains(&target), "it is to stay");
    assert!(editor.is_unfinished(), "told until it is whole");
    store.podman(["rmi", &name(2)]);
    store.load(&[image(2)]);
    store.unmount();
    editor.resume(&keeps).unwrap();
    assert!(disk.ids().contains(&target) && !editor.is_unfinished());
}

/// A container that came to the lost image meanwhile is named, until it is gone.
#[test]
fn a_container_on_a_lost_image_is_told() {
    let Some(disk) = Disk::with_parents(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    // Its own top layer is there, which is all that podman looks at.
    let (parent, target) = (disk.id(&parent(2).names[0]), disk.id(&name(2)));
    let intents = disk.killed(&[parent.clone(), target.clone()]);
    disk.store.podman(["create", "--name", "came", "--network", "none", &name(2), "/x"]);
    disk.store.unmount();
    let editor = edit::with(&disk.store, Options { intents: Some(intents), ..Options::default() });
    let error = editor.resume(&|_, _, _| false).unwrap_err();
    assert!(
        matches!(error.refusal(), Some(Refusal::Lost { id, why }) if *id == target && why.contains("came")),
        "{error}"
    );
    assert!(disk.ids().contains(&target) && !disk.ids().contains(&parent), "it holds up no other");
    for _ in 0..2 {
        let document = disk.json(1, &["gc", "-y", "--via", "direct", "--high", "99", "--low", "98"]);
        let errors = list(&document, "/errors");
        assert_eq!((errors.len(), text(&errors[0], "/step")), (1, "resume"), "{document:#}");
        let message = text(&errors[0], "/message");
        assert!(
            message.contains(&target) && message.contains("an interrupted deletion removed a layer"),
            "{message}"
        );
    }
    disk.store.podman(["rm", "came"]);
    disk.store.unmount();
    editor.resume(&|_, _, _| false).unwrap();
    assert!(!disk.ids().contains(&target) && !editor.is_unfinished());
}

/// Of two that were chosen the one stays that was pinned since.
#[test]
fn of_two_chosen_images_one_may_be_kept() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let both = [disk.id(&name(2)), disk.id(&twin(2).names[0])];
    let third = [disk.id("reg.local/third-2:1")];
    let intents = disk.killed(&[both.as_slice(), third.as_slice()].concat());
    // podman comes first, and removes one of them.
    store.podman(["rmi", "reg.local/third-2:1"]);
    store.unmount();
    let editor = edit::with(store, Options { intents: Some(intents), ..Options::default() });
    let told = editor.resume(&|id, _, _| id == both[1]).unwrap_err();
    assert!(matches!(told.refusal(), Some(Refusal::Lost { id, .. }) if *id == both[1]), "{told}");
    let left = disk.ids();
    assert!(!left.contains(&both[0]) && left.contains(&both[1]), "{left:?}");
    assert!(editor.is_unfinished(), "told until it is whole");
}

#[test]
fn an_image_that_came_to_the_layer_stays() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let intents = disk.killed(&[disk.id(&name(2))]);
    let before = disk.ids();
    store.load(&[ImageSpec { names: vec!["reg.local/vip:1".into()], label: "vip".into(), ..image(2) }]);
    store.podman(["rmi", &name(2)]);
    store.unmount();
    let came: Vec<_> = disk.ids().difference(&before).cloned().collect();
    assert_eq!(came.len(), 1, "{came:?}");
    let editor = edit::with(store, Options { intents: Some(intents), ..Options::default() });
    let told = editor.resume(&|_, _, _| false).unwrap_err();
    assert!(matches!(told.refusal(), Some(Refusal::Lost { id, .. }) if *id == came[0]), "{told}");
    assert!(disk.ids().contains(&came[0]), "it was never chosen");
}

/// What a killed deletion emptied is no leak: it is the sign that the rest has to be deleted.
#[test]
fn the_sign_of_an_unfinished_deletion_is_not_swept() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(std::slice::from_ref(&target));
    let report = disk.json(0, &["sweep", "--min-age", "0s"]);
    let is_it = |one: &&Value| text(one, "/id").starts_with(QUARANTINED);
    let leak = list(&report, "/leaks").iter().find(is_it).unwrap();
    assert_eq!((text(leak, "/verdict"), text(leak, "/action")), ("keep", "none"), "{leak:#}");
    let path = PathBuf::from(text(leak, "/path"));
    let orphan = OrphanAt { kind: Orphan::LayerDirectory, path: path.clone() };
    let editor = edit::with(store, Options::default());
    let kept = editor.reclaim(&orphan, SignedDuration::ZERO).unwrap_err();
    assert!(kept.to_string().contains("has a record now"), "{kept}");
    editor.resume(&|_, _, _| false).unwrap();
    assert!(!path.exists() && !disk.ids().contains(&target));
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

/// The quarantined directories.
fn signs(store: &Store) -> Vec<PathBuf> {
    let layers = std::fs::read_dir(store.root().join("overlay")).unwrap().flatten();
    let signs = layers.filter(|entry| entry.file_name().to_str().unwrap().starts_with(QUARANTINED));
    signs.map(|entry| entry.path()).collect()
}

/// A library's garbage collection takes the quarantined directory for an orphan: the intent, elsewhere, tells what is
/// left, at whichever step the run was killed.
#[test]
fn without_the_sign_the_intent_finishes() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.fill();
    store.unmount();
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("full");
    disk.loopfs.exchange(|image| cp(image, &copy));
    let mut lost = Vec::new();
    for number in 1.. {
        disk.loopfs.exchange(|image| cp(&copy, image));
        let intents = tempfile::tempdir().unwrap();
        let Some(step) = kill_at(store, Recipe::Image, &target, intents.path(), number) else { break };
        let signs = signs(store);
        for sign in &signs {
            store::succeed(Command::new("rm").arg("-r").arg(sign));
        }
        disk.empty_again();
        let directory = Some(intents.path().to_path_buf());
        let editor = edit::with(store, Options { intents: directory, ..Options::default() });
        editor.resume(&|_, _, _| false).unwrap();
        if !signs.is_empty() {
            assert!(
                !disk.ids().contains(&target),
                "step {number} ({step}): it is lost, and was to be deleted"
            );
            lost.push(step);
        }
        assert_eq!(edit::podman_ids(store), edit::whole(store), "step {number}");
        store.unmount();
    }
    for wanted in ["layer renamed", "layer quarantined", "layer emptied", "record file replaced"] {
        assert!(lost.iter().any(|step| step == wanted), "{wanted}: {lost:?}");
    }
}

/// As long as an image that was emptied for room is there, no other is emptied: which says why.
#[test]
fn no_second_image_is_lost_for_room() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    disk.killed(&[disk.id(&name(2))]);
    disk.fill();
    let other = PlannedImage { id: disk.id(&name(3)), ..PlannedImage::default() };
    let error = edit::with(&disk.store, Options::default()).delete_images(&[other]).unwrap_err();
    assert!(
        matches!(error, Error::Refused(Refusal::AnotherUnfinished { .. })) && error.is_no_space(),
        "{error}"
    );
}

/// What could not be removed of a layer whose record is gone is no image that was lost.
#[test]
fn what_is_left_of_a_deleted_layer_keeps_no_other_from_making_room() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let left = format!("6c61796572737765657000{}f{}", "ab".repeat(10), "c".repeat(21));
    std::fs::create_dir_all(disk.store.root().join("overlay").join(left).join("diff")).unwrap();
    disk.fill();
    let image = disk.id(&name(3));
    let planned = PlannedImage { id: image.clone(), ..PlannedImage::default() };
    edit::with(&disk.store, Options::default()).delete_images(&[planned]).unwrap();
    assert!(!disk.ids().contains(&image));
}

/// A lost image that is pinned by now is told by its intent until it is whole, and holds up no other intent.
#[test]
fn one_intent_that_cannot_be_finished_holds_up_no_other() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let (kept, other) = (disk.id(&name(2)), disk.id(&name(3)));
    let intents = tempfile::tempdir().unwrap();
    disk.killed_with_intents(std::slice::from_ref(&kept), intents.path());
    for sign in signs(store) {
        store::succeed(Command::new("rm").arg("-r").arg(sign));
    }
    kill_after(store, &other, intents.path(), "record file replaced");
    assert!(!disk.ids().contains(&other), "its layers are left");
    let count = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
    let layers = store.root().join("overlay");
    let before = count(&layers);
    assert_eq!(count(intents.path()), 2);
    let options = Options { intents: Some(intents.path().to_path_buf()), ..Options::default() };
    let editor = edit::with(store, options);
    let dates = || -> BTreeSet<String> {
        let read = |path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
        let intents = std::fs::read_dir(intents.path()).unwrap().map(|entry| read(entry.unwrap().path()));
        intents.map(|intent| text(&intent, "/at").to_owned()).collect()
    };
    let at_first = dates();
    for _ in 0..2 {
        let told = editor.resume(&|id, _, _| id == kept).unwrap_err();
        assert!(matches!(told.refusal(), Some(Refusal::Lost { id, .. }) if *id == kept), "{told}");
        assert!(disk.ids().contains(&kept));
        assert!(count(&layers) < before);
        assert_eq!(count(intents.path()), 1);
        assert!(dates().is_subset(&at_first), "it is not told for ever");
    }
}

/// On a terminal, what a killed run began is finished after the answer, and the plan says that it will be.
#[test]
fn nothing_is_finished_before_the_answer() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    if !support::require_program("script") {
        return;
    }
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(std::slice::from_ref(&target));
    let is_there = || disk.ids().contains(&target);
    // `meanwhile` is done between question and answer.
    let ask = |flags: &str, meanwhile: &str, answer: &str| {
        let mut words = vec![env!("CARGO_BIN_EXE_layersweep").to_owned()];
        words.extend(flags.split(' ').map(str::to_owned));
        for (flag, path) in [
            ("graphroot", store.root().to_path_buf()),
            ("runroot", store.runroot()),
            ("state-dir", disk.state()),
        ] {
            words.extend([format!("--{flag}"), path.to_str().unwrap().to_owned()]);
        }
        let told = tempfile::NamedTempFile::new().unwrap();
        let wait = r#"for _ in $(seq 100); do grep -qF '[y/N]' "$0" && break; sleep 0.1; done"#;
        let input =
            if answer.is_empty() { ":".to_owned() } else { format!("{wait}; {meanwhile}; echo {answer}") };
        let mut command = Command::new("sh");
        program::hermetic(&mut command);
        command.args(["-c", &format!("({input}) | script -qefc \"$1\" \"$0\"")]);
        program::run(command.arg(told.path()).arg(words.join(" "))).expect_no_crash()
    };
    let flags = "gc --via direct --high 99 --low 98 --min-age 0s --no-progress --color never";
    let gc = |meanwhile: &str, answer: &str| ask(flags, meanwhile, answer);
    for flags in [flags, "sweep --delete --no-progress --color never"] {
        let no = ask(flags, ":", "n");
        assert!(no.stdout.contains("Finish the interrupted deletion? [y/N]"), "{no:?}");
        assert!(no.stdout.contains("Nothing was deleted."), "{no:?}");
        assert!(is_there(), "{no:?}");
    }
    // What was pinned in between is unknown.
    let database = disk.state().join("layersweep.db");
    let path = database.display();
    let unknown = gc(&format!("[ ! -e {path} ] || mv {path} {path}.away; ln -s {path} {path}"), "y");
    assert!(unknown.stdout.contains("the keep-list cannot be read"), "{unknown:?}");
    assert!(is_there(), "{unknown:?}");
    std::fs::remove_file(&database).unwrap();
    let _ = std::fs::rename(database.with_extension("db.away"), &database);
    let pin = |word: &str| {
        let mut command = program::command();
        program::run(command.args(["pin", word, &name(2), "--state-dir"]).arg(disk.state())).expect_code(0);
    };
    pin("add");
    // The second time nothing is left to do but to tell it.
    for _ in 0..2 {
        let kept = gc(":", "y");
        assert!(
            kept.code == 1 && kept.stdout.contains("an interrupted deletion removed a layer"),
            "{kept:?}"
        );
    }
    pin("remove");
    let yes = gc(":", "y");
    assert!(yes.stdout.contains("Finished an interrupted run"), "{yes:?}");
    assert!(!is_there(), "{yes:?}");
    let none = gc(":", "");
    assert!(!none.stdout.contains("[y/N]"), "{none:?}");
}

const GC: [&str; 10] = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s", "-y"];

/// Stopped while the layer is emptied: neither image counts as refused, and the next run finishes both.
#[test]
fn stopped_while_the_layer_is_emptied() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    // Each unlink takes so many microseconds.
    let flags = ["-e", "trace=unlinkat", "-e", "inject=unlinkat:delay_exit=200000"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    let quarantined = || {
        let names = std::fs::read_dir(disk.store.root().join("overlay")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(QUARANTINED))
    };
    assert!((0..600).any(|_| quarantined() || (std::thread::sleep(Duration::from_millis(50)), false).1));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    let pid = children.split_whitespace().next().unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = run.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{document:#}");
    assert!(quarantined(), "{document:#}");
    assert!(list(&document, "/deleted").is_empty(), "{document:#}");
    let is_refused = |one: &&Value| text(one, "/rule") == "refused";
    assert!(!list(&document, "/kept").iter().any(|one| is_refused(&one)), "{document:#}");
    let next = disk.json(0, &GC);
    assert!(!quarantined(), "{next:#}");
    assert_eq!(text(&next, "/outcome"), "not_needed", "{next:#}");
    let history = disk.json(0, &["history"]);
    let gone = list(&history, "/runs/0/deleted");
    assert_eq!(gone.len(), 3, "{history:#}");
    for one in gone {
        assert_eq!((text(one, "/outcome"), &one["error"]), ("gone", &Value::Null), "{history:#}");
        assert!(!disk.ids().contains(text(one, "/id")));
    }
    disk.empty_again();
    disk.podman_works();
}

/// What a layer held was not enough: neither image counts as refused, and history learns what the next run finishes.
#[test]
fn what_was_begun_and_found_no_room_is_in_history() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    // The records of images find no room.
    let images = disk.store.root().join("overlay-images");
    let path = images.to_str().unwrap();
    let flags = ["-e", "trace=renameat", "-P", path, "-e", "inject=renameat:error=ENOSPC"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    let document = node::document(program::run(&mut command).expect_no_crash().expect_code(1));
    assert!(!signs(&disk.store).is_empty(), "{document:#}");
    assert!(list(&document, "/deleted").is_empty(), "{document:#}");
    let begun: Vec<_> = list(&disk.json(0, &["history"]), "/runs/0/deleted").to_vec();
    assert!(begun.len() > 1, "{document:#}");
    assert!(begun.iter().all(|one| text(one, "/outcome") == "unknown"), "{begun:#?}");
    disk.json(0, &GC);
    let history = disk.json(0, &["history"]);
    let is_gone = |one: &Value| text(one, "/outcome") == "gone" && !disk.ids().contains(text(one, "/id"));
    let before = list(&history, "/runs/0/deleted");
    assert_eq!(before.len(), begun.len(), "{history:#}");
    assert!(before.iter().all(is_gone), "{history:#}");
    disk.empty_again();
    disk.podman_works();
}

/// A layer that was renamed, and cannot be renamed back, is whole: its intent deletes no image that is on it.
#[test]
fn what_cannot_get_its_name_back_is_not_lost() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    let (intents, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = copies.path().join("full");
    disk.fill();
    store.unmount();
    disk.loopfs.exchange(|image| cp(image, &copy));
    let is_renamed = |step| {
        disk.loopfs.exchange(|image| cp(&copy, image));
        kill_at(store, Recipe::Image, &target, intents.path(), step).unwrap() == "layer renamed"
    };
    assert!((1..20).any(is_renamed));
    disk.empty_again();
    let sign = signs(store).pop().unwrap();
    let chattr = |how: &str| store::succeed(Command::new("chattr").arg(how).arg(&sign));
    chattr("+i");
    let options = Options { intents: Some(intents.path().to_path_buf()), ..Options::default() };
    let editor = edit::with(store, options);
    editor.resume(&|_, _, _| false).unwrap_err();
    assert!(disk.ids().contains(&target), "its layer is whole");
    let has_intent = || std::fs::read_dir(intents.path()).unwrap().count() > 0;
    assert!(has_intent(), "without the sign the intent tells");
    chattr("-i");
    editor.resume(&|_, _, _| false).unwrap();
    assert!(disk.ids().contains(&target) && signs(store).is_empty() && !has_intent());
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

/// The room came from the reserve file, and the intent was tried when there was none: it is written before the records.
#[test]
fn with_the_room_of_the_reserve_file_the_intent_is_written() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    // It makes the reserve file.
    disk.json(0, &["gc", "--via", "direct", "--only", "images", "-y"]);
    disk.fill();
    // What an image has is moved away once its record is gone.
    let images = disk.store.root().join("overlay-images");
    let path = images.to_str().unwrap();
    let flags = ["-e", "trace=renameat2", "-P", path, "-e", "inject=renameat2:error=EIO:when=1"];
    let Some(mut command) = disk.traced(&flags, &GC) else { return };
    let document = node::document(program::run(&mut command).expect_no_crash());
    let intents = || {
        let names = std::fs::read_dir(disk.state()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("intent-")).count()
    };
    assert_eq!(intents(), 1, "{document:#}");
    disk.empty_again();
    assert!(signs(&disk.store).is_empty(), "no layer was emptied for room");
    let next = disk.json(0, &GC);
    assert!(next["resumed"].as_u64().unwrap() > 0 && intents() == 0, "{next:#}");
    let swept = disk.json(0, &["sweep", "--min-age", "0s"]);
    assert!(list(&swept, "/leaks").is_empty(), "{swept:#}");
    assert_eq!(edit::podman_ids(&disk.store), edit::whole(&disk.store));
}
