//! Events during the scan, and between the preparation of a deletion and the proof that the image is gone.

use jiff::Timestamp;
use layersweep::execute::cri::CriRemover;
use layersweep::execute::kubelet;
use layersweep::execute::measure::SettlePatience;
use layersweep::execute::{
    FactsOf, Gauges, ImageFacts, PolicyContext, PreconditionError, Remover, Run, images,
};
use layersweep::history::pins::Pins;
use layersweep::model::deletion::plan::{Gain, Target};
use layersweep::model::refs::Refs;
use layersweep::model::{Answer, ImageIx, Inventory, Outcome, RemovalResult, Step, Stopped};
use layersweep::policy::kubelet::Listing;
use layersweep::policy::{Facts, Policy, Task, compare};
use layersweep::stores::ScanRequest;
use std::sync::Arc;

use super::support::archive::{ImageSpec, LayerSpec};
use super::support::loopfs::{Fs, MIB};
use super::{ByName, IMAGES, IN_USE, Node, Told, name, policy};

/// A runtime to which something happens at the first removal.
struct Disturbed<'a> {
    remover: CriRemover,
    before: Box<dyn FnMut() + 'a>,
    after: Box<dyn FnMut(RemovalResult) -> RemovalResult + 'a>,
}

impl<'a> Disturbed<'a> {
    fn new(node: &Node) -> Self {
        Self { remover: node.remover(), before: Box::new(|| {}), after: Box::new(|removed| removed) }
    }

    fn run(&mut self, node: &Node, told: &mut Told) -> Outcome {
        node.run_by(self, &policy(1, 0), Task::Policy, told, &node.scan()).unwrap()
    }
}

impl Remover for Disturbed<'_> {
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError> {
        self.remover.look(inventory)
    }

    fn ask(&mut self, image: &Target) {
        self.remover.ask(image);
    }

    fn look_at(&mut self, inventory: &Inventory, image_ix: ImageIx) -> Result<Vec<Facts>, PreconditionError> {
        self.remover.look_at(inventory, image_ix)
    }

    fn remove(&mut self, step: &Step, inventory: &Inventory, image: ImageIx) -> RemovalResult {
        (self.before)();
        let removed = self.remover.remove(step, inventory, image);
        (self.after)(removed)
    }

    fn listing(&self) -> Option<&Listing> {
        self.remover.listing()
    }

    fn byproduct(&self, target: &Target, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        self.remover.byproduct(target, inventory, refs)
    }
}

/// A missing runtime is not a reason to back off from the image.
#[test]
fn missing_runtime_is_not_failure_of_image() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let away = node.server.socket().with_extension("away");
    let mut remover = Disturbed::new(&node);
    remover.before = Box::new(|| std::fs::rename(node.server.socket(), &away).unwrap());
    let mut told = Told::default();
    let ran = remover.run(&node, &mut told);
    assert_eq!(told.calls, ["begins", "spared"], "{:?}", told.refused);
    let Some(Stopped::Unproven(why)) = &ran.stopped else { panic!("{:?}", ran.stopped) };
    assert!(why.message.contains("RemoveImage"), "{why}");
    std::fs::rename(&away, node.server.socket()).unwrap();
    assert_eq!(node.names().len(), IMAGES);
}

/// The removal has most likely happened, so it must be reported.
#[test]
fn removal_before_unreadable_store_is_reported() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let root = node.store.root().to_path_buf();
    let away = root.with_extension("away");
    let mut remover = Disturbed::new(&node);
    remover.after = Box::new(|removed| {
        std::fs::rename(&root, &away).unwrap();
        removed
    });
    let mut told = Told::default();
    let ran = remover.run(&node, &mut told);
    std::fs::rename(&away, &root).unwrap();
    assert_eq!(told.calls, ["begins", "unproven"], "{:?}", told.refused);
    assert!(matches!(ran.stopped, Some(Stopped::Unproven(_))), "{:?}", ran.stopped);
    assert!(!node.names().contains(&name(0)), "it was removed");
}

/// An image that another process removed is neither deleted by layersweep nor refused.
#[test]
fn image_unknown_to_runtime_is_gone() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let mut first = true;
    let mut remover = Disturbed::new(&node);
    remover.after =
        Box::new(|removed| if std::mem::take(&mut first) { Answer::AlreadyGone.into() } else { removed });
    let mut told = Told::default();
    let ran = remover.run(&node, &mut told);
    assert_eq!(told.calls[..4], ["begins", "spared", "begins", "deleted"]);
    assert!(told.refused.is_empty() && ran.plan.problems.is_empty(), "{:?}", told.refused);
    assert_eq!(ran.deletions.len(), IMAGES - 2, "all but the first and the one in use");
}

