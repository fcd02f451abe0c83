//! Collection of containers with a runtime that fails, answers falsely and dies: the test CRI server in front of a
//! real podman store. Running containers are kept, and only confirmed deletions are reported.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::{CriServer, Listing, Removal};
use jiff::SignedDuration;
use layersweep::cri::{Client, Options};
use layersweep::disk::Progress;
use layersweep::execute::containers::{Collection, Scope};
use layersweep::execute::cri::CriRemover;
use layersweep::execute::measure::SettlePatience;
use layersweep::execute::{Gauges, PreconditionError, Run, RunObserver};
use layersweep::history::pins::Pins;
use layersweep::model::deletion::plan::{Cause, Phase};
use layersweep::model::{Deletion, Outcome, OutcomeKind, Problem, Step, Stopped};
use layersweep::node::places::KubeletPlaces;
use layersweep::policy::containers::ContainerPolicy;
use layersweep::stores::ScanRequest;
use layersweep::sys::stop::flag;
use layersweep::sys::sysroot::Sysroot;
use support::archive::{ImageSpec, LayerSpec};
use support::store::{self, Store};

const IMAGE: &str = "reg.local/app:1";
const CONTAINERS: Scope = Scope { containers: true, logs: false };

/// A pod `live` with a running container; the tests add other pods.
struct Node {
    server: CriServer,
    store: Arc<Store>,
    kubelet: PathBuf,
    running: String,
    _directory: tempfile::TempDir,
}

impl Node {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("layersweep-gcc-").tempdir().unwrap();
        let layers = vec![LayerSpec { files: vec![10_000], small_files: 1, ..LayerSpec::new("app") }];
        let images = [ImageSpec { names: vec![IMAGE.into()], layers, label: "app".into() }];
        let store = Arc::new(Store::of(&directory.path().join("graphroot"), "vfs", &images));
        let server = CriServer::start(&store);
        let kubelet = directory.path().join("kubelet");
        fs::create_dir_all(kubelet.join("pods/uid-live")).unwrap();
        let sandbox = server.podman().sandbox("live", IMAGE);
        let running = server.podman().container(&sandbox, "live", "app", IMAGE);
        Some(Self { server, store, kubelet, running, _directory: directory })
    }

    /// Makes a pod that is gone, with `containers` dead containers of different names; returns the ids of its sandbox
    /// and containers.
    fn gone(&self, pod: &str, containers: usize) -> (String, Vec<String>) {
        let podman = self.server.podman();
        let sandbox = podman.sandbox(pod, IMAGE);
        let mut dead = Vec::new();
        for number in 0..containers {
            let id = podman.container(&sandbox, pod, &format!("c{number}"), IMAGE);
            podman.set_state(&id, "exited");
            dead.push(id);
        }
        podman.set_state(&sandbox, "exited");
        (sandbox, dead)
    }

    fn run_with(&self, policy: &ContainerPolicy, told: &mut Told) -> Result<Outcome, PreconditionError> {
        let request = ScanRequest {
            graphroots: vec![self.store.root().to_path_buf()],
            runroots: vec![self.store.runroot()],
            ..ScanRequest::of(Sysroot::live())
        };
        let second = Duration::from_secs(1);
        let options = Options {
            removing: second,
            listing: 10 * second,
            connecting: Duration::from_millis(100),
            ..Options::default()
        };
        let client = Client::connect(self.server.endpoint().parse().unwrap(), options).unwrap();
        let places = KubeletPlaces { roots: vec![self.kubelet.clone()], ..KubeletPlaces::default() };
        let scan = layersweep::stores::run(&request, &Progress::default()).unwrap();
        let remover = CriRemover::new(client)?;
        let collector = Collection {
            client: remover.client(),
            runtime_store: remover.runtime_store(),
            request: &request,
            places: &places,
            policy,
            scope: CONTAINERS,
        };
        // This store is on the machine's own disk, where other processes write: nothing is measured.
        let patience = SettlePatience { deadline: Duration::ZERO, ..SettlePatience::default() };
        let mut run = Run::new(Gauges::open(&scan.inventory, None), patience, told);
        let before = run.measure();
        let plan = collector.run(&mut run, &scan)?;
        Ok(run.finish(plan, before))
    }

    fn run(&self, told: &mut Told) -> Outcome {
        self.run_with(&now(), told).unwrap()
    }

    /// Containers in the store, whatever the server reports.
    fn standing(&self) -> BTreeSet<String> {
        let output = self.store.storage(["containers", "--json"]);
        let rows: Option<Vec<serde_json::Value>> = serde_json::from_str(output.trim()).unwrap_or_default();
        rows.unwrap_or_default().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[derive(Default)]
struct Told {
    deleted: Vec<String>,
    refused: Vec<String>,
    /// Runs when the first deletion begins.
    first: Option<Box<dyn FnOnce()>>,
}

impl Told {
    fn first(act: impl FnOnce() + 'static) -> Self {
        Self { first: Some(Box::new(act)), ..Self::default() }
    }
}

impl RunObserver for Told {
    fn begins(&mut self, _: &Step) -> Option<Pins> {
        if let Some(act) = self.first.take() {
            act();
        }
        None
    }

    fn deleted(&mut self, deletion: &Deletion) {
        self.deleted.push(deletion.step.target.id.clone());
    }

    fn failed(&mut self, _: &Step, problem: &Problem) {
        self.refused.push(problem.message.clone());
    }
}

fn now() -> ContainerPolicy {
    ContainerPolicy { min_age: SignedDuration::ZERO, ..ContainerPolicy::default() }
}

fn rule(ran: &Outcome, id: &str) -> &'static str {
    ran.plan.kept.iter().rfind(|kept| kept.target.id == id).map_or("", |kept| kept.rule.as_str())
}

