//! Deleting images without a runtime: the deleted and the kept objects, and that podman sees the store as after its
//! own deletion.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::time::Duration;

use layersweep::editor::{Error, LayerFlag, Options, PlannedImage, Refusal};
use layersweep::stores::{self, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use serde_json::Value;

use crate::support;
use support::archive::Noise;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, number, text};
use support::store::{self, Store};
use support::{edit, small};

/// Returns the used bytes after the filesystem has finished its background work.
fn settled(loopfs: &LoopFs) -> i64 {
    let mut last = loopfs.used_bytes();
    let mut still = 0;
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(10));
        let now = loopfs.used_bytes();
        still = if now == last { still + 1 } else { 0 };
        last = now;
        if still == 2 {
            break;
        }
    }
    i64::try_from(last).unwrap()
}

/// Deletes all images in the order of `rank`, and checks each prediction and that podman agrees. Measures every
/// `each`th deletion, which takes several `syncfs`.
fn delete_all(loopfs: &LoopFs, store: &Store, options: Options, each: usize, rank: impl Fn(&Value) -> u64) {
    let editor = edit::with(store, options);
    let mut order = store.images();
    order.sort_by_key(|image| (rank(image), text(image, "/id").to_owned()));
    let (mut locked, mut most) = (Duration::ZERO, 0);
    let all = order.len();
    let mut images = store.images();
    for (round, planned) in order.iter().enumerate() {
        let image = images.iter().find(|image| image["id"] == planned["id"]).unwrap();
        let before = (round % each == 0).then(|| settled(loopfs));
        let deleted = edit::delete(&editor, image);
        locked = locked.max(deleted.locked_for);
        if let Some(before) = before {
            let freed = before - settled(loopfs);
            let predicted = number(image, "/frees_bytes");
            let off = freed.abs_diff(i64::try_from(predicted).unwrap());
            most = most.max(off);
            assert!(off <= (predicted / 100).max(64 << 10), "{image:#}: said {predicted}, came {freed}");
        }
        let mut left = edit::ids(&images);
        left.retain(|id| id != text(image, "/id"));
        images = edit::whole_images(store);
        assert_eq!(edit::ids(&images), left);
        if round % 8 == 0 || round + 3 > all {
            assert_eq!(edit::podman_ids(store), left);
            use_all(store, &left);
        }
    }
    println!("{all} images; the locks were held for {locked:?} at most, predictions off by {most} at most");
    assert!(locked < Duration::from_secs(2), "{locked:?}");
    // Only the store's own files are left; a new image can be loaded.
    store.load(&support::archive::forest()[..2]);
    assert_eq!(edit::podman_ids(store).len(), 2);
}

/// Checks that podman can inspect and mount every image, and make a container of it.
fn use_all(store: &Store, ids: &[String]) {
    if ids.is_empty() {
        return;
    }
    let inspected = store.podman_json(["image", "inspect"].into_iter().chain(ids.iter().map(String::as_str)));
    assert_eq!(inspected.as_array().unwrap().len(), ids.len());
    let id = &ids[ids.len() / 2];
    store.podman(["create", "--name", "probe", "--network", "none", id, "/x"]);
    let mounted = store.podman(["mount", "probe"]);
    assert!(std::fs::read_dir(mounted.trim()).unwrap().count() > 0);
    store.podman(["umount", "probe"]);
    store.podman(["rm", "probe"]);
    store.unmount();
}

fn forest(fs: Fs) -> Option<(LoopFs, Store)> {
    if !store::require_tools() || !fs.require() {
        return None;
    }
    let loopfs = LoopFs::new(fs, 1024 * MIB);
    let store = Store::forest(&loopfs.path().join("root"), "overlay");
    Some((loopfs, store))
}

fn shuffled(image: &Value) -> u64 {
    Noise::new(&program::texts(image, "/names").join(" ")).next()
}

