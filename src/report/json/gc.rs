//! The document of a run of garbage collection, carried out or planned.

use jiff::Timestamp;
use serde::Serialize;

use super::SCHEMA_VERSION;
use super::TriggerDoc;
use super::history::differs;
use super::parts::WarningDoc;
use crate::execute::leaks::{ProblemKind, Ran as LeaksRan};
use crate::execute::untag::{self, Untag};
use crate::execute::{Deletion, Ran, Stopped};
use crate::model::Outcome;
use crate::model::{FilesystemIx, ImageIx, Inventory};
use crate::policy::compare::{Comparison, Story};
use crate::policy::kubelet;
use crate::policy::leaks::plan::Plan as LeakPlan;
use crate::policy::plan::{End, FilesystemPlan, Plan, Step, Trigger, Verdict};
use crate::policy::space::{Doubt, Measured, Targets};

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
    /// Bytes that the deletions were expected to give back.
    pub predicted_bytes: u64,
    /// Bytes that they gave back; null for a dry run. Negative where others wrote more.
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
    /// What the kubelet would have told as events, in its terms.
    pub events: Vec<EventDoc>,
    /// `not_needed`, `reached`, `not_reached`, `failed` or `refused`.
    pub outcome: Outcome,
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
    pub outcome: Outcome,
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
    /// Bytes that this deletion was expected to give back, at its place in the order.
    pub predicted_bytes: u64,
    /// Bytes that it gave back; null for a dry run. Negative where others wrote more.
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
    /// What came back differs from what was predicted by more than a filesystem's own noise.
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

/// What the kubelet would have told.
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
    /// Bytes that would really come back.
    pub freed_bytes: u64,
    /// Percent used in the end.
    pub usage_after_percent: f64,
    /// The low mark is reached in the end.
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
    /// Bytes that would really come back.
    pub freed_bytes: u64,
    /// Percent used afterwards.
    pub usage_after_percent: f64,
    /// Why the run would fail; null if it would not.
    pub failure: Option<String>,
    /// What the node would be told, by the kubelet's names.
    pub events: Vec<&'static str>,
}

/// What a document is made from.
#[derive(Clone, Copy, Debug)]
pub struct GcFacts<'a> {
    /// `gc` or `rm`.
    pub kind: &'static str,
    /// What there was.
    pub inventory: &'a Inventory,
    /// The plan, or what became of it.
    pub plan: &'a Plan,
    /// The run; `None` for a dry run.
    pub ran: Option<&'a Ran>,
    /// What the filesystems said before.
    pub before: &'a [Measured],
    /// What was aimed at.
    pub targets: &'a Targets,
    /// What the kubelet's own algorithm says of itself; `None` for policy `exact`.
    pub theirs: Option<&'a kubelet::Report>,
    /// `cri` or `direct`.
    pub via: &'a str,
    /// Names the run.
    pub run_id: &'a str,
    /// The last run failed, too.
    pub failed_before: bool,
    /// When.
    pub at: Timestamp,
}

impl GcDoc {
    /// The filesystem that the percentages are of: the first that was short of space, else the
    /// first.
    #[must_use]
    pub fn shown(&self) -> Option<&GcFilesystemDoc> {
        self.filesystems.iter().find(|one| !one.started.is_empty()).or(self.filesystems.first())
    }
}

