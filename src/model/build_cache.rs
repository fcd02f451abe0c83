//! The cache of BuildKit in a containerd root.

use super::ids::{NodeIx, StoreIx};

/// Data of one builder: cached layers and their blobs, build contexts, records of past builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildCache {
    pub store: StoreIx,
    /// containerd's namespace of the builder.
    pub namespace: String,
    /// Number of cache records, as `buildctl du` lists them.
    pub records: usize,
    /// Nodes that its leases reference. [`Inventory::anchored`](super::Inventory::anchored) contains them too.
    pub holds: Vec<NodeIx>,
}

impl BuildCache {
    #[must_use]
    pub fn owner(&self) -> &'static str {
        if is_of_docker(&self.namespace) { "Docker" } else { "BuildKit" }
    }

    #[must_use]
    pub fn command(&self) -> &'static str {
        if is_of_docker(&self.namespace) { "docker builder prune" } else { "buildctl prune" }
    }

    #[must_use]
    pub fn remedy(&self) -> &'static str {
        if is_of_docker(&self.namespace) {
            "it deletes what no build uses"
        } else {
            "it deletes what no build uses (of nerdctl's builder: `nerdctl builder prune`)"
        }
    }
}

/// containerd's namespace of CRI, and so of the kubelet.
pub const CRI_NAMESPACE: &str = "k8s.io";

#[must_use]
pub fn is_of_docker(namespace: &str) -> bool {
    // Docker has a namespace for each user namespace that it maps containers to: `moby-100000.100000`.
    namespace == "moby" || namespace.starts_with("moby-") || namespace.starts_with("moby_")
}

/// Returns true if objects of a containerd namespace may be removed with `ctr`. Docker and BuildKit have their own
/// records of their namespaces, which would contradict the store then.
#[must_use]
pub fn is_for_ctr(namespace: &str) -> bool {
    !is_of_docker(namespace) && namespace != "buildkit" && !namespace.starts_with("buildkit_")
}
