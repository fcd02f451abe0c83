//! OCI artifacts: the store that CRI-O (1.32 on) and Podman (5.4 on) keep in a graphroot.
//!
//! `<graphroot>/artifacts` is an OCI layout (image specification, `image-layout.md`), always in the
//! graphroot, even where image layers are in an imagestore of their own (cri-o `internal/ociartifact`,
//! podman `libpod/runtime.go`):
//!
//! * `index.json` has an entry for each name; blobs are in `blobs/sha256/<hex>` and are shared;
//! * `index.lock` is a lock file of containers/storage: exclusive for a pull from its beginning to its
//!   end, for an addition and a removal;
//! * a pull writes `oci-put-blob…` beside them, renames each into place, and writes the index last
//!   (container-libs `image/oci/layout/oci_dest.go`), so one that was killed leaves blobs that no
//!   entry needs.
//!
//! To the inventory it is a store with the driver `artifacts` in the same graphroot.

mod fill;
pub mod layout;
mod leaks;
mod read;
pub(crate) mod store;
mod users;

use std::path::{Path, PathBuf};

pub use fill::fill;
use layout::BLOBS;
pub use read::{ArtifactUnit, Layout, Unit, exists, moved, read};

/// The driver that the store has in the inventory, and its directory in the graphroot.
pub const DRIVER: &str = crate::model::ARTIFACTS;

/// Where the artifacts of a graphroot lie.
#[must_use]
pub fn directory(graphroot: &Path) -> PathBuf {
    graphroot.join(DRIVER)
}
