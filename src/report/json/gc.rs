//! The document of a run of garbage collection, carried out or planned.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::app::diagnosis::Part;
use crate::app::gc::GcResult;
use crate::app::outside::Outside;
use crate::history::runs::Event;
use crate::model::display::two_decimals;
use crate::model::outcome::{Deletion, Outcome, OutcomeKind};
use crate::model::plan::{
    FilesystemPlan, Gain, Kept, PassEnd, Problem, Step, Target, TargetKind, Trigger, apply,
};
use crate::model::space::Measured;
use crate::model::{FilesystemIx, Finding};
use crate::policy::PolicyKind;
use crate::policy::compare::Comparison;

/// `layersweep gc`, `layersweep rm`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcDoc {
    /// What every document begins with; its kind is `gc` or `rm`.
    #[serde(flatten)]
    pub header: Header,
    /// Names the run in `history`.
    pub run_id: String,
    /// Nothing was deleted: `deleted` is what a run would delete.
    pub dry_run: bool,
    /// `exact` or `kubelet`.
    pub policy: String,
    /// `cri` or `direct`; `auto` if the run was refused before that was known.
    pub via: String,
    /// How many images, layers, containers and temporary files that killed runs had begun to delete were finished first.
    pub resumed: usize,
    /// What made it act.
    pub trigger: Trigger,
    /// Percent used before, of the filesystem that was short of space (else of the first).
    pub usage_before_percent: Option<f64>,
    /// The same afterwards; for a dry run as predicted.
    pub usage_after_percent: Option<f64>,
    /// Deleting for space starts here; null where percentages play no part.
    pub high_percent: Option<u8>,
    /// And ends here.
    pub low_percent: Option<u8>,
    /// Deleting for space starts below so many available bytes, too; null where that plays no part.
    pub min_free_bytes: Option<u64>,
    /// Bytes that were missing, on all filesystems.
    pub wanted_bytes: u64,
    /// Bytes that the deletions were predicted to free.
    pub predicted_bytes: u64,
    /// Bytes that they freed; null for a dry run. Negative where others wrote more.
    pub measured_bytes: Option<i64>,
    /// Bytes that the kubelet believes it would free, by listed sizes; null for policy `exact`.
    pub believed_bytes: Option<u64>,
    /// Bytes of leaks that went along with them (containerd's own garbage collection).
    pub byproduct_bytes: u64,
    /// Each filesystem that was judged.
    pub filesystems: Vec<GcFilesystemDoc>,
    /// What was deleted, in order; for a dry run, what would be.
    pub deleted: Vec<DeletedDoc>,
    /// What stays, and the rule that keeps it.
    pub kept: Vec<KeptDoc>,
    /// What went wrong on the way.
    pub errors: Vec<Problem>,
    /// Events that the kubelet would have recorded, in its terms.
    pub events: Vec<Event>,
    /// `not_needed`, `reached`, `not_reached`, `failed` or `refused`.
    pub outcome: OutcomeKind,
    /// Commands that end the use of images that `rm` has kept, as clauses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Where the target was not reached: what the filesystem holds in no store.
    pub not_in_store: Vec<NotInStoreDoc>,
    /// Both policies side by side, for a dry run of policy `kubelet`: the runtime's image filesystem.
    pub comparison: Vec<ComparisonDoc>,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// A filesystem that was judged.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcFilesystemDoc {
    /// Where it is mounted.
    pub mount: String,
    /// Percent used before the first deletion; null where its numbers cannot be believed.
    pub usage_before_percent: Option<f64>,
    /// Percent used after the last one; for a dry run as predicted.
    pub usage_after_percent: Option<f64>,
    /// Available bytes before.
    pub available_before_bytes: Option<u64>,
    /// Available bytes after.
    pub available_after_bytes: Option<u64>,
    /// Bytes that were missing.
    pub wanted_bytes: u64,
    /// Of these, what root has used of its reserve: until it is freed nothing more becomes available.
    pub owed_bytes: u64,
    /// Inodes that were missing.
    pub wanted_inodes: u64,
    /// Free inodes before; 0 where the filesystem has no fixed number of inodes.
    pub inodes_free_before: Option<u64>,
    /// Free inodes after; for a dry run as predicted.
    pub inodes_free_after: Option<u64>,
    /// Bytes that the deletions were predicted to free here.
    pub predicted_bytes: u64,
    /// Bytes that they freed here, as far as measured; null for a dry run.
    pub measured_bytes: Option<i64>,
    /// The targets that were missed: `used`, `free`, `inodes`.
    pub started: Vec<&'static str>,
    /// `not_needed`, `reached`, `not_reached` or `failed`.
    pub outcome: OutcomeKind,
}

