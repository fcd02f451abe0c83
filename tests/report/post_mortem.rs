//! A node is dead and its disk is attached elsewhere: one command must name what filled it.
//!
//! The disk is a filesystem in a file, with a store that podman has made, files of a kubelet, and the node's own
//! records, written by the program in the node's root. Planted on it are a leak, an image that is pinned without need,
//! a dead container and a large log.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use serde_json::Value;

use crate::support;
use support::loopfs::{BindMount, Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::{self, Store};
use support::{schema, small, tree};

const POD: &str = "11111111-2222-4333-8444-555555555555";
const PINNED: &str = "registry.example.org/old/tool:3";
const LAYER: &str = "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd";

/// Sizes of the planted files in MiB.
const LOG: u64 = 90;
const DEAD: u64 = 60;
const PIN: u64 = 40;
const LEAK: u64 = 30;
const UNUSED: u64 = 20;
const VOLUME: u64 = 10;

/// Writes bytes that no filesystem can compress.
fn write(path: &Path, mib: u64) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut random = std::fs::File::open("/dev/urandom").unwrap().take(mib * MIB);
    let mut file = std::fs::File::create(path).unwrap();
    std::io::copy(&mut random, &mut file).unwrap();
    file.flush().unwrap();
}

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn import(store: &Store, mib: u64, name: &str) {
    let dir = store.scratch().join("content");
    write(&dir.join("blob"), mib);
    let archive = store.scratch().join("content.tar");
    store::succeed(store.command("tar").arg("-C").arg(&dir).arg("-cf").arg(&archive).arg("blob"));
    store.podman([OsStr::new("import"), "-q".as_ref(), archive.as_ref(), name.as_ref()]);
}

/// Makes a node as it was when it died; returns its store and the id of its dead container.
fn fill(root: &Path) -> (Store, String) {
    put(root, "etc/hostname", "node-7.example.org\n");
    put(
        root,
        "etc/containers/storage.conf",
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"/var/lib/containers/storage\"\n\
         runroot = \"/run/containers/storage\"\n",
    );
    put(root, "etc/crio/crio.conf", &format!("[crio.image]\npinned_images = [\"{PINNED}\"]\n"));
    put(
        root,
        "var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
         imageGCHighThresholdPercent: 80\nevictionHard:\n  imagefs.available: 12%\n  nodefs.available: 10%\n",
    );
    // Just planted leaks are old enough with this configuration. The other one is for a disk that must be emptier.
    // The images of both are imported, in the place of pulled ones.
    let imported = "[protect]\nnot_repullable = \"never\"\n";
    put(root, "etc/layersweep/layersweep.toml", &format!("{imported}[leaks]\nmin_age = \"0s\"\n"));
    put(
        root,
        "etc/layersweep/tight.toml",
        &format!("{imported}[images]\nhigh_percent = 20\nlow_percent = 10\nmin_age = \"0s\"\n"),
    );
    let store = Store::at(&root.join("var/lib/containers/storage"), "overlay");
    import(&store, PIN, PINNED);
    import(&store, UNUSED, "registry.example.org/web:1");
    import(&store, 2, "registry.example.org/batch:1");
    let container = store.podman(["create", "--name", "batch-7", "registry.example.org/batch:1", "true"]);
    let container = container.trim().to_owned();
    let mounted = store.podman(["mount", &container]);
    write(&Path::new(mounted.trim()).join("scratch"), DEAD);
    store.podman(["umount", &container]);
    store.unmount();
    let orphan = root.join("var/lib/containers/storage/overlay").join(LAYER);
    write(&orphan.join("diff/file"), LEAK);
    std::fs::write(orphan.join("link"), "ABCDEFGHIJKLMNOPQRSTUVWXYZ").unwrap();
    write(&root.join(format!("var/log/pods/shop_cart-0_{POD}/cart/0.log")), LOG);
    write(
        &root.join(format!("var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/cache/file")),
        VOLUME,
    );
    write(&root.join("var/log/journal/0123/system.journal"), 4);
    write(&root.join("var/log/messages"), 3);
    write(&root.join("usr-local/something"), 8);
    (store, container)
}

