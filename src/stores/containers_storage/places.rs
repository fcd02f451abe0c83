//! The paths of one store.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::allowance::Allowance;
use crate::sys::quiet::{FileKind, Within};
use crate::sys::root::Root;
use crate::sys::sqlite::beside;

/// Where one store's parts lie: its directories, opened once when it was found, and names below
/// them. All reading and editing hangs on those descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlaces {
    pub graphroot: Root,
    /// Split imagestores: one at most, unless two programs disagree about the graphroot.
    pub imagestores: Vec<Root>,
    /// Runroots that are there, likewise.
    pub runroots: Vec<Root>,
    /// Directories outside of the store that may hold podman's database.
    pub databases: Vec<Root>,
    /// Directories outside of the store where its tools leave temporary files. What lies
    /// there is not part of the store's bytes.
    pub temporary: Vec<Root>,
    /// The driver whose directories are read.
    pub driver: String,
    /// Other drivers that have records in the same graphroot: stores of their own.
    pub other_drivers: Vec<String>,
    /// What is at the graphroot's top and belongs to no driver is counted here, and not
    /// with another driver of the same graphroot.
    pub primary: bool,
    /// An additional image store.
    pub read_only: bool,
    /// Below a mounted root: no lock is taken. They are asked all the same, since asking
    /// writes nothing and the root may be that of a running node.
    pub foreign: bool,
    /// Limit for what is read of another user's store.
    pub allowance: Allowance,
}

impl StorePlaces {
    /// A store with nothing but a graphroot.
    #[must_use]
    pub fn new(graphroot: Root, driver: &str) -> Self {
        Self {
            graphroot,
            imagestores: Vec::new(),
            runroots: Vec::new(),
            databases: Vec::new(),
            temporary: Vec::new(),
            driver: driver.to_owned(),
            other_drivers: Vec::new(),
            primary: false,
            read_only: false,
            foreign: false,
            allowance: Allowance::default(),
        }
    }

    /// The directories that hold this store: the graphroot, then the imagestores.
    pub fn areas(&self) -> impl Iterator<Item = &Root> + Clone {
        std::iter::once(&self.graphroot).chain(&self.imagestores)
    }

    /// Reading below the directories of this store, through no symlink.
    #[must_use]
    pub fn within(&self) -> Within {
        let roots = self.areas().chain(&self.runroots).chain(&self.databases).chain(&self.temporary);
        Within::new(roots).charging(self.allowance.clone())
    }

