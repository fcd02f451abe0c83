//! The space pass over one filesystem.
//!
//! Candidates are checked in order. One that would free (almost) nothing is passed over. When bytes are
//! held by passed-over images alone, all images that hold them are deleted together, at the turn of the
//! last of them, so that no image is deleted before its turn for another one.

use std::collections::VecDeque;

use crate::model::refs::{Live, Root};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx, Inventory, NodeIx, Size};
use crate::policy::input::Input;

/// A deletion that frees less than a thousandth of what is wanted, and less than this, is passed over.
const WORTH_BYTES: u64 = 1 << 20;
/// The same for inodes.
const WORTH_INODES: u64 = 32;

#[derive(Debug)]
pub(crate) struct SpacePass {
    filesystem: FilesystemIx,
    /// The least gain for which an image is deleted.
    worth: BytesAndInodes,
    /// What is still wanted, as of the last measurement.
    wanted: BytesAndInodes,
    /// The position in the order.
    next: usize,
    passed: Vec<bool>,
    /// How many passed-over images reach each node.
    passed_holders: Vec<u32>,
    /// Members of a group that are still to go.
    group: VecDeque<ImageIx>,
    /// Images whose nodes may have come to be held by passed-over images alone.
    touched: Vec<ImageIx>,
    /// All candidates were checked, and the small gains have been added up.
    added_up: bool,
}

impl SpacePass {
    pub(crate) fn new(filesystem: FilesystemIx, inventory: &Inventory, wanted: BytesAndInodes) -> Self {
        Self {
            filesystem,
            worth: BytesAndInodes {
                bytes: (wanted.bytes / 1000).clamp(1, WORTH_BYTES),
                inodes: (wanted.inodes / 1000).clamp(1, WORTH_INODES),
            },
            wanted,
            next: 0,
            passed: vec![false; inventory.images.len()],
            passed_holders: vec![0; inventory.nodes.len()],
            group: VecDeque::new(),
            touched: Vec::new(),
            added_up: false,
        }
    }

    pub(crate) fn filesystem(&self) -> FilesystemIx {
        self.filesystem
    }

