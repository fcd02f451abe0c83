//! Order `cheapest`: the images that free the wanted bytes at the least expected cost of bringing them back. Pure.
//!
//! [`costs`] says what a deletion costs. Layers that images share are freed, and cost something, only with the last of
//! these images, so the costs of images do not add up, but those of layers do: "free N bytes at the least cost" is a
//! knapsack on the `forest` of layers. It is solved in three steps:
//!
//! 1. `cuts`: the subtree with the least cost for each byte is cut again and again until enough is freed;
//! 2. `dual`: a lower bound for the cost of any choice;
//! 3. `knapsack`: a cheaper set, searched between the bound and the first one.
//!
//! Example: `web:1` and `web:2` share 900 MiB and have 10 MiB each. Deleting one of them frees 10 MiB for its own
//! chance, deleting both frees 920 MiB for the chance that any of them is wanted.
//!
//! The result is a list of orders, since the planner decides what the best is: it knows what each of them deletes.

pub mod costs;
mod cuts;
mod dual;
mod forest;
mod knapsack;

use std::collections::HashSet;

pub use forest::Choosing;
use forest::{Forest, Worth};

use crate::model::ImageIx;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheapestOrders {
    /// Orders of all candidates.
    pub orders: Vec<Vec<ImageIx>>,
    /// Bytes that any choice is expected to cost at least; `None` if the candidates do not free enough.
    pub at_least_bytes: Option<u64>,
}

/// Orders the candidates, which are given in the order `idle` and can be pulled again, so that the first of them free
/// `wanted` bytes (or inodes) at little cost, and the others follow in the order of the weakest links.
#[must_use]
pub fn choose(choosing: &Choosing<'_>, candidates: &[ImageIx], wanted: u64) -> CheapestOrders {
    let forest = Forest::new(choosing, candidates);
    let pieces = cuts::cuts(&forest);
    let mut by_links: Vec<_> = pieces.iter().flat_map(|piece| &piece.images).copied().collect();
    append_missing(&mut by_links, candidates);
    let profits = dual::best(&forest, wanted, false);
    let mut orders = Vec::new();
    if let Some(cost) = cost_of_cuts(&pieces, wanted)
        && let Some(groups) = knapsack::improve(&forest, &profits, wanted, cost)
    {
        let mut order = order_of_groups(&forest, groups);
        append_missing(&mut order, &by_links);
        orders.push(order);
    }
    orders.push(by_links);
    let is_enough = forest.all.frees >= wanted;
    let at_least_bytes = is_enough.then(|| {
        let profits = if forest.loose.is_empty() { profits } else { dual::best(&forest, wanted, true) };
        costs::bytes_of(profits.bound_units(wanted))
    });
    CheapestOrders { orders, at_least_bytes }
}

fn cost_of_cuts(pieces: &[cuts::Piece], wanted: u64) -> Option<u128> {
    let mut sum = Worth::default();
    pieces.iter().find_map(|piece| {
        sum += piece.worth;
        (sum.frees >= wanted).then_some(sum.cost)
    })
}

/// Returns the images of these groups, those with the least cost for each byte first. Groups that free nothing are last:
/// among them that ratio gives no order.
fn order_of_groups(forest: &Forest, groups: Vec<usize>) -> Vec<ImageIx> {
    let (mut some, none): (Vec<usize>, Vec<usize>) =
        groups.into_iter().partition(|group| forest.groups[*group].whole.frees > 0);
    some.sort_by(|a, b| cuts::by_ratio(forest.groups[*a].whole, forest.groups[*b].whole).then(a.cmp(b)));
    some.iter().chain(&none).flat_map(|group| forest.images_of(*group)).copied().collect()
}

fn append_missing(order: &mut Vec<ImageIx>, all: &[ImageIx]) {
    let known: HashSet<_> = order.iter().copied().collect();
    order.extend(all.iter().copied().filter(|image| !known.contains(image)));
}
