//! Other users of a store's filesystem: each is named, each byte counts once, no mount is crossed.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::support;
use support::loopfs::{BindMount, Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::{schema, small, store, tree};

fn write(path: &Path, mib: usize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Not only zeros, which some filesystems do not store.
    let content: Vec<u8> = (0..mib << 20).map(|position| u8::try_from(position % 251).unwrap()).collect();
    let mut file = File::create(path).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
}

fn report(words: &[&str], root: &Path) -> Value {
    let mut command = program::command();
    command.args(["report", "--format", "json"]).args(words).arg(root);
    let report = program::run(&mut command).expect_no_crash().expect_code(0).json();
    schema::assert_fits("report", &report);
    report
}

/// Checks that the parts add up; returns the bytes by kind and path.
fn parts(report: &Value) -> impl Fn(&str, &str) -> u64 {
    let filesystems = list(report, "/filesystems");
    assert_eq!(filesystems.len(), 1, "{filesystems:#?}");
    let parts = list(&filesystems[0], "/parts").to_vec();
    let sum: u64 = parts.iter().map(|part| number(part, "/bytes")).sum();
    assert_eq!(sum, number(&filesystems[0], "/used_bytes"), "{parts:#?}");
    assert!(parts.iter().all(|part| part["bytes"] == part["measured_bytes"]), "{parts:#?}");
    move |kind, path| {
        let here = parts.iter().filter(|part| text(part, "/kind") == kind);
        let here = here.filter(|part| path.is_empty() || part["path"] == path);
        here.map(|part| number(part, "/bytes")).sum()
    }
}

/// Returns whether `bytes` are `mib` MiB, with at most 200 kB more for directories.
fn is_about(bytes: u64, mib: u64) -> bool {
    (mib * MIB..mib * MIB + 200_000).contains(&bytes)
}

#[test]
fn every_user_and_byte_counts_once() {
    if !store::require_tools() {
        return;
    }
    for fs in Fs::ALL {
        if !fs.require() {
            continue;
        }
        users(fs);
    }
}

/// The settings name other directories than the usual ones, which still have data.
#[test]
fn moved_kubelet_has_both_places() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 320 * MIB);
    let root = disk.path();
    small::still(&root.join("var/lib/containers/storage")).unmount();
    write(&root.join("var/lib/kubelet/pods/11-22/volumes/left"), 5);
    write(&root.join("data/kubelet/pods/33-44/volumes/x"), 4);
    write(&root.join("var/log/pods/ns_web_11-22/main/0.log"), 3);
    write(&root.join("data/pods/ns_db_33-44/main/0.log"), 2);
    let kubelet = root.join("var/lib/kubelet");
    std::fs::write(kubelet.join("kubeadm-flags.env"), "KUBELET_KUBEADM_ARGS=\"--root-dir=/data/kubelet\"\n")
        .unwrap();
    std::fs::write(kubelet.join("config.yaml"), "podLogsDir: /data/pods\n").unwrap();
    disk.sync();
    let report = self::report(&["--sysroot"], root);
    let of = parts(&report);
    for (kind, path, mib) in [
        ("kubelet-volumes", "/var/lib/kubelet/pods", 5),
        ("kubelet-volumes", "/data/kubelet/pods", 4),
        ("logs", "/var/log/pods", 3),
        ("logs", "/data/pods", 2),
    ] {
        assert!(is_about(of(kind, path), mib), "{kind} {path}: {}", of(kind, path));
    }
    for kind in ["/top/logs", "/top/pods"] {
        let pods: Vec<_> = list(&report, kind).iter().map(|pod| text(pod, "/pod")).collect();
        assert!(pods.contains(&"ns/web") && pods.contains(&"ns/db"), "{kind}: {pods:?}");
    }
}

/// Files deep in a directory fill the disk: they are named, not the directory, which also contains the store.
#[test]
fn places_are_named_at_their_depth() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 320 * MIB);
    let root = disk.path();
    small::still(&root.join("var/lib/containers/storage")).unmount();
    write(&root.join("var/lib/app/data/fill"), 30);
    write(&root.join("var/lib/other"), 4);
    // Two directories of the same size, and one of files that are too small to be named.
    write(&root.join("srv/a/1"), 5);
    write(&root.join("srv/b/2"), 5);
    for number in 0..6 {
        write(&root.join(format!("mail/box/{number}")), 1);
    }
    disk.sync();
    let report = self::report(&["--sysroot"], root);
    let of = parts(&report);
    for (path, mib) in [
        ("/var/lib/app/data/fill", 30),
        ("/var/lib/other", 4),
        ("/srv/a/1", 5),
        ("/srv/b/2", 5),
        ("/mail/box", 6),
    ] {
        assert!(is_about(of("directory", path), mib), "{path}: {}", of("directory", path));
    }
    let usage = program::layersweep(["usage", "--format", "json", "--sysroot", root.to_str().unwrap()]);
    let usage = usage.expect_no_crash().expect_code(0).json();
    let rows = list(&usage["filesystems"][0], "/rows");
    let mut paths = rows.iter().filter_map(|row| row["path"].as_str());
    assert!(paths.any(|path| path.ends_with("/app/data/fill")), "{rows:#?}");
}

