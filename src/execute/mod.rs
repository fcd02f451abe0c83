//! Carries out plans: one deletion at a time, each proven again right before it and measured after it.
//!
//! [`executor`] carries out one deletion: of an image, name, container, sandbox, log or leak. For images, the planner
//! chooses the next one ([`images::run`]), `proof` reads the stores again, a [`Remover`] removes the image, and a
//! [`RunObserver`] records the result.

pub mod by_store;
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
pub mod way;

pub use executor::{Run, RunObserver};
pub use gauges::Gauges;
pub use proof::{FactsOf, ImageFacts, PolicyContext};
pub use remover::{PreconditionError, Remover};
