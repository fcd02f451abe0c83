//! containerd's stores, read from its files alone.

pub mod bolt;
pub mod metadata;
