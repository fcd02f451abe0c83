//! Containers through the runtime: the proof right before a removal, the removal, and its confirmation.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cri::{CriError, CriProblem};
use crate::execute::containers::look::{CriListing, CriSource};
use crate::execute::cri::runtime_stores;
use crate::execute::executor::Handler;
use crate::execute::proof;
use crate::execute::remover::{PreconditionError, reported_removed};
use crate::execute::runtime_match::RuntimeStores;
use crate::history::pins::Pins;
use crate::model::plan::{Action, Phase, Problem, Step, TargetKind};
use crate::model::rules::Rule;
use crate::model::{
    Aftermath, Answer, Consistency, Container, ContainerState, Inventory, Plan, RemovalResult,
};
use crate::policy::containers::Verdicts;
use crate::stores::{Measure, ScanRequest};
use crate::sys::stop;

/// Time for which a container of unknown state may end by itself. The kubelet uses the pod's grace period, 30 seconds
/// by default.
const GRACE: Duration = Duration::from_secs(30);

/// Maximum time until a container disappears after a removal whose result the runtime did not report.
const GONE_IN_DOUBT_WITHIN: Duration = Duration::from_secs(2);

/// A container or sandbox of the runtime's own store.
fn on_disk<'i>(inventory: &'i Inventory, stores: &RuntimeStores, id: &str) -> Option<&'i Container> {
    inventory.containers.iter().find(|container| container.store == stores.main && container.id == id)
}

impl CriSource<'_> {
    /// Reads the records on the disk now, and finds the runtime's stores among them.
    pub(super) fn disk(&self, measure: Measure) -> Result<(Inventory, RuntimeStores), PreconditionError> {
        let request = ScanRequest { measure, ..self.collection.request.clone() };
        let inventory = proof::rescan(request)?.inventory;
        let stores = runtime_stores(self.collection.client, self.collection.runtime_store, &inventory)?;
        Ok((inventory, stores))
    }

    fn prove_container(&mut self, step: &Step) -> Result<(), Answer> {
        let policy = self.collection.policy;
        let id = &step.target.id;
        let seen = self.recent()?;
        let Some(listed) = seen.listing.containers.iter().find(|container| container.id == *id) else {
            return Err(Answer::AlreadyGone);
        };
        let verdicts = seen.listing.verdicts(TargetKind::Container, policy, &BTreeSet::new());
        prove_verdict(&verdicts, id)?;
        // The state must be current: the runtime removes even a running container.
        let Some(details) = self.fresh(id)? else { return Err(Answer::AlreadyGone) };
        match details.state {
            ContainerState::Exited => {}
            ContainerState::Running => return Err(Answer::kept(Rule::Running, "it is running now")),
            ContainerState::Created => {
                if listed.state != ContainerState::Created {
                    return Err(Answer::kept(Rule::Running, "the runtime reports contradictory states"));
                }
            }
            ContainerState::Unknown if step.action == Action::StopAndDelete => {}
            ContainerState::Unknown => {
                return Err(Answer::kept(Rule::StateUnknown, "the runtime no longer knows its state"));
            }
        }
        self.prove_no_process_in(id)?;
        let disk = self.recent_disk()?;
        let (inventory, stores) = &*disk;
        let unmounts_exited = inventory[stores.main].kind.facts().unmounts_exited;
        match on_disk(inventory, stores, id) {
            Some(recorded) if unmounts_exited && recorded.state == ContainerState::Running => {
                Err(Answer::kept(
                    Rule::Running,
                    "the runtime reports it as exited, but its root filesystem is in use",
                ))
            }
            _ => Ok(()),
        }
    }

    fn prove_sandbox(&mut self, step: &Step) -> Result<(), Answer> {
        let policy = self.collection.policy;
        let id = &step.target.id;
        let seen = self.recent()?;
        if !seen.listing.sandboxes.iter().any(|sandbox| sandbox.id == *id) {
            return Err(Answer::AlreadyGone);
        }
        let verdicts = seen.listing.verdicts(TargetKind::Sandbox, policy, &BTreeSet::new());
        prove_verdict(&verdicts, id)?;
        self.prove_no_process_in(id)?;
        // The removal of a sandbox removes every container in it by force, also one that was created since the listing.
        // The runtime's answer may be incomplete, so the records on the disk are checked, too.
        let listed = self.collection.client.containers_in(id).map_err(PreconditionError::from)?;
        if let Some(container) = listed.first() {
            let message = format!("the runtime lists its container {} now", container.name);
            return Err(Answer::kept(Rule::HasContainers, message));
        }
        let (inventory, stores) = self.disk(Measure::Records)?;
        let inside = inventory.containers.iter().find(|container| {
            container.store == stores.main
                && container.id != *id
                && container.sandbox_id.as_deref() == Some(id.as_str())
        });
        match inside {
            Some(container) => Err(Answer::kept(
                Rule::HasContainers,
                format!("its container {} is on the disk, but the runtime does not list it", container.name),
            )),
            None => Ok(()),
        }
    }

    fn prove_no_process_in(&mut self, id: &str) -> Result<(), Answer> {
        match self.process_in(id) {
            Ok(None) => Ok(()),
            Ok(Some(pid)) => Err(Answer::kept(
                Rule::Running,
                format!("the runtime reports it as exited, but process {pid} runs in it"),
            )),
            Err(error) => Err(Answer::kept(
                Rule::Running,
                format!("cannot determine whether anything runs in it: {error}"),
            )),
        }
    }

    /// Stops a container of unknown state. Returns `None` if it has certainly ended and still exists.
    fn stop(&self, step: &Step) -> Option<RemovalResult> {
        let (client, id) = (self.collection.client, &step.target.id);
        if let Err(error) = client.stop_container(id, GRACE) {
            return Some(not_stopped(step, &error).into());
        }
        match client.container(id) {
            Err(error) => Some(Answer::failed(step, error.to_string(), Aftermath::Unseen).into()),
            Ok(None) => Some(reported_removed(step)),
            Ok(Some(container)) if container.state == ContainerState::Running => {
                let message = "it was stopped but is still running";
                let problem = Problem { phase: Phase::StopContainer, ..step.problem(message) };
                Some(Answer::Failed(problem, Aftermath::Untouched).into())
            }
            Ok(Some(_)) => None,
        }
    }
}

