//! Current listings of runtime and kubelet.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::cri::{Client, ContainerDetails, RuntimeContainer, RuntimeSandbox, RuntimeStore};
use crate::execute::remover::PreconditionError;
use crate::execute::runtime_match::RuntimeStores;
use crate::model::display::with_causes;
use crate::model::plan::TargetKind;
use crate::model::{ContainerState, Inventory};
use crate::node::logs as node_logs;
use crate::node::places::KubeletPlaces;
use crate::node::pods::KnownPods;
use crate::policy::containers::{Container, ContainerPolicy, Pods, Sandbox, logs};
use crate::stores::{Measure, ScanRequest};
use crate::sys::processes::Processes;

/// Kinds of objects to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Containers and sandboxes.
    pub containers: bool,
    /// Logs of pods.
    pub logs: bool,
}

impl Scope {
    /// The kubelet's three phases, in its order: each sees the deletions of the previous one.
    pub(super) fn stages(self) -> impl Iterator<Item = TargetKind> {
        let all = [
            (TargetKind::Container, self.containers),
            (TargetKind::Sandbox, self.containers),
            (TargetKind::Log, self.logs),
        ];
        all.into_iter().filter_map(|(stage, wanted)| wanted.then_some(stage))
    }
}

/// Collection of containers, sandboxes and logs: the runtime, the policy and the kinds of objects.
#[derive(Clone, Copy, Debug)]
pub struct Collection<'a> {
    pub client: &'a Client,
    /// The store that the runtime serves.
    pub runtime_store: &'a RuntimeStore,
    /// Request for another scan of the disk.
    pub request: &'a ScanRequest,
    /// The kubelet's directories.
    pub places: &'a KubeletPlaces,
    pub policy: &'a ContainerPolicy,
    pub scope: Scope,
}

/// Containers and sandboxes at one moment, as the policies see them.
#[derive(Default)]
pub(super) struct ContainerListing {
    pub(super) containers: Vec<Container>,
    pub(super) sandboxes: Vec<Sandbox>,
    pub(super) pods: Pods,
    /// Names for messages, by id.
    pub(super) names: HashMap<String, String>,
}

/// Evidence that may be reused for the proof of another object.
///
/// Listings contain everything that exists: if each proof listed everything, the time for N containers would grow with
/// their square. The facts that can change are read right before each deletion: the status of an ended container, the
/// containers of a sandbox, and the pods that the kubelet knows. The other facts, like open files, come from a listing
/// that was read [`Fresh::MOST_AGE`] ago at most.
struct Fresh<T> {
    until: Instant,
    value: T,
}

impl<T> Fresh<T> {
    /// Time for which evidence is reused, or four times as long as it takes to read.
    const AGE: Duration = Duration::from_secs(2);
    /// Maximum time for which evidence is reused.
    const MOST_AGE: Duration = Duration::from_secs(10);

