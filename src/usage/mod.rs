//! How many bytes a tree holds: the parallel walker and what filesystems charge.

mod btrfs;
pub mod filesystem;
pub mod inode_chunks;
mod walk;

pub use walk::{
    Extents, Measured, Progress, SharedExtents, SharedInodes, Tally, Tree, TreeScope, WalkError, WalkOptions,
    measure,
};
