//! The store behind the server: what podman and containers-storage report about it, and removals with these tools.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_cri::v1;
use serde_json::{Value, json};

use crate::support::artifacts::Artifacts;
use crate::support::program::{self, Run};
use crate::support::store::Store;

/// A store as CRI-O would see it.
#[derive(Clone)]
pub struct Podman {
    store: Arc<Store>,
    /// Last output of the tools, and the record files that it describes: CRI-O keeps this in memory, and a process for
    /// each question would take minutes for the test of a big store.
    said: Arc<Mutex<HashMap<&'static str, (Stamp, String)>>>,
    /// Images that podman listed last.
    listed: Arc<Mutex<Vec<v1::Image>>>,
}

/// Identity of record files: every change creates new files.
type Stamp = Vec<Option<(u64, u64, i64, i64)>>;

const CONTAINER_RECORDS: [&str; 2] = ["containers.json", "volatile-containers.json"];
const IMAGE_RECORDS: [&str; 2] = ["images.json", "layers.json"];

/// Record of a CRI container in the store.
struct Record {
    id: String,
    image: String,
    /// Metadata that CRI-O writes.
    metadata: Value,
    created: i64,
    /// State: `running`, `exited` or `created`.
    state: String,
    /// End of the container in nanoseconds.
    finished: i64,
}

