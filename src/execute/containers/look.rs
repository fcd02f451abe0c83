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
    /// The kubelet's three phases, in its order: each sees the deletions of the one before.
    pub(super) fn stages(self) -> impl Iterator<Item = TargetKind> {
        let all = [
            (TargetKind::Container, self.containers),
            (TargetKind::Sandbox, self.containers),
            (TargetKind::Log, self.logs),
        ];
        all.into_iter().filter_map(|(stage, wanted)| wanted.then_some(stage))
    }
}

/// Which containers, sandboxes and logs to collect, and with which runtime.
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
    /// For people, by id.
    pub(super) names: HashMap<String, String>,
}

/// Looking through all files that all processes have open takes long on a busy node. What is
/// opened later loses nothing but its name.
const PROCESSES_ARE_FRESH: Duration = Duration::from_secs(2);

/// As the runtime lists it, with its death if its status is known.
fn container(listed: &RuntimeContainer, details: Option<&ContainerDetails>) -> Container {
    Container {
        id: listed.id.clone(),
        pod: listed.pod_uid.clone(),
        name: listed.name.clone(),
        attempt: listed.attempt,
        sandbox: listed.sandbox_id.clone(),
        // The status was asked for later.
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
    /// Where the logs of those that have ended are.
    pub(super) log_paths: HashMap<String, String>,
    /// Which pods have a log directory that could be listed.
    pub(super) log_directories: Result<Vec<node_logs::LogDirectory>, String>,
    pub(super) processes: Result<Processes, String>,
}

/// The containers of one runtime: lists them, and caches what cannot change any more.
pub(super) struct CriSource<'a> {
    pub(super) asked: &'a Collection<'a>,
    /// Of containers that have ended; none of them starts again.
    ended: HashMap<String, ContainerDetails>,
    processes: Option<(Instant, Result<Processes, String>)>,
}

impl<'a> CriSource<'a> {
    pub(super) fn new(asked: &'a Collection<'a>) -> Self {
        Self { asked, ended: HashMap::new(), processes: None }
    }

    pub(super) fn list(&mut self) -> Result<CriListing, PreconditionError> {
        let Collection { client, request, places, scope, .. } = *self.asked;
        // The kubelet makes a pod's directory before all else, and removes it last. So that is
        // looked at last: of what was seen before, no directory is missing only by now.
        let log_directories = match scope.logs {
            true => node_logs::directories(&request.sysroot, places).map_err(|error| error.to_string()),
            false => Ok(Vec::new()),
        };
        // A container that is made in between is in the later listing, and fills its sandbox.
        let listed_sandboxes = client.sandboxes()?;
        let mut listed = client.containers()?;
        let mut log_paths = HashMap::new();
        let mut containers = Vec::new();
        let mut vanished = BTreeSet::new();
        for one in &listed {
            if one.state == ContainerState::Running {
                containers.push(container(one, None));
                continue;
            }
            let Some(details) = self.details(&one.id)? else {
                vanished.insert(one.id.clone());
                continue;
            };
            if !details.log_path.is_empty() {
                log_paths.insert(one.id.clone(), details.log_path.clone());
            }
            containers.push(container(one, Some(&details)));
        }
        listed.retain(|one| !vanished.contains(&one.id));
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
        let details = self.asked.client.container(id)?;
        if let Some(details) = &details
            && details.state == ContainerState::Exited
        {
            self.ended.insert(id.to_owned(), details.clone());
        }
        Ok(details)
    }

    /// Asks for one container whatever is remembered of it.
    pub(super) fn fresh(&mut self, id: &str) -> Result<Option<ContainerDetails>, PreconditionError> {
        self.ended.remove(id);
        self.details(id)
    }

    /// Which of their pods are deleted.
    fn pods<'b>(
        &self,
        containers: &'b [RuntimeContainer],
        sandboxes: &'b [RuntimeSandbox],
        of_logs: impl Iterator<Item = (&'b str, &'b str)>,
    ) -> Result<Pods, String> {
        let Collection { request, places, .. } = *self.asked;
        let known = KnownPods::read(&request.sysroot, places).map_err(|error| with_causes(&error))?;
        let running = sandboxes.iter().filter(|one| one.ready).map(|one| one.pod_uid.as_str());
        known.check_running(running.filter(|uid| !uid.is_empty())).map_err(|error| with_causes(&error))?;
        let names: HashMap<&str, &str> = sandboxes.iter().map(|one| (&*one.pod_uid, &*one.name)).collect();
        let of_sandboxes = sandboxes.iter().map(|one| (&*one.pod_uid, &*one.name));
        let of_containers = containers.iter().map(|one| {
            let uid = one.pod_uid.as_str();
            (uid, names.get(uid).copied().unwrap_or_default())
        });
        let all = of_sandboxes.chain(of_containers).chain(of_logs);
        let gone = all.filter(|(uid, name)| !uid.is_empty() && !known.has(uid, name));
        Ok(Pods { gone: gone.map(|(uid, _)| uid.to_owned()).collect(), unknown: None })
    }

    fn processes(&mut self) -> Result<Processes, String> {
        if !self.asked.scope.logs {
            return Err("nobody has looked".into());
        }
        match &self.processes {
            Some((at, processes)) if at.elapsed() < PROCESSES_ARE_FRESH => processes.clone(),
            _ => {
                let processes = every_process();
                self.processes = Some((Instant::now(), processes.clone()));
                processes
            }
        }
    }
}

/// A process that comes or goes while it is looked at may hide a moment.
fn every_process() -> Result<Processes, String> {
    let mut tries = 3;
    loop {
        tries -= 1;
        match Processes::read() {
            Ok(processes) if processes.sees_all() || tries == 0 => return Ok(processes),
            Err(error) if tries == 0 => return Err(error.to_string()),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl CriListing {
    /// Whether the runtime has anything of the pod.
    pub(super) fn has_pod(&self, uid: &str, without: &BTreeSet<&str>) -> bool {
        let container = |one: &Container| one.pod == uid && !without.contains(one.id.as_str());
        let sandbox =
            |one: &Sandbox| (one.pod == uid || one.uid == uid) && !without.contains(one.id.as_str());
        self.listing.containers.iter().any(container) || self.listing.sandboxes.iter().any(sandbox)
    }
}

/// `<namespace>/<pod>/<container>`, as far as the runtime tells.
fn names(containers: &[RuntimeContainer], sandboxes: &[RuntimeSandbox]) -> HashMap<String, String> {
    let pods = sandboxes.iter().map(|one| (one.id.clone(), format!("{}/{}", one.namespace, one.name)));
    let mut names: HashMap<_, _> = pods.collect();
    for one in containers {
        let name = container(one, None).describe();
        let name = match names.get(&one.sandbox_id) {
            Some(pod) => format!("{pod}/{name}"),
            None => name,
        };
        names.insert(one.id.clone(), name);
    }
    names
}
