//! The run: real podman stores on real filesystems behind the test CRI server. Images are deleted one at a time, each
//! with its own proof and measurement.

#![allow(clippy::unwrap_used)]

mod by_kubelet;
mod in_between;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::{Answers, CriServer, Listing, Removal};
use jiff::{SignedDuration, Timestamp};
use layersweep::cri::{Client, Options};
use layersweep::disk::Progress;
use layersweep::execute::cri::CriRemover;
use layersweep::execute::measure::SettlePatience;
use layersweep::execute::{
    FactsOf, Gauges, ImageFacts, PolicyContext, PreconditionError, Remover, Run, RunObserver, images,
};
use layersweep::history::pins::Pins;
use layersweep::model::deletion::outcome::NOISE_BYTES;
use layersweep::model::deletion::plan::Reason;
use layersweep::model::space::Measured;
use layersweep::model::{Deletion, Image, Outcome, OutcomeKind, Plan, Problem, Step, Stopped};
use layersweep::policy::Ages;
use layersweep::policy::Facts;
use layersweep::policy::Policy;
use layersweep::policy::Targets;
use layersweep::policy::Task;
use layersweep::policy::Thresholds;
use layersweep::stores::{Scan, ScanRequest};
use layersweep::sys::stop;
use layersweep::sys::sysroot::Sysroot;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::reserve_file;
use support::store::{self, Store};

/// Number of images of 6 MiB each on a common base, the first one longest idle; `old-5` is in use.
const IMAGES: usize = 8;
const IN_USE: usize = 5;
/// Difference of record time to the wall clock.
const AHEAD: SignedDuration = SignedDuration::from_hours(24 * 365);

struct Node {
    server: CriServer,
    store: Arc<Store>,
    loopfs: LoopFs,
    /// Id of the container in the pod.
    container: String,
}

fn name(number: usize) -> String {
    format!("reg.local/old-{number}:1")
}

impl Node {
    fn new(fs: Fs) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::new(fs, 400 * MIB);
        let images: Vec<_> = (0..IMAGES)
            .map(|number| ImageSpec {
                names: vec![name(number)],
                layers: [("base".to_owned(), 4 * MIB), (format!("old-{number}"), 6 * MIB)]
                    .map(|(name, bytes)| LayerSpec {
                        files: vec![bytes],
                        small_files: 20,
                        ..LayerSpec::new(&name)
                    })
                    .into(),
                label: name(number),
            })
            .collect();
        let store = Arc::new(Store::of(&loopfs.path().join("graphroot"), "overlay", &images));
        let server = CriServer::start(&store);
        let pause = name(IN_USE);
        let sandbox = server.podman().sandbox("pod-1", &pause);
        let container = server.podman().container(&sandbox, "pod-1", "app", &pause);
        Some(Self { server, store, loopfs, container })
    }

    fn remover(&self) -> CriRemover {
        let options = Options { removing: Duration::from_secs(2), ..Options::default() };
        let client = Client::connect(self.server.endpoint().parse().unwrap(), options).unwrap();
        CriRemover::new(client).unwrap()
    }

    fn request(&self) -> ScanRequest {
        ScanRequest {
            graphroots: vec![self.store.root().to_path_buf()],
            runroots: vec![self.store.runroot()],
            labels: true,
            ..ScanRequest::of(Sysroot::live())
        }
    }

    fn scan(&self) -> Scan {
        layersweep::stores::run(&self.request(), &Progress::default()).unwrap()
    }

    /// Fills the filesystem until `used` percent of it are not available.
    fn fill(&self, used: f64) {
        reserve_file::fill(&self.loopfs, used);
    }

    fn used_percent(&self) -> f64 {
        reserve_file::used_percent(&self.loopfs)
    }

    fn run(&self, policy: &Policy, told: &mut Told) -> Result<Outcome, PreconditionError> {
        self.run_task(policy, Task::Policy, told, &self.scan())
    }

    fn run_task(
        &self,
        policy: &Policy,
        task: Task<'_>,
        told: &mut Told,
        scan: &Scan,
    ) -> Result<Outcome, PreconditionError> {
        self.run_by(&mut self.remover(), policy, task, told, scan)
    }

    fn run_by(
        &self,
        remover: &mut dyn Remover,
        policy: &Policy,
        task: Task<'_>,
        told: &mut Told,
        scan: &Scan,
    ) -> Result<Outcome, PreconditionError> {
        let patience = SettlePatience { still: Duration::from_millis(500), ..SettlePatience::default() };
        let mut run = Run::new(Gauges::open(&scan.inventory, None), patience, told);
        self.run_in(&mut run, remover, policy, task, scan).map(|(plan, before)| run.finish(plan, before))
    }

    fn run_in(
        &self,
        run: &mut Run<'_>,
        remover: &mut dyn Remover,
        policy: &Policy,
        task: Task<'_>,
        scan: &Scan,
    ) -> Result<(Plan, Vec<Measured>), PreconditionError> {
        let before = run.measure();
        let context = ByName::new(self, policy);
        Ok((images::run(run, scan, &context, task, remover, None)?, before))
    }

    fn plan(&self, policy: &Policy, task: Task<'_>, remover: &mut dyn Remover, scan: &Scan) -> Plan {
        let context = ByName::new(self, policy);
        let facts = ImageFacts::now(scan, &context, remover).unwrap();
        images::plan(&[], scan, &context, task, &facts).0
    }

    fn names(&self) -> Vec<String> {
        let images = self.scan().inventory.images;
        let mut names: Vec<_> = images.into_iter().flat_map(|image| image.names).collect();
        names.sort();
        names
    }
}

