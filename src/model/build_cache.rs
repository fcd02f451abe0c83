//! The cache of BuildKit in a containerd root.

use super::ids::{NodeIx, StoreIx};

/// Data of one builder: cached layers and their blobs, contexts of builds, records of past builds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildCache {
    pub store: StoreIx,
    /// containerd's namespace of the builder.
    pub namespace: String,
    /// Number of cache records, as `buildctl du` lists them.
    pub records: usize,
    /// The nodes that its leases hold. They are among [`Inventory::anchored`](super::Inventory::anchored) too.
    pub holds: Vec<NodeIx>,
}

impl BuildCache {
    /// Name of the program that owns it.
    #[must_use]
    pub fn owner(&self) -> &'static str {
        if is_of_docker(&self.namespace) { "Docker" } else { "BuildKit" }
    }

    /// Command that deletes records that no build needs, as a clause.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match is_of_docker(&self.namespace) {
            true => "`docker builder prune` deletes what no build uses",
            false => {
                "`buildctl prune` deletes what no build uses (of nerdctl's builder, `nerdctl builder prune`)"
            }
        }
    }
}

/// Returns whether a namespace of containerd is Docker's.
#[must_use]
pub fn is_of_docker(namespace: &str) -> bool {
    // Docker's user namespaces have one each: `moby-100000.100000`.
    namespace == "moby" || namespace.starts_with("moby-") || namespace.starts_with("moby_")
}

/// Returns whether objects of a namespace of containerd may be removed with `ctr`: CRI's, and those of the default of ctr
/// and nerdctl. In another the program that made them has records of its own, which `ctr` would contradict.
#[must_use]
pub fn is_for_ctr(namespace: &str) -> bool {
    matches!(namespace, "k8s.io" | "default")
}