/// Bytes that no deletion of images frees and that no directory outside of the stores contains.
#[test]
fn volumes_old_stores_and_hidden_data_are_named() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 200 * MIB);
    let store = small::still(&disk.path().join("storage"));
    store.podman(["volume", "create", "pgdata"]);
    store.unmount();
    write(&store.root().join("volumes/pgdata/_data/wal"), 20);
    std::fs::create_dir_all(store.root().join("old/overlay-layers")).unwrap();
    write(&store.root().join("old/overlay/x"), 6);
    write(&disk.path().join("longhorn/replica"), 30);
    disk.sync();
    let other = LoopFs::new(Fs::Ext4, 0);
    let mount = BindMount::new(other.path(), &disk.path().join("longhorn"));
    let [volumes, old] = ["volumes", "old"].map(|name| store.root().join(name));
    let hidden =
        format!("probably hidden below a mount point of this filesystem: {}/longhorn", disk.path().display());
    let report = self::report(&["--graphroot"], store.root());
    let causes = list(&report, "/verdict/causes");
    fn cause<'a>(causes: &'a [Value], path: Option<&Path>) -> &'a Value {
        let others = causes.iter().filter(|cause| text(cause, "/kind") == "other");
        let mut found = others.filter(|cause| cause["path"].as_str().map(Path::new) == path);
        found.next().unwrap_or_else(|| panic!("{path:?}: {causes:#?}"))
    }
    let pgdata = causes.iter().find(|cause| cause["path"] == volumes.join("pgdata").to_str().unwrap());
    let pgdata = pgdata.unwrap_or_else(|| panic!("{causes:#?}"));
    assert_eq!(text(pgdata, "/text"), "volume pgdata (podman): no container uses it now");
    let inspect = format!("podman --root {} volume inspect pgdata", store.root().display());
    assert_eq!((text(pgdata, "/command/shows"), text(pgdata, "/kind")), (&*inspect, "volume"));
    assert!(text(cause(causes, Some(&old)), "/text").starts_with("another store"), "{causes:#?}");
    assert!(text(cause(causes, None), "/text").contains(&hidden), "{causes:#?}");
    assert!(is_about(parts(&report)("volumes", volumes.to_str().unwrap()), 20), "{report:#}");
    let mut command = program::command();
    command.arg("usage").arg("--graphroot").arg(store.root());
    let usage = program::run(&mut command).expect_no_crash();
    let usage = usage.stdout + &usage.stderr;
    let row = |label: &str| {
        let line = usage.lines().find(|line| line.trim_start().starts_with(label));
        line.unwrap_or_else(|| panic!("{label}: {usage}")).to_owned()
    };
    assert!(row("Volumes (podman)  ").contains("20."), "{usage}");
    assert!(row(&format!("Another store, {}", old.display())).contains("6."), "{usage}");
    // One headline for all places outside the stores; the last line names what its bytes are the sum of.
    assert_eq!(usage.matches("Outside the stores\n").count(), 1, "{usage}");
    assert!(row("everything else, and overhead").starts_with("  "), "{usage}");
    assert_eq!(row("Used ").split_whitespace().count(), 4, "no reclaimable bytes of the whole: {usage}");
    let (unused, sum) = (row("Images not in use"), row("Images and leaks together"));
    assert_eq!(unused.rsplit("  ").next(), sum.rsplit("  ").next(), "without leaks: {usage}");
    let mut command = program::command();
    command.args(["gc", "--dry-run", "--high", "20", "--low", "10", "--graphroot"]).arg(store.root());
    let gc = program::run(&mut command).expect_no_crash();
    assert!(gc.stdout.contains(&format!("\n                       {inspect}\n")), "{gc:?}");
    drop(mount);
    // Without a mount, nothing is hidden.
    let report = self::report(&["--graphroot"], store.root());
    assert!(!report["verdict"].to_string().contains("hidden"), "{report:#}");
}