/// Ages by name: `old-0` is oldest; images with other names were just detected.
struct ByName {
    request: ScanRequest,
    policy: Policy,
}

impl ByName {
    fn new(node: &Node, policy: &Policy) -> Self {
        Self { request: node.request(), policy: policy.clone() }
    }

    fn facts(&self, image: &Image) -> Facts {
        let name = image.names.first().map(String::as_str).unwrap_or_default();
        let number = name.strip_prefix("reg.local/old-").and_then(|rest| rest.strip_suffix(":1"));
        let days = number.and_then(|number| number.parse().ok()).map_or(0, |number: i64| 30 - number);
        let ages = Ages::new(self.now() - SignedDuration::from_hours(24 * days), None, 0);
        Facts { ages: Some(ages), ..Facts::default() }
    }
}

impl PolicyContext for ByName {
    fn scan_request(&self) -> &ScanRequest {
        &self.request
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn read_facts(&self, _: Option<Pins>) -> FactsOf<'_> {
        Box::new(|inventory| inventory.images.iter().map(|image| self.facts(image)).collect())
    }

    fn now(&self) -> Timestamp {
        Timestamp::now() + AHEAD
    }

    fn scanned(&self) -> Timestamp {
        self.now()
    }
}

#[derive(Default)]
struct Told {
    deleted: Vec<String>,
    refused: Vec<String>,
    /// Calls in order.
    calls: Vec<&'static str>,
    /// Runs before the deletion of the image of this name.
    before: Option<(String, Box<dyn FnOnce()>)>,
}

impl RunObserver for Told {
    fn kept(&mut self, _: &Step) {
        self.calls.push("spared");
    }

    fn unproven(&mut self, _: &Step, _: &str) {
        self.calls.push("unproven");
    }

    fn begins(&mut self, step: &Step) -> Option<Pins> {
        self.calls.push("begins");
        if self.before.as_ref().is_some_and(|(name, _)| step.target.names.contains(name))
            && let Some((_, act)) = self.before.take()
        {
            act();
        }
        None
    }

    fn deleted(&mut self, deletion: &Deletion) {
        self.calls.push("deleted");
        self.deleted.extend(deletion.step.target.names.iter().cloned());
    }

