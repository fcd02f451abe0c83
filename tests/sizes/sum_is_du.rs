//! The sum over all parts of a store is the value of `du` of its graphroot, to the byte.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support;
use support::containers::Containers;
use support::fair;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::{self, Store};
use support::tree;

/// The parts of a store's bytes; with `total` they are all of `stores[].bytes`.
const PARTS: [&str; 6] = ["images", "containers", "build_cache", "leaks", "metadata", "other"];

fn check(graphroot: &Path, runroot: &Path, what: &str) -> Value {
    let run = program::store_run("scan", graphroot, runroot).expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{what}: {run:?}");
    let scan = run.json();
    let stores = list(&scan, "/stores");
    assert_eq!(stores.len(), 1, "{what}: {stores:#?}");
    let bytes = &stores[0]["bytes"];
    let sum: u64 = PARTS.iter().map(|part| number(bytes, &format!("/{part}"))).sum();
    let du = tree::du(graphroot);
    assert_eq!(sum, number(bytes, "/total"), "{what}: {bytes:#}");
    assert_eq!(sum, du, "{what}: du says {du}: {bytes:#}");
    fair::assert_shares_add_up(&scan, what);
    scan
}

/// Checks the columns of `usage` on the store's filesystem.
fn check_usage(graphroot: &Path, runroot: &Path, what: &str) -> Value {
    let flags = ["--graphroot".as_ref(), graphroot.as_os_str(), "--runroot".as_ref(), runroot.as_os_str()];
    fair::assert_usage_adds_up(&flags, what)
}

/// Checks the owners of a store and of its surroundings, and on ext4 those of its entries. They do not depend on the
/// filesystem.
fn check_owners(fs: Fs, graphroot: &Path, runroot: &Path, what: &str) -> Value {
    let flags = ["--graphroot".as_ref(), graphroot.as_os_str(), "--runroot".as_ref(), runroot.as_os_str()];
    let explain = |path: &Path| fair::assert_owners_add_up(&flags, path, what);
    fn entries(path: &Path) -> Vec<PathBuf> {
        let found = std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut found: Vec<_> = found.collect();
        found.sort();
        found
    }
    explain(graphroot.parent().unwrap());
    for top in entries(graphroot).into_iter().filter(|_| fs == Fs::Ext4) {
        explain(&top);
        let deeper =
            entries(&top).into_iter().filter(|path| path.file_name().is_some_and(|name| name != "l"));
        for path in deeper.take(4) {
            explain(&path);
            if path.join("diff").is_dir() {
                explain(&path.join("diff"));
                entries(&path.join("diff")).iter().take(1).for_each(|path| _ = explain(path));
            }
        }
    }
    explain(graphroot)
}

/// An imagestore may be inside the graphroot: its bytes count once.
#[test]
fn imagestore_inside_graphroot_adds_up() {
    for place in ["imgs", "deep/down/imgs"] {
        let dir = tempfile::tempdir().unwrap();
        let graphroot = dir.path().join("g");
        let imagestore = graphroot.join(place);
        for area in [&graphroot, &imagestore] {
            let layer = area.join("overlay").join("a".repeat(64)).join("diff");
            std::fs::create_dir_all(&layer).unwrap();
            std::fs::write(layer.join("file"), vec![1; 300_000]).unwrap();
            std::fs::create_dir(area.join("overlay-layers")).unwrap();
            std::fs::write(area.join("overlay-layers/layers.json"), "[]").unwrap();
        }
        std::fs::write(imagestore.parent().unwrap().join("beside"), vec![1; 50_000]).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/containers")).unwrap();
        let config = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"/g\"\nrunroot = \"/run\"\n\
             imagestore = \"/g/{place}\"\n"
        );
        std::fs::write(dir.path().join("etc/containers/storage.conf"), config).unwrap();
        let args = ["scan", "--format", "json", "--sysroot", dir.path().to_str().unwrap()];
        let scan = program::layersweep(args).expect_no_crash().json();
        let bytes = &scan["stores"][0]["bytes"];
        assert_eq!(number(bytes, "/total"), tree::du(&graphroot), "{place}: {bytes:#}");
        assert!(number(bytes, "/other") < 100_000, "{place}: {bytes:#}");
    }
}