/// Preparing takes time; the proof follows it.
#[test]
fn container_created_before_proof_is_seen() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let podman = Arc::clone(&node.store);
    let act = Box::new(move || drop(podman.pin(&name(0))));
    let mut told = Told { before: Some((name(0), act)), ..Told::default() };
    let ran = node.run(&policy(1, 0), &mut told).unwrap();
    assert!(node.names().contains(&name(0)));
    assert_eq!(told.calls[..3], ["begins", "spared", "begins"], "{:?}", told.refused);
    let kept = ran.plan.kept.iter().find(|kept| kept.detail.contains("since the run began"));
    assert!(kept.is_some_and(|kept| kept.rule.as_str() == "in-use"), "{:?}", ran.plan.kept);
}

/// A context that clears the calls to the runtime before the policy facts are read.
struct Marking<'a> {
    node: &'a Node,
    by_name: ByName,
}

impl PolicyContext for Marking<'_> {
    fn scan_request(&self) -> &ScanRequest {
        self.by_name.scan_request()
    }

    fn policy(&self) -> &Policy {
        self.by_name.policy()
    }

    fn read_facts(&self, pins: Option<Pins>) -> FactsOf<'_> {
        self.node.server.take_calls();
        self.by_name.read_facts(pins)
    }

    fn now(&self) -> Timestamp {
        self.by_name.now()
    }

    fn scanned(&self) -> Timestamp {
        self.by_name.scanned()
    }
}

#[test]
fn nothing_is_read_between_listing_and_removal() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let (policy, scan) = (policy(99, 98), node.scan());
    let oldest = scan.inventory.images.iter().position(|image| image.names == [name(0)]).unwrap();
    let mut told = Told::default();
    let mut run = Run::new(Gauges::open(&scan.inventory, None), SettlePatience::default(), &mut told);
    let context = Marking { node: &node, by_name: ByName::new(&node, &policy) };
    let task = Task::Named(&[oldest.into()]);
    let plan = images::run(&mut run, &scan, &context, task, &mut node.remover(), None).unwrap();
    assert_eq!(run.finish(plan, Vec::new()).deletions.len(), 1);
    let calls = node.server.take_calls();
    let [listed, removed] =
        ["ImageStatus", "RemoveImage"].map(|name| calls.iter().position(|call| call.starts_with(name)));
    assert!(listed.is_some() && listed < removed, "{calls:?}");
}

/// The scan is some time old when the runtime is asked: an image and a container were created, and an image was
/// deleted.
#[test]
fn changes_during_scan_do_not_stop_run() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    node.fill(80.0);
    let scan = node.scan();
    node.store.load(&[ImageSpec {
        names: vec!["reg.local/young:1".into()],
        layers: vec![LayerSpec { files: vec![MIB], ..LayerSpec::new("young") }],
        label: "young".into(),
    }]);
    let podman = node.server.podman();
    podman.container(&podman.sandbox("pod-2", &name(IN_USE)), "pod-2", "web", &name(1));
    node.store.podman(["rmi", "--no-prune", &name(0)]);

    let policy = policy(75, 74);
    let plan = node.plan(&policy, Task::Policy, &mut node.remover(), &scan);
    let rule = |wanted: &str| {
        let mut kept = plan.kept.iter();
        let kept = kept.find(|kept| kept.target.names.contains(&wanted.to_owned())).unwrap();
        (kept.rule.as_str(), kept.detail.as_str())
    };
    assert_eq!(rule(&name(0)), ("out-of-reach", "it was deleted during the scan"));
    let (kept, detail) = rule(&name(1));
    assert!(kept == "in-use" && detail.contains("container"), "{kept}: {detail}");
    let settings = compare::kubelet_policy(&policy).unwrap();
    let context = ByName::new(&node, &policy);
    let facts = ImageFacts::now(&scan, &context, &mut node.remover()).unwrap();
    let both = images::side_by_side(&scan, &context, &facts, Some(settings)).unwrap();
    assert_eq!(both.policies[1].deleted, plan.steps.len());
    let (dry, ..) = kubelet::plan(&[], &scan, &context, &facts, settings).unwrap();
    assert_eq!(dry.problems, []);

    let mut told = Told::default();
    node.run_task(&policy, Task::Policy, &mut told, &scan).unwrap();
    assert_eq!(told.deleted.first(), Some(&name(2)), "{:?}", told.refused);
    let names = node.names();
    assert!(names.contains(&name(1)) && names.contains(&"reg.local/young:1".into()), "{names:?}");
}
