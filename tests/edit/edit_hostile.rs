//! Deletions in a hostile store: mounts, races, immutable files, odd names.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::ffi::OsStr;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use layersweep::editor::{Options, OrphanAt, PlannedImage, Refusal};
use layersweep::model::Orphan;

use crate::support;
use support::loopfs::BindMount;
use support::program::{self, text};
use support::store::{self, Store};
use support::{edit, small};

/// Returns a store, the planned deletion of one of its images, and the directory of its only layer.
fn with_doomed_image(dir: &Path) -> (Store, PlannedImage, PathBuf) {
    let store = small::still(&dir.join("root"));
    store.unmount();
    let image = store
        .images()
        .into_iter()
        .find(|image| program::texts(image, "/names").contains(&small::name("other")));
    let image = image.unwrap();
    let layer = program::texts(&image, "/layers")[0].clone();
    let directory = store.root().join("overlay").join(layer);
    (store, edit::planned(&image), directory)
}

#[test]
fn mounted_layers_are_kept() {
    if !store::require_tools() || !support::require_program("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, planned, directory) = with_doomed_image(dir.path());
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), b"x").unwrap();
    let inside = directory.join("diff/inside");
    std::fs::create_dir(&inside).unwrap();
    let editor = edit::editor(&store);
    let refused = |what: &str| {
        let before = edit::facts(store.root());
        let error = editor.delete_image(&planned).unwrap_err();
        let Some(Refusal::Mounted { pid, .. }) = error.refusal() else { panic!("{what}: {error}") };
        assert_eq!(edit::facts(store.root()), before, "{what}");
        assert!(outside.join("precious").exists());
        *pid
    };
    // In this process's namespace: a mount on a directory in the layer, and a part of the layer mounted elsewhere.
    let mount = BindMount::new(&outside, &inside);
    assert_eq!(refused("mounted inside"), std::process::id());
    drop(mount);
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mount = BindMount::new(&directory.join("diff"), &elsewhere);
    refused("mounted from it");
    drop(mount);
    // Only in the namespace of another process.
    fn shown(path: &Path) -> String {
        path.display().to_string()
    }
    let link = std::fs::read_to_string(directory.join("link")).unwrap();
    let driver = shown(&store.root().join("overlay"));
    for (what, script) in [
        ("mounted inside, elsewhere", format!("mount --bind {} {}", shown(&outside), shown(&inside))),
        ("mounted from it, elsewhere", format!("mount --bind {} {}", shown(&inside), shown(&elsewhere))),
        // As podman mounts: with short names, relative to the driver's directory.
        (
            "a lower directory, elsewhere",
            format!("cd {driver} && mount -t overlay x -o lowerdir=l/{link}:l {}", shown(&elsewhere)),
        ),
    ] {
        let mut process = in_another_namespace(&script);
        let pid = refused(what);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_ne!(pid, std::process::id(), "{what}");
    }
    // On another layer, whose files may refer to this one, and beside the layers.
    let others = std::fs::read_dir(store.root().join("overlay")).unwrap().map(|entry| entry.unwrap().path());
    let other = others.into_iter().find(|path| *path != directory && path.join("link").exists()).unwrap();
    let mount = BindMount::new(&outside, &other);
    let error = edit::editor(&store).delete_image(&planned).unwrap_err().to_string();
    assert!(error.contains(&shown(&other)) && error.contains("it is a mount point"), "{error}");
    drop(mount);
    let beside = store.root().join("overlay/volume");
    std::fs::create_dir(&beside).unwrap();
    let mount = BindMount::new(&outside, &beside);
    editor.delete_image(&planned).unwrap();
    drop(mount);
    std::fs::remove_dir(&beside).unwrap();
    assert!(outside.join("precious").exists());
    edit::whole(&store);
}

/// Starts a process in a separate mount namespace that has run `script` there.
fn in_another_namespace(script: &str) -> Child {
    let script = format!("{script} && echo ready && exec sleep 60");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{script}");
    child
}

#[test]
fn immutable_open_and_oddly_named_files_are_handled() {
    if !store::require_tools() || !support::require_program("chattr") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, planned, directory) = with_doomed_image(dir.path());
    let diff = directory.join("diff");
    for name in [&b"new\nline"[..], b"\xff\xfe", b"-rf", b" ", b"\x1b[31m"] {
        std::fs::create_dir(diff.join(OsStr::from_bytes(name))).unwrap();
        std::fs::write(diff.join(OsStr::from_bytes(name)).join("file"), b"x").unwrap();
    }
    let sticky = diff.join("sticky");
    std::fs::create_dir(&sticky).unwrap();
    std::fs::write(sticky.join("file"), b"x").unwrap();
    store::succeed(Command::new("chmod").arg("1777").arg(&sticky));
    let open = std::fs::File::create(diff.join("open")).unwrap();
    let stuck = diff.join("stuck");
    std::fs::create_dir(&stuck).unwrap();
    std::fs::write(stuck.join("immutable"), b"x").unwrap();
    fn chattr(flag: &str, path: &Path) -> String {
        store::succeed(Command::new("chattr").arg(flag).arg(path))
    }
    chattr("+i", &stuck.join("immutable"));
    let editor = edit::editor(&store);
    // The layer's directory: it cannot even be moved.
    chattr("+i", &directory);
    let error = editor.delete_image(&planned).unwrap_err();
    chattr("-i", &directory);
    assert_eq!(error.refusal(), Some(&Refusal::Immutable(directory.clone())));
    let done = editor.delete_image(&planned).unwrap();
    drop(open);
    assert!(!directory.exists());
    let failed: Vec<_> = done.failures.iter().map(ToString::to_string).collect();
    assert!(
        failed.iter().any(|line| line.contains("stuck/immutable") && line.contains("lsattr")),
        "{failed:?}"
    );
    // One orphan with only the immutable file is left, and the store works.
    let scan = store.json("scan");
    let leaks = program::list(&scan, "/leaks");
    assert_eq!(leaks.len(), 1, "{leaks:#?}");
    assert_eq!(text(&leaks[0], "/class"), "orphan-dir");
    let orphan = PathBuf::from(text(&leaks[0], "/path"));
    assert_eq!(std::fs::read_dir(orphan.join("diff")).unwrap().count(), 1);
    assert_eq!(edit::podman_ids(&store), edit::ids(program::list(&scan, "/images")));
    store.load(&small::deep());
    store.unmount();
    chattr("-i", &orphan.join("diff/stuck/immutable"));
    let kind = Orphan::LayerDirectory;
    edit::reclaim(&editor, &OrphanAt { kind, path: orphan }, SignedDuration::ZERO).unwrap();
    edit::whole(&store);
}

