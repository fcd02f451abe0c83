//! OCI artifacts: the store that CRI-O (since 1.32) and Podman (since 5.4) have in a graphroot.
//!
//! `<graphroot>/artifacts` is an OCI layout (image specification, `image-layout.md`). It is always in the graphroot, even
//! if image layers are in a separate imagestore (cri-o `internal/ociartifact`, podman `libpod/runtime.go`):
//!
//! * `index.json` has an entry for each name. Artifacts share the blobs in `blobs/sha256/<hex>`.
//! * `index.lock` is a lock file of containers/storage. A pull holds it exclusively from beginning to end, and so do an
//!   addition and a removal.
//! * A pull writes each blob to `oci-put-blob…`, renames it into place, and writes the index last (container-libs
//!   `image/oci/layout/oci_dest.go`). A killed pull therefore leaves blobs that no entry needs.
//!
//! In the inventory it is a store with the driver `artifacts` in the same graphroot.

mod fill;
pub mod layout;
mod leaks;
mod read;
pub(crate) mod store;
mod users;

use std::path::{Path, PathBuf};

pub use fill::fill;
pub use read::{ArtifactUnit, Layout, LayoutUnit, exists, moved, read};

/// Driver of the store in the inventory, and name of its directory in the graphroot.
pub const DRIVER: &str = crate::model::ARTIFACTS;

#[must_use]
pub fn directory(graphroot: &Path) -> PathBuf {
    graphroot.join(DRIVER)
}
