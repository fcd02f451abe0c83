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

/// A reference without its tag and digest.
pub fn repository(name: &str) -> &str {
    let name = name.split_once('@').map_or(name, |(repository, _)| repository);
    match name.rsplit_once(':') {
        // A colon before the last slash belongs to the registry's port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// The registry of a reference. A first part that cannot be a host belongs to the path on docker.io, as
/// in the reference grammar of `distribution/reference`.
pub fn registry(name: &str) -> &str {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_no_tag() {
        for (name, in_repository, on) in [
            ("registry:5000/a", "registry:5000/a", "registry:5000"),
            ("registry:5000/a:tag", "registry:5000/a", "registry:5000"),
            ("registry:5000/a:tag@sha256:00", "registry:5000/a", "registry:5000"),
            ("localhost/a", "localhost/a", "localhost"),
            ("quay.io/team/a@sha256:00", "quay.io/team/a", "quay.io"),
            ("library/a:1", "library/a", "docker.io"),
            ("a:tag", "a", "docker.io"),
        ] {
            assert_eq!((repository(name), registry(name)), (in_repository, on), "{name}");
        }
    }
}
