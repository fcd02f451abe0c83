//! containerd's stores, read from its files alone.

pub mod bolt;
pub mod content;
pub mod gc;
pub mod metadata;
