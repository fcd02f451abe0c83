//! A deletion, planned, carried out or recorded: the same object in all documents.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::build::path;
use crate::history::runs::{Certainty, Command, DeletionOutcome, DeletionRow};
use crate::history::story::RecordedDeletion;
use crate::model::deletion::outcome::{Deletion, differs};
use crate::model::deletion::plan::{Gain, Reason, Step, Target, TargetKind};
use crate::model::text::display::two_decimals;
use crate::model::{FilesystemIx, LeakClass};

/// Deletion of an object, or an attempt.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeletionDoc {
    /// `image`, `artifact`, `container`, `sandbox`, `log` or `leak`.
    pub kind: TargetKind,
    /// Id of the object.
    pub id: String,
    /// All names of the object at that time.
    pub names: Vec<String>,
    /// Root of its store; empty for an object outside the stores.
    pub store: String,
    /// Class of a leak; missing for other objects, and in records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<LeakClass>,
    /// Path of a leak; missing for other objects, and in records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Run that deleted it, or tried to; missing in the document of that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Command of that run: `gc`, `rm` or `sweep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// `space`, `age`, `limit`, `leak` or `request`.
    pub reason: Reason,
    /// Mount point of the filesystem that `usage_after_percent` is of; null if it frees nothing, and in records.
    pub filesystem: Option<String>,
    /// Bytes freed on each filesystem: an image may have blobs on one and snapshots on another. Empty in records.
    pub freed: Vec<FreedDoc>,
    /// Bytes that this deletion was predicted to free, at its position in the order.
    pub predicted_bytes: u64,
    /// Bytes freed by it; null for a dry run, or if not measured. Negative if other processes wrote more.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks deleted along with it, in addition to its own.
    pub byproduct_bytes: u64,
    /// True if predicted and measured bytes differ by more than the filesystem's own fluctuation.
    pub differs: bool,
    /// True if `measured_bytes` shows the writes or deletions of other processes rather than this deletion:
    /// it is negative, or differs from the prediction by more than an eighth and 1 MiB on a filesystem whose
    /// free space also changed without the deletion.
    pub disturbed: bool,
    /// Percentage used after it; for a dry run, predicted.
    pub usage_after_percent: Option<f64>,
    /// Time of the deletion; null for a dry run.
    #[serde(rename = "at")]
    pub deleted_at: Option<Timestamp>,
    /// Number of members left in its group, which is deleted together, itself included; null in records.
    pub group: Option<usize>,
    /// `deleted`; `failed` if the object still exists; `unknown` if the run ended or was killed before the
    /// result was known, and no scan has looked since. Null for a dry run.
    pub outcome: Option<DeletionOutcome>,
    /// True if the run did not know the result and a later scan found it.
    pub confirmed: bool,
    /// Cause of the failure, or of the unknown outcome; null for a success.
    pub error: Option<String>,
    /// True for a named image that was never pulled, by evidence on the disk: no registry may have it. False in
    /// records.
    pub never_pulled: bool,
}

/// Bytes that a deletion frees on one filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FreedDoc {
    /// Mount point of the filesystem.
    pub filesystem: String,
    /// Bytes that the deletion was predicted to free here, at its position in the order.
    pub predicted_bytes: u64,
    /// Inodes that the deletion was predicted to free here.
    pub predicted_inodes: u64,
    /// Bytes freed here; null for a dry run. Negative if other processes wrote more.
    pub measured_bytes: Option<i64>,
    /// Percentage used here after the deletion; for a dry run, predicted.
    pub usage_after_percent: Option<f64>,
}

impl DeletionDoc {
    pub fn planned(step: &Step, mounts: &[PathBuf]) -> Self {
        let most = step.gains.iter().max_by_key(|gain| gain.size.frees_bytes).map(|gain| gain.filesystem);
        let Target { kind, id, names, leak, .. } = &step.target;
        Self {
            kind: *kind,
            id: id.clone(),
            names: names.clone(),
            store: step.target.store_root(),
            class: leak.as_ref().map(|leak| leak.class),
            path: leak.as_ref().map(|leak| path(&leak.path)),
            run_id: None,
            command: None,
            reason: step.cause.reason(),
            filesystem: step.filesystem.or(most).map(|filesystem_ix| mount(mounts, filesystem_ix)),
            freed: step.gains.iter().map(|gain| freed(gain, mounts)).collect(),
            predicted_bytes: step.predicted_bytes(),
            measured_bytes: None,
            byproduct_bytes: 0,
            differs: false,
            disturbed: false,
            usage_after_percent: step.expected.map(|space| two_decimals(space.used_percent())),
            deleted_at: None,
            group: step.group,
            outcome: None,
            confirmed: false,
            error: None,
            never_pulled: false,
        }
    }

