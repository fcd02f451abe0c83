//! Files of the kubelet and of podman's quadlets on this node: the kubelet's settings, static pods, known pods and
//! their logs. Nothing is written.

pub mod expected_images;
pub mod image_lists;
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

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub use scalars::top_level;

pub use crate::model::NamedImage;
use crate::model::text::names::names;
use crate::sys::quiet::is_absent;
use crate::sys::sysroot::Sysroot;

names! {
    ImageNamers {
        StaticPods = "static pods",
        Quadlets = "quadlets",
        CriO = "CRI-O's settings",
        Containerd = "containerd's settings",
        ReferencesFile = "protect.references_file",
    }
}

/// A file or directory that exists but cannot be read, so the images that it names are unknown.
#[derive(Debug, thiserror::Error)]
#[error("{}", text_of(path, *names, source))]
pub struct Unreadable {
    /// Path inside the root.
    pub path: PathBuf,
    pub names: ImageNamers,
    pub source: io::Error,
}

fn text_of(path: &Path, names: ImageNamers, source: &io::Error) -> String {
    match names {
        // A whole sentence, which `display::with_causes` does not repeat.
        ImageNamers::ReferencesFile => source.to_string(),
        _ => format!("reading {}: which images {names} name is unknown", path.display()),
    }
}

/// Reads a file that may name images. The inner error means that the path is not a regular file of at most `limit`
/// bytes, so it names no image; the outer error means that it cannot be read.
fn content(root: &Sysroot, path: &Path, limit: u64) -> io::Result<Result<Vec<u8>, io::Error>> {
    match root.read_bytes(path, limit) {
        Err(error)
            if is_absent(&error)
                || matches!(
                    error.kind(),
                    ErrorKind::IsADirectory | ErrorKind::InvalidInput | ErrorKind::FileTooLarge
                ) =>
        {
            Ok(Err(error))
        }
        other => other.map(Ok),
    }
}
