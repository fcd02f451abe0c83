//! Verdicts on leaks.

/// What should happen to a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing uses it and its proof is complete: it can be deleted.
    Reclaim,
    /// The records are wrong and can be repaired.
    Repair,
    /// It looks like a leak but is not, or may be work in progress.
    Keep,
    /// A person has to check it.
    Report,
}
