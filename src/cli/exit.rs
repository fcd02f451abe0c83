//! The exit codes, all in one place (also in the man page and `--help`).

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Done, or nothing to do.
    Done = 0,
    /// A failure on the way; what was done is still reported.
    Failed = 1,
    /// Bad usage or configuration.
    Usage = 2,
    /// Done but incomplete: something could not be read, figures are lower bounds.
    Incomplete = 3,
    /// The target was not reached though everything worked.
    NotReached = 4,
    /// Another run holds the lock, a listing was partial, a precondition is not proven.
    Refused = 5,
    /// No store found.
    NoStore = 10,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
