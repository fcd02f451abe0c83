//! Bytes of layers that no container can see, and files that layers have in common. Pure.
//!
//! [`layer_files`] is the content of one layer, without texts: a digest stands for each path. [`view`] stacks layers as
//! overlayfs does and counts what the upper ones hide.

pub mod layer_files;
pub mod view;
