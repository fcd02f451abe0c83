//! JSON document of a run of `gc` or `rm`, carried out or planned.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::DeletionDoc;
use super::deletion::mount;
use super::parts::{DocumentKind, Header};
use crate::app::gc::{GcResult, StoreWay};
use crate::config::Via;
use crate::execute::way::Way;
use crate::history::runs::{Command, Event};
use crate::model::deletion::outcome::{Outcome, OutcomeKind, UsageChange};
use crate::model::deletion::plan::{
    ExpectedPulls, FilesystemPlan, Kept, PassEnd, Problem, Step, Target, TargetKind, Trigger, apply,
};
use crate::model::rules::Rule;
use crate::model::space::Measured;
use crate::model::text::display::two_decimals;
use crate::model::{Finding, ImageId};
use crate::policy::PolicyKind;
use crate::policy::compare::Comparison;
use crate::policy::thresholds::Counted;
use crate::services::diagnosis::{Cause as UsageCause, Part, StoppedHolders};
use crate::services::outside::{InodeUse, Outside};

/// Document of `layersweep gc` and `layersweep rm`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcDoc {
    /// Common fields of all documents; the kind is `gc` or `rm`.
    #[serde(flatten)]
    pub header: Header,
    /// Id of the run in `history`.
    pub run_id: String,
    /// True if nothing was deleted: `deleted` contains what a run would delete.
    pub dry_run: bool,
    /// `exact` or `kubelet`; null for `rm`, and for a run that was refused before it began.
    pub policy: Option<PolicyKind>,
    /// `cri` or `direct`; `auto` if both are used (`stores` has the way of each), or if the run was refused before the
    /// backend was chosen.
    pub via: Via,
    /// Stores from which images can be deleted, each with its way; empty if the run was refused before it began.
    pub stores: Vec<GcStoreDoc>,
    /// Number of images, layers, containers and temporary files whose deletion a killed run had begun and
    /// this run finished first.
    pub resumed: usize,
    /// Thresholds and limits that caused deletions.
    pub trigger: Trigger,
    /// Percentage used before the run, of the filesystem short of space, or else of the first one.
    pub usage_before_percent: Option<f64>,
    /// Percentage used after the run; for a dry run, predicted.
    pub usage_after_percent: Option<f64>,
    /// Percentage above which images are deleted for space; null if percentages are not used.
    pub high_percent: Option<u8>,
    /// Percentage at which deleting for space ends; null if percentages are not used.
    pub low_percent: Option<u8>,
    /// Available bytes below which images are deleted for space; null if that threshold is not used.
    pub min_free_bytes: Option<u64>,
    /// Bytes missing to reach the targets, on all filesystems.
    pub wanted_bytes: u64,
    /// Bytes that the deletions were predicted to free.
    pub predicted_bytes: u64,
    /// Bytes freed by the deletions; null for a dry run. Negative if other processes wrote more.
    pub measured_bytes: Option<i64>,
    /// Bytes that the kubelet believes it would free, by listed sizes; null for policy `exact`.
    pub believed_bytes: Option<u64>,
    /// Bytes of leaks deleted along with the images by containerd's own garbage collection.
    pub byproduct_bytes: u64,
    /// Filesystems with images, each with its targets.
    pub filesystems: Vec<GcFilesystemDoc>,
    /// Deletions in order; for a dry run, predicted ones.
    pub deleted: Vec<DeletionDoc>,
    /// Objects that are kept, each with the rule that keeps it.
    pub kept: Vec<KeptDoc>,
    /// Failures during the run.
    pub errors: Vec<Problem>,
    /// Events that the kubelet would have recorded, in its terms.
    pub events: Vec<Event>,
    /// `not_needed`, `reached`, `not_reached`, `failed` or `refused`. `rm` is refused if a rule keeps a named image.
    pub outcome: OutcomeKind,
    /// Commands that end the use of images kept by `rm`, as clauses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// Lines of the lists of `rm --file` that name no image of this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
    /// Bytes of each filesystem outside the stores, if a target was not reached; and of each full filesystem without a
    /// store.
    pub not_in_store: Vec<NotInStoreDoc>,
    /// Use of the inodes of each filesystem that is still short of them.
    pub inode_use: Vec<InodeUseDoc>,
    /// Stopped containers, if a target was not reached, with the images that only they keep and the commands that remove
    /// them.
    pub stopped: StoppedHolders,
    /// The policies compared on the runtime's image filesystem, for a dry run with `--compare` or of policy `kubelet`.
    pub comparison: Vec<ComparisonDoc>,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Store with its way of deletion.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcStoreDoc {
    /// Root of the store.
    pub root: String,
    /// Storage driver; empty for containerd.
    pub driver: String,
    /// Mount point of its filesystem.
    pub mount: String,
    /// `cri` or `direct`; null if this run deletes nothing there.
    pub via: Option<Via>,
    /// Reason for which nothing is deleted there; null if images can be deleted.
    pub why: Option<String>,
    /// Other way to delete the images there, with its command; null if none is known or needed.
    pub remedy: Option<String>,
    /// Bytes that deleting all unused images there frees together, if this run deletes none of them.
    pub unused_bytes: u64,
}

