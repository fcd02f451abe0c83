//! Detects the engine that created a container, and the container's state on disk.
//!
//! * CRI-O's metadata contains the pod: `pod-id` and `pod-name` (cri-o `internal/storage/runtime.go`).
//! * Podman's metadata contains image and container, but no pod. `podman commit` leaves a `buildah.json` in the
//!   directory of the container.
//! * Buildah writes no metadata, but the file `userdata/buildah.json` (container-libs `storage`).

use std::path::{Path, PathBuf};

use super::cri_o;
use super::records::ContainerRecord;
use super::records::lenient::{Object, Truth};
use crate::model::{ContainerState, Owner};
use crate::sys::quiet::{Within, if_present};

/// State file of the OCI runtime, in the directory of a container.
const STATE: &str = "userdata/state.json";

/// Maximum size of a state file. Real ones have a few kB.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerOrigin {
    pub(crate) owner: Owner,
    pub(crate) state: ContainerState,
    pub(crate) sandbox: bool,
    pub(crate) sandbox_id: Option<String>,
    /// Namespace of the pod. Only the record of the sandbox contains it.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Examines a container's record, and its directory `<graphroot>/<driver>-containers/<id>`.
pub(crate) fn origin(within: &Within, record: &ContainerRecord, directory: &Path) -> ContainerOrigin {
    let text = record.metadata.as_deref().unwrap_or_default();
    let metadata = Object::of(text.as_bytes());
    let has_buildah_file = within.facts(&directory.join("userdata/buildah.json")).is_ok();
    let owner = owner(&metadata, has_buildah_file);
    let state = match owner {
        Owner::CriO => within
            .read(&directory.join(STATE), MAX_BYTES)
            .map_or(ContainerState::Unknown, |text| state_of(&text)),
        _ => ContainerState::Unknown,
    };
    ContainerOrigin {
        owner,
        state,
        sandbox: owner == Owner::CriO && metadata.truth("pod") == Truth::Yes,
        sandbox_id: text_of(&metadata, "pod-id").filter(|_| owner == Owner::CriO),
        namespace: text_of(&metadata, "namespace").filter(|_| owner == Owner::CriO),
        name: name(record, &metadata),
    }
}

/// Returns the state of a CRI-O sandbox that was created without an infra container (`drop_infra_ctr`, the default).
///
/// Only for these sandboxes CRI-O writes the state below the runroot, to one of `in_runroots` (cri-o
/// `internal/oci/container.go`, `NewSpoofedContainer`). The state becomes "stopped" when all containers of the sandbox
/// have been stopped. It does not change after that: a sandbox is never started again.
pub(super) fn state_without_infra(
    within: &Within,
    directory: &Path,
    in_runroots: &[PathBuf],
) -> ContainerState {
    let has_none = matches!(if_present(within.facts(&directory.join(STATE))), Ok(None));
    if !has_none || !cri_o::is_without_infra(within, directory).unwrap_or(false) {
        return ContainerState::Unknown;
    }
    let mut states = in_runroots.iter().filter_map(|run| within.read(&run.join(STATE), MAX_BYTES).ok());
    // With states in several runroots, it is unknown which runroot CRI-O uses.
    match (states.next(), states.next()) {
        (Some(text), None) => state_of(&text),
        _ => ContainerState::Unknown,
    }
}

fn text_of(object: &Object<'_>, name: &str) -> Option<String> {
    object.get(name).ok().flatten()
}

fn has_texts(object: &Object<'_>, names: [&str; 2]) -> bool {
    names.iter().all(|name| text_of(object, name).is_some())
}

fn owner(metadata: &Object<'_>, has_buildah_file: bool) -> Owner {
    if has_texts(metadata, ["pod-id", "pod-name"]) {
        Owner::CriO
    } else if has_texts(metadata, ["image-name", "name"]) {
        Owner::Podman
    } else if has_buildah_file {
        Owner::Buildah
    } else {
        Owner::Unknown
    }
}

fn name(record: &ContainerRecord, metadata: &Object<'_>) -> String {
    record.names.first().cloned().or_else(|| text_of(metadata, "name")).unwrap_or_else(|| record.id.clone())
}

/// Parses the OCI runtime's state, which CRI-O writes to `userdata/state.json`.
fn state_of(content: &[u8]) -> ContainerState {
    match text_of(&Object::of(content), "status").as_deref() {
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
    fn owner_is_detected_by_metadata() {
        let cases = [
            (r#"{"pod-name":"p","pod-id":"1","image-name":"i","name":"n"}"#, false, Owner::CriO),
            (r#"{"image-name":"i","image-id":"1","name":"n","created-at":1}"#, false, Owner::Podman),
            (r#"{"image-name":"i","name":"task7"}"#, true, Owner::Podman),
            ("null", true, Owner::Buildah),
            ("null", false, Owner::Unknown),
            (r#"{"pod-name":7,"pod-id":8}"#, false, Owner::Unknown),
            ("[1]", false, Owner::Unknown),
        ];
        for (metadata, buildah, expected) in cases {
            assert_eq!(owner(&Object::of(metadata.as_bytes()), buildah), expected, "{metadata}");
        }
    }

    #[test]
    fn unreadable_state_is_unknown() {
        assert_eq!(state_of(br#"{"status":"running","pid":7}"#), ContainerState::Running);
        assert_eq!(state_of(br#"{"status":"stopped"}"#), ContainerState::Exited);
        assert_eq!(state_of(b"{"), ContainerState::Unknown);
    }
}
