//! What goes, why, and in what order: policy and plan (pure), and the run that carries a
//! plan out.
//!
//! Two policies decide. [`plan`] is ours (`exact`): it goes by measured space and by what each
//! deletion really gives back. [`kubelet`] is the kubelet's own algorithm, rule for rule, for
//! those who want it; [`compare`] shows the difference.
//!
//! `docs/how-it-decides.md` tells the operator the same in words.

pub mod compare;
pub mod containers;
pub mod doctor;
pub mod editors;
pub mod kubelet;
pub mod leaks;
pub mod measure;
pub mod names;
pub mod plan;
pub mod policy;
pub mod protect;
pub mod rules;
pub mod run;
pub mod runtime_match;
pub mod scenario;
pub mod space;
pub mod story;

pub use plan::{Next, Outcome, Plan, Planner, Reason, Step, Task, Verdict};
pub use policy::{Ages, Attempt, Input, Known, Pattern, Policy, Protect};
pub use space::{Doubt, FreeFloor, Marks, Measured, Space, Targets};
