//! What is recorded of a run.

use std::hash::{BuildHasher, Hasher};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::history::values::by_name;
use crate::model::names::names;
use crate::model::plan::{LayerIdentity, Reason, TargetKind};
use crate::model::{Filesystem, OutcomeKind, StoreId};

names! {
    /// The commands whose runs are recorded.
    Command {
        Scan = "scan",
        Gc = "gc",
        Sweep = "sweep",
        Rm = "rm",
    }
}

names! {
    /// How the outcome of a deletion is known.
    #[derive(Default)]
    Certainty {
        /// It is not: it was begun, and the run may have ended in the middle of it.
        Unknown = "unknown",
        /// The run saw it.
        #[default]
        Seen = "seen",
        /// A later scan saw it.
        Confirmed = "confirmed",
    }
}

by_name!(Certainty);
by_name!(Command);

/// The error of a started deletion until its outcome is known.
pub const BEGUN: &str = "started; its outcome is not known yet";

/// What a run began with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Its id, as [`new_id`] makes it.
    pub run_id: String,
    pub command: Command,
    pub started: Timestamp,
    pub policy: Option<String>,
    /// How it deletes: `cri`, `direct`.
    pub via: Option<String>,
    /// Space was short.
    pub trigger_space: bool,
    /// Something was too old.
    pub trigger_age: bool,
    /// Mount point of the filesystem that the percents are of.
    pub mount: Option<String>,
    pub usage_before_percent: Option<f64>,
    /// Bytes to be freed.
    pub wanted_bytes: Option<u64>,
    /// Bytes that the plan promised.
    pub predicted_bytes: Option<u64>,
}

impl Start {
    /// A run of which nothing more is known.
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
            mount: None,
            usage_before_percent: None,
            wanted_bytes: None,
            predicted_bytes: None,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    pub ended: Timestamp,
    pub outcome: OutcomeKind,
    pub usage_after_percent: Option<f64>,
    /// Freed bytes as measured; negative where others wrote more.
    pub measured_bytes: Option<i64>,
    pub errors: Vec<RunError>,
    /// How full the filesystems were then; none where nothing was tried.
    #[serde(default)]
    pub filesystems: Vec<Filesystem>,
}

impl RunEnd {
    /// An end of which nothing more is known.
    #[must_use]
    pub fn of(ended: Timestamp, outcome: OutcomeKind) -> Self {
        Self {
            ended,
            outcome,
            usage_after_percent: None,
            measured_bytes: None,
            errors: Vec::new(),
            filesystems: Vec::new(),
        }
    }
}

/// Events that the kubelet would have recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "EventDoc"))]
pub struct Event {
    /// The kubelet's word: `FreeDiskSpaceFailed`, `InvalidDiskCapacity` or `ImageGCFailed`.
    pub reason: String,
    /// What it says.
    pub message: String,
}

/// Something that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RunErrorDoc"))]
pub struct RunError {
    /// The object.
    pub id: String,
    /// The step.
    pub step: String,
    /// Why.
    pub message: String,
}

/// A deletion, or the try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeletionRow {
    pub at: Timestamp,
    pub kind: TargetKind,
    /// `None` for what lies in none (logs).
    pub store: Option<StoreId>,
    pub id: String,
    pub names: Vec<String>,
    /// Layers of an image that is deleted directly, each before its parent; empty once they are known to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerIdentity>,
    pub reason: Reason,
    /// Predicted freed bytes.
    pub predicted_bytes: u64,
    /// Bytes that did; negative where others wrote more meanwhile. `None`: not measured.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that went along; not part of the measured ones.
    #[serde(default)]
    pub byproduct_bytes: u64,
    /// Percent used after it.
    pub usage_after_percent: Option<f64>,
    /// Why it failed; `None` where it went well.
    pub error: Option<String>,
    #[serde(default, rename = "outcome")]
    pub certainty: Certainty,
}

/// An id for a run: its time, and digits that tell two at the same time apart. The first three are of the
/// time, too: what waits to be saved is applied in the order of the ids.
#[must_use]
pub fn new_id(started: Timestamp) -> String {
    // Seeded by the system for every process and state.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let time = started.strftime("%Y%m%dT%H%M%SZ");
    let fraction = started.subsec_nanosecond().unsigned_abs() / 244_141;
    format!("{time}-{fraction:03x}{:03x}", random & 0xfff)
}
