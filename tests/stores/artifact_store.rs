//! OCI artifacts of CRI-O and podman: what is read of them, who uses them, what goes.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use layersweep::stores::containers_storage::edit::{Editor, Error, Options, PlannedImage, Refusal};
use layersweep::stores::containers_storage::places::StorePlaces;
use layersweep::sys::root::Root;
use serde_json::{Value, json};

use crate::support;
use support::artifacts::{Artifacts, content};
use support::loopfs::{Fs, LoopFs};
use support::node::{self, Node};
use support::program::{self, list, number, text, texts};
use support::store::{self, Store};
use support::{du, edit, locks, require_program, require_root, small, tree};

const KIB: usize = 1024;
const MODEL: &str = "quay.io/test/model:v1";
const TUNED: &str = "quay.io/test/tuned:v1";

/// A small store with two artifacts that share a layer.
struct Made {
    node: Node,
    artifacts: Artifacts,
    model: String,
    tuned: String,
    _dir: tempfile::TempDir,
}

fn made() -> Option<Made> {
    if !store::require_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::store(&dir.path().join("root"));
    let artifacts = Artifacts::make(store.root());
    let (shared, own, tuned) = (content(1, 300 * KIB), content(2, 200 * KIB), content(3, 100 * KIB));
    let model = artifacts.add(Some(MODEL), &[&shared, &own]);
    let tuned = artifacts.add(Some(TUNED), &[&shared, &tuned]);
    Some(Made { node: Node::of(store), artifacts, model, tuned, _dir: dir })
}

fn places(store: &Store) -> StorePlaces {
    StorePlaces { driver: "artifacts".into(), ..edit::places(store) }
}

fn editor(store: &Store, options: Options) -> Editor {
    Editor::new(&places(store), options).unwrap()
}

fn planned(id: &str) -> PlannedImage {
    PlannedImage { id: id.into(), ..Default::default() }
}

fn store_of<'a>(document: &'a Value, driver: &str) -> &'a Value {
    list(document, "/stores").iter().find(|store| store["driver"] == driver).unwrap()
}

#[test]
fn artifacts_are_read_to_the_byte_and_nothing_is_touched() {
    let Some(made) = made() else { return };
    let root = made.node.store.root();
    // One for two platforms, of which one was never pulled, and one without a name.
    let first = made.artifacts.manifest(&[&content(4, 50 * KIB)]);
    let absent = format!("sha256:{}", "7".repeat(64));
    let index = json!({"schemaVersion": 2, "manifests": [{"digest": first}, {"digest": absent}]});
    let index = made.artifacts.blob(index.to_string().as_bytes());
    made.artifacts.entry(Some("quay.io/test/multi:v1"), &index);
    made.artifacts.add(None, &[&content(5, 10 * KIB)]);
    made.artifacts.entry(Some("quay.io/test/model:latest"), &format!("sha256:{}", made.model));
    let before = tree::listing(made.artifacts.dir());

    let scan = made.node.scan();
    let after = tree::listing(made.artifacts.dir());
    assert_eq!(format!("{before:?}"), format!("{after:?}"), "no access time moves, nothing is made");
    let store = store_of(&scan, "artifacts");
    assert_eq!((text(store, "/kind"), number(store, "/images")), ("containers-storage", 4));
    assert_eq!(number(store, "/bytes/total"), du::bytes(&[made.artifacts.dir()]));
    assert_eq!(number(&scan, "/totals/bytes"), tree::du(root));
    assert_eq!(list(&scan, "/leaks").len(), 0, "{:#}", scan["leaks"]);

    let model = node::image(&scan, MODEL);
    assert_eq!((text(model, "/kind"), text(model, "/id")), ("artifact", made.model.as_str()));
    assert_eq!(texts(model, "/names"), [MODEL, "quay.io/test/model:latest"]);
    assert_eq!(texts(model, "/digests"), [format!("sha256:{}", made.model)]);
    assert_eq!(number(model, "/listed_bytes"), 500 * 1024);
    assert_eq!(list(model, "/layers").len(), 2);
    let (shared, exclusive) = (number(model, "/shared_bytes"), number(model, "/exclusive_bytes"));
    assert!(shared >= 300 * 1024 && (200 * 1024..250 * 1024).contains(&exclusive), "{model:#}");
    let multi = node::image(&scan, "quay.io/test/multi:v1");
    assert_eq!(number(multi, "/listed_bytes"), 50 * 1024);
    assert_eq!(text(node::image(&scan, &small::name("a")), "/kind"), "image");

    let images = made.node.run(&["images"]).expect_code(0);
    assert!(images.stdout.contains(&format!("{MODEL} +1 (artifact)")), "{}", images.stdout);
    let explained = made.node.run(&["explain", made.artifacts.path(&made.model).to_str().unwrap()]);
    assert!(explained.stdout.contains(MODEL), "{}", explained.stdout);
    let explained = made.node.json(&["explain", MODEL]);
    let chain: Vec<_> = list(&explained, "/chain").iter().map(|one| text(one, "/id")).collect();
    let layers = texts(model, "/layers");
    assert!(
        layers.iter().all(|layer| chain.contains(&layer.as_str())),
        "{chain:?} without one of {layers:?}"
    );
    made.node.run(&["report"]).expect_code(0);
    made.node.json(&["usage"]);
}

