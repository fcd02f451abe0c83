//! Deletions: as planned, as answered by what deletes, and as measured.

pub mod answer;
pub mod back_off;
pub mod outcome;
pub mod outcome_kind;
pub mod plan;
