//! Weakest links: the subtrees in the order in which they are cut.
//!
//! The subtree with the least cost for each byte is cut again and again, as in cost-complexity pruning (Breiman and
//! others 1984). A cut changes the sums of the groups above it. When all children of a group but one are cut, cutting
//! the last one would cut the group, too, so from then on only the group can be cut.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::model::ImageIx;
use crate::policy::cheapest::forest::{Forest, Worth};

/// Images that are deleted together, with what that frees after the pieces before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) worth: Worth,
    pub(super) images: Vec<ImageIx>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WeakLink {
    worth: Worth,
    group: usize,
    version: u32,
}

impl Ord for WeakLink {
    fn cmp(&self, other: &Self) -> Ordering {
        by_ratio(self.worth, other.worth)
            .then(self.group.cmp(&other.group))
            .then(self.version.cmp(&other.version))
    }
}

impl PartialOrd for WeakLink {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares the cost for each byte. Both free something.
pub(super) fn by_ratio(a: Worth, b: Worth) -> Ordering {
    (a.cost * u128::from(b.frees)).cmp(&(b.cost * u128::from(a.frees)))
}

#[derive(Clone, Copy)]
struct LinkState {
    rest: Worth,
    version: u32,
    children: usize,
    /// Exclusive or of the children that are not cut: the last one, when one is left.
    children_xor: usize,
    can_be_cut: bool,
}

/// Cuts the whole forest. Images that free nothing are in no piece.
pub(super) fn cuts(forest: &Forest) -> Vec<Piece> {
    let groups = &forest.groups;
    let mut states: Vec<_> = groups
        .iter()
        .map(|group| LinkState {
            rest: group.whole,
            version: 0,
            children: 0,
            children_xor: 0,
            can_be_cut: true,
        })
        .collect();
    for (position, group) in groups.iter().enumerate() {
        if let Some(parent) = group.parent {
            states[parent].children += 1;
            states[parent].children_xor ^= position;
        }
    }
    let mut heap = BinaryHeap::new();
    for group in 0..groups.len() {
        push(&mut heap, &states, group);
    }
    let mut is_deleted = vec![false; forest.images.len()];
    let mut pieces = Vec::new();
    while let Some(Reverse(link)) = heap.pop() {
        let state = states[link.group];
        if !state.can_be_cut || state.version != link.version {
            continue;
        }
        let (first, end) = groups[link.group].leaves;
        let leaves = (first..end).filter(|leaf| !std::mem::replace(&mut is_deleted[*leaf], true));
        let images = leaves.map(|leaf| forest.images[leaf]).collect();
        pieces.push(Piece { worth: state.rest, images });
        for below in &mut states[link.group..groups[link.group].end] {
            below.can_be_cut = false;
        }
        let mut above = groups[link.group].parent;
        if let Some(parent) = above {
            let parent = &mut states[parent];
            parent.children -= 1;
            parent.children_xor ^= link.group;
            if parent.children == 1 {
                let last = parent.children_xor;
                states[last].can_be_cut = false;
            }
        }
        while let Some(group) = above {
            let state = &mut states[group];
            state.rest.frees -= link.worth.frees;
            state.rest.cost -= link.worth.cost;
            state.version += 1;
            push(&mut heap, &states, group);
            above = groups[group].parent;
        }
    }
    pieces
}

fn push(heap: &mut BinaryHeap<Reverse<WeakLink>>, states: &[LinkState], group: usize) {
    let LinkState { rest, version, can_be_cut, .. } = states[group];
    if can_be_cut && rest.frees > 0 {
        heap.push(Reverse(WeakLink { worth: rest, group, version }));
    }
}