    fn failed(&mut self, step: &Step, problem: &Problem) {
        self.calls.push("refused");
        self.refused.push(format!("{}: {}", step.target.names.join(" "), problem.message));
    }
}

fn policy(high: u8, low: u8) -> Policy {
    Policy {
        targets: Targets { used: Some(Thresholds { high, low }), ..Targets::default() },
        min_age: SignedDuration::from_mins(2),
        ..Policy::default()
    }
}

#[track_caller]
fn assert_exact(ran: &Outcome) {
    for deletion in &ran.deletions {
        let predicted = i64::try_from(deletion.step.predicted_bytes()).unwrap();
        let allowed = (predicted / 100).max(i64::try_from(NOISE_BYTES).unwrap());
        let off = (deletion.measured_bytes.unwrap() - predicted).abs();
        assert!(off <= allowed, "{:?}: predicted {predicted}, off by {off}", deletion.step.target.names);
        assert!(!deletion.is_off() && !deletion.is_disturbed());
    }
}

/// The proof right before a deletion reads only the labels of that image.
#[test]
fn labelled_image_is_kept() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let mut policy = policy(75, 74);
    policy.protect.labels = vec![("label".into(), Some(name(0)))];
    let mut told = Told::default();
    let ran = node.run(&policy, &mut told).unwrap();
    assert_eq!(told.deleted.first(), Some(&name(1)), "the oldest after the one that is labelled");
    let kept = ran.plan.kept.iter().find(|kept| kept.rule.as_str() == "protected-label").unwrap();
    assert_eq!(kept.detail, format!("it has the protected label label={}", name(0)));
    assert!(node.names().contains(&name(0)));
}

#[test]
fn one_run_ends_at_low_threshold() {
    for fs in Fs::ALL {
        let Some(node) = Node::new(fs) else { return };
        node.fill(80.0);
        let mut told = Told::default();
        let ran = node.run(&policy(75, 74), &mut told).unwrap();
        let course: Vec<_> = ran
            .deletions
            .iter()
            .map(|deletion| {
                (deletion.measured_bytes, deletion.step.predicted_bytes(), deletion.usage_after_percent)
            })
            .collect();
        assert_eq!(ran.plan.outcome, OutcomeKind::Reached, "{fs:?}: {:?} {course:?}", ran.before);
        assert!(ran.stopped.is_none());
        let used = node.used_percent();
        assert!(used <= 74.0, "{fs:?}: {used}");
        // No more than needed: without the last deletion the threshold would not have been reached.
        let last = ran.deletions.last().unwrap();
        let before_last = ran.deletions.iter().rev().nth(1).unwrap().usage_after_percent.unwrap();
        assert!(before_last > 74.0, "{fs:?}: {before_last} before {:?}", last.step.target.names);
        let expected: Vec<_> = (0..ran.deletions.len()).map(name).collect();
        assert_eq!(told.deleted, expected, "{fs:?}: the longest idle first");
        if fs != Fs::Btrfs {
            assert_exact(&ran);
        }
        assert!(node.names().contains(&name(IN_USE)));
        assert!(ran.deletions.iter().all(|deletion| deletion.step.cause.reason() == Reason::Space));
    }
}

