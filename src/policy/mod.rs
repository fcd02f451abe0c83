//! What is deleted, why, and in what order. Pure: no I/O, no clock, ages and listings come in as
//! values, so that every decision can be tested as a table.
//!
//! Two policies decide. [`plan`] is ours (`exact`): it goes by measured space and by what each
//! deletion frees. [`kubelet`] is the kubelet's own algorithm, rule for rule, for those who want
//! it; [`compare`] shows the difference. `docs/how-it-decides.md` is the operator's page.

pub mod compare;
pub mod containers;
pub mod forecast;
pub mod input;
pub mod kubelet;
pub mod leaks;
pub mod plan;
pub mod rules;
#[cfg(test)]
#[path = "../../tests/support/scenario.rs"]
pub(crate) mod scenario;
pub mod space;
pub mod thresholds;

pub use input::{Ages, BackOff, Facts, FullFilesystem, Input, Policy, Protect};
pub use plan::{Planner, Task};
pub use space::{FreeFloor, Targets, Thresholds};

use crate::model::names::names;

names! {
    /// Which rules decide.
    PolicyKind {
        Exact = "exact",
        /// The kubelet's, rule for rule.
        Kubelet = "kubelet",
    }
}