/// Runs the program in the node's root, as on the node itself.
fn on_the_node(root: &Path, arguments: &[&str]) {
    let inside = |name: &str| root.join(name);
    std::fs::create_dir_all(inside("proc")).unwrap();
    std::fs::create_dir_all(inside("run")).unwrap();
    std::fs::create_dir_all(inside("dev")).unwrap();
    // Without /dev/null no process can be started that reads the others.
    for name in ["run/program", "dev/null"] {
        std::fs::write(inside(name), "").unwrap();
    }
    // Not in a separate mount namespace, which would keep every other mount of the machine.
    let mut mounts = vec![
        BindMount::new(Path::new("/proc"), &inside("proc")),
        BindMount::new(Path::new("/dev/null"), &inside("dev/null")),
        BindMount::new(Path::new(env!("CARGO_BIN_EXE_layersweep")), &inside("run/program")),
    ];
    for directory in ["/usr", "/lib", "/lib64"].map(Path::new).into_iter().filter(|path| path.is_dir()) {
        let target = inside(directory.to_str().unwrap().trim_start_matches('/'));
        std::fs::create_dir_all(&target).unwrap();
        mounts.push(BindMount::new(directory, &target));
    }
    let mut command = Command::new("chroot");
    program::hermetic(&mut command);
    command.env_remove("LAYERSWEEP_STATE_DIR").arg(root).arg("/run/program").args(arguments);
    let run = program::run(&mut command);
    drop(mounts);
    assert_eq!(run.code, 0, "{run:?}");
    std::fs::remove_file(inside("run/program")).unwrap();
    std::fs::remove_file(inside("dev/null")).unwrap();
}

fn layersweep(root: &Path, words: &[&str]) -> program::Run {
    let mut command = program::command();
    command.env_remove("LAYERSWEEP_STATE_DIR").args(words).arg("--sysroot").arg(root);
    program::run(&mut command).expect_no_crash()
}

fn cause<'a>(report: &'a Value, kind: &str) -> &'a Value {
    let causes = list(report, "/verdict/causes");
    causes
        .iter()
        .find(|cause| text(cause, "/kind") == kind)
        .unwrap_or_else(|| panic!("no {kind}: {causes:#?}"))
}

/// Checks for the planted bytes, and at most 1 MiB more for directories and records.
fn assert_about(cause: &Value, mib: u64) {
    let bytes = number(cause, "/bytes");
    assert!((mib * MIB..mib * MIB + MIB).contains(&bytes), "{mib} MiB: {cause:#}");
}