/// Filesystem with its targets and their outcome.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcFilesystemDoc {
    /// The filesystem before and after the run, as in the document of `history`.
    #[serde(flatten)]
    pub usage: UsageChange,
    /// Available bytes before the first deletion.
    pub available_before_bytes: Option<u64>,
    /// Available bytes after the last deletion; for a dry run, predicted.
    pub available_after_bytes: Option<u64>,
    /// Bytes missing to reach the targets.
    pub wanted_bytes: u64,
    /// Part of `wanted_bytes` that root has used of its reserve: no more bytes become available until it is
    /// freed.
    pub owed_bytes: u64,
    /// Inodes missing to reach the targets.
    pub wanted_inodes: u64,
    /// Free inodes before the first deletion; 0 if the filesystem has no fixed number of inodes.
    pub inodes_free_before: Option<u64>,
    /// Free inodes after the last deletion; for a dry run, predicted.
    pub inodes_free_after: Option<u64>,
    /// Number of inodes; 0 if they are not limited.
    pub inodes: Option<u64>,
    /// Inodes that all images which may be deleted would free together, if these are too few to delete images for;
    /// null otherwise.
    pub few_inodes: Option<u64>,
    /// Bytes that are still missing after the last deletion; for a dry run, predicted.
    pub missing_bytes: u64,
    /// Inodes that are still missing after the last deletion; for a dry run, predicted.
    pub missing_inodes: u64,
    /// Bytes that the deletions were predicted to free here.
    pub predicted_bytes: u64,
    /// The deletions by age ended a shortage, so that none was left for space.
    #[serde(skip)]
    pub ended_by_age: bool,
    /// Expected cost of the deletions for space; null without such deletions and with the order `idle`.
    pub pulls: Option<ExpectedPulls>,
    /// `not_needed`, `reached`, `not_reached` or `failed`.
    pub outcome: OutcomeKind,
}

/// Used bytes of a filesystem outside the stores, which layersweep cannot free.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NotInStoreDoc {
    /// Mount point of the filesystem.
    pub mount: String,
    /// Used bytes outside the stores.
    pub bytes: u64,
    /// Named parts of these bytes, the largest first.
    pub largest: Vec<Part>,
    /// The same facts in words.
    pub text: String,
    /// Other data that can be deleted there, ranked as the causes in `report`.
    pub deletions: Vec<UsageCause>,
    /// Resource that is short, and that `used_after_percent` of the deletions counts: `bytes` or `inodes`.
    pub scarce: Counted,
    /// Low threshold in percent of this resource; null if it is not passed.
    pub low_percent: Option<f64>,
    /// False if no store is on the filesystem.
    pub has_store: bool,
}

/// Use of the inodes of a filesystem that is short of them.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InodeUseDoc {
    /// Mount point of the filesystem.
    pub mount: String,
    /// Number of inodes of the filesystem.
    pub inodes: u64,
    /// Inodes in images, also in those that are kept.
    pub in_images: u64,
    /// True if deleting all images, also those that are kept, would not help.
    pub is_outside: bool,
    /// Places outside the stores, containers and volumes with at least a tenth of the inodes, the largest first.
    pub largest: Vec<Part>,
    /// The same facts in words.
    pub text: String,
}

/// Object that is kept.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptDoc {
    /// `image`, `artifact`, `container`, `sandbox` or `log`.
    pub kind: TargetKind,
    /// Id of the object.
    pub id: String,
    /// All names of the object.
    pub names: Vec<String>,
    /// Rule that keeps it: see `docs/how-it-decides.md`.
    pub rule: Rule,
    /// Reason in words.
    pub detail: String,
    /// True if the rule kept it after the run began, although the plan was to delete it.
    pub since_run_began: bool,
    /// Bytes that the deletion of this object alone would free.
    pub frees_bytes: u64,
    /// Time at which the rule stops keeping it; null if that does not depend on time.
    pub until: Option<Timestamp>,
    /// Root of its store; empty if it is in none.
    #[serde(skip)]
    pub store: String,
    /// Command that explains it.
    #[serde(skip)]
    pub explain: String,
    /// Position of its store in the document, if nothing is deleted there.
    #[serde(skip)]
    pub closed_store: Option<usize>,
}

/// The policies on one filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComparisonDoc {
    /// Mount point of the filesystem.
    pub mount: String,
    /// Decisions of the policies.
    #[serde(flatten)]
    pub policies: Comparison,
}

