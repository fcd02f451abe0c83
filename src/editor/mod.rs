//! The only module that writes to a graphroot.
//!
//! The plan that names an image may be hours old, and podman, CRI-O and buildah work in the store meanwhile. So
//! the editor trusts no earlier reading. Each operation is one function of [`Editor`] with the same five steps:
//!
//! 1. take the store's locks (`session`);
//! 2. read the record files again, completely or not at all (`records`);
//! 3. prove every precondition: no container, mount, process, image or other store uses the object (`image`,
//!    `layers`, `mounted`, `outside`);
//! 4. change the records in an order that leaves a usable store after a crash at any point, and rename the
//!    directories into a temporary directory (`trash`);
//! 5. release the locks, and only then delete the files, which may take minutes.
//!
//! For example, [`Editor::delete_image`] removes the record from `images.json`, and then, for each layer from the top
//! down: sets the layer's `incomplete` flag, renames its directory, removes its record. A crash in between leaves
//! either an intact layer or a flagged one, which every version of containers/storage deletes when it next opens the
//! store. On a full disk the first step, a new `images.json`, is impossible; `room` and `full_disk` explain the
//! different order that is used there.
//!
//! The protocol is that of containers/storage, because its processes must be able to read and finish what is written
//! here: the same locks in the same order, tokens of 64 bytes, atomic replacement, the `incomplete` flag, and its
//! kind of temporary directories.

mod commit;
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
