//! Comparison of two scans of a node. Pure.
//!
//! The same bytes are grouped in two ways: `diff` lists the objects that were added, removed or changed, and
//! `usage --since` the containers, repositories or owners that took the bytes.

mod changes;
mod growth;

pub use changes::{BytesChange, Change, ChangeKind, ScanComparison, StoreBytes};
pub use growth::{FilesystemGrowth, GrowthKind, GrowthRow};