fn exercise(fs: Fs, read_only: &str) {
    if !store::require_tools() || !fs.require() {
        return;
    }
    let mut disk = LoopFs::new(fs, 480 * MIB);
    let (store, container) = fill(disk.path());
    on_the_node(disk.path(), &["scan", "-q"]);
    import(&store, 5, "registry.example.org/late:1");
    store.unmount();
    on_the_node(disk.path(), &["scan", "-q"]);
    disk.sync();
    disk.remount_with(read_only);
    let copies = tempfile::tempdir().unwrap();
    let before = copies.path().join("before");
    store::succeed(Command::new("cp").arg("--sparse=always").args([disk.image(), &before]));
    let root = disk.path().to_path_buf();

    let run = layersweep(&root, &["report", "--format", "json"]).expect_code(0);
    let report = run.json();
    schema::assert_fits("report", &report);
    assert_eq!(text(&report, "/host"), "node-7.example.org");
    assert_eq!(report["complete"], true, "{:#}", report["measured"]);

    // Every planted cause has its name, its path and its bytes.
    let log = cause(&report, "log");
    assert_about(log, LOG);
    assert_eq!(text(log, "/path"), format!("/var/log/pods/shop_cart-0_{POD}/cart/0.log"));
    assert_eq!(text(log, "/id"), "shop/cart-0");
    let dead = cause(&report, "dead-container");
    assert_about(dead, DEAD);
    assert_eq!(text(dead, "/id"), container);
    assert!(text(dead, "/text").contains("batch-7"), "{dead:#}");
    let pin = cause(&report, "pinned-image");
    assert_about(pin, PIN);
    assert!(text(pin, "/text").contains(PINNED) && text(pin, "/text").contains("crio.conf"), "{pin:#}");
    let leak = cause(&report, "leak");
    assert_about(leak, LEAK);
    assert_eq!((text(leak, "/id"), text(leak, "/group")), (LAYER, "layersweep"));
    assert!(text(leak, "/path").starts_with("/var/lib/containers/storage/overlay/"), "{leak:#}");
    assert_about(cause(&report, "unused-images"), UNUSED + 5);
    assert_about(cause(&report, "kubelet-volume"), VOLUME);
    assert_eq!(text(cause(&report, "kubelet-volume"), "/id"), "shop/cart-0");

    // The deletions of layersweep come first, then the stopped containers, then what only a person can judge; in each group
    // the largest first. The sentences name them.
    let causes = list(&report, "/verdict/causes").iter();
    let by = |group: &str| -> Vec<u64> {
        let causes = causes.clone().filter(|cause| cause["group"] == group);
        causes.map(|cause| number(cause, "/frees_bytes")).filter(|bytes| *bytes > 0).collect()
    };
    assert!(by("layersweep").len() == 1 && by("only-you-can-judge").len() >= 2, "{report:#}");
    assert!(by("only-you-can-judge").is_sorted_by(|a, b| a >= b), "{:?}", by("only-you-can-judge"));
    assert_eq!(
        text(&report, "/verdict/causes/0/command/deletes"),
        "layersweep sweep --delete --class orphan-dir"
    );
    let sentences = list(&report, "/verdict/sentences");
    assert!(sentences[1].as_str().unwrap().contains("log of pod shop/cart-0"), "{sentences:#?}");
    // Nothing is promised that a run would not do: below the thresholds no image is deleted, above them all unused
    // images; a leak is deleted when it is old enough.
    let last = text(&report, "/verdict/sentences/2");
    assert!(last.contains("`layersweep sweep --delete` (leaks, 30."), "{last}");
    assert!(last.contains("`layersweep gc` keeps the"), "{last}");
    let tight = ["report", "--format", "json", "--config", "/etc/layersweep/tight.toml"];
    let tight = layersweep(&root, &tight).expect_code(0).json();
    let last = text(&tight, "/verdict/sentences/2");
    assert!(last.starts_with("Once the node runs again, `layersweep gc` (unused images, 25."), "{last}");
    assert!(last.contains("; 30.") && last.contains("of leaks cannot be deleted yet"), "{last}");
    assert!(text(cause(&tight, "leak"), "/remedy").ends_with("removes it once it is 1d old"), "{tight:#}");

    // The sums are those of the disk.
    let filesystems = list(&report, "/filesystems");
    assert_eq!(filesystems.len(), 1, "{filesystems:#?}");
    let facts = nix::sys::statvfs::statvfs(&root).unwrap();
    let used = (facts.blocks() - facts.blocks_free()) * facts.fragment_size();
    assert_eq!(number(&filesystems[0], "/used_bytes"), used);
    let parts = list(&filesystems[0], "/parts");
    assert_eq!(parts.iter().map(|part| number(part, "/bytes")).sum::<u64>(), used, "{parts:#?}");
    let part = |kind: &'static str| parts.iter().filter(move |part| text(part, "/kind") == kind);
    let sum = |kind: &'static str| part(kind).map(|part| number(part, "/bytes")).sum::<u64>();
    assert!(sum("logs") >= (LOG + 3) * MIB && sum("journal") >= 4 * MIB, "{parts:#?}");
    assert!(part("directory").any(|part| text(part, "/path") == "/usr-local/something"), "{parts:#?}");
    // The rest belongs to the filesystem itself: logs, tables, trees.
    assert!(sum("other") < 40 * MIB, "{parts:#?}");
    let marks: Vec<_> =
        list(&filesystems[0], "/thresholds").iter().map(|mark| mark["percent"].as_f64().unwrap()).collect();
    // With those for inodes, 85 and 90.
    assert_eq!(marks, [70.0, 75.0, 80.0, 80.0, 85.0, 88.0, 90.0, 90.0]);

    // History of the node itself.
    assert!(
        text(&report["scan"]["images"][0], "/first_detected_from") == "records",
        "{:#}",
        report["scan"]["images"]
    );
    // A container on the disk used its image when the node recorded that, not now.
    let newest =
        list(&layersweep(&root, &["history", "--scans", "--format", "json"]).json(), "/scans")[0].clone();
    let mut images = list(&report, "/scan/images").iter();
    let batch = images.find(|image| text(image, "/names/0") == "registry.example.org/batch:1").unwrap();
    let [used, scanned] =
        [text(batch, "/last_used"), text(&newest, "/at")].map(|time| time.parse::<Timestamp>());
    assert!(used.clone().unwrap() <= scanned.unwrap(), "{used:?}: {newest:#}");
    let usage = list(&report, "/usage");
    assert!(usage.iter().any(|series| !list(series, "/points").is_empty()), "{usage:#?}");
    let scans = layersweep(&root, &["history", "--scans", "--format", "json"]).expect_code(0).json();
    schema::assert_fits("history-scans", &scans);
    assert_eq!(list(&scans, "/scans").len(), 2);
    let diff = layersweep(&root, &["diff", "last~1", "now", "--format", "json"]).expect_code(0).json();
    schema::assert_fits("diff", &diff);
    let images = list(&diff, "/images");
    let added: Vec<_> = images.iter().filter(|image| text(image, "/change") == "added").collect();
    assert_eq!(added.len(), 1, "{images:#?}");
    assert_eq!(added[0]["names_after"][0], "registry.example.org/late:1");

    // The screen for a person.
    let shown = layersweep(&root, &["report"]).expect_code(0).stdout;
    for words in ["node-7.example.org", "batch-7", PINNED, "cart/0.log", LAYER, "90.0 MiB"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // Nothing on the disk has changed.
    store::succeed(Command::new("cmp").args([disk.image(), &before]));
}

/// One filesystem after the other: podman's mount namespaces would keep the other disk busy.
#[test]
fn one_command_names_full_disk_cause() {
    exercise(Fs::Xfs, "ro,norecovery");
    exercise(Fs::Ext4, "ro,noload");
}

#[test]
fn images_of_a_user_are_out_of_reach() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let root = disk.path();
    let graphroot = "/home/alice/.local/share/containers/storage";
    let store = small::still(&root.join(graphroot.trim_start_matches('/')));
    store.unmount();
    put(root, "etc/passwd", "alice:x:5001:5001::/home/alice:/bin/sh\n");
    std::os::unix::fs::chown(store.root(), Some(5001), Some(5001)).unwrap();
    let run = layersweep(root, &["images", "--graphroot", graphroot, "--format", "json"]);
    let images = run.expect_code(0).json();
    for image in list(&images, "/images") {
        assert!(text(image, "/out_of_reach").ends_with("storage belongs to alice"), "{image:#}");
    }
}

