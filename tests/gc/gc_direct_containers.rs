//! Dead containers of CRI-O with `gc --via direct`: on a real podman store with CRI-O's records in it
//! (the test server makes them, and is away when it counts), a kubelet's directories beside it.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::CriServer;
use cri_server::gc_node::{GcNode, IN_USE, deleted, name};
use cri_server::podman::Podman;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use support::archive::Noise;
use support::loopfs::{Fs, LoopFs};
use support::program::{self, list, text, texts};
use support::store::Store;
use support::{edit, node};

/// What the kubelet does not know (any more).
const GONE: &str = "0f8a31b2-7a5c-4f7e-9d1e-0b6a7c8d9e01";
const KNOWN: &str = "0f8a31b2-7a5c-4f7e-9d1e-0b6a7c8d9e02";
const RUNNING: &str = "0f8a31b2-7a5c-4f7e-9d1e-0b6a7c8d9e03";

const ALL: [&str; 8] = ["gc", "-y", "--via", "direct", "--high", "1", "--low", "0"];
const CONTAINERS: [&str; 6] = ["gc", "-y", "--via", "direct", "--only", "containers"];

/// A node whose runtime is down.
struct Down {
    podman: Podman,
    store: Arc<Store>,
    state: PathBuf,
    directory: tempfile::TempDir,
    loopfs: LoopFs,
}

fn node() -> Option<(Down, CriServer)> {
    let GcNode { server, store, state, loopfs, .. } = GcNode::new(Fs::Ext4, 6)?;
    let directory = tempfile::Builder::new().prefix("layersweep-gcdc-").tempdir().unwrap();
    let down = Down { podman: server.podman().clone(), store, state, directory, loopfs };
    for uid in [KNOWN, RUNNING] {
        fs::create_dir_all(down.directory.path().join("kubelet/pods").join(uid)).unwrap();
    }
    let top = down.directory.path().display();
    down.config(&format!("[kubelet]\nroot_dir = \"{top}/kubelet\"\n"));
    // The pod that the node comes with.
    for id in down.containers() {
        down.write(&id, (RUNNING, "pod-1"), ("app", 0), "running", 0);
    }
    Some((down, server))
}

/// What of a pod was made.
struct Pod {
    sandbox: String,
    containers: Vec<String>,
}

impl Down {
    fn config(&self, more: &str) {
        let top = self.directory.path().display();
        let text = format!(
            "[containers]\nenabled = true\nmin_age = \"0s\"\n[images]\nmin_age = \"0s\"\n\
             [protect]\nstatic_pods = \"{top}/manifests\"\n{more}"
        );
        fs::write(self.directory.path().join("layersweep.toml"), text).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(&self.state);
        command.arg("--config").arg(self.directory.path().join("layersweep.toml"));
        command
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        let mut command = self.command(&[words, &["--format", "json"]].concat());
        node::document(program::run(&mut command).expect_no_crash().expect_code(code))
    }

    fn userdata(&self, id: &str, file: &str) -> PathBuf {
        self.store.root().join("overlay-containers").join(id).join("userdata").join(file)
    }

    /// What CRI-O writes of a container: whose it is, and since how many minutes it has been in this
    /// state.
    fn write(&self, id: &str, (uid, pod): (&str, &str), (name, attempt): (&str, u32), state: &str, ago: i64) {
        let labels = json!({
            "io.kubernetes.pod.uid": uid,
            "io.kubernetes.pod.name": pod,
            "io.kubernetes.pod.namespace": "default",
        });
        let config = json!({"ociVersion": "1.0.2", "annotations": {
            "io.kubernetes.cri-o.Labels": labels.to_string(),
            "io.kubernetes.cri-o.Metadata": json!({"name": name, "attempt": attempt}).to_string(),
        }});
        fs::write(self.userdata(id, "config.json"), config.to_string()).unwrap();
        let finished = Timestamp::now() - SignedDuration::from_mins(ago);
        let state = json!({"status": state, "finished": finished.to_string()});
        fs::write(self.userdata(id, "state.json"), state.to_string()).unwrap();
    }

    /// A pod with so many containers of images 0 and up, each with 3 MiB in its writable layer; the
    /// first one is the oldest.
    fn pod(&self, uid: &str, pod: &str, count: u32, state: &str) -> Pod {
        let sandbox = self.podman.sandbox(pod, &name(IN_USE));
        self.write(&sandbox, (uid, pod), (pod, 0), state, 60);
        let container = |attempt: u32| {
            let image = usize::try_from(attempt).unwrap() % IN_USE;
            let id = self.podman.attempt(&sandbox, pod, "web", &name(image), attempt);
            self.write(&id, (uid, pod), ("web", attempt), state, 50 - i64::from(attempt));
            let bytes = Noise::new(&id).bytes(3 << 20);
            fs::write(self.layer(&id).join("diff/written"), bytes).unwrap();
            id
        };
        let containers = (0..count).map(container).collect();
        Pod { sandbox, containers }
    }

