//! Findings that need proof from outside the records: processes, open files, mounts, and podman's own database.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::{self, Store};
use support::{small, tree};

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A mount that is unmounted with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn bind(from: &Path, to: &Path) -> Self {
        store::succeed(Command::new("mount").arg("--bind").args([from, to]));
        Self(to.to_path_buf())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn leaks(store: &Store) -> Vec<Value> {
    let run = store.run("scan").expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{run:?}");
    list(&run.json(), "/leaks").to_vec()
}

/// Returns the sorted class and verdict of each finding.
fn said(leaks: &[Value]) -> Vec<(&str, &str)> {
    let mut said: Vec<_> = leaks.iter().map(|leak| (text(leak, "/class"), text(leak, "/verdict"))).collect();
    said.sort_unstable();
    said
}

fn evidence(leaks: &[Value]) -> &str {
    text(&leaks[0], "/evidence")
}

fn edit(store: &Store, name: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let path = store.record(name);
    let mut records: Vec<Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut records);
    fs::write(path, serde_json::to_vec(&records).unwrap()).unwrap();
}

fn bed() -> Option<(tempfile::TempDir, Store)> {
    bed_of(small::store)
}

fn bed_of(make: fn(&Path) -> Store) -> Option<(tempfile::TempDir, Store)> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = make(&dir.path().join("root"));
    store.unmount();
    assert_eq!(leaks(&store), [] as [Value; 0]);
    Some((dir, store))
}

#[test]
fn container_used_by_process_is_kept() {
    let Some((_dir, store)) = bed() else { return };
    let id = "c0ffee00".repeat(8);
    let lost = store.root().join("overlay-containers").join(&id);
    fs::create_dir_all(lost.join("userdata")).unwrap();
    fs::write(lost.join("userdata/ctr.log"), vec![1; 9000]).unwrap();
    let found = leaks(&store);
    assert_eq!(said(&found), [("orphan-ctr-dir", "reclaim")], "{found:#?}");
    assert_eq!(number(&found[0], "/bytes"), tree::du(&lost));
    {
        // The working directory of conmon.
        let _conmon = Process::start(Command::new("sleep").arg("600").current_dir(lost.join("userdata")));
        let found = leaks(&store);
        assert_eq!(said(&found), [("orphan-ctr-dir", "report")], "{found:#?}");
        assert!(evidence(&found).contains("(pid "), "{found:#?}");
    }
    {
        let log = File::open(lost.join("userdata/ctr.log")).unwrap();
        let _reader = Process::start(Command::new("sleep").arg("600").stdin(log));
        assert_eq!(said(&leaks(&store)), [("orphan-ctr-dir", "report")]);
    }
    {
        let _shm = Mounted::bind(&lost.join("userdata"), &lost.join("userdata"));
        let found = leaks(&store);
        assert_eq!(said(&found), [("orphan-ctr-dir", "report")]);
        assert!(evidence(&found).contains("mounted"), "{found:#?}");
    }
    assert_eq!(said(&leaks(&store)), [("orphan-ctr-dir", "reclaim")]);
}

#[test]
fn temporary_files_of_process_are_kept() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("debugfs") {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = small::still(&disk.path().join("root"));
    store.unmount();
    let blob = store.root().join("tmp/container_images_storage7/1");
    fs::create_dir_all(blob.parent().unwrap()).unwrap();
    fs::write(&blob, vec![1; 50_000]).unwrap();
    disk.age(&[blob.parent().unwrap()], 3);
    let found = leaks(&store);
    assert_eq!(said(&found), [("graphroot-tmp", "reclaim")]);
    assert!(number(&found[0], "/age_seconds") / 3600 >= 71, "{found:#?}");
    let held = Process::start(Command::new("sleep").arg("600").stdin(File::open(&blob).unwrap()));
    assert_eq!(said(&leaks(&store)), [("graphroot-tmp", "keep")]);
    drop(held);
    assert_eq!(said(&leaks(&store)), [("graphroot-tmp", "reclaim")]);
    // A file deep inside that was just written to.
    fs::write(&blob, vec![2; 60_000]).unwrap();
    assert!(number(&leaks(&store)[0], "/age_seconds") < 3600);
}

