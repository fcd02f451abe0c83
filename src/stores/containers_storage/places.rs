//! Paths of a store.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::allowance::Allowance;
use crate::sys::quiet::{FileKind, Within};
use crate::sys::root::Root;
use crate::sys::sqlite::beside;

/// Directories of a store. They are opened once, when the store is found, and all reading and editing starts at these
/// descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlaces {
    pub graphroot: Root,
    /// Imagestores that are not the graphroot. More than one only if two programs use the graphroot with different
    /// imagestores.
    pub imagestores: Vec<Root>,
    /// Existing runroots. More than one only if two programs use the graphroot with different runroots.
    pub runroots: Vec<Root>,
    /// Directories outside the store that may contain podman's database.
    pub databases: Vec<Root>,
    /// Directories outside the store in which its tools leave temporary files. Their bytes are not part of the store.
    pub temporary: Vec<Root>,
    /// Directories outside the store that may contain the blob-info cache of its tools.
    pub caches: Vec<Root>,
    /// The driver whose directories are read.
    pub driver: String,
    /// Other drivers with records in the same graphroot. Each of them is a separate store.
    pub other_drivers: Vec<String>,
    /// Files at the top of the graphroot that belong to no driver are counted for this store, not for another driver of
    /// the same graphroot.
    pub primary: bool,
    pub read_only: bool,
    /// The store is below a mounted root. No lock is taken there. Locks are still queried: that writes nothing, and the
    /// root may be that of a running node.
    pub foreign: bool,
    /// Limit for the amount that is read of another user's store.
    pub allowance: Allowance,
}

impl StorePlaces {
    /// Returns a store that has only a graphroot.
    #[must_use]
    pub fn new(graphroot: Root, driver: &str) -> Self {
        Self {
            graphroot,
            imagestores: Vec::new(),
            runroots: Vec::new(),
            databases: Vec::new(),
            temporary: Vec::new(),
            caches: Vec::new(),
            driver: driver.to_owned(),
            other_drivers: Vec::new(),
            primary: false,
            read_only: false,
            foreign: false,
            allowance: Allowance::default(),
        }
    }

    /// Returns the directories of images and layers: the graphroot, then the imagestores.
    pub fn areas(&self) -> impl Iterator<Item = &Root> + Clone {
        std::iter::once(&self.graphroot).chain(&self.imagestores)
    }

    /// Returns a reader for files below the directories of this store. It does not follow symlinks.
    #[must_use]
    pub fn within(&self) -> Within {
        let roots = self
            .areas()
            .chain(&self.runroots)
            .chain(&self.databases)
            .chain(&self.temporary)
            .chain(&self.caches);
        Within::new(roots).charging(self.allowance.clone())
    }

