//! The containers, sandboxes and logs of a runtime: the listings, the proof right before a removal, the removal, and its
//! confirmation.
//!
//! Logs are removed through directory descriptors, and only below the kubelet's two log directories.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::cri::{ContainerDetails, CriError, CriProblem};
use crate::execute::containers::look::{
    Collection, ContainerListing, CriListing, Fresh, container, every_process, names, sandbox,
};
use crate::execute::cri::runtime_stores;
use crate::execute::executor::Handler;
use crate::execute::proof;
use crate::execute::remover::{PreconditionError, reported_removed};
use crate::execute::runtime_match::RuntimeStores;
use crate::history::pins::Pins;
use crate::model::deletion::plan::{Action, Cause, Kept, Phase, Problem, Step, Target, TargetKind};
use crate::model::rules::{Rule, Ruling};
use crate::model::text::display::with_causes;
use crate::model::{
    Aftermath, Answer, Consistency, Container, ContainerState, Inventory, Plan, RemovalResult,
};
use crate::node::logs as node_logs;
use crate::node::logs::Link;
use crate::node::pods::KnownPods;
use crate::policy::containers::logs::{self, LinkTarget, LogDirectoryState};
use crate::policy::containers::{Pods, Verdicts};
use crate::stores::{Measure, ScanRequest};
use crate::sys::beneath::{self, Opener};
use crate::sys::processes::Processes;
use crate::sys::{namespaces::Mounts, removal, stop};

/// Time for which a container of unknown state may end by itself. The kubelet uses the pod's grace period, 30 seconds
/// by default.
const GRACE: Duration = Duration::from_secs(30);

/// Maximum time until a container disappears after a removal whose result the runtime did not report.
const GONE_IN_DOUBT_WITHIN: Duration = Duration::from_secs(2);

/// Lists the containers of one runtime, and caches the details that cannot change any more.
pub(super) struct CriSource<'a> {
    pub(super) collection: &'a Collection<'a>,
    /// Details of ended containers, which never start again, by id.
    ended: HashMap<String, ContainerDetails>,
    processes: Option<Fresh<Rc<Processes>>>,
    groups: Option<Fresh<Processes>>,
    listing: Option<Fresh<Rc<CriListing>>>,
    disk: Option<Fresh<Rc<(Inventory, RuntimeStores)>>>,
}

impl<'a> CriSource<'a> {
    pub(super) fn new(collection: &'a Collection<'a>) -> Self {
        Self { collection, ended: HashMap::new(), processes: None, groups: None, listing: None, disk: None }
    }

    pub(super) fn list(&mut self) -> Result<Rc<CriListing>, PreconditionError> {
        (self.listing, self.disk) = (None, None);
        self.recent()
    }

    /// Returns the last listing, without the objects that were deleted since.
    fn recent(&mut self) -> Result<Rc<CriListing>, PreconditionError> {
        let recent = self.listing.take().filter(|listing| !listing.is_over());
        let is_new = recent.is_none();
        let mut listing = match recent {
            Some(listing) => listing,
            None => Fresh::read(|| self.listed().map(Rc::new))?,
        };
        let pods = self.pods(&listing.value);
        match Rc::get_mut(&mut listing.value) {
            // A pod that ran then may be deleted by now.
            Some(known) if is_new || pods.unknown.is_none() => known.listing.pods = pods,
            _ => return self.list(),
        }
        Ok(self.listing.insert(listing).value.clone())
    }

    /// Returns the records on the disk as they were a few seconds ago, and the runtime's stores among them.
    fn recent_disk(&mut self) -> Result<Rc<(Inventory, RuntimeStores)>, PreconditionError> {
        match self.disk.take().filter(|disk| !disk.is_over()) {
            Some(disk) => Ok(self.disk.insert(disk).value.clone()),
            None => {
                let disk = Fresh::read(|| self.disk(Measure::RecordsAndMounts).map(Rc::new))?;
                Ok(self.disk.insert(disk).value.clone())
            }
        }
    }