#[test]
fn racing_symlinks_are_not_followed() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, _, _) = with_doomed_image(dir.path());
    let outside = dir.path().join("outside");
    std::fs::create_dir_all(outside.join("a/b")).unwrap();
    for number in 0..50 {
        std::fs::write(outside.join(format!("a/b/{number}")), b"x").unwrap();
    }
    let editor = edit::editor(&store);
    for round in 0..20_u32 {
        let id = format!("{round:064x}");
        let orphan = store.root().join("overlay").join(&id);
        for number in 0..60 {
            std::fs::create_dir_all(orphan.join(format!("diff/{number}/a/b"))).unwrap();
            for file in 0..10 {
                std::fs::write(orphan.join(format!("diff/{number}/a/b/{file}")), b"x").unwrap();
            }
        }
        let diff = std::fs::File::open(orphan.join("diff")).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Follows the directory wherever it is moved, and swaps its entries.
                use std::os::fd::AsRawFd;
                let here = PathBuf::from(format!("/proc/self/fd/{}", diff.as_raw_fd()));
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    let (name, aside) = (here.join(number.to_string()), here.join("aside"));
                    if std::fs::rename(&name, &aside).is_ok() {
                        let _ = symlink(&outside, &name);
                        let _ = std::fs::remove_file(&name);
                        let _ = std::fs::rename(&aside, &name);
                    }
                    number = (number + 1) % 60;
                }
            });
            let kind = Orphan::LayerDirectory;
            let leftover = OrphanAt { kind, path: orphan.clone() };
            let tempdirs = round % 2 == 0;
            let options = layersweep::editor::Options { tempdirs, ..Default::default() };
            let done = edit::reclaim(&edit::with(&store, options), &leftover, SignedDuration::ZERO);
            over.store(true, Ordering::Relaxed);
            done.unwrap();
        });
        assert_eq!(std::fs::read_dir(outside.join("a/b")).unwrap().count(), 50, "round {round}");
    }
    drop(editor);
    // Everything that the race left is an orphan, and is deleted now without interference.
    for _ in 0..3 {
        let scan = store.json("scan");
        let kind = Orphan::LayerDirectory;
        let left = program::list(&scan, "/leaks").iter();
        for leak in left {
            let left = OrphanAt { kind, path: text(leak, "/path").into() };
            edit::reclaim(&edit::editor(&store), &left, SignedDuration::ZERO).unwrap();
        }
    }
    edit::whole(&store);
}

/// Another process held the locks for a while, and meanwhile a part of an orphan was mounted in a separate namespace.
#[test]
fn mount_made_while_waiting_for_locks_is_seen() {
    if !store::require_tools() || !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let orphan = store.root().join("overlay").join("0a".repeat(32));
    let (diff, elsewhere) = (orphan.join("diff"), dir.path().join("elsewhere"));
    std::fs::create_dir_all(diff.join("precious")).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    let holder: Arc<Mutex<Option<Child>>> = Arc::default();
    let started = Arc::clone(&holder);
    let (from, to) = (diff.clone(), elsewhere);
    let editor = edit::with(
        &store,
        Options {
            on_step: Some(Box::new(move |step: &'static str| {
                let mut holder = started.lock().unwrap();
                if step == "looked" && holder.is_none() {
                    let mut command = Command::new("unshare");
                    command.args([
                        "-m",
                        "--propagation",
                        "private",
                        "sh",
                        "-c",
                        "mount --bind \"$0\" \"$1\" && exec sleep 60",
                    ]);
                    *holder = Some(command.arg(&from).arg(&to).spawn().unwrap());
                    std::thread::sleep(std::time::Duration::from_millis(700));
                }
            })),
            ..Options::default()
        },
    );
    let leftover = OrphanAt { kind: Orphan::LayerDirectory, path: orphan };
    let refused = edit::reclaim(&editor, &leftover, SignedDuration::ZERO).unwrap_err();
    let mut holder = holder.lock().unwrap().take().unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(matches!(refused.refusal(), Some(Refusal::Mounted { .. })), "{refused}");
    assert!(diff.join("precious").exists());
}
