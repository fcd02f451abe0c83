//! Rows about containers, sandboxes and logs against policy `exact`; rows of the eviction manager.

use std::collections::{BTreeMap, HashMap};

use super::eviction::{self, Eviction, Layout, Reclaim, Signal, Threshold};
use jiff::SignedDuration;
use layersweep::model::ContainerState;
use layersweep::model::rules::Ruling;
use layersweep::policy::containers::Container;
use layersweep::policy::containers::ContainerPolicy;
use layersweep::policy::containers::Pods;
use layersweep::policy::containers::Sandbox;
use layersweep::policy::containers::Verdicts;
use layersweep::policy::containers::exact;
use layersweep::policy::containers::logs::{self, LinkTarget, LogDirectoryState};

use super::container_rows::{
    ContainerPolicyFields, ContainersRow, DirectoryFacts, EvictionRow, LogSymlinksRow, Order, PodFields,
    PodLogsRow, SandboxFields, SandboxesRow,
};
use super::kubelet::time;
use super::rows::{LoopRow, RunResult};
use super::same;

pub fn containers(row: &ContainersRow) -> Result<(), String> {
    let containers: Vec<_> = row
        .containers
        .iter()
        .map(|container| {
            Ok(Container {
                id: container.id.clone(),
                pod: container.pod.clone(),
                name: container.name.clone(),
                attempt: container.attempt,
                sandbox: container.sandbox.clone(),
                state: state(&container.state)?,
                created: container.created_at_ms.map(time),
                died: container.finished_at_ms.map(time),
            })
        })
        .collect::<Result<_, String>>()?;
    let policy = policy_of(&row.policy);
    let pods = pods(row.all_sources_ready, row.evict_non_deleted_pods, &row.pods);
    let now = time(row.now_ms);
    let sandboxes = sandboxes_of(&row.sandboxes)?;
    let input =
        exact::Input { containers: &containers, sandboxes: &sandboxes, pods: &pods, policy: &policy, now };
    let verdicts = exact::containers(input);
    each_is_judged(containers.iter().map(|container| container.id.as_str()), &verdicts)?;
    let faults: HashMap<_, _> =
        row.containers.iter().map(|container| (container.id.as_str(), container)).collect();
    let (mut removed, mut stopped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for removal in &verdicts.to_delete {
        let container = faults[removal.id.as_str()];
        if removal.stop_first {
            if container.kill_error {
                failed.push(removal.id.clone());
                continue;
            }
            stopped.push(removal.id.clone());
        }
        if container.remove_error { &mut failed } else { &mut removed }.push(removal.id.clone());
    }
    let remaining = row.containers.iter().map(|container| &container.id).filter(|id| !removed.contains(id));
    let remaining: Vec<_> = remaining.cloned().collect();
    let expected = &row.expected;
    same("remaining", &sorted(&expected.remaining), &sorted(&remaining))?;
    match expected.removed_order {
        Order::Strict => same("removed", &expected.removed, &removed)?,
        Order::Any => same("removed", &sorted(&expected.removed), &sorted(&removed))?,
    }
    same("stopped_first", &expected.stopped_first, &stopped)?;
    same("failed", &expected.failed, &failed)?;
    if let Some(over) = expected.over_total {
        same("over_total", &over, &verdicts.over_total)?;
    }
    kept(expected.kept.as_ref(), &verdicts.kept)
}

pub fn sandboxes(row: &SandboxesRow) -> Result<(), String> {
    let sandboxes = sandboxes_of(&row.sandboxes)?;
    let pods = pods(row.all_sources_ready.unwrap_or(true), row.evict_non_deleted_pods, &row.pods);
    let policy = ContainerPolicy {
        min_age: SignedDuration::from_millis(row.min_age_ms),
        ..ContainerPolicy::default()
    };
    let now = time(row.now_ms.unwrap_or(1_000_000));
    let input = exact::Input { containers: &[], sandboxes: &sandboxes, pods: &pods, policy: &policy, now };
    let verdicts =
        exact::sandboxes(input, |id: &str| row.containers.iter().any(|container| container.sandbox == id));
    each_is_judged(sandboxes.iter().map(|sandbox| sandbox.id.as_str()), &verdicts)?;
    if !verdicts.to_delete.iter().all(|removal| removal.stop_first) {
        return Err("a sandbox is to be stopped first".into());
    }
    let remaining = sandboxes.iter().filter(|sandbox| verdicts.deletes(&sandbox.id).is_none());
    let remaining: Vec<_> = remaining.map(|sandbox| sandbox.id.clone()).collect();
    same("remaining", &sorted(&row.expected.remaining), &sorted(&remaining))?;
    kept(row.expected.kept.as_ref(), &verdicts.kept)
}

pub fn pod_logs(row: &PodLogsRow) -> Result<(), String> {
    let pods =
        Pods { gone: row.removable_uids.iter().cloned().collect(), unknown: unknown(row.all_sources_ready) };
    let now = time(row.now_ms.unwrap_or(1_000_000));
    let min_age = SignedDuration::from_millis(row.min_age_ms);
    let (mut removed, mut kept_by) = (Vec::new(), Vec::new());
    for name in &row.directories {
        let facts = row.facts.get(name).cloned().unwrap_or_default();
        match logs::exact_directory(&directory(name, &facts), &pods, min_age, now) {
            None => removed.push(name.clone()),
            Some(ruling) => kept_by.push((name.clone(), ruling)),
        }
    }
    if let Some(expected) = &row.expected.removed {
        same("removed", expected, &removed)?;
    }
    kept(row.expected.kept.as_ref(), &kept_by)
}

fn directory<'a>(name: &'a str, facts: &'a DirectoryFacts) -> LogDirectoryState<'a> {
    LogDirectoryState {
        pod: logs::uid_in_directory(name),
        occupied: facts.occupied,
        newest: facts.newest_ms.map(time),
        open: if facts.open_unknown { Err("hidden") } else { Ok(facts.open_by.as_deref()) },
    }
}

pub fn link(row: &LogSymlinksRow) -> Result<(), String> {
    let link = &row.symlink;
    let named = match (link.id_parseable, link.container_status.as_deref()) {
        (false, _) => LinkTarget::NoId,
        (true, Some("error")) => LinkTarget::Failed,
        (true, Some("nil")) => LinkTarget::Empty,
        (true, Some("unknown_container")) => LinkTarget::Unknown,
        (true, Some(text)) => LinkTarget::State(state(text)?),
        (true, None) => return Err("a container without a status".into()),
    };
    let kept = logs::exact_link(!link.target_exists, link.is_pod_log, named);
    let (removed, rule) = (kept.is_none(), kept.map(|ruling| ruling.rule));
    same("removed", &row.expected.removed, &removed)?;
    if row.expected.rule.is_some() {
        same("rule", &row.expected.rule, &rule.map(|rule| rule.to_string()))
    } else {
        Ok(())
    }
}

pub fn container_loop(row: &LoopRow) -> Result<(), String> {
    if let Some(event) = &row.expected.event {
        same("event", event, &"ContainerGCFailed".to_owned())?;
    }
    // Unlike for images, each failure is reported.
    let told = row.runs.iter().map(|run| *run == RunResult::Error);
    let told: Vec<_> = (1..).zip(told).filter(|(_, told)| *told).map(|(run, _)| run).collect();
    same("events_at_run", &row.expected.events_at_run.clone().unwrap_or_default(), &told)
}

pub fn eviction(row: &EvictionRow) -> Result<(), String> {
    let expected = &row.expected;
    if let (Some(layout), Some(signal)) = (row.layout, &row.signal) {
        let layout = Layout {
            dedicated_image_fs: layout.dedicated_image_fs,
            split_container_fs: layout.split_container_fs,
        };
        let signal = Signal::of(signal).ok_or("unknown signal")?;
        let reclaims = eviction::reclaims(layout, signal);
        let has_containers = reclaims.contains(&Reclaim::Containers);
        same("container_gc_called", &expected.container_gc_called, &Some(has_containers))?;
        let has_images = reclaims.contains(&Reclaim::Images);
        same("image_gc_called", &expected.image_gc_called, &Some(has_images))?;
        let names = reclaims.iter().map(|reclaim| match reclaim {
            Reclaim::Containers => "containers".to_owned(),
            Reclaim::Images => "images".to_owned(),
        });
        return same("order", &expected.order, &Some(names.collect()));
    }
    let threshold = Threshold {
        available_bytes: row.threshold_bytes.unwrap_or(1000),
        min_reclaim_bytes: row.min_reclaim_bytes.unwrap_or(0),
        transition: SignedDuration::from_millis(row.transition_ms.unwrap_or(300_000)),
    };
    let mut manager = Eviction::new(threshold);
    let seen = manager.look(row.available_before.unwrap_or(0), time(0));
    same("clean_up under pressure", &true, &seen.clean_up)?;
    if let Some(after) = row.available_after_cleanup {
        same("pod_evicted", &expected.pod_evicted, &Some(manager.evicts_after(after)))?;
        let still = manager.look(after, time(10_000));
        same("pressure_condition", &expected.pressure_condition, &Some(still.pressure))?;
    }
    for check in &row.checks {
        let seen = manager.look(u64::MAX, time(check.after_ms));
        same("pressure_condition", &check.pressure_condition, &seen.pressure)?;
        same("cleanup_called", &check.cleanup_called, &seen.clean_up)?;
    }
    Ok(())
}

fn policy_of(fields: &ContainerPolicyFields) -> ContainerPolicy {
    ContainerPolicy {
        min_age: SignedDuration::from_millis(fields.min_age_ms),
        max_per_unit: ContainerPolicy::limit(fields.max_per_pod_container),
        max_total: ContainerPolicy::limit(fields.max_containers),
    }
}

/// Returns the state of the pods. Under pressure the eviction manager also deletes objects of pods that have ended.
fn pods(sources_ready: bool, under_pressure: bool, pods: &BTreeMap<String, PodFields>) -> Pods {
    let gone =
        pods.iter().filter(|(_, pod)| pod.content_removable || (under_pressure && pod.runtime_removable));
    Pods { gone: gone.map(|(uid, _)| uid.clone()).collect(), unknown: unknown(sources_ready) }
}

fn unknown(sources_ready: bool) -> Option<String> {
    (!sources_ready).then(|| "the row says so".into())
}

fn sandboxes_of(rows: &[SandboxFields]) -> Result<Vec<Sandbox>, String> {
    let sandboxes = rows.iter().map(|row| {
        let ready = match row.state.as_str() {
            "ready" => true,
            "notready" => false,
            other => return Err(format!("unknown state {other}")),
        };
        Ok(Sandbox {
            id: row.id.clone(),
            pod: row.pod.clone(),
            uid: row.pod.clone(),
            created: row.created_at_ms.map(time),
            ready,
        })
    });
    sandboxes.collect()
}

fn state(text: &str) -> Result<ContainerState, String> {
    Ok(match text {
        "running" => ContainerState::Running,
        "exited" => ContainerState::Exited,
        "created" => ContainerState::Created,
        "unknown" => ContainerState::Unknown,
        other => return Err(format!("unknown state {other}")),
    })
}

fn sorted(ids: &[String]) -> Vec<String> {
    let mut ids = ids.to_vec();
    ids.sort();
    ids
}

/// Checks that every id is either deleted or kept, once.
fn each_is_judged<'a>(ids: impl Iterator<Item = &'a str>, verdicts: &Verdicts) -> Result<(), String> {
    let mut expected: Vec<_> = ids.collect();
    let to_delete = verdicts.to_delete.iter().map(|removal| removal.id.as_str());
    let mut judged: Vec<_> = to_delete.chain(verdicts.kept.iter().map(|(id, _)| id.as_str())).collect();
    expected.sort_unstable();
    judged.sort_unstable();
    same("judged", &expected, &judged)
}

fn kept(expected: Option<&BTreeMap<String, String>>, kept: &[(String, Ruling)]) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let kept: BTreeMap<_, _> =
        kept.iter().map(|(id, ruling)| (id.clone(), ruling.rule.to_string())).collect();
    same("kept", expected, &kept)
}
