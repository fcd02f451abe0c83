//! Rules for pod log directories and log links. Pure.

use jiff::{SignedDuration, Timestamp};

use crate::model::ContainerState;
use crate::model::rules::{Rule, Ruling};
use crate::policy::containers::types::Pods;

/// State of the container that a link is named after, as the runtime reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    NoId,
    Unknown,
    Failed,
    /// The runtime answered without a state.
    Empty,
    State(ContainerState),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDirectoryState<'a> {
    /// Uid of the pod; `None` if the name is not that of a pod's directory.
    pub pod: Option<&'a str>,
    /// The runtime still has a container or sandbox of the pod.
    pub occupied: bool,
    /// Time of the newest change in it; `None` if unknown.
    pub newest: Option<Timestamp>,
    /// Process that has one of its files open; `Err` with the reason if unknown.
    pub open: Result<Option<&'a str>, &'a str>,
}

/// Returns the ruling that keeps a directory; `None` if it is deleted.
#[must_use]
pub fn exact_directory(
    directory: &LogDirectoryState<'_>,
    pods: &Pods,
    min_age: SignedDuration,
    now: Timestamp,
) -> Option<Ruling> {
    let Some(uid) = directory.pod else {
        return Some(Ruling::keeps(Rule::NotAPod, "its name is not that of a pod's log directory"));
    };
    if pods.unknown.is_some() {
        return Some(Ruling::keeps(Rule::PodsUnknown, "the pods of the node are unknown"));
    }
    if !pods.is_gone(uid) {
        return Some(Ruling::keeps(Rule::PodExists, "its pod still exists"));
    }
    if directory.occupied {
        return Some(Ruling::keeps(Rule::HasContainers, "its pod still has containers"));
    }
    match directory.newest {
        None => return Some(Ruling::keeps(Rule::AgeUnknown, "its age is unknown")),
        Some(newest) if now.duration_since(newest) < min_age => {
            return Some(Ruling::keeps(Rule::MinAge, "written to less than the minimum age ago"));
        }
        Some(_) => {}
    }
    open(directory.open)
}

/// Returns the ruling that keeps a file or directory that a process has open, or may have; `by` is `Err` with the
/// reason if that is unknown.
#[must_use]
pub fn open(by: Result<Option<&str>, &str>) -> Option<Ruling> {
    let why = match by {
        Ok(process) => format!("{} has it open", process?),
        Err(why) => format!("cannot determine which process has it open: {why}"),
    };
    Some(Ruling::keeps(Rule::Open, why))
}

/// Returns the ruling that keeps a link; `None` if it is deleted. `is_pod_log`: it points into the directory of pod
/// logs.
#[must_use]
pub fn exact_link(dangling: bool, is_pod_log: bool, named: LinkTarget) -> Option<Ruling> {
    if !dangling {
        return Some(Ruling::keeps(Rule::LinkTargetExists, "its log exists"));
    }
    match named {
        LinkTarget::Unknown => None,
        LinkTarget::NoId if is_pod_log => None,
        LinkTarget::NoId => {
            Some(Ruling::keeps(Rule::NotAPod, "it is not named after a container and points elsewhere"))
        }
        LinkTarget::Failed | LinkTarget::Empty => Some(Ruling::keeps(
            Rule::RuntimeUnknown,
            "the runtime does not report the state of its container",
        )),
        // Logs are rotated by renaming: for a moment, the link of a running container dangles.
        LinkTarget::State(ContainerState::Exited) => None,
        LinkTarget::State(_) => Some(Ruling::keeps(Rule::Running, "its container has not exited")),
    }
}

/// Returns the container's id in a link's name: `<pod>_<namespace>_<container>-<id>.log`.
#[must_use]
pub fn id_in_link(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Returns the pod's uid in the name of its directory: `<namespace>_<name>_<uid>`. Before Kubernetes 1.14 the name
/// was only the uid, a form no longer in use.
#[must_use]
pub fn uid_in_directory(name: &str) -> Option<&str> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_complete = parts.next().is_none() && !namespace.is_empty() && !pod.is_empty();
    (is_complete && !uid.is_empty()).then_some(uid)
}
