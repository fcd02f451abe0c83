//! CRI-O's configuration: `/etc/crio/crio.conf` and everything below `/etc/crio/crio.conf.d`.
//!
//! CRI-O reads no other paths (`CrioConfigPath`, `CrioConfigDropInPath` in `pkg/config/config_unix.go` of 1.37);
//! vendors also ship their files below `/etc`. Flags and variables in the unit file (`--root`,
//! `CONTAINER_PINNED_IMAGES`) are not read here.

use std::io;
use std::path::{Path, PathBuf};

use super::files::{Files, TomlTable, with_file};
use super::paths::{absolute, driver, layer_stores, read_only};
use super::types::{Pin, Problems, Sourced, StoreConfig};
use crate::sys::quiet::FileKind;

const DIRECTORY: &str = "/etc/crio";
const MAIN_FILE: &str = "/etc/crio/crio.conf";
const DROP_INS: &str = "/etc/crio/crio.conf.d";

/// Maximum depth of directories below the drop-in directory.
const MAX_DEPTH: usize = 64;

/// Images that CRI-O pins if no file sets `pause_image`: `DefaultPauseImage` in `pkg/config/config_linux.go` of 1.34 to
/// 1.37, then of 1.31 to 1.33, 1.27 to 1.30, 1.24 to 1.26, 1.23. The files do not show which release the node runs, so
/// all of them are pinned.
const DEFAULT_PAUSE_IMAGES: [&str; 5] = [
    "registry.k8s.io/pause:3.10.1",
    "registry.k8s.io/pause:3.10",
    "registry.k8s.io/pause:3.9",
    "registry.k8s.io/pause:3.6",
    "k8s.gcr.io/pause:3.6",
];

#[derive(Clone, Debug, Default)]
pub(super) struct Crio {
    root: Option<Sourced>,
    runroot: Option<Sourced>,
    /// An empty value means no imagestore, even if `storage.conf` sets one.
    imagestore: Option<Sourced>,
    driver: Option<String>,
    storage_options: Vec<String>,
    pinned_images: Vec<Pin>,
    pause_image: Option<Pin>,
    /// `big_files_temporary_dir`.
    pub(super) temporary: Option<PathBuf>,
    /// `additional_artifact_stores`: read-only, since CRI-O 1.36.
    pub(super) artifact_stores: Vec<Pin>,
    pub(super) start: CrioStart,
    /// `listen`: the socket, with the file that sets it.
    pub(super) socket: Option<(PathBuf, PathBuf)>,
    /// A file configures CRI-O; its directory alone may be that of another package.
    pub(super) has_file: bool,
}

/// Actions of CRI-O on its store at startup, each with the file that sets it. `None` means that CRI-O's default applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrioStart {
    /// `internal_wipe`: CRI-O deletes containers after a reboot, and images as well after an upgrade.
    pub wipe: Option<(bool, PathBuf)>,
    /// `internal_repair`: CRI-O checks the store after an unclean shutdown, and wipes it if the check fails.
    pub repair: Option<(bool, PathBuf)>,
    /// `clean_shutdown_file`: CRI-O detects an unclean shutdown by the absence of this file. An empty path disables the
    /// detection.
    pub clean_shutdown_file: Option<(PathBuf, PathBuf)>,
}

impl Crio {
    /// Reads the files. Returns `None` if CRI-O is not configured here.
    pub(super) fn read(all: &Files<'_>, problems: &mut Problems) -> Option<Self> {
        if !all.exists(Path::new(DIRECTORY)) {
            return None;
        }
        let mut files = Vec::new();
        if all.exists(Path::new(MAIN_FILE)) {
            files.push(PathBuf::from(MAIN_FILE));
        }
        collect(all, Path::new(DROP_INS), 0, &mut files, problems);
        let mut crio = Self { has_file: !files.is_empty(), ..Self::default() };
        for file in files {
            with_file(all, &file, problems, |table, problems| crio.apply(table, problems));
        }
        Some(crio)
    }

