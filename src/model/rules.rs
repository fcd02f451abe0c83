//! Rules of the policies, and the ruling of a rule on an object.

use serde::Serialize;

use crate::model::text::names::names;

names! {
    /// Rules that keep an object. The first ones are evaluated for every image in this order; the first rule that
    /// keeps the image decides. `docs/how-it-decides.md` describes each by its name.
    Rule {
        /// A container uses it, or a store that builds on it.
        InUse = "in-use",
        /// The runtime, layersweep's keep-list or a configuration pins it.
        Pinned = "pinned",
        SandboxImage = "sandbox-image",
        StaticPod = "static-pod",
        Quadlet = "quadlet",
        PullInProgress = "pull-in-progress",
        /// One of the protected patterns matches a name of it.
        ProtectedName = "protected-name",
        ProtectedLabel = "protected-label",
        /// It is one of the newest images of its repository, which are kept.
        NewestOfRepository = "newest-of-repository",
        /// It was never pulled, so that no registry may have it.
        NotRepullable = "not-repullable",
        /// It is in an additional store.
        ReadOnlyStore = "read-only-store",
        /// Records of its store, or of a store that may use it, could not be read in full.
        DamagedStore = "damaged-store",
        /// The selected backend cannot delete it, or its store is skipped, for example because it is locked.
        OutOfReach = "out-of-reach",
        /// Its first detection is unknown.
        AgeUnknown = "age-unknown",
        MinAge = "min-age",
        /// It was in use when the run began.
        UsedJustNow = "used-just-now",
        /// Earlier runs could not delete it.
        BackingOff = "backing-off",
        /// It was not needed: usage was low enough before its turn.
        NotNeeded = "not-needed",
        /// Its deletion would free (almost) nothing, alone or together with others.
        FreesNothing = "frees-nothing",
        Unmeasured = "unmeasured",
        /// A removal was tried, but the object still exists.
        RemovalFailed = "removal-failed",
        /// The run ended before its turn.
        RunEnded = "run-ended",
        Running = "running",
        /// It has not started yet.
        Starting = "starting",
        /// Its runtime does not know its state.
        StateUnknown = "state-unknown",
        WithinLimits = "within-limits",
        Needed = "needed",
        Ready = "ready",
        /// It is the newest sandbox of its pod.
        Newest = "newest",
        /// It contains a container, or its pod has one.
        HasContainers = "has-containers",
        PodsUnknown = "pods-unknown",
        PodExists = "pod-exists",
        /// Its name is not that of a pod's log.
        NotAPod = "not-a-pod",
        /// A process has it open.
        Open = "open",
        Mounted = "mounted",
        Unreadable = "unreadable",
        ContainerExists = "container-exists",
        /// It is a link to an existing log.
        LinkTargetExists = "link-target-exists",
        /// The runtime does not report the state of its container.
        RuntimeUnknown = "runtime-unknown",
        /// A proof that its deletion requires is missing.
        NotProven = "not-proven",
    }
}

/// Ruling of one rule on an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RulingDoc"))]
pub struct Ruling {
    /// Name of the rule.
    pub rule: Rule,
    /// True if the rule keeps the object.
    pub keeps: bool,
    /// Reason in words.
    pub detail: String,
    /// It was made on a planned deletion after the run began.
    #[serde(skip)]
    pub since_run_began: bool,
}

impl Ruling {
    /// Creates the ruling of a rule that keeps an object.
    #[must_use]
    pub fn keeps(rule: Rule, detail: impl Into<String>) -> Self {
        Self { rule, keeps: true, detail: detail.into(), since_run_began: false }
    }

    /// Creates the ruling on a candidate that the run did not reach.
    #[must_use]
    pub fn ended_early() -> Self {
        Self::keeps(Rule::RunEnded, "the run ended before its turn")
    }

    /// Marks a ruling on a planned deletion that was made after the run began.
    #[must_use]
    pub fn since_run_began(self) -> Self {
        Self { detail: format!("since the run began: {}", self.detail), since_run_began: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_rule_is_its_variant() {
        for rule in Rule::ALL {
            let mut name = String::new();
            for letter in format!("{rule:?}").chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('-');
                }
                name.extend(letter.to_lowercase());
            }
            assert_eq!(rule.as_str(), name);
        }
    }
}
