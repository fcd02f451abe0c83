//! Policy for leaks. Pure.

pub mod plan;
