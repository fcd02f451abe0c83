//! The CRI v1 client: which runtime serves a node, what it has, and its removals. The async
//! world ends at this door: every call blocks until it has an answer or its deadline.
//!
//! The runtime's word is never the whole proof. containerd refuses nothing and answers
//! success where it removed nothing, CRI-O leaves out containers that are being made, and no
//! listing says that it is partial. What a runtime says is therefore matched with what lies on
//! the disk, and that an image is gone is believed when the disk says so.

mod client;
mod connection;
mod convert;
mod deadlines;
pub mod discover;
mod endpoint;
mod error;
mod first_bytes;
pub mod in_use;
mod place;
mod types;

pub use client::Client;
pub use deadlines::Options;
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::{CriError, Problem, is_no_space};
pub use place::{StorePlace, StoreType};
pub use types::{
    Condition, ContainerDetails, ImageFilesystem, ImageFilesystems, Mount, RuntimeContainer, RuntimeImage,
    RuntimeSandbox, RuntimeStatus, RuntimeVersion,
};
