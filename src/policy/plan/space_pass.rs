//! The space pass over one filesystem.
//!
//! Candidates are checked in the order of the policy. One whose deletion would free (almost) nothing is passed
//! over, usually because other images share its layers. Several passed-over images together may contain a lot,
//! however. Example: `web:1` and `web:2` consist of the same 500 MiB of layers. Deleting one of them frees nothing,
//! so each is passed over at its turn. After the second, only passed-over images reach these layers, and both are
//! queued as a group. A group is formed at the turn of its last member, so that no image is deleted before its turn
//! because of another one.
//!
//! After all candidates have been checked, the remaining small gains are added up. If their sum is sufficient, the
//! images that have them are deleted; otherwise they are kept, since they would not help.

use std::collections::VecDeque;

use crate::model::refs::{Live, Root};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx, Inventory, NodeIx, Size};
use crate::policy::input::Input;
use crate::policy::space::helps;

/// Upper limit of the smallest gain for which an image is deleted. Below it, that gain is a thousandth of the wanted
/// bytes.
const MAX_WORTH_BYTES: u64 = 1 << 20;
/// The same limit for inodes.
const MAX_WORTH_INODES: u64 = 32;

#[derive(Debug)]
pub(crate) struct SpacePass {
    filesystem: FilesystemIx,
    /// Smallest gain for which an image is deleted.
    worth: BytesAndInodes,
    /// Bytes and inodes that are still wanted, as of the last measurement.
    wanted: BytesAndInodes,
    order: Vec<ImageIx>,
    /// By image: its position in the order.
    rank: Vec<usize>,
    /// Position of the next candidate in the order.
    next: usize,
    passed: Vec<bool>,
    /// By node: number of passed-over images that reach it.
    passed_holders: Vec<u32>,
    /// Members of a group that are still to be deleted.
    group: VecDeque<ImageIx>,
    /// Images that may have nodes which now only passed-over images reach.
    touched: Vec<ImageIx>,
    /// All candidates were checked, and the small gains were added up.
    added_up: bool,
    /// Inodes that all candidates free together; `None` while no inodes are wanted.
    deletable_inodes: Option<u64>,
}

impl SpacePass {
    pub(crate) fn new(filesystem: FilesystemIx, inventory: &Inventory, wanted: BytesAndInodes) -> Self {
        Self {
            filesystem,
            worth: BytesAndInodes {
                bytes: (wanted.bytes / 1000).clamp(1, MAX_WORTH_BYTES),
                inodes: (wanted.inodes / 1000).clamp(1, MAX_WORTH_INODES),
            },
            wanted,
            order: Vec::new(),
            rank: vec![usize::MAX; inventory.images.len()],
            next: 0,
            passed: vec![false; inventory.images.len()],
            passed_holders: vec![0; inventory.nodes.len()],
            group: VecDeque::new(),
            touched: Vec::new(),
            added_up: false,
            deletable_inodes: None,
        }
    }

    /// Sets the order of the candidates, before the first one.
    pub(crate) fn follow(&mut self, order: Vec<ImageIx>) {
        for (position, image) in order.iter().enumerate() {
            self.rank[image.get()] = position;
        }
        self.order = order;
    }

    pub(crate) fn has_order(&self) -> bool {
        !self.order.is_empty()
    }

    pub(crate) fn filesystem(&self) -> FilesystemIx {
        self.filesystem
    }

    /// Returns the inodes that the candidates free together when inodes are first wanted, if deleting the candidates
    /// does not help against the shortage.
    pub(crate) fn few_inodes(
        &mut self,
        input: &Input<'_>,
        live: &Live<'_>,
        candidates: impl Iterator<Item = ImageIx>,
        wanted: u64,
    ) -> Option<u64> {
        if wanted > 0 && self.deletable_inodes.is_none() {
            self.deletable_inodes = Some(self.inodes_of(input, live, candidates));
        }
        self.deletable_inodes.filter(|deletable| !helps(*deletable, wanted))
    }

    fn inodes_of(
        &self,
        input: &Input<'_>,
        live: &Live<'_>,
        candidates: impl Iterator<Item = ImageIx>,
    ) -> u64 {
        let mut holders = vec![0_u32; self.passed_holders.len()];
        let mut inodes: u64 = 0;
        for node in candidates.flat_map(|image| self.nodes(input, image)) {
            let count = &mut holders[node.get()];
            *count += 1;
            if *count == live.holders(node) {
                inodes = inodes.saturating_add(input.inventory[node].size.inodes);
            }
        }
        inodes
    }

