//! Results of the inspection.

use std::path::PathBuf;

use super::engine::Engine;

/// Results of the inspection. Empty if it was skipped or its reading was inconsistent.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The inspection ran and nothing was written meanwhile.
    pub(in crate::stores::containers_storage) valid: bool,
    pub(in crate::stores::containers_storage) links: Vec<LinkFault>,
    /// The layers' symlinks in `l/`.
    pub(in crate::stores::containers_storage) short_names: Vec<ShortName>,
    pub(in crate::stores::containers_storage) data: Vec<DataFault>,
    /// Containers, by position, without CRI-O's `userdata/config.json`.
    pub(in crate::stores::containers_storage) without_config: Vec<usize>,
    pub(in crate::stores::containers_storage) engine: Engine,
}

/// The symlink in `l/` that is a recorded layer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stores::containers_storage) struct ShortName {
    /// Position of the layer's record.
    pub(in crate::stores::containers_storage) layer: usize,
    /// `st_dev`.
    pub(in crate::stores::containers_storage) device: u64,
    /// `st_ino`.
    pub(in crate::stores::containers_storage) inode: u64,
}

/// Something wrong with an image's own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores::containers_storage) struct DataFault {
    /// Position of the image's record.
    pub(in crate::stores::containers_storage) image: usize,
    pub(in crate::stores::containers_storage) path: PathBuf,
    pub(in crate::stores::containers_storage) what: DataWrong,
}

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores::containers_storage) enum DataWrong {
    /// The record names it, but it does not exist.
    Missing(String),
    /// It has another length than the record says.
    Length {
        name: String,
        /// Bytes on the disk.
        found: u64,
        /// Bytes by the record.
        recorded: u64,
    },
    /// It begins with zeroes, which none of these files does.
    Zeroes(String),
    /// An unfinished write (`.tmp-…`).
    Unfinished,
}

/// Something wrong with a short name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores::containers_storage) enum LinkFault {
    /// A name in `l/` that no layer's `link` file has.
    Stray {
        /// The symlink.
        path: PathBuf,
        /// Where it leads.
        leads: Leads,
        /// A layer directory whose `lower` has the name.
        used_by: Option<String>,
    },
    /// A recorded layer's name is not in `l/`.
    Missing {
        /// Position of the layer's record.
        layer: usize,
        /// Where the symlink belongs.
        path: PathBuf,
        /// A layer directory whose `lower` has the name, without `lower-layers` beside it.
        needed_by: Option<String>,
    },
    /// A recorded layer's `link` file is empty or missing.
    Blank {
        /// Position of the layer's record.
        layer: usize,
        path: PathBuf,
        /// The name that `l/` has for the layer.
        name: Option<String>,
    },
}

/// Where a stray name leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores::containers_storage) enum Leads {
    /// To no directory of a layer.
    Nowhere,
    /// To the directory of the layer with this id, which has another name.
    Layer(String),
    /// It could not be read without moving its access time.
    Unread,
}