impl Podman {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self { store, said: Arc::default(), listed: Arc::default() }
    }

    /// Returns the answer of CRI-O to `GET /info`.
    pub(super) fn info(&self) -> String {
        let info = json!({
            "storage_driver": self.store.driver(),
            "storage_root": self.store.root(),
            "cgroup_driver": "systemd",
        });
        info.to_string()
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Makes a pod: a sandbox of image `pause`. Returns its id.
    pub fn sandbox(&self, pod: &str, pause: &str) -> String {
        self.container_record(pod, "POD", pause, true, pod)
    }

    /// Makes a running container in a pod. Returns its id.
    pub fn container(&self, sandbox: &str, pod: &str, name: &str, image: &str) -> String {
        self.container_record(pod, name, image, false, sandbox)
    }

    /// Makes a running container of the kubelet in a pod, at a later attempt. Returns its id.
    pub fn attempt(&self, sandbox: &str, pod: &str, name: &str, image: &str, attempt: u32) -> String {
        let metadata = self.metadata(pod, name, image, false, sandbox, attempt);
        self.make(&metadata, &full_name(name, pod, attempt), image)
    }

    /// Writes the state of a container or sandbox: `created`, `running` or `exited`.
    pub fn set_state(&self, id: &str, state: &str) {
        let finished = if state == "exited" { Timestamp::now().to_string() } else { String::new() };
        let directory = self.state_file(id);
        let directory = directory.parent().expect("a directory");
        std::fs::create_dir_all(directory).expect("making userdata");
        let text = json!({"status": state, "finished": finished}).to_string();
        std::fs::write(self.state_file(id), text).expect("writing state.json");
    }

    fn container_record(
        &self,
        pod: &str,
        name: &str,
        image: &str,
        is_sandbox: bool,
        sandbox: &str,
    ) -> String {
        let metadata = self.metadata(pod, name, image, is_sandbox, sandbox, 0);
        self.make(&metadata, &full_name(name, pod, 0), image)
    }

    fn metadata(
        &self,
        pod: &str,
        name: &str,
        image: &str,
        is_sandbox: bool,
        sandbox: &str,
        attempt: u32,
    ) -> Value {
        json!({
            "pod-name": format!("k8s_{pod}"),
            "pod-id": sandbox,
            "image-name": image,
            "name": full_name(name, pod, attempt),
            "metadata-name": name,
            "uid": format!("uid-{pod}"),
            "namespace": "default",
            "created-at": Timestamp::now().as_second(),
            "pod": is_sandbox,
            "attempt": attempt,
        })
    }

    fn make(&self, metadata: &Value, name: &str, image: &str) -> String {
        let made = self.store.storage([
            "create-container",
            "--volatile",
            "--metadata",
            &metadata.to_string(),
            "--name",
            name,
            image,
        ]);
        let id = made.split_whitespace().next().expect("the container's id").to_owned();
        self.set_state(&id, "running");
        id
    }

    fn state_file(&self, id: &str) -> PathBuf {
        let driver = self.store.driver();
        self.store.root().join(format!("{driver}-containers")).join(id).join("userdata/state.json")
    }

    /// Returns all images, each once. Podman measures each image for its list; it is only asked again if the library's
    /// own tool lists other images.
    pub(super) fn images(&self) -> Result<Vec<v1::Image>, String> {
        let mut command = self.store.command("containers-storage");
        let output = self.ask(IMAGE_RECORDS, command.args(["images", "--json"]))?;
        let rows: Option<Vec<Value>> = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        let rows = rows.unwrap_or_default();
        let mut listed = self.listed.lock().expect("a lock");
        let is_current = rows.iter().all(|row| {
            listed
                .iter()
                .any(|image| row["id"] == image.id.as_str() && texts(row, "names") == image.repo_tags)
        });
        if !is_current {
            *listed = self.list()?;
        }
        let existing = listed.iter().filter(|image| rows.iter().any(|row| row["id"] == image.id.as_str()));
        Ok(existing.cloned().collect())
    }

    /// Lists images with podman, which prints one row for each name.
    fn list(&self) -> Result<Vec<v1::Image>, String> {
        let mut command = self.store.podman_command();
        let output = self.run(command.args(["images", "--all", "--no-trunc", "--format=json"]))?;
        let rows: Vec<Value> = serde_json::from_str(&output).map_err(|error| error.to_string())?;
        let mut images: Vec<v1::Image> = Vec::new();
        for row in rows {
            let id = program::text(&row, "/Id").to_owned();
            if images.iter().any(|image| image.id == id) {
                continue;
            }
            images.push(v1::Image {
                id,
                repo_tags: texts(&row, "Names"),
                repo_digests: texts(&row, "RepoDigests"),
                size: row["Size"].as_u64().unwrap_or_default(),
                ..v1::Image::default()
            });
        }
        Ok(images)
    }

    /// Returns the artifacts in the graphroot, as CRI-O 1.36 lists them among the images.
    pub(super) fn artifacts(&self) -> Vec<v1::Image> {
        let artifacts = Artifacts::of(self.store.root()).list().into_iter().map(|artifact| {
            let repositories = artifact
                .names
                .iter()
                .map(|name| name.rsplit_once(':').map_or(name.clone(), |(bare, _)| bare.into()));
            let unknown = artifact.names.is_empty().then(|| "unknown".to_owned());
            let repositories = repositories.chain(unknown);
            v1::Image {
                repo_digests: repositories.map(|name| format!("{name}@sha256:{}", artifact.id)).collect(),
                id: artifact.id,
                repo_tags: artifact.names,
                size: artifact.size,
                ..v1::Image::default()
            }
        });
        artifacts.collect()
    }

    /// Removes an artifact by name and digest, the only way that works with CRI-O 1.36.
    pub(super) fn remove_artifact(&self, reference: &str) {
        Artifacts::of(self.store.root()).remove(reference);
    }

    /// Returns the containers of CRI, or its sandboxes.
    fn records(&self, sandboxes: bool) -> Result<Vec<Record>, String> {
        let mut command = self.store.command("containers-storage");
        let output = self.ask(CONTAINER_RECORDS, command.args(["containers", "--json"]))?;
        let output = if output.trim().is_empty() { "[]" } else { output.trim() };
        let rows: Option<Vec<Value>> = serde_json::from_str(output).map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        for row in rows.unwrap_or_default() {
            let metadata: Value =
                row["metadata"].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let is_cri = metadata["pod-id"].is_string();
            if !is_cri || (metadata["pod"] == true) != sandboxes {
                continue;
            }
            let id = program::text(&row, "/id").to_owned();
            let state = std::fs::read_to_string(self.state_file(&id)).unwrap_or_default();
            let state: Value = serde_json::from_str(&state).unwrap_or_default();
            records.push(Record {
                image: row["image"].as_str().unwrap_or_default().to_owned(),
                created: nanoseconds(&row["created"]),
                state: state["status"].as_str().unwrap_or_default().to_owned(),
                finished: nanoseconds(&state["finished"]),
                metadata,
                id,
            });
        }
        Ok(records)
    }

    /// Returns the containers; with `old_image_ref` they name their image by a repo digest only.
    pub(super) fn containers(&self, old_image_ref: bool) -> Result<Vec<v1::Container>, String> {
        let digests: HashMap<String, String> = if old_image_ref {
            let images = self.images()?.into_iter();
            images.filter_map(|image| Some((image.id, image.repo_digests.into_iter().next()?))).collect()
        } else {
            HashMap::new()
        };
        let containers = self.records(false)?.into_iter().map(|record| {
            let digest = digests.get(&record.image).cloned();
            v1::Container {
                pod_sandbox_id: text(&record.metadata, "pod-id"),
                metadata: Some(container_metadata(&record.metadata)),
                image: Some(v1::ImageSpec {
                    image: text(&record.metadata, "image-name"),
                    ..Default::default()
                }),
                image_id: if old_image_ref { String::new() } else { record.image.clone() },
                image_ref: digest.unwrap_or(record.image),
                state: state(&record.state).into(),
                created_at: record.created,
                labels: labels(&record.metadata),
                id: record.id,
                ..v1::Container::default()
            }
        });
        Ok(containers.collect())
    }

    pub(super) fn container_status(&self, id: &str) -> Result<Option<v1::ContainerStatus>, String> {
        let record = self.records(false)?.into_iter().find(|record| record.id == id);
        Ok(record.map(|record| v1::ContainerStatus {
            metadata: Some(container_metadata(&record.metadata)),
            state: state(&record.state).into(),
            created_at: record.created,
            started_at: record.created,
            finished_at: record.finished,
            image: Some(v1::ImageSpec { image: text(&record.metadata, "image-name"), ..Default::default() }),
            image_ref: record.image.clone(),
            image_id: record.image,
            labels: labels(&record.metadata),
            id: record.id,
            ..v1::ContainerStatus::default()
        }))
    }

    pub(super) fn sandboxes(&self) -> Result<Vec<v1::PodSandbox>, String> {
        let sandboxes = self.records(true)?.into_iter().map(|record| {
            let ready = record.state == "running";
            let pod_state =
                if ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready };
            v1::PodSandbox {
                metadata: Some(v1::PodSandboxMetadata {
                    name: text(&record.metadata, "pod-id"),
                    uid: text(&record.metadata, "uid"),
                    namespace: text(&record.metadata, "namespace"),
                    attempt: 0,
                }),
                state: pod_state.into(),
                created_at: record.created,
                labels: labels(&record.metadata),
                id: record.id,
                ..v1::PodSandbox::default()
            }
        });
        Ok(sandboxes.collect())
    }

    /// Removes an image with all its names, by the library's own tool, which refuses an image in use before any name is
    /// removed, as for CRI-O; `podman rmi` would untag all but the last.
    pub(super) fn remove_image(&self, image: &v1::Image) -> Result<(), String> {
        self.run(self.store.command("containers-storage").args(["delete-image", &image.id])).map(drop)
    }

    /// Removes one name, if the image has several.
    pub(super) fn untag_one(&self, image: &v1::Image) -> Result<(), String> {
        match image.repo_tags.as_slice() {
            [first, _, ..] => {
                self.run(self.store.podman_command().args(["untag", &image.id, first])).map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn remove_container(&self, id: &str) -> Result<(), String> {
        let mut records = self.records(false)?;
        records.extend(self.records(true)?);
        if !records.iter().any(|record| record.id == id) {
            return Ok(()); // as CRI requires
        }
        self.run(self.store.command("containers-storage").args(["delete-container", id])).map(drop)
    }

    /// Returns the output of the command, without running it if the record files have not changed.
    fn ask(&self, records: [&'static str; 2], command: &mut std::process::Command) -> Result<String, String> {
        let stamp = self.stamp(records);
        if let Some((of, said)) = self.said.lock().expect("a lock").get(records[0])
            && *of == stamp
        {
            return Ok(said.clone());
        }
        let said = self.run(command)?;
        if self.stamp(records) == stamp {
            self.said.lock().expect("a lock").insert(records[0], (stamp, said.clone()));
        }
        Ok(said)
    }

    fn stamp(&self, records: [&'static str; 2]) -> Stamp {
        let stamps = records.into_iter().map(|name| {
            let file = std::fs::metadata(self.store.record(name)).ok()?;
            Some((file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
        });
        stamps.collect()
    }

    fn run(&self, command: &mut std::process::Command) -> Result<String, String> {
        let Run { code, stdout, stderr, .. } = program::run(command);
        if code == 0 { Ok(stdout) } else { Err(stderr.trim().to_owned()) }
    }
}

/// Returns the name that CRI-O gives to a container.
fn full_name(name: &str, pod: &str, attempt: u32) -> String {
    format!("k8s_{name}_{pod}_default_uid-{pod}_{attempt}")
}

fn container_metadata(metadata: &Value) -> v1::ContainerMetadata {
    let attempt = metadata["attempt"].as_u64().unwrap_or_default();
    v1::ContainerMetadata {
        name: text(metadata, "metadata-name"),
        attempt: u32::try_from(attempt).unwrap_or_default(),
    }
}

pub(super) fn state(text: &str) -> v1::ContainerState {
    match text {
        "created" => v1::ContainerState::ContainerCreated,
        "running" => v1::ContainerState::ContainerRunning,
        "exited" => v1::ContainerState::ContainerExited,
        _ => v1::ContainerState::ContainerUnknown,
    }
}

fn labels(metadata: &Value) -> HashMap<String, String> {
    [
        ("io.kubernetes.pod.uid".to_owned(), text(metadata, "uid")),
        ("io.kubernetes.pod.namespace".to_owned(), text(metadata, "namespace")),
        ("io.kubernetes.container.name".to_owned(), text(metadata, "metadata-name")),
    ]
    .into()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    let all = value[key].as_array().into_iter().flatten();
    all.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn nanoseconds(time: &Value) -> i64 {
    let time: Option<Timestamp> = time.as_str().and_then(|text| text.parse().ok());
    time.and_then(|time| i64::try_from(time.as_nanosecond()).ok()).unwrap_or_default()
}
