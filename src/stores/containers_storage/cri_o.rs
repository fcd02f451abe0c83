//! CRI-O's configuration of a container: image volumes, and sandboxes without an infra container.
//!
//! `userdata/config.json` in the container's directory is the configuration of the OCI runtime. Its annotations repeat
//! the kubelet's request (cri-o `server/container_create.go`, `server/sandbox_run_linux.go`).

use std::io;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::sys::quiet::{Within, if_present};

/// Maximum size of the configuration. The annotations are small, but the file also contains the system call filter.
const MAX_BYTES: u64 = 16 << 20;

/// Annotation with the volumes (cri-o `internal/annotations`, as the other ones).
const VOLUMES: &str = "io.kubernetes.cri-o.Volumes";
/// Annotation of a sandbox without an infra container: present and former name (cri-o `pkg/annotations/v2`).
const WITHOUT_INFRA: [&str; 2] = ["spoofed.crio.io", "io.kubernetes.cri-o.Spoofed"];
/// Annotation with the container's name in its pod.
const METADATA: &str = "io.kubernetes.cri-o.Metadata";

#[derive(Deserialize)]
struct BundleConfig {
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SandboxMetadata {
    name: String,
}

/// Entry of the annotation with a container's volumes (cri-o `internal/oci/container.go`, `ContainerVolume`). `image` is
/// set only for image volumes.
#[derive(Deserialize)]
struct BundleVolume {
    #[serde(default)]
    image: Option<VolumeImage>,
}

#[derive(Deserialize)]
struct VolumeImage {
    #[serde(default)]
    image: String,
}

/// Images and OCI artifacts that a container uses as volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageVolumes {
    /// The container's name in its pod, if the configuration contains it.
    pub name: Option<String>,
    /// Ids of images, and digests of manifests of artifacts.
    pub ids: Vec<String>,
}

/// Returns the image volumes of the container with this directory.
///
/// A container in creation has neither a configuration nor volumes yet.
///
/// # Errors
/// When the configuration cannot be read or parsed. Then the volumes are unknown.
pub fn image_volumes(within: &Within, directory: &Path) -> io::Result<ImageVolumes> {
    let config = if_present(within.read(&directory.join("userdata/config.json"), MAX_BYTES))?;
    config.map_or_else(|| Ok(ImageVolumes::default()), |config| volumes_of(&config))
}

/// Returns true if the sandbox with this directory was created without an infra container.
///
/// # Errors
/// When the configuration cannot be read or parsed.
pub(super) fn is_without_infra(within: &Within, directory: &Path) -> io::Result<bool> {
    let config = within.read(&directory.join("userdata/config.json"), MAX_BYTES)?;
    let BundleConfig { annotations } = serde_json::from_slice(&config)?;
    Ok(WITHOUT_INFRA.iter().any(|name| annotations.get(*name).and_then(Value::as_str) == Some("true")))
}

fn volumes_of(config: &[u8]) -> io::Result<ImageVolumes> {
    let BundleConfig { annotations } = serde_json::from_slice(config)?;
    let volumes: Vec<BundleVolume> = match annotations.get(VOLUMES) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        // Go writes `null` for an empty list.
        Some(Value::String(text)) => serde_json::from_str::<Option<_>>(text)?.unwrap_or_default(),
        Some(_) => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its volumes annotation is not a string"));
        }
    };
    let metadata = annotations
        .get(METADATA)
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str::<SandboxMetadata>(text).ok());
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
    fn volumes_annotation_is_parsed() {
        fn ids(annotation: &str) -> Option<Vec<String>> {
            let config = serde_json::json!({"annotations": {"io.kubernetes.cri-o.Volumes": annotation}});
            volumes_of(config.to_string().as_bytes()).ok().map(|volumes| volumes.ids)
        }
        for annotation in ["", "null", "[]", r#"[{"container_path":"/a","host_path":"/b","image":null}]"#] {
            assert_eq!(ids(annotation), Some(Vec::new()), "{annotation}");
        }
        let both = r#"[{"container_path":"/a","host_path":"/b"},
            {"container_path":"/m","host_path":"/s/overlay/1/merged","readonly":true,"image":{"image":"aa"}}]"#;
        assert_eq!(ids(both), Some(vec!["aa".to_owned()]));
        for annotation in ["[", "{}", "7", r#"[{"image":7}]"#, "[7]"] {
            assert_eq!(ids(annotation), None, "{annotation}");
        }
        assert_eq!(volumes_of(b"{}").ok(), Some(ImageVolumes::default()));
        assert!(volumes_of(br#"{"annotations":{"io.kubernetes.cri-o.Volumes":[]}}"#).is_err());
        assert!(volumes_of(b"").is_err(), "cut off by a power loss");
    }
}
