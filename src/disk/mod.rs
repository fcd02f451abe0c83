//! Measures the bytes that directory trees use: the parallel walker and the cost models of filesystems.

mod btrfs;
pub mod filesystem;
mod fingerprint;
pub mod inode_chunks;
pub mod probing;
pub mod runs;
pub mod samples;
pub mod sharing;
pub mod size_cache;
pub mod stamp;
mod top;
mod walk;

pub use fingerprint::{Fingerprint, Fingerprinter};
pub use walk::{
    ExtentOptions, Measured, Progress, SharedInodes, Tally, Tree, TreeScope, UnitExtents, WalkError,
    WalkOptions, measure,
};