/// Processes of the machine that another machine's disk came from cannot be checked.
#[test]
fn below_a_sysroot_processes_prove_nothing() {
    let Some((dir, store)) = bed() else { return };
    let sysroot = dir.path().join("disk");
    let there = sysroot.join("var/lib/containers/storage");
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    tree::copy(store.root(), &there);
    fs::create_dir_all(there.join("overlay-containers").join("ab".repeat(32))).unwrap();
    fs::create_dir_all(there.join("tmp/x")).unwrap();
    fs::create_dir_all(sysroot.join("var/tmp/buildah7777777")).unwrap();
    fs::write(sysroot.join("var/tmp/buildah7777777/x"), "x").unwrap();
    let args = ["scan", "--format", "json", "--sysroot", sysroot.to_str().unwrap()];
    let scan = program::layersweep(args).expect_code(0).json();
    let found = list(&scan, "/leaks");
    let expected = [("graphroot-tmp", "report"), ("orphan-ctr-dir", "report"), ("vartmp", "report")];
    assert_eq!(said(found), expected, "{found:#?}");
    // Files outside of the store do not count for its bytes.
    assert_eq!(number(&scan, "/stores/0/bytes/total"), tree::du(&there));
    assert_eq!(number(&scan, "/totals/bytes"), tree::du(&there));
}

#[test]
fn unrecorded_and_stale_mounts_are_found() {
    let Some((_dir, store)) = bed() else { return };
    let container = store.json("scan")["containers"][0].clone();
    assert_eq!(text(&container, "/name"), "web");
    // Mounted by the library, and recorded.
    let merged = PathBuf::from(store.podman(["mount", "web"]).trim());
    assert_eq!(leaks(&store), [] as [Value; 0]);
    assert_eq!(text(&store.json("scan"), "/containers/0/state"), "created", "podman's database says so");
    // Unmounted behind its back.
    store::succeed(Command::new("umount").arg("-l").arg(&merged));
    let found = leaks(&store);
    assert_eq!(said(&found), [("inconsistent", "report")], "{found:#?}");
    assert!(Path::new(text(&found[0], "/path")).ends_with("overlay-layers/mountpoints.json"));
    store.podman(["umount", "--force", "web"]);
    store.unmount();
    assert_eq!(leaks(&store), [] as [Value; 0]);
    // Mounted without the library, in another mount namespace.
    fn mount(layer: &Path) -> String {
        format!("mkdir -p {0}/merged && mount --bind {0}/diff {0}/merged", layer.display())
    }
    {
        let _private = in_private(&mount(merged.parent().unwrap()));
        assert_eq!(leaks(&store), [] as [Value; 0], "the container may start");
    }
    let image = store.json("scan")["images"][0].clone();
    let layer = store.root().join("overlay").join(text(&image, "/layers/0"));
    let _private = in_private(&mount(&layer));
    let found = leaks(&store);
    assert_eq!(said(&found), [("leaked-mount", "keep")], "{found:#?}");
    assert_eq!(Path::new(text(&found[0], "/path")), layer.join("merged"));
}

