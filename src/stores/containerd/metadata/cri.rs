//! CRI's metadata of a container in containerd's record: JSON in an extension.

use serde_json::Value;

use super::fields::RecordFields;

/// Label of CRI's containers and sandboxes.
pub(super) const KIND_LABEL: &str = "io.cri-containerd.kind";
const CONTAINER: &str = "io.cri-containerd.container.metadata";
const SANDBOX: &str = "io.cri-containerd.sandbox.metadata";
/// Extension of a record in containerd 2's own sandbox store.
const SANDBOX_IN_STORE: &str = "metadata";
/// Image of a sandbox as configured, in its OCI spec.
const SANDBOX_IMAGE: &str = "/annotations/io.kubernetes.cri.podsandbox.image-name";

/// Facts about a container or sandbox recorded by CRI; each may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CriContainer {
    pub sandbox: bool,
    /// Name of the container in its pod; for a sandbox the name of the pod.
    pub name: Option<String>,
    pub sandbox_id: Option<String>,
    /// Digest of the image's configuration.
    pub image_ref: Option<String>,
    pub image_asked: Option<String>,
    /// Namespace of the pod; sandboxes only.
    pub namespace: Option<String>,
}

fn text(value: &Value, path: &str) -> Option<String> {
    let text = value.pointer(path)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads the facts from a container's record; returns `None` for a container that CRI did not create.
pub(super) fn read(fields: &mut RecordFields<'_, '_>, kind: Option<&str>) -> Option<CriContainer> {
    let sandbox = match kind {
        Some("sandbox") => true,
        Some("container") => false,
        // Created by another client of containerd.
        _ => return None,
    };
    let json = fields.extension(if sandbox { SANDBOX } else { CONTAINER }).unwrap_or_default();
    Some(of_json(&json, sandbox))
}

/// Reads the facts from a record of containerd 2's sandbox store; returns `None` for a sandbox that CRI did not
/// create.
pub(super) fn read_sandbox(fields: &mut RecordFields<'_, '_>, kind: Option<&str>) -> Option<CriContainer> {
    if kind != Some("sandbox") {
        return None;
    }
    let json = fields.extension(SANDBOX_IN_STORE).unwrap_or_default();
    let spec = fields.any_json("spec");
    let image_asked = spec.and_then(|spec| text(&spec, SANDBOX_IMAGE));
    Some(CriContainer { image_asked, ..of_json(&json, true) })
}

fn of_json(json: &Value, sandbox: bool) -> CriContainer {
    CriContainer {
        sandbox,
        name: text(json, "/Metadata/Config/metadata/name"),
        sandbox_id: text(json, "/Metadata/SandboxID"),
        image_ref: text(json, "/Metadata/ImageRef"),
        image_asked: text(json, "/Metadata/Config/image/image"),
        namespace: text(json, "/Metadata/Config/metadata/namespace"),
    }
}
