//! One run of `gc` on a node with a real containerd, podman's store on a disk of its own, and the store of another user:
//! each store is emptied in its own way, or has one line that says who can. A run that is killed, and a runtime that
//! dies during a run, leave nothing behind that the next run does not finish.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support;
use serde_json::Value;
use support::archive::{ImageSpec, LayerSpec};
use support::containerd_node::{ContainerdNode, full, image};
use support::gc_document::{assert_exact, deleted, rule};
use support::loopfs::{Fs, LoopFs, MIB};
use support::past;
use support::program::{self, list, text, texts};
use support::reserve_file::used_percent;
use support::running::Watched;
use support::store::{self, Store, succeed};

const LOW: &str = "72";

/// A disk with a store of podman, filled to 80 %.
struct PodmanDisk {
    store: Store,
    loopfs: LoopFs,
}

impl PodmanDisk {
    fn new(prefix: &str, images: usize, mebibytes: u64) -> Self {
        let specs: Vec<_> = (0..images)
            .map(|number| ImageSpec {
                names: vec![name(prefix, number)],
                layers: [(format!("{prefix}-base"), 1), (format!("{prefix}-{number}"), 6)]
                    .map(|(layer, size)| LayerSpec { files: vec![size * MIB], ..LayerSpec::new(&layer) })
                    .into(),
                label: name(prefix, number),
            })
            .collect();
        let loopfs = LoopFs::new(Fs::Ext4, mebibytes * MIB);
        let store = Store::of(&loopfs.path().join("graphroot"), "overlay", &specs);
        store.unmount();
        Self { store, loopfs }
    }
}

fn name(prefix: &str, number: usize) -> String {
    format!("reg.local/{prefix}-{number}:1")
}

/// Writes a file so that at least this much of the disk is used.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // bytes of small disks
fn fill(loopfs: &LoopFs, percent: f64) {
    let sizes = rustix::fs::statvfs(loopfs.path()).unwrap();
    let missing = (percent - used_percent(loopfs)) / 100.0 * (sizes.f_blocks * sizes.f_frsize) as f64;
    let number = std::fs::read_dir(loopfs.path()).unwrap().count();
    std::fs::write(loopfs.path().join(format!("filler-{number}")), vec![7; missing as usize]).unwrap();
    loopfs.sync();
}

/// Number of images of the store of podman, of which one is in use, and of those of containerd without the pods' images.
const PODMAN: usize = 15;
const OLD: usize = 18;

struct Scene {
    node: ContainerdNode,
    podman: PodmanDisk,
    alice: PodmanDisk,
    /// Flags that name the stores of containers/storage.
    stores: Vec<String>,
}

impl Scene {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let old = |number: usize| format!("old-{number}");
        let images: Vec<_> = (0..OLD).map(|number| image(&[&old(number)], &old(number), 4)).collect();
        let node = ContainerdNode::new(Fs::Ext4, 320 * MIB, &images)?;
        let (podman, alice) = (PodmanDisk::new("podman", PODMAN, 160), PodmanDisk::new("alice", 3, 80));
        podman.store.podman(["create", "--name", "app", "--network", "none", &name("podman", 0), "/x"]);
        podman.store.unmount();
        succeed(Command::new("chown").args(["-R", "5001:5001"]).arg(alice.store.root()));
        let mut stores = Vec::new();
        for store in [&podman.store, &alice.store] {
            let (root, runroot) = (store.root().display().to_string(), store.runroot());
            std::fs::create_dir_all(&runroot).unwrap();
            stores.extend([
                "--graphroot".to_owned(),
                root,
                "--runroot".into(),
                runroot.display().to_string(),
            ]);
        }
        Some(Self { node, podman, alice, stores })
    }

    fn command(&self, words: &[&str]) -> Command {
        self.node.command(&self.with_stores(words))
    }

    fn with_stores<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        words.iter().copied().chain(self.stores.iter().map(String::as_str)).collect()
    }

    fn run(&self, words: &[&str]) -> support::program::Run {
        self.node.run(&self.with_stores(words))
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        self.node.json(code, &self.with_stores(words))
    }

    /// Fills the disks of containerd and podman.
    fn fill_both(&self, percent: f64) {
        fill(&self.node.loopfs, percent);
        fill(&self.podman.loopfs, percent);
    }

    #[track_caller]
    fn assert_emptied(&self, loopfs: &LoopFs) {
        let (used, path) = (used_percent(loopfs), loopfs.path().display());
        assert!(used <= LOW.parse().unwrap(), "{path}: {used}");
    }

    /// Returns the names of the images of containerd and podman that are left, without those of the pods.
    fn left(&self) -> BTreeSet<String> {
        let listed = self.podman.store.podman(["images", "--format", "{{.Repository}}:{{.Tag}}"]);
        self.podman.store.unmount();
        let mut left = self.node.names("k8s.io");
        left.retain(|name| name.contains("/old-"));
        left.into_iter().chain(listed.lines().map(str::to_owned)).collect()
    }
}

