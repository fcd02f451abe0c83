//! Image records.

use jiff::Timestamp;

use super::arrival::LayerBlob;
use super::evidence::Evidence;
use super::ids::{ImageId, LayerId, NodeIx, StoreIx};
use super::labels::Labels;
use super::origin::Origin;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinReason {
    pub text: String,
    /// Clause that says how to undo the pin where it was set; `None` if it cannot be undone.
    pub undo: Option<String>,
    /// It pins a manifest list that contains the image. The list needs the image, but not under any name.
    pub is_of_list: bool,
    /// Pod sandboxes are made from the image: the next pod needs it.
    pub is_of_sandboxes: bool,
}

impl PinReason {
    pub fn new(text: String, undo: String) -> Self {
        Self { undo: Some(undo), ..Self::from(text) }
    }
}

impl<T: Into<String>> From<T> for PinReason {
    fn from(text: T) -> Self {
        Self { text: text.into(), undo: None, is_of_list: false, is_of_sandboxes: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// Reference as written. The kubelet's rules complete a short name; in a quadlet, podman's rules do.
    pub reference: String,
    /// Source of the name, for messages: a file, or a setting and its file.
    pub source: String,
}

#[derive(Clone, Debug)]
pub struct Image {
    /// Id of the image: for almost every image the hex digest of its configuration.
    pub id: ImageId,
    pub store: StoreIx,
    /// All its names; empty for a dangling image.
    pub names: Vec<String>,
    /// Digests of its manifests, as `sha256:…`.
    pub digests: Vec<String>,
    /// Creation time in its record. In containerd it is the time when the record was made on this node.
    /// containers/storage copies the build date of a pulled or loaded image, so that its value says nothing about
    /// the time on this node (seen with podman 4.3.1).
    pub created: Option<Timestamp>,
    /// Evidence on the disk for its first detection.
    pub evidence: Vec<Evidence>,
    /// Origin, as far as the disk shows it. Only a scan that measures reads it.
    pub origin: Origin,
    /// It is a manifest list or index: it names other images and has no layer.
    pub is_list: bool,
    /// Reasons for which configurations pin it.
    pub pinned_by: Vec<PinReason>,
    /// Labels of its configuration and, in containerd, of its records.
    pub labels: Labels,
    /// Ids of its layers from the top layer down to the base, as far as they exist.
    pub layers: Vec<LayerId>,
    /// Size that the runtime's own tools print; `None` if they cannot know it.
    pub listed_bytes: Option<u64>,
    /// Layers in its manifest, the base first. Only read if the scan asks for them.
    pub blobs: Vec<LayerBlob>,
    /// Its own nodes: metadata, top layer, mapped layers.
    pub holds: Vec<NodeIx>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedManifest {
    pub digest: String,
    /// `os/architecture`, as the index says; `unknown/unknown` for an attestation.
    pub platform: Option<String>,
    pub is_used: bool,
    /// Its blobs that are here: manifest, configuration, layers.
    pub holds: Vec<NodeIx>,
}

impl Image {
    pub fn pin_texts(&self) -> Vec<String> {
        self.pinned_by.iter().map(|pin| pin.text.clone()).collect()
    }

    /// Returns a title for messages: the first name, or the id.
    pub fn title(&self) -> &str {
        self.names.first().map_or(self.id.as_str(), String::as_str)
    }
}

/// Returns the platform of this machine, as the indexes of images name it: `linux/amd64`.
#[must_use]
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    };
    format!("linux/{architecture}")
}