#[test]
fn store_behind_bind_mount_is_explained_as_store() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("data/storage"));
    store.unmount();
    write(&disk.path().join("data/other"), 3);
    disk.sync();
    let seen = tempfile::tempdir().unwrap();
    let _mount = BindMount::new(&disk.path().join("data"), seen.path());
    for directory in [disk.path().to_path_buf(), disk.path().join("data")] {
        let mut command = program::command();
        command.arg("explain").arg(&directory).arg("--graphroot").arg(seen.path().join("storage"));
        let shown = program::run(&mut command).expect_code(0).stdout;
        assert!(shown.contains("\nimage localhost/small/"), "{shown}");
        assert!(!shown.contains(&format!("Outside the stores: {}", store.root().display())), "{shown}");
        let bytes = format!("({} bytes)", tree::du(&directory));
        assert!(shown.contains(&bytes), "{bytes}: {shown}");
    }
}

fn users(fs: Fs) {
    let disk = LoopFs::new(fs, 320 * MIB);
    let root = disk.path();
    let store = small::still(&root.join("var/lib/containers/storage"));
    store.unmount();
    let pod = "var/lib/kubelet/pods/11-22";
    write(&root.join("var/log/pods/ns_web_11-22/main/0.log"), 7);
    write(&root.join("var/log/pods/ns_web_11-22/main/1.log"), 2);
    write(&root.join("var/log/pods/ns_db_33-44/main/0.log"), 1);
    write(&root.join("var/log/syslog"), 3);
    write(&root.join("var/log/journal/id/system.journal"), 4);
    write(&root.join(pod).join("volumes/kubernetes.io~empty-dir/cache/x"), 5);
    write(&root.join("var/tmp/left"), 3);
    write(&root.join("var/lib/systemd/coredump/core.x"), 2);
    write(&root.join("swapfile"), 8);
    write(&root.join("opt/tool"), 6);
    write(&root.join("var/lib/layersweep/layersweep.db-not"), 1);
    std::fs::create_dir_all(root.join("var/log/containers")).unwrap();
    std::os::unix::fs::symlink(
        "/var/log/pods/ns_web_11-22/main/0.log",
        root.join("var/log/containers/web.log"),
    )
    .unwrap();
    // A second link in another directory, and one in a store: they add no bytes.
    std::fs::create_dir(root.join("opt2")).unwrap();
    std::fs::hard_link(root.join("opt/tool"), root.join("opt2/tool")).unwrap();
    let image = store.images().into_iter().find(|image| image["in_use"] == true).unwrap();
    let layer = store.root().join("overlay").join(image["layers"][0].as_str().unwrap()).join("diff");
    write(&layer.join("big"), 9);
    std::fs::hard_link(layer.join("big"), root.join("opt/of-a-layer")).unwrap();
    // Another filesystem is mounted below a directory of a pod.
    let other = LoopFs::new(Fs::Ext4, 32 * MIB);
    write(&other.path().join("elsewhere"), 11);
    let mounted = root.join(pod).join("volumes/kubernetes.io~csi/data/mount");
    std::fs::create_dir_all(&mounted).unwrap();
    let bind = BindMount::new(other.path(), &mounted);
    disk.sync();
    let before = tree::listing(root);

    let report = self::report(&["--sysroot"], root);
    let of = parts(&report);
    for (kind, path, mib) in [
        ("logs", "/var/log/pods", 10),
        ("logs", "/var/log", 3),
        ("journal", "/var/log/journal", 4),
        ("kubelet-volumes", "/var/lib/kubelet/pods", 5),
        ("var-tmp", "/var/tmp", 3),
        ("core-dumps", "/var/lib/systemd/coredump", 2),
        ("swap", "/swapfile", 8),
        ("layersweep", "/var/lib/layersweep", 1),
    ] {
        assert!(is_about(of(kind, path), mib), "{fs:?} {kind} {path}: {}", of(kind, path));
    }
    // The tool counts for the first of its directories, the layer's file for the store.
    assert!(is_about(of("directory", "/opt"), 6), "{fs:?}: {}", of("directory", "/opt"));
    assert_eq!(of("directory", "/opt2"), 0, "{fs:?}");
    assert!(of("images", "") > 9 * MIB, "{fs:?}: {}", of("images", ""));
    let usage = program::layersweep(["usage", "--format", "json", "--sysroot", root.to_str().unwrap()]);
    let usage = usage.expect_no_crash().expect_code(0).json();
    let disk_of = &usage["filesystems"][0];
    let rows = list(disk_of, "/rows");
    assert_eq!(rows.iter().map(|row| number(row, "/bytes")).sum::<u64>(), number(disk_of, "/used_bytes"));
    for (kind, mib) in [("core-dumps", 2), ("journal", 4), ("kubelet-volumes", 5), ("var-tmp", 3)] {
        let row = rows.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {rows:#?}"));
        assert!(is_about(number(row, "/bytes"), mib) && row["in_store"] == false, "{fs:?}: {row:#}");
    }
    // btrfs does not report the number of files: only the known places are searched.
    assert_eq!(
        rows.iter().any(|row| row["path"].as_str().is_some_and(|path| path.ends_with("/opt"))),
        fs != Fs::Btrfs,
        "{fs:?}: {rows:#?}"
    );
    assert!(number(disk_of, "/not_in_store_bytes") > 40 * MIB, "{fs:?}: {disk_of:#}");
    let doctor = program::layersweep(["doctor", "--format", "json", "--sysroot", root.to_str().unwrap()]);
    let doctor = doctor.expect_no_crash().json();
    let check = list(&doctor, "/checks").iter().find(|check| check["name"] == "disk-usage").unwrap();
    assert_eq!(check["status"], "ok", "{fs:?}: {check:#}");
    let said = text(check, "/message");
    assert!(said.contains("known data outside the stores: logs of pods 10"), "{fs:?}: {said}");
    let logs = list(&report, "/top/logs");
    assert_eq!((text(&logs[0], "/pod"), text(&logs[0], "/container")), ("ns/web", "main"), "{logs:#?}");
    assert_eq!(text(&logs[0], "/path"), "/var/log/pods/ns_web_11-22/main/0.log");
    let pods = list(&report, "/top/pods");
    let pod = |kind: &'static str| pods.iter().find(move |pod| text(pod, "/kind") == kind).unwrap();
    assert_eq!(text(pod("volumes"), "/pod"), "ns/web", "named by the directory of its logs");
    assert!(is_about(number(pod("volumes"), "/bytes"), 5) && is_about(number(pod("logs"), "/bytes"), 9));
    let changes = tree::differences(&before, &tree::listing(root));
    assert!(changes.is_empty(), "{fs:?}: {changes:#?}");
    drop(bind);

    // The same disk on a running node: a deleted open file still uses its bytes.
    let path = root.join("opt/gone");
    write(&path, 12);
    let held = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    disk.sync();
    // A file that a container has written into its layer through an overlay, as most deleted logs are.
    let overlay = Overlay::new(root);
    let path = overlay.merged.join("log");
    write(&path, 6);
    let log = File::options().append(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // A deleted file of a lower layer still exists there.
    let below = File::open(overlay.merged.join("below")).unwrap();
    std::fs::remove_file(overlay.merged.join("below")).unwrap();
    disk.sync();
    let report = self::report(&["--graphroot"], store.root());
    {
        let of = parts(&report);
        assert!(is_about(of("deleted-open", ""), 18), "{fs:?}: {}", of("deleted-open", ""));
        let causes = list(&report, "/verdict/causes");
        let deleted: Vec<_> = causes.iter().filter(|cause| text(cause, "/kind") == "deleted-open").collect();
        assert_eq!(deleted.len(), 2, "{causes:#?}");
        let cause = deleted[0];
        let holder = format!("(pid {})", std::process::id());
        assert!(text(cause, "/text").contains(&holder), "{cause:#}");
    }
    drop((held, log, below));
}

/// An overlay whose layers are on a disk, mounted elsewhere.
struct Overlay {
    merged: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Overlay {
    fn new(root: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let merged = dir.path().join("merged");
        std::fs::create_dir(&merged).unwrap();
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
            let path = root.join("opt/container").join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        });
        write(&lower.join("below"), 3);
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let mut mount = std::process::Command::new("mount");
        store::succeed(mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged));
        Self { merged, _dir: dir }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let gone = std::process::Command::new("umount").arg(&self.merged).status();
        assert!(gone.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// No file can be created any more, although most bytes are free: the report names the inodes.
#[test]
fn disk_without_inodes_is_full() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::with(Fs::Ext4, 64 * MIB, &["-N", "2000"], &[]);
    let store = small::still(&disk.path().join("var/lib/containers/storage"));
    store.unmount();
    std::fs::write(disk.path().join("absurd.toml"), "[images]\nmin_free = \"1TiB\"\n").unwrap();
    let files = disk.path().join("opt");
    std::fs::create_dir(&files).unwrap();
    let made = (0..).find(|number| File::create(files.join(number.to_string())).is_err()).unwrap();
    assert!(made > 0);
    disk.sync();
    let words = ["--sysroot"];
    let report = self::report(&words, disk.path());
    let filesystem = &list(&report, "/filesystems")[0];
    let inodes = number(filesystem, "/inodes");
    assert_eq!(number(filesystem, "/inodes_free"), 0);
    let sentence = text(&report, "/verdict/sentences/0");
    let expected = format!("has no free inodes: all {inodes} are used");
    assert!(sentence.contains(&expected), "{sentence}");
    assert!(sentence.contains("above layersweep's gc by inodes at 90%"), "{sentence}");
    let mut command = program::command();
    let shown = program::run(command.arg("report").args(words).arg(disk.path())).expect_code(0).stdout;
    assert!(shown.contains(&format!("100% of {inodes} inodes used")), "{shown}");
    // More free bytes are configured than the disk has: no mark, and a warning.
    let words = ["--config", "/absurd.toml", "--sysroot"];
    let absurd = self::report(&words, disk.path());
    let marks = absurd["filesystems"][0]["thresholds"].to_string();
    assert!(!marks.contains("free bytes"), "{marks}");
    let warnings = absurd["measured"]["warnings"].to_string();
    assert!(warnings.contains("images.min_free (or free_until) wants 1.0 TiB free"), "{warnings}");
    // The report is not written to that disk, by whatever path.
    let scratch = tempfile::tempdir().unwrap();
    for part in [disk.path(), &files] {
        let name = scratch.path().join("elsewhere");
        std::fs::create_dir_all(&name).unwrap();
        let bind = BindMount::new(part, &name);
        let mut command = program::command();
        command.args(["report", "--html"]).arg(name.join("evil.html")).arg("--sysroot").arg(disk.path());
        let run = program::run(&mut command).expect_code(2);
        assert!(run.stderr.contains("never written to"), "{run:?}");
        drop(bind);
    }
}

/// The bytes of a snapshotter beside containerd are named, even if its records are of an unknown kind.
#[test]
fn unknown_snapshotter_is_named() {
    if !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let root = disk.path();
    let meta_db = "io.containerd.metadata.v1.bolt/meta.db";
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd/2.3.4/root").join(meta_db);
    let containerd = root.join("var/lib/containerd").join(meta_db);
    std::fs::create_dir_all(containerd.parent().unwrap()).unwrap();
    std::fs::copy(fixture, containerd).unwrap();
    std::fs::create_dir_all(root.join("etc/containerd")).unwrap();
    let config = "version = 3\n[proxy_plugins.lazy]\ntype = \"snapshot\"\n\
        [proxy_plugins.lazy.exports]\nroot = \"/var/lib/lazy\"\n";
    std::fs::write(root.join("etc/containerd/config.toml"), config).unwrap();
    write(&root.join("var/lib/lazy/cache/x"), 6);
    write(&root.join("var/lib/else"), 5);
    // The databases of the other snapshotters are missing.
    let mut command = program::command();
    command.args(["report", "--format", "json", "--sysroot"]).arg(root);
    let report = program::run(&mut command).expect_no_crash().expect_code(3).json();
    let parts = list(&report, "/filesystems/0/parts");
    let lazy =
        parts.iter().find(|part| part["label"] == "snapshotter lazy").unwrap_or_else(|| panic!("{parts:#?}"));
    assert!(is_about(number(lazy, "/bytes"), 6) && text(lazy, "/path").ends_with("/var/lib/lazy"), "{lazy}");
}

/// conmon writes the log of a container of podman beside the container's writable layer.
#[test]
fn log_of_running_container_is_called_log() {
    if !store::require_tools() || !support::require_program("runc") || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 320 * MIB);
    let store = small::still(&disk.path().join("storage"));
    let image = small::name("b");
    store.start(&image, "quiet");
    let mut podman = store.podman_command();
    podman.args(["--runtime", "runc", "run", "-d", "--name", "chatty", "--network", "none"]);
    podman.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--log-driver", "k8s-file"]);
    podman.arg("--volume").arg(format!("{}:/busybox:ro", support::containers::which("busybox").display()));
    let script = "/busybox yes | /busybox head -c 12000000; exec /busybox sleep 900";
    podman.args([image.as_str(), "/busybox", "sh", "-c", script]);
    let id = program::run(&mut podman).expect_code(0).stdout.trim().to_owned();
    let log = store.root().join("overlay-containers").join(&id).join("userdata/ctr.log");
    let began = std::time::Instant::now();
    // Each line gets a time, so the log is larger than what was written.
    while std::fs::metadata(&log).map_or(0, |facts| facts.len()) < 12_000_000 {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "no log at {}", log.display());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let report = store.run("report").expect_code(0).json();
    let causes = list(&report, "/verdict/causes");
    let cause = causes.iter().find(|cause| text(cause, "/path") == log.to_str().unwrap());
    let cause = cause.unwrap_or_else(|| panic!("{causes:#?}"));
    assert_eq!((text(cause, "/kind"), text(cause, "/title")), ("log", "log of container chatty"));
    assert!(number(cause, "/bytes") > 12_000_000 && text(cause, "/remedy").contains("--log-opt max-size"));
    assert!(!causes.iter().any(|cause| text(cause, "/kind") == "container"), "{causes:#?}");
}

/// Returns the causes of a report whose path is at or below `path`: kind, path and text.
fn causes_below<'r>(report: &'r Value, path: &Path) -> Vec<(&'r str, &'r str, &'r str)> {
    let causes = list(report, "/verdict/causes").iter();
    let here =
        causes.filter(|cause| cause["path"].as_str().is_some_and(|place| Path::new(place).starts_with(path)));
    here.map(|cause| (text(cause, "/kind"), text(cause, "/path"), text(cause, "/text"))).collect()
}

