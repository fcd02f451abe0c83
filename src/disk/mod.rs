//! How many bytes a tree holds: the parallel walker and what filesystems charge.

mod btrfs;
pub mod evidence;
pub mod filesystem;
mod fingerprint;
pub mod inode_chunks;
pub mod kept;
mod top;
mod walk;

pub use fingerprint::{Fingerprint, Fingerprinter};
pub use walk::{
    Extents, Measured, Progress, SharedExtents, SharedInodes, Tally, Tree, TreeScope, WalkError, WalkOptions,
    measure,
};
