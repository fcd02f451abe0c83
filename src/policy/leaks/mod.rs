//! Leaks: which go, in what order, and their removal one at a time, each measured.
//!
//! [`plan`] decides (pure), [`run`] carries it out by the recipes of `graphroot::edit`, which
//! prove each one again under the store's locks. [`classes`] is the list of what there is.

pub mod classes;
pub mod plan;
