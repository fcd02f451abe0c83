//! The order of a space pass.
//!
//! With the order `cheapest`, several orders are tried on the predicted numbers, and the one whose deletions cost least
//! is taken. The order `idle` is one of them, so the result never costs more than that.

use crate::model::refs::{Live, Root};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx};
use crate::policy::cheapest::costs::{PullCost, PullCosts};
use crate::policy::cheapest::{self, Choosing};
use crate::policy::input::Input;
use crate::policy::plan::space_pass::{SpacePass, gain_on};

/// Situation before the first deletion of a pass.
#[derive(Clone, Copy)]
pub(super) struct PassStart<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) live: &'a Live<'a>,
    pub(super) costs: &'a PullCosts,
    pub(super) filesystem: FilesystemIx,
    pub(super) wanted: BytesAndInodes,
}

impl PassStart<'_> {
    /// Returns the cheapest order of the candidates, which are given in the order `idle`, and the bytes that any choice
    /// costs at least. `can_begin`: see [`super::full_disk`].
    pub(super) fn cheapest(
        &self,
        idle: Vec<ImageIx>,
        can_begin: impl Fn(ImageIx) -> bool,
    ) -> (Vec<ImageIx>, Option<u64>) {
        let choosing = Choosing {
            input: self.input,
            live: self.live,
            costs: self.costs,
            filesystem: self.filesystem,
            is_for_inodes: self.wanted.bytes == 0,
        };
        let (returning, lost): (Vec<ImageIx>, Vec<ImageIx>) =
            idle.iter().partition(|image| self.costs.can_return(**image));
        let wanted = if choosing.is_for_inodes { self.wanted.inodes } else { self.wanted.bytes };
        let choice = cheapest::choose(&choosing, &returning, wanted);
        let orders = choice.orders.into_iter().map(|order| [order, lost.clone()].concat());
        let tried = orders.chain([idle]).map(|order| (self.try_order(&order, &can_begin), order));
        // Of equal ones the first.
        let best = tried.reduce(|best, other| if other.0 < best.0 { other } else { best });
        (best.map(|(_, order)| order).unwrap_or_default(), choice.at_least_bytes)
    }

    /// Returns the missing bytes and inodes after a pass in this order, the number of images that cannot be pulled again
    /// among its deletions, and the cost of all others.
    fn try_order(&self, order: &[ImageIx], can_begin: impl Fn(ImageIx) -> bool) -> (u64, u64, usize, u128) {
        let (input, mut live, mut wanted) = (self.input, self.live.clone(), self.wanted);
        let mut pass = SpacePass::new(self.filesystem, input.inventory, wanted);
        pass.follow(order.to_vec());
        let (mut cost, mut lost) = (PullCost::default(), 0);
        while !wanted.is_nothing()
            && let Some((image, _)) = pass.next(input, &live, &can_begin, wanted)
        {
            cost += self.costs.of_nodes(live.last_held(Root::Image(image)));
            lost += usize::from(!self.costs.can_return(image));
            let gain = gain_on(input, &live, image, self.filesystem);
            wanted.bytes = wanted.bytes.saturating_sub(gain.bytes);
            wanted.inodes = wanted.inodes.saturating_sub(gain.inodes);
            live.remove(input.inventory, Root::Image(image));
            pass.answered(input, &live, image, true);
        }
        (wanted.bytes, wanted.inodes, lost, cost.units)
    }
}