/// An imagestore on another disk: the library leaves the tar-splits in the graphroot, and each byte counts on its disk.
#[test]
fn imagestore_on_own_filesystem_adds_up() {
    if !Fs::Ext4.require() {
        return;
    }
    let [main_disk, images] = [(); 2].map(|()| LoopFs::new(Fs::Ext4, 64 * MIB));
    let (graphroot, imagestore) = (main_disk.path().join("g"), images.path().join("i"));
    let (layer, image) = ("a".repeat(64), "b".repeat(64));
    fn write(path: PathBuf, content: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    for area in [&graphroot, &imagestore] {
        std::fs::create_dir_all(area.join("overlay/l")).unwrap();
        for records in ["layers", "images"] {
            write(area.join(format!("overlay-{records}/{records}.json")), b"[]");
            write(area.join(format!("overlay-{records}/{records}.lock")), b"");
        }
    }
    let record = format!("[{{\"id\":\"{layer}\",\"created\":\"2024-01-01T00:00:00Z\"}}]");
    write(imagestore.join("overlay-layers/layers.json"), record.as_bytes());
    let record = format!("[{{\"id\":\"{image}\",\"names\":[\"reg.local/a:1\"],\"layer\":\"{layer}\"}}]");
    write(imagestore.join("overlay-images/images.json"), record.as_bytes());
    write(imagestore.join("overlay").join(&layer).join("diff/file"), &vec![1; 300_000]);
    write(graphroot.join("overlay-layers").join(format!("{layer}.tar-split.gz")), &vec![1; 50_000]);
    let config = main_disk.path().join("storage.conf");
    let settings = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = {graphroot:?}\nrunroot = \"/run/none\"\nimagestore = {imagestore:?}\n"
    );
    write(config.clone(), settings.as_bytes());
    let mut command = program::command();
    command.env("CONTAINERS_STORAGE_CONF", &config).args(["usage", "--format", "json", "--graphroot"]);
    let usage = program::run(command.arg(&graphroot)).expect_no_crash().json();
    fn bytes(usage: &Value, loopfs: &LoopFs, kind: &str) -> u64 {
        let filesystem = list(usage, "/filesystems")
            .iter()
            .find(|filesystem| text(filesystem, "/mount") == loopfs.path().to_str().unwrap())
            .unwrap();
        let row = list(filesystem, "/rows").iter().find(|row| row["kind"] == kind).unwrap();
        number(row, "/bytes")
    }
    assert!(bytes(&usage, &images, "images_unused") >= 300_000, "{usage:#}");
    assert_eq!(bytes(&usage, &main_disk, "images_unused"), 0, "{usage:#}");
    assert!(bytes(&usage, &main_disk, "metadata") >= 50_000, "{usage:#}");
    assert!(bytes(&usage, &images, "metadata") < 50_000, "{usage:#}");

    // The image is new, however old its layer is.
    std::fs::create_dir(imagestore.join("overlay-images").join(&image)).unwrap();
    let mut command = program::command();
    command.env("CONTAINERS_STORAGE_CONF", &config).args(["explain", "reg.local/a:1", "--graphroot"]);
    let explained = program::run(command.arg(&graphroot)).expect_no_crash();
    assert!(explained.stdout.contains("proven by the creation of its metadata directory"), "{explained:?}");
}

/// Files that a store shares with its surroundings, an imagestore in it, and leftovers of the tools elsewhere: each
/// byte has one owner, from every directory.
#[test]
fn shared_and_temporary_files_have_owners() {
    let dir = tempfile::tempdir().unwrap();
    let file = |path: &str, bytes: usize| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![1; bytes]).unwrap();
    };
    let layer = format!("srv/g/overlay/{}/diff", "a".repeat(64));
    file(&format!("{layer}/sub/file"), 300_000);
    file("srv/g/overlay-layers/layers.json", 2);
    file(&format!("srv/g/deep/imgs/overlay/{}/diff/file", "b".repeat(64)), 200_000);
    file("srv/g/deep/imgs/overlay-layers/layers.json", 2);
    file("srv/beside/file", 20_000);
    file("var/tmp/buildah4089947572/run", 90_000);
    file("var/tmp/other", 70_000);
    file("var/log/pods/shop_cart_1/web/0.log", 60_000);
    file("etc/containers/storage.conf", 0);
    fn link(dir: &tempfile::TempDir, from: &str, to: &str) {
        std::fs::hard_link(dir.path().join(from), dir.path().join(to)).unwrap();
    }
    link(&dir, &format!("{layer}/sub/file"), &format!("{layer}/again"));
    link(&dir, &format!("{layer}/sub/file"), "srv/beside/link");
    link(&dir, "srv/beside/file", "srv/again");
    let config = "[storage]\ndriver = \"overlay\"\ngraphroot = \"/srv/g\"\nrunroot = \"/run\"\n\
                  imagestore = \"/srv/g/deep/imgs\"\n";
    std::fs::write(dir.path().join("etc/containers/storage.conf"), config).unwrap();
    let flags = ["--sysroot".as_ref(), dir.path().as_os_str()];
    let owned = |below: &str| {
        let explained = fair::assert_owners_add_up(&flags, &dir.path().join(below), below);
        // The path of the node.
        let inside = format!("/{}", below.trim_end_matches('/'));
        assert_eq!(program::text(&explained, "/below/path"), inside, "{explained:#}");
        let rows = list(&explained, "/below/rows").iter();
        rows.map(|row| {
            (program::text(row, "/label").to_owned(), row["in_store"] == true, number(row, "/bytes"))
        })
        .collect::<Vec<_>>()
    };
    for below in ["", "srv", "srv/g", "srv/g/deep", "srv/g/deep/imgs", "srv/g/overlay", &layer, "srv/beside"]
    {
        owned(below);
    }
    owned(&format!("{layer}/sub"));
    owned(&format!("{layer}/again"));
    fn leaks(rows: &[(String, bool, u64)]) -> u64 {
        rows.iter().find(|row| row.0 == "Leaks").map_or(0, |row| row.2)
    }
    let leak = tree::du(&dir.path().join("var/tmp/buildah4089947572"));
    for below in ["var/tmp/buildah4089947572", "var/tmp/buildah4089947572/run", "var/tmp", "var"] {
        let rows = owned(below);
        let all = tree::du(&dir.path().join(below));
        assert_eq!(leaks(&rows), leak.min(all), "{below}: {rows:?}");
        let others = rows.iter().filter(|row| !row.1).map(|row| row.2).sum::<u64>();
        assert_eq!(others, all - leak.min(all), "{below}: {rows:?}");
    }
    let pods = owned("var/log/pods");
    assert!(pods.iter().any(|row| row.0 == "logs of pods" && row.2 >= 60_000), "{pods:?}");
    assert!(owned("var").iter().any(|row| row.0 == "logs of pods"), "a known use has a row of its own");
}

