//! Stores that nothing is deleted from: additional image stores, and stores on a read-only mount.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use crate::support;
use serde_json::Value;
use support::archive::ImageSpec;
use support::gc_document::{deleted, kept, rule};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, Run, list, number, text};
use support::store::{self, Store, succeed};
use support::{node, small};

/// Runs the program with the `storage.conf` of `store`.
fn run(store: &Store, words: &[&str]) -> Run {
    let mut command = program::command();
    command.args(words).arg("--state-dir").arg(store.scratch().join("state"));
    command.env("CONTAINERS_STORAGE_CONF", store.scratch().join("storage.conf"));
    program::run(&mut command).expect_no_crash()
}

fn json(store: &Store, code: i32, words: &[&str]) -> Value {
    node::document(run(store, &[words, &["--format", "json"]].concat()).expect_code(code))
}

#[test]
fn additional_store_has_exclusive_bytes_and_frees_nothing() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let twin = ImageSpec { names: vec![small::name("twin")], label: "twin".into(), ..small::image("b") };
    let images = [&["base", "a", "a2", "b", "other"].map(small::image)[..], &[twin]].concat();
    let lender = Store::of(&dir.path().join("lender"), "overlay", &images);
    let store = Store::at(&dir.path().join("root"), "overlay");
    let config = store.scratch().join("storage.conf");
    let options = format!("[storage.options]\nadditionalimagestores = [{:?}]\n", lender.root());
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &options).unwrap();
    // podman without flags, which would make it forget the additional store.
    fn podman(store: &Store, words: &[&str]) -> String {
        succeed(store.command("podman").args(words))
    }
    podman(&store, &["create", "--name", "job", "--network", "none", &small::name("b"), "/x"]);
    podman(&store, &["commit", "-q", "job", "localhost/on-b:1"]);
    podman(&store, &["rm", "job"]);
    lender.unmount();
    store.unmount();

    let listed = json(&store, 0, &["images"]);
    let other = node::image(&listed, &small::name("other"));
    assert!(number(other, "/exclusive_bytes") > 0, "{other:#}");
    assert_eq!(
        number(other, "/exclusive_bytes") + number(other, "/shared_bytes"),
        number(other, "/total_bytes")
    );
    assert_eq!((number(other, "/frees_bytes"), &other["pinned"]), (0, &Value::from(true)), "{other:#}");
    assert!(text(other, "/pinned_by/0").contains("read-only store"), "{other:#}");
    let explained = run(&store, &["explain", &small::name("other")]).expect_code(0).stdout;
    let exclusive = explained.lines().find(|line| line.contains("bytes) exclusive")).unwrap();
    assert!(!exclusive.contains(" 0 B (0 bytes) exclusive"), "{explained}");

    let usage = json(&store, 0, &["usage"]);
    let lines = list(&usage, "/filesystems/0/rows").iter();
    let line = |kind: &str| lines.clone().find(|line| line["kind"] == kind);
    let pinned = list(&listed, "/images").iter().filter(|image| image["pinned"] == true);
    let line_of_pinned = line("images_pinned").unwrap_or_else(|| panic!("{usage:#}"));
    assert_eq!(number(line_of_pinned, "/count"), pinned.count() as u64);
    assert_eq!(number(line_of_pinned, "/reclaimable_bytes"), 0);
    let in_use = line("images_in_use");
    assert!(in_use.is_none_or(|line| line["bytes"] == 0), "{usage:#}");

    // The command in the detail works.
    let rm = ["rm", "--via", "direct", "--min-age", "0s", &small::name("other")];
    let refused = json(&store, 5, &rm);
    assert_eq!(rule(&refused, &small::name("other")), "read-only-store");
    let detail = text(kept(&refused, &small::name("other")), "/detail");
    let flag = detail.split_once("--graphroot ").unwrap_or_else(|| panic!("{detail}")).1.to_owned();
    assert_eq!(flag, lender.root().display().to_string());
    let named = [&rm[..], &["--graphroot", &flag]].concat();
    assert_eq!(deleted(&json(&store, 0, &named)), [small::name("other")]);

    // A run cannot delete from a read-only mount, so a dry run must not promise it.
    let name = small::name("a2");
    let rm = ["rm", "--via", "direct", "--min-age", "0s", &name, "--graphroot", &flag];
    succeed(Command::new("mount").args(["--bind", &flag, &flag]));
    succeed(Command::new("mount").args(["-o", "remount,bind,ro", &flag]));
    for words in [&["--dry-run"][..], &[]] {
        let refused = json(&store, 5, &[&rm[..], words].concat());
        assert!(text(&refused, "/errors/0/message").contains("is mounted read-only"), "{refused:#}");
    }
    succeed(Command::new("umount").arg(&flag));
    assert_eq!(deleted(&json(&store, 0, &rm)), [name]);
}

/// Deletes the files that a creator that dies early has not stored.
fn lose_data(store: &Store, keep_configuration: bool) -> String {
    let path = store.record("images.json");
    let mut images: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let record = images[0].as_object_mut().unwrap();
    let id = record["id"].as_str().unwrap().to_owned();
    if keep_configuration {
        std::fs::remove_file(path.with_file_name(&id).join("manifest")).unwrap();
    } else {
        succeed(Command::new("rm").arg("-r").arg(path.with_file_name(&id)));
        record.retain(|key, _| !key.starts_with("big-data") && key != "digest");
    }
    std::fs::write(path, serde_json::to_vec(&images).unwrap()).unwrap();
    id
}

