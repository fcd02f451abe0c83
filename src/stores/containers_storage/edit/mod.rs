//! The only writer of a graphroot.
//!
//! Each recipe is one function of [`Editor`]: it takes the store's locks, reads the records
//! anew, proves everything it needs (a plan is hours old by then, for all it knows), changes
//! them in the order in which a crash at any point leaves a usable store, lets go of the locks
//! and only then removes the bulk of the files.
//!
//! The protocol is that of containers/storage: the same locks in the same order, tokens of 64
//! bytes, atomic replacement, the `incomplete` flag, temporary directories of its own kind.

mod artifacts;
mod ballast;
mod bin;
mod container;
mod deleted;
mod directory;
mod doomed;
mod editor;
mod error;
mod image;
mod intent;
mod layers;
mod links;
mod locks;
mod mounted;
mod orphans;
mod outside;
mod place;
mod records;
mod repair;
mod resume;
mod session;
pub mod table;
mod temporary;
mod unused;
mod write;

pub use crate::sys::removal;
pub use ballast::Ballast;
pub use deleted::Deleted;
pub use editor::{Editor, Marking, Observer, Options};
pub use error::{Bar, Error, Fault, Holder, NO_SPACE, Refusal};
pub use image::PlannedImage;
pub use orphans::{OrphanAt, Reclaimed};
pub use outside::{Look, OutsideUse, Watch};
pub use unused::Unused;
