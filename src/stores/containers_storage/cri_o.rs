//! CRI-O's files beside the record of a container: its pod and its end time.
//!
//! `userdata/config.json` is the configuration of the OCI runtime, whose annotations repeat the
//! kubelet's request (cri-o `server/container_create.go`, `server/sandbox_run_linux.go`);
//! `userdata/state.json` is the state as CRI-O last knew it (cri-o `internal/oci/container.go`).

use std::io;
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::sys::quiet::{Within, if_present};

/// The annotations are small, but the system call filter beside them is not.
const MAX_BYTES: u64 = 16 << 20;

/// Annotations of CRI-O (cri-o `internal/annotations`).
const VOLUMES: &str = "io.kubernetes.cri-o.Volumes";
/// Its present and its former name (cri-o `pkg/annotations/v2`).
const WITHOUT_INFRA: [&str; 2] = ["spoofed.crio.io", "io.kubernetes.cri-o.Spoofed"];
const METADATA: &str = "io.kubernetes.cri-o.Metadata";
const LABELS: &str = "io.kubernetes.cri-o.Labels";

/// Labels of the kubelet.
const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";

/// CRI-O's metadata of a container or sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrioMetadata {
    /// Uid of its pod by the kubelet's label; empty where the kubelet did not make it.
    pub pod_uid: String,
    /// Name of its pod, by the kubelet's label.
    pub pod_name: String,
    /// Namespace of its pod, by the kubelet's label.
    pub pod_namespace: String,
    /// Its name in the pod; of a sandbox the pod's.
    pub name: String,
    /// How often it was recreated.
    pub attempt: u32,
    /// When it ended (UTC), if that is known.
    pub finished: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    attempt: u32,
}

#[derive(Deserialize)]
struct CrioState {
    finished: Option<String>,
}

/// An entry of the annotation with a container's volumes (cri-o `internal/oci/container.go`,
/// `ContainerVolume`). One that is not an image has no `image`.
#[derive(Deserialize)]
struct Volume {
    #[serde(default)]
    image: Option<VolumeImage>,
}

#[derive(Deserialize)]
struct VolumeImage {
    #[serde(default)]
    image: String,
}

/// The images and OCI artifacts that a container has as volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageVolumes {
    /// The container's name in its pod, where its configuration has one.
    pub name: Option<String>,
    /// Ids of images, and digests of manifests of artifacts.
    pub ids: Vec<String>,
}

/// What the container whose directory is `directory` has mounted as volumes. A container that is
/// just being created has no configuration, and none yet.
///
/// # Errors
/// When the configuration cannot be read or understood: then what it uses is unknown.
pub fn image_volumes(within: &Within, directory: &Path) -> io::Result<ImageVolumes> {
    let config = if_present(within.read(&directory.join("userdata/config.json"), MAX_BYTES))?;
    config.map_or_else(|| Ok(ImageVolumes::default()), |config| volumes_of(&config))
}

/// Whether the sandbox whose directory is `directory` was created without an infra container.
///
/// # Errors
/// When the configuration cannot be read or understood.
pub(super) fn is_without_infra(within: &Within, directory: &Path) -> io::Result<bool> {
    let config = within.read(&directory.join("userdata/config.json"), MAX_BYTES)?;
    let Config { annotations } = serde_json::from_slice(&config)?;
    Ok(WITHOUT_INFRA.iter().any(|name| annotations.get(*name).and_then(Value::as_str) == Some("true")))
}

fn volumes_of(config: &[u8]) -> io::Result<ImageVolumes> {
    let Config { annotations } = serde_json::from_slice(config)?;
    let volumes: Vec<Volume> = match annotations.get(VOLUMES) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        // Go writes `null` for none.
        Some(Value::String(text)) => serde_json::from_str::<Option<_>>(text)?.unwrap_or_default(),
        Some(_) => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its volumes annotation is not a string"));
        }
    };
    let metadata = annotations.get(METADATA).and_then(Value::as_str);
    let metadata = metadata.and_then(|text| serde_json::from_str::<Metadata>(text).ok());
    let ids = volumes.into_iter().filter_map(|volume| Some(volume.image?.image));
    Ok(ImageVolumes {
        name: metadata.map(|metadata| metadata.name).filter(|name| !name.is_empty()),
        ids: ids.filter(|id| !id.is_empty()).collect(),
    })
}