#[test]
fn forest_is_deleted_leaves_first() {
    if let Some((loopfs, store)) = forest(Fs::Ext4) {
        delete_all(&loopfs, &store, Options::default(), 1, |image: &Value| {
            99 - program::list(image, "/layers").len() as u64
        });
    }
}

#[test]
fn forest_is_deleted_bases_first_without_marks() {
    if let Some((loopfs, store)) = forest(Fs::Ext4) {
        let options = Options { layer_flag: LayerFlag::Unset, ..Options::default() };
        delete_all(&loopfs, &store, options, 5, |image: &Value| program::list(image, "/layers").len() as u64);
    }
}

#[test]
fn forest_is_deleted_in_place_and_mixed() {
    if let Some((loopfs, store)) = forest(Fs::Ext4) {
        delete_all(&loopfs, &store, Options { tempdirs: false, ..Options::default() }, 5, shuffled);
    }
}

#[test]
fn forest_is_deleted_on_xfs() {
    if let Some((loopfs, store)) = forest(Fs::Xfs) {
        delete_all(&loopfs, &store, Options::default(), usize::MAX, shuffled);
    }
}

#[test]
fn images_in_use_are_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let before = support::edit::facts(store.root());
    let editor = edit::editor(&store);
    let images = store.images();
    fn find<'a>(images: &'a [Value], name: &str) -> &'a Value {
        let name = small::name(name);
        images.iter().find(|image| program::texts(image, "/names").contains(&name)).unwrap()
    }
    let error = editor.delete_image(&edit::planned(find(&images, "a"))).unwrap_err();
    match error.refusal() {
        Some(Refusal::UsedByContainer { name, owner, .. }) => {
            assert_eq!((name.as_str(), *owner), ("web", layersweep::model::Owner::Podman));
        }
        other => panic!("{other:?}"),
    }
    // Tagged after the plan was made.
    let renamed = PlannedImage { names: Some(vec!["other".into()]), ..edit::planned(find(&images, "b")) };
    let error = editor.delete_image(&renamed).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Changed { .. })), "{error}");
    let none = PlannedImage { id: "0".repeat(64), ..Default::default() };
    let error = editor.delete_image(&none).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Unknown { .. })), "{error}");
    assert_eq!(support::edit::facts(store.root()), before, "a refusal changes nothing");
    // An image that shares layers with a container's image is deleted without those layers.
    edit::delete(&editor, find(&images, "a2"));
    edit::delete(&editor, find(&images, "base"));
    edit::whole(&store);
    store.podman(["mount", "web"]);
    store.podman(["umount", "web"]);
}

/// podman may make, tag or mount a manifest list between the plan and the deletion.
#[test]
fn members_of_changed_list_are_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let [id] = &store.manifest_list("localhost/multi:1", &[&small::name("b")])[..] else { panic!() };
    let images = store.images();
    let list = images.iter().find(|image| program::texts(image, "/names") == ["localhost/multi:1"]);
    let list = edit::planned(list.unwrap());
    let unaware = PlannedImage { id: id.clone(), names: Some(vec![]), lists: vec![] };
    let renamed = PlannedImage { names: Some(vec!["localhost/other:1".into()]), ..list.clone() };
    let renamed = PlannedImage { lists: vec![renamed], ..unaware.clone() };
    let planned = PlannedImage { lists: vec![list.clone()], ..unaware.clone() };
    let editor = edit::editor(&store);
    for (planned, words) in [
        (&unaware, "it is a member of the manifest list localhost/multi:1 now"),
        (&renamed, "its names are [localhost/multi:1] now"),
    ] {
        let error = editor.delete_image(planned).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::Changed { .. })), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    store.podman(["create", "--name", "reader", "--network", "none", "--mount"].into_iter().chain([
        "type=image,src=localhost/multi:1,dst=/data",
        &small::name("other"),
        "/x",
    ]));
    let request = ScanRequest {
        graphroots: vec![store.root().to_path_buf()],
        runroots: vec![store.runroot()],
        ..ScanRequest::of(Sysroot::live())
    };
    let places = edit::places(&store);
    let outside_editor = edit::with(
        &store,
        Options { outside: Some(Box::new(move || stores::outside(&request, &places))), ..Options::default() },
    );
    let error = outside_editor.delete_image(&planned).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::UsedElsewhere { id, .. }) if *id == list.id), "{error}");
    store.podman(["rm", "reader"]);
    // Its index cannot be read: any image may be a member.
    let manifest = store.root().join("overlay-images").join(&list.id).join("manifest");
    let aside = dir.path().join("manifest");
    std::fs::rename(&manifest, &aside).unwrap();
    std::fs::create_dir(&manifest).unwrap();
    let error = editor.delete_image(&planned).unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    std::fs::remove_dir(&manifest).unwrap();
    std::fs::rename(&aside, &manifest).unwrap();
    editor.delete_image(&planned).unwrap();
    assert!(!edit::whole(&store).contains(id));
}