/// Builds the document.
#[must_use]
pub fn gc(facts: &GcFacts<'_>) -> GcDoc {
    let filesystems: Vec<_> = facts.plan.filesystems.iter().map(|plan| filesystem(facts, plan)).collect();
    let shown = filesystems.iter().find(|one| !one.started.is_empty()).or(filesystems.first());
    let measured = facts.ran.map(|ran| ran.deletions.iter().map(|one| one.measured_bytes).sum());
    let byproduct = facts.ran.map_or(0, |ran| ran.deletions.iter().map(|one| one.byproduct_bytes).sum());
    let Trigger { space, age } = facts.plan.trigger;
    let outcome = outcome(facts);
    let mut document = GcDoc {
        schema_version: SCHEMA_VERSION,
        kind: facts.kind,
        generated_at: facts.at,
        run_id: facts.run_id.to_owned(),
        dry_run: facts.ran.is_none(),
        policy: if facts.theirs.is_some() { "kubelet" } else { "exact" }.to_owned(),
        via: facts.via.to_owned(),
        trigger: TriggerDoc { space, age },
        usage_before_percent: shown.and_then(|one| one.usage_before_percent),
        usage_after_percent: shown.and_then(|one| one.usage_after_percent),
        high_percent: facts.targets.used.map(|marks| marks.high),
        low_percent: facts.targets.used.map(|marks| marks.low),
        min_free_bytes: facts.targets.free.map(|floor| floor.start_below),
        wanted_bytes: facts.plan.wanted_bytes(),
        predicted_bytes: facts.plan.predicted_bytes(),
        measured_bytes: measured,
        believed_bytes: facts.theirs.map(|report| report.freed.freed_bytes),
        byproduct_bytes: byproduct,
        deleted: deleted(facts),
        kept: facts
            .plan
            .kept
            .iter()
            .map(|kept| {
                let image = &facts.inventory.images[kept.image.get()];
                KeptDoc {
                    kind: kind_of(facts.inventory, kept.image),
                    id: image.id.to_string(),
                    names: image.names.clone(),
                    rule: kept.rule.as_str(),
                    detail: kept.detail.clone(),
                }
            })
            .collect(),
        errors: facts
            .plan
            .problems
            .iter()
            .map(|problem| GcErrorDoc {
                id: problem
                    .image
                    .map(|at| facts.inventory.images[at.get()].id.to_string())
                    .or_else(|| Some(mount(facts.inventory, problem.filesystem?))),
                step: problem.step.to_owned(),
                message: problem.message.clone(),
            })
            .chain(facts.ran.iter().flat_map(|ran| &ran.in_part).map(|(at, message)| GcErrorDoc {
                id: Some(facts.inventory.images[at.get()].id.to_string()),
                step: "remove".into(),
                message: message.clone(),
            }))
            .collect(),
        events: Vec::new(),
        filesystems,
        outcome,
        comparison: Vec::new(),
        warnings: Vec::new(),
    };
    if let Some(Stopped::Signal) = facts.ran.and_then(|ran| ran.stopped.as_ref()) {
        let message = "a signal ended the run before its plan did".to_owned();
        document.errors.push(GcErrorDoc { id: None, step: "stop".into(), message });
    }
    if let Some(failure) = facts.theirs.and_then(|report| report.failure.as_ref()) {
        // What the kubelet's own log would have.
        let message = failure.to_string();
        document.errors.push(GcErrorDoc { id: None, step: "kubelet".into(), message });
    }
    document.events = events(facts, &document);
    document
}

/// A run that was refused before it began.
#[must_use]
pub fn refused(
    kind: &'static str,
    run_id: &str,
    via: &str,
    dry_run: bool,
    message: &str,
    at: Timestamp,
) -> GcDoc {
    GcDoc {
        schema_version: SCHEMA_VERSION,
        kind,
        generated_at: at,
        run_id: run_id.to_owned(),
        dry_run,
        policy: String::new(),
        via: via.to_owned(),
        trigger: TriggerDoc { space: false, age: false },
        usage_before_percent: None,
        usage_after_percent: None,
        high_percent: None,
        low_percent: None,
        min_free_bytes: None,
        wanted_bytes: 0,
        predicted_bytes: 0,
        measured_bytes: None,
        believed_bytes: None,
        byproduct_bytes: 0,
        filesystems: Vec::new(),
        deleted: Vec::new(),
        kept: Vec::new(),
        errors: vec![GcErrorDoc { id: None, step: "begin".into(), message: message.to_owned() }],
        events: Vec::new(),
        outcome: Outcome::Refused,
        comparison: Vec::new(),
        warnings: Vec::new(),
    }
}

/// Both policies side by side.
#[must_use]
pub fn comparison(inventory: &Inventory, both: &Comparison) -> ComparisonDoc {
    ComparisonDoc {
        mount: mount(inventory, both.filesystem),
        usage_before_percent: two_decimals(both.usage_before_percent),
        kubelet: story(inventory, &both.kubelet),
        exact: story(inventory, &both.exact),
    }
}