fn rig(fs: Fs, driver: &str) {
    if !store::require_tools() || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 2048 * MIB);
    let home = loopfs.path().join("store");
    std::fs::create_dir(&home).unwrap();
    let store = Store::rig(&home.join("root"), driver);
    loopfs.sync();
    check(store.root(), &store.runroot(), "the rig");
    check_usage(store.root(), &store.runroot(), "the rig");
    check_owners(fs, store.root(), &store.runroot(), "the rig");
    if driver != "overlay" {
        return;
    }
    let injected = loopfs.path().join("injected");
    store::succeed(Command::new(store::rig("inject.sh")).args([&home, &injected]));
    loopfs.sync();
    check(&injected.join("root"), &injected.join("run"), "with everything injected");
    check_usage(&injected.join("root"), &injected.join("run"), "with everything injected");
    check_owners(fs, &injected.join("root"), &injected.join("run"), "with everything injected");
}

/// Containers that run and write, are paused, have ended, and a mounted image: mounts below the graphroot do not count
/// there, and the sum is still that of `du -x`, to the byte.
fn with_containers(fs: Fs) {
    if !store::require_tools() || !support::require_program("runc") || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 1024 * MIB);
    let store = Store::at(&loopfs.path().join("root"), "overlay");
    let pod = Containers::new(&store);
    fn look(loopfs: &LoopFs, store: &Store, what: &str) -> (Value, i64) {
        loopfs.sync();
        let scan = check(store.root(), &store.runroot(), what);
        (scan, i64::try_from(tree::du(store.root())).unwrap())
    }
    let before = look(&loopfs, &store, "before");
    for number in 0..13 {
        pod.run(
            &format!("r{number}"),
            "echo x >/file; busybox dd if=/dev/zero of=/big bs=1k count=600 2>/dev/null; sleep 900",
        );
    }
    // It writes a file when it is stopped.
    pod.run(
        "last",
        "trap 'busybox dd if=/dev/zero of=/end bs=1k count=800 2>/dev/null; exit' TERM; sleep 900 & wait",
    );
    for number in 0..5 {
        pod.run(&format!("e{number}"), "busybox dd if=/dev/zero of=/big bs=1k count=300 2>/dev/null");
    }
    (0..3).for_each(|number| pod.podman(["pause", &format!("r{number}")]));
    pod.podman(["image", "mount", Containers::IMAGE]);
    pod.wait_for_files();
    let at_work = look(&loopfs, &store, "with containers at work");
    let usage = check_usage(store.root(), &store.runroot(), "with containers at work");
    let row = |kind: &str| {
        let rows = list(&usage, "/filesystems/0/rows").iter();
        rows.filter(|row| row["kind"] == kind)
            .map(|row| (number(row, "/count"), number(row, "/bytes")))
            .next()
    };
    let (running, exited) = (row("containers_running").unwrap(), row("containers_exited").unwrap());
    assert_eq!((running.0, exited.0), (14, 5), "{usage:#}");
    assert!(running.1 >= 13 * 600 * 1024 && exited.1 >= 5 * 300 * 1024, "{usage:#}");
    let owners = check_owners(fs, store.root(), &store.runroot(), "with containers at work");
    let owner = |kind: &str| {
        let rows = list(&owners, "/below/rows").iter();
        let of_kind = rows.filter(|row| row["kind"] == kind);
        of_kind.map(|row| (row["count"].as_u64(), number(row, "/bytes"))).next().unwrap_or_default()
    };
    assert_eq!(owners["subject"], "directory");
    // The files that they wrote, and their parts of the image.
    let (live, dead) = (owner("containers_running"), owner("containers_exited"));
    assert_eq!((live.0, dead.0), (Some(14), Some(5)), "{owners:#}");
    assert!(live.1 >= running.1 && dead.1 >= exited.1, "{owners:#}");
    // For the whole store they are the column of `images`, but where short files are in the metadata: `explain` agrees
    // with `du`, the column with the disk.
    if fs != Fs::Btrfs {
        let shares = ["images", "containers"].map(|of| number(&at_work.0, &format!("/fair_bytes/{of}")));
        assert_eq!((owner("image").1, live.1 + dead.1), (shares[0], shares[1]), "{owners:#}");
    }
    // Each holds the files that it wrote, without its image.
    let wrote = container_bytes(&at_work.0) - container_bytes(&before.0);
    assert!(wrote >= 13 * 600 * 1024 + 5 * 300 * 1024, "{wrote}");
    assert!(wrote < 18 * 1024 * 1024, "{wrote}");
    (0..3).for_each(|number| pod.podman(["unpause", &format!("r{number}")]));
    pod.podman(["stop", "--time", "20", "last"]);
    pod.podman(["stop", "--all", "--time", "0"]);
    pod.podman(["image", "unmount", Containers::IMAGE]);
    let stopped = look(&loopfs, &store, "after they were stopped");

    let came = compare(&store, &before, &at_work);
    let containers = list(&came, "/containers");
    assert_eq!(containers.len(), 19, "{containers:#?}");
    assert!(containers.iter().all(|container| container["change"] == "added"), "{containers:#?}");
    // Stopping changed the container that writes at its end, and a few bytes of each container's runtime files.
    let ended = compare(&store, &at_work, &stopped);
    for kind in ["images", "leaks"] {
        assert_eq!(list(&ended, &format!("/{kind}")).len(), 0, "{ended:#}");
    }
    fn big(change: &Value) -> bool {
        change["change_bytes"].as_i64().unwrap().abs() > 64 << 10
    }
    for kind in ["layers", "containers"] {
        let changed: Vec<_> = list(&ended, &format!("/{kind}")).iter().filter(|change| big(change)).collect();
        assert_eq!(changed.len(), 1, "{kind}: {ended:#}");
        assert_eq!(changed[0]["change"], "grew", "{changed:#?}");
        assert!(changed[0]["change_bytes"].as_i64().unwrap() >= 800 << 10, "{changed:#?}");
    }
    assert!(
        list(&ended, "/containers").iter().any(|container| big(container) && container["name"] == "last"),
        "{ended:#}"
    );
}