/// `/var` of an ostree host is a directory deep in the filesystem that is mounted as a whole elsewhere. Two places in it
/// are large, so that neither is named instead of `/var`.
#[test]
fn ostree_paths_are_those_of_the_node() {
    if !store::require_tools() || !Fs::Xfs.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Xfs, 0);
    let var = disk.path().join("ostree/deploy/fcos/var");
    let store = small::still(&var.join("lib/containers/storage"));
    store.unmount();
    let image = store.images().into_iter().find(|image| image["in_use"] == true).unwrap();
    write(&store.root().join("overlay").join(image["layers"][0].as_str().unwrap()).join("diff/big"), 20);
    for path in ["lib/mysql/ibdata1", "srv/data/wal"] {
        write(&var.join(path), 30);
    }
    write(&disk.path().join("ostree/repo/objects/ab"), 10);
    disk.sync();
    let live = |words: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        let script = "mount --bind \"$0\" /var && exec \"$@\"";
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(&var);
        command.arg(program::command().get_program()).args(words).args(["--format", "json"]);
        command.args(["--graphroot", "/var/lib/containers/storage"]);
        program::hermetic(&mut command);
        program::run(&mut command).expect_no_crash().expect_code(0).json()
    };
    for report in [live(&["report"]), self::report(&["--sysroot"], disk.path())] {
        let of = parts(&report);
        for (path, mib) in [("/var/lib", 30), ("/var/srv", 30)] {
            let bytes = of("directory", path) + of("directory", &format!("{path}/mysql/ibdata1"));
            let bytes = bytes + of("directory", &format!("{path}/data/wal"));
            assert!(is_about(bytes, mib), "{path}: {bytes}: {:#}", report["filesystems"]);
        }
        let files: Vec<_> = causes_below(&report, Path::new("/var")).iter().map(|cause| cause.1).collect();
        assert!(
            files.contains(&"/var/lib/mysql/ibdata1") && files.contains(&"/var/srv/data/wal"),
            "{files:?}"
        );
        let parts = list(&report, "/filesystems/0/parts").iter().map(|part| &part["path"]);
        let shown = format!("{}{:?}", report["verdict"], parts.collect::<Vec<_>>());
        assert!(!shown.contains("ostree/deploy/fcos/var/lib"), "{shown}");
        assert!(!shown.contains("another store"), "{shown}");
    }
    let usage = live(&["usage"]);
    assert!(!usage["filesystems"].to_string().contains("deploy/fcos/var/lib"), "{usage:#}");
}

