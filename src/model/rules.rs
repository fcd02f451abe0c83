//! What a rule says of an image: the form of a verdict, which every policy fills. Pure.

use std::fmt;

/// What decides that an image stays. `docs/how-it-decides.md` describes each by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A container, or a store that is built on it, uses it.
    InUse,
    /// The runtime, our own keep-list or a configuration pins it.
    Pinned,
    /// Pod sandboxes are made from it.
    SandboxImage,
    /// A static pod's manifest names it.
    StaticPod,
    /// A quadlet names it.
    Quadlet,
    /// The kubelet is pulling it.
    PullInProgress,
    /// One of the protected patterns matches a name of it.
    ProtectedName,
    /// It has a protected label, or may have one.
    ProtectedLabel,
    /// It is among the newest of its repository that are kept.
    NewestOfRepository,
    /// It lies in an additional store.
    ReadOnlyStore,
    /// Records of its store, or of one that may use it, could not be read in full.
    DamagedStore,
    /// The selected backend cannot delete it.
    OutOfReach,
    /// Nothing says since when it is here.
    AgeUnknown,
    /// It is younger than the minimum age.
    MinAge,
    /// It was in use when the run began.
    UsedJustNow,
    /// Earlier runs could not delete it.
    BackingOff,
    /// A candidate that nobody had to touch: usage was low enough before its turn.
    NotNeeded,
    /// A candidate whose deletion would free (almost) nothing, alone or with others.
    FreesNothing,
    /// A candidate on a filesystem whose numbers cannot be believed.
    Unmeasured,
    /// The runtime did not delete it.
    Refused,
    /// A candidate that the run would have come to.
    RunEnded,
}

impl Rule {
    /// Those that hold before any plan, in the order in which they are asked: the first that keeps the
    /// image decides.
    pub const ASKED: [Self; 16] = [
        Self::InUse,
        Self::Pinned,
        Self::SandboxImage,
        Self::StaticPod,
        Self::Quadlet,
        Self::PullInProgress,
        Self::ProtectedName,
        Self::ProtectedLabel,
        Self::NewestOfRepository,
        Self::ReadOnlyStore,
        Self::DamagedStore,
        Self::OutOfReach,
        Self::AgeUnknown,
        Self::MinAge,
        Self::UsedJustNow,
        Self::BackingOff,
    ];

    /// Its name in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InUse => "in-use",
            Self::Pinned => "pinned",
            Self::SandboxImage => "sandbox-image",
            Self::StaticPod => "static-pod",
            Self::Quadlet => "quadlet",
            Self::PullInProgress => "pull-in-progress",
            Self::ProtectedName => "protected-name",
            Self::ProtectedLabel => "protected-label",
            Self::NewestOfRepository => "newest-of-repository",
            Self::ReadOnlyStore => "read-only-store",
            Self::DamagedStore => "damaged-store",
            Self::OutOfReach => "out-of-reach",
            Self::AgeUnknown => "age-unknown",
            Self::MinAge => "min-age",
            Self::UsedJustNow => "used-just-now",
            Self::BackingOff => "backing-off",
            Self::NotNeeded => "not-needed",
            Self::FreesNothing => "frees-nothing",
            Self::Unmeasured => "unmeasured",
            Self::Refused => "refused",
            Self::RunEnded => "run-ended",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}

/// What one rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The rule.
    pub rule: Rule,
    /// The rule keeps the image.
    pub stays: bool,
    /// Why, in words.
    pub detail: String,
}
