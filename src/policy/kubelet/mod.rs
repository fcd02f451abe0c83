//! Policy `kubelet`: the kubelet's image garbage collection as it is, rule for rule, its
//! roundings, its believing in listed sizes and its blind spots included. The state of Kubernetes
//! 1.35 with its default features (images may be mounted as volumes); `fixtures/kubelet-gc.json` holds the rows that it must pass.
//!
//! Pure but for what [`Runtime`] does: who lists, measures and removes is the caller's business.

mod detect;
mod failure;
mod manager;
mod node;
mod runtime;
mod settings;

pub use detect::{KubeletRecord, KubeletRecords};
pub use failure::{KubeletEvent, KubeletFailure};
pub use manager::{CollectorReport, FreedImages, Manager};
pub use node::ListedNode;
pub use runtime::{FsStats, ListedContainer, ListedImage, Listing, Runtime, RuntimeError};
pub use settings::{ConfigFault, FailureStreak, IMAGE_GC_PERIOD, KubeletPolicy};
