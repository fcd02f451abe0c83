//! Current listings of runtime and kubelet.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::cri::{Client, ContainerDetails, RuntimeContainer, RuntimeSandbox, RuntimeStore};
use crate::execute::remover::PreconditionError;
use crate::model::ContainerState;
use crate::model::display::with_causes;
use crate::model::plan::TargetKind;
use crate::node::logs as node_logs;
use crate::node::places::KubeletPlaces;
use crate::node::pods::KnownPods;
use crate::policy::containers::{Container, ContainerPolicy, Pods, Sandbox, logs};
use crate::stores::ScanRequest;
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

/// Maximum age of the list of open files, which takes long to read on a busy node. A file that a process opens later
/// and that is deleted loses only its name: the process can still use it.
const PROCESSES_ARE_FRESH: Duration = Duration::from_secs(2);

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
    pub(super) processes: Result<Processes, String>,
}

/// Lists the containers of one runtime, and caches the details that cannot change any more.
pub(super) struct CriSource<'a> {
    pub(super) collection: &'a Collection<'a>,
    /// Details of ended containers, which never start again, by id.
    ended: HashMap<String, ContainerDetails>,
    processes: Option<(Instant, Result<Processes, String>)>,
}

impl<'a> CriSource<'a> {
    pub(super) fn new(collection: &'a Collection<'a>) -> Self {
        Self { collection, ended: HashMap::new(), processes: None }
    }

    pub(super) fn list(&mut self) -> Result<CriListing, PreconditionError> {
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
        let pods = self.pods(&listed, &listed_sandboxes, uids_of_logs);
        let pods = pods.unwrap_or_else(|why| Pods { unknown: Some(why), ..Pods::default() });
        let processes = self.processes();
        let listing = ContainerListing { containers, sandboxes, pods, names };
        Ok(CriListing { listing, log_paths, log_directories, processes })
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

    /// The deleted pods among those of the containers, the sandboxes and the logs.
    fn pods<'b>(
        &self,
        containers: &'b [RuntimeContainer],
        sandboxes: &'b [RuntimeSandbox],
        of_logs: impl Iterator<Item = (&'b str, &'b str)>,
    ) -> Result<Pods, String> {
        let Collection { request, places, .. } = *self.collection;
        let known = KnownPods::read(&request.sysroot, places).map_err(|error| with_causes(&error))?;
        let running =
            sandboxes.iter().filter(|sandbox| sandbox.ready).map(|sandbox| sandbox.pod_uid.as_str());
        known.check_running(running.filter(|uid| !uid.is_empty())).map_err(|error| with_causes(&error))?;
        let of_sandboxes = sandboxes.iter().map(|sandbox| (&*sandbox.pod_uid, &*sandbox.name));
        let names: HashMap<&str, &str> = of_sandboxes.clone().collect();
        let of_containers = containers.iter().map(|container| {
            let uid = container.pod_uid.as_str();
            (uid, names.get(uid).copied().unwrap_or_default())
        });
        let all = of_sandboxes.chain(of_containers).chain(of_logs);
        let gone = all.filter(|(uid, name)| !uid.is_empty() && !known.has(uid, name));
        Ok(Pods { gone: gone.map(|(uid, _)| uid.to_owned()).collect(), unknown: None })
    }

    fn processes(&mut self) -> Result<Processes, String> {
        if !self.collection.scope.logs {
            return Err("the open files of processes were not read".into());
        }
        match &self.processes {
            Some((read, processes)) if read.elapsed() < PROCESSES_ARE_FRESH => processes.clone(),
            _ => {
                let processes = every_process();
                self.processes = Some((Instant::now(), processes.clone()));
                processes
            }
        }
    }
}

/// Reads the open files of all processes. Tries again if a process was invisible: it may just have started or ended.
fn every_process() -> Result<Processes, String> {
    let mut attempts_left = 3;
    loop {
        attempts_left -= 1;
        match Processes::read() {
            Ok(processes) if processes.sees_all() || attempts_left == 0 => return Ok(processes),
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