#[test]
fn stale_listing_keeps_running_containers() {
    let Some(node) = Node::new() else { return };
    let (sandbox, dead) = node.gone("gone", 3);
    let podman = node.server.podman();
    // The first really runs; only the kernel knows that the second runs.
    podman.set_state(&dead[0], "running");
    let Some((mut process, group)) = in_group(&dead[1]) else { return };
    node.server.behave(|behaviour| {
        behaviour.listed_states = vec![(dead[0].clone(), "exited"), (node.running.clone(), "exited")];
    });
    let mut told = Told::default();
    let ran = node.run(&mut told);
    process.kill().unwrap();
    process.wait().unwrap();
    fs::remove_dir(group).unwrap();
    let standing = node.standing();
    assert!(
        [&dead[0], &dead[1], &node.running, &sandbox].iter().all(|id| standing.contains(*id)),
        "{ran:#?}"
    );
    assert_eq!(told.deleted, [dead[2].clone()]);
    assert_eq!((rule(&ran, &dead[0]), rule(&ran, &dead[1])), ("running", "running"));
    assert_eq!((rule(&ran, &node.running), rule(&ran, &sandbox)), ("running", "has-containers"));
    let calls = node.server.take_calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("Remove")).count(), 1, "{calls:?}");
}

/// Starts a process in a control group that is named after a container.
fn in_group(id: &str) -> Option<(std::process::Child, PathBuf)> {
    let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let tops = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for top in std::iter::once(PathBuf::from("/sys/fs/cgroup")).chain(tops) {
        let group = top.join(format!("crio-{id}.scope"));
        if top.join("cgroup.procs").exists()
            && fs::create_dir(&group).is_ok()
            && fs::write(group.join("cgroup.procs"), process.id().to_string()).is_ok()
        {
            return Some((process, group));
        }
        let _ = fs::remove_dir(&group);
    }
    process.kill().unwrap();
    process.wait().unwrap();
    support::skip("no control group can be made");
    None
}

#[test]
fn container_started_after_listing_is_kept() {
    let Some(node) = Node::new() else { return };
    let (_, dead) = node.gone("gone", 3);
    let (podman, second) = (node.server.podman().clone(), dead[1].clone());
    // While the first is deleted, the second starts, and the pod of the third returns.
    let (other_sandbox, other) = node.gone("back", 1);
    let directory = node.kubelet.join("pods/uid-back");
    let mut told = Told::first(move || {
        podman.set_state(&second, "running");
        fs::create_dir(directory).unwrap();
    });
    let ran = node.run(&mut told);
    let standing = node.standing();
    for id in [&dead[1], &other[0], &other_sandbox, &node.running] {
        assert!(standing.contains(id), "{ran:#?}");
    }
    assert_eq!(told.deleted, [dead[0].clone(), dead[2].clone()]);
    assert_eq!((rule(&ran, &dead[1]), rule(&ran, &other[0])), ("running", "within-limits"));
}

