//! OCI artifacts of CRI-O and podman: how they are read, their users, and what is reported.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::support;
use support::artifacts::{Artifacts, content};
use support::loopfs::{Fs, LoopFs};
use support::node::{self, Node};
use support::program::{self, list, number, text, texts};
use support::store;
use support::{du, locks, require_root, small, tree};

const KIB: usize = 1024;
const MODEL: &str = "quay.io/test/model:v1";
const TUNED: &str = "quay.io/test/tuned:v1";

/// A node with a small store and two artifacts that share a layer.
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
    let shared = content(1, 300 * KIB);
    let model = artifacts.add(Some(MODEL), &[&shared, &content(2, 200 * KIB)]);
    let tuned = artifacts.add(Some(TUNED), &[&shared, &content(3, 100 * KIB)]);
    Some(Made { node: Node::of(store), artifacts, model, tuned, _dir: dir })
}

fn store_of<'a>(document: &'a Value, driver: &str) -> &'a Value {
    list(document, "/stores").iter().find(|store| store["driver"] == driver).unwrap()
}

#[test]
fn artifacts_are_read_to_the_byte() {
    let Some(made) = made() else { return };
    let root = made.node.store.root();
    // An artifact for two platforms, one of which was never pulled, and an artifact without a name.
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
    assert_eq!(format!("{before:?}"), format!("{after:?}"), "no access time changes, no file is made");
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
    let chain: Vec<_> = list(&explained, "/chain").iter().map(|row| text(row, "/id")).collect();
    let layers = texts(model, "/layers");
    assert!(
        layers.iter().all(|layer| chain.contains(&layer.as_str())),
        "{chain:?} without one of {layers:?}"
    );
    made.node.run(&["report"]).expect_code(0);
    made.node.json(&["usage"]);
}

#[test]
fn artifacts_are_left_to_podman() {
    let Some(made) = made() else { return };
    let before = tree::listing(made.artifacts.dir());
    made.node.scan();
    fn artifacts_on_disk(made: &Made) -> u64 {
        let scan = made.node.scan();
        number(store_of(&scan, "artifacts"), "/bytes/images")
    }
    let held = artifacts_on_disk(&made);
    let kept = made.node.run(&["rm", "--via", "direct", "--min-age", "0s", "-y", MODEL]);
    assert_ne!(kept.code, 0, "{kept:?}");
    assert!(kept.stdout.contains("podman artifact rm"), "{kept:?}");
    assert_eq!(format!("{before:?}"), format!("{:?}", tree::listing(made.artifacts.dir())));
    made.artifacts.remove(&format!("quay.io/test/model@sha256:{}", made.model));
    let scan = made.node.json(&["scan", "--no-record"]);
    assert_eq!(list(&scan, "/leaks").len(), 0, "{:#}", scan["leaks"]);
    assert_eq!(text(node::image(&scan, TUNED), "/id"), made.tuned);

    let left = artifacts_on_disk(&made);
    let diff = made.node.json(&["diff"]);
    fn of_artifacts(diff: &Value, field: &str) -> u64 {
        number(diff, &format!("/artifacts/{field}"))
    }
    assert_eq!((of_artifacts(&diff, "before"), of_artifacts(&diff, "after")), (2, 1), "{diff:#}");
    assert_eq!((of_artifacts(&diff, "before_bytes"), of_artifacts(&diff, "after_bytes")), (held, left));
    let removed = &list(&diff, "/images")[0];
    assert_eq!((text(removed, "/kind"), text(removed, "/change")), ("artifact", "removed"), "{diff:#}");
    let printed = made.node.run(&["diff"]).expect_code(0).stdout;
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
}

/// Checks that `frees_bytes` is exact also if the filesystem shares extents and charges for inodes.
fn artifacts_give_back_what_was_predicted(fs: Fs) {
    if !fs.require() || !store::require_tools() {
        return;
    }
    let loopfs = LoopFs::new(fs, 400 << 20);
    let node = Node::of(small::store(&loopfs.path().join("root")));
    let artifacts = Artifacts::make(node.store.root());
    let shared = content(1, 3000 * KIB);
    for tag in 0..2_u8 {
        let layer = content(10 + tag, 2000 * KIB);
        artifacts.add(Some(&format!("quay.io/test/model:v{tag}")), &[&shared, &layer]);
    }
    node.store.unmount();
    for tag in 0..2_u8 {
        // On btrfs, recently written files are not placed yet.
        loopfs.sync();
        let name = format!("quay.io/test/model:v{tag}");
        let scan = node.scan();
        let image = node::image(&scan, &name);
        let (id, predicted) = (text(image, "/id"), number(image, "/frees_bytes"));
        let before = loopfs.used_bytes();
        artifacts.remove(&format!("quay.io/test/model@sha256:{id}"));
        let least = if tag == 1 { 5000 } else { 2000 } * 1024;
        assert!(predicted >= least, "{fs:?} {predicted}");
        let allowed = (predicted / 100).max(64 * 1024);
        let freed = || {
            loopfs.sync();
            before.saturating_sub(loopfs.used_bytes())
        };
        // XFS frees inodes in the background.
        let deadline = Instant::now() + Duration::from_secs(10);
        while freed() + allowed < predicted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let freed = freed();
        println!("{fs:?} {name}: predicted {predicted}, freed {freed}");
        assert!(predicted.abs_diff(freed) <= allowed, "{fs:?} {freed} {predicted}");
    }
    assert!(artifacts.list().is_empty() && artifacts.blobs().is_empty());
}