fn container_bytes(scan: &Value) -> u64 {
    number(scan, "/stores/0/bytes/containers")
}

/// Runs `diff` on two scans in files, and checks that its difference is that of `du`.
fn compare(store: &Store, before: &(Value, i64), after: &(Value, i64)) -> Value {
    fn file(store: &Store, name: &str, scan: &Value) -> PathBuf {
        let path = store.scratch().join(name);
        std::fs::write(&path, scan.to_string()).unwrap();
        path
    }
    let files = [file(store, "before.json", &before.0), file(store, "after.json", &after.0)];
    let mut command = program::command();
    let diff = program::run(command.args(["diff", "--format", "json"]).args(files)).expect_code(0).json();
    assert_eq!(diff["totals"]["change_bytes"], after.1 - before.1, "{diff:#}");
    diff
}

#[test]
fn containers_at_work_on_ext4() {
    with_containers(Fs::Ext4);
}

#[test]
fn containers_at_work_on_xfs() {
    with_containers(Fs::Xfs);
}

#[test]
fn containers_at_work_on_btrfs() {
    with_containers(Fs::Btrfs);
}

#[test]
fn overlay_on_ext4() {
    rig(Fs::Ext4, "overlay");
}

#[test]
fn overlay_on_xfs() {
    rig(Fs::Xfs, "overlay");
}

#[test]
fn overlay_on_btrfs() {
    rig(Fs::Btrfs, "overlay");
}

#[test]
fn vfs_on_ext4() {
    rig(Fs::Ext4, "vfs");
}

#[test]
fn vfs_on_xfs() {
    rig(Fs::Xfs, "vfs");
}

#[test]
fn vfs_on_btrfs() {
    rig(Fs::Btrfs, "vfs");
}
