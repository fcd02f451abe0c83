//! CRI's metadata of a container inside containerd's record: JSON in an extension.

use serde_json::Value;

use super::fields::Fields;

/// Marks CRI's containers and sandboxes.
pub(super) const KIND_LABEL: &str = "io.cri-containerd.kind";
const CONTAINER: &str = "io.cri-containerd.container.metadata";
const SANDBOX: &str = "io.cri-containerd.sandbox.metadata";
/// The same in a record of containerd 2's own sandbox store.
const SANDBOX_IN_STORE: &str = "metadata";
/// In the OCI spec of a sandbox: the image it is made from, as it is configured.
const SANDBOX_IMAGE: &str = "/annotations/io.kubernetes.cri.podsandbox.image-name";

/// What CRI knows of a container or sandbox. Absent fields were not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriContainer {
    /// It is a pod sandbox.
    pub sandbox: bool,
    /// The container's name in its pod; the pod's name for a sandbox.
    pub name: Option<String>,
    /// The sandbox of its pod.
    pub sandbox_id: Option<String>,
    /// Digest of its image's configuration.
    pub image_ref: Option<String>,
    /// The image as it was asked for.
    pub image_asked: Option<String>,
}

fn text(value: &Value, path: &str) -> Option<String> {
    let text = value.pointer(path)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads it from a container's record; `None` for a container that is not CRI's.
pub(super) fn read(fields: &mut Fields<'_, '_>, kind: Option<&str>) -> Option<CriContainer> {
    let sandbox = match kind {
        Some("sandbox") => true,
        Some("container") => false,
        // Neither label nor JSON: made by somebody else.
        _ => return None,
    };
    let json = fields.extension(if sandbox { SANDBOX } else { CONTAINER }).unwrap_or_default();
    Some(of_json(&json, sandbox))
}

/// Reads it from a record of containerd 2's sandbox store; `None` for a sandbox that is not CRI's.
pub(super) fn read_sandbox(fields: &mut Fields<'_, '_>, kind: Option<&str>) -> Option<CriContainer> {
    if kind != Some("sandbox") {
        return None;
    }
    let json = fields.extension(SANDBOX_IN_STORE).unwrap_or_default();
    let spec = fields.any_json("spec");
    let image_asked = spec.and_then(|spec| text(&spec, SANDBOX_IMAGE));
    Some(CriContainer { image_asked, ..of_json(&json, true) })
}

fn of_json(json: &Value, sandbox: bool) -> CriContainer {
    let of = |path: &str| text(json, path);
    CriContainer {
        sandbox,
        name: of("/Metadata/Config/metadata/name"),
        sandbox_id: of("/Metadata/SandboxID"),
        image_ref: of("/Metadata/ImageRef"),
        image_asked: of("/Metadata/Config/image/image"),
    }
}
