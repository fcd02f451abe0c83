//! Reading changes nothing: no lock file, no access time.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program;
use support::store::{self, Store};
use support::{strace, tree};

/// Returns every reading command with its arguments.
fn commands() -> Vec<Vec<&'static str>> {
    vec![
        vec!["scan"],
        vec!["usage"],
        vec!["images"],
        vec!["layers"],
        vec!["waste"],
        vec!["explain", "localhost/mk/svc-a:1"],
        vec!["doctor"],
    ]
}

fn arguments(command: &[&str], root: &Path, runroot: &Path) -> Vec<std::ffi::OsString> {
    let mut args = program::store_args(command[0], root, runroot);
    args.extend(command[1..].iter().map(Into::into));
    args
}

/// Returns a document without the fields that differ between runs on the same store.
fn timeless(mut document: Value) -> Value {
    forget(&mut document);
    document
}

fn forget(value: &mut Value) {
    const FLEETING: [&str; 13] = [
        "last_used",
        "first_detected_from",
        "cached_layers",
        "measured_layers",
        "generated_at",
        "seconds",
        "age_seconds",
        "used_bytes",
        "available_bytes",
        "used_percent",
        "inodes_free",
        "mount",
        "device",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !FLEETING.contains(&name.as_str()));
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

/// Plants leaks whose proof needs more than the records: names that must be read, temporary files, and questions to
/// processes and podman's database.
fn plant_leaks(root: &Path) {
    let unrecorded = "7".repeat(64);
    let name = root.join("overlay/l/STRAYSTRAYSTRAYSTRAYSTRAYS");
    std::os::unix::fs::symlink(format!("../{unrecorded}/diff"), name).unwrap();
    for directory in ["tmp/buildah1/deep", "volumes/lost/_data"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::create_dir_all(root.join("overlay-containers").join(unrecorded)).unwrap();
}

#[test]
fn read_only_store_has_the_same_figures() {
    if !store::require_tools() {
        return;
    }
    for (fs, options) in [(Fs::Ext4, "ro"), (Fs::Xfs, "ro"), (Fs::Xfs, "ro,norecovery")] {
        if !fs.require() {
            continue;
        }
        let mut loopfs = LoopFs::new(fs, 512 * MIB);
        let store = Store::rig(&loopfs.path().join("root"), "overlay");
        loopfs.sync();
        let writable = timeless(store.json("scan"));
        store.unmount();
        loopfs.remount_with(options);
        let probe = std::fs::write(loopfs.path().join("probe"), "x");
        assert!(probe.is_err(), "{options} is not read-only");
        let read_only = timeless(store.json("scan"));
        assert_eq!(writable, read_only, "on {fs:?} with {options}");
    }
}

#[test]
fn nothing_changes_under_strictatime() {
    if !store::require_tools() {
        return;
    }
    for fs in Fs::ALL {
        if !fs.require() {
            continue;
        }
        let loopfs = LoopFs::with(fs, 512 * MIB, &[], &["strictatime"]);
        let store = Store::rig(&loopfs.path().join("root"), "overlay");
        plant_leaks(store.root());
        loopfs.sync();
        let locks: Vec<_> =
            ["layers.lock", "images.lock", "containers.lock"].map(|name| store.record(name)).into();
        fn tokens(locks: &[std::path::PathBuf]) -> Vec<Vec<u8>> {
            locks.iter().map(|lock| std::fs::read(lock).unwrap()).collect()
        }
        let tokens_before = tokens(&locks); // first, because it changes their access times
        let before = tree::listing(loopfs.path());
        let runroot_before = tree::listing(&store.runroot());
        // The report reads the whole filesystem, which must not be the machine's own.
        for command in commands().into_iter().chain([vec!["report"]]) {
            let args = arguments(&command, store.root(), &store.runroot());
            program::layersweep(args).expect_code(0);
            let now = tree::listing(loopfs.path());
            let changes = tree::differences(&before, &now);
            assert!(changes.is_empty(), "{fs:?} {command:?}: {changes:#?}");
        }
        let changes = tree::differences(&runroot_before, &tree::listing(&store.runroot()));
        assert!(changes.is_empty(), "{fs:?}: {changes:#?}");
        assert_eq!(tokens_before, tokens(&locks));
    }
}

#[test]
fn missing_lock_files_are_not_created() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(&dir.path().join("root"), "overlay");
    let with_locks = store.images();
    for top in [store.root(), &store.runroot()] {
        let found = Command::new("find")
            .arg(top)
            .args(["-name", "*.lock", "-not", "-path", "*/diff/*", "-delete"])
            .status();
        assert!(found.unwrap().success());
    }
    let before = tree::listing(dir.path());
    for command in commands() {
        let args = arguments(&command, store.root(), &store.runroot());
        program::layersweep(args).expect_code(0);
    }
    let changes = tree::differences(&before, &tree::listing(dir.path()));
    assert!(changes.is_empty(), "{changes:#?}");
    assert_eq!(with_locks, store.images());
}

#[test]
fn no_system_call_changes_the_store() {
    if !store::require_tools() || !support::require_program("strace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(&dir.path().join("root"), "overlay");
    plant_leaks(store.root());
    for command in commands() {
        let args = arguments(&command, store.root(), &store.runroot());
        let (run, lines) = strace::trace(&args, store.scratch());
        run.expect_code(0);
        let seen = lines.iter().filter(|line| line.contains("layers.json")).count();
        assert!(seen > 0, "{command:?}: the trace shows no read of the store");
        let offences: Vec<String> = lines
            .iter()
            .filter_map(|line| {
                let why = strace::offence(line, store.root())
                    .or_else(|| strace::offence(line, &store.runroot()))?;
                Some(format!("{why}: {line}"))
            })
            .collect();
        assert!(offences.is_empty(), "{command:?}: {offences:#?}");
    }
}

#[test]
fn offences_are_recognised() {
    let store = Path::new("/s/root");
    for (line, offence) in [
        (r#"7 openat(3</s/root>, "x", O_RDONLY|O_NOATIME) = 4"#, None),
        (r#"7 openat(3</s/root>, "x", O_RDONLY|O_PATH) = 4"#, None),
        (r#"7 openat(3</s/root>, "x", O_RDONLY|O_CLOEXEC) = 4"#, Some("opens with access times")),
        (r#"7 openat(AT_FDCWD</>, "/s/root/x", O_RDWR|O_CREAT, 0644) = 4"#, Some("opens for writing")),
        (r#"7 readlinkat(3</s/root/overlay/l>, "X", "y", 99) = 1"#, Some("reads a symlink")),
        (r#"7 readlink("/s/root", 0x7, 1023) = -1 EINVAL (Invalid)"#, None),
        (r#"7 readlink("/proc/7/fd/8", "/s/root/x", 256) = 9"#, None),
        (r#"7 unlink("/s/root/x") = 0"#, Some("changes something")),
        (r#"7 open_tree(3</s/root/overlay/l>, "", OPEN_TREE_CLONE|AT_EMPTY_PATH) = 4"#, None),
        (r#"7 open_tree(3</s/root/overlay/l>, "", AT_EMPTY_PATH) = 4"#, Some("changes something")),
        (r#"7 openat(AT_FDCWD</>, "/etc/x", O_RDWR) = 4"#, None),
        (r#"7 write(1</dev/pts/0>, "/s/root", 7) = 7"#, None),
        (r#"7 pwrite64(4</s/root/x>, "a", 1, 0) = 1"#, Some("changes something")),
    ] {
        assert_eq!(strace::offence(line, store), offence, "{line}");
    }
}
