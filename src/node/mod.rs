//! The kubelet's files on this node: its settings, static pods, the pods that it knows, and their
//! logs. Read-only.

pub mod kubelet;
pub mod logs;
mod manifest;
pub mod places;
pub mod pods;
pub mod pulls;
pub mod quadlets;
mod scalars;
pub mod static_pods;
pub mod thresholds;
pub mod timers;
mod yaml;

use std::io;
use std::path::PathBuf;

pub use scalars::top_level;

use crate::model::names::names;

/// An image that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedImage {
    /// The reference as written; a short name is expanded as the kubelet does.
    pub reference: String,
    /// Who names it, for messages: a file, or a setting and its file.
    pub source: String,
}

names! {
    /// Who names images in the node's files.
    ImageNamers {
        StaticPods = "static pods",
        Quadlets = "quadlets",
    }
}

/// A file or directory that exists but cannot be read, so the images that it names are unknown.
#[derive(Debug, thiserror::Error)]
#[error("reading {}: which images {names} name is unknown", path.display())]
pub struct Unreadable {
    /// Its path inside the root.
    pub path: PathBuf,
    /// Who names images there.
    pub names: ImageNamers,
    pub source: io::Error,
}
