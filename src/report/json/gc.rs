//! The document of a run of garbage collection, carried out or planned.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::SCHEMA_VERSION;
use super::TriggerDoc;
use super::parts::WarningDoc;
use crate::app::gc::GcResult;
use crate::model::FilesystemIx;
use crate::model::outcome::{Deletion, Outcome, OutcomeKind};
use crate::model::plan::{End, FilesystemPlan, Kept, Kind, Problem, Step, Target};
use crate::model::space::Measured;
use crate::policy::compare::{Comparison, Story};

/// `layersweep gc`, `layersweep rm`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcDoc {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// `gc` or `rm`.
    pub kind: &'static str,
    /// When the document was made, RFC 3339 UTC.
    #[cfg_attr(test, schemars(with = "String"))]
    pub generated_at: Timestamp,
    /// Names the run in `history`.
    pub run_id: String,
    /// Nothing was deleted: `deleted` is what a run would delete.
    pub dry_run: bool,
    /// `exact` or `kubelet`.
    pub policy: String,
    /// `cri` or `direct`.
    pub via: String,
    /// What made it act.
    pub trigger: TriggerDoc,
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
    /// Bytes that the policy believes it freed, by listed sizes; null for policy `exact`, which
    /// believes nothing.
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
    pub errors: Vec<GcErrorDoc>,
    /// Events that the kubelet would have recorded, in its terms.
    pub events: Vec<EventDoc>,
    /// `not_needed`, `reached`, `not_reached`, `failed` or `refused`.
    pub outcome: OutcomeKind,
    /// Both policies side by side, for a dry run of policy `kubelet`: the runtime's image filesystem.
    pub comparison: Vec<ComparisonDoc>,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<WarningDoc>,
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
    /// Inodes that were missing.
    pub wanted_inodes: u64,
    /// The targets that were missed: `used`, `free`, `inodes`.
    pub started: Vec<&'static str>,
    /// `not_needed`, `reached`, `not_reached` or `failed`.
    pub outcome: OutcomeKind,
}

/// A deletion.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeletedDoc {
    /// `image`, `artifact`, `container`, `sandbox`, `log`, `leak`, or `name`: an image lost this name and keeps
    /// others.
    pub kind: &'static str,
    /// Its id.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Root of its store.
    pub store: String,
    /// `space`, `age`, `limit`, `leak` or `request`.
    pub reason: &'static str,
    /// Bytes that this deletion was predicted to free, at its place in the order.
    pub predicted_bytes: u64,
    /// Bytes that it freed; null for a dry run. Negative where others wrote more.
    pub measured_bytes: Option<i64>,
    /// Percent used afterwards; for a dry run as predicted.
    pub usage_after_percent: Option<f64>,
    /// When; null for a dry run.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub at: Option<Timestamp>,
    /// Members left of the group that it goes together with, itself included.
    pub group: Option<usize>,
    /// Bytes of leaks that went along with it, on top of its own.
    pub byproduct_bytes: u64,
    /// Predicted and measured bytes differ by more than the filesystem's own fluctuation.
    pub differs: bool,
}

/// Something that stays.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptDoc {
    /// `image`, `container`, `sandbox`, `log` or `name`.
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

/// Something that went wrong.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcErrorDoc {
    /// The object, if one is concerned.
    pub id: Option<String>,
    /// What was being done.
    pub step: String,
    /// What happened.
    pub message: String,
}

/// Events that the kubelet would have recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EventDoc {
    /// `FreeDiskSpaceFailed`, `InvalidDiskCapacity` or `ImageGCFailed`.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// Both policies on one filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparisonDoc {
    /// Where it is mounted.
    pub mount: String,
    /// Percent used before.
    pub usage_before_percent: f64,
    /// What the kubelet would do.
    pub kubelet: StoryDoc,
    /// What policy `exact` would do.
    pub exact: StoryDoc,
}

