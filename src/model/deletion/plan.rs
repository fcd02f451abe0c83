//! Plans: the objects to delete, with their order and reasons. Images, artifacts, names, containers, sandboxes,
//! logs and leaks use the same types.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::deletion::outcome_kind::OutcomeKind;
use crate::model::ids::{FilesystemIx, ImageIx, LayerId};
use crate::model::inventory::Inventory;
use crate::model::leak::Leak;
use crate::model::leak_class::LeakClass;
use crate::model::node::Size;
use crate::model::refs::{Live, Root};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{BytesAndInodes, InvalidStats, Measured, Space, Started};
use crate::model::store::StoreId;
use crate::model::text::display::{shell_reference, shell_word};
use crate::model::text::names::names;

names! {
    TargetKind {
        Image = "image",
        Artifact = "artifact",
        Container = "container",
        Sandbox = "sandbox",
        /// A directory of logs, a container's log, or a link to one.
        Log = "log",
        Leak = "leak",
    }
}

impl TargetKind {
    #[must_use]
    pub fn of_image(inventory: &Inventory, image_ix: ImageIx) -> Self {
        if inventory.is_artifact(image_ix) { Self::Artifact } else { Self::Image }
    }
}

names! {
    Reason {
        Space = "space",
        Age = "age",
        Limit = "limit",
        Leak = "leak",
        Request = "request",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its filesystem is short of space.
    Space,
    /// It has been idle for longer than the maximum age.
    Age,
    Request,
    /// It is a leak that is proven safe to delete or to repair.
    Leak,
    PodGone,
    /// Its eviction unit has enough newer containers.
    PerUnit,
    /// The node has more dead containers than the limit.
    Total,
    /// Its pod has a newer sandbox.
    Replaced,
    /// It is the log of a container that was just removed.
    WithContainer,
    /// It is a dangling link of a container that no longer exists.
    Dangling,
}

impl Cause {
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Space => Reason::Space,
            Self::Age | Self::PodGone | Self::Dangling => Reason::Age,
            Self::PerUnit | Self::Total | Self::Replaced | Self::WithContainer => Reason::Limit,
            Self::Leak => Reason::Leak,
            Self::Request => Reason::Request,
        }
    }

    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Space => "its filesystem is short of space",
            Self::Age => "idle longer than the maximum age",
            Self::Request => "named in the request",
            Self::Leak => "nothing uses it",
            Self::PodGone => "its pod is gone",
            Self::PerUnit => "newer instances of the same container are kept",
            Self::Total => "the node has more exited containers than the limit",
            Self::Replaced => "its pod has a newer sandbox",
            Self::WithContainer => "its container was removed",
            Self::Dangling => "its target does not exist",
        }
    }
}

/// Object, identified by what does not change from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub kind: TargetKind,
    /// `None` if it is not in a store (logs).
    pub store: Option<StoreId>,
    /// Id of the object; the path of a log.
    pub id: String,
    pub names: Vec<String>,
    pub leak: Option<LeakTarget>,
}

/// Class and path of a leak, which identify it together with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakTarget {
    pub class: LeakClass,
    pub path: PathBuf,
}

impl Target {
    #[must_use]
    pub fn image(inventory: &Inventory, image_ix: ImageIx) -> Self {
        let image = &inventory[image_ix];
        Self {
            kind: TargetKind::of_image(inventory, image_ix),
            store: Some(StoreId::of(&inventory[image.store])),
            id: image.id.to_string(),
            names: image.names.clone(),
            leak: None,
        }
    }

    #[must_use]
    pub fn leak(inventory: &Inventory, leak: &Leak) -> Self {
        Self {
            kind: TargetKind::Leak,
            store: Some(StoreId::of(&inventory[leak.store])),
            id: leak.id.clone(),
            names: vec![leak.title()],
            leak: Some(LeakTarget { class: leak.class, path: leak.path.clone() }),
        }
    }