/// What a filesystem holds in no store, so that no deletion of ours frees it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotInStoreDoc {
    /// Where it is mounted.
    pub mount: String,
    /// Used bytes that are in no store.
    pub bytes: u64,
    /// Of these, what has a name, the largest first.
    pub largest: Vec<Part>,
    /// The same in words.
    pub text: String,
}

/// A deletion.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeletedDoc {
    /// `image`, `artifact`, `container`, `sandbox`, `log` or `leak`.
    pub kind: &'static str,
    /// Its id.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Root of its store.
    pub store: String,
    /// Where the filesystem is mounted that most of its bytes are on; null for what frees none.
    pub filesystem: Option<String>,
    /// What it frees, by filesystem: an image may have blobs on one and snapshots on another.
    pub freed: Vec<FreedDoc>,
    /// `space`, `age`, `limit`, `leak` or `request`.
    pub reason: &'static str,
    /// Bytes that this deletion was predicted to free, at its place in the order.
    pub predicted_bytes: u64,
    /// Bytes that it freed; null for a dry run. Negative where others wrote more.
    pub measured_bytes: Option<i64>,
    /// Percent used afterwards; for a dry run as predicted.
    pub usage_after_percent: Option<f64>,
    /// When; null for a dry run.
    pub at: Option<Timestamp>,
    /// Members left of the group that it goes together with, itself included.
    pub group: Option<usize>,
    /// Bytes of leaks that went along with it, on top of its own.
    pub byproduct_bytes: u64,
    /// Predicted and measured bytes differ by more than the filesystem's own fluctuation.
    pub differs: bool,
    /// `measured_bytes` tells of others that wrote or deleted meanwhile, and not of this deletion: it is
    /// negative, or far from the prediction (more than an eighth of it and 1 MiB) on a filesystem that also
    /// moved without the deletion.
    pub others_wrote: bool,
}

/// What a deletion frees on one filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FreedDoc {
    /// Where it is mounted.
    pub filesystem: String,
    /// Bytes that the deletion was predicted to free here, at its place in the order.
    pub predicted_bytes: u64,
    /// Bytes that it freed here; null for a dry run. Negative where others wrote more.
    pub measured_bytes: Option<i64>,
    /// Percent used here afterwards; for a dry run as predicted.
    pub usage_after_percent: Option<f64>,
}

/// Something that stays.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptDoc {
    /// `image`, `container`, `sandbox` or `log`.
    pub kind: &'static str,
    /// Its id.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// The rule, see docs/how-it-decides.md.
    pub rule: &'static str,
    /// Why, in words.
    pub detail: String,
}

/// Both policies on one filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparisonDoc {
    /// Where it is mounted.
    pub mount: String,
    /// What each would do.
    #[serde(flatten)]
    pub both: Comparison,
}

