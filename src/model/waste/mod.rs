//! Bytes of layers that no container can see, and files that layers have in common. Pure.
//!
//! [`layer_files`] is the content of one layer, without texts: each path is a digest. [`view`] stacks layers as
//! overlayfs does and counts what the upper ones hide.

pub mod layer_files;
pub mod view;