/// A copy of a store beside the graphroot is one item with its whole size, also if other data is larger.
#[test]
fn old_store_is_listed_once() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 320 * MIB);
    let containers = disk.path().join("lib/containers");
    let [store, old] = ["storage", "storage-old"].map(|name| small::still(&containers.join(name)));
    store.unmount();
    old.unmount();
    let image = old.images().into_iter().find(|image| image["in_use"] == true).unwrap();
    let diff = old.root().join("overlay").join(image["layers"][0].as_str().unwrap()).join("diff");
    write(&diff.join("big"), 40);
    for number in 0..2000 {
        std::fs::write(diff.join(format!("small-{number}")), "x").unwrap();
    }
    disk.sync();
    let bytes = tree::du(old.root());
    let driver = old.root().join("overlay");
    for other in [0, 60] {
        // As a storage driver mounts its directory while a container runs.
        let _mount = (other > 0).then(|| BindMount::new(&driver, &driver));
        if other > 0 {
            write(&disk.path().join("lib/app/data"), other);
            disk.sync();
        }
        let report = self::report(&["--graphroot"], store.root());
        let path = old.root().to_str().unwrap();
        let causes = causes_below(&report, old.root());
        assert_eq!(causes, [("other", path, &*format!("another store, {path}"))], "{other}");
        let causes = list(&report, "/verdict/causes").iter();
        let cause = causes.clone().find(|cause| cause["path"] == path).unwrap();
        assert!(number(cause, "/bytes").abs_diff(bytes) < 100_000, "{bytes}: {cause:#}");
        let part = parts(&report)("other-store", path);
        assert!(part.abs_diff(bytes) < 100_000, "{part} {bytes}: {report:#}");
        let listed: u64 =
            causes.filter(|cause| text(cause, "/kind") == "other").map(|cause| number(cause, "/bytes")).sum();
        assert!(listed < bytes + MIB, "{other}: {report:#}");
    }
}