#[test]
fn an_artifact_goes_and_what_others_need_stays() {
    let Some(made) = made() else { return };
    let before = made.artifacts.blobs();
    made.node.scan();
    let artifacts_on_disk = || {
        let scan = made.node.scan();
        number(store_of(&scan, "artifacts"), "/bytes/images")
    };
    let held = artifacts_on_disk();
    let done = made.node.json(&["rm", "--via", "direct", "--min-age", "0s", "-y", MODEL]);
    let deleted = &list(&done, "/deleted")[0];
    assert_eq!((texts(deleted, "/names"), text(deleted, "/kind")), (vec![MODEL.to_owned()], "artifact"));
    assert!(number(deleted, "/predicted_bytes") >= 200 * 1024, "{done:#}");
    let index = made.artifacts.index();
    assert_eq!(list(&index, "/manifests").len(), 1);
    assert_eq!(index["x-kept"], json!({"a": [1.50]}), "what others wrote is kept");
    let gone = before.len() - made.artifacts.blobs().len();
    assert_eq!(gone, 2, "its manifest and its own layer");
    let names: Vec<_> =
        std::fs::read_dir(made.artifacts.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let scan = made.node.scan();
    assert_eq!(list(&scan, "/leaks").len(), 0, "{:#}", scan["leaks"]);
    assert_eq!(text(node::image(&scan, TUNED), "/id"), made.tuned);

    let left = artifacts_on_disk();
    let diff = made.node.json(&["diff", "last~2", "last"]);
    let of_artifacts = |field: &str| number(&diff, &format!("/artifacts/{field}"));
    assert_eq!((of_artifacts("before"), of_artifacts("after")), (2, 1), "{diff:#}");
    assert_eq!((of_artifacts("before_bytes"), of_artifacts("after_bytes")), (held, left));
    let went = &list(&diff, "/images")[0];
    assert_eq!((text(went, "/kind"), text(went, "/change")), ("artifact", "went"), "{diff:#}");
    let printed = made.node.run(&["diff", "last~2", "last"]).expect_code(0).stdout;
    assert!(
        printed.contains("Artifacts of") && printed.contains(&format!("{MODEL} (artifact)")),
        "{printed}"
    );
    let metrics = program::layersweep(["metrics", "--state-dir", made.node.state.to_str().unwrap()]);
    let metrics = metrics.expect_code(0).stdout;
    let root = made.node.store.root().display();
    for expected in [
        format!("layersweep_artifacts{{store=\"{root}\",state=\"unused\"}} 1"),
        format!(
            "layersweep_storage_bytes{{store=\"{root}\",driver=\"artifacts\",kind=\"artifacts\"}} {left}"
        ),
    ] {
        assert!(metrics.contains(&expected), "{expected}\n{metrics}");
    }
    assert!(
        !metrics.contains(&format!("layersweep_images{{store=\"{root}\",driver=\"artifacts\"")),
        "{metrics}"
    );
    edit::whole(&made.node.store);
}

/// What is predicted comes free where the filesystem shares extents and charges for inodes, too.
fn artifacts_give_back_what_was_predicted(fs: Fs) {
    if !fs.require() || !store::require_tools() {
        return;
    }
    let loopfs = LoopFs::new(fs, 400 << 20);
    let node = Node::of(small::store(&loopfs.path().join("root")));
    let artifacts = Artifacts::make(node.store.root());
    let shared = content(1, 3000 * KIB);
    for tag in 0..2_u8 {
        let own = content(10 + tag, 2000 * KIB);
        artifacts.add(Some(&format!("quay.io/test/model:v{tag}")), &[&shared, &own]);
    }
    artifacts.add(Some("quay.io/test/first:v1"), &[&content(9, KIB)]);
    node.store.unmount();
    // The first deletion also lays a file by for a full disk.
    node.json(&["rm", "--via", "direct", "--min-age", "0s", "-y", "quay.io/test/first:v1"]);
    for tag in 0..2_u8 {
        // On btrfs what was written a moment ago is not placed yet.
        loopfs.sync();
        let name = format!("quay.io/test/model:v{tag}");
        let before = loopfs.used_bytes();
        let done = node.json(&["rm", "--via", "direct", "--min-age", "0s", "-y", &name]);
        let freed = before.saturating_sub(loopfs.used_bytes());
        let deleted = &list(&done, "/deleted")[0];
        let (predicted, measured) = (number(deleted, "/predicted_bytes"), number(deleted, "/measured_bytes"));
        let least = if tag == 1 { 5000 } else { 2000 } * 1024;
        assert!(predicted >= least, "{fs:?} {done:#}");
        let allowed = (predicted / 100).max(64 * 1024);
        println!("{fs:?} {name}: predicted {predicted}, measured {measured}, freed {freed}");
        assert!(predicted.abs_diff(measured) <= allowed, "{fs:?} {done:#}");
        assert!(predicted.abs_diff(freed) <= allowed, "{fs:?} {freed} {done:#}");
    }
    assert!(artifacts.list().is_empty() && artifacts.blobs().is_empty());
}

#[test]
fn artifacts_go_on_xfs() {
    artifacts_give_back_what_was_predicted(Fs::Xfs);
}

#[test]
fn artifacts_go_on_btrfs() {
    artifacts_give_back_what_was_predicted(Fs::Btrfs);
}

/// CRI-O's additional stores are listed first and pinned, and nobody deletes from them.
#[test]
fn additional_stores_are_read_only_and_pinned() {
    let disk = tempfile::tempdir().unwrap();
    let top = disk.path();
    let write = |path: &str, text: &str| {
        std::fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
        std::fs::write(top.join(path), text).unwrap();
    };
    let crio = "[crio]\nroot = \"/var/crio\"\n[crio.runtime]\nadditional_artifact_stores = [\"/mnt/models\", \"/gone\"]\n";
    write("etc/crio/crio.conf", crio);
    for (what, empty) in [("images", "[]"), ("layers", "[]"), ("containers", "[]")] {
        write(&format!("var/crio/overlay-{what}/{what}.json"), empty);
    }
    std::fs::create_dir_all(top.join("mnt/models")).unwrap();
    Artifacts::make(&top.join("var/crio")).add(Some(TUNED), &[&content(1, 10 * KIB)]);
    let lent = Artifacts::make(&top.join("mnt/models"));
    lent.add(Some(MODEL), &[&content(2, 20 * KIB)]);

    let scan = program::layersweep(["scan", "--format", "json", "--sysroot", top.to_str().unwrap()]);
    let scan = scan.expect_code(0).json();
    let stores = list(&scan, "/stores").iter().filter(|store| store["driver"] == "artifacts");
    let stores: Vec<_> =
        stores.map(|store| (store["read_only"].clone(), text(store, "/root").to_owned())).collect();
    assert_eq!(stores.len(), 2, "{stores:?}");
    assert!(
        stores[0].0 == true && stores[0].1.ends_with("/mnt/models"),
        "the additional one first: {stores:?}"
    );
    assert!(stores[1].0 == false && stores[1].1.ends_with("/var/crio"), "{stores:?}");
    let model = node::image(&scan, MODEL);
    assert_eq!(model["pinned"], true, "{model:#}");
    assert!(text(model, "/pinned_by/0").contains("additional_artifact_stores in"), "{model:#}");
    assert_eq!(number(model, "/frees_bytes"), 0, "{model:#}");
    assert_eq!(node::image(&scan, TUNED)["pinned"], false);
}

/// What could not be moved bars the deletion before anything is written.
#[test]
fn an_immutable_blob_bars() {
    let Some(made) = made() else { return };
    if !require_root() || !require_program("chattr") {
        return;
    }
    let before = made.artifacts.index();
    let path = made.artifacts.path(&made.artifacts.blob(&content(2, 200 * KIB)));
    let chattr = |flag: &str| store::succeed(Command::new("chattr").arg(flag).arg(&path));
    chattr("+i");
    let done = editor(&made.node.store, Options::default()).delete_images(&[planned(&made.model)]);
    chattr("-i");
    assert_eq!(done.unwrap_err().refusal(), Some(&Refusal::Immutable(path)));
    assert_eq!(made.artifacts.index(), before);
}

#[test]
fn the_lock_is_asked_and_never_made() {
    let Some(made) = made() else { return };
    let store = &made.node.store;
    let lock = made.artifacts.dir().join("index.lock");
    let before = made.artifacts.index();
    // A pull holds it from beginning to end; what it has brought so far is no leak.
    let orphan = made.artifacts.blob(&content(9, 20 * KIB));
    let old = SystemTime::now() - Duration::from_secs(3 * 86_400);
    let set_old = |path: &Path| std::fs::File::open(path).unwrap().set_modified(old).unwrap();
    set_old(&made.artifacts.path(&orphan));
    let temporary = made.artifacts.dir().join("oci-put-blob123");
    std::fs::write(&temporary, content(8, KIB)).unwrap();
    let held = locks::write_lock(&lock);
    let options = Options { patience: Duration::from_millis(200), ..Options::default() };
    let error = editor(store, options).delete_images(&[planned(&made.model)]).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    // A lock of this process goes with whatever descriptor of the file is closed first.
    drop(held);
    let held = locks::write_lock(&lock);
    let leaks = |scan: &Value| -> Vec<_> {
        let leak = |leak: &Value| (text(leak, "/class").to_owned(), text(leak, "/verdict").to_owned());
        list(scan, "/leaks").iter().map(leak).collect()
    };
    let keep = |class: &str| (class.to_owned(), "keep".to_owned());
    let both = [keep("artifact-orphan"), keep("artifact-orphan")];
    assert_eq!(leaks(&made.node.scan()), both);
    drop(held);
    // Nobody pulls: what is old goes, what is young stays.
    let sweep = ["sweep", "--delete", "-y"];
    made.node.run(&sweep).expect_code(0);
    assert!(!made.artifacts.path(&orphan).exists());
    assert_eq!(leaks(&made.node.scan()), [keep("artifact-orphan")]);
    set_old(&temporary);
    made.node.run(&sweep).expect_code(0);
    assert_eq!(leaks(&made.node.scan()), []);
    assert_eq!(made.artifacts.index(), before);

    std::fs::remove_file(&lock).unwrap();
    let error = editor(store, Options::default()).delete_images(&[planned(&made.model)]).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::NoLockFile(_))), "{error}");
    made.node.scan();
    assert!(!lock.exists());
}

