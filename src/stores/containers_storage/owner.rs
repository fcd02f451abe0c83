//! Which engine created a container, and what the disk proves about its state.
//!
//! CRI-O's metadata names the pod (`pod-id`, `pod-name`); podman's names the image and the
//! container but no pod; buildah writes no metadata but keeps `userdata/buildah.json`
//! (container-libs `storage`, cri-o `internal/storage/runtime.go`).

use std::path::{Path, PathBuf};

use super::cri_o;
use super::records::ContainerRecord;
use super::records::lenient::{Object, Truth};
use crate::model::{ContainerState, Owner};
use crate::sys::quiet::{Within, if_present};

/// In the directory of a container.
const STATE: &str = "userdata/state.json";

/// A runtime state file has a few kB.
const MAX_BYTES: u64 = 16 << 20;

/// What the disk says of a container beyond its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerOrigin {
    pub(crate) owner: Owner,
    pub(crate) state: ContainerState,
    pub(crate) sandbox: bool,
    pub(crate) sandbox_id: Option<String>,
    /// Of its pod; only the record of the sandbox has it.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// Examines the record and the container's directory at `directory`, which is
/// `<graphroot>/<driver>-containers/<id>`.
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

/// The state of a sandbox of CRI-O whose directory is `directory`, and that was created without an infra
/// container (`drop_infra_ctr`, the default). Only of such a one CRI-O keeps the state below the runroot (cri-o
/// `internal/oci/container.go`, `NewSpoofedContainer`), at one of `in_runroots`. It says "stopped" when all
/// containers of the sandbox have been stopped, and nothing else after that: a sandbox is never started again.
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
    // Of several runroots nobody knows which one is CRI-O's.
    match (states.next(), states.next()) {
        (Some(text), None) => state_of(&text),
        _ => ContainerState::Unknown,
    }
}

fn text_of(object: &Object<'_>, name: &str) -> Option<String> {
    object.get(name).ok().flatten()
}

fn owner(metadata: &Object<'_>, has_buildah_file: bool) -> Owner {
    let has = |name| text_of(metadata, name).is_some();
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

fn name(record: &ContainerRecord, metadata: &Object<'_>) -> String {
    record.names.first().cloned().or_else(|| text_of(metadata, "name")).unwrap_or_else(|| record.id.clone())
}

/// The OCI runtime state that CRI-O keeps in `userdata/state.json`.
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
            assert_eq!(owner(&Object::of(metadata.as_bytes()), buildah), expected, "{metadata}");
        }
    }

    #[test]
    fn states() {
        assert_eq!(state_of(br#"{"status":"running","pid":7}"#), ContainerState::Running);
        assert_eq!(state_of(br#"{"status":"stopped"}"#), ContainerState::Exited);
        assert_eq!(state_of(b"{"), ContainerState::Unknown);
    }
}