/// Builds the document.
pub fn gc(result: &GcResult) -> GcDoc {
    let plan = &result.plan;
    let usage = plan.shown().map(|one| filesystem(result, one));
    let done = result.outcome.as_ref();
    let deletions = done.map_or(&[][..], |outcome| &outcome.deletions);
    let deleted: Vec<_> = match done {
        Some(_) => deletions.iter().map(|one| deletion(one, &plan.mounts)).collect(),
        None => {
            let mut spaces = result.before.clone();
            plan.steps.iter().map(|one| predicted(one, &plan.mounts, &mut spaces)).collect()
        }
    };
    let filesystems = plan.filesystems.iter().map(|one| with_sums(filesystem(result, one), &deleted));
    let filesystems: Vec<_> = filesystems.collect();
    let notes = plan.notes.iter().map(|message| Finding {
        path: PathBuf::new(),
        message: message.clone(),
        incomplete: false,
    });
    GcDoc {
        header: Header::new(result.command.as_str(), result.at),
        run_id: result.run_id.clone(),
        dry_run: result.dry_run,
        policy: result.policy.map_or("", PolicyKind::as_str).to_owned(),
        via: result.via.as_str().to_owned(),
        resumed: result.resumed,
        trigger: plan.trigger,
        usage_before_percent: usage.as_ref().and_then(|one| one.usage_before_percent),
        usage_after_percent: usage.as_ref().and_then(|one| one.usage_after_percent),
        high_percent: result.targets.used.map(|thresholds| thresholds.high),
        low_percent: result.targets.used.map(|thresholds| thresholds.low),
        min_free_bytes: result.targets.free.map(|floor| floor.start_below),
        wanted_bytes: plan.wanted_bytes(),
        predicted_bytes: deleted.iter().fold(0, |sum, one| sum.saturating_add(one.predicted_bytes)),
        measured_bytes: done.map(Outcome::measured_bytes),
        believed_bytes: result.believed_bytes,
        byproduct_bytes: deletions.iter().map(|one| one.byproduct_bytes).sum(),
        filesystems,
        deleted,
        // Leaks that stay are told of by `sweep`.
        kept: plan.kept.iter().filter(|kept| kept.target.kind != TargetKind::Leak).map(kept).collect(),
        errors: plan.problems.clone(),
        events: result.events.clone(),
        outcome: plan.outcome,
        hints: result.hints.clone(),
        not_in_store: result.outside.iter().map(not_in_store).collect(),
        comparison: result.comparison.iter().map(|both| comparison(&plan.mounts, both)).collect(),
        warnings: result.findings.iter().cloned().chain(notes).collect(),
    }
}

fn not_in_store(outside: &Outside) -> NotInStoreDoc {
    NotInStoreDoc {
        mount: outside.mount.to_string_lossy().into_owned(),
        bytes: outside.bytes,
        largest: outside.parts.clone(),
        text: outside.to_string(),
    }
}

fn kept(kept: &Kept) -> KeptDoc {
    KeptDoc {
        kind: kept.target.kind.as_str(),
        id: kept.target.id.clone(),
        names: kept.target.names.clone(),
        rule: kept.rule.as_str(),
        detail: kept.detail.clone(),
    }
}

fn comparison(mounts: &[PathBuf], both: &Comparison) -> ComparisonDoc {
    ComparisonDoc { mount: mount(mounts, both.filesystem), both: both.clone() }
}

fn mount(mounts: &[PathBuf], at: FilesystemIx) -> String {
    mounts.get(at.get()).map(|mount| mount.to_string_lossy().into_owned()).unwrap_or_default()
}

