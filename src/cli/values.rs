//! The forms of durations and sizes, which are the same as in the configuration.

pub(super) use crate::config::values::{duration, size};
