//! Reclaiming everything that `inject.sh` plants: garbage is deleted, the traps are kept.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jiff::SignedDuration;
use layersweep::editor::{Editor, Options, OrphanAt, PlannedImage, Refusal, Unused};
use layersweep::model::{LeakClass, Orphan, Recipe};
use layersweep::stores::containers_storage::places::StorePlaces;
use serde_json::Value;

use crate::support;
use support::node::{self, Node};
use support::program::{self, list, text};
use support::store::{self, Store};
use support::{edit, locks, small, tree};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn planted(injected: &Path) -> Vec<(String, String, String, Vec<PathBuf>)> {
    let table = std::fs::read_to_string(injected.join("INJECTED.tsv")).unwrap();
    table
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
            let paths = fields[3].split(" (").next().unwrap().split_whitespace();
            let paths = paths.map(|path| injected.join(path)).collect();
            (fields[0].clone(), fields[1].clone(), fields[2].clone(), paths)
        })
        .collect()
}

#[test]
fn planted_leftovers_are_deleted_and_traps_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    std::fs::create_dir(&home).unwrap();
    let _store = Store::rig(&home.join("root"), "overlay");
    let injected = dir.path().join("injected");
    store::succeed(Command::new(store::rig("inject.sh")).args([&home, &injected]));
    let root = injected.join("root");
    let run = injected.join("run");
    let _lock = locks::write_lock(&root.join("overlay/staging/3333333333/staging.lock"));
    // Planted objects are seconds old; their age is not tested here.
    let aged = ["overlay/staging", "overlay/tempdirs", "overlay-layers/tmp"];
    let places = StorePlaces { runroots: vec![edit::root(&run)], ..places_like(&root) };
    let editor = Editor::new(&places, Options::default()).unwrap();
    let scan = || program::store_run("scan", &root, &run).expect_no_crash().json();
    fn to_delete(scan: &Value) -> Vec<Value> {
        let leaks = list(scan, "/leaks").iter().filter(|leak| leak["verdict"] == "reclaim");
        // There is no recipe for temporary files of the tools.
        leaks.filter(|leak| leak["class"] != "graphroot-tmp").cloned().collect::<Vec<_>>()
    }
    let before = scan();
    let mut leftovers = Vec::new();
    for leak in to_delete(&before) {
        match LeakClass::find(text(&leak, "/class")).and_then(LeakClass::recipe) {
            Some(Recipe::Orphan(kind)) => {
                leftovers.push(OrphanAt { kind, path: text(&leak, "/path").into() });
            }
            Some(Recipe::IncompleteLayer) => {
                editor.delete_unused_layer(text(&leak, "/id"), Unused::Incomplete).unwrap();
            }
            Some(Recipe::UnreferencedLayer) => {
                editor.delete_unused_layer(text(&leak, "/id"), Unused::unreferenced(DAY)).unwrap();
            }
            other => panic!("no deletion for {leak:#}: {other:?}"),
        }
    }
    for (class, _, _, paths) in planted(&injected) {
        let kind = match class.as_str() {
            "tmp-json" => Orphan::TempRecord,
            _ => continue,
        };
        let more: Vec<_> = paths
            .iter()
            .map(|path| OrphanAt { kind, path: path.clone() })
            .filter(|found| !leftovers.contains(found))
            .collect();
        leftovers.extend(more);
    }
    // Too young, where only the age decides.
    let mut young = Vec::new();
    for leftover in &leftovers {
        let Err(error) = edit::reclaim(&editor, leftover, DAY) else { continue };
        assert!(matches!(error.refusal(), Some(Refusal::Young { .. })), "{leftover:?}: {error}");
        young.push(leftover);
        let by_age = leftover.kind == Orphan::ContainerDirectory;
        let by_place = aged.iter().any(|path| leftover.path.starts_with(root.join(path)));
        assert!(by_age || by_place, "{leftover:?}");
    }
    assert!(!young.is_empty());
    for leftover in young {
        edit::reclaim(&editor, leftover, SignedDuration::ZERO).unwrap();
    }
    let after = scan();
    assert_eq!(to_delete(&after), Vec::<Value>::new());
    // Everything else is reported as before.
    fn rest(scan: &Value) -> Vec<(String, String)> {
        let leaks = list(scan, "/leaks").iter().filter(|leak| leak["verdict"] != "reclaim");
        // Other tests change which young ones exist.
        let leaks = leaks.filter(|leak| leak["class"] != "graphroot-tmp");
        leaks.map(|leak| (text(leak, "/class").to_owned(), text(leak, "/path").to_owned())).collect()
    }
    assert_eq!(rest(&after), rest(&before));
    assert_eq!(edit::ids(list(&after, "/images")), edit::ids(list(&before, "/images")));
    for (class, verdict, _, paths) in planted(&injected) {
        for path in paths.iter().filter(|path| path.exists() || path.symlink_metadata().is_ok()) {
            // Record files are kept, whatever their content.
            let is_records = path.extension().is_some_and(|extension| extension == "json");
            let is_target = verdict == "reclaim" && !["graphroot-tmp", "vartmp"].contains(&class.as_str());
            assert!(
                !is_target || is_records || class == "staging-dead" && path.ends_with("staging"),
                "{class}: {path:?}"
            );
        }
        if verdict == "keep" {
            assert!(paths.iter().all(|path| path.symlink_metadata().is_ok()), "{class}: {paths:?}");
        }
    }
    delete_trapped_images(&editor, &after);
    let rows = planted(&injected);
    for (class, _, id, _) in
        rows.iter().filter(|row| ["missing-l", "empty-linkfile"].contains(&row.0.as_str()))
    {
        assert_eq!(LeakClass::MissingLink.recipe(), Some(Recipe::RepairLink));
        editor.repair_link(id).unwrap();
        let link = std::fs::read_to_string(root.join("overlay").join(id).join("link")).unwrap();
        let target = std::fs::read_link(root.join("overlay/l").join(link)).unwrap();
        assert_eq!(target, Path::new("..").join(id).join("diff"), "{class}");
        let error = editor.repair_link(id).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::Changed { .. })), "{error}");
    }
    // The library opens the remaining store. It treats the traps differently, so it only lists.
    let mut library = Command::new("containers-storage");
    library.args(["--graph"]).arg(&root).arg("--run").arg(&run).args([
        "--storage-driver",
        "overlay",
        "images",
    ]);
    let listed = store::succeed(&mut library);
    assert!(listed.contains("localhost/mk/svc-b:1"), "{listed}");
    let _ = Command::new("umount").arg("-l").arg(root.join("overlay")).status();
}

