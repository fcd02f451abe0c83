//! The edge to the kernel that several modules share. Knows nothing of stores.

pub mod beneath;
pub mod btrfs;
pub mod fiemap;
pub mod ioprio;
pub mod mounts;
pub mod namespaces;
pub mod quiet;
pub mod sysroot;
pub mod xfs;
