//! The forest on which sets of images are chosen.
//!
//! A layer is freed when all images above it are deleted. Layers with their parents are a forest, so with the images as
//! leaves, each layer covers an interval of leaves. Layers with the same interval are one group: they are freed
//! together. A group has either no child (one image) or at least two.
//!
//! Nodes outside the chains of parents (shared blobs, inodes, extents) may be reached by any images. Such a node is put
//! into the smallest group that contains all images that reach it: at the latest, it is freed with that group. If there
//! is no such group, it is left out. Both are conservative: a set frees at least the bytes that the forest says.

use std::cmp::Reverse;

use crate::model::refs::{Live, Root};
use crate::model::{FilesystemIx, ImageIx, Inventory, NodeIx, Size};
use crate::policy::cheapest::costs::{MOST_BYTES, PullCosts};
use crate::policy::input::Input;

/// Bytes or inodes that are freed, with the expected cost of bringing back what is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worth {
    pub(super) frees: u64,
    pub(super) cost: u128,
}

impl std::ops::AddAssign for Worth {
    fn add_assign(&mut self, other: Self) {
        self.frees += other.frees;
        self.cost += other.cost;
    }
}

#[derive(Clone, Debug)]
pub(super) struct LayerGroup {
    /// Leaves below it: the first, and the end.
    pub(super) leaves: (usize, usize),
    /// End of its subtree among the groups.
    pub(super) end: usize,
    pub(super) parent: Option<usize>,
    /// Its own nodes, without those of its children and without loose ones.
    pub(super) own_nodes: Worth,
    /// All nodes of its subtree, loose ones too.
    pub(super) whole: Worth,
}

/// A node that may be freed earlier than the group that it was put into.
#[derive(Clone, Copy, Debug)]
pub(super) struct LooseNode {
    pub(super) worth: Worth,
    /// LayerGroup of one of its images.
    pub(super) leaf: usize,
    /// Smallest group that contains all its images.
    pub(super) group: Option<usize>,
}

/// The part of the planner's state that a choice is made of.
#[derive(Clone, Copy, Debug)]
pub struct Choosing<'a> {
    pub input: &'a Input<'a>,
    pub live: &'a Live<'a>,
    pub costs: &'a PullCosts,
    pub filesystem: FilesystemIx,
    /// Inodes are wanted, not bytes.
    pub is_for_inodes: bool,
}

impl Choosing<'_> {
    fn worth(&self, node: NodeIx) -> Worth {
        let Size { frees_bytes, inodes, .. } = self.input.inventory[node].size;
        let frees = if self.is_for_inodes { inodes } else { frees_bytes };
        let is_here = self.input.inventory[node].filesystem == self.filesystem;
        let frees = if is_here { frees.min(MOST_BYTES) } else { 0 };
        Worth { frees, cost: self.costs.units(node).into() }
    }
}

#[derive(Debug)]
pub(super) struct Forest {
    pub(super) images: Vec<ImageIx>,
    /// In preorder: the subtree of a group follows it.
    pub(super) groups: Vec<LayerGroup>,
    pub(super) loose: Vec<LooseNode>,
    pub(super) all: Worth,
}

#[derive(Clone, Copy)]
enum TreeItem {
    Layer(NodeIx),
    /// Position among the candidates.
    Image(usize),
    /// End of a layer, with its first leaf.
    End(usize),
}

impl Forest {
    /// Builds the forest of these candidates. Their order decides the order of the leaves.
    pub(super) fn new(choosing: &Choosing<'_>, candidates: &[ImageIx]) -> Self {
        let (input, live) = (choosing.input, choosing.live);
        let mut holders = vec![0_u32; input.inventory.nodes.len()];
        for node in candidates.iter().flat_map(|image| input.refs.reach(Root::Image(*image))) {
            holders[node.get()] += 1;
        }
        // Nodes that something else holds are never freed.
        for (node, count) in (0..).map(NodeIx::from).zip(&mut holders) {
            if *count != live.holders(node) {
                *count = 0;
            }
        }
        let (images, intervals) = leaves(input, candidates, &holders);
        let mut forest = Self { images, groups: groups(intervals), loose: Vec::new(), all: Worth::default() };
        forest.place_nodes(choosing, &holders);
        forest.add_up();
        forest
    }