/// Deletes images whose apparently unshared layers are shared.
fn delete_trapped_images(editor: &Editor, scan: &Value) {
    for (name, layers) in
        [("shared-top", 0), ("mapped-top", 1), ("hardlink-cross", 1), ("image-layer-missing", 0)]
    {
        let name = format!("localhost/inj/{name}:1");
        let image =
            list(scan, "/images").iter().find(|image| program::texts(image, "/names").contains(&name));
        // Some have the manifest of a manifest list's member.
        let planned = PlannedImage { id: text(image.unwrap(), "/id").into(), ..Default::default() };
        let deleted = editor.delete_image(&planned).unwrap();
        assert_eq!(deleted.layers.len(), layers, "{name}");
    }
}

fn places_like(root: &Path) -> StorePlaces {
    StorePlaces {
        databases: Vec::new(),
        caches: Vec::new(),
        temporary: Vec::new(),
        graphroot: edit::root(root),
        imagestores: Vec::new(),
        runroots: Vec::new(),
        driver: "overlay".into(),
        other_drivers: Vec::new(),
        primary: true,
        read_only: false,
        foreign: false,
        allowance: layersweep::sys::allowance::Allowance::default(),
    }
}

#[test]
fn objects_in_use_are_not_leftovers() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let before = edit::facts(store.root());
    let editor = edit::editor(&store);
    let scan = store.json("scan");
    let mut all = Vec::new();
    let root = store.root();
    for layer in list(&scan, "/layers") {
        let id = text(layer, "/id");
        let path = root.join("overlay").join(id);
        let data = root.join("overlay-layers");
        all.push((Orphan::LayerDirectory, path));
        all.push((Orphan::LayerData, data.join(format!("{id}.tar-split.gz"))));
        let error = editor.delete_unused_layer(id, Unused::Unreferenced(SignedDuration::ZERO)).unwrap_err();
        assert!(error.refusal().is_some(), "{error}");
        let error = editor.delete_unused_layer(id, Unused::Incomplete).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::Changed { .. })), "{error}");
    }
    for image in list(&scan, "/images") {
        all.push((Orphan::ImageDirectory, root.join("overlay-images").join(text(image, "/id"))));
    }
    let container = text(&list(&scan, "/containers")[0], "/id").to_owned();
    all.push((Orphan::ContainerDirectory, root.join("overlay-containers").join(&container)));
    // Paths with the wrong type, or outside the store.
    for path in
        ["overlay/l", "overlay", "overlay-layers/layers.json", "../outside", "overlay-images/images.lock"]
    {
        for kind in [Orphan::LayerDirectory, Orphan::TempRecord, Orphan::Staging, Orphan::TempDirectory] {
            all.push((kind, root.join(path)));
        }
    }
    all.push((Orphan::LayerDirectory, "/etc".into()));
    let leftovers: Vec<_> = all.into_iter().map(|(kind, path)| OrphanAt { kind, path }).collect();
    for leftover in &leftovers {
        let error = edit::reclaim(&editor, leftover, SignedDuration::ZERO).unwrap_err();
        assert!(error.refusal().is_some(), "{leftover:?}: {error}");
    }
    assert_eq!(edit::facts(store.root()), before);
    store.podman(["rm", "web"]);
    store.podman(["rmi", &small::name("a2"), &small::name("a")]);
    store.unmount();
    edit::whole(&store);
    let _ = tree::du(store.root());
}

