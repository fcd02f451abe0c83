//! Scope of a collection of containers, and listings of its objects at one moment.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::cri::{Client, ContainerDetails, RuntimeContainer, RuntimeSandbox, RuntimeStore};
use crate::model::deletion::plan::TargetKind;
use crate::node::logs as node_logs;
use crate::node::places::KubeletPlaces;
use crate::policy::containers::{Container, ContainerPolicy, Pods, Sandbox};
use crate::stores::ScanRequest;
use crate::sys::processes::Processes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub containers: bool,
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
    pub runtime_store: &'a RuntimeStore,
    pub request: &'a ScanRequest,
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
pub(super) struct Fresh<T> {
    until: Instant,
    pub(super) value: T,
}

impl<T> Fresh<T> {
    /// Time for which evidence is reused, or four times as long as it takes to read.
    const AGE: Duration = Duration::from_secs(2);
    /// Maximum time for which evidence is reused.
    const MOST_AGE: Duration = Duration::from_secs(10);

    pub(super) fn read<E>(read: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        let start = Instant::now();
        let value = read()?;
        let age = (start.elapsed() * 4).clamp(Self::AGE, Self::MOST_AGE);
        Ok(Self { until: Instant::now() + age, value })
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// A container as the runtime lists it, with the time of its end if its status is known.
pub(super) fn container(listed: &RuntimeContainer, details: Option<&ContainerDetails>) -> Container {
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

pub(super) fn sandbox(listed: &RuntimeSandbox) -> Sandbox {
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
    pub(super) log_directories: Result<Vec<node_logs::LogDirectory>, String>,
    pub(super) processes: Result<Rc<Processes>, String>,
    pub(super) pod_names: BTreeSet<(String, String)>,
    pub(super) running_pods: Vec<String>,
}

/// Reads the open files of all processes. Tries again if a process was invisible: it may just have started or ended.
pub(super) fn every_process() -> Result<Processes, String> {
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
pub(super) fn names(
    containers: &[RuntimeContainer],
    sandboxes: &[RuntimeSandbox],
) -> HashMap<String, String> {
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