/// Writes of other processes are distinguished from the bytes that a deletion freed, and the run still ends by the
/// figures of the filesystem.
#[test]
fn concurrent_writer_is_noticed() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let log = node.loopfs.path().join("log");
    let mut told = Told {
        before: Some((
            name(0),
            Box::new(|| {
                std::thread::spawn(move || {
                    const PIECE: u64 = 64 << 10;
                    let file = File::create(log).unwrap();
                    for number in 0..(8 << 20) / PIECE {
                        let (flags, offset) = (rustix::fs::FallocateFlags::empty(), number * PIECE);
                        rustix::fs::fallocate(&file, flags, offset, PIECE).unwrap();
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
            }),
        )),
        ..Told::default()
    };
    let ran = node.run(&policy(75, 74), &mut told).unwrap();
    let course: Vec<_> = ran
        .deletions
        .iter()
        .map(|deletion| (deletion.step.predicted_bytes(), deletion.measured_bytes, deletion.beside_bytes))
        .collect();
    assert!(ran.deletions[0].is_disturbed(), "{course:?}");
    assert!(ran.deletions[0].measured_bytes.unwrap() < 6 << 20, "the measured value is kept: {course:?}");
    assert_eq!(ran.plan.outcome, OutcomeKind::Reached, "{course:?}");
    let used: Vec<_> = ran.deletions.iter().map(|deletion| deletion.usage_after_percent.unwrap()).collect();
    let (last, before) = used.split_last().unwrap();
    assert!(*last <= 74.0 && before.iter().all(|used| *used > 74.0), "{used:?}");
}

#[test]
fn dry_run_matches_run() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let policy = policy(75, 74);
    let scan = node.scan();
    let plan = node.plan(&policy, Task::Policy, &mut node.remover(), &scan);
    let planned: Vec<_> = plan.steps.iter().flat_map(|step| step.target.names.clone()).collect();
    assert!(!planned.is_empty());
    assert_eq!(node.names().len(), IMAGES, "a dry run deletes nothing");
    let mut told = Told::default();
    let ran = node.run(&policy, &mut told).unwrap();
    assert_eq!(told.deleted, planned);
    assert_eq!(ran.plan.steps.len(), plan.steps.len());
    for (ran, planned) in ran.plan.steps.iter().zip(&plan.steps) {
        assert_eq!(ran.target.id, planned.target.id);
        assert_eq!((ran.cause, &ran.gains), (planned.cause, &planned.gains));
    }
}

#[test]
fn run_without_need_does_nothing() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let ran = node.run(&policy(75, 70), &mut Told::default()).unwrap();
    assert_eq!((ran.plan.outcome, ran.deletions.len()), (OutcomeKind::NotNeeded, 0));
    assert_eq!(node.names().len(), IMAGES);
}

#[test]
fn answers_of_runtime_are_checked_on_disk() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    node.server.behave(|behaviour| {
        behaviour.removals =
            vec![(name(0), Removal::Lie), (name(1), Removal::Refuse), (name(2), Removal::HalfFail)];
    });
    let mut told = Told::default();
    let ran = node.run(&policy(75, 74), &mut told).unwrap();
    let names = node.names();
    assert!(names.contains(&name(0)) && names.contains(&name(1)), "{names:?}");
    assert!(told.refused.iter().any(|line| line.contains("still exists")), "{:?}", told.refused);
    assert_eq!(told.refused.len(), 2, "{:?}", told.refused);
    assert_eq!(
        told.calls[..8],
        ["begins", "refused", "begins", "spared", "begins", "refused", "begins", "deleted"]
    );
    let kept = ran.plan.kept.iter().find(|kept| kept.detail.contains("in use by a container"));
    assert_eq!(kept.map(|kept| kept.rule.as_str()), Some("in-use"));
    assert!(told.deleted.contains(&name(3)), "the others go: {:?}", told.deleted);
    assert!(!told.deleted.contains(&name(IN_USE)));
    assert_exact(&ran);
}

#[test]
fn container_created_during_run_keeps_image() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let podman = Arc::clone(&node.store);
    // While the first image is deleted, a container of the second is created.
    let act = Box::new(move || drop(podman.pin(&name(1))));
    let mut told = Told { before: Some((name(0), act)), ..Told::default() };
    let ran = node.run(&policy(75, 74), &mut told).unwrap();
    assert!(node.names().contains(&name(1)));
    let kept = ran.plan.kept.iter().find(|kept| kept.detail.contains("since the run began"));
    assert!(kept.is_some_and(|kept| kept.rule.as_str() == "in-use"), "{:?}", ran.plan.kept);
    assert!(told.deleted.contains(&name(2)), "{:?}", told.deleted);
}

