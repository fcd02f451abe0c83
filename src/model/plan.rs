//! What is to be deleted, in which order and why: images, artifacts, names, containers, sandboxes,
//! logs and leaks alike.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::names;
use super::refs::{Live, Root};
use super::rules::{Rule, Ruling};
use super::space::{BytesAndInodes, InvalidStats, Measured, Space, Started};
use super::{FilesystemIx, ImageIx, Inventory, LayerId, Leak, LeakClass, OutcomeKind, Size, StoreId};

names! {
    /// What a step deletes.
    TargetKind {
        Image = "image",
        /// An OCI artifact.
        Artifact = "artifact",
        Container = "container",
        /// A pod sandbox.
        Sandbox = "sandbox",
        /// A directory of logs, a container's log, or a link to one.
        Log = "log",
        Leak = "leak",
    }
}

names! {
    /// Why something is deleted, as documents and records say it.
    Reason {
        Space = "space",
        Age = "age",
        Limit = "limit",
        Leak = "leak",
        Request = "request",
    }
}

/// Why something is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Its filesystem is short of space.
    Space,
    /// It has been idle for longer than the maximum age.
    Age,
    /// It was named in a request.
    Request,
    /// A leak that is proven safe to delete, or to repair.
    Leak,
    PodGone,
    /// There are newer ones of its eviction unit, as many as may stay.
    PerUnit,
    /// There are more dead containers than may stay on the node.
    Total,
    /// Its pod has a newer sandbox.
    Replaced,
    /// It is the log of a container that has just been removed.
    WithContainer,
    /// A dangling link of a container that no longer exists.
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

    /// A clause for messages.
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

/// An object, by what does not change from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub kind: TargetKind,
    /// `None` where it lies in none (logs).
    pub store: Option<StoreId>,
    /// Path of a log.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    pub leak: Option<LeakTarget>,
}

/// What else tells a leak from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakTarget {
    pub class: LeakClass,
    pub path: PathBuf,
}

impl Target {
    #[must_use]
    pub fn image(inventory: &Inventory, at: ImageIx) -> Self {
        let image = &inventory[at];
        Self {
            kind: if inventory.is_artifact(at) { TargetKind::Artifact } else { TargetKind::Image },
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

    /// Root of its store; empty where it lies in none.
    #[must_use]
    pub fn store_root(&self) -> String {
        let root = self.store.as_ref().map(|store| store.root().to_string_lossy().into_owned());
        root.unwrap_or_default()
    }

    /// Its first name, else its id.
    #[must_use]
    pub fn title(&self) -> &str {
        self.names.first().unwrap_or(&self.id)
    }

    /// Whether it is an image or an artifact.
    #[must_use]
    pub fn is_image(&self) -> bool {
        matches!(self.kind, TargetKind::Image | TargetKind::Artifact)
    }
}

/// What is done to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Delete,
    /// Its state is unknown: it is stopped first, and stays if that fails.
    StopAndDelete,
    /// Its records are repaired; nothing is freed.
    Repair,
}

/// What is freed on one filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gain {
    /// Position in [`Plan::mounts`].
    pub filesystem: FilesystemIx,
    /// Size of the freed nodes.
    pub size: Size,
}

/// A layer, told apart from one with the same id that was pulled later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerIdentity {
    pub id: LayerId,
    /// Creation time in its record.
    pub created: Option<Timestamp>,
}

/// One deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub target: Target,
    pub action: Action,
    pub cause: Cause,
    /// The filesystem that it is deleted for, if it is deleted for one.
    pub filesystem: Option<FilesystemIx>,
    /// What is expected to be freed at its place in the order, on each filesystem.
    pub gains: Vec<Gain>,
    /// Bytes of logs that are expected to be freed, wherever those lie.
    pub log_bytes: u64,
    /// It is deleted together with others, for bytes that are only freed when the last of them is
    /// deleted: how many are left of the group, this one included.
    pub group: Option<usize>,
    /// Layers of an image, each before its parent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerIdentity>,
    /// What [`Self::filesystem`] is expected to report afterwards; `None` if its numbers were invalid.
    pub expected: Option<Space>,
}

impl Step {
    /// Its deletion failed.
    #[must_use]
    pub fn problem(&self, failure: impl Into<Failure>) -> Problem {
        let phase = match self.target.kind {
            TargetKind::Image | TargetKind::Artifact => Phase::RemoveImage,
            _ => Phase::Remove,
        };
        Problem::new(Some(self.target.id.clone()), phase, failure)
    }

    /// A deletion that frees nothing, as far as is known.
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

