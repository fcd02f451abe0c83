//! What happens between the last look and the proof that the image is gone.

use layersweep::gc::plan::Gain;
use layersweep::gc::run::hands::{Blind, Extra, Hands, Listing, Removed};
use layersweep::gc::run::through_cri::ThroughCri;
use layersweep::gc::run::{Stopped, Task};
use layersweep::inventory::refs::Refs;
use layersweep::inventory::{ImageIx, Inventory};

use super::support::loopfs::Fs;
use super::{IMAGES, Node, Told, name, policy};

/// The runtime's hands, to which something happens at the first removal.
struct Disturbed<'a> {
    hands: ThroughCri,
    before: Box<dyn FnMut() + 'a>,
    after: Box<dyn FnMut(Removed) -> Removed + 'a>,
}

impl<'a> Disturbed<'a> {
    fn new(node: &Node) -> Self {
        Self { hands: node.hands(), before: Box::new(|| {}), after: Box::new(|removed| removed) }
    }

    fn run(&mut self, node: &Node, told: &mut Told) -> layersweep::gc::run::Ran {
        node.run_by(self, &policy(1, 0), Task::Policy, told, &node.survey()).unwrap()
    }
}

impl Hands for Disturbed<'_> {
    fn name(&self) -> &'static str {
        self.hands.name()
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Extra>, Blind> {
        self.hands.look(inventory)
    }

    fn remove(&mut self, inventory: &Inventory, image: ImageIx) -> Removed {
        (self.before)();
        let removed = self.hands.remove(inventory, image);
        (self.after)(removed)
    }

    fn listing(&self) -> Option<&Listing> {
        self.hands.listing()
    }

    fn byproduct(&self, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        self.hands.byproduct(inventory, refs)
    }
}

/// That the runtime is not there is no reason to leave the image alone later on.
#[test]
fn a_runtime_that_has_gone_ends_the_run_and_is_no_failure_of_the_image() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let away = node.server.socket().with_extension("away");
    let mut hands = Disturbed::new(&node);
    hands.before = Box::new(|| std::fs::rename(node.server.socket(), &away).unwrap());
    let mut told = Told::default();
    let ran = hands.run(&node, &mut told);
    assert_eq!(told.calls, ["begins", "spared"], "{:?}", told.refused);
    let Some(Stopped::Blind(why)) = &ran.stopped else { panic!("{:?}", ran.stopped) };
    assert!(why.contains("RemoveImage"), "{why}");
    std::fs::rename(&away, node.server.socket()).unwrap();
    assert_eq!(node.names().len(), IMAGES);
}

/// It has most likely happened, so it has to be told.
#[test]
fn a_removal_after_which_the_store_cannot_be_read_is_told() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let root = node.store.root().to_path_buf();
    let away = root.with_extension("away");
    let mut hands = Disturbed::new(&node);
    hands.after = Box::new(|removed| {
        std::fs::rename(&root, &away).unwrap();
        removed
    });
    let mut told = Told::default();
    let ran = hands.run(&node, &mut told);
    std::fs::rename(&away, &root).unwrap();
    assert_eq!(told.calls, ["begins", "unproven"], "{:?}", told.refused);
    assert!(matches!(ran.stopped, Some(Stopped::Blind(_))), "{:?}", ran.stopped);
    assert!(!node.names().contains(&name(0)), "it was removed");
}

/// What somebody else has removed is neither ours nor refused.
#[test]
fn an_image_that_the_runtime_no_longer_finds_is_gone() {
    let Some(node) = Node::new(Fs::Ext4) else { return };
    let mut first = true;
    let mut hands = Disturbed::new(&node);
    hands.after = Box::new(|removed| match std::mem::take(&mut first) {
        true => Removed::NotFound("no such image".into()),
        false => removed,
    });
    let mut told = Told::default();
    let ran = hands.run(&node, &mut told);
    assert_eq!(told.calls[..5], ["begins", "spared", "begins", "gone", "deleted"]);
    assert!(told.refused.is_empty() && ran.plan.problems.is_empty(), "{:?}", told.refused);
    assert_eq!(ran.deletions.len(), IMAGES - 2, "all but the first and the one in use");
}