/// A volume keeps its artifact, whoever's container it is, and running or not.
#[test]
fn an_artifact_in_use_never_goes() {
    let Some(made) = made() else { return };
    let root = made.node.store.root();
    let in_use = |who: &str| {
        let scan = made.node.scan();
        let model = node::image(&scan, MODEL);
        assert_eq!(model["in_use"], true, "{model:#}");
        assert!(text(model, "/used_by/0/name").contains(who), "{model:#}");
        assert_eq!(node::image(&scan, TUNED)["in_use"], false);
        let run = made.node.run(&["rm", "--via", "direct", "--min-age", "0s", "-y", MODEL]);
        assert_ne!(run.code, 0, "{run:?}");
        assert!(run.stdout.contains(who) || run.stderr.contains(who), "{run:?}");
        let error = editor(&made.node.store, Options::default()).delete_images(&[planned(&made.model)]);
        let error = error.unwrap_err();
        assert!(error.refusal().is_some(), "{error}");
        assert!(made.artifacts.path(&made.model).exists());
    };
    // CRI-O.
    let id = "c".repeat(64);
    let userdata = root.join("overlay-containers").join(&id).join("userdata");
    std::fs::create_dir_all(&userdata).unwrap();
    let volumes = json!([{"container_path": "/models", "host_path": "/x", "image": {"image": made.model}}]);
    let config = json!({"annotations": {"io.kubernetes.cri-o.Volumes": volumes.to_string(),
        "io.kubernetes.cri-o.Metadata": json!({"name": "model-server"}).to_string()}});
    std::fs::write(userdata.join("config.json"), config.to_string()).unwrap();
    let scan = made.node.run(&["scan", "--format", "json"]).json();
    assert!(list(&scan, "/leaks").iter().all(|leak| leak["class"] == "orphan-ctr-dir"), "{scan:#}");
    in_use("cri-o container model-server");
    store::succeed(Command::new("rm").arg("-rf").arg(userdata.parent().unwrap()));

    // Podman's database; that of 4.3 is a bolt file, and the newer one lies beside it.
    let database = root.join("db.sql");
    let connection = rusqlite::Connection::open(&database).unwrap();
    let config = json!({"name": "infer", "artifactVolumes": [{"source": MODEL, "dest": "/m"}]}).to_string();
    connection
        .execute_batch(&format!(
            "CREATE TABLE ContainerConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT, JSON TEXT);
             CREATE TABLE ContainerState(ID TEXT PRIMARY KEY NOT NULL, State INTEGER NOT NULL);
             CREATE TABLE VolumeConfig(Name TEXT PRIMARY KEY NOT NULL, JSON TEXT);
             INSERT INTO ContainerConfig VALUES('{id}', 'infer', '{config}');"
        ))
        .unwrap();
    connection.close().unwrap();
    in_use("podman container infer");
    std::fs::remove_file(&database).unwrap();

    // A mount that no record tells of.
    if !require_root() {
        return;
    }
    let own = made.artifacts.blob(&content(2, 200 * KIB));
    let at = made.node.store.scratch().join("mounted");
    std::fs::write(&at, "").unwrap();
    store::succeed(Command::new("mount").arg("--bind").arg(made.artifacts.path(&own)).arg(&at));
    in_use("the mount at");
    store::succeed(Command::new("umount").arg(&at));
    made.node.json(&["rm", "--via", "direct", "--min-age", "0s", "-y", MODEL]);
}

