//! Processes and mounts of other users: no command waits for them, no lock is held for them, and they keep no image
//! that their user could not use.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use layersweep::editor::Refusal;

use crate::support;
use support::hostile::{self, Hostile, NOBODY, Unmounted};
use support::locks::Readers;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program;
use support::store::{self, Store};
use support::{edit, small};

/// Timeout for every command.
const ENOUGH: Duration = Duration::from_secs(30);

/// Maximum time for which a lock may be held for a proof.
const MOST_LOCKED: Duration = Duration::from_millis(200);

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn directory(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Makes a directory that every user can reach.
fn open_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn store_command(store: &Store, words: &[&str]) -> Command {
    with_settings(store, words, "")
}

fn with_settings(store: &Store, words: &[&str], settings: &str) -> Command {
    let config = store.scratch().join("layersweep.toml");
    std::fs::write(&config, format!("{settings}\n[images]\nmin_age = \"0s\"\n")).unwrap();
    let mut command = program::command();
    command.args(words).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    command.arg("--state-dir").arg(store.scratch().join("state")).arg("--config").arg(config);
    command
}

/// Runs a command that must end; returns its exit code and its messages.
fn ends(command: &mut Command) -> (i32, String) {
    program::consent(command);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
            return (status.code().unwrap_or(-1), said);
        }
        if start.elapsed() > ENOUGH {
            // If the process waits in the kernel, this does not end it either.
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        slowest = slowest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Deletes the image `other` directly; podman does not have to wait meanwhile.
fn deletes_other(store: &Store) {
    let rm = ["rm", "--via", "direct", "--yes", &small::name("other")];
    let (code, said) = ends(&mut store_command(store, &rm));
    assert_eq!(code, 0, "{said}");
    ends(store.podman_command().args(["images", "-q"]));
    assert!(!store.podman(["images"]).contains("small/other"));
    // The other tools still work.
    store.load(&[small::image("other")]);
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

#[test]
fn process_rooted_on_silent_filesystem_does_not_block() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::store(&dir.path().join("root"));
    let [below, other, merged] = ["below", "other", "merged"].map(|name| directory(dir.path(), name));
    let _below = Unmounted(&below);
    let _merged = Unmounted(&merged);
    let mut fuse = Hostile::fuse(&below, "0", "allow_other");
    // Without an upper directory, whose root the kernel could examine itself.
    let options = format!("lowerdir={}:{}", shown(&below), shown(&other));
    store::succeed(Command::new("mount").args(["-t", "overlay", "x", "-o", &options]).arg(&merged));
    let _process = Hostile::new(&["root", shown(&merged)]);
    fuse.fall_silent();
    deletes_other(&store);
    let gc = ["gc", "--via", "direct", "--yes", "--max-age", "1s"];
    std::thread::sleep(Duration::from_secs(2));
    let run = program::run(store_command(&store, &gc).args(["--format", "json"]));
    // The disk may be fuller than these images can change.
    assert!(matches!(run.code, 0 | 4), "{run:?}");
    // Only the image of the container is left.
    assert_eq!(edit::podman_ids(&store).len(), 1);
}

#[test]
fn private_root_of_process_refuses_nothing() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let dir = open_directory();
    let hidden = directory(dir.path(), "hidden");
    let _hidden = Unmounted(&hidden);
    let store = small::store(&dir.path().join("root"));
    let _fuse = Hostile::fuse(&hidden, NOBODY, "");
    let process = Hostile::new(&["root", shown(&hidden), NOBODY]);
    let root = std::fs::metadata(format!("/proc/{}/root", process.id()));
    assert!(root.is_err(), "this is what it is about");
    deletes_other(&store);
}

#[test]
fn unreadable_arguments_stop_no_command() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::store(&disk.path().join("root"));
    let place = directory(disk.path(), "fuse");
    let mut fuse = Hostile::private_fuse(&place, "0", "allow_other");
    let page = fuse.path(&place.join("page"));
    let _process = Hostile::new(&["hide", shown(&page), &"x".repeat(1 << 14)]);
    // This process also holds the lock that kernels since 6.18 take before they read a link of a process.
    let mut other = Hostile::new(&["exec", shown(&page)]);
    fuse.fall_silent();
    other.fall_silent();
    for words in [
        &["scan", "--no-record"][..],
        &["usage"],
        &["images"],
        &["sweep"],
        &["sweep", "--delete", "--yes"],
        &["report"],
        &["doctor"],
        &["gc", "--via", "direct", "--yes", "--high", "1", "--low", "0"],
    ] {
        let (code, said) = ends(&mut store_command(&store, words));
        assert!(code >= 0 && !said.contains("panicked"), "{words:?}: {code} {said}");
    }
    // gc may have deleted the image.
    store.load(&[small::image("other")]);
    deletes_other(&store);
}