    /// Returns the number of a process in a control group named after the container or sandbox `id`.
    fn process_in(&mut self, id: &str) -> io::Result<Option<u32>> {
        let groups = match self.groups.take().filter(|groups| !groups.is_over()) {
            Some(groups) => groups,
            None => Fresh::read(Processes::read_groups)?,
        };
        Ok(self.groups.insert(groups).value.in_group_of(id).map(|process| process.id))
    }

    /// Removes an object that is deleted now from the last listing.
    fn forget(&mut self, id: &str) {
        let Some(listing) = self.listing.as_mut().and_then(|listing| Rc::get_mut(&mut listing.value)) else {
            self.listing = None;
            return;
        };
        listing.listing.containers.retain(|container| container.id != id);
        listing.listing.sandboxes.retain(|sandbox| sandbox.id != id);
        listing.log_paths.remove(id);
    }

    fn listed(&mut self) -> Result<CriListing, PreconditionError> {
        let Collection { client, request, places, scope, .. } = *self.collection;
        // The kubelet creates a pod's directory before all else, and removes it last. The pods' directories are read
        // last ([`Self::pods`]), so every object listed before them has its directory unless its pod is deleted.
        let log_directories = if scope.logs {
            node_logs::directories(&request.sysroot, places).map_err(|error| error.to_string())
        } else {
            Ok(Vec::new())
        };
        // Sandboxes first: a container created in between is in the later listing, so that its sandbox is not empty.
        let listed_sandboxes = client.sandboxes()?;
        let mut listed = client.containers()?;
        let mut log_paths = HashMap::new();
        let mut containers = Vec::new();
        let mut vanished = BTreeSet::new();
        for listed in &listed {
            if listed.state == ContainerState::Running {
                containers.push(container(listed, None));
                continue;
            }
            let Some(details) = self.details(&listed.id)? else {
                vanished.insert(listed.id.clone());
                continue;
            };
            if !details.log_path.is_empty() {
                log_paths.insert(listed.id.clone(), details.log_path.clone());
            }
            containers.push(container(listed, Some(&details)));
        }
        listed.retain(|listed| !vanished.contains(&listed.id));
        let sandboxes: Vec<_> = listed_sandboxes.iter().map(sandbox).collect();
        let names = names(&listed, &listed_sandboxes);
        let directories = log_directories.as_deref().unwrap_or_default().iter();
        let uids_of_logs = directories.filter_map(|directory| {
            let name = directory.name.to_str()?;
            Some((logs::uid_in_directory(name)?, name.split('_').nth(1)?))
        });
        let mut pod_names: BTreeSet<(String, String)> =
            uids_of_logs.map(|(uid, name)| (uid.to_owned(), name.to_owned())).collect();
        let of_sandboxes = listed_sandboxes.iter().map(|sandbox| (&sandbox.pod_uid, &sandbox.name));
        let by_uid: HashMap<&String, &String> = of_sandboxes.collect();
        let of_containers = listed.iter().map(|container| &container.pod_uid);
        let uids = by_uid.keys().copied().chain(of_containers).filter(|uid| !uid.is_empty());
        pod_names.extend(
            uids.map(|uid| (uid.clone(), by_uid.get(uid).map_or_else(String::new, |n| (*n).clone()))),
        );
        let running = listed_sandboxes.iter().filter(|sandbox| sandbox.ready && !sandbox.pod_uid.is_empty());
        let running_pods = running.map(|sandbox| sandbox.pod_uid.clone()).collect();
        let processes = self.processes();
        let listing = ContainerListing { containers, sandboxes, pods: Pods::default(), names };
        Ok(CriListing { listing, log_paths, log_directories, processes, pod_names, running_pods })
    }

    fn details(&mut self, id: &str) -> Result<Option<ContainerDetails>, PreconditionError> {
        if let Some(details) = self.ended.get(id) {
            return Ok(Some(details.clone()));
        }
        let details = self.collection.client.container(id)?;
        if let Some(details) = &details
            && details.state == ContainerState::Exited
        {
            self.ended.insert(id.to_owned(), details.clone());
        }
        Ok(details)
    }

    /// Requests the details of one container without the cache.
    fn fresh(&mut self, id: &str) -> Result<Option<ContainerDetails>, PreconditionError> {
        self.ended.remove(id);
        self.details(id)
    }

