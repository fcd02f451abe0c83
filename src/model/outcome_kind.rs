//! How a run ended.

use super::names::listed_names;

listed_names! {
    /// How a run, or its part on one filesystem, ended: what documents say, records keep and exit codes
    /// come from.
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    OutcomeKind {
        /// It did what was asked.
        Done = "done",
        /// Something could not be read: figures are lower bounds.
        Incomplete = "incomplete",
        /// Leaks were listed, and nothing was to be deleted.
        Reported = "reported",
        /// No deletion was needed.
        NotNeeded = "not_needed",
        /// The target was reached.
        Reached = "reached",
        /// The target was not reached though everything worked.
        NotReached = "not_reached",
        /// An error during the run.
        Failed = "failed",
        /// A precondition was not proven.
        Refused = "refused",
    }
}

impl OutcomeKind {
    /// Combines the outcome of `first` with this one: a failure outweighs everything, and a missed
    /// target outweighs a reached one.
    #[must_use]
    pub fn after(self, first: Self) -> Self {
        match (self, first) {
            (_, Self::Failed) => Self::Failed,
            (own, Self::NotNeeded) => own,
            (Self::NotNeeded | Self::Reached, first) => first,
            (own, _) => own,
        }
    }
}
