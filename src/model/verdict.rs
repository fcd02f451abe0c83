//! Verdicts on leaks.

use super::names::names;

names! {
    /// What should happen to a leak.
    Verdict {
        /// Nothing uses it and its proof is complete: it can be deleted.
        Reclaim = "reclaim",
        /// The records are wrong and can be repaired.
        Repair = "repair",
        /// It looks like a leak but is not, or may be work in progress.
        Keep = "keep",
        /// A person has to check it.
        Report = "report",
    }
}