fn story(inventory: &Inventory, story: &Story) -> StoryDoc {
    let runs = story.runs.iter().map(|run| RunStoryDoc {
        deleted: run.deleted.iter().map(|at| image(inventory, *at).id.to_string()).collect(),
        still_there: run.still_there.iter().map(|at| image(inventory, *at).id.to_string()).collect(),
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

/// A run that ended early has failed, wherever it stood then.
fn outcome(facts: &GcFacts<'_>) -> Outcome {
    let stopped = facts.ran.and_then(|ran| ran.stopped.as_ref());
    match facts.plan.verdict {
        _ if matches!(stopped, Some(Stopped::Closed(_))) => Outcome::Refused,
        _ if stopped.is_some() || facts.ran.is_some_and(|ran| !ran.in_part.is_empty()) => Outcome::Failed,
        Verdict::Failed => Outcome::Failed,
        // What was to go there stays, whatever was reached elsewhere.
        _ if facts.ran.is_some_and(|ran| ran.left_aside) => Outcome::Refused,
        Verdict::NotNeeded => Outcome::NotNeeded,
        Verdict::Reached => Outcome::Reached,
        Verdict::NotReached => Outcome::NotReached,
    }
}

fn mount(inventory: &Inventory, at: FilesystemIx) -> String {
    inventory.filesystems[at.get()].mount.to_string_lossy().into_owned()
}

fn percent(measured: Option<&Measured>) -> Option<f64> {
    let space = measured?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

fn two_decimals(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}

fn filesystem(facts: &GcFacts<'_>, plan: &FilesystemPlan) -> GcFilesystemDoc {
    let before = facts.before.get(plan.filesystem.get());
    let available = |measured: Option<&Measured>| Some(measured?.as_ref().ok()?.available_bytes);
    GcFilesystemDoc {
        mount: mount(facts.inventory, plan.filesystem),
        usage_before_percent: percent(before),
        usage_after_percent: percent(plan.after.as_ref()),
        available_before_bytes: available(before),
        available_after_bytes: available(plan.after.as_ref()),
        wanted_bytes: plan.wanted.bytes,
        wanted_inodes: plan.wanted.inodes,
        started: plan.started.names(),
        outcome: match plan.end {
            End::NotNeeded => Outcome::NotNeeded,
            End::Reached => Outcome::Reached,
            End::Open if !plan.started.any() => Outcome::NotNeeded,
            End::NotReached | End::Open => Outcome::NotReached,
            End::Doubtful => Outcome::Failed,
        },
    }
}

fn deleted(facts: &GcFacts<'_>) -> Vec<DeletedDoc> {
    match facts.ran {
        Some(ran) => ran.deletions.iter().map(|deletion| done(facts, deletion)).collect(),
        None => facts.plan.steps.iter().map(|step| planned(facts, step)).collect(),
    }
}

/// `image`, or `artifact`.
fn kind_of(inventory: &Inventory, image: ImageIx) -> &'static str {
    if inventory.is_artifact(image) { "artifact" } else { "image" }
}

fn done(facts: &GcFacts<'_>, deletion: &Deletion) -> DeletedDoc {
    let inventory = facts.inventory;
    // By what does not move when the node is read again.
    let is_it = |at: &ImageIx| {
        let image = &inventory.images[at.get()];
        image.id == deletion.id && inventory.stores[image.store.get()].root == deletion.store
    };
    let found = (0..inventory.images.len()).map(ImageIx::from).find(is_it);
    DeletedDoc {
        kind: found.map_or("image", |at| kind_of(inventory, at)),
        id: deletion.id.clone(),
        names: deletion.names.clone(),
        store: deletion.store.to_string_lossy().into_owned(),
        reason: deletion.step.reason.as_str(),
        predicted_bytes: deletion.step.predicted_bytes(),
        measured_bytes: Some(deletion.measured_bytes),
        usage_after_percent: deletion.usage_after_percent.map(two_decimals),
        at: Some(deletion.at),
        group: deletion.step.group,
        byproduct_bytes: deletion.byproduct_bytes,
        differs: deletion.is_off(),
    }
}

fn planned(facts: &GcFacts<'_>, step: &Step) -> DeletedDoc {
    let image = image(facts.inventory, step.image);
    let expected = step.expected.map(|space| two_decimals(space.used_percent()));
    DeletedDoc {
        kind: kind_of(facts.inventory, step.image),
        id: image.id.to_string(),
        names: image.names.clone(),
        store: facts.inventory.stores[image.store.get()].root.to_string_lossy().into_owned(),
        reason: step.reason.as_str(),
        predicted_bytes: step.predicted_bytes(),
        measured_bytes: None,
        usage_after_percent: expected,
        at: None,
        group: step.group,
        byproduct_bytes: 0,
        differs: false,
    }
}

/// Adds the leaks that go before the images: planned, or with `ran` what became of them.
pub fn add_leaks(document: &mut GcDoc, inventory: &Inventory, plan: &LeakPlan, ran: Option<&LeaksRan>) {
    let planned = |at: usize| {
        let leak = &inventory.leaks[plan.entries[at].leak.get()];
        DeletedDoc {
            kind: "leak",
            id: leak.id.clone(),
            names: vec![leak.title()],
            store: inventory.stores[leak.store.get()].root.to_string_lossy().into_owned(),
            reason: "leak",
            predicted_bytes: plan.entries[at].gain.frees_bytes,
            measured_bytes: None,
            usage_after_percent: None,
            at: None,
            group: None,
            byproduct_bytes: 0,
            differs: false,
        }
    };
    let mut deleted: Vec<_> = match ran {
        None => plan.order.iter().map(|at| planned(*at)).collect(),
        Some(ran) => {
            let done = ran.deletions.iter().map(|done| DeletedDoc {
                measured_bytes: done.measured_bytes,
                usage_after_percent: done.usage_after_percent.map(two_decimals),
                at: Some(done.at),
                differs: done.measured_bytes.is_some_and(|measured| differs(done.predicted_bytes, measured)),
                ..planned(done.entry)
            });
            done.collect()
        }
    };
    let sum = deleted.iter().fold(0_u64, |sum, one| sum.saturating_add(one.predicted_bytes));
    document.predicted_bytes = document.predicted_bytes.saturating_add(sum);
    if let (Some(ran), Some(measured)) = (ran, &mut document.measured_bytes) {
        *measured = measured.saturating_add(ran.measured_bytes());
    }
    let problems = ran.into_iter().flat_map(|ran| &ran.problems);
    for problem in problems.filter(|problem| problem.kind != ProblemKind::Kept) {
        // What bars the store is told once, and of no single leak.
        let is_barred = problem.kind == ProblemKind::Locked;
        if is_barred && document.errors.iter().any(|error| error.message == problem.message) {
            continue;
        }
        let id = &inventory.leaks[plan.entries[problem.entry].leak.get()].id;
        document.errors.push(GcErrorDoc {
            id: (!is_barred).then(|| id.clone()),
            step: problem.kind.step().to_owned(),
            message: problem.message.clone(),
        });
    }
    if document.outcome == Outcome::NotNeeded && !deleted.is_empty() {
        document.outcome = Outcome::Reached;
    }
    // Of a deletion something stays: a failure on the way, whatever was reached.
    let met = |kind| ran.is_some_and(|ran| ran.problems.iter().any(|one| one.kind == kind));
    if matches!(document.outcome, Outcome::NotNeeded | Outcome::Reached) {
        if met(ProblemKind::InPart) {
            document.outcome = Outcome::Failed;
        } else if met(ProblemKind::Locked) {
            document.outcome = Outcome::Refused;
        }
    }
    deleted.append(&mut document.deleted);
    document.deleted = deleted;
}

/// Adds why something that was asked for was not begun: that is no single thing's problem.
pub fn add_refusal(document: &mut GcDoc, why: &str) {
    document.errors.push(GcErrorDoc { id: None, step: "prove".into(), message: why.to_owned() });
    if matches!(document.outcome, Outcome::NotNeeded | Outcome::Reached) {
        document.outcome = Outcome::Refused;
    }
}

/// Adds the names that were taken from images which keep others, before all else; without a time,
/// those that would be. One whose turn did not come has no outcome.
pub fn add_untagged<'a>(
    document: &mut GcDoc,
    inventory: &Inventory,
    untags: impl Iterator<Item = (&'a Untag, untag::Outcome)>,
    at: Option<Timestamp>,
) {
    let mut deleted = Vec::new();
    let mut all = true;
    let mut any = false;
    for (one, outcome) in untags {
        any = true;
        let image = image(inventory, one.image);
        all &= outcome == untag::Outcome::Done;
        match outcome {
            untag::Outcome::Done => deleted.extend(one.names.iter().map(|name| DeletedDoc {
                kind: "name",
                id: image.id.to_string(),
                names: vec![name.clone()],
                store: inventory.stores[image.store.get()].root.to_string_lossy().into_owned(),
                reason: "request",
                predicted_bytes: 0,
                measured_bytes: at.map(|_| 0),
                usage_after_percent: None,
                at,
                group: None,
                byproduct_bytes: 0,
                differs: false,
            })),
            untag::Outcome::Kept(ruling) => document.kept.push(KeptDoc {
                kind: "name",
                id: image.id.to_string(),
                names: one.names.clone(),
                rule: ruling.rule.as_str(),
                detail: ruling.detail,
            }),
            untag::Outcome::Refused(message) => document.errors.push(GcErrorDoc {
                id: Some(image.id.to_string()),
                step: "untag".into(),
                message,
            }),
        }
    }
    if any && matches!(document.outcome, Outcome::NotNeeded | Outcome::Reached) {
        document.outcome = if all { Outcome::Reached } else { Outcome::NotReached };
    }
    deleted.append(&mut document.deleted);
    document.deleted = deleted;
}

fn image(inventory: &Inventory, at: ImageIx) -> &crate::model::Image {
    &inventory.images[at.get()]
}

/// A dry run tells none, nothing has failed yet.
fn events(facts: &GcFacts<'_>, document: &GcDoc) -> Vec<EventDoc> {
    if facts.ran.is_none() {
        return Vec::new();
    }
    let mut events = match facts.theirs {
        Some(report) => by_kubelet(report),
        None => by_us(facts, document),
    };
    let failed = match facts.theirs {
        Some(report) => report.failure.is_some(),
        None => matches!(document.outcome, Outcome::Failed | Outcome::NotReached),
    };
    if facts.failed_before && failed {
        let first = document.errors.first().map(|error| error.message.clone());
        let first = first.or_else(|| events.first().map(|event| event.message.clone()));
        events.push(EventDoc {
            reason: "ImageGCFailed",
            message: format!("for the second time or more in a row: {}", first.unwrap_or_default()),
        });
    }
    events
}

/// What the kubelet tells by its own lights: nothing, where it believes that it has done its work.
fn by_kubelet(report: &kubelet::Report) -> Vec<EventDoc> {
    let message = report.failure.as_ref().map(ToString::to_string).unwrap_or_default();
    let event = |event: &kubelet::Event| EventDoc { reason: event.as_str(), message: message.clone() };
    report.events.iter().map(event).collect()
}

/// What came free, where others may have written more meanwhile.
fn came_free(measured_bytes: i64) -> String {
    match measured_bytes {
        0.. => measured_bytes.to_string(),
        less => format!("0 ({} more were written meanwhile)", less.unsigned_abs()),
    }
}

fn by_us(facts: &GcFacts<'_>, document: &GcDoc) -> Vec<EventDoc> {
    let mut events = Vec::new();
    for (plan, shown) in facts.plan.filesystems.iter().zip(&document.filesystems) {
        if let Some(Err(doubt @ (Doubt::NoCapacity | Doubt::Missing(_)))) = &plan.before {
            events.push(EventDoc {
                reason: "InvalidDiskCapacity",
                message: format!("{}: {doubt}", shown.mount),
            });
        }
        if plan.end == End::NotReached {
            let freed = facts.ran.map_or(0, |ran| {
                let here = ran.deletions.iter().filter(|one| one.step.filesystem == plan.filesystem);
                here.map(|one| one.measured_bytes).sum()
            });
            events.push(EventDoc {
                reason: "FreeDiskSpaceFailed",
                message: format!(
                    "{}: wanted to free {} bytes, but freed {}: everything else stays (`layersweep usage` \
                     shows who holds the rest)",
                    shown.mount,
                    plan.wanted.bytes,
                    came_free(freed)
                ),
            });
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::came_free;

    #[test]
    fn nothing_less_than_nothing_comes_free() {
        assert_eq!(came_free(4096), "4096");
        assert_eq!(came_free(-277_942_272), "0 (277942272 more were written meanwhile)");
    }
}
