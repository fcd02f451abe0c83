//! Types of the configuration.

use std::path::{Path, PathBuf};

/// Configuration of a store. Paths are absolute inside the sysroot, and may be symlinks there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    pub graphroot: PathBuf,
    pub runroot: PathBuf,
    /// Directory of image layers, if that is not the graphroot (split filesystem).
    pub imagestore: Option<PathBuf>,
    /// The configured driver. If `None`, the driver is detected in the graphroot.
    pub driver: Option<String>,
    /// Runroots of other programs with the same graphroot: programs with another lookup rule for `storage.conf`, or
    /// CRI-O beside Podman.
    pub other_runroots: Vec<PathBuf>,
    /// Writable imagestores of other programs with the same graphroot.
    pub other_imagestores: Vec<PathBuf>,
    /// Read-only stores that the store uses images of.
    pub additional_image_stores: Vec<PathBuf>,
    /// Read-only stores that the store uses layers of: directories that a separate program serves.
    pub additional_layer_stores: Vec<PathBuf>,
    /// Directories that may contain podman's database, besides the graphroot.
    pub podman_dirs: Vec<PathBuf>,
    /// Container records are in the runroot (`transient_store`).
    pub transient: bool,
    /// Source of the graphroot's path, for messages: a file, a flag, a built-in default.
    pub origin: String,
    /// The store belongs to a user other than the caller.
    pub of_another_user: bool,
}

/// A pattern that protects images from deletion, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub pattern: String,
    pub origin: String,
    /// Pod sandboxes are made from the image.
    pub is_of_sandboxes: bool,
}

#[derive(Clone, Debug, Default)]
pub struct GraphrootDiscovery {
    /// Stores to scan, each graphroot once.
    pub stores: Vec<StoreConfig>,
    /// All stores of the configuration, if the user named the stores to scan. These may use images of the named ones.
    /// Their problems are not problems of this scan.
    pub others: Vec<StoreConfig>,
    /// CRI-O's `pinned_images` and `pause_image`.
    pub pins: Vec<Pin>,
    /// CRI-O's `additional_artifact_stores`: directories that contain `artifacts`, and the file that names each.
    pub artifact_stores: Vec<Pin>,
    /// Files that could not be read or parsed: path and reason. The other files are used.
    pub problems: Vec<(PathBuf, String)>,
    /// Configured directories for temporary files of the tools: `image_copy_tmp_dir`, CRI-O's
    /// `big_files_temporary_dir`, `TMPDIR` in their units.
    pub temporary: Vec<PathBuf>,
    /// Users with files that could not be read or parsed, and that may name stores.
    pub unread: Vec<UnreadConfig>,
}

/// A user whose configuration is not completely known. It may name stores, and these may use images of every store that
/// the user can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadConfig {
    pub uid: u32,
    /// The first file that could not be read or parsed.
    pub file: PathBuf,
}

pub(super) type Sourced = (String, PathBuf);

/// Settings as the files contain them, without expanded variables or defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StorageSettings {
    pub(super) driver: Option<String>,
    pub(super) graphroot: Option<Sourced>,
    pub(super) runroot: Option<Sourced>,
    pub(super) imagestore: Option<Sourced>,
    pub(super) rootless_storage_path: Option<Sourced>,
    pub(super) transient: bool,
    /// `options.additionalimagestores`.
    pub(super) image_stores: Strings,
    /// `options.additionallayerstores`.
    pub(super) layer_stores: Strings,
}

/// An array of strings. Since containers/storage 1.63 it may contain `{append = true}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strings {
    pub(super) values: Vec<String>,
    /// `append` in the array: the values are appended to those of earlier files.
    pub(super) append: Option<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Path inside the root, and reason.
    pub(super) found: Vec<(PathBuf, String)>,
    /// Users that these files belong to.
    pub(super) unread: Vec<UnreadConfig>,
}

impl Problems {
    /// Notes a problem once, even if two lookup rules read the same file.
    pub(super) fn note(&mut self, file: &Path, reason: impl Into<String>) {
        let problem = (file.to_path_buf(), reason.into());
        if !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }

    pub(super) fn note_all(&mut self, others: Self) {
        others.found.into_iter().for_each(|(file, reason)| self.note(&file, reason));
    }

    /// Notes that the configuration of a user has these problems.
    pub(super) fn note_unread(&mut self, uid: u32, problems: &Self) {
        // An entry for root covers all users: root can read every store.
        if self.unread.iter().all(|unread| unread.uid != 0) {
            let first = problems.found.first();
            self.unread.extend(first.map(|(file, _)| UnreadConfig { uid, file: file.clone() }));
        }
    }
}