    /// A deletion of an image that is the next one.
    #[must_use]
    pub fn of_image(
        inventory: &Inventory,
        live: &Live<'_>,
        image: ImageIx,
        (cause, filesystem): (Cause, FilesystemIx),
        measured: &[Measured],
    ) -> Self {
        let gains = gains(inventory, live, Root::Image(image));
        let here = gains.iter().find(|gain| gain.filesystem == filesystem).map(|gain| gain.size);
        let here = here.unwrap_or_default();
        let space = measured.get(filesystem.get()).and_then(|space| space.as_ref().ok());
        let expected = space.map(|space| space.gained(here.frees_bytes, here.inodes));
        Self {
            filesystem: Some(filesystem),
            gains,
            layers: layers_of(inventory, live, image),
            expected,
            ..Self::new(Target::image(inventory, image), cause)
        }
    }

    /// Bytes that are expected to be freed, on all filesystems.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.gains.iter().fold(self.log_bytes, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
    }

    /// Bytes that are expected to be freed on one filesystem.
    #[must_use]
    pub fn predicted_on(&self, filesystem: FilesystemIx) -> u64 {
        bytes_on(&self.gains, filesystem)
    }
}

fn layers_of(inventory: &Inventory, live: &Live<'_>, image: ImageIx) -> Vec<LayerIdentity> {
    let nodes: Vec<_> = live.reach(Root::Image(image)).iter().map(|node| &inventory[*node]).collect();
    let identity = |id: &LayerId| {
        let facts = nodes.iter().filter(|node| node.id == id.as_str()).find_map(|node| node.layer.as_ref());
        LayerIdentity { id: id.clone(), created: facts.and_then(|facts| facts.created) }
    };
    inventory[image].layers.iter().map(identity).collect()
}

/// Bytes that are expected to be freed on one filesystem.
#[must_use]
pub fn bytes_on(gains: &[Gain], filesystem: FilesystemIx) -> u64 {
    let here = gains.iter().filter(|gain| gain.filesystem == filesystem);
    here.fold(0, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
}

/// What the filesystems say once `gains` are freed.
pub fn apply(gains: &[Gain], spaces: &mut [Measured]) {
    for gain in gains {
        if let Some(Ok(space)) = spaces.get_mut(gain.filesystem.get()) {
            *space = space.gained(gain.size.frees_bytes, gain.size.inodes);
        }
    }
}

/// What they free on one filesystem.
#[must_use]
pub fn freed_on<'a>(at: FilesystemIx, gains: impl IntoIterator<Item = &'a Gain>) -> BytesAndInodes {
    let here = gains.into_iter().filter(|gain| gain.filesystem == at);
    here.map(|gain| gain.size).sum::<Size>().into()
}

/// What deleting `root` next frees, in order of the filesystems.
#[must_use]
pub fn gains(inventory: &Inventory, live: &Live<'_>, root: Root) -> Vec<Gain> {
    let nodes = live.last_held(root).map(|node| &inventory[node]);
    sum(nodes.map(|node| Gain { filesystem: node.filesystem, size: node.size }))
}

/// Adds up by filesystem, in order of the filesystems.
#[must_use]
pub fn sum(all: impl Iterator<Item = Gain>) -> Vec<Gain> {
    let mut sums: Vec<Gain> = Vec::new();
    for one in all {
        match sums.iter_mut().find(|gain| gain.filesystem == one.filesystem) {
            Some(gain) => gain.size += one.size,
            None => sums.push(one),
        }
    }
    sums.sort_by_key(|gain| gain.filesystem);
    sums
}

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub target: Target,
    /// See `docs/how-it-decides.md`.
    pub rule: Rule,
    /// A clause for messages.
    pub detail: String,
}

impl Kept {
    #[must_use]
    pub fn new(target: Target, Ruling { rule, detail, .. }: Ruling) -> Self {
        Self { target, rule, detail }
    }
}

names! {
    /// What was being done when something went wrong.
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

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub message: String,
    /// For want of space, inodes or quota: the fault of the disk, not of the target.
    pub no_space: bool,
}

