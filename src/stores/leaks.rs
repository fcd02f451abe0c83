//! Judgement of leaks in all kinds of stores: class, verdict and evidence. Pure.

use jiff::{SignedDuration, Timestamp};

use crate::model::{LeakClass, Verdict};
use crate::sys::clock::Present;

/// Minimum age of a leak that may be deleted; younger objects may be work in progress. Since library version 1.62 a
/// pull has layers without an image until it is finished. The library itself uses the same limit of 24 hours.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) class: LeakClass,
    pub(crate) verdict: Verdict,
    pub(crate) evidence: String,
}

impl Judgement {
    pub(crate) fn of(class: LeakClass, evidence: impl Into<String>) -> Self {
        Self { class, verdict: class.verdict(), evidence: evidence.into() }
    }

    pub(crate) fn with(self, verdict: Verdict) -> Self {
        Self { verdict, ..self }
    }

    /// Replaces the verdict and adds the reason.
    pub(crate) fn but(self, verdict: Verdict, why: &str) -> Self {
        Self { verdict, evidence: format!("{}; {why}", self.evidence), ..self }
    }
}

/// Returns the time since `since`; `None` if it is unknown. The clock's leaps are taken into account.
pub(crate) fn age(since: Option<Timestamp>, present: &Present) -> Option<SignedDuration> {
    since.map(|since| present.age(since))
}
