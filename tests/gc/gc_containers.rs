//! Collection of containers on a real containerd with pods as the kubelet makes them: exactly the dead containers are
//! deleted, and they free the predicted bytes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::support;
use crate::support::pods;
use jiff::SignedDuration;
use layersweep::cri::{Client, Endpoint, Options};
use layersweep::disk::Progress;
use layersweep::execute::containers::{Collection, Scope};
use layersweep::execute::measure::SettlePatience;
use layersweep::execute::{Gauges, Run, RunObserver};
use layersweep::history::pins::Pins;
use layersweep::model::deletion::plan::TargetKind;
use layersweep::model::{Deletion, Outcome, Plan, Problem, Step};
use layersweep::node::places::KubeletPlaces;
use layersweep::policy::containers::ContainerPolicy;
use layersweep::stores::ScanRequest;
use layersweep::sys::sysroot::Sysroot;
use pods::Kubelet;
use support::containerd::{self, Rig};
use support::loopfs::{Fs, LoopFs, MIB};

const WEB: &str = "0f8a31b2-7a5c-4f7e-9d1e-000000000001";
const OLD: &str = "0f8a31b2-7a5c-4f7e-9d1e-000000000002";
const STAYING: &str = "0f8a31b2-7a5c-4f7e-9d1e-000000000003";
/// Uid of a pod. No uid is used in two tests: the tests run at the same time, and a log that any process of the
/// machine has open under the same pod and name counts as read.
const GONE: &str = "0f8a31b2-7a5c-4f7e-9d1e-000000000004";
const BOTH: Scope = Scope { containers: true, logs: true };

struct Node {
    rig: Rig,
    kubelet: Kubelet,
    client: Client,
    request: ScanRequest,
    _loopfs: LoopFs,
}

#[derive(Default)]
struct Told {
    deleted: Vec<String>,
    refused: Vec<String>,
    /// Runs when the deletion of this id begins.
    before: Option<(String, Box<dyn FnOnce()>)>,
}

impl RunObserver for Told {
    fn begins(&mut self, step: &Step) -> Option<Pins> {
        if self.before.as_ref().is_some_and(|(id, _)| *id == step.target.id)
            && let Some((_, act)) = self.before.take()
        {
            act();
        }
        None
    }

    fn deleted(&mut self, deletion: &Deletion) {
        self.deleted.push(deletion.step.target.id.clone());
    }

    fn failed(&mut self, step: &Step, problem: &Problem) {
        self.refused.push(format!("{}: {}", step.target.id, problem.message));
    }
}

fn policy(min_age: SignedDuration) -> ContainerPolicy {
    ContainerPolicy { min_age, ..ContainerPolicy::default() }
}

fn run(
    collector: &Collection<'_>,
    scan: &layersweep::stores::Scan,
    places: &KubeletPlaces,
    told: &mut Told,
) -> Outcome {
    let gauges = Gauges::open(&scan.inventory, Some(&places.pod_logs));
    let mut run = Run::new(gauges, SettlePatience::default(), told);
    let before = run.measure();
    let plan = collector.run(&mut run, scan).unwrap();
    run.finish(plan, before)
}

impl Node {
    fn new() -> Option<Self> {
        if !containerd::require_rig() || !Fs::Ext4.require() {
            return None;
        }
        let loopfs = LoopFs::new(Fs::Ext4, 600 * MIB);
        let root = loopfs.path().join("root");
        let rig = Rig::with_images_and(&root, containerd::Collection::Default);
        let kubelet = Kubelet::of(&rig);
        let options = Options { connecting: Duration::from_millis(500), ..Options::default() };
        let client = Client::connect(Endpoint::at(&rig.socket()).unwrap(), options).unwrap();
        let request = ScanRequest { containerd_roots: vec![root], ..ScanRequest::of(Sysroot::live()) };
        Some(Self { rig, kubelet, client, request, _loopfs: loopfs })
    }

    fn collect<T>(
        &self,
        policy: &ContainerPolicy,
        scope: Scope,
        places: &KubeletPlaces,
        act: impl FnOnce(&Collection<'_>, &layersweep::stores::Scan) -> T,
    ) -> T {
        let scan = layersweep::stores::run(&self.request, &Progress::default()).unwrap();
        let store = self.client.runtime_store().unwrap().unwrap();
        let collector = Collection {
            client: &self.client,
            runtime_store: &store,
            request: &self.request,
            places,
            policy,
            scope,
        };
        act(&collector, &scan)
    }

    fn run(&self, policy: &ContainerPolicy, told: &mut Told) -> Outcome {
        let places = self.kubelet.places();
        self.collect(policy, BOTH, &places, |collector, scan| run(collector, scan, &places, told))
    }

    fn dry(&self, policy: &ContainerPolicy) -> Plan {
        let places = self.kubelet.places();
        self.collect(policy, BOTH, &places, |collector, scan| collector.plan(scan).unwrap())
    }

    /// Ids of containers and sandboxes, and names of logs and links.
    fn existing(&self) -> BTreeSet<String> {
        let mut all: BTreeSet<String> =
            self.client.containers().unwrap().into_iter().map(|object| object.id).collect();
        all.extend(self.client.sandboxes().unwrap().into_iter().map(|object| object.id));
        all.extend(self.files());
        all
    }

    fn files(&self) -> Vec<String> {
        let top = self.kubelet.scratch();
        let mut waiting = vec![top.join("pods"), top.join("containers")];
        let mut files = Vec::new();
        while let Some(path) = waiting.pop() {
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                files.push(entry.path().strip_prefix(top).unwrap().display().to_string());
                if entry.file_type().unwrap().is_dir() {
                    waiting.push(entry.path());
                }
            }
        }
        files
    }
}

