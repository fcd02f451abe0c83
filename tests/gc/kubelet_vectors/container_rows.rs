//! Rows about containers, sandboxes, logs and eviction, as they are written in the files.

use std::collections::BTreeMap;

use serde::Deserialize;

row!(ContainersRow {
    now_ms: i64,
    policy: ContainerPolicyFields,
    all_sources_ready: bool,
    #[serde(default)] evict_non_deleted_pods: bool,
    pods: BTreeMap<String, PodFields>,
    containers: Vec<ContainerFields>,
    /// Only in layersweep's rows.
    #[serde(default)] sandboxes: Vec<SandboxFields>,
    expected: ContainersExpected,
});

row!(SandboxesRow {
    /// Only in layersweep's rows: the clock, the minimum age, and whether the pods are known.
    now_ms: Option<i64>,
    #[serde(default)] min_age_ms: i64,
    all_sources_ready: Option<bool>,
    #[serde(default)] evict_non_deleted_pods: bool,
    pods: BTreeMap<String, PodFields>,
    sandboxes: Vec<SandboxFields>,
    containers: Vec<InSandbox>,
    expected: SandboxesExpected,
});

row!(PodLogsRow {
    all_sources_ready: bool,
    #[serde(default)] directories: Vec<String>,
    #[serde(default)] removable_uids: Vec<String>,
    #[serde(default)] read_dir_error: bool,
    /// Only in layersweep's rows.
    now_ms: Option<i64>,
    #[serde(default)] min_age_ms: i64,
    #[serde(default)] facts: BTreeMap<String, DirectoryFacts>,
    expected: PodLogsExpected,
});

row!(LogSymlinksRow { symlink: SymlinkFields, expected: SymlinkExpected });

row!(EvictionRow {
    layout: Option<LayoutFields>,
    signal: Option<String>,
    threshold_bytes: Option<u64>,
    min_reclaim_bytes: Option<u64>,
    available_before: Option<u64>,
    available_after_cleanup: Option<u64>,
    transition_ms: Option<i64>,
    #[serde(default)] checks: Vec<Check>,
    expected: EvictionExpected,
});

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerPolicyFields {
    pub min_age_ms: i64,
    pub max_per_pod_container: i64,
    pub max_containers: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PodFields {
    pub content_removable: bool,
    pub runtime_removable: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerFields {
    pub id: String,
    pub pod: String,
    pub name: String,
    /// `null` if unknown.
    pub created_at_ms: Option<i64>,
    pub state: String,
    pub finished_at_ms: Option<i64>,
    #[serde(default)]
    pub sandbox: String,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub remove_error: bool,
    #[serde(default)]
    pub kill_error: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainersExpected {
    pub remaining: Vec<String>,
    pub removed: Vec<String>,
    #[serde(default)]
    pub removed_order: Order,
    #[serde(default)]
    pub stopped_first: Vec<String>,
    #[serde(default)]
    pub failed: Vec<String>,
    /// Only in layersweep's rows: the rule that keeps each container.
    pub kept: Option<BTreeMap<String, String>>,
    pub over_total: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    #[default]
    Any,
    Strict,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxFields {
    pub id: String,
    pub pod: String,
    pub created_at_ms: Option<i64>,
    pub state: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InSandbox {
    pub sandbox: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxesExpected {
    pub remaining: Vec<String>,
    pub kept: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectoryFacts {
    pub occupied: bool,
    pub newest_ms: Option<i64>,
    pub open_by: Option<String>,
    pub open_unknown: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodLogsExpected {
    pub removed: Option<Vec<String>>,
    pub kept: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymlinkFields {
    pub target_exists: bool,
    pub id_parseable: bool,
    pub container_status: Option<String>,
    /// Only in layersweep's rows: true if it leads to the directory of pod logs.
    #[serde(default = "yes", rename = "ours")]
    pub is_pod_log: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymlinkExpected {
    pub removed: bool,
    pub rule: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutFields {
    pub dedicated_image_fs: bool,
    pub split_container_fs: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub after_ms: i64,
    pub pressure_condition: bool,
    pub cleanup_called: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvictionExpected {
    pub container_gc_called: Option<bool>,
    pub image_gc_called: Option<bool>,
    pub order: Option<Vec<String>>,
    pub pod_evicted: Option<bool>,
    pub pressure_condition: Option<bool>,
}
