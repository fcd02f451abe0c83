//! Tasks of a planner.

use crate::model::ImageIx;
use crate::model::rules::Rule;

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// What the policy asks for: by age, then by space.
    Policy,
    /// These images of the inventory, in this order, and nothing else. A position beyond the
    /// inventory's images means nothing.
    Named(&'a [ImageIx]),
}

impl Task<'_> {
    /// The rules that it does without. Waiting after a failed attempt is politeness towards the
    /// runtime, which somebody who names an image may do without; every other rule protects.
    #[must_use]
    pub fn waived(&self) -> &'static [Rule] {
        match self {
            Self::Policy => &[],
            Self::Named(_) => &[Rule::BackingOff],
        }
    }

    /// The named images, each once.
    pub(crate) fn named(&self, images: usize) -> Option<Vec<ImageIx>> {
        let Self::Named(named) = self else { return None };
        let mut seen = vec![false; images];
        let first = |at: &&ImageIx| seen.get_mut(at.get()).is_some_and(|seen| !std::mem::replace(seen, true));
        Some(named.iter().filter(first).copied().collect())
    }
}