    /// Returns the root of its store; empty if it is not in a store.
    #[must_use]
    pub fn store_root(&self) -> String {
        let root = self.store.as_ref().map(|store| store.root().to_string_lossy().into_owned());
        root.unwrap_or_default()
    }

    /// Returns the first name, or the id.
    #[must_use]
    pub fn title(&self) -> &str {
        self.names.first().unwrap_or(&self.id)
    }

    #[must_use]
    pub fn is_image(&self) -> bool {
        matches!(self.kind, TargetKind::Image | TargetKind::Artifact)
    }
}

names! {
    Action {
        Delete = "delete",
        /// Its state is unknown: stop it first, and keep it if that fails.
        StopAndDelete = "stop-and-delete",
        /// Repair its records. Frees nothing.
        Repair = "repair",
    }
}

/// Size that is freed on one filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gain {
    /// Position in [`Plan::mounts`].
    pub filesystem: FilesystemIx,
    pub size: Size,
}

/// Identity of a layer, which distinguishes it from a layer with the same id that was pulled later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerIdentity {
    pub id: LayerId,
    pub created: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub target: Target,
    pub action: Action,
    pub cause: Cause,
    /// Filesystem that it is deleted for, if any.
    pub filesystem: Option<FilesystemIx>,
    /// Expected gain on each filesystem, at its place in the order.
    pub gains: Vec<Gain>,
    /// Bytes of logs that are expected to be freed, on any filesystem.
    pub log_bytes: u64,
    /// Number of objects that remain in its group, including this one. The objects of a group are deleted together,
    /// because their shared bytes are only freed with the last of them.
    pub group: Option<usize>,
    /// Layers of an image, each before its parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerIdentity>,
    /// Numbers that [`Self::filesystem`] is expected to report afterwards; `None` if its numbers were invalid.
    pub expected: Option<Space>,
}

impl Step {
    #[must_use]
    pub fn problem(&self, failure: impl Into<Failure>) -> Problem {
        let phase = match self.target.kind {
            TargetKind::Image | TargetKind::Artifact => Phase::RemoveImage,
            _ => Phase::Remove,
        };
        Problem::new(Some(self.target.id.clone()), phase, failure)
    }

    /// Creates a deletion that frees nothing, as far as is known.
    #[must_use]
    pub fn new(target: Target, cause: Cause) -> Self {
        Self {
            target,
            action: Action::Delete,
            cause,
            filesystem: None,
            gains: Vec::new(),
            log_bytes: 0,
            group: None,
            layers: Vec::new(),
            expected: None,
        }
    }

    #[must_use]
    pub fn of_image(
        inventory: &Inventory,
        live: &Live<'_>,
        image: ImageIx,
        (cause, filesystem): (Cause, FilesystemIx),
        measured: &[Measured],
    ) -> Self {
        let gains = gains(inventory, live, Root::Image(image));
        let gain =
            gains.iter().find(|gain| gain.filesystem == filesystem).map(|gain| gain.size).unwrap_or_default();
        let space = measured.get(filesystem.get()).and_then(|space| space.as_ref().ok());
        let expected = space.map(|space| space.gained(gain.frees_bytes, gain.inodes));
        Self {
            filesystem: Some(filesystem),
            gains,
            layers: layers_of(inventory, live, image),
            expected,
            ..Self::new(Target::image(inventory, image), cause)
        }
    }

    /// Returns the bytes that are expected to be freed on all filesystems.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.gains.iter().fold(self.log_bytes, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
    }

    /// Returns the bytes that are expected to be freed on one filesystem.
    #[must_use]
    pub fn predicted_on(&self, filesystem: FilesystemIx) -> u64 {
        bytes_on(&self.gains, filesystem)
    }
}

