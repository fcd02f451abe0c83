//! Deletes leaks. The editor proves each of them again under the store's locks.

use std::path::Path;

use jiff::SignedDuration;

use crate::editor::{Deleted, Editor, Error, OrphanAt, SetAside, Unused};
use crate::execute::editors::Editors;
use crate::execute::executor::{Handler, Run};
use crate::history::pins::Pins;
use crate::model::plan::{Action, Step};
use crate::model::rules::Rule;
use crate::model::{Aftermath, Answer, OutcomeKind, Plan, Recipe, RemovalResult};

/// Deletes and repairs `steps`, and returns the plan as it was carried out.
pub fn run(run: &mut Run<'_>, steps: &[Step], editors: &Editors, min_age: SignedDuration) -> Plan {
    let mut plan = Plan::default();
    let mut leaks = Leaks { editors, min_age, steps, set_aside: None };
    for step in steps {
        if run.is_stopped() {
            break;
        }
        run.carry_out(step.clone(), &mut leaks, &mut plan);
    }
    leaks.end_session();
    plan.outcome = if plan.steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
    plan
}

/// Maximum number of orphans that are proven in one session. Reading the store and the mounts costs the same for one
/// orphan.
const IN_ONE_SESSION: usize = 256;

struct Leaks<'a> {
    editors: &'a Editors,
    min_age: SignedDuration,
    steps: &'a [Step],
    set_aside: Option<SetAside<'a>>,
}

impl<'a> Leaks<'a> {
    /// Deletes an orphan. If it was not proven together with an earlier one, it is proven now, together with later
    /// ones.
    fn reclaim(&mut self, step: &Step, editor: &'a Editor, path: &Path) -> Result<Deleted, Error> {
        if let Some(answer) = self.set_aside.as_mut().and_then(|set_aside| set_aside.remove(path)) {
            return answer;
        }
        self.end_session();
        let rest = self.steps.iter().skip_while(|other| other.target != step.target);
        let orphans: Vec<_> = rest.map_while(|other| orphan_of(other, step)).take(IN_ONE_SESSION).collect();
        let set_aside = self.set_aside.insert(editor.set_aside(&orphans, self.min_age)?);
        set_aside.remove(path).unwrap_or(Err(Error::Interrupted))
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

    fn end_session(&mut self) {
        if let Some(set_aside) = self.set_aside.take() {
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

impl Handler for Leaks<'_> {
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
