//! What must outlive every scan: since when images are here, when they were last used,
//! what was deleted and what it gave back, the sizes of layers that do not change.
//!
//! SQLite in our own state directory. Readers are never blocked; writers take turns. The
//! database may be missing, locked, read-only, on a full disk or damaged, and the program
//! still works from what the disk itself says.

mod db;
pub mod sizes;

pub use db::{Access, DATABASE, Error, Records};
