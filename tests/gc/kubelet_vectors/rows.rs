//! Rows as they are written in the files.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::container_rows::{ContainersRow, EvictionRow, LogSymlinksRow, PodLogsRow, SandboxesRow};
use serde_json::Value;

/// Policy of the rows.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decides {
    #[default]
    Kubelet,
    Exact,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub schema_version: u32,
    #[serde(rename = "about", default)]
    pub _about: String,
    #[serde(rename = "time_unit", default)]
    pub _time_unit: String,
    #[serde(default)]
    pub decides: Decides,
    pub vectors: Vec<Value>,
}

#[derive(Debug)]
pub enum Row {
    Images(ImagesRow),
    Loop(LoopRow),
    Switch(SwitchRow),
    PolicyValidation(PolicyRow),
    ConfigValidation(ConfigRow),
    Containers(ContainersRow),
    Sandboxes(SandboxesRow),
    PodLogs(PodLogsRow),
    LogSymlinks(LogSymlinksRow),
    ContainerLoop(LoopRow),
    Eviction(EvictionRow),
}

impl Row {
    pub fn parse(area: &str, row: &Value) -> Result<Self, String> {
        let row = row.clone();
        let parsed = match area {
            "image_gc.detect"
            | "image_gc.free_space"
            | "image_gc.delete_unused"
            | "image_gc.garbage_collect"
            | "image_gc.max_age" => serde_json::from_value(row).map(Self::Images),
            "image_gc.loop" => serde_json::from_value(row).map(Self::Loop),
            "image_gc.switch" => serde_json::from_value(row).map(Self::Switch),
            "image_gc.policy_validation" => serde_json::from_value(row).map(Self::PolicyValidation),
            "config.validation" => serde_json::from_value(row).map(Self::ConfigValidation),
            "container_gc.containers" => serde_json::from_value(row).map(Self::Containers),
            "container_gc.sandboxes" => serde_json::from_value(row).map(Self::Sandboxes),
            "container_gc.pod_logs" => serde_json::from_value(row).map(Self::PodLogs),
            "container_gc.log_symlinks" => serde_json::from_value(row).map(Self::LogSymlinks),
            "container_gc.loop" => serde_json::from_value(row).map(Self::ContainerLoop),
            "eviction.reclaim" => serde_json::from_value(row).map(Self::Eviction),
            other => return Err(format!("unknown area {other}")),
        };
        parsed.map_err(|error| error.to_string())
    }
}

/// Fields of every row that are only for readers.
#[macro_export]
macro_rules! row {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)] // read by people
        pub struct $name {
            id: String,
            area: String,
            title: String,
            origin: String,
            rules: Vec<String>,
            $($(#[$field_doc])* pub $field: $type,)*
        }
    };
}

row!(ImagesRow {
    policy: PolicyFields,
    gc_began_ms: i64,
    #[serde(default)] gates: GateFields,
    #[serde(default)] initial_records: Vec<InitialRecord>,
    /// Only in layersweep's rows: bytes of the layers that images name.
    #[serde(default)] layers: BTreeMap<String, u64>,
    steps: Vec<Step>,
});

row!(LoopRow {
    #[serde(default)] runs: Vec<RunResult>,
    expected: LoopExpected,
});

row!(SwitchRow { policy: PolicyFields, expected: SwitchExpected });

row!(PolicyRow { policy: PolicyFields, expected: PolicyExpected });

row!(ConfigRow { config: ConfigFields, expected: ConfigExpected });

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFields {
    pub high_percent: i64,
    pub low_percent: i64,
    #[serde(default)]
    pub min_age_ms: i64,
    #[serde(default)]
    pub max_age_ms: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateFields {
    pub runtime_class_in_image_cri: bool,
    pub image_volume: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialRecord {
    pub key: String,
    pub first_detected_ms: Option<i64>,
    pub last_used_ms: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    #[serde(rename = "do")]
    pub operation: Operation,
    pub at_ms: i64,
    pub bytes_to_free: Option<i64>,
    /// `Some(None)` is a null in the file, which means never.
    #[serde(default, deserialize_with = "present")]
    pub detect_time_ms: Option<Option<i64>>,
    pub images: Option<Vec<Image>>,
    pub containers: Option<Vec<Container>>,
    pub fs: Option<Fs>,
    #[serde(default)]
    pub list_images_error: bool,
    #[serde(default, alias = "list_containers_error")]
    pub list_pods_error: bool,
    pub expect: Expect,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Detect,
    FreeSpace,
    DeleteUnused,
    GarbageCollect,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    pub id: String,
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    pub pinned: bool,
    #[serde(default)]
    pub runtime_handler: String,
    #[serde(default)]
    pub remove_error: bool,
    /// Only in layersweep's rows: shared layers besides its own `size`.
    #[serde(default)]
    pub layers: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    pub image_id: String,
    #[serde(rename = "state")]
    pub _state: ContainerState,
    #[serde(default)]
    pub runtime_handler: String,
    #[serde(default)]
    pub image_mounts: Vec<String>,
    /// Image as the pod names it, which does not show what is in use.
    #[serde(default, rename = "image_name")]
    pub _image_name: String,
}

/// Known states; each of them keeps an image.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerState {
    Running,
    Exited,
    Created,
    Unknown,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fs {
    pub capacity_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    #[serde(default)]
    pub error: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// `Some(None)` means no error.
    #[serde(default, deserialize_with = "present")]
    pub error: Option<Option<String>>,
    pub deleted: Option<Vec<String>>,
    pub deleted_order: Option<String>,
    pub deleted_one_of: Option<Vec<String>>,
    pub attempted: Option<Vec<String>>,
    pub freed_bytes: Option<u64>,
    pub remaining: Option<Vec<String>>,
    pub remaining_count: Option<usize>,
    pub usage_percent: Option<i64>,
    pub amount_to_free: Option<i64>,
    pub events: Option<Vec<String>>,
    pub counters: Option<Counters>,
    pub records: Option<BTreeMap<String, RecordFields>>,
    /// Only in layersweep's rows: `reached` and the like.
    pub outcome: Option<String>,
    /// Only in layersweep's rows: the rule that keeps each image.
    pub kept: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    pub age: usize,
    pub space: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordFields {
    pub first_detected_ms: Option<i64>,
    pub last_used_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunResult {
    Ok,
    Error,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopExpected {
    pub events_at_run: Option<Vec<usize>>,
    pub event: Option<String>,
    pub image_gc_ms: Option<i128>,
    pub image_detect_ms: Option<i128>,
    pub image_list_cache_ms: Option<i128>,
    pub container_gc_ms: Option<i128>,
    pub eviction_check_ms: Option<i128>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchExpected {
    pub loop_started: bool,
    pub detection_loop_started: Option<bool>,
    pub disk_pressure_cleanup_still_works: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyExpected {
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFields {
    pub high_percent: i64,
    pub low_percent: i64,
    pub min_age_ns: i64,
    pub max_age_ns: i64,
    pub max_age_gate: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigExpected {
    pub errors: Vec<String>,
}

/// Distinguishes a null from a missing field.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}