#[test]
fn dead_runtime_ends_run_with_deletions_counted() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    node.server.behave(|behaviour| behaviour.removals = vec![(name(2), Removal::DieAfter)]);
    let mut told = Told::default();
    let ran = node.run(&policy(75, 74), &mut told).unwrap();
    // The third one is gone, as the disk shows, although the runtime did not answer.
    assert_eq!(told.deleted, [name(0), name(1), name(2)]);
    assert!(matches!(ran.stopped, Some(Stopped::Unproven(_))), "{:?}", ran.stopped);
    assert!(!ran.plan.problems.is_empty());
    assert_exact(&ran);
}

#[test]
fn incomplete_listings_delete_nothing() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    for listing in [Listing::Error("no"), Listing::WrongIds, Listing::SameId, Listing::EmptyId] {
        node.server.behave(|behaviour| behaviour.images = listing.clone());
        let error = node.run(&policy(75, 74), &mut Told::default()).unwrap_err();
        assert!(!error.message.is_empty(), "{listing:?}");
        assert_eq!(node.names().len(), IMAGES, "{listing:?}");
    }
    node.server.behave(|behaviour| {
        behaviour.images = Listing::Honest;
        behaviour.containers = Listing::LeaveOut(9);
    });
    // A container that the runtime does not list is still on the disk.
    let mut told = Told::default();
    node.run(&policy(75, 40), &mut told).unwrap();
    assert_eq!(node.names(), [name(IN_USE)]);
    assert_eq!(told.deleted.len(), IMAGES - 1);
}

#[test]
fn signal_stops_further_deletions() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    // The flag belongs to the process: each test has its own.
    let act = Box::new(|| stop::flag().store(true, Ordering::Relaxed));
    let mut told = Told { before: Some((name(1), act)), ..Told::default() };
    let scan = node.scan();
    let mut run = Run::new(Gauges::open(&scan.inventory, None), SettlePatience::default(), &mut told);
    let done = node.run_in(&mut run, &mut node.remover(), &policy(75, 74), Task::Policy, &scan);
    let (plan, before) = done.unwrap();
    let ran = run.finish(plan, before);
    assert_eq!(ran.stopped, Some(Stopped::Signal));
    assert_eq!(told.deleted, [name(0), name(1)]);
    assert!(!node.names().contains(&name(1)), "it was finished");
}

#[test]
fn named_images_are_deleted_unless_protected() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let scan = node.scan();
    let ix = |wanted: &str| {
        let mut images = scan.inventory.images.iter();
        images.position(|image| image.names.contains(&wanted.to_owned())).unwrap().into()
    };
    let named = [ix(&name(6)), ix(&name(IN_USE)), ix(&name(2))];
    let policy = policy(99, 98);
    let plan = node.plan(&policy, Task::Named(&named), &mut node.remover(), &scan);
    let mut told = Told::default();
    let ran = node.run_task(&policy, Task::Named(&named), &mut told, &scan).unwrap();
    assert_eq!(told.deleted, [name(6), name(2)], "in the given order, although space is sufficient");
    assert_eq!(node.names().len(), IMAGES - 2);
    for plan in [&plan, &ran.plan] {
        assert!(plan.steps.iter().all(|step| step.cause.reason() == Reason::Request));
        let kept: Vec<_> =
            plan.kept.iter().map(|kept| (kept.target.names.clone(), kept.rule.as_str())).collect();
        assert_eq!(kept, [(vec![name(IN_USE)], "in-use")]);
        assert_eq!(plan.outcome, OutcomeKind::Refused);
    }
    assert_eq!(ran.plan.steps.len(), plan.steps.len());
    for (ran, planned) in ran.plan.steps.iter().zip(&plan.steps) {
        assert_eq!((&ran.target.id, &ran.gains), (&planned.target.id, &planned.gains));
    }
    assert_exact(&ran);
    // Another process deletes the second image while the first is deleted.
    let podman = Arc::clone(&node.store);
    told.before = Some((name(0), Box::new(move || drop(podman.podman(["rmi", "--no-prune", &name(1)])))));
    let left = [ix(&name(0)), ix(&name(1))];
    let ran = node.run_task(&policy, Task::Named(&left), &mut told, &scan).unwrap();
    assert_eq!((ran.plan.outcome, ran.deletions.len(), told.deleted.len()), (OutcomeKind::Reached, 1, 3));
    assert!(ran.plan.kept.is_empty());
}