impl Failure {
    /// Of a store in which nothing can be deleted: its disk is full, or it is closed to us.
    #[must_use]
    pub fn phase_of_store(&self) -> Phase {
        if self.no_space { Phase::Remove } else { Phase::Lock }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { message, no_space: false }
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
    // Or the mount point of the filesystem.
    /// The object; null where it is about the run.
    pub id: Option<String>,
    /// What failed: `begin`, `resume`, `read`, `list`, `prove`, `lock`, `stop` (a signal ended the run),
    /// `stop-container`, `remove`, `remove-image`, `measure` or `kubelet`.
    #[serde(rename = "step")]
    pub phase: Phase,
    /// Why.
    pub message: String,
    /// What to do about it; null where there is nothing.
    pub hint: Option<String>,
    /// See [`Failure::no_space`].
    #[serde(skip)]
    pub no_space: bool,
    /// Where space is missing, if that is known.
    #[serde(skip)]
    pub filesystem: Option<FilesystemIx>,
    /// Some of the object is deleted, and some of it is left.
    #[serde(skip)]
    pub in_part: bool,
    /// Bytes that were freed all the same, where the object was removed in part; null otherwise.
    pub measured_bytes: Option<i64>,
}

impl Problem {
    #[must_use]
    pub fn new(id: Option<String>, phase: Phase, failure: impl Into<Failure>) -> Self {
        let Failure { message, no_space } = failure.into();
        Self {
            id,
            phase,
            message,
            hint: None,
            no_space,
            filesystem: None,
            in_part: false,
            measured_bytes: None,
        }
    }
}

/// What triggered a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "TriggerDoc"))]
pub struct Trigger {
    /// At least one filesystem was short of space.
    pub space: bool,
    /// At least one image was too old.
    pub age: bool,
}

/// How the space pass over one filesystem ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassEnd {
    /// It has not come to an end.
    Open,
    /// No target started.
    NotNeeded,
    /// Every started target has ended.
    Reached,
    /// The candidates did not suffice.
    NotReached,
    /// The numbers were invalid.
    Invalid,
}

/// One filesystem's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilesystemPlan {
    /// Position in [`Plan::mounts`].
    pub filesystem: FilesystemIx,
    /// Its measurement when the first space pass began (after the age pass); `None`: no pass began.
    pub before: Option<Measured>,
    /// Its final numbers.
    pub after: Option<Measured>,
    /// The targets that started.
    pub started: Started,
    /// What was missing when they started.
    pub wanted: BytesAndInodes,
    pub end: PassEnd,
    /// Why it could not be judged.
    pub invalid: Option<InvalidStats>,
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
            invalid: None,
        }
    }
}

/// What is to be deleted, and what stays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub trigger: Trigger,
    /// Where the filesystems are mounted that [`FilesystemIx`] means.
    pub mounts: Vec<PathBuf>,
    /// Each filesystem that was judged.
    pub filesystems: Vec<FilesystemPlan>,
    /// The deletions in their order; those that failed are among the problems.
    pub steps: Vec<Step>,
    /// What stays; of a request, only what was named.
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
    /// Bytes expected to be freed by all steps together.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.predicted_bytes()))
    }

    /// Bytes that were missing on all filesystems together.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        self.filesystems.iter().fold(0, |sum, plan| sum.saturating_add(plan.wanted.bytes))
    }

    /// What all steps together free, by filesystem.
    #[must_use]
    pub fn gains(&self) -> Vec<Gain> {
        sum(self.steps.iter().flat_map(|step| step.gains.iter().copied()))
    }

    /// Moves something from what is deleted to what stays.
    pub fn spare(&mut self, target: Target, ruling: Ruling) {
        self.steps.retain(|step| (step.target.kind, &step.target.id) != (target.kind, &target.id));
        self.kept.push(Kept::new(target, ruling));
    }

    /// The filesystem that percentages are shown of: the first that was short of space, else the first.
    #[must_use]
    pub fn shown(&self) -> Option<&FilesystemPlan> {
        self.filesystems.iter().find(|one| one.started.any()).or(self.filesystems.first())
    }

    /// Adds something that went wrong and is about no single object.
    pub fn fail(&mut self, phase: Phase, message: String) {
        self.problems.push(Problem::new(None, phase, message));
    }

    /// Puts the steps of `earlier` before these; the rest of it is added behind.
    pub fn prepend(&mut self, mut earlier: Self) {
        std::mem::swap(&mut self.steps, &mut earlier.steps);
        self.add(earlier);
    }

    /// Adds what is done after it.
    pub fn add(&mut self, mut then: Self) {
        self.outcome = self.outcome.after(then.outcome);
        self.steps.append(&mut then.steps);
        self.kept.append(&mut then.kept);
        // That a store is locked, for example, may have been found twice.
        then.problems.retain(|problem| problem.id.is_some() || !self.problems.contains(problem));
        self.problems.append(&mut then.problems);
        self.notes.append(&mut then.notes);
    }
}
