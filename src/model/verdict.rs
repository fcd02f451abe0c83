//! What is done about a leak.

/// What should happen to a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing uses it and its proof is complete: its bytes can be taken back.
    Reclaim,
    /// The records are wrong: an edit mends them.
    Repair,
    /// It looks like a leak but is not, or may be work in progress.
    Keep,
    /// A person has to look at it.
    Report,
}
