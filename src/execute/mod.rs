//! Carries out plans: one deletion at a time, each proven again right before it and measured after it.
//!
//! [`executor`] has the one loop of images, names, containers, sandboxes, logs and leaks. The planner
//! decides, a [`Remover`] removes images, `proof` looks again, and a [`RunObserver`] records.

pub mod containers;
pub mod cri;
pub mod direct;
pub mod editors;
pub mod executor;
pub mod gauges;
pub mod images;
pub mod kubelet;
pub mod leaks;
pub mod measure;
pub mod owner;
pub mod proof;
pub mod remover;
pub mod runtime_match;
pub mod untag;

pub use executor::{Run, RunObserver};
pub use gauges::Gauges;
pub use proof::{FactsOf, PolicyContext, ProofContext, RemoverFacts};
pub use remover::{PreconditionError, RemovalAnswer, Remover};