    /// The images that were passed over, and are still there.
    pub(crate) fn passed_over(&self) -> impl Iterator<Item = ImageIx> + '_ {
        let passed = self.passed.iter().enumerate().filter(|(_, passed)| **passed);
        passed.map(|(at, _)| at.into())
    }

    /// The next image to delete while this much is wanted, and how many are left of its group.
    pub(crate) fn next(
        &mut self,
        input: &Input<'_>,
        live: &Live<'_>,
        (order, rank): (&[ImageIx], &[usize]),
        open: impl Fn(ImageIx) -> bool,
        wanted: BytesAndInodes,
    ) -> Option<(ImageIx, Option<usize>)> {
        self.wanted = wanted;
        loop {
            if let Some(at) = self.group.pop_front() {
                let members = self.group.len() + 1;
                return Some((at, (members > 1).then_some(members)));
            }
            let Some(at) = order.get(self.next).copied() else {
                if self.added_up {
                    return None;
                }
                self.added_up = true;
                self.add_up(input, live, order);
                continue;
            };
            self.next += 1;
            if !open(at) || self.nodes(input, at).next().is_none() {
                continue;
            }
            if self.is_worth(gain_on(input, live, at, self.filesystem)) {
                return Some((at, None));
            }
            self.pass_over(input, at);
            self.touched.push(at);
            self.form_group(input, live, rank);
        }
    }

    /// Records the outcome for the image that was handed out.
    pub(crate) fn answered(
        &mut self,
        input: &Input<'_>,
        live: &Live<'_>,
        rank: &[usize],
        at: ImageIx,
        went: bool,
    ) {
        self.take_back(input, at);
        if went {
            self.touched.push(at);
        } else {
            // What it holds stays, so those that were to go with it are judged anew.
            self.touched.extend(self.group.drain(..));
            self.added_up = false;
        }
        if self.group.is_empty() {
            self.form_group(input, live, rank);
        }
    }

    /// The nodes of an image on this filesystem.
    fn nodes<'b>(&self, input: &'b Input<'_>, at: ImageIx) -> impl Iterator<Item = NodeIx> + use<'b> {
        let filesystem = self.filesystem;
        let nodes = input.refs.reach(Root::Image(at)).iter().copied();
        nodes.filter(move |node| input.inventory[*node].filesystem == filesystem)
    }

    fn is_worth(&self, gain: BytesAndInodes) -> bool {
        (self.wanted.bytes > 0 && gain.bytes >= self.worth.bytes)
            || (self.wanted.inodes > 0 && gain.inodes >= self.worth.inodes)
    }

    fn pass_over(&mut self, input: &Input<'_>, at: ImageIx) {
        if !std::mem::replace(&mut self.passed[at.get()], true) {
            for node in self.nodes(input, at) {
                self.passed_holders[node.get()] += 1;
            }
        }
    }

    fn take_back(&mut self, input: &Input<'_>, at: ImageIx) {
        if std::mem::replace(&mut self.passed[at.get()], false) {
            for node in self.nodes(input, at) {
                self.passed_holders[node.get()] -= 1;
            }
        }
    }

    /// A node that is still there, and would go with passed-over images.
    fn is_left_to_passed(&self, live: &Live<'_>, node: NodeIx) -> bool {
        let holders = live.holders(node);
        holders > 0 && holders == self.passed_holders[node.get()]
    }

    /// Checks whether the touched images leave enough bytes that only passed-over images hold, and if
    /// so, queues those images.
    fn form_group(&mut self, input: &Input<'_>, live: &Live<'_>, rank: &[usize]) {
        while let Some(at) = self.touched.pop() {
            let mut left: Vec<_> =
                self.nodes(input, at).filter(|node| self.is_left_to_passed(live, *node)).collect();
            // Few holders first: the smallest group that is worth it.
            left.sort_unstable_by_key(|node| (live.holders(*node), *node));
            let worth = |nodes: &[NodeIx]| self.is_worth(sum(input, nodes));
            let alone = left.iter().position(|node| worth(&[*node]));
            let together = || (2..=left.len()).find(|count| worth(&left[..*count]));
            let seeds = match alone {
                Some(alone) => &left[alone..=alone],
                None => match together() {
                    Some(count) => &left[..count],
                    None => continue,
                },
            };
            let mut members: Vec<_> = seeds.iter().flat_map(|node| self.holders(input, *node)).collect();
            members.sort_unstable_by_key(|at| rank[at.get()]);
            members.dedup();
            self.group.extend(members);
            // Looked at again when this group has gone.
            self.touched.push(at);
            return;
        }
    }

    fn holders<'b>(&'b self, input: &'b Input<'_>, node: NodeIx) -> impl Iterator<Item = ImageIx> + 'b {
        input.refs.reached_by(node).filter_map(|root| match root {
            Root::Image(at) if self.passed[at.get()] => Some(at),
            _ => None,
        })
    }

    /// No single gain is worth it any more: if all small gains together suffice, the images that hold
    /// them are deleted.
    fn add_up(&mut self, input: &Input<'_>, live: &Live<'_>, order: &[ImageIx]) {
        let wanted = self.wanted;
        let mut useful = Vec::new();
        let mut sum = Size::default();
        let mut counted = vec![false; self.passed_holders.len()];
        for at in order.iter().copied().filter(|at| self.passed[at.get()]) {
            let mut gives = false;
            for node in self.nodes(input, at).filter(|node| self.is_left_to_passed(live, *node)) {
                let size = input.inventory[node].size;
                gives |= (size.frees_bytes > 0 && wanted.bytes > 0) || (size.inodes > 0 && wanted.inodes > 0);
                if !std::mem::replace(&mut counted[node.get()], true) {
                    sum += size;
                }
            }
            if gives {
                useful.push(at);
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

/// What is freed on a filesystem if an image is deleted next.
pub(super) fn gain_on(
    input: &Input<'_>,
    live: &Live<'_>,
    at: ImageIx,
    filesystem: FilesystemIx,
) -> BytesAndInodes {
    let nodes = live.last_held(Root::Image(at)).map(|node| &input.inventory[node]);
    nodes.filter(|node| node.filesystem == filesystem).map(|node| node.size).sum::<Size>().into()
}