#[test]
fn damaged_and_hostile_stores() {
    let Some(made) = made() else { return };
    let store = &made.node.store;
    let outside = made.node.store.scratch().join("outside");
    std::fs::write(&outside, "precious").unwrap();
    // A blob that is a symlink, and an index with names that lead elsewhere.
    let layer = made.artifacts.blob(&content(2, 200 * KIB));
    let whole = std::fs::read(made.artifacts.path(&layer)).unwrap();
    std::fs::remove_file(made.artifacts.path(&layer)).unwrap();
    std::os::unix::fs::symlink(&outside, made.artifacts.path(&layer)).unwrap();
    let scan = made.node.scan();
    let classes: Vec<_> = list(&scan, "/leaks").iter().map(|leak| text(leak, "/class")).collect();
    assert_eq!(classes, ["broken-image"]);
    editor(store, Options::default()).delete_images(&[planned(&made.model)]).unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");

    // Cut short.
    let tuned = made.artifacts.blob(&content(3, 100 * KIB));
    std::fs::write(made.artifacts.path(&tuned), &whole[..KIB]).unwrap();
    let scan = made.node.scan();
    let classes: Vec<_> = list(&scan, "/leaks").iter().map(|leak| text(leak, "/class")).collect();
    assert!(classes.contains(&"broken-image"), "{scan:#}");

    // An index that nobody can read: nothing goes, and it is said.
    std::fs::write(made.artifacts.dir().join("index.json"), "{").unwrap();
    let run = made.node.run(&["scan", "--format", "json"]).expect_code(3);
    let scan = node::document(run);
    assert_eq!(text(store_of(&scan, "artifacts"), "/consistency"), "damaged");
    assert!(list(&scan, "/leaks").iter().all(|leak| leak["verdict"] != "reclaim"), "{scan:#}");
    let error = editor(store, Options::default()).delete_images(&[planned(&made.tuned)]).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Damaged { .. })), "{error}");

    // A manifest that is there and says nothing we know: what it needs is not known.
    made.artifacts.set_index(&json!({"schemaVersion": 2, "manifests": []}));
    let odd = made.artifacts.blob(b"{\"new\":1}");
    made.artifacts.entry(Some("quay.io/test/new:1"), &odd);
    let other = made.artifacts.add(Some(MODEL), &[&content(6, 10 * KIB)]);
    let error = editor(store, Options::default()).delete_images(&[planned(&other)]).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Damaged { .. })), "{error}");
}