    fn read<E>(read: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        let start = Instant::now();
        let value = read()?;
        let age = (start.elapsed() * 4).clamp(Self::AGE, Self::MOST_AGE);
        Ok(Self { until: Instant::now() + age, value })
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// A container as the runtime lists it, with the time of its end if its status is known.
fn container(listed: &RuntimeContainer, details: Option<&ContainerDetails>) -> Container {
    Container {
        id: listed.id.clone(),
        pod: listed.pod_uid.clone(),
        name: listed.name.clone(),
        attempt: listed.attempt,
        sandbox: listed.sandbox_id.clone(),
        // The status is newer than the listing.
        state: details.map_or(listed.state, |details| details.state),
        created: listed.created,
        died: details.and_then(|details| details.finished),
    }
}

fn sandbox(listed: &RuntimeSandbox) -> Sandbox {
    Sandbox {
        id: listed.id.clone(),
        pod: listed.pod_uid.clone(),
        uid: listed.uid.clone(),
        created: listed.created,
        ready: listed.ready,
    }
}

pub(super) struct CriListing {
    pub(super) listing: ContainerListing,
    /// Paths of the logs of ended containers, by container id.
    pub(super) log_paths: HashMap<String, String>,
    /// Log directories of pods.
    pub(super) log_directories: Result<Vec<node_logs::LogDirectory>, String>,
    pub(super) processes: Result<Rc<Processes>, String>,
    /// Uids and names of the pods of all objects.
    pod_names: BTreeSet<(String, String)>,
    /// Uids of the pods that run.
    running_pods: Vec<String>,
}

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

    /// Lists everything now.
    pub(super) fn list(&mut self) -> Result<Rc<CriListing>, PreconditionError> {
        (self.listing, self.disk) = (None, None);
        self.recent()
    }

    /// Returns the last listing, without the objects that were deleted since.
    pub(super) fn recent(&mut self) -> Result<Rc<CriListing>, PreconditionError> {
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
    pub(super) fn recent_disk(&mut self) -> Result<Rc<(Inventory, RuntimeStores)>, PreconditionError> {
        match self.disk.take().filter(|disk| !disk.is_over()) {
            Some(disk) => Ok(self.disk.insert(disk).value.clone()),
            None => {
                let disk = Fresh::read(|| self.disk(Measure::RecordsAndMounts).map(Rc::new))?;
                Ok(self.disk.insert(disk).value.clone())
            }
        }
    }

    /// Returns the number of a process in a control group named after the container or sandbox `id`.
    pub(super) fn process_in(&mut self, id: &str) -> io::Result<Option<u32>> {
        let groups = match self.groups.take().filter(|groups| !groups.is_over()) {
            Some(groups) => groups,
            None => Fresh::read(Processes::read_groups)?,
        };
        Ok(self.groups.insert(groups).value.in_group_of(id).map(|process| process.id))
    }

    /// Removes an object that is deleted now from the last listing.
    pub(super) fn forget(&mut self, id: &str) {
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
        let log_directories = match scope.logs {
            true => node_logs::directories(&request.sysroot, places).map_err(|error| error.to_string()),
            false => Ok(Vec::new()),
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
    pub(super) fn fresh(&mut self, id: &str) -> Result<Option<ContainerDetails>, PreconditionError> {
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
}

/// Reads the open files of all processes. Tries again if a process was invisible: it may just have started or ended.
fn every_process() -> Result<Processes, String> {
    let mut attempts_left = 3;
    loop {
        attempts_left -= 1;
        match Processes::read() {
            // A process that does not answer does not answer a moment later either.
            Ok(processes)
                if processes.sees_all() || processes.silent().next().is_some() || attempts_left == 0 =>
            {
                return Ok(processes);
            }
            Err(error) if attempts_left == 0 => return Err(error.to_string()),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl CriListing {
    /// Returns true if the runtime has a container or a sandbox of the pod that is not in `without`.
    pub(super) fn has_pod(&self, uid: &str, without: &BTreeSet<&str>) -> bool {
        let mut containers = self.listing.containers.iter();
        let mut sandboxes = self.listing.sandboxes.iter();
        containers.any(|container| container.pod == uid && !without.contains(container.id.as_str()))
            || sandboxes.any(|sandbox| {
                (sandbox.pod == uid || sandbox.uid == uid) && !without.contains(sandbox.id.as_str())
            })
    }
}

/// Names by id, `<namespace>/<pod>/<container>`, as far as the runtime reports them.
fn names(containers: &[RuntimeContainer], sandboxes: &[RuntimeSandbox]) -> HashMap<String, String> {
    let pods = sandboxes
        .iter()
        .map(|sandbox| (sandbox.id.clone(), format!("{}/{}", sandbox.namespace, sandbox.name)));
    let mut names: HashMap<_, _> = pods.collect();
    for listed in containers {
        let name = container(listed, None).describe();
        let name = match names.get(&listed.sandbox_id) {
            Some(pod) => format!("{pod}/{name}"),
            None => name,
        };
        names.insert(listed.id.clone(), name);
    }
    names
}