/// The files of a layer are in an additional layer store: podman writes a link or a path instead of them.
#[test]
fn layer_in_additional_layer_store_is_unknown() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 128 * MIB);
    let store = small::still(&disk.path().join("storage"));
    store.unmount();
    let images = store.images();
    let layer_of = |name: &str| {
        let image = images.iter().find(|image| image["names"][0] == small::name(name)).unwrap();
        image["layers"][0].as_str().unwrap().to_owned()
    };
    let layers = disk.path().join("layers");
    for (name, is_link) in [("other", false), ("a2", true)] {
        let directory = store.root().join("overlay").join(layer_of(name));
        let elsewhere = layers.join(name).join("sha256:abc");
        std::fs::create_dir_all(&elsewhere).unwrap();
        write(&directory.join("diff/data"), 20);
        std::fs::rename(directory.join("diff"), elsewhere.join("diff")).unwrap();
        let target = elsewhere.join("diff");
        if is_link {
            std::os::unix::fs::symlink(&target, directory.join("diff")).unwrap();
            std::fs::write(directory.join("additionallayer"), elsewhere.to_str().unwrap()).unwrap();
        } else {
            std::fs::write(directory.join("diff"), target.to_str().unwrap()).unwrap();
        }
    }
    disk.sync();
    let config = store.scratch().join("storage.conf");
    let setting = format!("[storage.options]\nadditionallayerstores = [\"{}:ref\"]\n", layers.display());
    std::fs::write(&config, std::fs::read_to_string(&config).unwrap() + &setting).unwrap();
    let run = |words: &[&str]| {
        let mut command = program::command();
        command.args(words).env("CONTAINERS_STORAGE_CONF", &config);
        program::run(&mut command).expect_no_crash().expect_code(3)
    };
    let document = run(&["layers", "--format", "json"]).json();
    schema::assert_fits("layers", &document);
    let elsewhere: Vec<_> =
        list(&document, "/layers").iter().filter_map(|layer| layer["content_path"].as_str()).collect();
    assert_eq!(elsewhere.len(), 2, "{document:#}");
    assert!(elsewhere.iter().all(|path| Path::new(path).starts_with(&layers)), "{elsewhere:?}");
    assert!(document["warnings"].to_string().contains("additional layer store"), "{document:#}");
    let explained = run(&["explain", &small::name("other")]).stdout;
    assert!(explained.contains("in an additional layer store: "), "{explained}");
    let report = run(&["report", "--format", "json"]).json();
    let path = layers.to_str().unwrap();
    let expected = format!("additional layer store, {path}");
    assert_eq!(causes_below(&report, &layers), [("other", path, &*expected)], "{report:#}");
    let mut causes = list(&report, "/verdict/causes").iter();
    let cause = causes.find(|cause| text(cause, "/text") == expected).unwrap();
    assert!(cause["command"]["shows"].is_string(), "{cause:#}");
}