const GC: [&str; 7] = ["gc", "--high", "75", "--low", LOW, "--min-age", "0s"];

#[test]
fn one_run_empties_every_store() {
    let Some(scene) = Scene::new() else { return };
    each_store_is_emptied_in_its_way(&scene);
    killed_runs_are_finished(&scene);
    other_store_is_emptied_after_death_of_runtime(&scene);
    other_store_is_emptied_beside_dead_runtime(&scene);
}

/// Runs layersweep in a PID namespace of its own, and returns the words of its screen.
fn said_in_pid_namespace(scene: &Scene, words: &[&str]) -> String {
    let command = scene.command(words);
    let mut inside = Command::new("unshare");
    program::hermetic(&mut inside);
    inside.args(["--pid", "--fork", "--mount-proc"]).arg(command.get_program()).args(command.get_args());
    program::run(&mut inside).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn each_store_is_emptied_in_its_way(scene: &Scene) {
    let Scene { node, podman, alice, .. } = scene;
    // A run with nothing to do creates the reserve file, which later runs do not count.
    scene.run(&["gc", "--high", "99", "--low", "98"]).expect_code(0);
    scene.fill_both(80.0);
    fill(&alice.loopfs, 80.0);
    let dry_run = [&GC[..], &["--dry-run"]].concat();
    let dry = scene.json(4, &dry_run);
    let shown = scene.run(&dry_run).expect_code(4).stdout;
    let command = "`as uid 5001: podman unshare layersweep --runroot ";
    let lines: Vec<_> = shown.lines().filter(|line| line.contains(command)).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("3 unused images ("), "{shown}");

    // In a PID namespace, a process that uses podman's store may be invisible.
    let socket = format!("unix://{}", node.rig.socket().display());
    let said = said_in_pid_namespace(scene, &["doctor", "--cri-endpoint", &socket]);
    let warning = format!("gc deletes no image in {}: not all", podman.store.root().display());
    assert!(said.contains(&warning) && said.contains("trust_pid_namespace"), "{said}");
    let said = said_in_pid_namespace(scene, &dry_run);
    assert!(said.contains("hostPID: true") && !said.contains("gc --via direct"), "{said}");

    let real = scene.json(4, &GC);
    assert_eq!(deleted(&dry), deleted(&real));
    assert_exact(&real);
    scene.assert_emptied(&node.loopfs);
    scene.assert_emptied(&podman.loopfs);
    for prefix in ["old", "podman"] {
        assert!(deleted(&real).iter().any(|name| name.contains(prefix)), "{real:#}");
    }
    assert_eq!(rule(&real, &name("podman", 0)), "in-use");
    assert_eq!(rule(&real, &name("alice", 0)), "out-of-reach");
    assert_eq!(text(&real, "/via"), "auto");
    let via = |of: &Value, root: &Path| {
        let store = list(of, "/stores").iter().find(|store| text(store, "/root") == root.to_str().unwrap());
        store.unwrap()["via"].clone()
    };
    assert_eq!(via(&real, &node.root()), "cri");
    assert_eq!(via(&real, podman.store.root()), "direct");
    assert_eq!(via(&real, alice.store.root()), Value::Null);
}

/// Kills runs in each of the stores; the next run finishes both disks.
fn killed_runs_are_finished(scene: &Scene) {
    let Scene { node, podman, .. } = scene;
    for (prefix, millis) in [("old", 0), ("old", 30), ("podman", 30), ("podman", 0)] {
        scene.fill_both(75.5);
        let mut run = Watched::start(&mut scene.command(&GC));
        // Its deletion begins.
        run.until(&format!("reg.local/{prefix}-"));
        std::thread::sleep(Duration::from_millis(millis));
        run.kill();
    }
    scene.fill_both(75.5);
    scene.json(4, &GC);
    scene.assert_emptied(&node.loopfs);
    scene.assert_emptied(&podman.loopfs);

    // The stores are whole, for the program and for their owners.
    let leaks = scene.json(0, &["sweep", "--min-age", "0s"]);
    assert_eq!(list(&leaks, "/leaks"), [] as [Value; 0], "{leaks:#}");
    let left = scene.left();
    let last = full(&format!("old-{}", OLD - 1));
    let check = node.rig.shell(&format!("C images check name=={last}"));
    assert!(check.contains("complete") && check.contains("true"), "{check}");
    let id = node.container("pod1", &format!("old-{}", OLD - 1), true);
    assert!(node.rig.shell("C tasks ls").contains(&id));
    podman.store.podman(["create", "--name", "new", "--network", "none", &name("podman", PODMAN - 1), "/x"]);
    podman.store.podman(["rm", "new"]);
    podman.store.unmount();

    // The records have each deletion once, and know its outcome.
    let history = scene.json(0, &["history"]);
    let runs = list(&history, "/runs").iter();
    assert!(runs.clone().any(|run| run["outcome"].is_null()), "no run was killed: {history:#}");
    let deletions = runs.flat_map(|run| list(run, "/deleted"));
    let (done, others): (Vec<_>, Vec<_>) = deletions.partition(|row| text(row, "/outcome") == "deleted");
    assert!(others.iter().all(|row| text(row, "/outcome") == "failed"), "{others:#?}");
    let names: Vec<_> = done.iter().flat_map(|row| texts(row, "/names")).collect();
    let once: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(names.len(), once.len(), "{names:?}");
    let all = (0..OLD).map(|number| full(&format!("old-{number}")));
    let all: BTreeSet<_> = all.chain((0..PODMAN).map(|number| name("podman", number))).collect();
    let gone: BTreeSet<_> = all.difference(&left).cloned().collect();
    assert!(once.is_subset(&gone), "{history:#}");
    // On a busy machine, containerd may finish a removal after the next scan has seen the image.
    let begun: BTreeSet<_> = others.iter().flat_map(|row| texts(row, "/names")).collect();
    assert!(gone.difference(&once).all(|name| begun.contains(name) && name.contains("/old-")), "{history:#}");
    let database = rusqlite::Connection::open(node.state.join("layersweep.db")).unwrap();
    let intact: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
}

