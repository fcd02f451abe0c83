//! Exited containers and sandboxes of CRI-O, deleted in the graphroot without a running CRI-O.
//!
//! The policy is the same; what it is fed with is read from CRI-O's own files. Only what those say
//! has ended is ever a candidate, and only while no runtime answers that could know better.
//! Containers of other tools are never candidates: an exited podman container belongs to its user.

use std::collections::{BTreeSet, HashMap};

use crate::execute::containers::collection::{Collection, ContainerListing, ContainerSource};
use crate::execute::editors::Editors;
use crate::execute::executor::{Handler, Proof};
use crate::execute::owner::Owners;
use crate::execute::proof;
use crate::execute::remover::{self, PreconditionError, RemovalAnswer};
use crate::history::pins::Pins;
use crate::model::display::with_causes;
use crate::model::plan::{Action, Kept, Step, Target, TargetKind};
use crate::model::rules::{Rule, Ruling};
use crate::model::{
    self, Consistency, ContainerState, Inventory, NodeKind, Owner, Plan, Store, StoreId, StoreIx,
};
use crate::node::pods::KnownPods;
use crate::policy::containers::{Container, Pods, Sandbox};
use crate::stores::containers_storage::cri_o::CrioMetadata;
use crate::stores::{Measure, ScanRequest};

/// The store of CRI-O, as far as the disk tells: the first with a container of it.
pub(super) fn own_store(editors: &Editors, inventory: &Inventory) -> Option<StoreIx> {
    let mut containers = inventory.containers.iter().filter(|one| one.owner == Owner::CriO);
    let editable = |store: StoreIx| editors.store(&inventory[store]).is_ok();
    containers.find(|one| editable(one.store)).map(|one| one.store)
}

/// Lists containers, and caches what cannot change any more.
pub(super) struct DiskSource<'a> {
    asked: &'a Collection<'a>,
    editors: &'a Editors,
    /// Asked before each removal; where one may be at work, nothing is deleted.
    owners: &'a Owners,
    /// Of which store anything goes.
    own: Option<&'a Store>,
    ended: HashMap<String, CrioMetadata>,
}

#[derive(Default)]
pub(super) struct DiskListing {
    listing: ContainerListing,
    /// What stays whatever the policy says.
    barred: HashMap<String, Ruling>,
    /// Containers that are not CRI-O's.
    others: Vec<Kept>,
    /// Name of each pod, by uid.
    pod_names: HashMap<String, String>,
    /// Pods whose sandbox runs, by CRI-O's last word.
    running: Vec<String>,
    /// Those with a container that runs. Of a sandbox without an infra container nothing says that it runs.
    with_running_container: Vec<String>,
}

impl ContainerSource for DiskSource<'_> {
    type Listing = DiskListing;

    fn look(&mut self) -> Result<DiskListing, PreconditionError> {
        let scan =
            proof::rescan(ScanRequest { measure: Measure::RecordsAndMounts, ..self.asked.request.clone() })?;
        let inventory = &scan.inventory;
        self.owners.absent(inventory)?;
        let mut seen = DiskListing::default();
        for one in &inventory.containers {
            match one.owner {
                Owner::CriO => self.add(inventory, one, &mut seen),
                Owner::Containerd | Owner::Docker => {}
                Owner::Podman | Owner::Buildah | Owner::Unknown => seen.others.push(of_somebody_else(one)),
            }
        }
        // The kubelet makes a pod's directory before all else, so that is looked at last.
        let pods = self.pods(&seen);
        seen.listing.pods = pods.unwrap_or_else(|why| Pods { unknown: Some(why), ..Pods::default() });
        Ok(seen)
    }

    fn stage(&self, kind: TargetKind, seen: &DiskListing, gone: &[Step]) -> Plan {
        let without: BTreeSet<&str> = gone.iter().map(|step| step.target.id.as_str()).collect();
        let mut plan = seen.listing.plan(kind, self.asked.policy, &without);
        if kind == TargetKind::Container {
            plan.kept.extend(seen.others.iter().cloned());
        }
        for stays in &mut plan.kept {
            if let Some(ruling) = seen.barred.get(&stays.target.id) {
                *stays = Kept::new(stays.target.clone(), ruling.clone());
            }
        }
        // Directories of pods that are not the kubelet's make everything else doubtful, too.
        let unknown = seen.listing.pods.unknown.as_ref().map(|why| Ruling::keeps(Rule::PodsUnknown, why));
        for step in plan.steps.clone() {
            if let Some(ruling) = seen.barred.get(&step.target.id).or(unknown.as_ref()) {
                plan.spare(step.target, ruling.clone());
            }
        }
        for step in &mut plan.steps {
            step.action = Action::Delete;
        }
        plan
    }
}