/// Marks a layer that its creator has not finished.
fn flag_incomplete(store: &Store) -> String {
    let path = store.record("layers.json");
    let mut layers: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let id = "5e".repeat(32);
    layers.push(
        serde_json::json!({"id": id, "flags": {"incomplete": true}, "created": "2026-01-01T00:00:00Z"}),
    );
    std::fs::write(path, serde_json::to_vec(&layers).unwrap()).unwrap();
    id
}

#[test]
fn image_without_manifest_is_found_with_every_driver() {
    if !store::require_tools() {
        return;
    }
    for driver in ["overlay", "vfs", "btrfs"] {
        let (dir, loopfs);
        let root = if driver == "btrfs" {
            if !Fs::Btrfs.require() {
                continue;
            }
            loopfs = LoopFs::new(Fs::Btrfs, 256 * MIB);
            loopfs.path().join("root")
        } else {
            dir = tempfile::tempdir().unwrap();
            dir.path().join("root")
        };
        let images = ["base", "other"].map(small::image);
        let store =
            if driver == "btrfs" { Store::at(&root, driver) } else { Store::of(&root, driver, &images) };
        if driver == "btrfs" {
            store.load(&images);
        }
        store.unmount();
        let lost = lose_data(&store, driver == "vfs");
        fn podman(store: &Store, words: &[&str]) -> program::Run {
            program::run(store.podman_command().args(words))
        }
        assert_ne!(podman(&store, &["images"]).code, 0, "{driver}: podman fails");
        store.unmount();
        // Incomplete figures (exit code 3) with btrfs.
        let sweep = store.run("sweep").json();
        let leak = list(&sweep, "/leaks").iter().find(|leak| leak["class"] == "broken-image");
        let leak = leak.unwrap_or_else(|| panic!("{driver}: {sweep:#}"));
        assert_eq!(text(leak, "/id"), lost);
        assert_eq!(leak["command"], Value::Null, "{driver}: it was loaded, and perhaps exists only here");
        if driver == "btrfs" {
            podman(&store, &["rmi", &lost]).expect_code(0);
        } else {
            let root = store.root().display().to_string();
            let rm = ["rm", "--via", "direct", "--min-age", "0s", &lost, "--graphroot", &root];
            run(&store, &rm).expect_code(0);
        }
        assert_eq!(
            podman(&store, &["images", "--quiet"]).expect_code(0).stdout.lines().count(),
            1,
            "{driver}"
        );
        store.unmount();
        let incomplete = flag_incomplete(&store);
        let sweep = store.run("sweep").json();
        let mut leaks = list(&sweep, "/leaks").iter();
        let has_leak = leaks
            .any(|leak| text(leak, "/class").starts_with("incomplete") && text(leak, "/id") == incomplete);
        assert!(has_leak, "{driver}: {sweep:#}");
    }
}

/// Images that are shipped on a read-only filesystem, which is always full.
#[test]
fn full_read_only_filesystem_raises_no_alarm() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let mut shipped = LoopFs::new(Fs::Ext4, 32 * MIB);
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let lender = Store::of(&shipped.path().join("lender"), "overlay", &["base", "other"].map(small::image));
    lender.unmount();
    let full = std::fs::write(shipped.path().join("pad"), vec![1; 32 << 20]);
    assert!(full.is_err());
    shipped.remount_with("ro");
    let store = Store::of(&disk.path().join("root"), "overlay", &[small::image("a")]);
    store.unmount();
    let config = store.scratch().join("storage.conf");
    let options = format!("[storage.options]\nadditionalimagestores = [{:?}]\n", lender.root());
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &options).unwrap();
    let report = json(&store, 0, &["report"]);
    let mount = shipped.path().to_str().unwrap();
    assert!(text(&report, "/verdict/sentences/0").starts_with(disk.path().to_str().unwrap()), "{report:#}");
    assert_eq!(text(&report, "/verdict/urgency"), "calm", "{report:#}");
    let causes = list(&report, "/verdict/causes").iter();
    assert_eq!(causes.filter(|cause| text(cause, "/filesystem") == mount).count(), 0, "{report:#}");
    let filesystems = list(&report, "/filesystems").iter();
    let read_only = filesystems.clone().find(|filesystem| text(filesystem, "/mount") == mount).unwrap();
    let kinds: Vec<_> = list(read_only, "/parts").iter().map(|part| text(part, "/kind")).collect();
    assert!(kinds.contains(&"images-pinned") && !kinds.contains(&"images"), "{kinds:?}");
    let doctor = node::document(run(&store, &["doctor", "--format", "json"]));
    let mut checks = list(&doctor, "/checks").iter();
    let check = checks.find(|check| check["name"] == "disk-usage" && check["object"] == mount).unwrap();
    assert_eq!(check["status"], "ok", "{check:#}");
    drop(lender);
}