    /// Returns the root directories for the parts of units: each area followed by its driver's directory, then the
    /// temporary directories.
    ///
    /// The driver's directory is a separate root because podman and CRI-O mount it onto itself.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        let areas = self.areas().flat_map(|area| [area.to_path_buf(), area.join(&self.driver)]);
        areas.chain(self.temporary.iter().map(|root| root.to_path_buf())).collect()
    }

    /// Returns the roots that belong to the store alone: [`Self::roots`] without the temporary directories.
    pub(super) fn own_roots(&self) -> Vec<PathBuf> {
        let mut roots = self.roots();
        roots.truncate(2 * self.areas().count());
        roots
    }

    /// Returns `<area>/<driver>-<kind>`.
    #[must_use]
    pub fn records_dir(&self, area: &Path, kind: RecordKind) -> PathBuf {
        area.join(format!("{}-{}", self.driver, kind.as_str()))
    }

    /// Returns `<graphroot>/<driver>-<kind>/<kind>.json`.
    pub(super) fn record_file(&self, kind: RecordKind) -> PathBuf {
        let [(name, _), _] = kind.files();
        self.records_dir(&self.graphroot, kind).join(name)
    }

    #[must_use]
    pub fn layer_directories(&self, area: &Path) -> PathBuf {
        let driver = area.join(&self.driver);
        match self.below_driver() {
            Some(name) => driver.join(name),
            None => driver,
        }
    }

    /// Name of the directory inside the driver's own that contains the layers, if there is one.
    pub(super) fn below_driver(&self) -> Option<&'static str> {
        match self.driver.as_str() {
            "vfs" => Some("dir"),
            "btrfs" => Some("subvolumes"),
            _ => None,
        }
    }

    /// Returns true if each layer is a whole root filesystem, a copy or a btrfs subvolume. Such a layer is used in its
    /// place, without a mount, and shares extents with its parent.
    pub(super) fn has_whole_layers(&self) -> bool {
        matches!(self.driver.as_str(), "vfs" | "btrfs")
    }

    pub(super) fn record_files(&self) -> Vec<RecordPath> {
        let mut files = Vec::new();
        for kind in RecordKind::ALL {
            let [(plain, _), (volatile, _)] = kind.files();
            let in_graphroot = self.records_dir(&self.graphroot, kind);
            files.push((kind, in_graphroot.join(&plain), false));
            if kind != RecordKind::Images {
                files.push((kind, in_graphroot.join(&volatile), true));
                // With transient_store the volatile file is in the runroot.
                for runroot in &self.runroots {
                    files.push((kind, self.records_dir(runroot, kind).join(&volatile), true));
                }
            }
            for imagestore in self.imagestores.iter().filter(|_| kind != RecordKind::Containers) {
                files.push((kind, self.records_dir(imagestore, kind).join(&plain), false));
            }
        }
        files
    }

    /// Returns the files that change when images, layers or containers are added or deleted: the record files, podman's
    /// database, and the library's count of mounts.
    pub(super) fn watched_files(&self) -> Vec<PathBuf> {
        let records = self.record_files().into_iter().map(|(_, path, _)| path);
        records.chain(self.files_beside_records()).collect()
    }

    /// Returns the watched files that are not record files.
    pub(super) fn files_beside_records(&self) -> Vec<PathBuf> {
        let [bolt, sqlite] = self.podman_databases();
        let logs: Vec<_> = sqlite.iter().map(|path| beside(path, "-wal")).collect();
        bolt.into_iter().chain(sqlite).chain(logs).chain(self.mountpoint_files()).collect()
    }

    /// Returns the possible paths of podman's database: those of bolt files, then those of SQLite files.
    ///
    /// With `transient_store` the database is in the runroot; `static_dir` can place it in any directory (podman,
    /// `libpod/sqlite_state.go`).
    pub(super) fn podman_databases(&self) -> [Vec<PathBuf>; 2] {
        [("libpod/bolt_state.db", "bolt_state.db"), ("db.sql", "db.sql")].map(|(in_graphroot, name)| {
            let elsewhere = self.databases.iter().chain(&self.runroots).map(|root| root.join(name));
            std::iter::once(self.graphroot.join(in_graphroot)).chain(elsewhere).collect()
        })
    }

    /// Returns the files in which the library counts its mounts of layers. They need not exist.
    pub(super) fn mountpoint_files(&self) -> Vec<PathBuf> {
        let directories = self.runroots.iter().map(|runroot| self.records_dir(runroot, RecordKind::Layers));
        directories.map(|directory| directory.join("mountpoints.json")).collect()
    }

    /// Returns the lock files, in the order in which the library locks them.
    pub(super) fn lock_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for kind in [RecordKind::Layers, RecordKind::Images] {
            files.extend(self.areas().map(|area| self.lock_file(area, kind)));
        }
        let with_containers = std::iter::once(&self.graphroot).chain(&self.runroots);
        files.extend(with_containers.map(|root| self.lock_file(root, RecordKind::Containers)));
        files
    }

    fn lock_file(&self, area: &Path, kind: RecordKind) -> PathBuf {
        self.records_dir(area, kind).join(kind.lock_file())
    }
}

/// Kinds of records, in the library's order of locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Layers,
    Images,
    Containers,
}

impl RecordKind {
    pub(crate) const ALL: [Self; 3] = [Self::Layers, Self::Images, Self::Containers];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Images => "images",
            Self::Containers => "containers",
        }
    }

    /// Returns the word for a single record.
    pub(crate) fn singular(self) -> &'static str {
        self.as_str().trim_end_matches('s')
    }

    /// Returns the names of the record files, and whether each is volatile: first the permanent file, then the volatile
    /// one.
    pub(crate) fn files(self) -> [(String, bool); 2] {
        [(format!("{}.json", self.as_str()), false), (format!("volatile-{}.json", self.as_str()), true)]
    }

    pub(crate) fn lock_file(self) -> String {
        format!("{}.lock", self.as_str())
    }
}

/// Maximum size of a record file. A file with 100,000 layers has about 60 MiB.
pub(crate) const MOST_RECORD_BYTES: u64 = 256 << 20;

/// Kind and path of a record file, and whether it is volatile.
pub(super) type RecordPath = (RecordKind, PathBuf, bool);

/// Drivers of containers/storage. Only the first three are measured layer by layer.
pub const DRIVERS: [&str; 6] = ["overlay", "vfs", "btrfs", "zfs", "aufs", "devmapper"];

/// Returns the drivers with records in an area, in the order of [`DRIVERS`].
///
/// If no driver has records, returns the drivers with a directory: an administrator may have deleted only the records.
///
/// # Errors
/// When the area cannot be listed.
pub fn drivers_in(area: &Root, allowance: &Allowance) -> io::Result<Vec<String>> {
    let entries = Within::new([area]).charging(allowance.clone()).list(area)?;
    let directories: HashSet<&str> = entries
        .iter()
        .filter(|entry| entry.kind == FileKind::Directory)
        .filter_map(|entry| entry.name.to_str())
        .collect();
    let mut drivers = DRIVERS.to_vec();
    drivers.retain(|driver| {
        ["layers", "images"].iter().any(|kind| directories.contains(&*format!("{driver}-{kind}")))
    });
    if drivers.is_empty() {
        drivers = DRIVERS.to_vec();
        drivers.retain(|driver| directories.contains(driver));
    }
    Ok(drivers.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
impl StorePlaces {
    /// Returns an overlay store that has only a graphroot.
    pub(super) fn for_tests(graphroot: Root) -> Self {
        Self { primary: true, ..Self::new(graphroot, "overlay") }
    }
}