    fn apply(&mut self, file: &TomlTable<'_>, problems: &mut Problems) {
        let Some(crio) = file.table("crio", problems) else {
            return;
        };
        let path = file.path().to_path_buf();
        // For `root`, `runroot` and `storage_driver`, CRI-O ignores an empty string and keeps the earlier value.
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
        if let Some(socket) = crio
            .table("api", problems)
            .and_then(|table| table.string("listen", problems))
            .filter(|text| !text.is_empty())
        {
            self.socket = Some((socket.into(), path.clone()));
        }
        let origin = path.display().to_string();
        let runtime = crio.table("runtime", problems);
        if let Some(stores) = runtime.and_then(|table| table.strings("additional_artifact_stores", problems))
        {
            self.artifact_stores = pins(stores.values, &origin);
        }
        let Some(image) = crio.table("image", problems) else {
            return;
        };
        if let Some(pinned) = image.strings("pinned_images", problems) {
            self.pinned_images = pins(pinned.values, &origin);
        }
        if let Some(directory) = image.string("big_files_temporary_dir", problems) {
            self.temporary = Some(PathBuf::from(directory)).filter(|directory| directory.is_absolute());
        }
        if let Some(pattern) = image.string("pause_image", problems) {
            self.pause_image = Some(Pin { pattern, origin, is_of_sandboxes: true });
        }
    }

    /// Returns the images that CRI-O keeps: `pinned_images` of the last file that sets it, and the pause image.
    pub(super) fn pins(&self) -> Vec<Pin> {
        [self.pinned_images.clone(), self.sandboxes()].concat()
    }

    pub(super) fn sandboxes(&self) -> Vec<Pin> {
        match &self.pause_image {
            Some(pause) if pause.pattern.is_empty() => Vec::new(),
            Some(pause) => vec![pause.clone()],
            None => {
                let pause = pins(DEFAULT_PAUSE_IMAGES.map(str::to_owned), "CRI-O's built-in pause_image");
                pause.into_iter().map(|pin| Pin { is_of_sandboxes: true, ..pin }).collect()
            }
        }
    }

    /// Returns CRI-O's store. `base` contains the settings of `storage.conf`, and `base_image_stores` the additional
    /// image stores that it names.
    ///
    /// CRI-O does not pass `transient_store` to the library (`RootConfig.GetStore` in `pkg/config/config.go`).
    pub(super) fn store(
        &self,
        base: &StoreConfig,
        base_image_stores: &[String],
        problems: &mut Problems,
    ) -> StoreConfig {
        let (graphroot, origin) = path("root", self.root.as_ref(), problems)
            .unwrap_or_else(|| (base.graphroot.clone(), base.origin.clone()));
        let runroot = path("runroot", self.runroot.as_ref(), problems).map(|(path, _)| path);
        let imagestore = match &self.imagestore {
            None => base.imagestore.clone(),
            imagestore => path("imagestore", imagestore.as_ref(), problems).map(|(path, _)| path),
        };
        let imagestore = imagestore.filter(|imagestore| *imagestore != graphroot);
        let writable = [Some(&graphroot), imagestore.as_ref()];
        let base_images = base_image_stores.iter().map(String::as_str);
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

    /// Returns the values of a driver option. Its key may begin with the driver's name (`overlay.imagestore=/a`) or with
    /// only a dot (`.imagestore=/a,/b`). As a driver option, `imagestore` means an *additional* image store
    /// (`parseOptions` in `drivers/overlay/overlay.go`).
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

fn pins(patterns: impl IntoIterator<Item = String>, origin: &str) -> Vec<Pin> {
    let pins = patterns.into_iter();
    pins.map(|pattern| Pin { pattern, origin: origin.to_owned(), is_of_sandboxes: false }).collect()
}

/// Returns an absolute path and the file that sets it. An empty value counts as unset.
fn path(key: &str, value: Option<&Sourced>, problems: &mut Problems) -> Option<(PathBuf, String)> {
    let (value, file) = value.filter(|(value, _)| !value.is_empty())?;
    Some((absolute(key, value, file, problems)?, file.display().to_string()))
}

/// Collects every file below a directory, regardless of its name, in the order of Go's `filepath.Walk`: sorted by name
/// as bytes, with a directory's content in the place of the directory.
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
            // CRI-O follows symlinks when it reads a file; `Walk` does not enter a symlink to a directory.
            files.push(path);
        }
    }
}
