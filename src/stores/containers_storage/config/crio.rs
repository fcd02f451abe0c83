//! CRI-O's configuration: `/etc/crio/crio.conf` and everything below `/etc/crio/crio.conf.d`.
//!
//! No other paths are read (`CrioConfigPath`, `CrioConfigDropInPath` in `pkg/config/config_unix.go`
//! of 1.37): vendors too ship their files below `/etc`. What the unit file gives CRI-O as flags
//! or variables (`--root`, `CONTAINER_PINNED_IMAGES`) is not seen here.

use std::io;
use std::path::{Path, PathBuf};

use super::files::{Files, Table, with_file};
use super::paths::{absolute, driver, layer_stores, read_only};
use super::types::{Pin, Problems, Sourced, StoreConfig};
use crate::sys::quiet::FileKind;

const DIRECTORY: &str = "/etc/crio";
const MAIN_FILE: &str = "/etc/crio/crio.conf";
const DROP_INS: &str = "/etc/crio/crio.conf.d";

/// Directories below the drop-in directory are entered to this depth.
const MAX_DEPTH: usize = 64;

/// What CRI-O pins if no file names a `pause_image`: `DefaultPauseImage` in
/// `pkg/config/config_linux.go` of 1.34 to 1.37, then of 1.31 to 1.33, 1.27 to 1.30, 1.24 to
/// 1.26, 1.23. Which release a disk has the files do not say, so each of them is kept.
const DEFAULT_PAUSE_IMAGES: [&str; 5] = [
    "registry.k8s.io/pause:3.10.1",
    "registry.k8s.io/pause:3.10",
    "registry.k8s.io/pause:3.9",
    "registry.k8s.io/pause:3.6",
    "k8s.gcr.io/pause:3.6",
];

/// What CRI-O's files say.
#[derive(Clone, Debug, Default)]
pub(super) struct Crio {
    root: Option<Sourced>,
    runroot: Option<Sourced>,
    /// Empty means: none, whatever `storage.conf` says.
    imagestore: Option<Sourced>,
    driver: Option<String>,
    storage_options: Vec<String>,
    pinned_images: Vec<Pin>,
    pause_image: Option<Pin>,
    /// `big_files_temporary_dir`.
    pub(super) temporary: Option<PathBuf>,
    /// Read-only ones, from 1.36 on.
    pub(super) artifact_stores: Vec<Pin>,
    pub(super) start: CrioStart,
}

/// What CRI-O does to its store when it starts. `None`: not configured, CRI-O's default applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrioStart {
    /// `internal_wipe`: deletes containers after a reboot, and images too after an upgrade.
    pub wipe: Option<(bool, PathBuf)>,
    /// `internal_repair`: after an unclean shutdown the store is checked, and wiped if that fails.
    pub repair: Option<(bool, PathBuf)>,
    /// `clean_shutdown_file`: its absence at a start is what shows an unclean shutdown; empty
    /// switches that off.
    pub clean_shutdown_file: Option<(PathBuf, PathBuf)>,
}

impl Crio {
    /// Reads the files; `None` if CRI-O is not configured here.
    pub(super) fn read(all: &Files<'_>, problems: &mut Problems) -> Option<Self> {
        if !all.exists(Path::new(DIRECTORY)) {
            return None;
        }
        let mut files = Vec::new();
        if all.exists(Path::new(MAIN_FILE)) {
            files.push(PathBuf::from(MAIN_FILE));
        }
        collect(all, Path::new(DROP_INS), 0, &mut files, problems);
        let mut crio = Self::default();
        for file in files {
            with_file(all, &file, problems, |table, problems| crio.apply(table, problems));
        }
        Some(crio)
    }

    fn apply(&mut self, file: &Table<'_>, problems: &mut Problems) {
        let Some(crio) = file.table("crio", problems) else {
            return;
        };
        let path = file.path().to_path_buf();
        // An empty string leaves the earlier value of these three alone.
        for (name, to) in [("root", &mut self.root), ("runroot", &mut self.runroot)] {
            if let Some(value) = crio.string(name, problems).filter(|value| !value.is_empty()) {
                *to = Some((value, path.clone()));
            }
        }
        if let Some(name) = crio.string("storage_driver", problems).filter(|name| !name.is_empty()) {
            self.driver = Some(name);
        }
        if let Some(value) = crio.string("imagestore", problems) {
            self.imagestore = Some((value, path.clone()));
        }
        for (name, to) in
            [("internal_wipe", &mut self.start.wipe), ("internal_repair", &mut self.start.repair)]
        {
            if let Some(value) = crio.boolean(name, problems) {
                *to = Some((value, path.clone()));
            }
        }
        if let Some(file) = crio.string("clean_shutdown_file", problems) {
            self.start.clean_shutdown_file = Some((file.into(), path.clone()));
        }
        if let Some(options) = crio.strings("storage_option", problems) {
            self.storage_options.extend(options.values);
        }
        let origin = path.display().to_string();
        let pin = |pattern| Pin { pattern, origin: origin.clone() };
        let runtime = crio.table("runtime", problems);
        if let Some(named) = runtime.and_then(|table| table.strings("additional_artifact_stores", problems)) {
            self.artifact_stores = named.values.into_iter().map(pin).collect();
        }
        let Some(image) = crio.table("image", problems) else {
            return;
        };
        if let Some(pinned) = image.strings("pinned_images", problems) {
            self.pinned_images = pinned.values.into_iter().map(pin).collect();
        }
        if let Some(directory) = image.string("big_files_temporary_dir", problems) {
            self.temporary = Some(PathBuf::from(directory)).filter(|directory| directory.is_absolute());
        }
        if let Some(pattern) = image.string("pause_image", problems) {
            self.pause_image = Some(pin(pattern));
        }
    }

