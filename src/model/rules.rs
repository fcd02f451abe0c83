//! Rules, and the ruling of a rule on an object, as all policies use them.

use serde::{Deserialize, Serialize};

use super::names::names;

names! {
    /// The rules that keep something: first those that are asked of every image, in the order in which they
    /// are asked (the first that keeps it decides). `docs/how-it-decides.md` describes each by its name.
    Rule {
        /// A container, or a store that is built on it, uses it.
        InUse = "in-use",
        /// The runtime, our own keep-list or a configuration pins it.
        Pinned = "pinned",
        /// Pod sandboxes are made from it.
        SandboxImage = "sandbox-image",
        /// A static pod's manifest names it.
        StaticPod = "static-pod",
        /// A quadlet names it.
        Quadlet = "quadlet",
        /// The kubelet is pulling it.
        PullInProgress = "pull-in-progress",
        /// One of the protected patterns matches a name of it.
        ProtectedName = "protected-name",
        /// It has a protected label, or may have one.
        ProtectedLabel = "protected-label",
        /// It is among the newest of its repository that are kept.
        NewestOfRepository = "newest-of-repository",
        /// It lies in an additional store.
        ReadOnlyStore = "read-only-store",
        /// Records of its store, or of one that may use it, could not be read in full.
        DamagedStore = "damaged-store",
        /// The selected backend cannot delete it, or its store is skipped, for example since it is locked.
        OutOfReach = "out-of-reach",
        /// Its first detection is unknown.
        AgeUnknown = "age-unknown",
        /// It is younger than the minimum age.
        MinAge = "min-age",
        /// It was in use when the run began.
        UsedJustNow = "used-just-now",
        /// Earlier runs could not delete it.
        BackingOff = "backing-off",
        /// A candidate that was not needed: usage was low enough before its turn.
        NotNeeded = "not-needed",
        /// A candidate whose deletion would free (almost) nothing, alone or with others.
        FreesNothing = "frees-nothing",
        /// A candidate on a filesystem with invalid numbers.
        Unmeasured = "unmeasured",
        /// It was tried, and it is still there. (The outcome of a run that is called `refused`, too, is another thing:
        /// it did not begin.)
        RemovalFailed = "refused",
        /// A candidate that the run would have come to.
        RunEnded = "run-ended",
        /// It is running.
        Running = "running",
        /// It has not started yet.
        Starting = "starting",
        /// Its runtime does not know its state.
        StateUnknown = "state-unknown",
        /// The limits allow it.
        WithinLimits = "within-limits",
        /// Something that stays needs it.
        Needed = "needed",
        /// A sandbox that runs.
        Ready = "ready",
        /// The newest sandbox of its pod.
        Newest = "newest",
        /// A container is in it, or of its pod.
        HasContainers = "has-containers",
        /// The list of pods is unknown.
        PodsUnknown = "pods-unknown",
        /// Its pod still exists.
        PodKnown = "pod-known",
        /// Its name is not that of a pod's log.
        NotAPod = "not-a-pod",
        /// A process has it open.
        Open = "open",
        /// It is mounted.
        Mounted = "mounted",
        /// It cannot be read.
        Unreadable = "unreadable",
        /// Its container still exists.
        ContainerExists = "container-there",
        /// A link whose log exists.
        LinkTargetExists = "leads-somewhere",
        /// The runtime does not say what became of its container.
        RuntimeUnknown = "runtime-unknown",
        /// What its deletion needs is not proven.
        NotProven = "not-proven",
    }
}

/// The ruling of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruling {
    /// The rule.
    pub rule: Rule,
    /// The rule keeps the target.
    pub stays: bool,
    pub detail: String,
}

impl Ruling {
    /// The rule keeps it.
    #[must_use]
    pub fn keeps(rule: Rule, detail: impl Into<String>) -> Self {
        Self { rule, stays: true, detail: detail.into() }
    }

    /// It could go, but the run did not come to it.
    #[must_use]
    pub fn ended_early() -> Self {
        Self::keeps(Rule::RunEnded, "the run ended before its turn")
    }

    /// Marks a ruling made after the run began, on what was to be deleted then.
    #[must_use]
    pub fn since_run_began(self) -> Self {
        Self { detail: format!("since the run began: {}", self.detail), ..self }
    }
}
