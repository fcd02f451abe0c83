//! Results of the inspection.

use std::path::PathBuf;

use super::engine::Engine;
use crate::disk::Fingerprint;
use crate::stores::leaks::Judgement;

/// Results of the inspection. Empty if it was skipped or its reading was inconsistent.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The inspection ran and nothing was written meanwhile.
    pub(crate) valid: bool,
    pub(crate) faults: Vec<Fault>,
    /// The layers' symlinks in `l/`.
    pub(crate) short_names: Vec<ShortName>,
    /// By position of the layer, the stamp of its directory; nothing where none were taken.
    pub(crate) stamps: Vec<Option<Fingerprint>>,
    pub(crate) engine: Engine,
}

/// The symlink in `l/` that is a recorded layer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortName {
    /// Position of the layer's record.
    pub(crate) layer: usize,
    /// `st_dev`.
    pub(crate) device: u64,
    /// `st_ino`.
    pub(crate) inode: u64,
}

/// Something wrong with a layer's short name, or with an image's own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) of: FaultOf,
    pub(crate) path: PathBuf,
    pub(crate) judged: Judgement,
}

/// Whose fault is reported. Numbers are positions of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOf {
    Layer(usize),
    Image(usize),
}