/// A silent filesystem in the test's own mount namespace, where every command meets it: below a layer, beside the
/// layers, among the logs and in their place, mounted by a user and by root.
#[test]
fn silent_filesystem_is_skipped() {
    if !store::require_tools() || !hostile::require() || !support::require_program("unshare") {
        return;
    }
    // A separate disk: `report` reads everything on it.
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let dir = disk.path();
    let store = small::store(&dir.join("root"));
    store.unmount();
    let images = store.images();
    let layer = store.root().join("overlay").join(&program::texts(&images[0], "/layers")[0]);
    let beside = directory(&store.root().join("overlay"), "beside");
    let logs = directory(dir, "log");
    let other = layer.join("diff").join("none");
    let script = r#"
mount --make-rprivate /
mount --bind "$LOGS" /var/log
mkdir -p "$AT"
# Messages of the previous process must not be taken for those of this one: a signal before it is ready would end it.
: >"$SAID"
python3 "$RIG" serve "$AT" "$OWNER" allow_other >"$SAID" &
fuse=$!
said() { until grep -q "$1" "$SAID"; do kill -0 $fuse || exit 1; sleep 0.01; done; }
said ready
kill -USR1 $fuse
said silent
code=0
for words in "scan --no-record" usage images layers "report --format json" doctor "sweep --delete --yes" "explain /var/log/x" "explain $OTHER"; do
    timeout -k 1 20 "$PROGRAM" $words "$@" >>"$SAID" 2>&1 || code=$?
    [ $code -lt 124 ] || echo "it waits: $words"
done
kill -9 $fuse
"#;
    for (mount, owner) in [
        (layer.join("diff/none"), NOBODY),
        (beside.clone(), "0"),
        (PathBuf::from("/var/log/of-a-user"), NOBODY),
        (PathBuf::from("/var/log"), NOBODY),
        (PathBuf::from("/var/log"), "0"),
    ] {
        let said = dir.join("said");
        let layersweep = store_command(&store, &[]);
        let mut command = Command::new("unshare");
        program::hermetic(&mut command);
        command.args(["--mount", "sh", "-c", script, "sh"]).args(layersweep.get_args());
        command
            .env("PROGRAM", layersweep.get_program())
            .env("RIG", store::rig("hostile.py"))
            .env("LOGS", &logs);
        command.env("AT", &mount).env("OWNER", owner).env("SAID", &said).env("OTHER", &other);
        let run = program::run(&mut command);
        let said = std::fs::read_to_string(&said).unwrap();
        assert_eq!(
            (run.stdout.as_str(), run.code),
            ("", 0),
            "{}, {owner}: {}{said}",
            mount.display(),
            run.stderr
        );
        if mount == Path::new("/var/log") {
            assert!(said.contains("is on a filesystem that may hang"), "{owner}: {said}");
        }
    }
}

