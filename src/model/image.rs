//! Image records.

use jiff::Timestamp;

use super::evidence::Evidence;
use super::ids::{ImageId, LayerId, NodeIx, StoreIx};
use super::labels::Labels;

/// Why an image is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinReason {
    /// A clause for messages.
    pub text: String,
    /// What takes the pin away where it was set, as a clause; `None` where nothing does.
    pub undo: Option<String>,
    /// It pins a manifest list that the image is a member of, which needs the image under no name.
    pub is_of_list: bool,
}

impl PinReason {
    pub fn new(text: String, undo: String) -> Self {
        Self { text, undo: Some(undo), is_of_list: false }
    }
}

impl<T: Into<String>> From<T> for PinReason {
    fn from(text: T) -> Self {
        Self { text: text.into(), undo: None, is_of_list: false }
    }
}

/// An image that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// The reference as written; a short name means what the kubelet takes it for, in a quadlet what podman may.
    pub reference: String,
    /// Who names it, for messages: a file, or a setting and its file.
    pub source: String,
}

/// An image record.
#[derive(Clone, Debug)]
pub struct Image {
    /// Image id: for almost every image the hex digest of its configuration.
    pub id: ImageId,
    pub store: StoreIx,
    /// All its names; empty for a dangling image.
    pub names: Vec<String>,
    /// Digests of its manifests, as `sha256:…`.
    pub digests: Vec<String>,
    /// Creation time according to its record. containerd writes down when the record was made here;
    /// containers/storage takes over the build date of an image that was pulled or loaded,
    /// so there this says nothing of how long it has been here (seen with podman 4.3.1).
    pub created: Option<Timestamp>,
    /// Evidence on the disk for its first detection.
    pub evidence: Vec<Evidence>,
    /// A manifest list or index: names other images, has no layer of its own.
    pub is_list: bool,
    /// Configurations that pin it.
    pub pinned_by: Vec<PinReason>,
    /// Labels of its configuration and, in containerd, of its records.
    pub labels: Labels,
    /// Layer ids from the top layer down to the base, as far as they exist.
    pub layers: Vec<LayerId>,
    /// The size that the runtime's own tools print; `None` where they cannot know it.
    pub listed_bytes: Option<u64>,
    /// The nodes that it holds directly: metadata, top layer, mapped layers.
    pub holds: Vec<NodeIx>,
}

impl Image {
    /// The clauses of its pins.
    pub fn pin_texts(&self) -> Vec<String> {
        self.pinned_by.iter().map(|pin| pin.text.clone()).collect()
    }

    /// Title for messages: its first name, or its id.
    pub fn title(&self) -> &str {
        self.names.first().map_or(self.id.as_str(), String::as_str)
    }
}
