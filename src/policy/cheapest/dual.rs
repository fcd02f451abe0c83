//! The lower bound: no set of images that frees the wanted bytes costs less.
//!
//! With a price λ for each byte, any set that frees at least `wanted` bytes costs at least
//! `λ · wanted − max (λ · freed − cost)`, with the maximum over *all* sets (Lagrangian relaxation). On a forest that
//! maximum is found in one pass from the leaves: below a group either everything is deleted, which frees the group as
//! well, or each child is at its best, but not all of them are whole. Any λ gives a bound, so the search for the best
//! one needs no proof.
//!
//! Loose nodes: for the bound, a node that is worth its cost counts with one of its images, and one that is not with the
//! group that surely frees it. Both can only lower the bound.
//!
//! All numbers are integers; λ has [`FRACTION`] binary places.

use crate::policy::cheapest::forest::{Forest, Worth};

/// Binary places of λ.
const FRACTION: u32 = 24;
/// Maximum λ. With it, sums stay below 2^127.
const MOST: u64 = 1 << 60;
/// Binary places to which the best λ is searched.
const SEARCH: u32 = 24;

/// Returns λ · frees − cost.
pub(super) fn profit(lambda: u64, worth: Worth) -> i128 {
    let price = u128::from(lambda) * u128::from(worth.frees);
    signed(price) - signed(worth.cost << FRACTION)
}

fn signed(number: u128) -> i128 {
    i128::try_from(number).unwrap_or(i128::MAX)
}

#[derive(Clone, Debug)]
pub(super) struct Profits {
    pub(super) lambda: u64,
    /// By group: best profit below it.
    pub(super) best: Vec<i128>,
    /// By group: sum of the best profits of its children.
    pub(super) of_children: Vec<i128>,
    total: i128,
    /// Bytes that are freed for it.
    frees: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Best {
    profit: i128,
    frees: u64,
}

impl std::ops::AddAssign for Best {
    fn add_assign(&mut self, other: Self) {
        self.profit += other.profit;
        self.frees += other.frees;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct SumBelow {
    whole: Best,
    best: Best,
    is_partial: bool,
    /// Least loss of profit with a child that is not whole, and what that child frees less.
    least_loss: Option<(i128, i128)>,
}

impl Profits {
    /// Computes the best profits. `is_optimistic`: loose nodes can only lower the bound; otherwise they are freed with
    /// their groups.
    pub(super) fn at(lambda: u64, forest: &Forest, is_optimistic: bool) -> Self {
        let mut own_nodes: Vec<Worth> = forest.groups.iter().map(|group| group.own_nodes).collect();
        for loose in &forest.loose {
            let is_early = is_optimistic && profit(lambda, loose.worth) > 0;
            if let Some(group) = if is_early { Some(loose.leaf) } else { loose.group } {
                own_nodes[group] += loose.worth;
            }
        }
        let mut below = vec![SumBelow::default(); own_nodes.len()];
        let mut profits = Self {
            lambda,
            best: vec![0; own_nodes.len()],
            of_children: vec![0; own_nodes.len()],
            total: 0,
            frees: 0,
        };
        for (position, group) in forest.groups.iter().enumerate().rev() {
            let SumBelow { mut whole, best, is_partial, least_loss } = below[position];
            whole += Best { profit: profit(lambda, own_nodes[position]), frees: own_nodes[position].frees };
            let partial = match least_loss {
                _ if is_partial => best,
                Some((loss, frees)) => Best {
                    profit: best.profit - loss,
                    frees: u64::try_from(i128::from(best.frees) - frees).unwrap_or_default(),
                },
                // A leaf: the image is kept.
                None => Best::default(),
            };
            let is_whole = whole.profit > partial.profit;
            let chosen = if is_whole { whole } else { partial };
            profits.best[position] = chosen.profit;
            profits.of_children[position] = best.profit;
            let Some(parent) = group.parent else {
                profits.total += chosen.profit;
                profits.frees += chosen.frees;
                continue;
            };
            let parent = &mut below[parent];
            parent.whole += whole;
            parent.best += chosen;
            parent.is_partial |= !is_whole;
            let loss = (whole.profit - partial.profit, i128::from(whole.frees) - i128::from(partial.frees));
            parent.least_loss = Some(parent.least_loss.map_or(loss, |least| least.min(loss)));
        }
        profits
    }

    /// Returns the bound in units of cost, times 2^[`FRACTION`].
    pub(super) fn bound(&self, wanted: u64) -> i128 {
        signed(u128::from(self.lambda) * u128::from(wanted)) - self.total
    }

    /// Returns the bound in units of cost, rounded down.
    pub(super) fn bound_units(&self, wanted: u64) -> u128 {
        u128::try_from(self.bound(wanted) >> FRACTION).unwrap_or_default()
    }
}

/// Returns the difference of a cost and a bound, times 2^[`FRACTION`].
pub(super) fn gap(cost: u128, bound: i128) -> i128 {
    signed(cost << FRACTION) - bound
}

/// Returns the profits with the highest bound that the search finds.
pub(super) fn best(forest: &Forest, wanted: u64, is_optimistic: bool) -> Profits {
    let mut best = Profits::at(0, forest, is_optimistic);
    // The bound is concave in λ, and rises as long as the best set frees less than wanted.
    let mut low = 0_u64;
    let mut step = 1_u64;
    while step <= MOST {
        let profits = Profits::at(step, forest, is_optimistic);
        let is_below = profits.frees < wanted;
        keep_higher(&mut best, profits, wanted);
        if !is_below {
            break;
        }
        low = step;
        step *= 4;
    }
    let mut high = step.min(MOST);
    for _ in 0..SEARCH {
        let middle = low + (high - low) / 2;
        if middle == low {
            break;
        }
        let profits = Profits::at(middle, forest, is_optimistic);
        if profits.frees < wanted {
            low = middle;
        } else {
            high = middle;
        }
        keep_higher(&mut best, profits, wanted);
    }
    best
}

fn keep_higher(best: &mut Profits, profits: Profits, wanted: u64) {
    if profits.bound(wanted) > best.bound(wanted) {
        *best = profits;
    }
}