impl Handler for DiskSource<'_> {
    fn prove(&mut self, step: &mut Step, _: Option<Pins>) -> Result<Proof, PreconditionError> {
        let seen = self.look()?;
        let id = &step.target.id;
        let Plan { steps, kept, .. } = self.stage(step.target.kind, &seen, &[]);
        if steps.iter().any(|one| one.target.id == *id) {
            return Ok(Proof::MayDelete);
        }
        let Some(Kept { rule, detail, .. }) = kept.into_iter().find(|stays| stays.target.id == *id) else {
            return Ok(Proof::AlreadyGone);
        };
        if self.asked.is_by_floor(step) && rule == Rule::WithinLimits {
            return Ok(Proof::MayDelete);
        }
        Ok(Proof::Kept(Ruling::keeps(rule, detail)))
    }

    fn remove(&mut self, step: &Step) -> RemovalAnswer {
        let kept = |rule, why: String| RemovalAnswer::Kept(Ruling::keeps(rule, why));
        let editor = match self.own.map(|own| self.editors.store(own)) {
            Some(Ok(editor)) => editor,
            Some(Err(why)) => return kept(Rule::OutOfReach, why.to_owned()),
            None => return kept(Rule::OutOfReach, "no store is identified as CRI-O's".into()),
        };
        let id = &step.target.id;
        match editor.delete_dead_container(id) {
            Ok(deleted) => {
                remover::log(id, &deleted);
                RemovalAnswer::Proven
            }
            Err(error) => match remover::failed_edit(step.target.kind, id, error) {
                // No other store has containers of CRI-O's.
                RemovalAnswer::StoreUnavailable(why) => RemovalAnswer::NotAsked(why),
                other => other,
            },
        }
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.editors.reserve_file_bytes(device)
    }
}

impl<'a> DiskSource<'a> {
    pub(super) fn new(
        asked: &'a Collection<'a>,
        editors: &'a Editors,
        owners: &'a Owners,
        own: Option<&'a Store>,
    ) -> Self {
        Self { asked, editors, owners, own, ended: HashMap::new() }
    }

    /// The rule by which nothing of a store's goes.
    fn closed(&self, store: &Store) -> Option<Ruling> {
        if self.owners.are_ignored() {
            let why =
                "the runtime may be running (--while-runtime-runs) and has newer information: use --via cri";
            return Some(Ruling::keeps(Rule::OwnerAtWork, why));
        }
        match self.editors.store(store) {
            Err(why) => Some(Ruling::keeps(Rule::OutOfReach, why)),
            Ok(_) if self.own.map(StoreId::of) != Some(StoreId::of(store)) => {
                Some(Ruling::keeps(Rule::OutOfReach, "another store is identified as CRI-O's"))
            }
            Ok(_) if store.consistency != Consistency::Consistent => Some(Ruling::keeps(
                Rule::DamagedStore,
                "the records of its store are damaged or being written",
            )),
            Ok(_) => None,
        }
    }