    /// The deleted pods among those of a listing.
    fn pods(&self, seen: &CriListing) -> Pods {
        let Collection { request, places, .. } = *self.collection;
        let known = KnownPods::read(&request.sysroot, places).and_then(|known| {
            known.check_running(seen.running_pods.iter().map(String::as_str))?;
            Ok(known)
        });
        match known {
            Ok(known) => {
                let gone = seen.pod_names.iter().filter(|(uid, name)| !known.has(uid, name));
                Pods { gone: gone.map(|(uid, _)| uid.clone()).collect(), unknown: None }
            }
            Err(error) => Pods { unknown: Some(with_causes(&error)), ..Pods::default() },
        }
    }

    fn processes(&mut self) -> Result<Rc<Processes>, String> {
        if !self.collection.scope.logs {
            return Err("the open files of processes were not read".into());
        }
        let processes = match self.processes.take().filter(|processes| !processes.is_over()) {
            Some(processes) => processes,
            None => Fresh::read(|| every_process().map(Rc::new))?,
        };
        Ok(self.processes.insert(processes).value.clone())
    }

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

    /// Reads the records on the disk now, and finds the runtime's stores among them.
    fn disk(&self, measure: Measure) -> Result<(Inventory, RuntimeStores), PreconditionError> {
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

    /// The logs stage: directories of deleted pods, then dangling links.
    fn plan_logs(&self, seen: &CriListing, without: &BTreeSet<&str>, plan: &mut Plan) {
        let directories = match &seen.log_directories {
            Ok(directories) => directories,
            // Like the kubelet: if the directories cannot be listed, no link is checked.
            Err(why) => return plan.fail(Phase::List, why.clone()),
        };
        let mut gone = Vec::new();
        for directory in directories {
            let ruling = self.directory_stays(seen, without, directory);
            if ruling.is_none() {
                gone.push(directory.path.clone());
                gone.push(self.collection.places.pod_logs.join(&directory.name));
            }
            decide(plan, &directory.path, Cause::PodGone, directory.size.bytes, ruling);
        }
        let links = match node_logs::links(&self.collection.request.sysroot, self.collection.places) {
            Ok(links) => links,
            Err(error) => return plan.fail(Phase::List, error.to_string()),
        };
        for link in links {
            // In a dry run the directories and files that would be removed before count as removed.
            let dangling = link.dangling
                || gone.iter().any(|path| link.target.starts_with(path))
                || without_path(&link, without);
            let ruling = self.link_stays(seen, without, &Link { dangling, ..link.clone() });
            // Links of running containers are never candidates.
            if ruling.as_ref().is_none_or(|ruling| ruling.rule != Rule::LinkTargetExists) {
                decide(plan, &link.path, Cause::Dangling, node_logs::measure(&link.path).bytes, ruling);
            }
        }
    }

    fn directory_stays(
        &self,
        seen: &CriListing,
        without: &BTreeSet<&str>,
        directory: &node_logs::LogDirectory,
    ) -> Option<Ruling> {
        let name = directory.name.to_str().unwrap_or_default();
        let pod = logs::uid_in_directory(name);
        let open = reader(seen, &directory.path);
        let facts = LogDirectoryState {
            pod,
            occupied: pod.is_some_and(|uid| seen.has_pod(uid, without)),
            newest: directory.size.newest,
            open: open.as_ref().map(Option::as_deref).map_err(String::as_str),
        };
        let now = jiff::Timestamp::now();
        logs::exact_directory(&facts, &seen.listing.pods, self.collection.policy.min_age, now)
    }

    fn link_stays(&self, seen: &CriListing, without: &BTreeSet<&str>, link: &Link) -> Option<Ruling> {
        let id = link.name.to_str().and_then(logs::id_in_link);
        let named = match id {
            None => LinkTarget::NoId,
            Some(id) if without.contains(id) => LinkTarget::Unknown,
            Some(id) => match seen.listing.containers.iter().find(|container| container.id == id) {
                Some(container) => LinkTarget::State(container.state),
                // CRI-O does not list containers that are being created.
                None if link.dangling => match self.collection.client.container(id) {
                    Ok(None) => LinkTarget::Unknown,
                    Ok(Some(details)) => LinkTarget::State(details.state),
                    Err(_) => LinkTarget::Failed,
                },
                None => LinkTarget::Unknown,
            },
        };
        logs::exact_link(link.dangling, self.collection.places.is_pod_log(&link.target), named)
    }

    /// Adds the logs of the deleted containers, each after its container.
    fn add_logs(&self, seen: &CriListing, plan: &mut Plan) {
        let containers = std::mem::take(&mut plan.steps);
        for container in containers {
            let id = container.target.id.clone();
            let whole_pod = container.cause == Cause::PodGone;
            plan.steps.push(container);
            // The logs of a deleted pod are deleted with their directory.
            let Some(log) = seen.log_paths.get(&id).map(PathBuf::from).filter(|_| !whole_pod) else {
                continue;
            };
            for path in self.files_of(&log) {
                let ruling = is_read(seen, &path);
                decide(plan, &path, Cause::WithContainer, node_logs::measure(&path).bytes, ruling);
            }
        }
    }

    /// A container's log and its rotated logs: `0.log`, `0.log.20261121-101112`, `0.log.20261121-101112.gz`.
    fn files_of(&self, log: &Path) -> Vec<PathBuf> {
        let places = self.collection.places;
        let inside = places.is_pod_log(log) && log.components().all(|part| part.as_os_str() != "..");
        let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(OsStr::to_str)) else {
            return Vec::new();
        };
        let directory_name = directory.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        if !inside || !name.ends_with(".log") || directory_name.and_then(logs::uid_in_directory).is_none() {
            return Vec::new();
        }
        let Ok(entries) = self.collection.request.sysroot.list(directory) else { return Vec::new() };
        let rotated = format!("{name}.");
        let names = entries
            .into_iter()
            .filter_map(|entry| entry.name.into_string().ok())
            .filter(|entry| entry == name || entry.starts_with(&rotated));
        names.map(|entry| directory.join(entry)).collect()
    }