    /// The directories that units' parts are given below: each area, then its driver's
    /// directory, which podman and CRI-O mount onto itself; then the temporary directories.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        let areas = self.areas().flat_map(|area| [area.to_path_buf(), area.join(&self.driver)]);
        areas.chain(self.temporary.iter().map(|root| root.to_path_buf())).collect()
    }

    /// Position in [`Self::roots`] of the first temporary directory.
    pub(in crate::stores) fn first_temporary(&self) -> usize {
        2 * self.areas().count()
    }

    /// `<area>/<driver>-<kind>`.
    #[must_use]
    pub fn records_dir(&self, area: &Path, kind: RecordKind) -> PathBuf {
        area.join(format!("{}-{}", self.driver, kind.as_str()))
    }

    /// `<graphroot>/<driver>-<kind>/<kind>.json`.
    pub(super) fn record_file(&self, kind: RecordKind) -> PathBuf {
        let [(name, _), _] = kind.files();
        self.records_dir(&self.graphroot, kind).join(name)
    }

    /// The directory that holds a directory for each layer.
    #[must_use]
    pub fn layer_directories(&self, area: &Path) -> PathBuf {
        let driver = area.join(&self.driver);
        if self.driver == "vfs" { driver.join("dir") } else { driver }
    }

    pub(super) fn record_files(&self) -> Vec<RecordPath> {
        let mut files = Vec::new();
        for kind in RecordKind::ALL {
            let [(plain, _), (volatile, _)] = kind.files();
            let here = self.records_dir(&self.graphroot, kind);
            files.push((kind, here.join(&plain), false));
            if kind != RecordKind::Images {
                files.push((kind, here.join(&volatile), true));
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

    /// What moves when images, layers or containers come or go: the record files, podman's database,
    /// and the library's count of mounts.
    pub(super) fn watched_files(&self) -> Vec<PathBuf> {
        let records = self.record_files().into_iter().map(|(_, path, _)| path);
        records.chain(self.files_beside_records()).collect()
    }

    /// Of these, those that are no records.
    pub(super) fn files_beside_records(&self) -> Vec<PathBuf> {
        let [bolt, sqlite] = self.podman_databases();
        let logs: Vec<_> = sqlite.iter().map(|path| beside(path, "-wal")).collect();
        bolt.into_iter().chain(sqlite).chain(logs).chain(self.mountpoint_files()).collect()
    }

    /// Where podman's database may lie: bolt's, then SQLite's. With `transient_store` it is in the
    /// runroot, by `static_dir` anywhere (podman, `libpod/sqlite_state.go`).
    pub(super) fn podman_databases(&self) -> [Vec<PathBuf>; 2] {
        let named = || self.databases.iter().chain(&self.runroots).map(|root| root.to_path_buf());
        let in_each = |own: PathBuf, name: &str| {
            std::iter::once(own).chain(named().map(|dir| dir.join(name))).collect()
        };
        [
            in_each(self.graphroot.join("libpod/bolt_state.db"), "bolt_state.db"),
            in_each(self.graphroot.join("db.sql"), "db.sql"),
        ]
    }

    /// Where the library notes which layers it has mounted, whether or not it does.
    pub(super) fn mountpoint_files(&self) -> Vec<PathBuf> {
        let directories = self.runroots.iter().map(|runroot| self.records_dir(runroot, RecordKind::Layers));
        directories.map(|directory| directory.join("mountpoints.json")).collect()
    }

    /// In the library's own order of locking.
    pub(super) fn lock_files(&self) -> Vec<PathBuf> {
        let lock = |area: &Path, kind: RecordKind| self.records_dir(area, kind).join(kind.lock_file());
        let mut files = Vec::new();
        for kind in [RecordKind::Layers, RecordKind::Images] {
            files.extend(self.areas().map(|area| lock(area, kind)));
        }
        let tops = std::iter::once(&self.graphroot).chain(&self.runroots);
        files.extend(tops.map(|top| lock(top, RecordKind::Containers)));
        files
    }
}

/// The kinds of records, in the library's order of locking.
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

    /// Of one record.
    pub(crate) fn singular(self) -> &'static str {
        self.as_str().trim_end_matches('s')
    }

    /// The names of the record files: the lasting one, then the volatile one.
    pub(crate) fn files(self) -> [(String, bool); 2] {
        [(format!("{}.json", self.as_str()), false), (format!("volatile-{}.json", self.as_str()), true)]
    }

    pub(crate) fn lock_file(self) -> String {
        format!("{}.lock", self.as_str())
    }
}

/// A record file of 100,000 layers takes about 60 MiB.
pub(crate) const MOST_RECORD_BYTES: u64 = 256 << 20;

/// Where a record file is: its kind, its path, and whether it is volatile.
pub(super) type RecordPath = (RecordKind, PathBuf, bool);

/// Drivers of containers/storage; the first two are measured layer by layer.
pub const DRIVERS: [&str; 6] = ["overlay", "vfs", "btrfs", "zfs", "aufs", "devmapper"];

/// The drivers that have records in an area, in the order of [`DRIVERS`].
///
/// # Errors
/// When the area cannot be listed.
pub fn drivers_in(area: &Root, allowance: &Allowance) -> io::Result<Vec<String>> {
    let entries = Within::new([area]).charging(allowance.clone()).list(area)?;
    let has = |name: &str| {
        entries.iter().any(|entry| entry.kind == FileKind::Directory && entry.name == OsStr::new(name))
    };
    let with = |test: &dyn Fn(&str) -> bool| {
        DRIVERS.iter().filter(|driver| test(driver)).map(|driver| (*driver).to_owned()).collect::<Vec<_>>()
    };
    let recorded = with(&|driver| has(&format!("{driver}-layers")) || has(&format!("{driver}-images")));
    // Somebody may have deleted the records and left the layers.
    Ok(if recorded.is_empty() { with(&|driver| has(driver)) } else { recorded })
}

#[cfg(test)]
impl StorePlaces {
    /// A store of overlay's with nothing but a graphroot.
    pub(super) fn for_tests(graphroot: Root) -> Self {
        Self { primary: true, ..Self::new(graphroot, "overlay") }
    }
}