fn layers_of(inventory: &Inventory, live: &Live<'_>, image: ImageIx) -> Vec<LayerIdentity> {
    let nodes: Vec<_> = live.reach(Root::Image(image)).iter().map(|node| &inventory[*node]).collect();
    let identities = inventory[image].layers.iter().map(|id| {
        let facts = nodes.iter().filter(|node| node.id == id.as_str()).find_map(|node| node.layer.as_ref());
        LayerIdentity { id: id.clone(), created: facts.and_then(|facts| facts.created) }
    });
    identities.collect()
}

/// Returns the bytes that are expected to be freed on one filesystem.
#[must_use]
pub fn bytes_on(gains: &[Gain], filesystem: FilesystemIx) -> u64 {
    let here = gains.iter().filter(|gain| gain.filesystem == filesystem);
    here.fold(0, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
}

/// Updates the numbers of the filesystems as if `gains` were freed.
pub fn apply(gains: &[Gain], spaces: &mut [Measured]) {
    for gain in gains {
        if let Some(Ok(space)) = spaces.get_mut(gain.filesystem.get()) {
            *space = space.gained(gain.size.frees_bytes, gain.size.inodes);
        }
    }
}

#[must_use]
pub fn freed_on<'a>(filesystem: FilesystemIx, gains: impl IntoIterator<Item = &'a Gain>) -> BytesAndInodes {
    let here = gains.into_iter().filter(|gain| gain.filesystem == filesystem);
    here.map(|gain| gain.size).sum::<Size>().into()
}

/// Returns the gains of deleting `root` next, in order of the filesystems.
#[must_use]
pub fn gains(inventory: &Inventory, live: &Live<'_>, root: Root) -> Vec<Gain> {
    let nodes = live.last_held(root).map(|node| &inventory[node]);
    sum(nodes.map(|node| Gain { filesystem: node.filesystem, size: node.size }))
}