impl CriSource<'_> {
    /// Verdicts on all objects of a kind, assuming that `gone` is already deleted.
    pub(super) fn stage(&self, kind: TargetKind, seen: &CriListing, gone: &[Step]) -> Plan {
        let without: BTreeSet<&str> = gone.iter().map(|step| step.target.id.as_str()).collect();
        if kind == TargetKind::Log {
            let mut plan = Plan { notes: seen.listing.notes(), ..Plan::default() };
            self.plan_logs(seen, &without, &mut plan);
            return plan;
        }
        let mut plan = seen.listing.plan(kind, self.collection.policy, &without);
        if kind == TargetKind::Container && self.collection.scope.logs {
            self.add_logs(seen, &mut plan);
        }
        plan
    }
}

impl Handler for CriSource<'_> {
    fn prove(&mut self, step: &mut Step, _: Option<Pins>) -> Result<(), Answer> {
        match step.target.kind {
            TargetKind::Container => self.prove_container(step),
            TargetKind::Sandbox => self.prove_sandbox(step),
            _ => self.prove_log(step),
        }
    }

    fn remove(&mut self, step: &Step) -> RemovalResult {
        let (client, id) = (self.collection.client, &step.target.id);
        self.forget(id);
        match step.target.kind {
            TargetKind::Container => {
                if step.action == Action::StopAndDelete
                    && let Some(done) = self.stop(step)
                {
                    return done;
                }
                removal(step, client.remove_container(id))
            }
            TargetKind::Sandbox => match client.stop_sandbox(id) {
                Err(error) => not_stopped(step, &error).into(),
                Ok(()) => removal(step, client.remove_sandbox(id)),
            },
            _ => match self.remove_log(step) {
                Ok(()) => Answer::Removed.into(),
                Err(message) => {
                    let aftermath =
                        if stop::is_requested() { Aftermath::Unseen } else { Aftermath::Untouched };
                    Answer::failed(step, message, aftermath).into()
                }
            },
        }
    }

    /// Returns true if the runtime or the disk still has the target.
    fn is_there(&mut self, step: &Step) -> Result<Option<bool>, PreconditionError> {
        let id = &step.target.id;
        let known = match step.target.kind {
            TargetKind::Sandbox => self.collection.client.sandbox_is_listed(id),
            _ => self.collection.client.container_is_known(id),
        };
        let (inventory, stores) = self.disk(Measure::Records)?;
        let recorded = on_disk(&inventory, &stores, id).is_some();
        // A runtime that does not answer may have been stopped: an object that its records lack was removed.
        if recorded || known.unwrap_or(false) {
            return Ok(Some(true));
        }
        // An object that damaged records lack may still exist.
        let damaged = inventory[stores.main].consistency == Consistency::Damaged;
        Ok((!damaged).then_some(false))
    }
}

/// Proves that the policy still selects the object.
fn prove_verdict(verdicts: &Verdicts, id: &str) -> Result<(), Answer> {
    if verdicts.deletes(id).is_some() {
        return Ok(());
    }
    let kept = verdicts.kept.iter().find(|(kept, _)| kept == id);
    Err(kept.map_or(Answer::AlreadyGone, |(_, ruling)| Answer::Kept(ruling.clone())))
}

fn not_stopped(step: &Step, error: &CriError) -> Answer {
    match error.problem {
        CriProblem::Left => Answer::failed(step, error.to_string(), Aftermath::Unseen),
        _ => {
            let problem = Problem { phase: Phase::StopContainer, ..step.problem(error) };
            Answer::Failed(problem, Aftermath::Untouched)
        }
    }
}

fn removal(step: &Step, answer: Result<(), CriError>) -> RemovalResult {
    match answer {
        Ok(()) => reported_removed(step),
        // An object that is missing now counts as removed, even if another process removed it.
        Err(error) if error.problem.leaves_doubt() || matches!(error.problem, CriProblem::NotFound(_)) => {
            RemovalResult::Unconfirmed {
                within: GONE_IN_DOUBT_WITHIN,
                gone: Answer::Removed,
                otherwise: Answer::failed(step, &error, Aftermath::StillThere),
            }
        }
        Err(error) => Answer::failed(step, &error, Aftermath::Untouched).into(),
    }
}