    /// What CRI-O keeps: `pinned_images` of the last file that has it, and the pause image.
    pub(super) fn pins(&self) -> Vec<Pin> {
        [self.pinned_images.clone(), self.sandboxes()].concat()
    }

    /// What CRI-O makes pod sandboxes from.
    pub(super) fn sandboxes(&self) -> Vec<Pin> {
        match &self.pause_image {
            Some(pause) if pause.pattern.is_empty() => Vec::new(),
            Some(pause) => vec![pause.clone()],
            None => {
                let pin = |image: &&str| Pin {
                    pattern: (*image).to_owned(),
                    origin: "CRI-O's built-in pause_image".to_owned(),
                };
                DEFAULT_PAUSE_IMAGES.iter().map(pin).collect()
            }
        }
    }

    /// CRI-O's store, where `base` is what `storage.conf` says, and `named` the additional image
    /// stores in it. CRI-O does not hand
    /// `transient_store` on to the library (`RootConfig.GetStore` in `pkg/config/config.go`).
    pub(super) fn store(&self, base: &StoreConfig, named: &[String], problems: &mut Problems) -> StoreConfig {
        let mut path = |key: &str, value: &Option<Sourced>| {
            let (value, file) = value.as_ref()?;
            if value.is_empty() {
                return None;
            }
            Some((absolute(key, value, file, problems)?, file.display().to_string()))
        };
        let (graphroot, origin) =
            path("root", &self.root).unwrap_or_else(|| (base.graphroot.clone(), base.origin.clone()));
        let runroot = path("runroot", &self.runroot).map(|(path, _)| path);
        let imagestore = match &self.imagestore {
            None => base.imagestore.clone(),
            some => path("imagestore", some).map(|(path, _)| path),
        };
        let imagestore = imagestore.filter(|imagestore| *imagestore != graphroot);
        let writable = [Some(&graphroot), imagestore.as_ref()];
        let base_images = named.iter().map(String::as_str);
        let base_layers = base.additional_layer_stores.iter().filter_map(|path| path.to_str());
        let images = self.option(&["imagestore", "additionalimagestore"]);
        let layers = self.option(&["additionallayerstore"]);
        StoreConfig {
            runroot: runroot.unwrap_or_else(|| base.runroot.clone()),
            driver: driver(self.driver.as_deref()).or_else(|| base.driver.clone()),
            additional_image_stores: read_only(base_images.chain(images), &writable),
            additional_layer_stores: layer_stores(base_layers.chain(layers)),
            podman_dirs: base.podman_dirs.clone(),
            graphroot,
            imagestore,
            origin,
            ..StoreConfig::default()
        }
    }

    /// The values of a driver option. It may carry the driver's name (`overlay.imagestore=/a`),
    /// or only the dot (`.imagestore=/a,/b`). In a driver option, `imagestore` means an
    /// *additional* image store (`parseOptions` in `drivers/overlay/overlay.go`).
    fn option<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let values = self.storage_options.iter().filter_map(|option| {
            let (key, value) = option.split_once('=')?;
            let key = key.trim().to_ascii_lowercase();
            let bare = key.rsplit_once('.').map_or(key.as_str(), |(_, bare)| bare);
            names.contains(&bare).then_some(value.trim())
        });
        values.flat_map(|value| value.split(',')).map(str::trim)
    }
}

/// Every file below a directory, whatever its name, in the order of Go's `filepath.Walk`:
/// by name as bytes, a directory's content in the directory's place.
fn collect(
    all: &Files<'_>,
    directory: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
    problems: &mut Problems,
) {
    if depth > MAX_DEPTH {
        return problems.note(directory, "nested too deeply; ignored");
    }
    let listing = all.list(directory);
    let entries = match &*listing {
        Ok(entries) => entries,
        Err(error) if depth == 0 && error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return problems.note(directory, format!("listing it: {error}")),
    };
    for entry in entries {
        let path = directory.join(&entry.name);
        if entry.kind == FileKind::Directory {
            collect(all, &path, depth + 1, files, problems);
        } else {
            // Symlinks are followed when they are read; Walk does not enter those to directories.
            files.push(path);
        }
    }
}