/// Ends with the test, also after a failure.
struct Service(std::process::Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn running_service_sees_deletion_at_once() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let socket = format!("unix://{}/podman.sock", store.scratch().display());
    let mut service = store.podman_command();
    let service = Service(service.args(["system", "service", "--time=0", &socket]).spawn().unwrap());
    fn remote(socket: &str, store: &Store, args: &[&str]) -> program::Run {
        let mut command = store.command("podman");
        command.args(["--remote", "--url", socket]).args(args);
        program::run(&mut command)
    }
    let listed = || {
        let run = remote(&socket, &store, &["images", "--all", "--quiet", "--no-trunc"]).expect_code(0);
        run.stdout.lines().count()
    };
    for _ in 0..100 {
        if remote(&socket, &store, &["version"]).code == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = listed();
    let editor = edit::editor(&store);
    let other = store.images().into_iter().find(|image| shown(image) == small::name("other")).unwrap();
    edit::delete(&editor, &other);
    assert_eq!(listed(), before - 1);
    assert_ne!(remote(&socket, &store, &["image", "inspect", text(&other, "/id")]).code, 0);
    // podman's deletion afterwards must not restore the deleted image.
    remote(&socket, &store, &["rmi", &small::name("b")]).expect_code(0);
    assert_eq!(listed(), before - 2);
    drop(service);
    store.unmount();
    let left = edit::whole(&store);
    assert_eq!(left.len(), before - 2);
    assert!(!left.contains(&text(&other, "/id").to_owned()));
}

fn shown(image: &Value) -> String {
    program::texts(image, "/names").first().cloned().unwrap_or_default()
}

#[test]
fn vfs_images_are_deleted() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(&dir.path().join("root"), "vfs", &support::archive::forest()[..4]);
    let editor = edit::editor(&store);
    let mut images = store.images();
    images.sort_by_key(shuffled);
    while let Some(image) = images.pop() {
        edit::delete(&editor, &image);
        assert_eq!(edit::whole(&store), edit::ids(&images));
        assert_eq!(edit::podman_ids(&store), edit::ids(&images));
    }
    assert!(!store.root().join("vfs/tempdirs").exists());
}

#[test]
fn unknown_fields_are_preserved() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    fn mark(store: &Store, name: &str) -> usize {
        {
            let path = store.record(name);
            let content = std::fs::read_to_string(&path).unwrap();
            let content = content.replace("{\"id\":", "{\"future\":{\"x\":[1e300,-0.0]},\"id\":");
            std::fs::write(&path, &content).unwrap();
            content.matches("future").count()
        }
    }
    let (layers, images) = (mark(&store, "layers.json"), mark(&store, "images.json"));
    let deleted = edit::delete(
        &edit::editor(&store),
        store.images().iter().find(|image| shown(image) == small::name("a2")).unwrap(),
    );
    fn count(store: &Store, name: &str) -> usize {
        {
            let content = std::fs::read_to_string(store.record(name)).unwrap();
            content.matches("{\"future\":{\"x\":[1e300,-0.0]},\"id\":").count()
        }
    }
    assert_eq!(count(&store, "layers.json"), layers - deleted.layers.len());
    assert_eq!(count(&store, "images.json"), images - 1);
}