/// Builds the document of `gc` or `rm`.
pub fn gc(result: &GcResult) -> GcDoc {
    let plan = &result.plan;
    let shown = plan.shown().map(|shown| filesystem(result, shown));
    let outcome = result.outcome.as_ref();
    let deletions = outcome.map_or(&[][..], |outcome| &outcome.deletions);
    let mut deleted: Vec<_> = match outcome {
        Some(_) => deletions.iter().map(|done| DeletionDoc::done(done, &plan.mounts)).collect(),
        None => {
            let mut spaces = result.before.clone();
            plan.steps.iter().map(|step| predicted(step, &plan.mounts, &mut spaces)).collect()
        }
    };
    let targets: Vec<&Target> = match outcome {
        Some(_) => deletions.iter().map(|done| &done.step.target).collect(),
        None => plan.steps.iter().map(|step| &step.target).collect(),
    };
    for (document, target) in deleted.iter_mut().zip(targets) {
        let store = target.store.clone();
        document.never_pulled =
            store.is_some_and(|store| result.never_pulled.contains(&(store, target.id.clone())));
    }
    let filesystems: Vec<_> = plan
        .filesystems
        .iter()
        .map(|filesystem_plan| with_sums(filesystem(result, filesystem_plan), &deleted))
        .collect();
    let notes = plan.notes.iter().map(|message| Finding {
        path: PathBuf::new(),
        message: message.clone(),
        incomplete: false,
    });
    GcDoc {
        header: Header::new(
            match result.command {
                Command::Rm => DocumentKind::Rm,
                Command::Gc | Command::Scan | Command::Sweep => DocumentKind::Gc,
            },
            result.at,
        ),
        run_id: result.run_id.clone(),
        dry_run: result.dry_run,
        policy: result.policy,
        via: result.via,
        stores: result.stores.iter().map(|store| gc_store(&plan.mounts, store)).collect(),
        resumed: result.resumed,
        trigger: plan.trigger,
        usage_before_percent: shown.as_ref().and_then(|filesystem| filesystem.usage.usage_before_percent),
        usage_after_percent: shown.as_ref().and_then(|filesystem| filesystem.usage.usage_after_percent),
        high_percent: result.targets.used.map(|thresholds| thresholds.high),
        low_percent: result.targets.used.map(|thresholds| thresholds.low),
        min_free_bytes: result.targets.free.map(|floor| floor.start_below),
        wanted_bytes: plan.wanted_bytes(),
        predicted_bytes: deleted.iter().fold(0, |sum, deletion| sum.saturating_add(deletion.predicted_bytes)),
        measured_bytes: outcome.map(Outcome::measured_bytes),
        believed_bytes: result.believed_bytes,
        byproduct_bytes: deletions.iter().map(|deletion| deletion.byproduct_bytes).sum(),
        filesystems,
        deleted,
        // `sweep` reports the leaks that are kept.
        kept: plan
            .kept
            .iter()
            .filter(|kept| kept.target.kind != TargetKind::Leak)
            .map(|object| kept(result, object))
            .collect(),
        errors: plan.problems.clone(),
        events: result.events.clone(),
        outcome: plan.outcome,
        hints: result.hints.clone(),
        absent: result.absent.clone(),
        not_in_store: result.outside.iter().map(not_in_store).collect(),
        inode_use: result.inode_uses.iter().map(inode_use).collect(),
        stopped: result.stopped.clone(),
        comparison: result.comparison.iter().map(|policies| comparison(&plan.mounts, policies)).collect(),
        warnings: result.findings.iter().cloned().chain(notes).collect(),
    }
}

fn not_in_store(outside: &Outside) -> NotInStoreDoc {
    NotInStoreDoc {
        mount: outside.mount.to_string_lossy().into_owned(),
        bytes: outside.bytes,
        largest: outside.parts.clone(),
        text: outside.to_string(),
        deletions: outside.causes.clone(),
        scarce: outside.scarce,
        low_percent: outside.low,
        has_store: outside.without_store.is_none(),
    }
}

fn inode_use(inode_use: &InodeUse) -> InodeUseDoc {
    InodeUseDoc {
        mount: inode_use.mount.to_string_lossy().into_owned(),
        inodes: inode_use.inodes,
        in_images: inode_use.in_images,
        is_outside: inode_use.is_outside,
        largest: inode_use.largest.clone(),
        text: inode_use.to_string(),
    }
}

