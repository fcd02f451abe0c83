//! Policy `kubelet`: the kubelet's image garbage collection rule for rule, including its roundings, its trust in
//! listed sizes and its blind spots. The rules are those of Kubernetes 1.35 with its default features (images may
//! be mounted as volumes). `fixtures/kubelet-gc.json` contains the test rows.
//!
//! Pure: [`SimulatedNode`] is a node whose images are not deleted, but counted as deleted.

mod detect;
mod failure;
mod manager;
mod node;
mod runtime;
mod settings;

pub use detect::{KubeletRecord, KubeletRecords};
pub use failure::{KubeletEvent, KubeletFailure};
pub use manager::{CollectorReport, FreedImages, Manager};
pub use node::SimulatedNode;
pub use runtime::{FsStats, ListedContainer, ListedImage, Listing, Runtime};
pub use settings::{ConfigFault, FailureStreak, IMAGE_GC_PERIOD, KubeletPolicy};
