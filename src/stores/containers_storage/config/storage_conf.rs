//! `storage.conf`: which files are read, in which order, and what they configure.
//!
//! Two rules are in use. Up to containers/storage 1.62 exactly one file counts. From 1.63 on
//! (Podman 6) the first main file found is followed by drop-in files. The configuration does
//! not show which library version a node's programs contain, so both rules are applied. Where they lead
//! to different stores, both are candidates: a store that does not exist on the disk was never used.
//! Sources: `types/options.go` of containers/storage 1.59.1; `storage/types/options.go` and
//! `storage/pkg/configfile/parse.go` of container-libs, 1.63-dev of April 2026.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{Files, Table, with_file};
use super::types::{Environment, Problems, Settings, Sourced, Strings};
use crate::sys::quiet::{DirectoryEntry, FileKind};

/// Where the vendor's and the administrator's files lie, the weaker first.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/share/containers", "/etc/containers"];

/// Files of one directory that are read.
const MOST_DROP_INS: usize = 100;

impl Settings {
    /// Reads the files one after the other, later ones over earlier ones, key by key.
    pub(super) fn read(all: &Files<'_>, files: &[PathBuf], problems: &mut Problems) -> Self {
        all.settings(files, problems, |problems| {
            let mut settings = Self::default();
            for file in files {
                with_file(all, file, problems, |table, problems| settings.apply(table, problems));
            }
            settings
        })
    }

    fn apply(&mut self, file: &Table<'_>, problems: &mut Problems) {
        let Some(storage) = file.table("storage", problems) else {
            return;
        };
        let mut sourced = |name: &str, to: &mut Option<Sourced>| {
            if let Some(value) = storage.string(name, problems) {
                // An empty string is as good as none: the library's own test is for "".
                *to = Some((value, file.path().to_path_buf())).filter(|(value, _)| !value.is_empty());
            }
        };
        sourced("graphroot", &mut self.graphroot);
        sourced("runroot", &mut self.runroot);
        sourced("imagestore", &mut self.imagestore);
        sourced("rootless_storage_path", &mut self.rootless_storage_path);
        if let Some(driver) = storage.string("driver", problems) {
            self.driver = Some(driver).filter(|driver| !driver.is_empty());
        }
        if let Some(transient) = storage.boolean("transient_store", problems) {
            self.transient = transient;
        }
        let Some(options) = storage.table("options", problems) else {
            return;
        };
        for (name, to) in [
            ("additionalimagestores", &mut self.image_stores),
            ("additionallayerstores", &mut self.layer_stores),
        ] {
            if let Some(strings) = options.strings(name, problems) {
                merge(to, strings);
            }
        }
    }
}

/// A later file's array replaces, unless it or an earlier one asked to append: the library keeps
/// that wish from file to file.
fn merge(into: &mut Strings, later: Strings) {
    into.append = later.append.or(into.append);
    if into.append == Some(true) {
        into.values.extend(later.values);
    } else {
        into.values = later.values;
    }
}

/// The one file of libraries up to 1.62, as root's programs find it: `$CONTAINERS_STORAGE_CONF`;
/// else `$XDG_CONFIG_HOME/containers/storage.conf` if it exists; else the administrator's; else
/// the vendor's. No file if there is none.
pub(super) fn legacy_file(all: &Files<'_>, environment: &Environment) -> Option<PathBuf> {
    if let Some(named) = &environment.containers_storage_conf {
        return Some(named.clone());
    }
    let home = environment.xdg_config_home.as_ref().map(|home| home.join("containers"));
    let system = SYSTEM_DIRECTORIES.iter().rev().map(PathBuf::from);
    first_existing(all, home.into_iter().chain(system))
}

/// The one file of libraries up to 1.62 that is the user's own, which exists or not:
/// `$CONTAINERS_STORAGE_CONF`, else the file in the configuration home.
pub(super) fn legacy_file_of_user(environment: &Environment) -> Option<PathBuf> {
    let named = environment.containers_storage_conf.clone();
    named.or_else(|| Some(config_home(environment)?.join("storage.conf")))
}

/// The files of libraries from 1.63 on, in the order in which they are applied: the first main
/// file found (the user's, also root's own; the administrator's; the vendor's), then the drop-ins.
/// `$CONTAINERS_STORAGE_CONF` stands for all of these; `$CONTAINERS_STORAGE_CONF_OVERRIDE`
/// comes last in any case.
pub(super) fn drop_in_files(
    all: &Files<'_>,
    environment: &Environment,
    problems: &mut Problems,
) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if let Some(named) = &environment.containers_storage_conf {
        files.push(named.clone());
    } else {
        let system = SYSTEM_DIRECTORIES.iter().rev().map(PathBuf::from);
        files.extend(first_existing(all, config_home(environment).into_iter().chain(system)));
        files.extend(drop_ins(all, environment, problems));
    }
    files.extend(environment.containers_storage_conf_override.clone());
    files
}

/// The drop-in files by name; of two with the same name the one in the later directory.
fn drop_ins(all: &Files<'_>, environment: &Environment, problems: &mut Problems) -> Vec<PathBuf> {
    let mut by_name: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for directory in drop_in_directories(environment) {
        let listing = all.list(&directory);
        let entries = match &*listing {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                problems.note(&directory, format!("listing it: {error}"));
                continue;
            }
        };
        let mut found = 0;
        for entry in entries {
            if is_drop_in(entry) {
                found += 1;
                if found > MOST_DROP_INS {
                    problems
                        .note(&directory, format!("more than {MOST_DROP_INS} files; the rest are not read"));
                    break;
                }
                by_name.insert(entry.name.clone(), directory.join(&entry.name));
            }
        }
    }
    by_name.into_values().collect()
}

/// As the library has it: a symlink is not a drop-in, whatever it leads to.
fn is_drop_in(entry: &DirectoryEntry) -> bool {
    entry.kind == FileKind::File && is_conf(entry)
}

/// Whether its name ends as those of configuration files do.
pub(super) fn is_conf(entry: &DirectoryEntry) -> bool {
    entry.name.as_encoded_bytes().ends_with(b".conf")
}

fn drop_in_directories(environment: &Environment) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for base in SYSTEM_DIRECTORIES.map(Path::new) {
        directories.push(base.join("storage.conf.d"));
        if environment.uid == 0 {
            directories.push(base.join("storage.rootful.conf.d"));
        } else {
            let rootless = base.join("storage.rootless.conf.d");
            directories.push(rootless.clone());
            directories.push(rootless.join(environment.uid.to_string()));
        }
    }
    directories.extend(config_home(environment).map(|home| home.join("storage.conf.d")));
    directories
}

/// The directory of the user's own files.
pub(super) fn config_home(environment: &Environment) -> Option<PathBuf> {
    let from_home = || environment.home.as_ref().map(|home| home.join(".config"));
    let base = environment.xdg_config_home.clone().or_else(from_home)?;
    Some(base.join("containers"))
}

/// The first `storage.conf` in these directories. One that cannot be examined counts as there:
/// the library stops at it too, and reading it will say why.
fn first_existing(all: &Files<'_>, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.map(|directory| directory.join("storage.conf")).find(|file| all.exists(file))
}