#[test]
fn container_of_unknown_state_is_stopped_first() {
    let Some(node) = Node::new() else { return };
    let (sandbox, dead) = node.gone("gone", 2);
    dead.iter().for_each(|id| node.server.podman().set_state(id, "who knows"));
    node.server.behave(|behaviour| behaviour.unstoppable = vec![dead[1].clone()]);
    let mut told = Told::default();
    node.server.take_calls();
    let ran = node.run(&mut told);
    assert_eq!(told.deleted, [dead[0].clone()]);
    assert_eq!(told.refused.len(), 1, "{:?}", told.refused);
    assert_eq!((ran.plan.problems.len(), ran.plan.problems[0].phase), (1, Phase::StopContainer));
    assert_eq!(ran.kind(), OutcomeKind::Failed);
    assert!(node.standing().contains(&dead[1]) && node.standing().contains(&sandbox));
    let calls = node.server.take_calls();
    fn position(calls: &[String], call: String) -> Option<usize> {
        calls.iter().position(|other| *other == call)
    }
    assert!(
        position(&calls, format!("StopContainer {}", dead[0]))
            < position(&calls, format!("RemoveContainer {}", dead[0]))
    );
    assert_eq!(position(&calls, format!("RemoveContainer {}", dead[1])), None);
    // A sandbox that does not stop is not removed.
    node.server.behave(|behaviour| behaviour.unstoppable = vec![sandbox.clone()]);
    let ran = node.run(&mut Told::default());
    assert!(node.standing().contains(&sandbox));
    assert_eq!(ran.plan.problems[0].phase, Phase::StopContainer);
    // Once it stops, all of it is deleted.
    node.server.behave(|behaviour| behaviour.unstoppable.clear());
    node.run(&mut Told::default());
    assert!(!node.standing().contains(&sandbox));
}

#[test]
fn answers_are_checked_on_disk() {
    let Some(mut node) = Node::new() else { return };
    let (_, dead) = node.gone("gone", 5);
    node.server.behave(|behaviour| {
        behaviour.removals = vec![
            (dead[0].clone(), Removal::Refuse),
            (dead[1].clone(), Removal::Late(Duration::from_millis(800))),
            (dead[2].clone(), Removal::Hang),
            (dead[3].clone(), Removal::DieAfter),
        ];
    });
    let mut told = Told::default();
    let ran = node.run(&mut told);
    node.server.wait_for_death();
    node.server.restart();
    let standing = node.standing();
    // The server died after it had removed one container: that one is gone, as the disk shows. Without a runtime,
    // nothing more is deleted.
    assert_eq!(told.deleted, [dead[1].clone(), dead[3].clone()], "{ran:#?}");
    assert!(ran.plan.problems.iter().any(|problem| problem.phase == Phase::Prove), "{:?}", ran.plan.problems);
    assert_eq!(ran.kind(), OutcomeKind::Failed);
    assert!([&dead[0], &dead[2], &dead[4]].iter().all(|id| standing.contains(*id)));
    assert_eq!(told.refused.len(), 2, "{:?}", told.refused);

    node.server.behave(|behaviour| behaviour.removals = vec![(dead[0].clone(), Removal::DieBefore)]);
    let mut told = Told::default();
    let ran = node.run(&mut told);
    node.server.wait_for_death();
    node.server.restart();
    assert_eq!((told.deleted.len(), told.refused.len()), (0, 1), "{ran:#?}");
    assert_eq!(node.standing(), standing);
    node.server.behave(|behaviour| behaviour.removals = vec![(dead[0].clone(), Removal::Lie)]);
    let mut told = Told::default();
    node.run(&mut told);
    assert!(told.refused[0].contains("still exists"), "{:?}", told.refused);
    assert!(node.standing().contains(&dead[0]));
    assert_eq!(told.deleted, [dead[2].clone(), dead[4].clone()], "a false answer does not stop the others");
}

#[test]
fn incomplete_listing_deletes_nothing_else() {
    let Some(node) = Node::new() else { return };
    let (sandbox, dead) = node.gone("gone", 1);
    let before = node.standing();
    fn run(node: &Node) -> Result<Outcome, PreconditionError> {
        node.run_with(&now(), &mut Told::default())
    }
    for listing in [Listing::Error("no"), Listing::EmptyId] {
        node.server.behave(|behaviour| behaviour.containers = listing.clone());
        assert!(run(&node).is_err(), "{listing:?}");
        node.server.behave(|behaviour| {
            behaviour.containers = Listing::Honest;
            behaviour.sandboxes = listing.clone();
        });
        assert!(run(&node).is_err(), "{listing:?}");
        node.server.behave(|behaviour| behaviour.sandboxes = Listing::Honest);
        assert_eq!(node.standing(), before);
    }
    // The listing silently lacks the containers: removing the sandbox would remove them too.
    node.server.behave(|behaviour| behaviour.containers = Listing::LeaveOut(9));
    let ran = run(&node).unwrap();
    assert_eq!((node.standing(), rule(&ran, &sandbox)), (before.clone(), "has-containers"));
    // A listing with other ids names nothing that exists.
    node.server.behave(|behaviour| behaviour.containers = Listing::WrongIds);
    run(&node).unwrap();
    assert_eq!(node.standing(), before);
    node.server.behave(|behaviour| behaviour.containers = Listing::Honest);
    run(&node).unwrap();
    assert!(!node.standing().contains(&dead[0]) && !node.standing().contains(&sandbox));
}

