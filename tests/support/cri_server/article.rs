//! The article's node as a real store: the images, containers and ages of the scenario that tests the planner
//! ([`Scenario::article`]), loaded by podman on its own filesystem.

use std::fs::File;

use crate::support::scenario::Scenario;
use jiff::Timestamp;
use layersweep::model::refs::Refs;
use layersweep::policy::Policy;
use layersweep::policy::compare::{Comparison, compare, kubelet_policy};
use layersweep::policy::input::Input;
use layersweep::policy::space::{Targets, Thresholds};
use rusqlite::Connection;

use super::gc_node::GcNode;
use crate::support::archive::{ImageSpec, LayerSpec};
use crate::support::loopfs::{Fs, MIB};

/// Space that mkfs.xfs reserves for its log.
const LOG: u64 = 64 * MIB;

/// The node and the scenario that it was made from.
pub struct ArticleNode {
    pub node: GcNode,
    pub made: Scenario,
}

impl ArticleNode {
    /// Creates the node with all sizes divided by `divisor`; those of the scenario are one hundredth of the article's.
    /// Returns `None` if the machine lacks a program.
    pub fn new(divisor: u64) -> Option<Self> {
        let made = Scenario::article();
        let images: Vec<_> = (0..made.images.len()).map(|image_ix| spec(&made, image_ix, divisor)).collect();
        let node = GcNode::with_images(Fs::Xfs, made.capacity_bytes / divisor + LOG, &[], &images)?;
        let podman = node.server.podman();
        let sandbox = podman.sandbox("pod", &made.images[made.containers[0]].name);
        for (number, image) in made.containers.iter().enumerate() {
            podman.container(&sandbox, "pod", &format!("app-{number:02}"), &made.images[*image].name);
        }
        let article = Self { node, made };
        article.node.run(&["scan", "-q"]).expect_code(0);
        article.remember();
        article.fill();
        Some(article)
    }

    /// Returns the plans of both collectors that the planner computes from the scenario alone.
    pub fn model(&self, high: u8, low: u8) -> Comparison {
        let inventory = self.made.inventory();
        let refs = Refs::new(&inventory);
        let facts = self.made.facts();
        let targets = Targets { used: Some(Thresholds { high, low }), ..Targets::default() };
        let policy = Policy { targets, ..Policy::default() };
        let now = self.made.now;
        let input = Input {
            inventory: &inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &policy,
            now,
            scanned: now,
        };
        let listing = Scenario::listing(&inventory);
        let theirs = kubelet_policy(&policy).expect("marks");
        compare(input, &[Ok(self.made.space())], Some(&listing), Some(theirs)).expect("numbers")
    }

    /// Writes the scenario's ages to the records, moved to the present. Images in use keep their last use.
    fn remember(&self) {
        let ago = Timestamp::now() - self.made.now;
        let mut database = Connection::open(self.node.state.join("layersweep.db")).expect("the database");
        let transaction = database.transaction().expect("a transaction");
        for image in &self.made.images {
            let ages = &image.ages;
            let changed = transaction
                .execute(
                    "UPDATE images SET first_detected = ?1, proven_since = NULL,
                            last_used = iif(in_use, last_used, ?2) WHERE names LIKE ?3",
                    rusqlite::params![
                        (ages.first_detected + ago).as_microsecond(),
                        ages.last_used.map(|time| (time + ago).as_microsecond()),
                        format!("%\"{}\"%", image.name)
                    ],
                )
                .expect("changing the records");
            assert_eq!(changed, 1, "{}", image.name);
        }
        transaction.commit().expect("committing");
    }

    /// Fills the disk with other files until the available share is that of the scenario.
    pub fn fill(&self) {
        let available = self.made.available_bytes;
        let node = &self.node;
        node.loopfs.sync();
        let sizes = rustix::fs::statvfs(node.loopfs.path()).expect("statvfs");
        let block = sizes.f_frsize;
        let aim = u128::from(sizes.f_blocks) * u128::from(available) / u128::from(self.made.capacity_bytes);
        let rest = u64::try_from(u128::from(sizes.f_bavail) - aim).expect("a size");
        let file = File::options().create(true).append(true).open(node.loopfs.path().join("reserve"));
        let file = file.expect("a file");
        let length = file.metadata().expect("its length").len();
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, length, rest * block).expect("room");
        node.loopfs.sync();
    }
}

fn spec(made: &Scenario, image_ix: usize, divisor: u64) -> ImageSpec {
    let image = &made.images[image_ix];
    let mut layers = Vec::new();
    let mut layer = Some(image.top);
    while let Some(number) = layer {
        let (parent, bytes) = made.layers[number];
        let name = format!("layer-{number}");
        layers.push(LayerSpec { plain: vec![bytes / divisor], ..LayerSpec::new(&name) });
        layer = parent;
    }
    layers.reverse();
    ImageSpec { names: vec![image.name.clone()], layers, label: image.name.clone() }
}