fn gc_store(mounts: &[PathBuf], store: &StoreWay) -> GcStoreDoc {
    let (via, why) = match &store.way {
        Way::Cri => (Some(Via::Cri), None),
        Way::Direct => (Some(Via::Direct), None),
        Way::Closed(why) | Way::Silent(why) => (None, Some(why.clone())),
    };
    GcStoreDoc {
        root: store.id.root().to_string_lossy().into_owned(),
        driver: store.id.driver().to_owned(),
        mount: mount(mounts, store.filesystem),
        via,
        why,
        remedy: Some(store.remedy.clone()).filter(|remedy| !remedy.is_empty()),
        unused_bytes: store.unused_bytes,
    }
}

fn kept(result: &GcResult, kept: &Kept) -> KeptDoc {
    // The program that uses another namespace deletes its images, whatever is true of the store.
    let is_of_store = ImageId::from(kept.target.id.as_str()).namespace().is_none();
    let closed_store = result.stores.iter().position(|store| {
        is_of_store && store.way.reason_against().is_some() && kept.target.store.as_ref() == Some(&store.id)
    });
    KeptDoc {
        kind: kept.target.kind,
        id: kept.target.id.clone(),
        names: kept.target.names.clone(),
        rule: kept.rule,
        detail: kept.detail.clone(),
        since_run_began: kept.since_run_began,
        frees_bytes: kept.frees_bytes,
        until: kept.until,
        store: kept.target.store_root(),
        explain: result.plan.explain_command(&kept.target),
        closed_store,
    }
}

fn comparison(mounts: &[PathBuf], policies: &Comparison) -> ComparisonDoc {
    ComparisonDoc { mount: mount(mounts, policies.filesystem), policies: policies.clone() }
}

fn percent(measured: Option<&Measured>) -> Option<f64> {
    let space = measured?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

fn filesystem(result: &GcResult, plan: &FilesystemPlan) -> GcFilesystemDoc {
    let measured_before = result.before.get(plan.filesystem.get());
    let before = measured_before.and_then(|space| space.as_ref().ok());
    let after = plan.after.as_ref().and_then(|space| space.as_ref().ok());
    let missing = result.targets.missing(plan);
    GcFilesystemDoc {
        usage: UsageChange {
            measured_bytes: result.outcome.as_ref().map(|_| 0),
            ..UsageChange::new(&result.plan, plan, measured_before, plan.after.as_ref())
        },
        available_before_bytes: before.map(|space| space.available_bytes),
        available_after_bytes: after.map(|space| space.available_bytes),
        wanted_bytes: plan.wanted.bytes,
        owed_bytes: before.map_or(0, |space| space.owed_bytes),
        wanted_inodes: plan.wanted.inodes,
        inodes_free_before: before.map(|space| space.inodes_free),
        inodes_free_after: after.map(|space| space.inodes_free),
        inodes: before.map(|space| space.inodes),
        few_inodes: plan.few_inodes,
        missing_bytes: missing.bytes,
        missing_inodes: missing.inodes,
        predicted_bytes: 0,
        ended_by_age: result.plan.trigger.age
            && !plan.started.any()
            && before.is_some_and(|space| result.targets.start(space).is_ok_and(|started| started.any())),
        pulls: plan.pulls,
        outcome: match plan.end {
            PassEnd::NotNeeded => OutcomeKind::NotNeeded,
            PassEnd::Reached => OutcomeKind::Reached,
            PassEnd::Open if !plan.started.any() => OutcomeKind::NotNeeded,
            PassEnd::NotReached | PassEnd::Open => OutcomeKind::NotReached,
            PassEnd::Invalid => OutcomeKind::Failed,
        },
    }
}

fn with_sums(filesystem: GcFilesystemDoc, deleted: &[DeletionDoc]) -> GcFilesystemDoc {
    let freed = deleted.iter().flat_map(|deletion| &deletion.freed);
    let (mut predicted_bytes, mut measured_bytes) = (0_u64, 0_i64);
    for freed in freed.filter(|freed| freed.filesystem == filesystem.usage.mount) {
        predicted_bytes = predicted_bytes.saturating_add(freed.predicted_bytes);
        measured_bytes = measured_bytes.saturating_add(freed.measured_bytes.unwrap_or(0));
    }
    let measured_bytes = filesystem.usage.measured_bytes.map(|_| measured_bytes);
    let usage = UsageChange { measured_bytes, ..filesystem.usage };
    GcFilesystemDoc { usage, predicted_bytes, ..filesystem }
}

/// Builds a planned deletion and applies it to `spaces`, which contains the effect of the steps before it.
fn predicted(planned: &Step, mounts: &[PathBuf], spaces: &mut [Measured]) -> DeletionDoc {
    apply(&planned.gains, spaces);
    let mut document = DeletionDoc::planned(planned, mounts);
    for (freed, gain) in document.freed.iter_mut().zip(&planned.gains) {
        freed.usage_after_percent = percent(spaces.get(gain.filesystem.get()));
    }
    document
}