/// Adds gains up by filesystem, in order of the filesystems.
#[must_use]
pub fn sum(gains: impl Iterator<Item = Gain>) -> Vec<Gain> {
    let mut sums: Vec<Gain> = Vec::new();
    for gain in gains {
        match sums.iter_mut().find(|sum| sum.filesystem == gain.filesystem) {
            Some(sum) => sum.size += gain.size,
            None => sums.push(gain),
        }
    }
    sums.sort_by_key(|gain| gain.filesystem);
    sums
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub target: Target,
    /// Rule that keeps it; see `docs/how-it-decides.md`.
    pub rule: Rule,
    pub detail: String,
    /// The rule kept it after the run began, although the plan was to delete it.
    #[serde(default)]
    pub since_run_began: bool,
    /// Bytes that the deletion of this object alone would free.
    #[serde(default)]
    pub frees_bytes: u64,
    /// Time at which the rule stops keeping it, if the rule depends on time.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

impl Kept {
    #[must_use]
    pub fn new(target: Target, Ruling { rule, detail, since_run_began, .. }: Ruling) -> Self {
        Self { target, rule, detail, since_run_began, frees_bytes: 0, until: None }
    }
}

names! {
    Phase {
        Begin = "begin",
        Resume = "resume",
        Read = "read",
        List = "list",
        Prove = "prove",
        Lock = "lock",
        /// A signal ended the run.
        Stop = "stop",
        StopContainer = "stop-container",
        Remove = "remove",
        RemoveImage = "remove-image",
        Measure = "measure",
        /// The kubelet's own algorithm failed.
        Kubelet = "kubelet",
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub message: String,
    /// It failed because space, inodes or quota ran out: the disk is the cause, not the target.
    pub no_space: bool,
    /// A call of the runtime failed.
    #[serde(default)]
    pub is_of_runtime: bool,
}

impl Failure {
    /// Returns the phase for a store in which nothing can be deleted: its disk is full, its runtime does not answer, or
    /// layersweep may not edit it.
    #[must_use]
    pub fn phase_of_store(&self) -> Phase {
        if self.no_space {
            Phase::Remove
        } else if self.is_of_runtime {
            Phase::Prove
        } else {
            Phase::Lock
        }
    }

    /// Returns true if a store is skipped for something that failed, not for a refusal.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.no_space || self.is_of_runtime
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, ..Self::default() }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ProblemDoc"))]
pub struct Problem {
    /// Id of the object, or mount point of the filesystem; null if it is about the run.
    pub id: Option<String>,
    /// Phase that failed: `begin`, `resume`, `read`, `list`, `prove`, `lock`, `stop` (a signal ended the run),
    /// `stop-container`, `remove`, `remove-image`, `measure` or `kubelet`.
    #[serde(rename = "step")]
    pub phase: Phase,
    /// Why.
    pub message: String,
    /// Advice on what to do; null if there is no advice.
    pub hint: Option<String>,
    /// See [`Failure::no_space`].
    #[serde(skip)]
    pub no_space: bool,
    /// See [`Failure::is_of_runtime`].
    #[serde(skip)]
    pub is_of_runtime: bool,
    /// Filesystem that lacks space, if known.
    #[serde(skip)]
    pub filesystem: Option<FilesystemIx>,
    /// The object is deleted only in part.
    #[serde(skip)]
    pub in_part: bool,
    /// Bytes that were freed although the deletion failed, if the object was removed in part; null otherwise.
    pub measured_bytes: Option<i64>,
}

impl Problem {
    #[must_use]
    pub fn new(id: Option<String>, phase: Phase, failure: impl Into<Failure>) -> Self {
        let Failure { message, no_space, is_of_runtime } = failure.into();
        Self {
            id,
            phase,
            message,
            hint: None,
            no_space,
            is_of_runtime,
            filesystem: None,
            in_part: false,
            measured_bytes: None,
        }
    }
}

/// Reasons why a run deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "TriggerDoc"))]
pub struct Trigger {
    /// At least one filesystem was short of space.
    pub space: bool,
    /// At least one image exceeded the maximum age.
    pub age: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassEnd {
    Open,
    /// No target started.
    NotNeeded,
    /// Every started target was reached.
    Reached,
    NotReached,
    Invalid,
}

/// Part of a plan that concerns one filesystem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilesystemPlan {
    /// Position in [`Plan::mounts`].
    pub filesystem: FilesystemIx,
    /// Measurement at the start of the first space pass (after the age pass); `None` if no pass began.
    pub before: Option<Measured>,
    /// Final measurement.
    pub after: Option<Measured>,
    pub started: Started,
    /// Bytes and inodes that were missing when the targets started.
    pub wanted: BytesAndInodes,
    pub end: PassEnd,
    /// Inodes that all images that may be deleted would free together, if these are too few to delete them for.
    pub few_inodes: Option<u64>,
    /// Reason why it could not be judged.
    pub invalid: Option<InvalidStats>,
    /// Expected cost of the deletions for space, with the order `cheapest`.
    pub pulls: Option<ExpectedPulls>,
}

/// Bytes that a pull is expected to transfer again for what a pass deletes: of each layer its compressed size times the
/// chance that an image with it is wanted again within a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ExpectedPullsDoc"))]
pub struct ExpectedPulls {
    /// Expected bytes.
    pub bytes: u64,
    /// Bytes that no choice of images costs less than; null if the images that can be pulled again do not free enough.
    pub at_least_bytes: Option<u64>,
    /// The compressed size of some layers is unknown, and was estimated from their size on the disk.
    pub is_estimated: bool,
}

impl FilesystemPlan {
    #[must_use]
    pub fn new(filesystem: FilesystemIx) -> Self {
        Self {
            filesystem,
            before: None,
            after: None,
            started: Started::default(),
            wanted: BytesAndInodes::default(),
            end: PassEnd::Open,
            few_inodes: None,
            invalid: None,
            pulls: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub trigger: Trigger,
    /// Mount points of the filesystems that [`FilesystemIx`] refers to.
    pub mounts: Vec<PathBuf>,
    pub filesystems: Vec<FilesystemPlan>,
    /// Deletions in their order; failed ones are among the problems.
    pub steps: Vec<Step>,
    /// Kept objects; for a request, only those that it names.
    pub kept: Vec<Kept>,
    pub problems: Vec<Problem>,
    pub notes: Vec<String>,
    pub outcome: OutcomeKind,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            trigger: Trigger::default(),
            mounts: Vec::new(),
            filesystems: Vec::new(),
            steps: Vec::new(),
            kept: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
            outcome: OutcomeKind::NotNeeded,
        }
    }
}

impl Plan {
    /// Returns the bytes that all steps together are expected to free.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.predicted_bytes()))
    }

    /// Returns the bytes that were missing on all filesystems together.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        self.filesystems.iter().fold(0, |sum, plan| sum.saturating_add(plan.wanted.bytes))
    }

    #[must_use]
    pub fn gains(&self) -> Vec<Gain> {
        sum(self.steps.iter().flat_map(|step| step.gains.iter().copied()))
    }

    /// Returns the filesystem whose percentages are shown: the first that was short of space, else the first.
    #[must_use]
    pub fn shown(&self) -> Option<&FilesystemPlan> {
        self.filesystems.iter().find(|plan| plan.started.any()).or(self.filesystems.first())
    }

    /// Returns the command that explains a target of this plan. If another store has an image of the same id, the command
    /// names the store.
    #[must_use]
    pub fn explain_command(&self, target: &Target) -> String {
        let command = format!("layersweep explain {}", shell_reference(&target.id));
        let mut targets =
            self.steps.iter().map(|step| &step.target).chain(self.kept.iter().map(|kept| &kept.target));
        let root = target.store_root();
        match &target.store {
            Some(store) if targets.any(|other| other.id == target.id && other.store_root() != root) => {
                format!("{command} {} {}", store.kind().facts().flag, shell_word(&root))
            }
            _ => command,
        }
    }

    /// Adds a problem that does not concern a single object.
    pub fn fail(&mut self, phase: Phase, message: String) {
        self.problems.push(Problem::new(None, phase, message));
    }

    /// Puts the steps of `earlier` before these, and appends the rest of `earlier`.
    pub fn prepend(&mut self, mut earlier: Self) {
        std::mem::swap(&mut self.steps, &mut earlier.steps);
        self.add(earlier);
    }

    pub fn add(&mut self, mut later: Self) {
        self.outcome = self.outcome.after(later.outcome);
        self.steps.append(&mut later.steps);
        self.kept.append(&mut later.kept);
        // Both plans may report the same problem of the run, for example a locked store.
        later.problems.retain(|problem| problem.id.is_some() || !self.problems.contains(problem));
        self.problems.append(&mut later.problems);
        self.notes.append(&mut later.notes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StoreKind;

    fn kept(root: &str, driver: &str, id: &str) -> Kept {
        let store = StoreId::new(StoreKind::ContainersStorage, root.into(), driver.into());
        let (kind, names) = (TargetKind::Image, vec![]);
        let target = Target { kind, store: Some(store), id: id.into(), names, leak: None };
        Kept::new(target, Ruling::keeps(Rule::OutOfReach, ""))
    }

    #[test]
    fn id_in_several_stores_needs_its_store() {
        let kept = vec![
            kept("/root", "overlay", "aa"),
            kept("/of a user", "overlay", "aa"),
            kept("/root", "overlay", "bb"),
            kept("/root", "vfs", "bb"),
        ];
        let plan = Plan { kept, ..Plan::default() };
        let commands: Vec<_> = plan.kept.iter().map(|kept| plan.explain_command(&kept.target)).collect();
        assert_eq!(
            commands,
            [
                "layersweep explain aa --graphroot /root",
                "layersweep explain aa --graphroot '/of a user'",
                "layersweep explain bb",
                "layersweep explain bb",
            ]
        );
    }
}