    /// A container or sandbox of CRI-O's.
    fn add(&mut self, inventory: &Inventory, one: &model::Container, seen: &mut DiskListing) {
        let facts = self.facts(inventory, one);
        let unread = facts.as_ref().err().map(|error| {
            Ruling::keeps(Rule::PodUnknown, format!("its files do not say which pod it belongs to: {error}"))
        });
        let facts = facts.unwrap_or_default();
        let unfinished = match one.state {
            ContainerState::Exited => None,
            ContainerState::Running => Some(Ruling::keeps(Rule::Running, "running according to its record")),
            ContainerState::Created => {
                Some(Ruling::keeps(Rule::Starting, "not started yet according to its record"))
            }
            ContainerState::Unknown => {
                Some(Ruling::keeps(Rule::StateUnknown, "its record does not say that it has exited"))
            }
        };
        let closed = self.closed(&inventory[one.store]);
        if let Some(ruling) = closed.or(unfinished).or(unread) {
            seen.barred.insert(one.id.to_string(), ruling);
        }
        let CrioMetadata { pod_uid, pod_name, pod_namespace, name, attempt, finished } = facts;
        let is_sandbox = one.sandbox || one.sandbox_id.as_deref() == Some(one.id.as_str());
        let pod = match pod_name.is_empty() {
            true => String::new(),
            false => format!("{pod_namespace}/{pod_name}"),
        };
        let shown = match (is_sandbox, pod.is_empty()) {
            (_, true) => one.name.clone(),
            (true, false) => pod,
            (false, false) if attempt == 0 => format!("{pod}/{name}"),
            (false, false) => format!("{pod}/{name} (attempt {attempt})"),
        };
        seen.listing.names.insert(one.id.to_string(), shown);
        if !pod_uid.is_empty() {
            seen.pod_names.insert(pod_uid.clone(), pod_name);
        }
        if is_sandbox {
            // What is not known to have ended may be running.
            let ready = one.state != ContainerState::Exited;
            if one.state == ContainerState::Running && !pod_uid.is_empty() {
                seen.running.push(pod_uid.clone());
            }
            let uid = pod_uid.clone();
            seen.listing.sandboxes.push(Sandbox {
                id: one.id.to_string(),
                pod: pod_uid,
                uid,
                created: one.created,
                ready,
            });
            return;
        }
        if one.state == ContainerState::Running && !pod_uid.is_empty() {
            seen.with_running_container.push(pod_uid.clone());
        }
        seen.listing.containers.push(Container {
            id: one.id.to_string(),
            pod: pod_uid,
            name,
            attempt,
            sandbox: one.sandbox_id.clone().unwrap_or_default(),
            state: one.state,
            created: one.created,
            died: finished,
        });
    }

    /// Of what has ended they do not change any more.
    fn facts(&mut self, inventory: &Inventory, one: &model::Container) -> Result<CrioMetadata, String> {
        if let Some(facts) = self.ended.get(one.id.as_str()) {
            return Ok(facts.clone());
        }
        let nodes = one.holds.iter().map(|node| &inventory[*node]);
        let directory = nodes.into_iter().find(|node| node.kind == NodeKind::ContainerMetadata);
        let directory = directory.ok_or("its directory is unknown")?;
        let facts = CrioMetadata::read(&directory.path).map_err(|error| error.to_string())?;
        if one.state == ContainerState::Exited {
            self.ended.insert(one.id.to_string(), facts.clone());
        }
        Ok(facts)
    }

    /// Which of the pods are gone.
    fn pods(&self, seen: &DiskListing) -> Result<Pods, String> {
        let Collection { request, places, .. } = *self.asked;
        let known = KnownPods::read(&request.sysroot, places).map_err(|error| with_causes(&error))?;
        let running = if seen.running.is_empty() { &seen.with_running_container } else { &seen.running };
        known.vouch(running.iter().map(String::as_str)).map_err(|error| with_causes(&error))?;
        let gone = seen.pod_names.iter().filter(|(uid, name)| !known.has(uid, name));
        Ok(Pods { gone: gone.map(|(uid, _)| uid.clone()).collect(), unknown: None })
    }
}

fn of_somebody_else(one: &model::Container) -> Kept {
    let detail = match one.owner {
        Owner::Podman => "it belongs to podman: use podman rm",
        Owner::Buildah => "it is a buildah working container: use buildah rm",
        Owner::CriO | Owner::Containerd | Owner::Docker | Owner::Unknown => {
            "its record does not identify it as CRI-O's"
        }
    };
    let (id, names) = (one.id.to_string(), vec![one.name.clone()]);
    let target = Target { kind: TargetKind::Container, store: None, id, names, leak: None };
    Kept { target, rule: Rule::NotCriO, detail: detail.into() }
}
