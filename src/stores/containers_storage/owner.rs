//! Who made a container, and what the disk proves about its state.
//!
//! CRI-O's metadata names the pod (`pod-id`, `pod-name`); podman's names the image and the
//! container but no pod; buildah writes no metadata but keeps `userdata/buildah.json`
//! (container-libs `storage`, cri-o `internal/storage/runtime.go`).

use std::path::Path;

use serde::de::MapAccess;

use super::records::lenient::{self, Fields, Flag, Skip, Text, Truth};
use super::records::{self, ContainerRecord};
use crate::model::{ContainerState, Owner};
use crate::sys::quiet::Within;

/// What the disk says of a container beyond its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) owner: Owner,
    pub(super) state: ContainerState,
    pub(super) sandbox: bool,
    pub(super) sandbox_id: Option<String>,
    pub(super) name: String,
}

records::fields!(Metadata {
    pod_id: Text = "pod-id",
    pod_name: Text = "pod-name",
    pod: Flag = "pod",
    image_name: Text = "image-name",
    name: Text = "name",
});

records::fields!(State { status: Text = "status" });

/// Examines the record and the container's directory at `directory`, which is
/// `<graphroot>/<driver>-containers/<id>`.
pub(super) fn origin(within: &Within, record: &ContainerRecord, directory: &Path) -> Origin {
    let text = record.metadata.as_deref().unwrap_or_default();
    let metadata: Metadata = lenient::object(text.as_bytes()).unwrap_or_default();
    let userdata = directory.join("userdata");
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
        sandbox: owner == Owner::CriO && metadata.pod.0 == Truth::Yes,
        sandbox_id: metadata.pod_id.0.clone().filter(|_| owner == Owner::CriO),
        name: name(record, &metadata),
    }
}

fn owner(metadata: &Metadata, has_buildah_file: bool) -> Owner {
    let has = |field: &Text| field.0.is_some();
    if has(&metadata.pod_id) && has(&metadata.pod_name) {
        Owner::CriO
    } else if has_buildah_file {
        Owner::Buildah
    } else if has(&metadata.image_name) && has(&metadata.name) {
        Owner::Podman
    } else {
        Owner::Unknown
    }
}

fn name(record: &ContainerRecord, metadata: &Metadata) -> String {
    record.names.first().cloned().or_else(|| metadata.name.0.clone()).unwrap_or_else(|| record.id.clone())
}

/// The OCI runtime state that CRI-O keeps in `userdata/state.json`.
fn state_of(content: &[u8]) -> ContainerState {
    let state: State = lenient::object(content).unwrap_or_default();
    match state.status.0.as_deref() {
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
            assert_eq!(
                owner(&lenient::object(metadata.as_bytes()).unwrap_or_default(), buildah),
                expected,
                "{metadata}"
            );
        }
    }

    #[test]
    fn states() {
        assert_eq!(state_of(br#"{"status":"running","pid":7}"#), ContainerState::Running);
        assert_eq!(state_of(br#"{"status":"stopped"}"#), ContainerState::Exited);
        assert_eq!(state_of(b"{"), ContainerState::Unknown);
    }
}
