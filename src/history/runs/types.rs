//! Types of the record of a run.

use std::hash::{BuildHasher, Hasher};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::history::values::by_name;
use crate::model::deletion::outcome::UsageChange;
use crate::model::deletion::plan::{LayerIdentity, Reason, TargetKind};
use crate::model::rules::Rule;
use crate::model::text::names::names;
use crate::model::{Filesystem, OutcomeKind, StoreId};

names! {
    Command {
        Scan = "scan",
        Gc = "gc",
        Sweep = "sweep",
        Rm = "rm",
    }
}

names! {
    /// Source of the outcome of a deletion.
    #[derive(Default)]
    Certainty {
        /// The outcome is unknown: the deletion was started, and the run may have ended before it was done.
        Unknown = "unknown",
        /// The run saw the outcome.
        #[default]
        Seen = "seen",
        /// A later scan saw the outcome.
        Confirmed = "confirmed",
    }
}

names! {
    /// State of an object after an attempt to delete it.
    DeletionOutcome {
        /// The object no longer exists.
        Deleted = "deleted",
        /// The object still exists.
        Failed = "failed",
        /// The run ended or was killed before the result was known, and no scan has looked since.
        Unknown = "unknown",
    }
}

by_name!(Certainty);
by_name!(Command);

/// Error of a deletion that was started, until its outcome is known.
pub const BEGUN: &str = "started; its outcome is not known yet";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Id of the run, as [`new_id`] creates it.
    pub run_id: String,
    pub command: Command,
    pub started: Timestamp,
    pub policy: Option<String>,
    /// Way of deletion: `cri` or `direct`.
    pub via: Option<String>,
    pub trigger_space: bool,
    /// The run was triggered by the age of an object.
    pub trigger_age: bool,
    /// The filesystems of the run, as they were before it; in a record that is read, also as they were at its end.
    pub usage: Vec<UsageChange>,
    /// Number of bytes to free.
    pub wanted_bytes: Option<u64>,
    /// Number of bytes that the plan predicted to free.
    pub predicted_bytes: Option<u64>,
}

impl Start {
    #[must_use]
    pub fn of(command: Command, started: Timestamp) -> Self {
        Self {
            run_id: new_id(started),
            command,
            started,
            policy: None,
            via: None,
            trigger_space: false,
            trigger_age: false,
            usage: Vec::new(),
            wanted_bytes: None,
            predicted_bytes: None,
        }
    }
}

/// Time and outcome of the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    pub ended: Timestamp,
    pub outcome: OutcomeKind,
    /// The filesystems of the run, before and after; empty if these are unknown.
    pub usage: Vec<UsageChange>,
    /// Measured freed bytes; negative if other processes wrote more.
    pub measured_bytes: Option<i64>,
    pub errors: Vec<RunError>,
    /// Usage of the filesystems at the end; empty if nothing was tried.
    #[serde(default)]
    pub filesystems: Vec<Filesystem>,
}

impl RunEnd {
    #[must_use]
    pub fn of(ended: Timestamp, outcome: OutcomeKind) -> Self {
        Self {
            ended,
            outcome,
            usage: Vec::new(),
            measured_bytes: None,
            errors: Vec::new(),
            filesystems: Vec::new(),
        }
    }
}

/// Event that the kubelet would have recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "EventDoc"))]
pub struct Event {
    /// The kubelet's reason: `FreeDiskSpaceFailed`, `InvalidDiskCapacity` or `ImageGCFailed`.
    pub reason: String,
    /// Message of the event.
    pub message: String,
}

/// A failed step of a run, or an object that a rule kept although the user named it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RunErrorDoc"))]
pub struct RunError {
    /// Id of the object.
    pub id: String,
    /// Names of an image that a rule keeps.
    #[serde(default)]
    pub names: Vec<String>,
    /// Rule that keeps the object; null for a failure.
    #[serde(default)]
    pub rule: Option<Rule>,
    /// Step that failed.
    pub step: String,
    /// Reason of the failure.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeletionRow {
    pub at: Timestamp,
    pub kind: TargetKind,
    /// Store of the object; `None` for objects outside of stores (logs).
    pub store: Option<StoreId>,
    pub id: String,
    pub names: Vec<String>,
    /// Layers of an image that is deleted directly, each before its parent. Empty once all are known to be deleted: they
    /// may outlast the image if a signal or a kill ended its deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerIdentity>,
    pub reason: Reason,
    /// Number of bytes that the plan predicted to free.
    pub predicted_bytes: u64,
    /// Measured freed bytes; negative if other processes wrote more meanwhile. `None`: not measured.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that were deleted along with it; not part of `measured_bytes`.
    #[serde(default)]
    pub byproduct_bytes: u64,
    /// Other processes spoiled the measurement.
    #[serde(default)]
    pub others_wrote: bool,
    /// Used percentage of the filesystem after the deletion.
    pub usage_after_percent: Option<f64>,
    /// Reason of the failure; `None` if the deletion succeeded.
    pub error: Option<String>,
    #[serde(default, rename = "outcome")]
    pub certainty: Certainty,
}

impl DeletionRow {
    #[must_use]
    pub fn outcome(&self) -> DeletionOutcome {
        match (self.certainty, &self.error) {
            (Certainty::Unknown, _) => DeletionOutcome::Unknown,
            (_, None) => DeletionOutcome::Deleted,
            (_, Some(_)) => DeletionOutcome::Failed,
        }
    }
}

/// Creates an id for a run. It consists of the time and six digits: three for the fraction of the second, so that ids
/// sort by time (queued runs are applied in the order of their ids), and three random ones for runs at the same time.
#[must_use]
pub fn new_id(started: Timestamp) -> String {
    // The state is seeded randomly for every process and instance.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let time = started.strftime("%Y%m%dT%H%M%SZ");
    let fraction = started.subsec_nanosecond().unsigned_abs() / 244_141;
    format!("{time}-{fraction:03x}{:03x}", random & 0xfff)
}
