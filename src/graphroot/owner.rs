//! Who made a container, and what the disk proves about its state.
//!
//! CRI-O's metadata names the pod (`pod-id`, `pod-name`); podman's names the image and the
//! container but no pod; buildah writes no metadata but keeps `userdata/buildah.json`
//! (container-libs `storage`, cri-o `internal/storage/runtime.go`).

use std::path::Path;

use serde_json::Value;

use super::records::ContainerRecord;
use crate::inventory::{ContainerState, Owner};
use crate::sys::quiet::Within;

/// What the disk says of a container beyond its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) owner: Owner,
    pub(super) state: ContainerState,
    pub(super) sandbox: bool,
    pub(super) name: String,
}

/// Examines the record and the container's directory at `directory`, which is
/// `<graphroot>/<driver>-containers/<id>`.
pub(super) fn origin(record: &ContainerRecord, directory: &Path) -> Origin {
    let metadata: Value =
        record.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let userdata = directory.join("userdata");
    let within = Within::new(directory.ancestors().nth(2));
    let has_buildah_file = within.facts(&userdata.join("buildah.json")).is_ok();
    let owner = owner(&metadata, has_buildah_file);
    let state = match owner {
        // 16 MiB: a runtime state file has a few kB.
        Owner::CriO => within
            .read(&userdata.join("state.json"), 16 << 20)
            .map_or(ContainerState::Unknown, |text| state_of(&text)),
        _ => ContainerState::Unknown,
    };
    Origin {
        owner,
        state,
        sandbox: owner == Owner::CriO && metadata.get("pod") == Some(&Value::Bool(true)),
        name: name(record, &metadata),
    }
}

fn owner(metadata: &Value, has_buildah_file: bool) -> Owner {
    let has = |field| metadata.get(field).is_some_and(Value::is_string);
    if has("pod-id") && has("pod-name") {
        Owner::CriO
    } else if has_buildah_file {
        Owner::Buildah
    } else if has("image-name") && has("name") {
        Owner::Podman
    } else {
        Owner::Unknown
    }
}

fn name(record: &ContainerRecord, metadata: &Value) -> String {
    record
        .names
        .first()
        .cloned()
        .or_else(|| metadata.get("name").and_then(Value::as_str).map(str::to_owned))
        .unwrap_or_else(|| record.id.clone())
}

/// The OCI runtime state that CRI-O keeps in `userdata/state.json`.
fn state_of(content: &[u8]) -> ContainerState {
    let state: Value = serde_json::from_slice(content).unwrap_or(Value::Null);
    match state.get("status").and_then(Value::as_str) {
        Some("created") => ContainerState::Created,
        Some("running" | "paused") => ContainerState::Running,
        Some("stopped") => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let cases = [
            (r#"{"pod-name":"p","pod-id":"1","image-name":"i","name":"n"}"#, false, Owner::CriO),
            (r#"{"image-name":"i","image-id":"1","name":"n","created-at":1}"#, false, Owner::Podman),
            ("null", true, Owner::Buildah),
            ("null", false, Owner::Unknown),
            (r#"{"pod-name":7,"pod-id":8}"#, false, Owner::Unknown),
            ("[1]", false, Owner::Unknown),
        ];
        for (metadata, buildah, expected) in cases {
            assert_eq!(owner(&serde_json::from_str(metadata).unwrap(), buildah), expected, "{metadata}");
        }
    }

    #[test]
    fn states() {
        assert_eq!(state_of(br#"{"status":"running","pid":7}"#), ContainerState::Running);
        assert_eq!(state_of(br#"{"status":"stopped"}"#), ContainerState::Exited);
        assert_eq!(state_of(b"{"), ContainerState::Unknown);
    }
}