#[test]
fn direct_deletion_in_pid_namespace_is_refused() {
    if !store::require_tools() || !support::require_program("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::store(&dir.path().join("root"));
    let before = edit::facts(store.root());
    let inside = |words: &[&str], settings: &str| {
        let layersweep = with_settings(&store, words, settings);
        let mut command = Command::new("unshare");
        program::hermetic(&mut command);
        command
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(layersweep.get_program())
            .args(layersweep.get_args());
        ends(&mut command)
    };
    let other = small::name("other");
    for words in [
        &["rm", "--via", "direct", "--yes", &other][..],
        &["gc", "--via", "direct", "--yes", "--high", "1", "--low", "0", "--min-age", "0s"],
        &["sweep", "--delete", "--yes"],
    ] {
        let (code, said) = inside(words, "");
        assert_eq!(code, 5, "{words:?}: {said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
        assert!(said.contains("hint: ") && said.contains("trust_pid_namespace"), "{said}");
        assert_eq!(edit::facts(store.root()), before, "{words:?}");
    }
    let (code, said) = inside(&["rm", "--via", "direct", "--yes", &other], "trust_pid_namespace = true");
    assert_eq!(code, 0, "{said}");
    assert!(!edit::podman_ids(&store).is_empty());
    assert!(!store.podman(["images"]).contains("small/other"));
}

/// Runs a collection that deletes every unused image, one with many files; readers of the store do not wait for it.
fn collected_without_keeping_others(store: &Store, layer: &str) {
    for number in 0..20_000 {
        let diff = store.root().join("overlay").join(layer).join("diff");
        std::fs::File::create(diff.join(number.to_string())).unwrap();
    }
    store.unmount();
    std::thread::sleep(Duration::from_millis(1100));
    let locks = ["layers.lock", "images.lock"].map(|name| (name, Readers::start(&store.record(name))));
    let gc = ["gc", "--via", "direct", "--yes", "--high", "99", "--low", "98", "--max-age", "1s"];
    let (code, said) = ends(&mut store_command(store, &gc));
    for (name, readers) in locks {
        let waited = readers.end();
        assert!(waited < MOST_LOCKED, "{name}: {waited:?}");
    }
    assert_eq!(code, 0, "{said}");
    assert_eq!(edit::podman_ids(store).len(), 1, "the image of the container");
}

/// Readers of the store do not wait for the deletion of files without a record, however many. Podman's mount of the
/// driver's directory on itself exists, as on a node.
#[test]
fn many_files_without_record_do_not_block() {
    if !store::require_tools() {
        return;
    }
    let dir = open_directory();
    let store = small::still(&dir.path().join("root"));
    std::fs::set_permissions(store.root(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let overlay = store.root().join("overlay");
    let id = "0e".repeat(32);
    let orphans = ["overlay-images", "overlay-layers"].map(|kind| store.root().join(kind).join(&id));
    for is_mounted in [true, false] {
        store.unmount();
        let _mount = is_mounted.then(|| support::loopfs::BindMount::new(&overlay, &overlay));
        for orphan in &orphans {
            std::fs::create_dir(orphan).unwrap();
            for number in 0..20_000 {
                std::fs::File::create(orphan.join(number.to_string())).unwrap();
            }
        }
        let locks = ["layers.lock", "images.lock"].map(|name| (name, Readers::start(&store.record(name))));
        let (code, said) =
            ends(&mut store_command(&store, &["sweep", "--delete", "--yes", "--min-age", "0s"]));
        for (name, readers) in locks {
            let waited = readers.end();
            assert!(waited < MOST_LOCKED, "{name}: {waited:?}");
        }
        assert_eq!(code, 0, "{said}");
        for gone in orphans.iter().chain(&[overlay.join("tempdirs"), store.root().join("overlay-layers/tmp")])
        {
            assert!(!gone.exists(), "{gone:?}: {said}");
        }
    }
    edit::whole(&store);
}

#[test]
fn foreign_mounts_hold_no_lock_and_keep_nothing() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let dir = open_directory();
    let store = small::store(&dir.path().join("root"));
    // As podman does.
    std::fs::set_permissions(store.root(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let images = store.images();
    let image = images.iter().find(|image| program::texts(image, "/names").contains(&small::name("other")));
    let image = image.unwrap();
    let layer = &program::texts(image, "/layers")[0];
    let place = directory(dir.path(), "many");
    let _many = Hostile::new(&["mounts", shown(&place), NOBODY, "36000"]);
    let _overlay = Hostile::new(&["overlay", shown(&place), NOBODY, layer]);
    let editor = edit::editor(&store);
    let deleted = edit::delete(&editor, image);
    assert!(deleted.locked_for < MOST_LOCKED, "{:?}", deleted.locked_for);
    store.load(&[small::image("other")]);
    collected_without_keeping_others(&store, layer);
    store.load(&[small::image("other")]);
    // A user who can reach the store may use it: the image is kept, and the lock is not held for that proof.
    std::fs::set_permissions(store.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["overlay", "overlay-layers", "overlay-images", "overlay-containers"] {
        let path = store.root().join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let error = editor.delete_image(&edit::planned(image)).unwrap_err();
    let Some(refusal @ Refusal::Mounted { .. }) = error.refusal() else { panic!("{error}") };
    assert!(refusal.is_running(), "{refusal}");
    drop(_overlay);
    let deleted = edit::delete(&editor, image);
    assert!(deleted.locked_for < MOST_LOCKED, "{:?}", deleted.locked_for);
    edit::whole(&store);
}

/// Maximum time that processes and mounts of other users may cost a command, with some reserve for a busy machine.
const STRANGERS_COST: Duration = Duration::from_secs(3);

/// Runs a command; returns its exit code, its messages and its time.
fn timed(store: &Store, words: &[&str]) -> (i32, String, Duration) {
    let start = Instant::now();
    let (code, said) = ends(&mut store_command(store, words));
    (code, said, start.elapsed())
}

#[test]
fn mount_tables_of_strangers_cost_nothing() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let dir = open_directory();
    let store = small::still(&dir.path().join("root"));
    // As podman and CRI-O make it: everyone reaches the graphroot, but no directory in it.
    std::fs::set_permissions(store.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let commands = [
        &["scan", "--no-record"][..],
        &["sweep", "--delete", "--yes"],
        &["gc", "--via", "direct", "--yes", "--high", "99", "--low", "98", "--max-age", "365d"],
        &["rm", "--via", "direct", "--yes", &small::name("other")],
    ];
    let run = || commands.map(|words| (words, timed(&store, words)));
    let before = run();
    let time_of_scan = before[0].1.2;
    store.load(&[small::image("other")]);
    let strangers: Vec<_> = (0..8)
        .map(|number| {
            let place = directory(dir.path(), &format!("many{number}"));
            std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).unwrap();
            Hostile::new(&["stack", shown(&place), NOBODY, "32768"])
        })
        .collect();
    for ((words, (code, said, time)), (_, (code_before, _, time_before))) in run().into_iter().zip(before) {
        assert_eq!((code, code_before), (0, 0), "{words:?}: {said}");
        assert!(
            time < time_before + STRANGERS_COST,
            "{words:?}: {time:?}, without strangers {time_before:?}"
        );
    }
    // The layers are open to all now.
    std::fs::set_permissions(store.root().join("overlay"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, said, time) = timed(&store, &["scan", "--no-record"]);
    assert_eq!((code, said.matches("mounts of process").count()), (3, 1), "{said}");
    assert!(time < time_of_scan + STRANGERS_COST, "{time:?}, without strangers {time_of_scan:?}");
    drop(strangers);
    edit::whole(&store);
}

/// Returns true if the kernel waits for a process when one of its links is read.
fn is_waited_for(pid: u32) -> bool {
    let (sender, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(std::fs::read_link(format!("/proc/{pid}/exe"))));
    answered.recv_timeout(Duration::from_millis(500)).is_err()
}

#[test]
fn silent_process_is_named_once_and_hides_only_itself() {
    if !store::require_tools() || !hostile::require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("root"));
    let usage = ["usage", "--format", "json"];
    let (code, said, time_before) = timed(&store, &usage);
    assert_eq!(code, 0, "{said}");
    let place = directory(disk.path(), "fuse");
    let mut fuse = Hostile::private_fuse(&place, "0", "allow_other");
    let mut silent = Hostile::new(&["exec", shown(&fuse.path(&place.join("page")))]);
    // A process that is examined after the silent one has a deleted file open.
    let path = disk.path().join("gone");
    std::fs::write(&path, vec![1; 8 << 20]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let mut holder = Command::new("sleep").arg("600").stdin(file).spawn().unwrap();
    std::fs::remove_file(&path).unwrap();
    fuse.fall_silent();
    silent.fall_silent();
    std::thread::sleep(Duration::from_millis(100));
    let is_hidden = is_waited_for(silent.id());
    let run = program::run(&mut store_command(&store, &usage));
    let (_, _, time) = timed(&store, &usage);
    for words in [
        &["scan", "--no-record"][..],
        &["gc", "--via", "direct", "--yes", "--high", "99", "--low", "98", "--max-age", "365d"],
        &["rm", "--via", "direct", "--yes", &small::name("other")],
    ] {
        let (code, said, time) = timed(&store, words);
        assert!(matches!(code, 0 | 3), "{words:?}: {said}");
        assert!(time < time_before + STRANGERS_COST, "{words:?}: {time:?}");
    }
    holder.kill().and_then(|()| holder.wait()).unwrap();
    assert!(time < time_before + STRANGERS_COST, "{time:?}, before {time_before:?}");
    assert!(run.stdout.contains(&format!("sleep (pid {})", holder.id())), "{}", run.stdout);
    let name = format!("process {} ", silent.id());
    let expected = if is_hidden { (3, 1) } else { (0, 0) };
    // The document contains the warnings.
    assert_eq!((run.code, run.stdout.matches(&name).count()), expected, "{run:?}");
    assert!(!run.stdout.contains("mountinfo") && !run.stdout.contains("hidden below"), "{run:?}");
}
