//! Carries a plan out: one leak at a time, each proven again by the editor under the store's
//! locks, each measured after it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::execute::editors::Editors;
use crate::execute::measure::{Ended, Gauge, Patience, Room};
use crate::model::{FilesystemIx, Inventory, Leak, Recipe};
use crate::policy::leaks::plan::{Entry, Fate, Plan};
use crate::policy::space::Space;
use crate::stores::containers_storage::edit::{Deleted, Editor, Error, OrphanAt, Refusal, Unused};

/// Is told what happens, as it happens.
pub trait Witness {
    /// It is about to be deleted or mended.
    fn begins(&mut self, _leak: &Leak, _entry: &Entry) {}
    /// It is gone; its bytes are not measured yet.
    fn gone(&mut self, _leak: &Leak, _entry: &Entry) {}
    /// What was begun last was not touched after all.
    fn spared(&mut self, _leak: &Leak) {}
    /// Whether what was begun last is gone is not known.
    fn unproven(&mut self, _leak: &Leak, _message: &str) {}
    /// It was deleted and the result measured.
    fn deleted(&mut self, _leak: &Leak, _deletion: &Deletion) {}
    /// It would not go.
    fn failed(&mut self, _leak: &Leak, _entry: &Entry, _problem: &Problem) {}
}

/// A deletion that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Deletion {
    /// Position in the plan's entries.
    pub entry: usize,
    /// When it was done (UTC).
    pub at: Timestamp,
    /// Bytes that were expected to come back.
    pub predicted_bytes: u64,
    /// Bytes that came free on its filesystem, our ballast left aside; negative where others wrote
    /// more meanwhile. `None` where the filesystem could not be asked.
    pub measured_bytes: Option<i64>,
    /// Percent used of its filesystem afterwards.
    pub usage_after_percent: Option<f64>,
    /// The ballast was given up for it.
    pub ballast_released: bool,
}

/// Something that did not go, or not in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Position in the plan's entries.
    pub entry: usize,
    /// What kind of problem.
    pub kind: ProblemKind,
    /// In words.
    pub message: String,
    /// Bytes that came free all the same, where a part of it was removed.
    pub measured_bytes: Option<i64>,
}

/// What kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// Something has come to use it, or it has changed: it stays, and nothing is wrong.
    Kept,
    /// The store is closed to us: another program held its locks for too long, or what it takes to
    /// prove anything there cannot be read. It stays for this time.
    Locked,
    /// Something of it was removed, and something would not go.
    InPart,
    /// A failure.
    Failed,
}

impl ProblemKind {
    /// The step that it ended at.
    #[must_use]
    pub fn step(self) -> &'static str {
        match self {
            Self::Kept => "prove",
            Self::Locked => "lock",
            Self::InPart | Self::Failed => "remove",
        }
    }
}

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// What was deleted, in order.
    pub deletions: Vec<Deletion>,
    /// Positions in the plan's entries of what was mended.
    pub repaired: Vec<usize>,
    /// What did not go. What had gone before its turn is no problem.
    pub problems: Vec<Problem>,
    /// A signal ended it.
    pub stopped: bool,
}

impl Ran {
    /// Bytes that came free, from what was removed in part as well.
    #[must_use]
    pub fn measured_bytes(&self) -> i64 {
        let whole = self.deletions.iter().filter_map(|done| done.measured_bytes);
        let parts = self.problems.iter().filter_map(|problem| problem.measured_bytes);
        whole.chain(parts).fold(0, i64::saturating_add)
    }
}

/// All that a run works with.
pub struct Sweeper<'a> {
    /// What was found.
    pub inventory: &'a Inventory,
    /// What removes it.
    pub editors: &'a Editors,
    /// The minimum age, for what is proven by age.
    pub min_age: SignedDuration,
    /// Is told of everything.
    pub witness: &'a mut dyn Witness,
    /// Set by a signal: nothing more is begun.
    pub stop: &'a AtomicBool,
    /// How long to wait for late frees of what is big enough to be waited for.
    pub patience: Patience,
}

