//! Types of the other users of a disk.

use std::path::PathBuf;

use super::large::LargeDirectory;
use crate::model::{FilesystemIx, Finding};
use crate::node::places::KubeletPlaces;

/// What kind of use it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtherUserKind {
    PodLogs,
    /// The journal of systemd.
    Journal,
    Logs,
    /// What the kubelet keeps for pods: volumes on this disk, plugins' files.
    KubeletVolumes,
    /// Temporary files that outlive a reboot.
    VarTmp,
    /// Our own records.
    Layersweep,
    /// Dumps of programs that crashed, and of the kernel.
    CoreDumps,
    Swap,
    /// Files of a snapshotter that runs beside containerd.
    Snapshotter,
    /// Files without a name that a process holds open.
    DeletedOpen,
    /// Anything else, by its top-level directory, or by what holds nearly all of that.
    Directory,
}

impl OtherUserKind {
    /// Whether each entry of such a place is a pod's.
    pub(super) fn is_by_pod(self) -> bool {
        matches!(self, Self::PodLogs | Self::KubeletVolumes)
    }
}

/// A use of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherUser {
    pub kind: OtherUserKind,
    pub filesystem: FilesystemIx,
    /// Its path as we see it; for deleted files the name that they had.
    pub path: PathBuf,
    /// Allocated bytes, each once.
    pub bytes: u64,
    /// What holds it, if known: the process of a deleted file, the name of a snapshotter.
    pub holder: Option<String>,
}

/// What one pod holds of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShare {
    /// [`OtherUserKind::PodLogs`] or [`OtherUserKind::KubeletVolumes`].
    pub kind: OtherUserKind,
    pub filesystem: FilesystemIx,
    /// `<namespace>/<name>`, else its uid.
    pub pod: String,
    /// Its path on this system.
    pub path: PathBuf,
    /// Allocated bytes, part of the kind's.
    pub bytes: u64,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct OtherUsers {
    /// By filesystem and kind; several of kind [`OtherUserKind::Directory`] and
    /// [`OtherUserKind::DeletedOpen`].
    pub other_users: Vec<OtherUser>,
    /// Shares of pods, the largest first.
    pub pods: Vec<PodShare>,
    /// The largest log files, the largest first.
    pub logs: Vec<BigFile>,
    /// Large directories in the stores, which are in `other` of the scan.
    pub large: Vec<LargeDirectory>,
    /// Filesystems of which every visible file was measured.
    pub seen_whole: Vec<SeenWhole>,
    /// What could not be read, and mounts that were not entered.
    pub findings: Vec<Finding>,
    /// Inodes that were looked at.
    pub inodes: u64,
}

/// A filesystem of which every visible file was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWhole {
    pub filesystem: FilesystemIx,
    /// Mount point of the whole filesystem.
    pub top: PathBuf,
    /// Mount points on its directories: files below them are hidden.
    pub mount_points: Vec<PathBuf>,
}

/// Where to look besides the usual places.
#[derive(Clone, Debug, Default)]
pub struct OtherUsageRequest {
    /// Our own state directory, as a path inside the sysroot.
    pub state_dir: PathBuf,
    pub places: KubeletPlaces,
    /// Threads; 0 for the default.
    pub threads: usize,
    /// Every directory is measured on a filesystem that has at most so many inodes in use besides those
    /// of the stores; else the places of known use alone. `None`: always.
    pub most_inodes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigFile {
    pub filesystem: FilesystemIx,
    /// Its path on this system.
    pub path: PathBuf,
    /// Allocated bytes.
    pub bytes: u64,
    /// The pod that it belongs to, `<namespace>/<name>`.
    pub pod: Option<String>,
    /// The container of that pod.
    pub container: Option<String>,
}

/// A place with a known use.
#[derive(Clone, Debug)]
pub(super) struct KnownUse {
    pub(super) kind: OtherUserKind,
    /// Its path as we see it, without symlinks.
    pub(super) path: PathBuf,
    /// Its filesystem, if it is one of the scan's.
    pub(super) filesystem: Option<FilesystemIx>,
    /// A store, which the scan has measured.
    pub(super) is_store: bool,
    /// Whose it is, where the kind does not say.
    pub(super) holder: Option<String>,
}
