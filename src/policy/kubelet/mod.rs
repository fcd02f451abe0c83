//! Policy `kubelet`: the kubelet's image garbage collection rule for rule, including its roundings, its trust in
//! listed sizes and its blind spots. The rules are those of Kubernetes 1.35 with its default features (images may
//! be mounted as volumes). `fixtures/kubelet-gc.json` contains the test rows.
//!
//! Pure apart from [`Runtime`]: the caller lists, measures and removes.

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