    pub(crate) fn passed_over(&self) -> impl Iterator<Item = ImageIx> + '_ {
        let passed = self.passed.iter().enumerate().filter(|(_, passed)| **passed);
        passed.map(|(ix, _)| ix.into())
    }

    /// Returns the next image to delete while this much is wanted, and the number of images left in its group.
    pub(crate) fn next(
        &mut self,
        input: &Input<'_>,
        live: &Live<'_>,
        is_open: impl Fn(ImageIx) -> bool,
        wanted: BytesAndInodes,
    ) -> Option<(ImageIx, Option<usize>)> {
        self.wanted = wanted;
        loop {
            if let Some(image) = self.group.pop_front() {
                let members = self.group.len() + 1;
                return Some((image, (members > 1).then_some(members)));
            }
            let Some(image) = self.order.get(self.next).copied() else {
                if self.added_up {
                    return None;
                }
                self.added_up = true;
                self.add_up(input, live);
                continue;
            };
            self.next += 1;
            if !is_open(image) || self.nodes(input, image).next().is_none() {
                continue;
            }
            if self.is_worth(gain_on(input, live, image, self.filesystem)) {
                return Some((image, None));
            }
            self.pass_over(input, image);
            self.touched.push(image);
            self.form_group(input, live);
        }
    }

    /// Records the outcome for the image that was handed out.
    pub(crate) fn answered(&mut self, input: &Input<'_>, live: &Live<'_>, image: ImageIx, is_deleted: bool) {
        self.take_back(input, image);
        if is_deleted {
            self.touched.push(image);
        } else {
            // Its nodes are kept, so the other members of its group are judged again.
            self.touched.extend(self.group.drain(..));
            self.added_up = false;
        }
        if self.group.is_empty() {
            self.form_group(input, live);
        }
    }

    fn nodes<'b>(&self, input: &'b Input<'_>, image: ImageIx) -> impl Iterator<Item = NodeIx> + use<'b> {
        let filesystem = self.filesystem;
        let nodes = input.refs.reach(Root::Image(image)).iter().copied();
        nodes.filter(move |node| input.inventory[*node].filesystem == filesystem)
    }

    fn is_worth(&self, gain: BytesAndInodes) -> bool {
        (self.wanted.bytes > 0 && gain.bytes >= self.worth.bytes)
            || (self.wanted.inodes > 0 && gain.inodes >= self.worth.inodes)
    }

    fn pass_over(&mut self, input: &Input<'_>, image: ImageIx) {
        if !std::mem::replace(&mut self.passed[image.get()], true) {
            for node in self.nodes(input, image) {
                self.passed_holders[node.get()] += 1;
            }
        }
    }

    fn take_back(&mut self, input: &Input<'_>, image: ImageIx) {
        if std::mem::replace(&mut self.passed[image.get()], false) {
            for node in self.nodes(input, image) {
                self.passed_holders[node.get()] -= 1;
            }
        }
    }

    /// Returns whether a node still exists, and only passed-over images reach it.
    fn is_left_to_passed(&self, live: &Live<'_>, node: NodeIx) -> bool {
        let holders = live.holders(node);
        holders > 0 && holders == self.passed_holders[node.get()]
    }

    /// Looks for enough bytes among the nodes of the touched images that only passed-over images reach. If there
    /// are enough, queues those images as a group.
    fn form_group(&mut self, input: &Input<'_>, live: &Live<'_>) {
        while let Some(image) = self.touched.pop() {
            let mut left: Vec<_> =
                self.nodes(input, image).filter(|node| self.is_left_to_passed(live, *node)).collect();
            // Nodes with few holders first, which gives the smallest sufficient group.
            left.sort_unstable_by_key(|node| (live.holders(*node), *node));
            let alone = left.iter().position(|node| self.is_worth(sum(input, &[*node])));
            let seeds = match alone {
                Some(alone) => &left[alone..=alone],
                None => match (2..=left.len()).find(|count| self.is_worth(sum(input, &left[..*count]))) {
                    Some(count) => &left[..count],
                    None => continue,
                },
            };
            let mut members: Vec<_> = seeds.iter().flat_map(|node| self.holders(input, *node)).collect();
            members.sort_unstable_by_key(|member| self.rank[member.get()]);
            members.dedup();
            self.group.extend(members);
            // Check it again after this group has been deleted.
            self.touched.push(image);
            return;
        }
    }

    fn holders<'b>(&'b self, input: &'b Input<'_>, node: NodeIx) -> impl Iterator<Item = ImageIx> + 'b {
        input.refs.reached_by(node).filter_map(|root| match root {
            Root::Image(ix) if self.passed[ix.get()] => Some(ix),
            _ => None,
        })
    }

    /// Deletes the images with small gains if all their gains together are sufficient. By now, no single gain is
    /// large enough.
    fn add_up(&mut self, input: &Input<'_>, live: &Live<'_>) {
        let wanted = self.wanted;
        let mut useful = Vec::new();
        let mut sum = Size::default();
        let mut counted = vec![false; self.passed_holders.len()];
        for image in self.order.iter().copied().filter(|image| self.passed[image.get()]) {
            let mut has_gain = false;
            for node in self.nodes(input, image).filter(|node| self.is_left_to_passed(live, *node)) {
                let size = input.inventory[node].size;
                has_gain |=
                    (size.frees_bytes > 0 && wanted.bytes > 0) || (size.inodes > 0 && wanted.inodes > 0);
                if !std::mem::replace(&mut counted[node.get()], true) {
                    sum += size;
                }
            }
            if has_gain {
                useful.push(image);
            }
        }
        if BytesAndInodes::from(sum).covers(wanted) {
            self.group.extend(useful);
        }
    }
}

fn sum(input: &Input<'_>, nodes: &[NodeIx]) -> BytesAndInodes {
    nodes.iter().map(|node| input.inventory[*node].size).sum::<Size>().into()
}

/// Returns the bytes and inodes that are freed on a filesystem if an image is deleted next.
pub(super) fn gain_on(
    input: &Input<'_>,
    live: &Live<'_>,
    image: ImageIx,
    filesystem: FilesystemIx,
) -> BytesAndInodes {
    let nodes = live.last_held(Root::Image(image)).map(|node| &input.inventory[node]);
    nodes.filter(|node| node.filesystem == filesystem).map(|node| node.size).sum::<Size>().into()
}
