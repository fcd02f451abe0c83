//! Deletes leaks. The editor proves each of them again under the store's locks.

use std::path::Path;

use jiff::SignedDuration;

use crate::editor::{Deleted, Editor, Error, OrphanAt, SetAside, Unused};
use crate::execute::editors::Editors;
use crate::execute::executor::{Handler, Run};
use crate::history::pins::Pins;
use crate::model::deletion::plan::{Action, Step};
use crate::model::rules::Rule;
use crate::model::{Aftermath, Answer, OutcomeKind, Plan, Recipe, RemovalResult};

/// Deletes and repairs `steps`, and returns the plan as it was carried out.
pub fn run(run: &mut Run<'_>, steps: &[Step], editors: &Editors, min_age: SignedDuration) -> Plan {
    let mut plan = Plan::default();
    let mut leaks = LeakHandler { editors, min_age, batch: &[], set_aside: None };
    for (position, step) in steps.iter().enumerate() {
        if run.is_stopped() {
            break;
        }
        if leaks.needs_session(step) {
            leaks.end_session(run);
            leaks.begin_batch(run, &steps[position..]);
        }
        run.carry_out(step.clone(), &mut leaks, &mut plan);
    }
    leaks.end_session(run);
    plan.outcome = if plan.steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
    plan
}

/// Maximum number of orphans that are proven in one session. Reading the store and the mounts costs the same for one
/// orphan.
const IN_ONE_SESSION: usize = 256;

struct LeakHandler<'a> {
    editors: &'a Editors,
    min_age: SignedDuration,
    /// Orphans of one store that are proven together and moved aside. They are announced before that, so that a killed
    /// run leaves a record of each.
    batch: &'a [Step],
    set_aside: Option<SetAside<'a>>,
}

impl<'a> LeakHandler<'a> {
    /// Returns true for an orphan that was not moved aside together with an earlier one.
    fn needs_session(&self, step: &Step) -> bool {
        let set_aside = self.set_aside.as_ref();
        orphan_of(step, step)
            .is_some_and(|orphan| !set_aside.is_some_and(|set_aside| set_aside.has_answer(&orphan.path)))
    }

    /// Announces the first of `steps`, with those after it that can be moved aside in the same session.
    fn begin_batch(&mut self, run: &mut Run<'_>, steps: &'a [Step]) {
        let orphans =
            steps.iter().take(IN_ONE_SESSION).take_while(|step| orphan_of(step, &steps[0]).is_some());
        let batch = &steps[..orphans.count()];
        self.batch = if run.announce(batch) { batch } else { &[] };
    }

    /// Deletes an orphan. The first of a batch opens its session.
    fn reclaim(&mut self, step: &Step, editor: &'a Editor, path: &Path) -> Result<Deleted, Error> {
        if self.set_aside.is_none() {
            let orphans: Vec<_> = self.batch.iter().filter_map(|other| orphan_of(other, step)).collect();
            self.set_aside = Some(editor.set_aside(&orphans, self.min_age)?);
        }
        let answer = self.set_aside.as_mut().and_then(|set_aside| set_aside.remove(path));
        answer.unwrap_or(Err(Error::Interrupted))
    }

    fn delete(&mut self, step: &Step) -> Answer {
        let (Some(key), Some(leak)) = (&step.target.store, &step.target.leak) else {
            return Answer::failed(step, "it is not a leak", Aftermath::Untouched);
        };
        let editor = match self.editors.find(key) {
            Ok(editor) => editor,
            Err(why) => return Answer::kept(Rule::NotProven, why),
        };
        let (id, path) = (&step.target.id, &leak.path);
        let done = match (leak.class.recipe(), step.action) {
            (Some(Recipe::RepairLink), Action::Repair) => {
                return editor.repair_link(id).map_or_else(|error| error.answer(step), |_| Answer::Removed);
            }
            (Some(Recipe::RepairLink) | None, _) => {
                return Answer::failed(step, "it cannot be deleted automatically", Aftermath::Untouched);
            }
            (Some(Recipe::Orphan(_)), _) => self.reclaim(step, editor, path),
            (Some(Recipe::IncompleteLayer), _) => editor.delete_unused_layer(id, Unused::Incomplete),
            (Some(Recipe::UnreferencedLayer), _) => {
                editor.delete_unused_layer(id, Unused::unreferenced(self.min_age))
            }
            (Some(Recipe::TemporaryFiles), _) => editor.remove_temporary(path, self.min_age),
        };
        match done.map(|deleted| deleted.left_over()) {
            Ok(None) => Answer::Removed,
            Ok(Some(message)) => Answer::failed(step, message, Aftermath::LeftOver),
            Err(error) => error.answer(step),
        }
    }

    /// Deletes the orphans that were moved aside and had no turn: the run was stopped. Withdraws those that were not.
    fn end_session(&mut self, run: &mut Run<'_>) {
        let set_aside = self.set_aside.take();
        let is_aside = |step: &&Step| {
            let orphan = orphan_of(step, step);
            let mut orphan = orphan.iter().zip(&set_aside);
            orphan.any(|(orphan, set_aside)| set_aside.has_moved(&orphan.path))
        };
        let withdrawn: Vec<_> = self.batch.iter().filter(|step| !is_aside(step)).collect();
        run.withdraw(&withdrawn);
        self.batch = &[];
        if let Some(set_aside) = set_aside {
            set_aside.end();
        }
    }
}

/// The orphan of a step, if the step deletes one in the store of `first`.
fn orphan_of(step: &Step, first: &Step) -> Option<OrphanAt> {
    let leak = step.target.leak.as_ref().filter(|_| step.target.store == first.target.store)?;
    match leak.class.recipe() {
        Some(Recipe::Orphan(kind)) => Some(OrphanAt { kind, path: leak.path.clone() }),
        _ => None,
    }
}

impl Handler for LeakHandler<'_> {
    /// Does nothing: the editor proves the leak under the locks.
    fn prove(&mut self, _: &mut Step, _: Option<Pins>) -> Result<(), Answer> {
        Ok(())
    }

    fn remove(&mut self, step: &Step) -> RemovalResult {
        self.delete(step).into()
    }
    fn own_bytes(&self, device: u64) -> u64 {
        let set_aside = self.set_aside.as_ref().map_or(0, |set_aside| set_aside.own_bytes(device));
        self.editors.reserve_file_bytes(device) + set_aside
    }
}