#[test]
fn unknown_or_foreign_stores_are_refused() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let image = store.images().into_iter().find(|image| shown(image) == small::name("other")).unwrap();
    let planned = edit::planned(&image);
    for name in ["layers.json", "images.json", "containers.json"] {
        let path = store.record(name);
        let good = std::fs::read(&path).unwrap();
        let cut = good[..good.len() / 2].to_vec();
        let zeroed = vec![0; good.len()];
        let with_nonsense = [&b"[17,"[..], &good[1..]].concat();
        for bad in [cut, zeroed, with_nonsense, Vec::new()] {
            std::fs::write(&path, &bad).unwrap();
            let error = edit::editor(&store).delete_image(&planned).unwrap_err();
            assert!(matches!(error.refusal(), Some(Refusal::Damaged { .. })), "{name}: {error}");
            assert_eq!(std::fs::read(&path).unwrap(), bad);
        }
        std::fs::write(&path, &good).unwrap();
    }
    let lock = store.record("images.lock");
    std::fs::rename(&lock, lock.with_extension("away")).unwrap();
    let error = edit::editor(&store).delete_image(&planned).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::NoLockFile(_))), "{error}");
    assert!(!lock.exists(), "a lock file was made");
    std::fs::rename(lock.with_extension("away"), &lock).unwrap();
    let places = edit::places(&store);
    for (places, why) in [
        (
            layersweep::stores::containers_storage::places::StorePlaces { foreign: true, ..places.clone() },
            "another system",
        ),
        (
            layersweep::stores::containers_storage::places::StorePlaces { read_only: true, ..places.clone() },
            "additional",
        ),
        (
            layersweep::stores::containers_storage::places::StorePlaces {
                driver: "btrfs".into(),
                ..places.clone()
            },
            "btrfs",
        ),
    ] {
        let error = layersweep::editor::Editor::new(&places, Options::default()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    edit::delete(&edit::editor(&store), &image);
    edit::whole(&store);
}

#[test]
fn held_lock_is_a_typed_error() {
    if !store::require_tools() || !support::require_program("python3") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let image = store.images().into_iter().find(|image| shown(image) == small::name("other")).unwrap();
    for name in ["layers.lock", "images.lock", "containers.lock"] {
        for kind in ["F_WRLCK", "F_RDLCK"] {
            let before = support::edit::facts(store.root());
            let mut holder = hold(&store.record(name), kind);
            let options = Options { patience: Duration::from_millis(200), ..Options::default() };
            let editor = layersweep::editor::Editor::new(&edit::places(&store), options).unwrap();
            let started = std::time::Instant::now();
            let error = editor.delete_image(&edit::planned(&image)).unwrap_err();
            let took = started.elapsed();
            let pid = holder.id();
            holder.kill().unwrap();
            holder.wait().unwrap();
            assert!(took < Duration::from_secs(3), "{took:?}");
            let Error::Locked { path, holder, .. } = &error else { panic!("{error}") };
            assert_eq!(path, &store.record(name));
            assert_eq!(holder.as_ref().and_then(|holder| holder.pid), Some(pid), "{error}");
            assert!(error.to_string().contains("python3"), "{error}");
            assert_eq!(support::edit::facts(store.root()), before);
        }
    }
    edit::delete(&edit::editor(&store), &image);
}

/// Starts another process that holds a POSIX lock like that of the library.
fn hold(path: &std::path::Path, kind: &str) -> std::process::Child {
    use std::io::BufRead;
    let script = format!(
        "import fcntl,os,struct,sys,time\nfd=os.open(sys.argv[1],os.O_RDWR)\n\
         fcntl.fcntl(fd,fcntl.F_SETLKW,struct.pack('hhqqi4x',fcntl.{kind},0,0,0,0))\n\
         print('held',flush=True)\ntime.sleep(60)"
    );
    let mut command = std::process::Command::new("python3");
    command.args(["-c", &script]).arg(path).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    child
}
