//! Result of the inspection of the files that records only name.

use std::path::PathBuf;

use super::engine::Engine;
use crate::disk::Fingerprint;
use crate::stores::leaks::Judgement;

/// Results of the inspection. Empty if it was skipped, or if the store was written to in the meantime.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The inspection ran, and the store was not written to in the meantime.
    pub(crate) valid: bool,
    pub(crate) faults: Vec<Inconsistency>,
    /// The layers' symlinks in `l/`.
    pub(crate) short_names: Vec<ShortName>,
    /// Stamp of each layer's directory, and true if its `diff` is a directory; by position of the layer. Empty without an
    /// inspection.
    pub(crate) stamps: Vec<Option<(Fingerprint, bool)>>,
    pub(crate) engine: Engine,
}

/// The symlink in `l/` of a recorded layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortName {
    /// Position of the layer's record.
    pub(crate) layer: usize,
    /// `st_dev`.
    pub(crate) device: u64,
    /// `st_ino`.
    pub(crate) inode: u64,
}

/// An inconsistency of a layer's short name or of an image's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inconsistency {
    pub(crate) of: FaultOf,
    pub(crate) path: PathBuf,
    pub(crate) judged: Judgement,
}

/// Object that has a fault. Numbers are positions of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOf {
    Layer(usize),
    Image(usize),
}
