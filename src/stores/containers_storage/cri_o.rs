//! CRI-O's configuration beside the record of a container: image volumes, and sandboxes without an infra container.
//!
//! `userdata/config.json` is the configuration of the OCI runtime, whose annotations repeat the
//! kubelet's request (cri-o `server/container_create.go`, `server/sandbox_run_linux.go`).

use std::io;
use std::path::Path;

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

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
