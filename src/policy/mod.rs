//! Decisions: the objects to delete, the reasons, and the order. Pure: no I/O and no clock; ages and listings are
//! arguments, so that every decision can be tested as a table.
//!
//! There are two policies. [`plan`] is layersweep's (`exact`): it decides by the measured space and by the bytes that
//! each deletion frees. [`kubelet`] is the kubelet's own algorithm, rule by rule; [`compare`] shows the difference.
//! `docs/how-it-decides.md` explains both for operators.

pub mod cheapest;
pub mod compare;
pub mod containers;
pub mod forecast;
pub mod image_rules;
pub mod input;
pub mod kubelet;
pub mod leaks;
pub mod plan;
pub mod replay;
pub mod rules;
#[cfg(test)]
#[path = "../../tests/support/scenario.rs"]
pub(crate) mod scenario;
pub mod space;
pub mod thresholds;
#[cfg(test)]
#[path = "../../tests/support/traces.rs"]
pub(crate) mod traces;

pub use input::{Ages, BackOff, DeletionOrder, Facts, FullFilesystem, Input, Policy, Protect};
pub use plan::{Planner, Task};
pub use space::{FreeFloor, Targets, Thresholds};

use crate::model::text::names::names;

names! {
    PolicyKind {
        Exact = "exact",
        /// The kubelet's own algorithm.
        Kubelet = "kubelet",
    }
}
