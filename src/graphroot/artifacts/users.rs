//! Containers that have an artifact as a volume, as their own records say.
//!
//! The same before a container's start, while it runs, after its end and after a reboot: mounts
//! come and go, records stay as long as the container.

use std::path::Path;

use serde_json::{Map, Value};

use super::read::Artifact;
use crate::graphroot::inspect::engine::{self, Engine, PodmanContainer};
use crate::graphroot::snapshot::Places;
use crate::graphroot::units::is_id;
use crate::sys::quiet::{Kind, Within};

/// The annotations are small, but the system call filter beside them is not.
const MAX_BYTES: u64 = 16 << 20;

/// What CRI-O writes of a container's volumes (cri-o `internal/annotations`, `internal/oci`).
const VOLUMES: &str = "io.kubernetes.cri-o.Volumes";
const METADATA: &str = "io.kubernetes.cri-o.Metadata";

/// A container that has volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::graphroot) struct VolumeUse {
    /// Who, in words.
    pub(in crate::graphroot) by: String,
    /// What it calls the artifact: an id, a digest or a name. `None`: it cannot be told, and may be
    /// any.
    pub(in crate::graphroot) reference: Option<String>,
}

impl VolumeUse {
    /// Whether it is, or may be, this artifact.
    pub(in crate::graphroot) fn means(&self, artifact: &Artifact) -> bool {
        self.means_one_of(&artifact.digest, &artifact.names)
    }

    pub(in crate::graphroot) fn means_one_of(&self, digest: &str, names: &[String]) -> bool {
        let Some(reference) = &self.reference else { return true };
        let hex = digest.rsplit(':').next().unwrap_or(digest);
        let bare = reference.strip_prefix("sha256:").unwrap_or(reference);
        let by_digest = bare == hex || reference.rsplit_once('@').is_some_and(|(_, of)| of == digest);
        // Podman takes the start of a digest for it.
        let by_start = bare.len() >= 3 && hex.starts_with(bare);
        let same = |name: &String| {
            let short = |name: &str| {
                name == reference || name.strip_suffix(reference).is_some_and(|rest| rest.ends_with('/'))
            };
            short(name) || name.strip_suffix(":latest").is_some_and(short)
        };
        by_digest || by_start || names.iter().any(same)
    }
}

/// All that the containers of the graphroot say, whichever driver they have.
pub(in crate::graphroot) fn of(places: &Places) -> Vec<VolumeUse> {
    let within = places.within();
    let mut found = of_crio(&within, &places.graphroot);
    match engine::read(places) {
        Engine::Unreadable(why) => {
            found.push(VolumeUse { by: format!("a podman container, perhaps ({why})"), reference: None });
        }
        engine => found.extend(engine.containers().flat_map(|(id, container)| of_podman(id, container))),
    }
    found
}

fn of_podman(id: &str, container: &PodmanContainer) -> Vec<VolumeUse> {
    let name = if container.name.is_empty() { id } else { &container.name };
    let uses = container.artifact_volumes.iter().map(|source| VolumeUse {
        by: format!("the podman container {name}, which has it as a volume"),
        reference: Some(source.clone()),
    });
    uses.collect()
}

fn of_crio(within: &Within, graphroot: &Path) -> Vec<VolumeUse> {
    let mut found = Vec::new();
    // Without a listing there are no records to go by, and the store of the images says so.
    for entry in within.list(graphroot).unwrap_or_default() {
        let is_records = entry.name.to_str().is_some_and(|name| name.ends_with("-containers"));
        if !is_records || entry.kind != Kind::Directory {
            continue;
        }
        let records = graphroot.join(&entry.name);
        let unlisted = |error: std::io::Error| {
            let by = format!("a container of {}, which cannot be listed ({error})", records.display());
            vec![VolumeUse { by, reference: None }]
        };
        let containers = match within.list(&records) {
            Ok(containers) => containers,
            Err(error) => {
                found.extend(unlisted(error));
                continue;
            }
        };
        for container in containers {
            let Some(id) = container.name.to_str().filter(|name| is_id(name)) else { continue };
            let config = within.read(&records.join(id).join("userdata/config.json"), MAX_BYTES);
            found.extend(match config {
                Ok(config) => of_config(id, &config),
                // Not started yet by podman, or not CRI-O's.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(error) => vec![unknown(id, &error.to_string())],
            });
        }
    }
    found
}

