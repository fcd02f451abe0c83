//! The model that every reader fills and everything else works on. Pure: no I/O, no clock.
//!
//! A [`Node`] is something that costs bytes: a layer, an image's metadata, an inode that several layers share.
//! Nodes *need* other nodes (a layer needs its parent), which makes a directed graph. A **root** keeps nodes on the
//! disk: an image, a container, a leak (an unused object that was not deleted), the store itself, or a user outside
//! the store. [`refs`] derives every figure from this graph.

pub mod arrival;
mod build_cache;
mod container;
pub mod deletion;
pub mod documents;
pub mod evidence;
mod filesystem;
mod ids;
mod image;
mod inventory;
pub mod kubelet_thresholds;
mod labels;
pub mod layer_nodes;
mod leak;
mod leak_class;
mod node;
pub mod origin;
pub mod reference_set;
pub mod refs;
pub mod repull;
pub mod rules;
#[cfg(test)]
pub(crate) mod samples;
pub mod space;
mod store;
pub mod text;
pub mod waste;

/// Version of the document format; a field is never renamed or removed within a version.
pub const SCHEMA_VERSION: u32 = 1;

pub use arrival::LayerBlob;
pub use build_cache::{BuildCache, CRI_NAMESPACE, is_for_ctr, is_of_docker};
pub use container::{
    Container, ContainerLog, ContainerState, Owner, OwnersStore, PrintedCommand, removal_command,
    removal_words,
};
pub use deletion::answer::{Aftermath, Answer, RemovalResult};
pub use deletion::back_off::BackOff;
pub use deletion::outcome::{Deletion, Outcome, Stopped};
pub use deletion::outcome_kind::OutcomeKind;
pub use deletion::plan::{Kept, Plan, Problem, Step};
pub use evidence::{Evidence, EvidenceKind};
pub use filesystem::Filesystem;
pub use ids::{ContainerId, ContainerIx, FilesystemIx, ImageId, ImageIx, LayerId, LeakIx, NodeIx, StoreIx};
pub use image::{Image, IndexedManifest, NamedImage, PinReason, platform};
pub use inventory::{
    Finding, Inventory, LostContainer, ManifestList, RecordBound, Use, Volume, in_namespace,
};
pub use labels::Labels;
pub use leak::Leak;
pub use leak_class::{LeakClass, Orphan, Recipe, Verdict, is_old_enough};
pub use node::{LayerFacts, Node, NodeKind, Size};
pub use origin::{Origin, OriginKind};
pub use store::{ARTIFACTS, Consistency, KindFacts, Store, StoreId, StoreKind, UnreadUser};
pub use text::pattern::Pattern;
