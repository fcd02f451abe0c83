//! Tasks of a planner.

use crate::model::ImageIx;
use crate::model::rules::Rule;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// Deletions that the policy requires: by age, then by space.
    Policy,
    /// These images of the inventory, in this order, and no others. Positions beyond the inventory's images are
    /// ignored.
    Named(&'a [ImageIx]),
}

impl Task<'_> {
    /// Returns the rules that do not apply. The wait after a failed attempt only relieves the runtime, so a user
    /// who names an image does not have to wait. Every other rule protects.
    #[must_use]
    pub fn waived(&self) -> &'static [Rule] {
        match self {
            Self::Policy => &[],
            Self::Named(_) => &[Rule::BackingOff],
        }
    }

    pub(crate) fn named(&self, images: usize) -> Option<Vec<ImageIx>> {
        let Self::Named(named) = self else { return None };
        let mut seen = vec![false; images];
        let mut named = named.to_vec();
        named.retain(|ix| seen.get_mut(ix.get()).is_some_and(|seen| !std::mem::replace(seen, true)));
        Some(named)
    }
}