#[test]
fn artifacts_are_deleted_on_xfs() {
    artifacts_give_back_what_was_predicted(Fs::Xfs);
}

#[test]
fn artifacts_are_deleted_on_btrfs() {
    artifacts_give_back_what_was_predicted(Fs::Btrfs);
}

/// CRI-O's additional stores are listed first and pinned; nothing is deleted from them.
#[test]
fn additional_stores_are_read_only_and_pinned() {
    let disk = tempfile::tempdir().unwrap();
    let top = disk.path();
    fn write(top: &std::path::Path, path: &str, text: &str) {
        std::fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
        std::fs::write(top.join(path), text).unwrap();
    }
    let crio = "[crio]\nroot = \"/var/crio\"\n[crio.runtime]\nadditional_artifact_stores = [\"/mnt/models\", \"/gone\"]\n";
    write(top, "etc/crio/crio.conf", crio);
    for (kind, empty) in [("images", "[]"), ("layers", "[]"), ("containers", "[]")] {
        write(top, &format!("var/crio/overlay-{kind}/{kind}.json"), empty);
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

#[test]
fn held_lock_keeps_unneeded_blobs() {
    let Some(made) = made() else { return };
    let lock = made.artifacts.dir().join("index.lock");
    // A pull holds the lock from beginning to end; its blobs so far are not a leak.
    let orphan = made.artifacts.blob(&content(9, 20 * KIB));
    let old = SystemTime::now() - Duration::from_secs(3 * 86_400);
    std::fs::File::open(made.artifacts.path(&orphan)).unwrap().set_modified(old).unwrap();
    let temporary = made.artifacts.dir().join("oci-put-blob123");
    std::fs::write(&temporary, content(8, KIB)).unwrap();
    let held = locks::write_lock(&lock);
    fn leaks(scan: &Value) -> Vec<(String, String)> {
        let leaks = list(scan, "/leaks").iter();
        leaks.map(|leak| (text(leak, "/class").to_owned(), text(leak, "/verdict").to_owned())).collect()
    }
    let keep = ("artifact-orphan".to_owned(), "keep".to_owned());
    let both = [keep.clone(), keep.clone()];
    assert_eq!(leaks(&made.node.scan()), both);
    drop(held);
    // Old files are reported and never deleted.
    let report = ("artifact-orphan".to_owned(), "report".to_owned());
    let both = [report, keep];
    assert_eq!(leaks(&made.node.scan()), both);
    made.node.run(&["sweep", "--delete", "-y"]).expect_code(0);
    assert!(made.artifacts.path(&orphan).exists());

    std::fs::remove_file(&lock).unwrap();
    made.node.scan();
    assert!(!lock.exists());
}

/// A volume keeps its artifact, whatever tool made the container, running or not.
#[test]
fn artifact_in_use_is_kept() {
    let Some(made) = made() else { return };
    let root = made.node.store.root();
    fn assert_in_use(made: &Made, user: &str) {
        let scan = made.node.scan();
        let model = node::image(&scan, MODEL);
        assert_eq!(model["in_use"], true, "{model:#}");
        assert!(text(model, "/used_by/0/name").contains(user), "{model:#}");
        assert_eq!(node::image(&scan, TUNED)["in_use"], false);
        let run = made.node.run(&["rm", "--via", "direct", "--min-age", "0s", "-y", MODEL]);
        assert_ne!(run.code, 0, "{run:?}");
        assert!(run.stdout.contains(user) || run.stderr.contains(user), "{run:?}");
    }
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
    assert_in_use(&made, "cri-o container model-server");
    store::succeed(Command::new("rm").arg("-rf").arg(userdata.parent().unwrap()));

    // Podman's database: that of 4.3 is a bolt file; the newer one is beside it.
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
    assert_in_use(&made, "podman container infer");
    std::fs::remove_file(&database).unwrap();

    // A mount without a record.
    if !require_root() {
        return;
    }
    let blob = made.artifacts.blob(&content(2, 200 * KIB));
    let target = made.node.store.scratch().join("mounted");
    std::fs::write(&target, "").unwrap();
    store::succeed(Command::new("mount").arg("--bind").arg(made.artifacts.path(&blob)).arg(&target));
    assert_in_use(&made, "the mount at");
    store::succeed(Command::new("umount").arg(&target));
}

#[test]
fn damaged_and_hostile_stores_are_reported() {
    let Some(made) = made() else { return };
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

    // A blob that is cut short.
    let tuned = made.artifacts.blob(&content(3, 100 * KIB));
    std::fs::write(made.artifacts.path(&tuned), &whole[..KIB]).unwrap();
    let scan = made.node.scan();
    let classes: Vec<_> = list(&scan, "/leaks").iter().map(|leak| text(leak, "/class")).collect();
    assert!(classes.contains(&"broken-image"), "{scan:#}");

    // An index that cannot be read: nothing is deleted, and it is reported.
    std::fs::write(made.artifacts.dir().join("index.json"), "{").unwrap();
    let run = made.node.run(&["scan", "--format", "json"]).expect_code(3);
    let scan = node::document(run);
    assert_eq!(text(store_of(&scan, "artifacts"), "/consistency"), "damaged");
    assert!(list(&scan, "/leaks").iter().all(|leak| leak["verdict"] != "reclaim"), "{scan:#}");
}