#[test]
fn one_run_deletes_exactly_dead_containers() {
    let Some(node) = Node::new() else { return };
    let kubelet = &node.kubelet;
    // A pod that exists: one container has been restarted three times, another has exited.
    let web = kubelet.pod("web", WEB);
    let restarts: Vec<_> =
        (0..3).map(|attempt| kubelet.ended(&web, "app", attempt, (3 + u64::from(attempt)) * MIB)).collect();
    let app = kubelet.running(&web, "app", 3);
    let side = kubelet.ended(&web, "side", 0, MIB);
    let made = kubelet.create(&web, "next", 0, "true");
    // A pod that is gone: its sandbox has ended twice.
    let old = kubelet.pod("old", OLD);
    let first = kubelet.ended(&old, "job", 0, 2 * MIB);
    kubelet.stop_sandbox(&old);
    let again = kubelet.run_again(&old);
    let second = kubelet.ended(&again, "job", 1, 2 * MIB);
    kubelet.stop_sandbox(&again);
    // A pod made by hand, which the kubelet never knew.
    let hand = kubelet.pod_by_hand("by-hand");
    let by_hand = kubelet.ended(&hand, "x", 0, MIB);
    kubelet.stop_sandbox(&hand);
    // A log that a process reads, and a log of a container that no longer exists.
    let places = kubelet.places();
    let reader = fs::File::open(kubelet.logs(&web).join("app/1.log")).unwrap();
    let mut tail = std::process::Command::new("sleep")
        .arg("1000")
        .stdin(std::process::Stdio::from(reader))
        .spawn()
        .unwrap();
    let lost = places.container_logs.join(format!("x_default_y-{}.log", "0".repeat(64)));
    std::os::unix::fs::symlink(places.pod_logs.join("default_x_1/y/0.log"), &lost).unwrap();
    std::os::unix::fs::symlink("/nowhere/at-all", places.container_logs.join("of-another-program")).unwrap();

    // All of them are too young.
    let day = policy(SignedDuration::from_hours(24));
    assert_eq!(node.dry(&day).steps.iter().filter(|step| step.target.kind != TargetKind::Log).count(), 0);
    // The directory of pods exists, but no pod is gone yet.
    let now = policy(SignedDuration::ZERO);
    let planned = node.dry(&now);
    assert_eq!(planned.notes, Vec::<String>::new());
    let containers: Vec<_> = planned
        .steps
        .iter()
        .filter(|step| step.target.kind == TargetKind::Container)
        .map(|step| &step.target.id)
        .collect();
    assert_eq!(containers, [&restarts[0], &restarts[1], &first], "only the newest of each is kept");

    kubelet.forget(&old);
    let before = node.existing();
    let planned = node.dry(&now);
    assert_eq!(before, node.existing(), "a dry run deletes nothing");
    let mut told = Told::default();
    let ran = node.run(&now, &mut told);
    tail.kill().unwrap();
    tail.wait().unwrap();
    assert_eq!((ran.stopped.clone(), ran.plan.problems.clone()), (None, vec![]));
    let logs_kept: Vec<_> = ran.plan.kept.iter().filter(|kept| kept.target.kind == TargetKind::Log).collect();
    assert_eq!(
        told.deleted,
        planned.steps.iter().map(|step| step.target.id.clone()).collect::<Vec<_>>(),
        "{logs_kept:#?}"
    );

    fn link(pod: &str, container: &str, id: &str) -> String {
        format!("containers/{pod}_default_{container}-{id}.log")
    }
    let logs = format!("pods/default_old_{OLD}");
    let web_logs = format!("pods/default_web_{WEB}");
    let gone: BTreeSet<String> = [
        restarts[0].clone(),
        restarts[1].clone(),
        first.clone(),
        second.clone(),
        old.sandbox.clone(),
        again.sandbox.clone(),
        format!("{web_logs}/app/0.log"),
        logs.clone(),
        format!("{logs}/job"),
        format!("{logs}/job/0.log"),
        format!("{logs}/job/1.log"),
        link("web", "app", &restarts[0]),
        link("old", "job", &first),
        link("old", "job", &second),
        format!("containers/{}", lost.file_name().unwrap().to_str().unwrap()),
    ]
    .into();
    let expected: BTreeSet<String> = before.difference(&gone).cloned().collect();
    assert_eq!(node.existing(), expected);
    for id in [&restarts[2], &app, &side, &made, &by_hand] {
        assert!(expected.contains(id));
    }
    for (id, expected) in [
        (restarts[2].as_str(), "within-limits"),
        (&app, "running"),
        (&side, "needed"),
        (&made, "starting"),
        (&by_hand, "within-limits"),
        (&web.sandbox, "ready"),
        (&hand.sandbox, "has-containers"),
        ("app/1.log", "open"),
        ("of-another-program", "not-a-pod"),
        (&web_logs, "pod-exists"),
    ] {
        let found =
            ran.plan.kept.iter().find(|kept| kept.target.id.contains(id)).map(|kept| kept.rule.as_str());
        assert!(
            ran.plan.kept.iter().any(|kept| kept.target.id.contains(id) && kept.rule.as_str() == expected),
            "{id}: {found:?}"
        );
    }

    // Each writable layer freed its predicted bytes.
    for deletion in ran.deletions.iter().filter(|deletion| deletion.step.target.kind == TargetKind::Container)
    {
        let predicted = deletion.step.predicted_bytes();
        assert!(predicted > 2 * MIB, "{deletion:?}");
        assert!(!deletion.is_off(), "{deletion:?}");
        #[allow(clippy::print_stderr)] // the harness shows it with --nocapture
        {
            eprintln!(
                "{:?}: predicted {predicted}, measured {:?}",
                deletion.step.target.names, deletion.measured_bytes
            );
        }
    }
    // A second run has nothing to do.
    let again = node.run(&now, &mut Told::default());
    assert_eq!(again.deletions, []);
    drop(node.rig);
}