/// Processes, a loop device and their end.
#[derive(Default)]
struct Users {
    processes: Vec<Child>,
    device: Option<String>,
}

impl Drop for Users {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some(device) = self.device.take() {
            let _ = Command::new("/usr/sbin/losetup").args(["--detach", &device]).status();
        }
    }
}

/// Leaks that a process or a loop device uses in any way are kept, in the plan as in the run, and deleted afterwards.
#[test]
fn leftovers_in_use_are_kept() {
    if !store::require_tools() || !support::require_program("/usr/sbin/losetup") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    node.store.unmount();
    let root = node.store.root();
    let layer = |number: u8| root.join("overlay").join(format!("{number:02x}").repeat(32));
    let image = root.join("overlay-images").join("0c".repeat(32));
    let data = root.join("overlay-layers").join(format!("{}.tar-split.gz", "0d".repeat(32)));
    for number in 1..=6 {
        std::fs::create_dir_all(layer(number).join("diff")).unwrap();
    }
    std::fs::create_dir(&image).unwrap();
    std::fs::write(&data, "x").unwrap();
    let mut users = Users::default();
    fn sleep(program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.arg("900").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
    let copy = |from: &Path, to: PathBuf| {
        std::fs::copy(from, &to).unwrap();
        to
    };
    let busybox = support::containers::which("busybox");
    // Its working directory, its root directory, its program, an open file, a mapped file, a loop device.
    users.processes.push(sleep("sleep").current_dir(layer(1).join("diff")).spawn().unwrap());
    copy(&busybox, layer(2).join("diff/sleep"));
    users
        .processes
        .push(Command::new("chroot").arg(layer(2).join("diff")).args(["/sleep", "900"]).spawn().unwrap());
    users.processes.push(sleep(copy(&busybox, layer(3).join("diff/sleep"))).spawn().unwrap());
    let log = std::fs::File::create(layer(4).join("diff/log")).unwrap();
    users.processes.push(sleep("sleep").stdout(log).spawn().unwrap());
    let library = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = library
        .lines()
        .find_map(|line| Some(&line[line.find("/")?..]).filter(|path| path.contains("/libc.so")));
    let library = copy(Path::new(library.unwrap()), layer(5).join("diff/library.so"));
    users.processes.push(sleep("sleep").env("LD_PRELOAD", library).spawn().unwrap());
    let disk = layer(6).join("diff/disk");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let device = store::succeed(Command::new("/usr/sbin/losetup").args(["--find", "--show"]).arg(&disk));
    users.device = Some(device.trim().to_owned());
    users.processes.push(sleep("sleep").current_dir(&image).spawn().unwrap());
    users.processes.push(
        sleep("sleep").stdout(std::fs::File::options().append(true).open(&data).unwrap()).spawn().unwrap(),
    );
    let all: Vec<_> = (1..=6).map(layer).chain([image, data]).collect();
    let words = ["sweep", "--delete", "-y", "--min-age", "0s", "--format", "json"];
    // The programs may not have begun yet.
    std::thread::sleep(Duration::from_millis(300));
    let dry = node.json(&["sweep", "--delete", "--dry-run", "--min-age", "0s"]);
    assert_eq!(dry["predicted_bytes"], 0, "{dry:#}");
    let run = node::document(node.run(&words));
    let missing: Vec<_> = all.iter().filter(|path| !path.exists()).collect();
    assert!(missing.is_empty(), "{missing:?}: {run:#}");
    // The editor decides by itself.
    let editor = edit::editor(&node.store);
    for path in &all {
        let kind = match path.parent().and_then(Path::file_name).and_then(OsStr::to_str) {
            Some("overlay") => Orphan::LayerDirectory,
            Some("overlay-images") => Orphan::ImageDirectory,
            _ => Orphan::LayerData,
        };
        let error =
            edit::reclaim(&editor, &OrphanAt { kind, path: path.clone() }, SignedDuration::ZERO).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::Busy { .. })), "{path:?}: {error}");
        assert!(path.exists(), "{path:?}");
    }
    drop(users);
    node.run(&words).expect_code(0);
    let left: Vec<_> = all.iter().filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    edit::whole(&node.store);
}
