//! What goes, why, and in what order: policy and plan (pure), and the run that carries a
//! plan out.

pub mod measure;
pub mod runtime_match;
