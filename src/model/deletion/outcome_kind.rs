//! End of a run.

use crate::model::text::names::listed_names;

listed_names! {
    /// End of a run, or of its part on one filesystem. Documents and records contain it, and it determines the exit
    /// code.
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    OutcomeKind {
        /// The run did what was requested.
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
    /// Combines the outcome of `first` with this one: a failure outweighs everything, a refusal a missed target, and a
    /// missed target a reached one.
    #[must_use]
    pub fn after(self, first: Self) -> Self {
        match (self, first) {
            (_, Self::Failed) => Self::Failed,
            (Self::NotReached, Self::Refused) => Self::Refused,
            (outcome, Self::NotNeeded) => outcome,
            (Self::NotNeeded | Self::Reached, first) => first,
            (outcome, _) => outcome,
        }
    }
}