#[test]
fn signal_stops_further_deletions() {
    let Some(node) = Node::new() else { return };
    let (sandbox, dead) = node.gone("gone", 2);
    // The flag belongs to the process: each test has its own.
    let mut told = Told::first(|| flag().store(true, Ordering::Relaxed));
    let ran = node.run_with(&now(), &mut told).unwrap();
    assert_eq!(ran.stopped, Some(Stopped::Signal));
    assert_eq!(told.deleted, [dead[0].clone()]);
    assert!(node.standing().contains(&dead[1]) && node.standing().contains(&sandbox));
}

/// The removal of a sandbox removes its containers by force.
#[test]
fn container_created_after_listing_keeps_its_sandbox() {
    let Some(node) = Node::new() else { return };
    let sandboxes = [node.gone("a", 0).0, node.gone("b", 0).0];
    let podman = node.server.podman().clone();
    let created = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let mut told = Told::first({
        let (created, sandboxes) = (created.clone(), sandboxes.clone());
        move || {
            let pods = sandboxes.iter().zip(["a", "b"]);
            let ids = pods.map(|(sandbox, pod)| podman.container(sandbox, pod, "new", IMAGE));
            created.borrow_mut().extend(ids);
        }
    });
    let ran = node.run(&mut told);
    let (standing, calls) = (node.standing(), node.server.take_calls());
    assert_eq!(told.deleted, [""; 0], "{ran:#?}");
    assert!(created.borrow().iter().chain(&sandboxes).all(|id| standing.contains(id)), "{ran:#?}");
    assert!(!calls.iter().any(|call| call.starts_with("Remove")), "{calls:#?}");
    assert_eq!(sandboxes.each_ref().map(|id| rule(&ran, id)), ["has-containers"; 2]);
}

#[test]
fn total_limit_deletes_oldest_of_largest_unit() {
    let Some(node) = Node::new() else { return };
    let podman = node.server.podman();
    let sandbox = podman.sandbox("batch", IMAGE);
    fs::create_dir(node.kubelet.join("pods/uid-batch")).unwrap();
    let attempts = |name: &str, count: u32| -> Vec<_> {
        let ids = (0..count).map(|attempt| podman.attempt(&sandbox, "batch", name, IMAGE, attempt));
        ids.inspect(|id| podman.set_state(id, "exited")).collect()
    };
    let (a, b) = (attempts("a", 3), attempts("b", 2));
    podman.set_state(&sandbox, "exited");
    // 4 of 5 may be kept: the oldest of the largest unit is deleted.
    let four = ContainerPolicy { max_per_unit: None, max_total: Some(4), ..now() };
    let mut told = Told::default();
    let ran = node.run_with(&four, &mut told).unwrap();
    assert_eq!((told.deleted, ran.deletions[0].step.cause), (vec![a[0].clone()], Cause::Total));
    let standing = node.standing();
    assert!(a[1..].iter().chain(&b).all(|id| standing.contains(id)) && standing.contains(&sandbox));
}

/// The time for many containers grows with their number, not with its square: a proof asks for the container itself.
#[test]
fn each_proof_asks_for_one_container() {
    let Some(node) = Node::new() else { return };
    let (_, dead) = node.gone("gone", 12);
    node.server.take_calls();
    let mut told = Told::default();
    let start = std::time::Instant::now();
    node.run(&mut told);
    let seconds = start.elapsed().as_secs();
    assert_eq!(told.deleted.len(), 13, "the containers and their sandbox");
    let calls = node.server.take_calls();
    let listings = calls.iter().filter(|call| *call == "ListContainers").count();
    assert!(listings as u64 <= 5 + seconds / 2, "{listings} listings in {seconds} s");
    for id in &dead {
        let status = format!("ContainerStatus {id}");
        let removal = calls.iter().position(|call| *call == format!("RemoveContainer {id}")).unwrap();
        let before = calls[..removal].iter().rposition(|call| *call == status);
        assert!(before.is_some_and(|before| removal - before < 4), "{calls:#?}");
    }
}
