//! How a run ended.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a run, or its part on one filesystem, ended: what documents say, records keep and exit codes
/// come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// It did what was asked.
    Done,
    /// Something could not be read: figures are lower bounds.
    Incomplete,
    /// Leaks were listed, and nothing was to be deleted.
    Reported,
    /// No deletion was needed.
    NotNeeded,
    /// The target was reached.
    Reached,
    /// The target was not reached though everything worked.
    NotReached,
    /// An error during the run.
    Failed,
    /// A precondition was not proven.
    Refused,
}

impl OutcomeKind {
    pub const ALL: [Self; 8] = [
        Self::Done,
        Self::Incomplete,
        Self::Reported,
        Self::NotNeeded,
        Self::Reached,
        Self::NotReached,
        Self::Failed,
        Self::Refused,
    ];

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

    /// Its name in documents and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Incomplete => "incomplete",
            Self::Reported => "reported",
            Self::NotNeeded => "not_needed",
            Self::Reached => "reached",
            Self::NotReached => "not_reached",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_documents() {
        for outcome in OutcomeKind::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
        }
    }
}