/// What one policy would do, in as many runs as it needs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoryDoc {
    /// The runs that would do something, or fail.
    pub runs: Vec<RunStoryDoc>,
    /// Images deleted in all.
    pub deleted: usize,
    /// Bytes that the policy would believe it freed.
    pub believed_bytes: u64,
    /// Bytes actually freed.
    pub freed_bytes: u64,
    /// Percent used in the end.
    pub usage_after_percent: f64,
    /// The low threshold is reached.
    pub reached: bool,
}

/// One run of a story.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunStoryDoc {
    /// Ids of the images that would go, in order.
    pub deleted: Vec<String>,
    /// Ids of artifacts that the runtime would say are deleted, and that would still be there.
    pub still_there: Vec<String>,
    /// Bytes that were to be freed.
    pub wanted_bytes: u64,
    /// Bytes that the policy would believe it freed.
    pub believed_bytes: u64,
    /// Bytes actually freed.
    pub freed_bytes: u64,
    /// Percent used afterwards.
    pub usage_after_percent: f64,
    /// Why the run would fail; null if it would not.
    pub failure: Option<String>,
    /// Events that the kubelet would record, by its names.
    pub events: Vec<&'static str>,
}

/// Builds the document.
#[must_use]
pub fn gc(result: &GcResult) -> GcDoc {
    let plan = &result.plan;
    let filesystems: Vec<_> = plan.filesystems.iter().map(|one| filesystem(result, one)).collect();
    let usage = plan.shown().map(|one| filesystem(result, one));
    let done = result.outcome.as_ref();
    let deletions = done.map_or(&[][..], |outcome| &outcome.deletions);
    let deleted: Vec<_> = match done {
        Some(_) => deletions.iter().flat_map(|one| of_each(deletion(one))).collect(),
        None => plan.steps.iter().flat_map(|one| of_each(step(one))).collect(),
    };
    let notes = plan.notes.iter().map(|message| WarningDoc {
        path: String::new(),
        message: message.clone(),
        incomplete: false,
    });
    let findings = result.findings.iter().map(super::warning);
    let events = result.events.iter();
    GcDoc {
        schema_version: SCHEMA_VERSION,
        kind: result.command.as_str(),
        generated_at: result.at,
        run_id: result.run_id.clone(),
        dry_run: result.dry_run,
        policy: result.policy.to_owned(),
        via: result.via.as_str().to_owned(),
        trigger: TriggerDoc { space: plan.trigger.space, age: plan.trigger.age },
        usage_before_percent: usage.as_ref().and_then(|one| one.usage_before_percent),
        usage_after_percent: usage.as_ref().and_then(|one| one.usage_after_percent),
        high_percent: result.targets.used.map(|thresholds| thresholds.high),
        low_percent: result.targets.used.map(|thresholds| thresholds.low),
        min_free_bytes: result.targets.free.map(|floor| floor.start_below),
        wanted_bytes: plan.wanted_bytes(),
        predicted_bytes: deleted.iter().fold(0, |sum, one| sum.saturating_add(one.predicted_bytes)),
        measured_bytes: done.map(Outcome::measured_bytes),
        believed_bytes: result.kubelet.as_ref().map(|report| report.freed.freed_bytes),
        byproduct_bytes: deletions.iter().map(|one| one.byproduct_bytes).sum(),
        filesystems,
        deleted,
        // Leaks that stay are told of by `sweep`.
        kept: plan.kept.iter().filter(|kept| kept.target.kind != Kind::Leak).map(kept).collect(),
        errors: plan.problems.iter().map(problem).collect(),
        events: events.map(|one| EventDoc { reason: one.reason, message: one.message.clone() }).collect(),
        outcome: plan.outcome,
        comparison: result.comparison.iter().map(|both| comparison(&plan.mounts, both)).collect(),
        warnings: findings.chain(notes).collect(),
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

fn problem(problem: &Problem) -> GcErrorDoc {
    GcErrorDoc {
        id: problem.id.clone(),
        step: problem.phase.as_str().to_owned(),
        message: problem.message.clone(),
    }
}

fn comparison(mounts: &[PathBuf], both: &Comparison) -> ComparisonDoc {
    ComparisonDoc {
        mount: mount(mounts, both.filesystem),
        usage_before_percent: two_decimals(both.usage_before_percent),
        kubelet: story(&both.kubelet),
        exact: story(&both.exact),
    }
}

fn story(story: &Story) -> StoryDoc {
    let runs = story.runs.iter().map(|run| RunStoryDoc {
        deleted: run.deleted.clone(),
        still_there: run.still_there.clone(),
        wanted_bytes: run.wanted_bytes,
        believed_bytes: run.believed_bytes,
        freed_bytes: run.freed_bytes,
        usage_after_percent: two_decimals(run.usage_after_percent),
        failure: run.failure.clone(),
        events: run.events.clone(),
    });
    StoryDoc {
        runs: runs.collect(),
        deleted: story.deleted,
        believed_bytes: story.believed_bytes,
        freed_bytes: story.freed_bytes,
        usage_after_percent: two_decimals(story.usage_after_percent),
        reached: story.at_low,
    }
}

fn mount(mounts: &[PathBuf], at: FilesystemIx) -> String {
    mounts.get(at.get()).map(|mount| mount.to_string_lossy().into_owned()).unwrap_or_default()
}

fn percent(measured: Option<&Measured>) -> Option<f64> {
    let space = measured?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

fn two_decimals(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}

fn filesystem(result: &GcResult, plan: &FilesystemPlan) -> GcFilesystemDoc {
    let before = result.before.get(plan.filesystem.get());
    let available = |measured: Option<&Measured>| Some(measured?.as_ref().ok()?.available_bytes);
    GcFilesystemDoc {
        mount: mount(&result.plan.mounts, plan.filesystem),
        usage_before_percent: percent(before),
        usage_after_percent: percent(plan.after.as_ref()),
        available_before_bytes: available(before),
        available_after_bytes: available(plan.after.as_ref()),
        wanted_bytes: plan.wanted.bytes,
        wanted_inodes: plan.wanted.inodes,
        started: plan.started.names(),
        outcome: match plan.end {
            End::NotNeeded => OutcomeKind::NotNeeded,
            End::Reached => OutcomeKind::Reached,
            End::Open if !plan.started.any() => OutcomeKind::NotNeeded,
            End::NotReached | End::Open => OutcomeKind::NotReached,
            End::Invalid => OutcomeKind::Failed,
        },
    }
}

fn step(step: &Step) -> DeletedDoc {
    let Target { kind, id, names, .. } = &step.target;
    DeletedDoc {
        kind: kind.as_str(),
        id: id.clone(),
        names: names.clone(),
        store: step.target.store_root(),
        reason: step.cause.reason().as_str(),
        predicted_bytes: step.predicted_bytes(),
        measured_bytes: None,
        usage_after_percent: step.expected.map(|space| two_decimals(space.used_percent())),
        at: None,
        group: step.group,
        byproduct_bytes: 0,
        differs: false,
    }
}

fn deletion(deletion: &Deletion) -> DeletedDoc {
    DeletedDoc {
        measured_bytes: deletion.measured_bytes,
        usage_after_percent: deletion.usage_after_percent.map(two_decimals),
        at: Some(deletion.at),
        byproduct_bytes: deletion.byproduct_bytes,
        differs: deletion.is_off(),
        ..step(&deletion.step)
    }
}

/// Names that are taken from one image are told one by one.
fn of_each(one: DeletedDoc) -> Vec<DeletedDoc> {
    if one.kind != Kind::Name.as_str() {
        return vec![one];
    }
    let single =
        |name: &String| DeletedDoc { names: vec![name.clone()], usage_after_percent: None, ..one.clone() };
    one.names.iter().map(single).collect()
}