fn percent(measured: Option<&Measured>) -> Option<f64> {
    let space = measured?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

fn filesystem(result: &GcResult, plan: &FilesystemPlan) -> GcFilesystemDoc {
    let before = result.before.get(plan.filesystem.get());
    let available = |measured: Option<&Measured>| Some(measured?.as_ref().ok()?.available_bytes);
    let inodes_free = |measured: Option<&Measured>| Some(measured?.as_ref().ok()?.inodes_free);
    GcFilesystemDoc {
        mount: mount(&result.plan.mounts, plan.filesystem),
        usage_before_percent: percent(before),
        usage_after_percent: percent(plan.after.as_ref()),
        available_before_bytes: available(before),
        available_after_bytes: available(plan.after.as_ref()),
        wanted_bytes: plan.wanted.bytes,
        owed_bytes: before.and_then(|space| space.as_ref().ok()).map_or(0, |space| space.owed_bytes),
        wanted_inodes: plan.wanted.inodes,
        inodes_free_before: inodes_free(before),
        inodes_free_after: inodes_free(plan.after.as_ref()),
        predicted_bytes: 0,
        measured_bytes: result.outcome.as_ref().map(|_| 0),
        started: plan.started.names(),
        outcome: match plan.end {
            PassEnd::NotNeeded => OutcomeKind::NotNeeded,
            PassEnd::Reached => OutcomeKind::Reached,
            PassEnd::Open if !plan.started.any() => OutcomeKind::NotNeeded,
            PassEnd::NotReached | PassEnd::Open => OutcomeKind::NotReached,
            PassEnd::Invalid => OutcomeKind::Failed,
        },
    }
}

/// With what the deletions free there.
fn with_sums(filesystem: GcFilesystemDoc, deleted: &[DeletedDoc]) -> GcFilesystemDoc {
    let freed = || deleted.iter().flat_map(|one| &one.freed).filter(|one| one.filesystem == filesystem.mount);
    let predicted_bytes = freed().fold(0, |sum: u64, one| sum.saturating_add(one.predicted_bytes));
    let measured = freed().filter_map(|one| one.measured_bytes);
    let measured_bytes =
        filesystem.measured_bytes.map(|_| measured.fold(0, |sum: i64, one| sum.saturating_add(one)));
    GcFilesystemDoc { predicted_bytes, measured_bytes, ..filesystem }
}

/// A step of a plan, after those before it.
fn predicted(planned: &Step, mounts: &[PathBuf], spaces: &mut [Measured]) -> DeletedDoc {
    apply(&planned.gains, spaces);
    let mut document = step(planned, mounts);
    for (freed, gain) in document.freed.iter_mut().zip(&planned.gains) {
        freed.usage_after_percent = percent(spaces.get(gain.filesystem.get()));
    }
    document
}

pub(super) fn step(step: &Step, mounts: &[PathBuf]) -> DeletedDoc {
    let most = step.gains.iter().max_by_key(|gain| gain.size.frees_bytes);
    let Target { kind, id, names, .. } = &step.target;
    DeletedDoc {
        kind: kind.as_str(),
        id: id.clone(),
        names: names.clone(),
        store: step.target.store_root(),
        filesystem: most.map(|gain| mount(mounts, gain.filesystem)),
        freed: step.gains.iter().map(|gain| freed(gain, mounts)).collect(),
        reason: step.cause.reason().as_str(),
        predicted_bytes: step.predicted_bytes(),
        measured_bytes: None,
        usage_after_percent: step.expected.map(|space| two_decimals(space.used_percent())),
        at: None,
        group: step.group,
        byproduct_bytes: 0,
        differs: false,
        others_wrote: false,
    }
}

fn freed(gain: &Gain, mounts: &[PathBuf]) -> FreedDoc {
    FreedDoc {
        filesystem: mount(mounts, gain.filesystem),
        predicted_bytes: gain.size.frees_bytes,
        measured_bytes: None,
        usage_after_percent: None,
    }
}

pub(super) fn deletion(deletion: &Deletion, mounts: &[PathBuf]) -> DeletedDoc {
    let parts = deletion.step.gains.iter().map(|gain| {
        let measured = deletion.freed.iter().find(|one| one.filesystem == gain.filesystem);
        FreedDoc {
            measured_bytes: measured.map(|one| one.bytes),
            usage_after_percent: measured.and_then(|one| one.usage_after_percent).map(two_decimals),
            ..freed(gain, mounts)
        }
    });
    DeletedDoc {
        freed: parts.collect(),
        measured_bytes: deletion.measured_bytes,
        usage_after_percent: deletion.usage_after_percent.map(two_decimals),
        at: Some(deletion.at),
        byproduct_bytes: deletion.byproduct_bytes,
        differs: deletion.is_off(),
        others_wrote: deletion.is_disturbed(),
        ..step(&deletion.step, mounts)
    }
}