/// Data below a mount point is found also if a directory of another filesystem cannot be read.
#[test]
fn unreadable_directory_concerns_its_filesystem_only() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let [broken, whole] = [LoopFs::new(Fs::Ext4, 64 * MIB), LoopFs::new(Fs::Ext4, 64 * MIB)];
    let stores = [&broken, &whole].map(|disk| small::still(&disk.path().join("storage")));
    stores.iter().for_each(store::Store::unmount);
    std::fs::create_dir_all(broken.path().join("opt/bad")).unwrap();
    write(&whole.path().join("longhorn/replica"), 20);
    broken.debugfs(&["clri /opt/bad".to_owned()]);
    whole.sync();
    let other = LoopFs::new(Fs::Ext4, 0);
    let _mount = BindMount::new(other.path(), &whole.path().join("longhorn"));
    let mut command = program::command();
    command.args(["report", "--format", "json", "--graphroot"]).arg(stores[0].root());
    command.arg("--graphroot").arg(stores[1].root());
    let report = program::run(&mut command).expect_no_crash().expect_code(3).json();
    assert!(report.to_string().contains("opt/bad"), "{report:#}");
    assert!(report["verdict"].to_string().contains("probably hidden below"), "{:#}", report["verdict"]);
}

/// A container and another directory in the store have most inodes of the filesystem: each command names them.
#[test]
fn container_with_most_inodes_is_named() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::with(Fs::Ext4, 64 * MIB, &["-N", "4200"], &[]);
    let store = small::still(&disk.path().join("storage"));
    store.podman(["volume", "create", "pgdata"]);
    store.unmount();
    let container: String = store.podman(["inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", "web"]);
    store.unmount();
    let fill = |directory: &Path, files: usize| {
        for number in 0..files {
            File::create(directory.join(number.to_string())).unwrap();
        }
    };
    fill(Path::new(container.trim()), 1500);
    fill(&store.root().join("volumes/pgdata/_data"), 700);
    std::fs::create_dir(store.root().join("oops")).unwrap();
    fill(&store.root().join("oops"), 1210);
    disk.sync();
    let free = nix::sys::statvfs::statvfs(disk.path()).unwrap().files_free();
    fill(
        &disk.path().join("storage").parent().unwrap().join("lost+found"),
        usize::try_from(free).unwrap() - 150,
    );
    let run = |words: &[&str]| {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(store.root());
        let run = program::run(&mut command).expect_no_crash();
        run.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for words in [&["usage"][..], &["report"], &["gc", "--dry-run", "--min-age", "0s"], &["doctor"]] {
        let shown = run(words);
        assert!(shown.contains("container web"), "{words:?}: {shown}");
        assert!(shown.contains("volume pgdata"), "{words:?}: {shown}");
        assert!(shown.contains("1,5"), "{words:?}: {shown}");
    }
    let report = run(&["report"]);
    let (_, listed) = report.split_once("Only you can judge; the commands only show it:").unwrap();
    assert!(listed.contains("storage/oops: 1,211 files"), "{report}");
}

