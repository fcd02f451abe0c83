//! The only writer of a graphroot.
//!
//! Each operation is one function of [`Editor`]: it takes the store's locks, rereads the
//! records, proves every precondition (the plan may be hours old), changes the records in an order that
//! leaves a usable store after a crash at any point, releases the locks and only then removes the bulk of
//! the files. On a full disk the bulk of the first images goes before their records: see `full_disk`.
//!
//! The protocol is that of containers/storage: the same locks in the same order, tokens of 64
//! bytes, atomic replacement, the `incomplete` flag, and its kind of temporary directories.

mod deleted;
mod directory;
mod error;
mod foreseen;
mod full_disk;
mod graphroot_editor;
mod image;
mod layers;
mod links;
mod locks;
mod mounted;
mod orphans;
mod outside;
mod records;
mod repair;
mod reserve_file;
mod resume;
mod room;
mod session;
mod store_directory;
pub mod table;
mod temporary;
mod to_delete;
mod trash;
mod unused;
mod write;

pub use deleted::Deleted;
pub use error::{Error, Fault, Refusal, StoreLockHolder};
pub use graphroot_editor::{Editor, LayerFlag, OnStep, Options};
pub use image::PlannedImage;
pub use orphans::{OrphanAt, SetAside};
pub use outside::LookOutside;
pub use reserve_file::ReserveFile;
pub use resume::{BegunDeletion, IsKept};
pub use unused::Unused;