    fn place_nodes(&mut self, choosing: &Choosing<'_>, holders: &[u32]) {
        let refs = choosing.input.refs;
        let mut group_of_leaf = vec![0; self.images.len()];
        for (position, group) in self.groups.iter().enumerate() {
            if group.leaves.1 - group.leaves.0 == 1 {
                group_of_leaf[group.leaves.0] = position;
            }
        }
        let mut seen = vec![0_u32; holders.len()];
        let mut first = vec![0; holders.len()];
        for (leaf, image) in self.images.iter().enumerate() {
            for node in refs.reach(Root::Image(*image)) {
                let count = &mut seen[node.get()];
                if *count == 0 {
                    first[node.get()] = leaf;
                }
                *count += 1;
                if *count != holders[node.get()] {
                    continue;
                }
                let worth = choosing.worth(*node);
                self.all += worth;
                let first_leaf = group_of_leaf[first[node.get()]];
                let mut group = Some(first_leaf);
                while let Some(above) = group.filter(|group| self.groups[*group].leaves.1 <= leaf) {
                    group = self.groups[above].parent;
                }
                match group {
                    Some(group) if self.is_held_by_all(group, *count) => {
                        self.groups[group].own_nodes += worth
                    }
                    _ => self.loose.push(LooseNode { worth, leaf: first_leaf, group }),
                }
            }
        }
    }

    fn is_held_by_all(&self, group: usize, holders: u32) -> bool {
        let (first, end) = self.groups[group].leaves;
        end - first == holders as usize
    }

    fn add_up(&mut self) {
        for group in &mut self.groups {
            group.whole = group.own_nodes;
        }
        for loose in &self.loose {
            if let Some(group) = loose.group {
                self.groups[group].whole += loose.worth;
            }
        }
        for position in (0..self.groups.len()).rev() {
            let LayerGroup { whole, parent, .. } = self.groups[position];
            if let Some(parent) = parent {
                self.groups[parent].whole += whole;
            }
        }
    }

    pub(super) fn images_of(&self, group: usize) -> &[ImageIx] {
        let (first, end) = self.groups[group].leaves;
        &self.images[first..end]
    }
}

/// Returns the candidates in the order of the leaves, and the intervals of leaves of the layers that can be freed and
/// of the images.
fn leaves(
    input: &Input<'_>,
    candidates: &[ImageIx],
    holders: &[u32],
) -> (Vec<ImageIx>, Vec<(usize, Reverse<usize>)>) {
    let inventory = input.inventory;
    let mut below: Vec<Vec<TreeItem>> = vec![Vec::new(); inventory.nodes.len()];
    let mut is_known = vec![false; inventory.nodes.len()];
    let mut roots = Vec::new();
    for (position, image) in candidates.iter().enumerate() {
        let mut item = TreeItem::Image(position);
        let mut held = inventory[*image].holds.iter().copied();
        let mut layer = held.find(|node| is_freed_layer(inventory, holders, *node));
        while let Some(node) = layer {
            below[node.get()].push(item);
            if std::mem::replace(&mut is_known[node.get()], true) {
                break;
            }
            item = TreeItem::Layer(node);
            let parent = inventory[node].needs.first().copied();
            layer = parent.filter(|parent| is_freed_layer(inventory, holders, *parent));
        }
        if layer.is_none() {
            roots.push(item);
        }
    }
    let (mut order, mut intervals) = (Vec::with_capacity(candidates.len()), Vec::new());
    let mut is_placed = vec![false; candidates.len()];
    let mut stack: Vec<_> = roots.into_iter().rev().collect();
    while let Some(item) = stack.pop() {
        match item {
            TreeItem::Image(position) => {
                is_placed[position] = true;
                intervals.push((order.len(), Reverse(order.len() + 1)));
                order.push(candidates[position]);
            }
            TreeItem::Layer(node) => {
                stack.push(TreeItem::End(order.len()));
                stack.extend(std::mem::take(&mut below[node.get()]).into_iter().rev());
            }
            TreeItem::End(first) => intervals.push((first, Reverse(order.len()))),
        }
    }
    // Records may name parents in a circle, which no root reaches.
    for (image, _) in candidates.iter().zip(is_placed).filter(|(_, is_placed)| !is_placed) {
        intervals.push((order.len(), Reverse(order.len() + 1)));
        order.push(*image);
    }
    (order, intervals)
}

fn is_freed_layer(inventory: &Inventory, holders: &[u32], node: NodeIx) -> bool {
    holders[node.get()] > 0 && inventory[node].kind.is_layer()
}

/// Builds the groups of these intervals, which contain each other or are disjoint.
fn groups(mut intervals: Vec<(usize, Reverse<usize>)>) -> Vec<LayerGroup> {
    intervals.retain(|(first, end)| *first < end.0);
    intervals.sort_unstable();
    intervals.dedup();
    let mut groups: Vec<LayerGroup> = Vec::with_capacity(intervals.len());
    let mut open: Vec<usize> = Vec::new();
    for (first, Reverse(end)) in intervals {
        while let Some(last) = open.pop_if(|last| groups[*last].leaves.1 <= first) {
            groups[last].end = groups.len();
        }
        let (own_nodes, whole) = Default::default();
        groups.push(LayerGroup {
            leaves: (first, end),
            end: 0,
            parent: open.last().copied(),
            own_nodes,
            whole,
        });
        open.push(groups.len() - 1);
    }
    let end = groups.len();
    for last in open {
        groups[last].end = end;
    }
    groups
}