/// Deleting a file of an overlay's lower layer frees nothing, and no system call shows which files these are.
#[test]
fn store_on_overlay_promises_no_bytes() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 128 * MIB);
    let overlay = {
        let store = store::Store::of(
            &disk.path().join("opt/container/lower/storage"),
            "vfs",
            &["base", "other"].map(small::image),
        );
        store.unmount();
        Overlay::new(disk.path())
    };
    let graphroot = overlay.merged.join("storage");
    let run = |code: i32, words: &[&str]| {
        let mut command = program::command();
        command.args(words).args(["--format", "json", "--graphroot"]).arg(&graphroot);
        program::run(&mut command).expect_no_crash().expect_code(code).json()
    };
    let images = run(3, &["images"]);
    assert_eq!(list(&images, "/images").len(), 2);
    for image in list(&images, "/images") {
        assert!(number(image, "/exclusive_bytes") > 0, "{image:#}");
        assert_eq!(number(image, "/frees_bytes"), 0, "{image:#}");
    }
    assert!(images["warnings"].to_string().contains("overlay filesystem"), "{:#}", images["warnings"]);
    let usage = run(3, &["usage"]);
    assert_eq!(number(&usage, "/totals/reclaimable_bytes"), 0, "{usage:#}");
    let plan = run(3, &["gc", "--dry-run", "--min-age", "0s", "--high", "1", "--low", "0"]);
    assert_eq!(list(&plan, "/deleted").len(), 0, "{plan:#}");
}

/// Two stores with the same images and layers: each object is named with its own store.
#[test]
fn largest_objects_name_their_store() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let [first, second] = ["first", "second"].map(|name| disk.path().join(name));
    let stores = [small::still(&first), small::still(&second)];
    stores.iter().for_each(store::Store::unmount);
    let [first, second] = [first, second].map(|root| root.to_str().unwrap().to_owned());
    let words = ["report", "--format", "json", "--graphroot", &first, "--graphroot", &second];
    let report = program::layersweep(words).expect_no_crash().expect_code(0).json();
    schema::assert_fits("report", &report);
    let layers = list(&report, "/top/layers");
    let of = |root: &str| layers.iter().filter(|layer| text(layer, "/store") == root).count();
    assert!(of(&first) > 0 && of(&first) == of(&second), "{layers:#?}");
}

/// The kubelet names the node after the kernel's host name, not after the file.
#[test]
fn name_of_node_is_that_of_the_kernel() {
    if !support::require_root() || !Fs::Ext4.require() || !store::require_tools() {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("storage"));
    let mut command = std::process::Command::new("unshare");
    program::hermetic(&mut command);
    let script = "echo build-07 >/proc/sys/kernel/hostname; exec \"$@\"";
    command.args(["--uts", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_layersweep")]);
    command.args(["scan", "--no-record", "--format", "json", "--graphroot"]).arg(store.root());
    let scan = program::run(command.arg("--runroot").arg(store.runroot())).expect_code(0).json();
    assert_eq!(text(&scan, "/node"), "build-07");
}
