//! Judges leaks of every kind of store: class, verdict and evidence. Pure.

use jiff::{SignedDuration, Timestamp};

use crate::model::{LeakClass, Verdict};
use crate::sys::clock::Present;

/// What is younger may be work in progress: since library version 1.62 a pull has layers
/// without an image for as long as it lasts. The library's own limit is the same 24 hours.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_hours(24);

/// What something is taken for, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) class: LeakClass,
    pub(crate) verdict: Verdict,
    /// What proves it, for messages.
    pub(crate) evidence: String,
}

impl Judgement {
    /// With the verdict that is usual for its class.
    pub(crate) fn of(class: LeakClass, evidence: impl Into<String>) -> Self {
        Self { class, verdict: class.verdict(), evidence: evidence.into() }
    }

    /// With another verdict than the usual one.
    pub(crate) fn with(self, verdict: Verdict) -> Self {
        Self { verdict, ..self }
    }

    /// With another verdict, and why.
    pub(crate) fn but(self, verdict: Verdict, why: &str) -> Self {
        Self { verdict, evidence: format!("{}; {why}", self.evidence), ..self }
    }
}

/// Time since `since`, as far as the clock can be trusted.
pub(crate) fn age(since: Option<Timestamp>, present: &Present) -> Option<SignedDuration> {
    since.map(|since| present.age(since))
}