/// The disk of a store is not mounted: the records name the store, or its mount point is empty.
#[test]
fn store_on_a_missing_disk_is_reported() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let root = disk.path();
    let [usual, other] = ["var/lib/containers/storage", "home/alice/.local/share/containers/storage"]
        .map(|path| root.join(path));
    small::still(&usual).unmount();
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    tree::copy(&usual, &other);
    put(root, "etc/passwd", "alice:x:5001:5001::/home/alice:/bin/sh\n");
    std::os::unix::fs::chown(&other, Some(5001), Some(5001)).unwrap();
    on_the_node(root, &["scan", "-q"]);
    layersweep(root, &["usage"]).expect_code(0);
    std::fs::rename(&other, root.join("moved")).unwrap();
    for (words, expected) in [("the node's records name a store", 1), ("the directory is empty", 2)] {
        for command in ["usage", "report"] {
            let run = layersweep(root, &[command]).expect_code(3);
            assert_eq!(run.stderr.matches("mount that disk").count(), expected, "{}", run.stderr);
            assert!(run.stderr.contains(words), "{}", run.stderr);
        }
        std::fs::create_dir_all(root.join("var/lib/containerd")).unwrap();
    }
}

/// Whatever state the records are in, the report is printed and names it.
#[test]
fn unusable_records_are_reported() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let root = disk.path();
    let store = small::still(&root.join("var/lib/containers/storage"));
    store.unmount();
    let database = root.join("var/lib/layersweep/layersweep.db");
    /// A name, a function that makes the state, and the message that must be reported.
    type State<'a> = (&'a str, &'a dyn Fn(), Option<&'a str>);
    let states: [State<'_>; 4] = [
        ("missing", &|| {}, None),
        ("damaged", &|| put(root, "var/lib/layersweep/layersweep.db", "no database"), Some("is damaged")),
        (
            "newer",
            &|| {
                let mut scan = program::command();
                scan.args(["scan", "-q", "--graphroot"]).arg(store.root()).arg("--state-dir");
                program::run(scan.arg(database.parent().unwrap())).expect_code(0);
                let connection = rusqlite::Connection::open(&database).unwrap();
                connection.execute_batch("PRAGMA user_version = 99").unwrap();
            },
            Some("schema version 99"),
        ),
        ("no file", &|| std::fs::create_dir(&database).unwrap(), Some("cannot be read")),
    ];
    for (name, make, message) in states {
        std::fs::create_dir_all(database.parent().unwrap()).unwrap();
        make();
        let before = tree::listing(&root.join("var/lib/layersweep"));
        // Missing records are fine; unreadable records are not.
        let code = if message.is_some() { 3 } else { 0 };
        let report = layersweep(root, &["report", "--format", "json"]).expect_code(code).json();
        schema::assert_fits("report", &report);
        assert_eq!(
            (&report["complete"], &report["history_complete"]),
            (&true.into(), &message.is_none().into())
        );
        let how = report["measured"]["how"].to_string();
        match message {
            None => assert!(how.contains("There are no layersweep records"), "{name}: {how}"),
            Some(words) => {
                assert!(how.contains("cannot be read: ages") && how.contains(words), "{name}: {how}")
            }
        }
        assert_eq!(list(&report, "/runs").len() + list(&report, "/usage").len(), 0, "{name}");
        let images = list(&report, "/scan/images");
        assert_eq!(images.len(), 5, "{name}");
        assert!(images.iter().all(|image| image["pinned"] == false), "{name}: unknown pins pin nothing here");
        let warnings = list(&report, "/measured/warnings");
        match message {
            None => assert!(warnings.is_empty(), "{name}: {warnings:#?}"),
            Some(words) => {
                let mut warned = warnings.iter().map(|warning| text(warning, "/message"));
                assert!(warned.any(|message| message.contains(words)), "{name}: {warnings:#?}");
            }
        }
        layersweep(root, &["report"]).expect_code(code);
        let after = tree::listing(&root.join("var/lib/layersweep"));
        assert!(tree::differences(&before, &after).is_empty(), "{name}");
        tree::remove(&root.join("var/lib/layersweep"));
    }
}