impl CrioMetadata {
    /// Reads them for the container whose directory, `<graphroot>/<driver>-containers/<id>`, is
    /// `directory`.
    ///
    /// # Errors
    /// When the configuration cannot be read or understood: then its pod is unknown.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let within = Within::at(directory.ancestors().nth(2));
        let userdata = directory.join("userdata");
        let config = within.read(&userdata.join("config.json"), MAX_BYTES)?;
        let state = within.read(&userdata.join("state.json"), MAX_BYTES).unwrap_or_default();
        Self::of(&config, &state)
    }

    fn of(config: &[u8], state: &[u8]) -> io::Result<Self> {
        let Config { annotations } = serde_json::from_slice(config)?;
        let inner = |name: &str| annotations.get(name).and_then(Value::as_str);
        let missing = |name: &str| {
            let what = format!("its configuration has no annotation {name}");
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let labels: Map<String, Value> = serde_json::from_str(inner(LABELS).ok_or_else(|| missing(LABELS))?)?;
        let metadata: Metadata = serde_json::from_str(inner(METADATA).ok_or_else(|| missing(METADATA))?)?;
        let label = |name: &str| labels.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let finished = serde_json::from_slice::<CrioState>(state).ok().and_then(|state| state.finished);
        let finished: Option<Timestamp> = finished.and_then(|time| time.parse().ok());
        Ok(Self {
            pod_uid: label(POD_UID),
            pod_name: label(POD_NAME),
            pod_namespace: label(POD_NAMESPACE),
            name: metadata.name,
            attempt: metadata.attempt,
            // Go's zero time, where nothing has ended.
            finished: finished.filter(|time| *time > Timestamp::UNIX_EPOCH),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_files_say() {
        let config = br#"{"ociVersion":"1.0.2","annotations":{
            "io.kubernetes.cri-o.Labels":"{\"io.kubernetes.pod.uid\":\"u\",\"io.kubernetes.pod.name\":\"p\",\"io.kubernetes.pod.namespace\":\"n\"}",
            "io.kubernetes.cri-o.Metadata":"{\"name\":\"web\",\"attempt\":2}"}}"#;
        let state = br#"{"status":"stopped","finished":"2026-01-02T03:04:05.6Z"}"#;
        let facts = CrioMetadata::of(config, state).unwrap();
        let pod = (facts.pod_uid.as_str(), facts.pod_namespace.as_str(), facts.pod_name.as_str());
        assert_eq!((pod, facts.name.as_str(), facts.attempt), (("u", "n", "p"), "web", 2));
        assert_eq!(facts.finished, Some("2026-01-02T03:04:05.6Z".parse().unwrap()));
        for state in [&br#"{"finished":"0001-01-01T00:00:00Z"}"#[..], b"", b"{", br#"{"finished":7}"#] {
            assert_eq!(CrioMetadata::of(config, state).unwrap().finished, None);
        }
    }

    #[test]
    fn image_volumes_of_a_container() {
        let of = |annotation: &str| {
            let config = serde_json::json!({"annotations": {"io.kubernetes.cri-o.Volumes": annotation}});
            volumes_of(config.to_string().as_bytes()).ok().map(|volumes| volumes.ids)
        };
        let none = Some(Vec::new());
        for annotation in ["", "null", "[]", r#"[{"container_path":"/a","host_path":"/b","image":null}]"#] {
            assert_eq!(of(annotation), none, "{annotation}");
        }
        let both = r#"[{"container_path":"/a","host_path":"/b"},
            {"container_path":"/m","host_path":"/s/overlay/1/merged","readonly":true,"image":{"image":"aa"}}]"#;
        assert_eq!(of(both), Some(vec!["aa".to_owned()]));
        for annotation in ["[", "{}", "7", r#"[{"image":7}]"#, "[7]"] {
            assert_eq!(of(annotation), None, "{annotation}");
        }
        assert_eq!(volumes_of(b"{}").ok(), Some(ImageVolumes::default()));
        assert!(volumes_of(br#"{"annotations":{"io.kubernetes.cri-o.Volumes":[]}}"#).is_err());
        assert!(volumes_of(b"").is_err(), "cut off by a power loss");
    }

    #[test]
    fn what_does_not_say_whose_it_is() {
        for config in [
            "{}",
            "",
            "[]",
            r#"{"annotations":{"io.kubernetes.cri-o.Labels":"{}"}}"#,
            r#"{"annotations":{"io.kubernetes.cri-o.Labels":"{","io.kubernetes.cri-o.Metadata":"{}"}}"#,
            r#"{"annotations":{"io.kubernetes.cri-o.Labels":7,"io.kubernetes.cri-o.Metadata":"{}"}}"#,
        ] {
            assert!(CrioMetadata::of(config.as_bytes(), b"").is_err(), "{config}");
        }
        let made_by_hand = r#"{"annotations":{"io.kubernetes.cri-o.Labels":"{}",
            "io.kubernetes.cri-o.Metadata":"{\"name\":\"web\"}"}}"#;
        let facts = CrioMetadata::of(made_by_hand.as_bytes(), b"").unwrap();
        assert_eq!((facts.pod_uid.as_str(), facts.name.as_str()), ("", "web"));
    }
}