    /// Builds a deletion that a run carried out.
    pub fn done(deletion: &Deletion, mounts: &[PathBuf]) -> Self {
        let parts = deletion.step.gains.iter().map(|gain| {
            let measured = deletion.freed.iter().find(|freed| freed.filesystem == gain.filesystem);
            FreedDoc {
                measured_bytes: measured.map(|freed| freed.bytes),
                usage_after_percent: measured.and_then(|freed| freed.usage_after_percent).map(two_decimals),
                ..freed(gain, mounts)
            }
        });
        let planned = Self::planned(&deletion.step, mounts);
        // Without a filesystem of the step, the first one that was measured.
        let measured = deletion.freed.first().map(|freed| mount(mounts, freed.filesystem));
        Self {
            filesystem: measured.filter(|_| deletion.step.filesystem.is_none()).or(planned.filesystem),
            freed: parts.collect(),
            measured_bytes: deletion.measured_bytes,
            usage_after_percent: deletion.usage_after_percent.map(two_decimals),
            deleted_at: Some(deletion.at),
            byproduct_bytes: deletion.byproduct_bytes,
            differs: deletion.is_off(),
            disturbed: deletion.is_disturbed(),
            outcome: Some(DeletionOutcome::Deleted),
            ..planned
        }
    }

    pub fn recorded(row: &DeletionRow) -> Self {
        let is_off = |measured| differs(row.predicted_bytes, measured);
        Self {
            kind: row.kind,
            id: row.id.clone(),
            names: row.names.clone(),
            store: row.store.as_ref().map_or_else(String::new, |store| path(store.root())),
            class: None,
            path: None,
            run_id: None,
            command: None,
            reason: row.reason,
            filesystem: None,
            freed: Vec::new(),
            predicted_bytes: row.predicted_bytes,
            measured_bytes: row.measured_bytes,
            byproduct_bytes: row.byproduct_bytes,
            differs: row.error.is_none() && row.measured_bytes.is_some_and(is_off),
            disturbed: row.others_wrote,
            usage_after_percent: row.usage_after_percent.map(two_decimals),
            deleted_at: Some(row.at),
            group: None,
            outcome: Some(row.outcome()),
            confirmed: row.certainty == Certainty::Confirmed,
            error: row.error.clone(),
            never_pulled: false,
        }
    }

    pub fn with_run(deletion: &RecordedDeletion) -> Self {
        Self {
            run_id: Some(deletion.run_id.clone()),
            command: Some(deletion.command),
            ..Self::recorded(&deletion.row)
        }
    }
}

fn freed(gain: &Gain, mounts: &[PathBuf]) -> FreedDoc {
    FreedDoc {
        filesystem: mount(mounts, gain.filesystem),
        predicted_bytes: gain.size.frees_bytes,
        predicted_inodes: gain.size.inodes,
        measured_bytes: None,
        usage_after_percent: None,
    }
}

pub(super) fn mount(mounts: &[PathBuf], filesystem_ix: FilesystemIx) -> String {
    mounts.get(filesystem_ix.get()).map_or_else(String::new, |mount| path(mount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Size;
    use crate::model::deletion::plan::Cause;

    /// Most of its bytes are on another filesystem than the one that it is deleted for.
    #[test]
    fn filesystem_is_that_of_the_usage() {
        let target =
            Target { kind: TargetKind::Image, store: None, id: "aa".into(), names: vec![], leak: None };
        let gain = |filesystem: usize, bytes| Gain {
            filesystem: filesystem.into(),
            size: Size { frees_bytes: bytes, ..Size::default() },
        };
        let planned = Step {
            filesystem: Some(0.into()),
            gains: vec![gain(0, 1), gain(1, 9)],
            ..Step::new(target, Cause::Age)
        };
        let mounts = ["/a".into(), "/b".into()];
        assert_eq!(DeletionDoc::planned(&planned, &mounts).filesystem.as_deref(), Some("/a"));
        let without = Step { filesystem: None, ..planned };
        assert_eq!(DeletionDoc::planned(&without, &mounts).filesystem.as_deref(), Some("/b"));
    }
}
