//! Types for the other users of a disk.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::model::space::BytesAndInodes;
use crate::model::{ContainerIx, FilesystemIx, Finding, StoreIx, StoreKind};
use crate::node::places::KubeletPlaces;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OtherUserKind {
    PodLogs,
    Journal,
    Logs,
    /// Files of the kubelet for pods: volumes on this disk, files of plugins.
    KubeletVolumes,
    /// Temporary files that outlive a reboot.
    VarTmp,
    Layersweep,
    CoreDumps,
    Swap,
    /// Files of a snapshotter that runs beside containerd.
    Snapshotter,
    /// A store that was not read, for example one that no configuration names, or an additional layer store.
    Store(StoreKind),
    Volume,
    /// Deleted files that a process holds open.
    DeletedOpen,
    /// Anything else, by its top-level directory, or by the things in that.
    Directory,
}

impl OtherUserKind {
    pub(super) fn is_by_pod(self) -> bool {
        matches!(self, Self::PodLogs | Self::KubeletVolumes)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherUser {
    pub kind: OtherUserKind,
    pub filesystem: FilesystemIx,
    /// Path on this system; for a deleted file its last name.
    pub path: PathBuf,
    /// Allocated bytes; shared ones count once.
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
    /// Owner, if known: the process of a deleted file, the name of a snapshotter; for a store what it is.
    pub holder: Option<String>,
}

impl OtherUser {
    pub(super) fn size(&self) -> BytesAndInodes {
        BytesAndInodes { bytes: self.bytes, inodes: self.inodes }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShare {
    /// [`OtherUserKind::PodLogs`] or [`OtherUserKind::KubeletVolumes`].
    pub kind: OtherUserKind,
    pub filesystem: FilesystemIx,
    /// `<namespace>/<name>`, or the uid if the name is unknown.
    pub pod: String,
    /// Path on this system.
    pub path: PathBuf,
    /// Allocated bytes, included in those of the kind.
    pub bytes: u64,
    /// Number of files and directories, included in that of the kind.
    pub inodes: u64,
    /// True if no sandbox of the pod exists and nothing is mounted below the directory; `None` if this is unknown.
    pub is_gone: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub struct OtherUsers {
    /// Users by filesystem and kind. The kinds [`OtherUserKind::Directory`] and [`OtherUserKind::DeletedOpen`] may
    /// appear several times.
    pub other_users: Vec<OtherUser>,
    /// Processes whose deleted files are unknown.
    pub unknown_deleted: Option<String>,
    /// Shares of pods, the largest first.
    pub pods: Vec<PodShare>,
    /// The largest log files, the largest first.
    pub logs: Vec<BigFile>,
    /// The largest files outside the stores that are neither logs nor deleted, the largest first; only after
    /// [`super::add_files`].
    pub files: Vec<BigFile>,
    /// Archived files of the journal, which can be deleted, the oldest first.
    pub archived_journal: Vec<BigFile>,
    /// Bytes of its other files.
    pub active_journal_bytes: u64,
    /// Installed packages that package managers keep.
    pub package_caches: Vec<PackageCache>,
    /// Volumes of podman and of containers of CRI, the largest first.
    pub volumes: Vec<VolumeUse>,
    /// Large directories in the stores, which the scan counts as `other`.
    pub large: Vec<LargeDirectory>,
    /// Filesystems of which every visible file was measured.
    pub seen_whole: Vec<SeenWhole>,
    /// Directories that could not be read, and mounts that were not entered.
    pub findings: Vec<Finding>,
    pub inodes: u64,
}

impl OtherUsers {
    /// Returns a finding about processes whose deleted files are unknown, unless it is `reported` already.
    #[must_use]
    pub fn unknown_files(&self, reported: &[Finding]) -> Option<Finding> {
        let why = self.unknown_deleted.as_ref()?;
        Some(Finding::incomplete("/proc", why)).filter(|finding| !reported.contains(finding))
    }
}

/// A directory at the top of a store that contains at least 1 % of the used bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeDirectory {
    pub store: StoreIx,
    pub filesystem: FilesystemIx,
    pub path: PathBuf,
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
    /// Largest entry, with its allocated bytes.
    pub largest: Option<(PathBuf, u64)>,
    /// Kind of the store that the directory itself is, and that was not read.
    pub unread_store: Option<StoreKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageCache {
    pub filesystem: FilesystemIx,
    /// Path on this system.
    pub path: PathBuf,
    pub command: &'static str,
    /// Allocated bytes of the packages.
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUse {
    pub store: StoreIx,
    pub filesystem: FilesystemIx,
    /// Name that podman gives it; of a volume of CRI, that of its container.
    pub name: String,
    /// Path on this system.
    pub path: PathBuf,
    pub bytes: u64,
    pub inodes: u64,
    /// Names of the containers that use it; `None` if that is unknown.
    pub containers: Option<Vec<String>>,
    /// The container of CRI that it belongs to, and is deleted with.
    pub of: Option<ContainerIx>,
}

/// A filesystem of which every visible file was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWhole {
    pub filesystem: FilesystemIx,
    /// Mount point of the whole filesystem.
    pub top: PathBuf,
    /// Mount points on its directories; files in these directories are hidden.
    pub mount_points: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub struct OtherUsageRequest {
    /// State directory of this program, as a path inside the sysroot.
    pub state_dir: PathBuf,
    pub places: KubeletPlaces,
    /// Number of threads; 0 for the default.
    pub threads: usize,
    /// Maximum number of used inodes outside the stores on a filesystem where every directory is measured. On
    /// filesystems with more, only the places of known use are measured. `None`: no limit.
    pub most_inodes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigFile {
    pub filesystem: FilesystemIx,
    /// Path on this system.
    pub path: PathBuf,
    pub bytes: u64,
    /// The pod that it belongs to, `<namespace>/<name>`.
    pub pod: Option<String>,
    pub container: Option<String>,
    pub modified: Option<Timestamp>,
    pub owner: u32,
    pub links: u64,
}

#[derive(Clone, Debug)]
pub(super) struct KnownUse {
    pub(super) kind: OtherUserKind,
    /// Path on this system, without symlinks.
    pub(super) path: PathBuf,
    pub(super) filesystem: Option<FilesystemIx>,
    /// True for a store, which the scan has measured.
    pub(super) is_store: bool,
    /// Owner, if the kind does not imply it.
    pub(super) holder: Option<String>,
}