/// Returns the rule and the detail that keep a named image.
fn why_kept(ran: &Outcome, wanted: &str) -> (&'static str, String) {
    let mut kept = ran.plan.kept.iter();
    let kept = kept.find(|kept| kept.target.names.contains(&wanted.to_owned())).unwrap();
    (kept.rule.as_str(), kept.detail.clone())
}

#[test]
fn image_mounted_as_volume_is_in_use() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let scan = node.scan();
    let images = &scan.inventory.images;
    let by_id = images.iter().find(|image| image.names == [name(0)]).unwrap().id.clone();
    node.server.behave(|behaviour| {
        behaviour.image_volumes =
            [by_id.to_string(), name(1)].map(|reference| (node.container.clone(), reference)).into();
    });
    let all: Vec<_> = (0..images.len()).map(Into::into).collect();
    let mut remover = node.remover();
    node.server.take_calls();
    for _ in 0..2 {
        node.plan(&policy(99, 98), Task::Named(&all), &mut remover, &scan);
    }
    let requests = node.server.take_calls().into_iter().filter(|call| call.starts_with("ContainerStatus"));
    assert_eq!(requests.count(), 1, "mounts never change, so the client requests them once");

    let ran = node.run_task(&policy(99, 98), Task::Named(&all), &mut Told::default(), &scan).unwrap();
    assert_eq!(node.names(), [name(0), name(1), name(IN_USE)]);
    for mounted in [0, 1] {
        let (rule, detail) = why_kept(&ran, &name(mounted));
        assert_eq!(rule, "in-use");
        assert!(detail.contains("app, which has it mounted as a volume"), "{detail}");
    }
}

/// The name now belongs to another image: the mounted image has none.
#[test]
fn volume_of_moved_name_keeps_unnamed_image() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let scan = node.scan();
    node.store.podman(["tag", &name(3), &name(1)]);
    node.server.behave(|behaviour| behaviour.image_volumes = vec![(node.container.clone(), name(1))]);
    let images = &scan.inventory.images;
    let all: Vec<_> = (0..images.len()).map(Into::into).collect();
    let ran = node.run_task(&policy(99, 98), Task::Named(&all), &mut Told::default(), &scan).unwrap();
    let left = node.scan().inventory.images.into_iter();
    let mut left: Vec<_> = left
        .map(|image| images.iter().find(|other| other.id == image.id).unwrap().names[0].clone())
        .collect();
    left.sort();
    assert_eq!(left, [name(1), name(3), name(IN_USE)]);
    assert!(why_kept(&ran, &name(1)).1.contains("which perhaps has it mounted"));
}

#[test]
fn unreadable_container_status_deletes_nothing() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    node.server.behave(|behaviour| behaviour.statuses = Answers::Error("no"));
    let error = node.run(&policy(75, 74), &mut Told::default()).unwrap_err();
    assert!(error.message.contains("ContainerStatus"), "{error}");
    assert_eq!(node.names().len(), IMAGES);
    node.server.behave(|behaviour| behaviour.statuses = Answers::Gone);
    let ran = node.run(&policy(75, 74), &mut Told::default()).unwrap();
    assert_eq!(ran.plan.outcome, OutcomeKind::Reached);
}
