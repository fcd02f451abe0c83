//! Each command of layersweep that a screen, a document or a page names works as printed.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;
use std::path::Path;

use crate::support;
use support::containerd::rebuild;
use support::loopfs::{Fs, LoopFs, MIB};
use support::own_commands;
use support::program;
use support::small;
use support::store;

/// Commands whose output names other commands.
const SCREENS: &[&[&str]] = &[
    &["scan"],
    &["usage"],
    &["usage", "--since", "1h"],
    &["images"],
    &["layers"],
    &["waste"],
    &["waste", "localhost/small/a:1", "--files"],
    &["report"],
    &["report", "--format", "json"],
    &["doctor"],
    &["doctor", "--format", "json"],
    &["explain", "localhost/small/a:1"],
    &["explain", "localhost/small/a:1", "--format", "json"],
    &["explain", "no-such-image"],
    &["sweep"],
    &["sweep", "--format", "json"],
    &["sweep", "--delete", "--dry-run"],
    &["gc", "--dry-run"],
    &["gc", "--dry-run", "--high", "2", "--low", "1"],
    &["gc", "--dry-run", "--high", "2", "--low", "1", "--format", "json"],
    &["gc", "--dry-run", "--via", "direct", "--high", "2", "--low", "1", "--min-age", "0s"],
    &["rm", "--dry-run", "localhost/small/a:1"],
    &["rm", "--dry-run", "no-such-image"],
    &["history"],
    &["history", "no-such-image"],
    &["history", "--scans"],
    &["history", "usage"],
    &["history", "--repull", "no-such-run"],
    &["diff"],
    &["pin", "list"],
    &["fits", "registry.example/new:1"],
    &["fits", "localhost/small/a:1", "--format", "json"],
];

/// Runs all screens with these flags, and each command that they name.
fn check(flags: &[&str]) -> BTreeSet<String> {
    let is_foreign = flags.contains(&"--sysroot");
    let run = |words: &[&str]| program::layersweep([words, flags].concat()).expect_no_crash();
    let mut commands = BTreeSet::new();
    for words in SCREENS {
        commands.extend(own_commands::in_run(&run(words)));
    }
    let page = tempfile::NamedTempFile::new().unwrap();
    run(&["report", "--html", page.path().to_str().unwrap()]);
    commands.extend(own_commands::in_page(&std::fs::read_to_string(page.path()).unwrap()));
    assert!(commands.len() > 5, "{commands:?}");
    for command in &commands {
        own_commands::assert_works(command, is_foreign);
    }
    commands
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn printed_commands_work_on_named_podman_store() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("its storage"));
    let state = tempfile::Builder::new().prefix("it's ").tempdir().unwrap();
    let (root, runroot, state) = (text(store.root()), text(&store.runroot()), text(state.path()));
    let flags = ["--graphroot", &root, "--runroot", &runroot, "--state-dir", &state];
    let orphan = store.root().join("overlay").join("0".repeat(64)).join("diff");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("data"), vec![1; 1 << 20]).unwrap();
    let commands = check(&flags);
    let named = |command: &&String| command.contains("--graphroot '") && command.contains("--state-dir '");
    assert_eq!(commands.iter().find(|command| !named(command)), None);
    // Records that cannot be read.
    std::fs::write(store.record("images.json"), "[{").unwrap();
    check(&flags);
}

#[test]
fn printed_commands_work_on_store_of_user() {
    if !support::require_root() || !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("storage"));
    store.unmount();
    store::succeed(std::process::Command::new("chown").arg("-R").arg("5001:5001").arg(store.root()));
    let state = tempfile::tempdir().unwrap();
    let (root, runroot, state) = (text(store.root()), text(&store.runroot()), text(state.path()));
    check(&["--graphroot", &root, "--runroot", &runroot, "--state-dir", &state]);
}

#[test]
fn printed_commands_work_on_named_containerd_root() {
    if !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let root = text(&rebuild("2.3.4", disk.path()));
    let state = tempfile::tempdir().unwrap();
    let commands = check(&["--containerd-root", &root, "--state-dir", &text(state.path())]);
    assert!(commands.iter().all(|command| command.contains("--containerd-root ")), "{commands:?}");
}

#[test]
fn printed_commands_work_on_mounted_disk() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("var/lib/containers/storage"));
    store.unmount();
    let commands = check(&["--sysroot", &text(disk.path())]);
    let most = commands.iter().map(|command| command.matches("--sysroot").count()).max();
    assert_eq!(most, Some(1), "{commands:?}");
}