/// There may be ten thousand small ones, on a filesystem where others write and delete: for those
/// it is synchronised and looked at once.
const WORTH_WAITING: u64 = 4 << 20;

impl std::fmt::Debug for Sweeper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweeper").field("min_age", &self.min_age).finish_non_exhaustive()
    }
}

/// What came of one leak.
enum Came {
    Deleted(Deleted),
    Repaired,
    GoneBefore,
}

impl Sweeper<'_> {
    /// Carries `plan` out.
    pub fn run(&mut self, plan: &Plan) -> Ran {
        let mut ran = Ran::default();
        let mut gauges = Gauges::default();
        // A store whose lock somebody keeps is not waited for again.
        let mut locked = vec![None::<String>; self.inventory.stores.len()];
        for at in plan.order.iter().copied() {
            if self.stop.load(Ordering::Relaxed) {
                ran.stopped = true;
                break;
            }
            let entry = &plan.entries[at];
            let leak = &self.inventory.leaks[entry.leak.get()];
            let problem = |kind, message: String| Problem { entry: at, kind, message, measured_bytes: None };
            if let Some(message) = &locked[leak.store.get()] {
                ran.problems.push(problem(ProblemKind::Locked, message.clone()));
                continue;
            }
            let editor = match self.editors.store(&self.inventory.stores[leak.store.get()]) {
                Ok(editor) => editor,
                Err(why) => {
                    ran.problems.push(problem(ProblemKind::Kept, why.to_owned()));
                    continue;
                }
            };
            self.witness.begins(leak, entry);
            let gauge = gauges.of(self.inventory, leak);
            let before = gauge.and_then(|gauge| gauge.look(self.editors));
            let came = self.act(editor, leak, entry);
            let in_part = |deleted: &Deleted, message: String| {
                let deletion = self.measured(at, entry, deleted, gauge.zip(before));
                let message = format!("removed in part: {message}");
                Problem { measured_bytes: deletion.measured_bytes, ..problem(ProblemKind::InPart, message) }
            };
            let trouble = match came {
                Ok(Came::GoneBefore) => {
                    self.witness.spared(leak);
                    None
                }
                Ok(Came::Repaired) => {
                    self.witness.spared(leak);
                    ran.repaired.push(at);
                    None
                }
                Ok(Came::Deleted(deleted)) => match deleted.left_over() {
                    Some(message) => Some(in_part(&deleted, message)),
                    None => {
                        self.witness.gone(leak, entry);
                        let deletion = self.measured(at, entry, &deleted, gauge.zip(before));
                        self.witness.deleted(leak, &deletion);
                        ran.deletions.push(deletion);
                        None
                    }
                },
                Err(error) if error.is_interrupted() => {
                    match error {
                        Error::Interrupted => self.witness.spared(leak),
                        error => self.witness.unproven(leak, &error.to_string()),
                    }
                    ran.stopped = true;
                    break;
                }
                Err(Error::Stopped { done, cause }) => Some(in_part(&done, cause.to_string())),
                Err(error) => {
                    let kind = kind_of(&error);
                    if kind == ProblemKind::Locked {
                        locked[leak.store.get()] = Some(error.to_string());
                    }
                    Some(problem(kind, error.to_string()))
                }
            };
            if let Some(problem) = trouble {
                self.witness.failed(leak, entry, &problem);
                ran.problems.push(problem);
            }
        }
        ran
    }

    fn act(&self, editor: &Editor, leak: &Leak, entry: &Entry) -> Result<Came, Error> {
        let done = match entry.fate {
            Fate::Stay(_) => return Ok(Came::GoneBefore),
            Fate::Repair => editor.repair_link(&leak.id).map(|_| Came::Repaired),
            Fate::Delete(Recipe::RepairLink) => return Ok(Came::GoneBefore),
            Fate::Delete(Recipe::Orphan(kind)) => {
                let orphan = OrphanAt { kind, path: leak.path.clone() };
                editor.reclaim(&[orphan], self.min_age).and_then(|mut reclaimed| match reclaimed.kept.pop() {
                    Some((_, error)) => Err(error),
                    None => Ok(Came::Deleted(reclaimed.deleted)),
                })
            }
            Fate::Delete(Recipe::IncompleteLayer) => {
                editor.delete_unused_layer(&leak.id, Unused::Incomplete).map(Came::Deleted)
            }
            Fate::Delete(Recipe::UnreferencedLayer) => {
                editor.delete_unused_layer(&leak.id, Unused::unreferenced(self.min_age)).map(Came::Deleted)
            }
            Fate::Delete(Recipe::TemporaryFiles) => {
                editor.remove_temporary(&leak.path, self.min_age).map(Came::Deleted)
            }
        };
        match done {
            Err(Error::Refused(Refusal::Unknown { .. })) => Ok(Came::GoneBefore),
            other => other,
        }
    }

    fn measured(
        &self,
        at: usize,
        entry: &Entry,
        deleted: &Deleted,
        gauge: Option<(&FilesystemGauge, Look)>,
    ) -> Deletion {
        let predicted_bytes = entry.gain.frees_bytes;
        let mut deletion = Deletion {
            entry: at,
            at: Timestamp::now(),
            predicted_bytes,
            measured_bytes: None,
            usage_after_percent: None,
            ballast_released: deleted.ballast_released,
        };
        let Some((gauge, before)) = gauge else { return deletion };
        let patience = match predicted_bytes >= WORTH_WAITING {
            true => self.patience,
            false => Patience { deadline: Duration::ZERO, ..self.patience },
        };
        match gauge.gauge.settle(&before.room, predicted_bytes, patience) {
            Ok(settled) => {
                let ballast = self.editors.ballast_bytes(gauge.device);
                let change = signed(ballast).saturating_sub(signed(before.ballast));
                let measured = settled.measured_bytes.saturating_add(change);
                // What had come when a signal ended the waiting says little.
                deletion.measured_bytes = (settled.why != Ended::Signal).then_some(measured);
                deletion.usage_after_percent =
                    Space::of_room(&settled.room).ok().map(|space| space.used_percent());
            }
            Err(error) => tracing::warn!("measuring {}: {error}", gauge.gauge.path().display()),
        }
        deletion
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn kind_of(error: &Error) -> ProblemKind {
    match error {
        error if error.bars_store() => ProblemKind::Locked,
        Error::Refused(_) => ProblemKind::Kept,
        _ => ProblemKind::Failed,
    }
}

/// A filesystem at one moment, and our own part of it.
#[derive(Clone, Copy)]
struct Look {
    room: Room,
    ballast: u64,
}

struct FilesystemGauge {
    gauge: Gauge,
    device: u64,
}

impl FilesystemGauge {
    fn open(path: &std::path::Path) -> std::io::Result<Self> {
        let gauge = Gauge::open(path)?;
        let device = gauge.device().unwrap_or(0);
        Ok(Self { gauge, device })
    }

    fn look(&self, editors: &Editors) -> Option<Look> {
        let ballast = editors.ballast_bytes(self.device);
        let room = self.gauge.room().inspect_err(|error| tracing::warn!("measuring: {error}")).ok()?;
        Some(Look { room, ballast })
    }
}

/// One gauge a filesystem, opened when it is first asked for.
#[derive(Default)]
struct Gauges(HashMap<FilesystemIx, Option<FilesystemGauge>>);

impl Gauges {
    fn of(&mut self, inventory: &Inventory, leak: &Leak) -> Option<&FilesystemGauge> {
        let store = &inventory.stores[leak.store.get()];
        let held = leak.holds.first().map(|node| inventory.nodes[node.get()].filesystem);
        let filesystem = held.unwrap_or(store.filesystem);
        let open = || {
            let outside = || leak.path.parent().map_or_else(|| store.root.clone(), PathBuf::from);
            let path = if filesystem == store.filesystem { store.root.clone() } else { outside() };
            FilesystemGauge::open(&path)
                .inspect_err(|error| tracing::warn!("measuring {}: {error}", path.display()))
                .ok()
        };
        self.0.entry(filesystem).or_insert_with(open).as_ref()
    }
}
