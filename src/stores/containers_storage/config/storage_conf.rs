//! `storage.conf`: the files, their order, and their settings.
//!
//! Two lookup rules are in use. Up to containers/storage 1.62, exactly one file counts. From 1.63 on (Podman 6), the
//! first main file found is followed by drop-in files. The configuration does not show which library version the
//! programs of a node contain, so both rules are applied. If they lead to different stores, both stores are candidates.
//! A candidate that does not exist on the disk was never used, so a wrong one does no harm.
//!
//! Sources: `types/options.go` of containers/storage 1.59.1; `storage/types/options.go` and
//! `storage/pkg/configfile/parse.go` of container-libs, 1.63-dev of April 2026.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{Files, TomlTable, with_file};
use super::types::{Problems, StorageSettings, Strings};
use crate::stores::environment::Environment;
use crate::sys::quiet::{DirectoryEntry, FileKind};

/// Directories of the vendor's and the administrator's files. The latter override the former.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/share/containers", "/etc/containers"];

/// Maximum number of drop-in files in a directory; the rest are not read.
const MOST_DROP_INS: usize = 100;

impl StorageSettings {
    /// Reads the files in order. Each key of a later file overrides that of an earlier one.
    pub(super) fn read(all: &Files<'_>, files: &[PathBuf], problems: &mut Problems) -> Self {
        all.settings(files, problems, |problems| {
            let mut settings = Self::default();
            for file in files {
                with_file(all, file, problems, |table, problems| settings.apply(table, problems));
            }
            settings
        })
    }

    fn apply(&mut self, file: &TomlTable<'_>, problems: &mut Problems) {
        let Some(storage) = file.table("storage", problems) else {
            return;
        };
        for (name, to) in [
            ("graphroot", &mut self.graphroot),
            ("runroot", &mut self.runroot),
            ("imagestore", &mut self.imagestore),
            ("rootless_storage_path", &mut self.rootless_storage_path),
        ] {
            if let Some(value) = storage.string(name, problems) {
                // An empty string counts as unset: the library compares with "".
                *to = Some((value, file.path().to_path_buf())).filter(|(value, _)| !value.is_empty());
            }
        }
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

/// Merges the array of a later file. It replaces the earlier value, unless it or an earlier array has `append = true`:
/// in the library, that attribute stays in effect for all later files.
fn merge(into: &mut Strings, later: Strings) {
    into.append = later.append.or(into.append);
    if into.append == Some(true) {
        into.values.extend(later.values);
    } else {
        into.values = later.values;
    }
}

/// Returns the file that root's programs with libraries up to 1.62 read: `$CONTAINERS_STORAGE_CONF`, or the first
/// existing file of `$XDG_CONFIG_HOME/containers/storage.conf`, the administrator's and the vendor's.
pub(super) fn legacy_file(all: &Files<'_>, environment: &Environment) -> Option<PathBuf> {
    if let Some(named) = &environment.containers_storage_conf {
        return Some(named.clone());
    }
    let home = environment.xdg_config_home.as_ref().map(|home| home.join("containers"));
    let system = SYSTEM_DIRECTORIES.iter().rev().map(PathBuf::from);
    first_existing(all, home.into_iter().chain(system))
}

/// Returns the user's file for libraries up to 1.62: `$CONTAINERS_STORAGE_CONF`, or the file in the configuration home.
/// It need not exist.
pub(super) fn legacy_file_of_user(environment: &Environment) -> Option<PathBuf> {
    let named = environment.containers_storage_conf.clone();
    named.or_else(|| Some(config_home(environment)?.join("storage.conf")))
}

/// Returns the files that libraries from 1.63 on read, in their order: the first existing main file (that of the user,
/// who may be root; the administrator's; the vendor's), then the drop-ins.
///
/// `$CONTAINERS_STORAGE_CONF` replaces all of these. `$CONTAINERS_STORAGE_CONF_OVERRIDE` is always the last file.
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

/// Returns the drop-in files, sorted by name. A file replaces one with the same name in an earlier directory.
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

/// Returns true for drop-in files. In the library, a symlink is never a drop-in.
fn is_drop_in(entry: &DirectoryEntry) -> bool {
    entry.kind == FileKind::File && is_conf(entry)
}

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

/// Returns the directory of the user's files: `containers` in `$XDG_CONFIG_HOME`, or in `~/.config`.
pub(super) fn config_home(environment: &Environment) -> Option<PathBuf> {
    match &environment.xdg_config_home {
        Some(config) => Some(config.join("containers")),
        None => Some(environment.home.as_ref()?.join(".config/containers")),
    }
}

/// Returns the first existing `storage.conf` in these directories. A file that cannot be examined counts as existing:
/// the library stops there, too, and reading the file reports the error.
fn first_existing(all: &Files<'_>, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.map(|directory| directory.join("storage.conf")).find(|file| all.exists(file))
}