    fn layer(&self, id: &str) -> PathBuf {
        let all: Value = serde_json::from_str(&self.store.storage(["containers", "--json"])).unwrap();
        let one = all.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
        self.store.root().join("overlay").join(text(one, "/layer"))
    }

    fn containers(&self) -> Vec<String> {
        let all: Value = serde_json::from_str(&self.store.storage(["containers", "--json"])).unwrap();
        all.as_array().unwrap().iter().map(|one| text(one, "/id").to_owned()).collect()
    }

    fn podman_works(&self) {
        self.store.podman(["create", "--name", "after", "--network", "none", &name(IN_USE), "/x"]);
        self.store.podman(["rm", "after"]);
        self.store.unmount();
        let whole = edit::whole(&self.store);
        assert_eq!(edit::podman_ids(&self.store), whole);
        self.store.unmount();
    }
}

fn ids(document: &Value) -> Vec<&str> {
    list(document, "/deleted").iter().map(|one| text(one, "/id")).collect()
}

fn rule<'a>(document: &'a Value, id: &str) -> &'a str {
    let kept = list(document, "/kept").iter().find(|kept| text(kept, "/id") == id);
    text(kept.unwrap_or_else(|| panic!("{id} is not kept: {document:#}")), "/rule")
}

#[test]
fn what_is_proven_dead_goes_and_frees_its_image() {
    let Some((down, server)) = node() else { return };
    let gone = down.pod(GONE, "gone", 1, "stopped");
    let known = down.pod(KNOWN, "known", 3, "stopped");
    let running = down.pod(RUNNING, "running", 1, "running");
    let unsure = down.pod(GONE, "unsure", 1, "running");
    fs::write(down.userdata(&unsure.containers[0], "state.json"), "{").unwrap();
    // CRI-O's last word is that it ended, but something of it is mounted all the same.
    let mounted = down.pod(GONE, "mounted", 1, "stopped");
    down.store.storage(["mount", &mounted.containers[0]]);
    let unnamed = down.pod(GONE, "unnamed", 1, "stopped");
    let config = down.userdata(&unnamed.containers[0], "config.json");
    let config_text = fs::read(&config).unwrap();
    fs::remove_file(&config).unwrap();
    // Somebody made it by hand: no label of the kubelet's.
    let by_hand = down.pod("", "by-hand", 1, "stopped");
    fs::create_dir_all(down.directory.path().join("kubelet/pods").join(GONE.replace('0', "1"))).unwrap();
    let podmans = down.store.podman(["create", "--network", "none", &name(1), "/x"]).trim().to_owned();
    down.store.buildah(["from", "--pull-never", "--name", "working", &name(1)]);
    let words = [&CONTAINERS[..], &["--dry-run"]].concat();

    // An owner that answers knows better, and so may one that is not asked.
    let endpoint = server.endpoint();
    let refused = down.json(5, &[&CONTAINERS[..], &["--cri-endpoint", &endpoint]].concat());
    assert_eq!(text(&refused, "/outcome"), "refused");
    let forced = down.json(0, &[&CONTAINERS[..], &["--while-runtime-runs"]].concat());
    assert_eq!((ids(&forced).len(), rule(&forced, &gone.containers[0])), (0, "owner-at-work"));
    drop(server);

    // A pod that runs, by its record, has no directory: whose directories are these?
    let doubtful = down.json(0, &words);
    assert!(ids(&doubtful).is_empty(), "{doubtful:#}");
    assert_eq!(rule(&doubtful, &known.containers[0]), "pods-unknown", "{doubtful:#}");
    down.write(&unsure.sandbox, (GONE, "unsure"), ("unsure", 0), "stopped", 60);

    let dry = down.json(0, &words);
    // The oldest death first, sandboxes when nothing is in them any more.
    let expected = [&gone.containers[0], &known.containers[0], &known.containers[1], &gone.sandbox];
    let expected: Vec<_> = expected.map(String::as_str).into();
    let sorted = |mut ids: Vec<&str>| {
        ids.sort_unstable();
        ids.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(sorted(ids(&dry)), sorted(expected), "{dry:#}");
    assert_eq!(*ids(&dry).last().unwrap(), gone.sandbox);
    let mut before = down.containers();

    let free = || {
        down.loopfs.sync();
        let sizes = rustix::fs::statvfs(down.loopfs.path()).unwrap();
        i64::try_from(sizes.f_bfree * sizes.f_frsize).unwrap()
    };
    let words = [&ALL[..], &["--only", "containers,images"]].concat();
    let dry_all = down.json(4, &[&words[..], &["--dry-run"]].concat());
    let free_before = free();
    let real = down.json(4, &words);
    assert!(list(&real, "/errors").is_empty(), "{real:#}");
    assert_eq!(ids(&real), ids(&dry_all), "the same plan, images included");
    assert_eq!(ids(&real)[..4], ids(&dry)[..], "containers first");
    // That of others that stay.
    assert!(!deleted(&real).contains(&name(1)));
    let mut sum = 0;
    for one in list(&real, "/deleted") {
        let (predicted, measured) =
            (one["predicted_bytes"].as_i64().unwrap(), one["measured_bytes"].as_i64());
        let off = (predicted - measured.unwrap()).abs();
        println!("{} predicted {predicted} measured {measured:?}", text(one, "/kind"));
        assert!(off <= (predicted / 100).max(64 << 10), "{one:#}");
        sum += predicted;
    }
    let freed = free() - free_before;
    assert!((freed - sum).abs() <= (sum / 100).max(64 << 10), "{freed} for {sum}");
    before.retain(|id| !ids(&real).contains(&id.as_str()));
    assert_eq!(down.containers(), before);
    assert!(!down.store.root().join("overlay-containers").join(&gone.containers[0]).exists());

    for (id, because) in [
        (&known.containers[2], "within-limits"),
        (&known.sandbox, "has-containers"),
        (&running.containers[0], "running"),
        (&running.sandbox, "running"),
        (&unsure.containers[0], "state-unknown"),
        (&unsure.sandbox, "has-containers"),
        (&mounted.containers[0], "running"),
        (&unnamed.containers[0], "pod-unknown"),
        (&by_hand.containers[0], "within-limits"),
        (&podmans, "not-cri-o"),
    ] {
        assert_eq!(rule(&real, id), because, "{real:#}");
    }
    let kept = list(&real, "/kept").iter();
    let buildahs: Vec<_> =
        kept.filter(|one| text(one, "/detail").contains("buildah working container")).collect();
    assert_eq!((buildahs.len(), texts(buildahs[0], "/names")), (1, vec!["working".to_owned()]));

    let history = down.json(0, &["history"]);
    let run = list(&history, "/runs").iter().find(|run| run["run_id"] == real["run_id"]).unwrap();
    assert_eq!(ids(run), ids(&real));
    down.store.storage(["unmount", &mounted.containers[0]]);
    let again = down.json(0, &CONTAINERS);
    assert_eq!(ids(&again), [mounted.containers[0].as_str(), &mounted.sandbox], "{again:#}");
    fs::write(config, config_text).unwrap();
    down.podman_works();
}

/// Of a sandbox without an infra container CRI-O keeps the state below the runroot.
#[test]
fn a_stopped_sandbox_without_an_infra_container_goes() {
    let Some((down, server)) = node() else { return };
    drop(server);
    let without_infra = |sandbox: &str, annotation: &str, state: Option<&str>| {
        fs::remove_file(down.userdata(sandbox, "state.json")).unwrap();
        let file = down.userdata(sandbox, "config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        config["annotations"][annotation] = json!("true");
        fs::write(file, config.to_string()).unwrap();
        let run = down.store.runroot().join("overlay-containers").join(sandbox).join("userdata");
        fs::create_dir_all(&run).unwrap();
        if let Some(state) = state {
            fs::write(run.join("state.json"), json!({"status": state}).to_string()).unwrap();
        }
    };
    let sandbox = |pod: &str, annotation: &str, state: Option<&str>| {
        let Pod { sandbox, .. } = down.pod(GONE, pod, 0, "stopped");
        without_infra(&sandbox, annotation, state);
        sandbox
    };
    // Of the pod that runs, too, and its container alone shows that the kubelet's directories are this node's.
    for id in down.containers() {
        fs::write(down.userdata(&id, "state.json"), "{").unwrap();
    }
    let running = down.pod(RUNNING, "running", 1, "running");
    without_infra(&running.sandbox, "spoofed.crio.io", Some(""));
    let stopped = sandbox("stopped", "spoofed.crio.io", Some("stopped"));
    let older = sandbox("older", "io.kubernetes.cri-o.Spoofed", Some("stopped"));
    let unsure = [
        sandbox("ready", "spoofed.crio.io", Some("")),
        sandbox("rebooted", "spoofed.crio.io", None),
        // That is not where CRI-O keeps its state.
        sandbox("with-infra", "x", Some("stopped")),
    ];
    let torn = sandbox("torn", "spoofed.crio.io", Some("stopped"));
    fs::write(down.userdata(&torn, "state.json"), "{").unwrap();
    let done = down.json(0, &CONTAINERS);
    let mut gone = ids(&done);
    gone.sort_unstable();
    let mut expected = [stopped.as_str(), older.as_str()];
    expected.sort_unstable();
    assert_eq!(gone, expected, "{done:#}");
    for id in unsure.iter().chain([&torn, &running.sandbox]) {
        assert_eq!(rule(&done, id), "state-unknown", "{done:#}");
    }
    down.podman_works();
}

/// The image that only a dead container used goes in the same run.
#[test]
fn an_image_goes_after_its_container() {
    let Some((down, server)) = node() else { return };
    drop(server);
    let gone = down.pod(GONE, "gone", 1, "stopped");
    let without = down.json(4, &[&ALL[..], &["--only", "images", "--dry-run"]].concat());
    assert!(!deleted(&without).contains(&name(0)), "{without:#}");
    let dry = down.json(4, &[&ALL[..], &["--dry-run"]].concat());
    let real = down.json(4, &ALL);
    assert_eq!(ids(&real), ids(&dry), "{real:#}");
    assert_eq!(ids(&real)[..2], [gone.containers[0].as_str(), &gone.sandbox], "{real:#}");
    assert!(deleted(&real).contains(&name(0)), "{real:#}");
    down.podman_works();
}

/// A container's deletion has to write before it frees anything: on a full disk an image makes the room.
#[test]
fn on_a_full_disk_containers_go_after_the_first_image() {
    let Some((down, server)) = node() else { return };
    drop(server);
    let gone = down.pod(GONE, "gone", 1, "stopped");
    down.store.unmount();
    support::reserve_file::fill_to_the_last_byte(&down.loopfs);
    let words = ["gc", "-y", "--via", "direct", "--high", "99", "--low", "98"];
    let dry = down.json(0, &[&words[..], &["--dry-run"]].concat());
    let real = down.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(list(&real, "/errors").is_empty(), "{real:#}");
    assert_eq!(ids(&real), ids(&dry), "{real:#}");
    let went = ids(&real);
    assert!([&gone.containers[0], &gone.sandbox].iter().all(|id| went.contains(&id.as_str())), "{real:#}");
    assert!(!deleted(&real).is_empty(), "{real:#}");
    down.podman_works();
}

/// Without the kubelet's directories nothing is gone, and nothing goes.
#[test]
fn without_directories_of_pods_nothing_goes() {
    let Some((down, server)) = node() else { return };
    drop(server);
    let gone = down.pod(GONE, "gone", 2, "stopped");
    let top = down.directory.path().display().to_string();
    down.config(&format!("[kubelet]\nroot_dir = \"{top}/none\"\n"));
    let real = down.json(0, &CONTAINERS);
    assert!(ids(&real).is_empty(), "{real:#}");
    assert_eq!(rule(&real, &gone.containers[0]), "pods-unknown", "{real:#}");
    assert!(real["warnings"].to_string().contains("no pod is treated as deleted"), "{real:#}");
    // Off by default.
    fs::write(down.directory.path().join("layersweep.toml"), "").unwrap();
    let real = down.json(0, &["gc", "--via", "direct", "--high", "99", "--low", "98"]);
    assert!(list(&real, "/kept").iter().all(|kept| text(kept, "/kind") == "image"), "{real:#}");
    assert_eq!(down.containers().len(), 5);
}

/// Killed at any moment: the tools work, and the next run finishes.
#[test]
fn killed_it_is_finished_by_the_next_run() {
    let Some((down, server)) = node() else { return };
    drop(server);
    down.pod(GONE, "gone", 8, "stopped");
    for round in 0..8_u64 {
        let mut child =
            down.command(&CONTAINERS).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(120 + 25 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        println!("killed after {} ms: {} containers", 120 + 25 * round, down.containers().len());
    }
    let last = down.json(0, &CONTAINERS);
    assert!(list(&last, "/errors").is_empty(), "{last:#}");
    // Those of the node itself.
    assert_eq!(down.containers().len(), 2);
    down.podman_works();
}
