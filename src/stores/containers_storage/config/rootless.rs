//! Stores of users other than root.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::paths::{Defaults, StoreOwner};
use super::storage_conf;
use super::types::{Problems, StorageSettings, StoreConfig};
use crate::stores::environment::Environment;
use crate::sys::quiet::{FileKind, is_absent};

/// Maximum size of `/etc/passwd`; a larger file is not read.
const MAX_PASSWD_BYTES: u64 = 16 << 20;

/// Maximum number of a user's additional image stores; the rest are ignored. Podman opens all of them at every start.
const MOST_ADDITIONAL: usize = 100;

/// Drivers that libraries up to 1.62 copy from root's file into the configuration of a user's store.
const ROOTLESS_DRIVERS: [&str; 4] = ["btrfs", "overlay", "overlay2", "vfs"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) name: String,
    pub(super) home: PathBuf,
}

/// Returns the users in `/etc/passwd` and the owners of other directories in `/home`: users of a directory service are
/// not in the file.
pub(super) fn users(files: &Files<'_>, problems: &mut Problems) -> Vec<User> {
    let path = Path::new("/etc/passwd");
    let mut users = match files.sysroot.read_bytes(path, MAX_PASSWD_BYTES) {
        Ok(bytes) => bytes.split(|byte| *byte == b'\n').filter_map(user).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            problems.note(path, format!("reading it: {error}"));
            Vec::new()
        }
    };
    let homes = Path::new("/home");
    let listing = files.list(homes);
    // A user who is not root may lack the permission to list `/home`.
    if let Err(error) = &*listing
        && !is_absent(error)
        && error.kind() != ErrorKind::PermissionDenied
    {
        problems.note(homes, format!("listing it: {error}"));
    }
    for entry in listing.iter().flatten() {
        let home = homes.join(&entry.name);
        if entry.kind == FileKind::Special || users.iter().any(|user: &User| user.home == home) {
            continue;
        }
        if let Some(metadata) = files.metadata(&home).filter(std::fs::Metadata::is_dir) {
            let name = entry.name.to_string_lossy().into_owned();
            users.push(User { uid: metadata.uid(), name, home });
        }
    }
    users
}

/// Parses a line of passwd(5): name, password, uid, gid, comment, home, shell.
fn user(line: &[u8]) -> Option<User> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
    let [name, _, uid, _, _, home, ..] = fields[..] else {
        return None;
    };
    let home = Path::new(std::ffi::OsStr::from_bytes(home));
    let uid = std::str::from_utf8(uid).ok()?.parse().ok()?;
    let name = String::from_utf8_lossy(name).into_owned();
    home.is_absolute().then(|| User { uid, name, home: super::paths::tidy(home) })
}

/// Returns the candidates for a user's store: by the rule of libraries up to 1.62, then by the rule of later ones.
///
/// By the earlier rule, a user's file replaces root's file. Of root's file only `rootless_storage_path` is used, and
/// its driver if the user has no file.
///
/// For the library, the file in `$CONTAINERS_STORAGE_CONF` is the user's file. For Podman and Buildah it is root's file
/// (containers/common passes it to `SetDefaultConfigFilePath`), so they ignore its graphroot and runroot (seen with
/// Podman 4.3.1 and Buildah 1.28.2). There is a candidate for each of the two.
pub(super) fn stores(files: &Files<'_>, owner: &StoreOwner<'_>, problems: &mut Problems) -> Vec<StoreConfig> {
    let environment = owner.environment;
    let Some(defaults) = Defaults::of_user(environment) else {
        return Vec::new();
    };

    let system_file = storage_conf::legacy_file(files, environment);
    let system = StorageSettings::read(files, system_file.as_slice(), problems);
    let driver = system.driver.clone().filter(|driver| ROOTLESS_DRIVERS.contains(&driver.as_str()));
    let mut candidates = Vec::new();
    if environment.containers_storage_conf.is_some() {
        let as_podman =
            StorageSettings { driver: driver.clone(), graphroot: None, runroot: None, ..system.clone() };
        candidates.push(owner.store(&as_podman, defaults.clone(), problems));
    }
    let rootless_storage_path = system.rootless_storage_path;
    let from_root = StorageSettings { driver, rootless_storage_path, ..StorageSettings::default() };
    let user_file = storage_conf::legacy_file_of_user(environment).filter(|file| files.exists(file));
    candidates.push(match user_file {
        None => owner.store(&from_root, defaults.clone(), problems),
        Some(file) => {
            let settings = StorageSettings::read(files, &[file], problems);
            let settings = StorageSettings {
                rootless_storage_path: settings.rootless_storage_path.or(from_root.rootless_storage_path),
                ..settings
            };
            owner.store(&settings, defaults.clone(), problems)
        }
    });

    let later = storage_conf::drop_in_files(files, environment, problems);
    let later = StorageSettings::read(files, &later, problems);
    candidates.push(owner.store(&later, defaults, problems));
    candidates
}

/// Returns the existing stores of another user. Root uses it to search the homes.
///
/// A user's file is untrusted: a graphroot or imagestore in it counts only if the directory belongs to that user.
/// Otherwise a user could make a program of root work on another user's files.
pub(super) fn existing_stores(files: &Files<'_>, user: &User, problems: &mut Problems) -> Vec<StoreConfig> {
    let environment = Environment { uid: user.uid, home: Some(user.home.clone()), ..Environment::default() };
    let Some(defaults) = Defaults::of_user(&environment) else {
        return Vec::new();
    };
    let owner = StoreOwner { environment: &environment, name: Some(&user.name) };
    let default_graphroot = defaults.graphroot.clone();
    let mut user_problems = Problems::default();
    // Root's files do not configure a rootless store. But a process of root in a user namespace may have created one in
    // the default place.
    let mut found = match user.uid {
        0 => Vec::new(),
        _ => stores(files, &owner, &mut user_problems),
    };
    if !found.iter().any(|store| store.graphroot == default_graphroot) {
        found.push(owner.store(&StorageSettings::default(), defaults, &mut user_problems));
    }
    found.retain(|store| is_directory(files, &store.graphroot));
    found.retain(|store| {
        let is_set_by_user = Path::new(&store.origin).starts_with(&user.home);
        !is_set_by_user
            || store.graphroot == default_graphroot
            || belongs_to(files, &store.graphroot, user.uid)
    });
    for store in &mut found {
        store.of_another_user = user.uid != 0;
        if store.additional_image_stores.len() > MOST_ADDITIONAL {
            let reason = format!("more than {MOST_ADDITIONAL} additional image stores; the rest are ignored");
            user_problems.note(&store.graphroot, reason);
            store.additional_image_stores.truncate(MOST_ADDITIONAL);
        }
        store.imagestore = store.imagestore.take().filter(|path| belongs_to(files, path, user.uid));
        if store.graphroot == default_graphroot {
            store.origin = format!("home of {}", user.name);
        }
    }
    problems.note_unread(user.uid, &user_problems);
    // A user without a store must not be able to make every scan end with warnings.
    if !found.is_empty() && !user_problems.found.is_empty() {
        let reason =
            format!("not known in full: nothing is deleted from any store that {} can read", user.name);
        user_problems.note(&user.home.join(".config/containers"), reason);
        problems.note_all(user_problems);
    }
    found
}

fn is_directory(files: &Files<'_>, path: &Path) -> bool {
    files.metadata(path).is_some_and(|metadata| metadata.is_dir())
}

fn belongs_to(files: &Files<'_>, path: &Path, uid: u32) -> bool {
    files.metadata(path).is_some_and(|metadata| metadata.is_dir() && metadata.uid() == uid)
}
