//! Image records.

use jiff::Timestamp;

use super::evidence::Evidence;
use super::ids::{ImageId, LayerId, NodeIx, StoreIx};
use super::labels::Labels;

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
    /// Configurations that pin it, one text per reason.
    pub pinned_by: Vec<String>,
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
    /// Title for messages: its first name, or its id.
    pub fn title(&self) -> &str {
        self.names.first().map_or(self.id.as_str(), String::as_str)
    }
}