/// Starts a process in a new mount namespace in which `mount` was run.
fn in_private(mount: &str) -> Process {
    let mut private = Command::new("unshare");
    private.args(["--mount", "sh", "-c", &format!("{mount} && echo up && exec cat")]);
    let mut private = Process(private.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut up = [0; 2];
    std::io::Read::read_exact(private.0.stdout.as_mut().unwrap(), &mut up).unwrap();
    private
}

/// Makes a container or sandbox as CRI-O does; returns its id and its `userdata`.
fn crio_container(store: &Store, name: &str, is_sandbox: bool) -> (String, PathBuf) {
    let metadata = json!({"pod-name": "pod", "pod-id": "0f8a", "pod": is_sandbox, "name": name,
        "image-name": small::name("base")});
    let metadata = metadata.to_string();
    let words = ["create-container", "--metadata", &metadata, "--name", name, &small::name("base")];
    let id = store.storage(words).split_whitespace().next().unwrap().to_owned();
    let userdata = store.root().join("overlay-containers").join(&id).join("userdata");
    fs::create_dir_all(&userdata).unwrap();
    fs::write(userdata.join("config.json"), "{}").unwrap();
    (id, userdata)
}

/// A library before 1.45 (that of podman 4.3) does not know `volatile-layers.json`, and writes `mountpoints.json`
/// without CRI-O's containers.
#[test]
fn mount_of_forgotten_container_is_not_leak() {
    let Some((_dir, store)) = bed() else { return };
    let (id, userdata) = crio_container(&store, "served", false);
    let merged = PathBuf::from(store.storage(["mount", "served"]).trim());
    fs::write(store.runroot().join("overlay-layers/mountpoints.json"), "[]").unwrap();
    let leaked = &[("leaked-mount", "keep")][..];
    for (recorded, has_process, shown, expected) in [
        ("running", false, "running", &[][..]),
        ("created", false, "created", &[]),
        ("stopped", true, "running", &[]),
        ("stopped", false, "running", leaked),
        ("", true, "running", &[]),
        ("", false, "running", leaked),
    ] {
        fs::write(userdata.join("state.json"), json!({"status": recorded}).to_string()).unwrap();
        let _process =
            has_process.then(|| Process::start(Command::new("sleep").arg("600").current_dir(&merged)));
        let found = leaks(&store);
        assert_eq!(said(&found), expected, "{recorded:?} {has_process}: {found:#?}");
        let scan = store.json("scan");
        let mut containers = list(&scan, "/containers").iter();
        let container = containers.find(|container| container["id"] == id.as_str()).unwrap();
        assert_eq!(text(container, "/state"), shown, "{recorded:?}");
        let images = store.json("images");
        let base =
            list(&images, "/images").iter().find(|image| image["names"][0] == small::name("base").as_str());
        assert_eq!(base.unwrap()["in_use"], true, "{recorded:?}");
    }
    store::succeed(Command::new("umount").arg(&merged));
    // Its sandbox has no process, and is ready until its state changes.
    let (_, userdata) = crio_container(&store, "pod", true);
    let merged = PathBuf::from(store.storage(["mount", "pod"]).trim());
    fs::write(store.runroot().join("overlay-layers/mountpoints.json"), "[]").unwrap();
    assert_eq!(leaks(&store), [] as [Value; 0], "ready");
    fs::write(userdata.join("state.json"), r#"{"status":"stopped"}"#).unwrap();
    assert_eq!(said(&leaks(&store)), leaked);
    store::succeed(Command::new("umount").arg(&merged));
    store.unmount();
}

/// The library mounts layers of an imagestore below the runroot, and a container may have a layer only as its own `/`.
#[test]
fn mount_outside_store_is_not_stale() {
    let Some((_dir, store)) = bed() else { return };
    let scan = store.json("scan");
    let image = list(&scan, "/images")
        .iter()
        .find(|image| image["names"][0] == small::name("other").as_str())
        .unwrap();
    let (id, top) = (text(image, "/id"), text(image, "/layers/0"));
    let layer = store.root().join("overlay").join(top);
    let merged = store.runroot().join("overlay").join(top).join("merged");
    fs::create_dir_all(&merged).unwrap();
    fn count(store: &Store, top: &str, path: &Path) {
        let entry = json!([{"id": top, "path": path, "count": 1}]).to_string();
        fs::create_dir_all(store.runroot().join("overlay-layers")).unwrap();
        fs::write(store.runroot().join("overlay-layers/mountpoints.json"), entry).unwrap();
    }
    count(&store, top, &merged);
    assert_eq!(said(&leaks(&store)), [("inconsistent", "report")], "nothing is mounted");
    let (_, userdata) = crio_container(&store, "served", false);
    fn volumes(userdata: &Path, ids: Value) {
        let volumes = json!([{"container_path": "/model", "image": {"image": ids}}]).to_string();
        let config = json!({"annotations": {"io.kubernetes.cri-o.Volumes": volumes}});
        fs::write(userdata.join("config.json"), config.to_string()).unwrap();
    }
    {
        let _mount = Mounted::bind(&layer.join("diff"), &merged);
        volumes(&userdata, json!(id));
        assert_eq!(leaks(&store), [] as [Value; 0], "a volume");
        volumes(&userdata, json!(""));
        let found = leaks(&store);
        assert_eq!(said(&found), [("orphan-image-volume", "report")], "{found:#?}");
        assert!(evidence(&found).contains("CRI-O unmounts it when it removes the image"), "{found:#?}");
        fs::write(store.runroot().join("overlay-layers/mountpoints.json"), "[]").unwrap();
        assert_eq!(said(&leaks(&store)), [("leaked-mount", "keep")]);
        volumes(&userdata, json!(id));
        assert_eq!(leaks(&store), [] as [Value; 0], "forgotten, but a volume");
    }
    count(&store, top, &layer.join("merged"));
    let link = fs::read_to_string(layer.join("link")).unwrap();
    let (upper, lower) = (layer.join("diff"), store.root().join("overlay/l").join(link));
    let elsewhere = store.scratch().join("elsewhere");
    for name in ["upper", "work"] {
        fs::create_dir_all(elsewhere.join(name)).unwrap();
    }
    let empty = elsewhere.join("work");
    for (what, options) in [
        (
            "upper",
            format!(
                "lowerdir={},upperdir={},workdir={}",
                empty.display(),
                upper.display(),
                layer.join("work").display()
            ),
        ),
        ("lower", format!("lowerdir={}:{}", lower.display(), empty.display())),
    ] {
        fs::create_dir_all(layer.join("work")).unwrap();
        let mount = format!("mount -t overlay overlay -o {options} {}", elsewhere.join("upper").display());
        let _private = in_private(&mount);
        assert_eq!(leaks(&store), [] as [Value; 0], "{what}");
    }
    assert_eq!(said(&leaks(&store)), [("inconsistent", "report")]);
}

#[test]
fn undeletable_incomplete_layer_is_reported() {
    let Some((_dir, store)) = bed() else { return };
    let mut id = String::new();
    edit(&store, "layers.json", |records| {
        // A leaf that only its image needs.
        let parents: Vec<_> = records.iter().filter_map(|layer| layer["parent"].as_str()).collect();
        let lone = records
            .iter()
            .find(|layer| !parents.contains(&text(layer, "/id")) && layer.get("names").is_none());
        id = text(lone.unwrap(), "/id").to_owned();
        let mut copy = lone.unwrap().clone();
        copy["id"] = json!("5".repeat(64));
        copy["flags"] = json!({"incomplete": true});
        records.push(copy);
    });
    let from = store.root().join("overlay").join(&id);
    let to = store.root().join("overlay").join("5".repeat(64));
    tree::copy(&from, &to);
    fs::write(to.join("link"), "QQQQQQQQQQQQQQQQQQQQQQQQQQ").unwrap();
    assert_eq!(said(&leaks(&store)), [("incomplete", "reclaim")]);
    {
        let _mount = Mounted::bind(&to.join("diff"), &to.join("merged"));
        let found = leaks(&store);
        assert!(said(&found).contains(&("incomplete", "report")), "{found:#?}");
    }
    if Command::new("chattr").arg("+i").arg(&to).status().is_ok_and(|status| status.success()) {
        let found = leaks(&store);
        store::succeed(Command::new("chattr").arg("-i").arg(&to));
        assert_eq!(said(&found), [("incomplete", "report")], "{found:#?}");
        assert!(evidence(&found).contains("immutable"), "{found:#?}");
    } else {
        support::skip("this filesystem has no immutable files");
    }
}

/// Sets the creation time of a container back.
fn make_old(store: &Store, name: &str, when: &str) {
    edit(store, "containers.json", |records| {
        let record = records.iter_mut().find(|record| record["names"][0] == name).unwrap();
        record["created"] = json!(when);
    });
}

#[test]
fn unknown_containers_and_volumes_are_found() {
    let Some((_dir, store)) = bed() else { return };
    let scan = store.json("scan");
    let mut containers = list(&scan, "/containers").iter();
    let web = containers.find(|container| container["name"] == "web").unwrap();
    assert_eq!(text(web, "/state"), "created", "podman's database says so");
    store.podman(["volume", "create", "data"]);
    assert_eq!(leaks(&store), [] as [Value; 0]);
    fs::create_dir_all(store.root().join("volumes/lost/_data")).unwrap();
    fs::write(store.root().join("volumes/lost/_data/file"), vec![1; 30_000]).unwrap();
    assert_eq!(said(&leaks(&store)), [("volume-orphan", "keep")], "podman may be making it");
    let parts = ["", "_data", "_data/file"].map(|part| store.root().join("volumes/lost").join(part));
    store::succeed(Command::new("touch").args(["-d", "1 hour ago"]).args(&parts));
    let found = leaks(&store);
    assert_eq!(said(&found), [("volume-orphan", "report")], "{found:#?}");
    assert_eq!(text(&found[0], "/id"), "lost");
    assert_eq!(number(&found[0], "/bytes"), tree::du(&store.root().join("volumes/lost")));
    tree::remove(&store.root().join("volumes/lost"));

    let databases = ["libpod/bolt_state.db", "db.sql"].map(|name| store.root().join(name));
    let database = databases.iter().find(|path| path.exists()).expect("podman's database");
    let before = fs::read(database).unwrap();
    store.podman(["create", "--name", "late", "--network", "none", &small::name("b"), "/x"]);
    store.unmount();
    let after = fs::read(database).unwrap();
    make_old(&store, "late", "2025-01-01T00:00:00Z");
    assert_eq!(leaks(&store), [] as [Value; 0]);
    fs::write(database, &before).unwrap();
    let found = leaks(&store);
    assert_eq!(said(&found), [("forgotten-container", "report")], "{found:#?}");
    // An unreadable database is not an empty one.
    fs::write(database, &before[..before.len() / 3]).unwrap();
    assert_eq!(leaks(&store), [] as [Value; 0]);
    fs::write(database, after).unwrap();
}

#[test]
fn only_forgotten_working_containers_are_named() {
    let Some((_dir, store)) = bed() else { return };
    store.buildah(["from", "--pull-never", "--name", "wip", &small::name("a")]);
    store.unmount();
    assert_eq!(leaks(&store), [] as [Value; 0], "it was made just now");
    make_old(&store, "wip", "2025-01-01T00:00:00Z");
    let found = leaks(&store);
    assert_eq!(said(&found), [("forgotten-container", "report")], "{found:#?}");
    let directory = text(&found[0], "/path").to_owned();
    let _running = Process::start(Command::new("sleep").arg("600").current_dir(directory));
    assert_eq!(leaks(&store), [] as [Value; 0], "a process works in it");
}

/// Neither the library nor its check reads a split imagestore.
#[test]
fn imagestore_has_its_own_leaks() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let placed = support::fixture::place("imagestore", dir.path());
    let overlay = placed.join("srv/images/overlay");
    let orphan = overlay.join("7".repeat(64));
    fs::create_dir_all(orphan.join("diff")).unwrap();
    fs::write(orphan.join("link"), "ORPHANORPHANORPHANORPHANOR").unwrap();
    let id = "ORPHANORPHANORPHANORPHANOR";
    std::os::unix::fs::symlink(format!("../{}/diff", "7".repeat(64)), overlay.join("l").join(id)).unwrap();
    let before = tree::listing(&placed);
    let args = ["scan", "--format", "json", "--sysroot", placed.to_str().unwrap()];
    let scan = program::layersweep(args).expect_code(0).json();
    let found = list(&scan, "/leaks");
    assert_eq!(said(found), [("orphan-dir", "reclaim")], "{found:#?}");
    let changes = tree::differences(&before, &tree::listing(&placed));
    assert!(changes.is_empty(), "{changes:#?}");
}

/// A record is in both files: the library reads the first.
#[test]
fn record_in_two_files_is_named() {
    let Some((_dir, store)) = bed_of(small::still) else { return };
    let record = fs::read(store.record("containers.json")).unwrap();
    fs::write(store.record("volatile-containers.json"), record).unwrap();
    let found = leaks(&store);
    assert_eq!(said(&found), [("dup-record", "report")], "{found:#?}");
    assert_eq!(text(&found[0], "/id"), text(&store.json("scan"), "/containers/0/id"));
}