#[test]
fn running_containers_are_never_deleted() {
    let Some(node) = Node::new() else { return };
    let kubelet = &node.kubelet;
    let staying = kubelet.pod("staying", STAYING);
    let running = kubelet.running(&staying, "app", 0);
    let now = policy(SignedDuration::ZERO);

    // A running pod without a directory does not belong to the running kubelet: no pod counts as gone.
    let old = kubelet.pod("gone", GONE);
    let alive = kubelet.running(&old, "app", 0);
    let dead = kubelet.ended(&old, "job", 0, MIB);
    kubelet.forget(&old);
    let before = node.existing();
    let ran = node.run(&now, &mut Told::default());
    assert!(ran.plan.notes.iter().any(|note| note.contains(GONE)), "{:?}", ran.plan);
    assert_eq!(node.existing(), before);
    // No pod counts as gone either if the directory cannot be read.
    let nowhere = KubeletPlaces { roots: vec!["/none".into()], ..kubelet.places() };
    let plan = node.collect(&now, BOTH, &nowhere, |collector, scan| collector.plan(scan).unwrap());
    assert!(plan.steps.is_empty() && !plan.notes.is_empty(), "{plan:?}");

    // Its sandbox ends and one of its containers keeps running: only the dead container is deleted.
    node.rig.shell(&format!("C task kill -s KILL {}", old.sandbox));
    let has_ended = || {
        let sandboxes = node.client.sandboxes().unwrap();
        sandboxes.iter().all(|sandbox| sandbox.id != old.sandbox || !sandbox.ready)
    };
    for _ in 0..200 {
        if has_ended() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(has_ended());
    let ran = node.run(&now, &mut Told::default());
    let existing = node.existing();
    assert!(existing.contains(&alive) && existing.contains(&running), "{ran:#?}");
    assert!(existing.contains(&old.sandbox), "its removal would remove the container too");
    assert!(!existing.contains(&dead));
    assert!(kubelet.logs(&old).is_dir(), "logs of a running pod");

    // Only logs, then only containers.
    kubelet.stop_container(&alive);
    let logs = Scope { containers: false, logs: true };
    let places = kubelet.places();
    node.collect(&now, logs, &places, |collector, scan| {
        run(collector, scan, &places, &mut Told::default());
    });
    assert!(node.existing().contains(&alive) && kubelet.logs(&old).is_dir());
    let containers = Scope { containers: true, logs: false };
    node.collect(&now, containers, &places, |collector, scan| {
        run(collector, scan, &places, &mut Told::default());
    });
    let existing = node.existing();
    assert!(!existing.contains(&alive) && !existing.contains(&old.sandbox));
    assert!(kubelet.logs(&old).is_dir());
    node.collect(&now, logs, &places, |collector, scan| {
        run(collector, scan, &places, &mut Told::default());
    });
    assert!(!kubelet.logs(&old).exists());
    assert!(node.existing().contains(&running));
}
