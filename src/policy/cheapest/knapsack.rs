//! The last piece: sets that cost less than the weakest links.
//!
//! Cutting whole subtrees may free much more than is wanted. Here sets are built from the leaves: for each group a list
//! of pairs (bytes, cost) that no other pair dominates. A set costs at least the lower bound plus its *deficit*, which
//! is the profit that it has less than the best one at the bound's λ; deficits of different subtrees add up. So a pair
//! with a deficit above the gap between the bound and the best known set is dropped. What is left is small, and if a list
//! is longer than a limit, its pairs with the highest deficits are dropped as well: the result is then not surely the
//! best, but never worse than the known set.

use crate::policy::cheapest::dual::{Profits, gap, profit};
use crate::policy::cheapest::forest::{Forest, Worth};

/// Maximum length of a list, by the number of groups up to which it holds. Lists of small forests are long, so that the
/// result is the best set of most small nodes; images without a common layer and with equal costs a byte would double
/// them with each image. In large forests the first set is nearly as good, and lists of all groups take time.
const MOST_PAIRS: [(usize, usize); 3] = [(28, 1024), (2_000, 128), (usize::MAX, 32)];

#[derive(Clone, Copy, Debug)]
struct Pair {
    worth: Worth,
    set: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum SetPart {
    Group(usize),
    Both(u32, u32),
}

struct ListBuilder<'a> {
    profits: &'a Profits,
    wanted: u64,
    most_pairs: usize,
    parts: Vec<SetPart>,
}

/// Returns the groups of a set that frees the wanted bytes for less than `cost`, if one is found.
pub(super) fn improve(forest: &Forest, profits: &Profits, wanted: u64, cost: u128) -> Option<Vec<usize>> {
    let deficits = most_deficits(forest, profits, gap(cost, profits.bound(wanted)));
    let groups = forest.groups.len();
    let limit = MOST_PAIRS.iter().find(|(most_groups, _)| groups <= *most_groups);
    let most_pairs = limit.map_or(0, |(_, most_pairs)| *most_pairs);
    let mut builder = ListBuilder { profits, wanted, most_pairs, parts: Vec::new() };
    // By group: its list, as far as it is built. The groups are in preorder: the children are complete before it.
    let mut lists: Vec<Combined> = vec![Combined::default(); groups + 1];
    let root = groups;
    for (position, group) in forest.groups.iter().enumerate().rev() {
        let combined = std::mem::take(&mut lists[position]);
        let mut partial = combined.partial;
        if !combined.has_children {
            partial.push(Pair { worth: Worth::default(), set: None });
        }
        let whole = Pair { worth: group.whole, set: Some(builder.part(SetPart::Group(position))) };
        let parent = group.parent.unwrap_or(root);
        builder.add(&mut lists[parent], partial, whole, (profits.best[position], deficits[position]));
    }
    let Combined { mut partial, whole, .. } = std::mem::take(&mut lists[root]);
    partial.push(whole);
    let enough = partial.iter().filter(|pair| pair.worth.frees >= wanted && pair.worth.cost < cost);
    let best = enough.min_by_key(|pair| (pair.worth.cost, pair.worth.frees))?;
    Some(builder.groups(best.set))
}

/// Returns the deficit from which on a set below a group cannot be part of a cheaper set, by group. The best profit of a
/// group may be above or below the sum of its children's, which moves the deficits of all below it.
fn most_deficits(forest: &Forest, profits: &Profits, gap: i128) -> Vec<i128> {
    let mut deficits: Vec<i128> = Vec::with_capacity(forest.groups.len());
    for group in &forest.groups {
        deficits.push(
            group.parent.map_or(gap, |parent| {
                deficits[parent] - (profits.best[parent] - profits.of_children[parent])
            }),
        );
    }
    deficits
}

#[derive(Clone, Debug)]
struct Combined {
    has_children: bool,
    /// Sets with a child that is not whole.
    partial: Vec<Pair>,
    whole: Pair,
    best: i128,
}

impl Default for Combined {
    fn default() -> Self {
        let whole = Pair { worth: Worth::default(), set: None };
        Self { has_children: false, partial: Vec::new(), whole, best: 0 }
    }
}

impl ListBuilder<'_> {
    fn part(&mut self, part: SetPart) -> u32 {
        self.parts.push(part);
        u32::try_from(self.parts.len() - 1).unwrap_or(u32::MAX)
    }

    /// Combines a child, which has this best profit, with the children before it. Drops sets with too high a deficit.
    fn add(
        &mut self,
        to: &mut Combined,
        partial: Vec<Pair>,
        whole: Pair,
        (best, most_deficit): (i128, i128),
    ) {
        to.has_children = true;
        to.best += best;
        let mut pairs = Vec::with_capacity(to.partial.len() * (partial.len() + 1) + partial.len());
        for a in &to.partial {
            pairs.extend(partial.iter().chain([&whole]).map(|b| (*a, *b)));
        }
        pairs.extend(partial.iter().map(|b| (to.whole, *b)));
        let floor = to.best - most_deficit;
        let mut sums: Vec<_> = pairs
            .into_iter()
            .map(|(a, b)| (self.sum(a.worth, b.worth), a.set, b.set))
            .filter(|(worth, ..)| profit(self.profits.lambda, *worth) > floor)
            .collect();
        keep_undominated(&mut sums);
        if sums.len() > self.most_pairs {
            let lambda = self.profits.lambda;
            sums.sort_by_key(|(worth, ..)| std::cmp::Reverse(profit(lambda, *worth)));
            sums.truncate(self.most_pairs);
        }
        to.partial = sums.into_iter().map(|(worth, a, b)| Pair { worth, set: self.join(a, b) }).collect();
        let worth = self.sum(to.whole.worth, whole.worth);
        to.whole = Pair { worth, set: self.join(to.whole.set, whole.set) };
    }

    /// Adds two sets up. More than the wanted bytes are of no use.
    fn sum(&self, mut a: Worth, b: Worth) -> Worth {
        a += b;
        Worth { frees: a.frees.min(self.wanted), ..a }
    }

    fn join(&mut self, a: Option<u32>, b: Option<u32>) -> Option<u32> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.part(SetPart::Both(a, b))),
            (one, None) | (None, one) => one,
        }
    }

    fn groups(&self, set: Option<u32>) -> Vec<usize> {
        let mut groups = Vec::new();
        let mut parts: Vec<_> = set.into_iter().collect();
        while let Some(part) = parts.pop() {
            match self.parts[part as usize] {
                SetPart::Group(group) => groups.push(group),
                SetPart::Both(a, b) => parts.extend([a, b]),
            }
        }
        groups.sort_unstable();
        groups
    }
}

/// Drops sets for which another one frees as much at no higher cost.
fn keep_undominated(sums: &mut Vec<(Worth, Option<u32>, Option<u32>)>) {
    sums.sort_by_key(|(worth, ..)| (std::cmp::Reverse(worth.frees), worth.cost));
    let mut least = None;
    sums.retain(|(worth, ..)| {
        let is_cheaper = least.is_none_or(|least| worth.cost < least);
        if is_cheaper {
            least = Some(worth.cost);
        }
        is_cheaper
    });
}
