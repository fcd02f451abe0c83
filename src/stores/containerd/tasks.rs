//! States of containers outside CRI, from their tasks.
//!
//! containerd's databases contain containers, but not their tasks. A task has a working directory in the root and a
//! bundle in the state directory, both named `<namespace>/<id>` (`core/runtime/v2/bundle.go` in 2.x, `runtime/v2/bundle.go` in
//! 1.x). containerd creates the working directory before it starts the first process, and deletes it after the process
//! has ended: without this directory there is no task, wherever the state directory is. The bundle of a task whose
//! process has ended stays mounted until `ctr tasks rm`. Its file `init.pid` names the process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::fill::id_of_container;
use super::places::TASKS;
use super::snapshot::Snapshot;
use crate::model::{ContainerState, is_of_docker};
use crate::sys::processes::Processes;
use crate::sys::quiet::{self, Within};

/// Maximum size of `init.pid` that is read.
const PID_BYTES: u64 = 32;

/// Returns the states of the containers that neither CRI nor Docker has, by the ids of the inventory. `mounts` are the
/// mount points of all processes. A container that may run is `Unknown`, unless a process in its control group proves
/// it.
pub(super) fn states(snapshot: &Snapshot, mounts: &[PathBuf]) -> HashMap<String, ContainerState> {
    let mut states = HashMap::new();
    let mut first_processes = Vec::new();
    let namespaces = snapshot.metadata.namespaces.iter();
    for namespace in namespaces.filter(|namespace| !is_of_docker(&namespace.name)) {
        for record in namespace.containers.iter().filter(|record| record.cri.is_none()) {
            let id = id_of_container(&namespace.name, record);
            let task = Path::new(&namespace.name).join(&record.id);
            if !has_task(snapshot, &task, mounts) {
                states.insert(id, ContainerState::Exited);
                continue;
            }
            let process = first_process(snapshot, &task, mounts).map(|pid| (id.clone(), &record.id, pid));
            first_processes.extend(process);
            states.insert(id, ContainerState::Unknown);
        }
    }
    // The processes are read after all numbers: a process whose number was read before, and that runs, is among them.
    let processes = if first_processes.is_empty() { None } else { Processes::read_groups().ok() };
    for (id, name, pid) in first_processes {
        states.insert(id, state_of_process(processes.as_ref(), name, pid));
    }
    states
}

/// Returns false if the container has no task. The mount of the root filesystem shows a task of containerd 1.x's first
/// runtime, whose directories have other names.
fn has_task(snapshot: &Snapshot, task: &Path, mounts: &[PathBuf]) -> bool {
    let directory = snapshot.places.root.join(TASKS).join(task);
    let is_absent = snapshot.within.facts(&directory).is_err_and(|error| quiet::is_absent(&error));
    let rootfs = task.join("rootfs");
    !is_absent || mounts.iter().any(|mount| mount.ends_with(&rootfs))
}

/// Returns the number of the task's first process; `None` if the bundle is not found, or another runtime than runc's
/// wrote it.
fn first_process(snapshot: &Snapshot, task: &Path, mounts: &[PathBuf]) -> Option<u32> {
    if snapshot.places.foreign {
        return None;
    }
    let below_state = Path::new(TASKS).join(task);
    let rootfs = below_state.join("rootfs");
    let mounted = mounts.iter().find(|mount| mount.ends_with(&rootfs)).and_then(|mount| mount.parent());
    let configured = snapshot.places.state.as_ref().map(|state| state.join(&below_state));
    [mounted.map(Path::to_path_buf), configured].into_iter().flatten().find_map(|bundle| {
        let text = Within::at([bundle.as_path()]).read(&bundle.join("init.pid"), PID_BYTES).ok()?;
        std::str::from_utf8(&text).ok()?.trim().parse().ok()
    })
}

/// Returns the state by the task's first process. Another process may have its number by now: only one in a control
/// group of the container proves that it runs.
fn state_of_process(processes: Option<&Processes>, id: &str, pid: u32) -> ContainerState {
    let Some(processes) = processes else { return ContainerState::Unknown };
    match processes.all().iter().find(|process| process.id == pid) {
        Some(process) if process.is_in_group_of(id) => ContainerState::Running,
        None if processes.sees_all() => ContainerState::Exited,
        Some(_) | None => ContainerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::processes::Process;

    #[test]
    fn process_in_the_containers_group_runs() {
        let all = [(7, "/default/web"), (8, "/system.slice/cron.service")].map(|(id, group)| Process {
            id,
            group: format!("0::{group}\n"),
            ..Process::default()
        });
        let all = all.to_vec();
        for (pid, sees_all, expected) in [
            (7, true, ContainerState::Running),
            (7, false, ContainerState::Running),
            (8, true, ContainerState::Unknown),
            (9, true, ContainerState::Exited),
            (9, false, ContainerState::Unknown),
        ] {
            let processes = Processes::of(all.clone(), sees_all);
            assert_eq!(state_of_process(Some(&processes), "web", pid), expected, "{pid} {sees_all}");
        }
        assert_eq!(state_of_process(None, "web", 9), ContainerState::Unknown);
    }
}
