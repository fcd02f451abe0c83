//! Leaks: which go, and in what order. Pure.

pub mod plan;