fn unknown(id: &str, why: &str) -> VolumeUse {
    VolumeUse { by: format!("the container {id}, whose volumes are unknown ({why})"), reference: None }
}

/// What `userdata/config.json` says.
fn of_config(id: &str, config: &[u8]) -> Vec<VolumeUse> {
    let config: Map<String, Value> = match serde_json::from_slice(config) {
        Ok(config) => config,
        Err(error) => return vec![unknown(id, &error.to_string())],
    };
    let text = |key: &str| config.get("annotations")?.get(key)?.as_str();
    let Some(volumes) = text(VOLUMES) else { return Vec::new() };
    let Ok(Value::Array(volumes)) = serde_json::from_str(volumes) else {
        // Go writes an empty list so.
        return if volumes.trim() == "null" { Vec::new() } else { vec![unknown(id, "not a list")] };
    };
    let name = text(METADATA).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let name = name.as_ref().and_then(|metadata| metadata["name"].as_str()).unwrap_or(id);
    let images = volumes.iter().filter_map(|volume| volume["image"]["image"].as_str());
    let images = images.filter(|image| !image.is_empty());
    let uses = images.map(|image| VolumeUse {
        by: format!("the cri-o container {name}, which has it as a volume"),
        reference: Some(image.to_owned()),
    });
    uses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(volumes: &str) -> String {
        let volumes = Value::from(volumes);
        format!(
            r#"{{"annotations":{{"{VOLUMES}":{volumes},"{METADATA}":"{{\"name\":\"model-server\",\"attempt\":0}}"}}}}"#
        )
    }

    #[test]
    fn what_crio_says() {
        let hex = "a".repeat(64);
        let volumes = format!(
            r#"[{{"container_path":"/m","host_path":"/x","image":{{"image":"{hex}"}}}},{{"container_path":"/y"}},7]"#
        );
        let found = of_config("id", config(&volumes).as_bytes());
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(one.by, "the cri-o container model-server, which has it as a volume");
        assert_eq!(one.reference.as_ref(), Some(&hex));
        for nothing in [config("[]"), config("null"), "{}".into(), r#"{"annotations":{"x":7}}"#.into()] {
            assert_eq!(of_config("id", nothing.as_bytes()), [], "{nothing}");
        }
        for strange in [config("{"), config("7"), String::new(), "[]".into()] {
            let found = of_config("id", strange.as_bytes());
            assert!(found.len() == 1 && found[0].reference.is_none(), "{strange}: {found:?}");
        }
    }

    #[test]
    fn references() {
        let hex = "ab".repeat(32);
        let digest = format!("sha256:{hex}");
        let names = ["quay.io/test/model:v1".to_owned(), "quay.io/test/other:latest".to_owned()];
        for (reference, expected) in [
            (hex.clone(), true),
            (digest.clone(), true),
            (format!("quay.io/gone@{digest}"), true),
            ("abab".into(), true),
            ("quay.io/test/model:v1".into(), true),
            ("test/model:v1".into(), true),
            ("quay.io/test/other".into(), true),
            ("quay.io/test/model:v2".into(), false),
            ("model".into(), false),
            ("ba".repeat(32), false),
            ("ab".into(), false),
        ] {
            let by = VolumeUse { by: String::new(), reference: Some(reference.clone()) };
            assert_eq!(by.means_one_of(&digest, &names), expected, "{reference}");
        }
        assert!(VolumeUse { by: String::new(), reference: None }.means_one_of(&digest, &[]));
    }
}
