//! The edge to the kernel that several modules share. Knows nothing of stores.

pub mod quiet;
pub mod sysroot;