/// containerd dies while its images that are too old are deleted. The podman images after them are deleted all the same.
fn other_store_is_emptied_after_death_of_runtime(scene: &Scene) {
    let Scene { node, podman, .. } = scene;
    let left = scene.left();
    let unused =
        |name: &&String| **name != self::name("podman", 0) && !name.ends_with(&format!("old-{}:1", OLD - 1));
    let (of_podman, old): (Vec<_>, Vec<_>) =
        left.iter().filter(unused).partition(|name| name.contains("podman"));
    // The first of them is deleted, and perhaps the second.
    let ages = old[..4].iter().zip([60, 59, 58, 57]).chain(of_podman[..1].iter().zip([50]));
    ages.for_each(|(name, days)| past::set_first_detected(&node.state, name, days));
    fill(&podman.loopfs, 80.0);
    let words = [&GC[..], &["--max-age", "30d"]].concat();
    let mut run = Watched::start(&mut scene.command(&words));
    run.until("deleted");
    run.until("deleting");
    node.kill();
    let (code, real) = run.end();
    assert_eq!((code, text(&real, "/outcome")), (1, "failed"), "{real:#}");
    let names = deleted(&real);
    assert!(names.contains(old[0]) && names.contains(of_podman[0]), "{real:#}");
    scene.assert_emptied(&podman.loopfs);
    let errors = list(&real, "/errors").iter().filter(|error| error["id"].is_null());
    let hints: Vec<_> = errors.map(|error| text(error, "/hint")).collect();
    assert_eq!(hints, ["run this again when the runtime answers"], "{real:#}");
}

fn other_store_is_emptied_beside_dead_runtime(scene: &Scene) {
    let Scene { node, podman, .. } = scene;
    fill(&podman.loopfs, 80.0);
    let dead = scene.json(5, &GC);
    scene.assert_emptied(&podman.loopfs);
    let errors = list(&dead, "/errors");
    assert_eq!(errors.len(), 1, "{dead:#}");
    assert_eq!(text(&errors[0], "/id"), node.root().to_str().unwrap());
    assert_eq!(text(&dead, "/outcome"), "refused");
    assert_eq!(text(&dead, "/via"), "direct");
    let ids = podman.store.podman(["images", "--quiet"]);
    assert!(!ids.is_empty(), "the image in use");
    let hint = text(&errors[0], "/hint");
    assert!(hint.starts_with("start containerd") && !hint.contains("direct"), "{hint}");
    // Its images are out of reach for their own reason, and have their own remedy.
    let kept = list(&dead, "/kept").iter().filter(|kept| text(kept, "/rule") == "out-of-reach");
    let (silent, others): (Vec<_>, Vec<_>) =
        kept.partition(|kept| text(kept, "/detail") == "containerd does not answer");
    assert!(others.iter().all(|kept| !text(kept, "/detail").contains("never edited")), "{dead:#}");
    let refused = scene.run(&["rm", "-y", text(silent[0], "/id")]).expect_code(5).stdout;
    assert!(refused.contains("hint: start containerd, then run this again"), "{refused}");
    let report = scene.json(0, &["report"]);
    let causes = list(&report, "/verdict/causes").iter();
    let mut remedies = causes.map(|cause| text(cause, "/remedy"));
    assert!(remedies.any(|remedy| remedy.starts_with("start containerd, then `layersweep ")), "{report:#}");
    podman.store.unmount();
}