    fn prove_log(&mut self, step: &Step) -> Result<(), Answer> {
        let path = PathBuf::from(&step.target.id);
        if std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(Answer::AlreadyGone);
        }
        let seen = self.recent()?;
        let without = BTreeSet::new();
        let ruling = match step.cause {
            Cause::WithContainer => match seen.log_paths.iter().find(|(_, log)| belongs(&path, log)) {
                Some((id, _)) => {
                    Some(Ruling::keeps(Rule::ContainerExists, format!("its container {id} still exists")))
                }
                None => is_read(&seen, &path),
            },
            Cause::Dangling => {
                let links = node_logs::links(&self.collection.request.sysroot, self.collection.places);
                match links.map(|links| links.into_iter().find(|link| link.path == path)) {
                    Ok(Some(link)) => self.link_stays(&seen, &without, &link),
                    Ok(None) => return Err(Answer::AlreadyGone),
                    Err(error) => Some(Ruling::keeps(Rule::Unreadable, error.to_string())),
                }
            }
            _ => {
                let mut directories = seen.log_directories.as_deref().unwrap_or_default().iter();
                match directories.find(|directory| directory.path == path) {
                    Some(directory) => self.directory_stays(&seen, &without, directory),
                    None => Some(Ruling::keeps(Rule::Unreadable, "no longer listed")),
                }
            }
        };
        let ruling = ruling.or_else(|| mounted(&path).map(|why| Ruling::keeps(Rule::Mounted, why)));
        ruling.map_or(Ok(()), |ruling| Err(Answer::Kept(ruling)))
    }

    fn remove_log(&self, step: &Step) -> Result<(), String> {
        let path = PathBuf::from(&step.target.id);
        let base = match step.cause {
            Cause::Dangling => &self.collection.places.container_logs,
            _ => &self.collection.places.pod_logs,
        };
        let (root, base) = self.opened(base)?;
        // The path of a container's log is as the runtime wrote it, and may contain symlinks; other paths contain none.
        let inside = path
            .strip_prefix(&base)
            .or_else(|_| path.strip_prefix(&self.collection.places.pod_logs))
            .map_err(|_| format!("{} is not below {}", path.display(), base.display()))?;
        let (Some(parent), Some(name)) = (inside.parent(), inside.file_name()) else {
            return Err(format!("{} is the base directory itself", path.display()));
        };
        let opener = Opener::detect(root.as_fd());
        let directory = opener
            .beneath(root.as_fd(), parent, beneath::DIRECTORY, false)
            .map_err(|error| format!("{}: {error}", base.join(parent).display()))?;
        if step.cause == Cause::Dangling && !node_logs::is_dangling(&path) {
            return Err("its target exists now".into());
        }
        let done = removal::remove(directory.as_fd(), &base.join(parent), name);
        match done.failures.first() {
            None if done.interrupted => Err("ended by a signal".into()),
            None => Ok(()),
            Some(failure) => Err(failure.to_string()),
        }
    }

    fn opened(&self, base: &Path) -> Result<(OwnedFd, PathBuf), String> {
        let base = self
            .collection
            .request
            .sysroot
            .resolve(base)
            .map_err(|error| format!("{}: {error}", base.display()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(&base, flags, Mode::empty());
        root.map(|root| (root, base.clone())).map_err(|error| format!("{}: {error}", base.display()))
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

/// A container or sandbox of the runtime's own store.
fn on_disk<'i>(inventory: &'i Inventory, stores: &RuntimeStores, id: &str) -> Option<&'i Container> {
    inventory.containers.iter().find(|container| container.store == stores.main && container.id == id)
}

fn without_path(link: &Link, without: &BTreeSet<&str>) -> bool {
    link.target.to_str().is_some_and(|target| without.contains(target))
}

fn decide(plan: &mut Plan, path: &Path, cause: Cause, bytes: u64, ruling: Option<Ruling>) {
    let id = path.display().to_string();
    let names = vec![path.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    let target = Target { kind: TargetKind::Log, store: None, id, names, leak: None };
    // A name that is not UTF-8 can neither be reported nor found again by its text.
    let ruling = ruling.or_else(|| match path.to_str() {
        Some(_) => None,
        None => Some(Ruling::keeps(Rule::NotAPod, "its name is not valid UTF-8")),
    });
    match ruling {
        Some(ruling) => plan.kept.push(Kept::new(target, ruling)),
        None => plan.steps.push(Step { log_bytes: bytes, ..Step::new(target, cause) }),
    }
}

fn reader(seen: &CriListing, path: &Path) -> Result<Option<String>, String> {
    node_logs::reader(seen.processes.as_ref().map_err(String::clone)?, path)
}

/// The ruling that keeps a file that a process has open, or may have open.
fn is_read(seen: &CriListing, path: &Path) -> Option<Ruling> {
    logs::open(reader(seen, path).as_ref().map(Option::as_deref).map_err(String::as_str))
}

/// Returns true if `path` is the log `log` of a container, or rotated from it.
fn belongs(path: &Path, log: &str) -> bool {
    fn name(path: &Path) -> Option<String> {
        path.file_name().map(|name| name.to_string_lossy().into_owned())
    }
    // Only the last two directories are compared: above them one of the paths may contain a symlink.
    fn parents(path: &Path) -> PathBuf {
        path.components().rev().skip(1).take(2).collect()
    }
    let log = Path::new(log);
    let (Some(file), Some(current)) = (name(path), name(log)) else { return false };
    parents(path) == parents(log) && (file == current || file.starts_with(&format!("{current}.")))
}

/// Reason for which a mount, in any namespace, forbids the removal.
fn mounted(path: &Path) -> Option<String> {
    let area = path.parent().unwrap_or(path).to_path_buf();
    let mounts = match Mounts::read(&[area]) {
        Ok(mounts) => mounts,
        Err(error) => return Some(format!("the mounts of all processes cannot be read: {error}")),
    };
    if let Some(unknown) = mounts.unknown_views().first() {
        return Some(unknown.to_string());
    }
    let user = mounts.user(path, &[])?;
    Some(format!("process {} has it or something in it mounted", user.pid))
}