/// The process that is killed: this test program again, with this test alone.
#[test]
#[ignore = "only the other test runs it, in a process of its own"]
fn victim() {
    let Some(last) = std::env::var_os("VICTIM_DIES_AT") else { return };
    let text = |name: &str| std::env::var(name).unwrap();
    let last: usize = last.to_str().unwrap().parse().unwrap();
    let steps = AtomicUsize::new(0);
    let observer = move |name: &'static str| {
        if steps.fetch_add(1, Ordering::Relaxed) + 1 == last {
            eprintln!("dying at: {name}");
            nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    };
    let places = StorePlaces {
        databases: Vec::new(),
        temporary: Vec::new(),
        graphroot: Root::open(Path::new(&text("VICTIM_GRAPHROOT"))).unwrap(),
        imagestores: Vec::new(),
        runroots: Vec::new(),
        driver: "artifacts".into(),
        other_drivers: Vec::new(),
        primary: false,
        read_only: false,
        foreign: false,
        allowance: layersweep::sys::allowance::Allowance::default(),
    };
    let options = Options { on_step: Some(Box::new(observer)), ..Options::default() };
    let editor = Editor::new(&places, options).unwrap();
    editor.delete_images(&[planned(&text("VICTIM_TARGET"))]).unwrap();
}

#[test]
fn killed_at_every_step_nothing_is_broken() {
    let Some(made) = made() else { return };
    let kept = made.node.store.scratch().join("kept");
    store::succeed(Command::new("cp").args(["-a"]).arg(made.artifacts.dir()).arg(&kept));
    let mut names = Vec::new();
    for step in 1.. {
        store::succeed(Command::new("rm").arg("-rf").arg(made.artifacts.dir()));
        store::succeed(Command::new("cp").arg("-a").arg(&kept).arg(made.artifacts.dir()));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "stores::artifact_store::victim",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("VICTIM_DIES_AT", step.to_string())
            .env("VICTIM_GRAPHROOT", made.node.store.root())
            .env("VICTIM_TARGET", &made.model);
        let run = program::run(&mut command);
        if run.code == 0 {
            break;
        }
        let name = run.stderr.lines().find_map(|line| line.split("dying at: ").nth(1));
        names.push(name.unwrap_or_else(|| panic!("{run:?}")).to_owned());
        // Each artifact that the index names is whole; what is left over has a class of its own, and
        // a sweep takes it.
        let scan = made.node.scan();
        for leak in list(&scan, "/leaks") {
            let class = text(leak, "/class");
            assert!(class == "artifact-orphan", "{names:?}: {leak:#}");
        }
        assert_eq!(text(node::image(&scan, TUNED), "/id"), made.tuned);
        let old = SystemTime::now() - Duration::from_secs(3 * 86_400);
        for leak in list(&scan, "/leaks") {
            std::fs::File::open(text(leak, "/path")).unwrap().set_modified(old).unwrap();
        }
        made.node.run(&["sweep", "--delete", "-y"]).expect_code(0);
        let scan = made.node.scan();
        assert_eq!(list(&scan, "/leaks").len(), 0, "{names:?}: {:#}", scan["leaks"]);
    }
    assert!(names.len() >= 8, "{names:?}");
    assert_eq!(made.artifacts.list().len(), 1);
}
