//! Stores of users other than root.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::paths::{Defaults, Owner};
use super::storage_conf;
use super::types::{Environment, Problems, Settings, StoreConfig};
use crate::sys::quiet::{FileKind, is_absent};

/// A longer `/etc/passwd` is none.
const MAX_PASSWD_BYTES: u64 = 16 << 20;

/// So many additional image stores of a user are looked at. Podman opens all of them each time.
const MOST_ADDITIONAL: usize = 100;

/// The drivers that libraries up to 1.62 take over from root's file into a user's store.
const ROOTLESS_DRIVERS: [&str; 4] = ["btrfs", "overlay", "overlay2", "vfs"];

/// Somebody who may have a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) name: String,
    pub(super) home: PathBuf,
}

/// Everybody in `/etc/passwd`, and whoever owns a further directory in `/home` (users from a
/// directory service are not in the file).
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
    // A user may not list it.
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

/// A line of passwd(5): name, password, uid, gid, comment, home, shell.
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

/// The candidates for a user's store: by the rule of libraries up to 1.62, then by that of later
/// ones.
///
/// By the earlier rule the user's own file stands alone, and root's file lends only its
/// `rootless_storage_path`, and where the user has no file its driver. A file that
/// `$CONTAINERS_STORAGE_CONF` names counts as the user's own for the library itself, but Podman
/// and Buildah have it taken for root's (containers/common passes it to
/// `SetDefaultConfigFilePath`), so that its graphroot and runroot mean nothing to them
/// (seen with Podman 4.3.1 and Buildah 1.28.2).
pub(super) fn stores(files: &Files<'_>, owner: &Owner<'_>, problems: &mut Problems) -> Vec<StoreConfig> {
    let environment = owner.environment;
    let Some(defaults) = Defaults::of_user(environment) else {
        return Vec::new();
    };

    let system_file = storage_conf::legacy_file(files, environment);
    let system = Settings::read(files, system_file.as_slice(), problems);
    let driver = system.driver.clone().filter(|driver| ROOTLESS_DRIVERS.contains(&driver.as_str()));
    let mut candidates = Vec::new();
    if environment.containers_storage_conf.is_some() {
        let as_podman = Settings { driver: driver.clone(), graphroot: None, runroot: None, ..system.clone() };
        candidates.push(owner.store(&as_podman, defaults.clone(), problems));
    }
    let rootless_storage_path = system.rootless_storage_path;
    let from_root = Settings { driver, rootless_storage_path, ..Settings::default() };
    let own_file = storage_conf::legacy_file_of_user(environment).filter(|file| files.exists(file));
    candidates.push(match own_file {
        None => owner.store(&from_root, defaults.clone(), problems),
        Some(file) => {
            let own = Settings::read(files, &[file], problems);
            let own = Settings {
                rootless_storage_path: own.rootless_storage_path.or(from_root.rootless_storage_path),
                ..own
            };
            owner.store(&own, defaults.clone(), problems)
        }
    });

    let later = storage_conf::drop_in_files(files, environment, problems);
    let later = Settings::read(files, &later, problems);
    candidates.push(owner.store(&later, defaults, problems));
    candidates
}

/// The stores of another user that are there: what root finds when it looks through the homes.
///
/// A user's own file is foreign data: a graphroot or imagestore that it names counts only if the
/// directory belongs to that user, so no user can point root's programs at another user's files.
pub(super) fn existing_stores(files: &Files<'_>, user: &User, problems: &mut Problems) -> Vec<StoreConfig> {
    let environment = Environment { uid: user.uid, home: Some(user.home.clone()), ..Environment::default() };
    let Some(defaults) = Defaults::of_user(&environment) else {
        return Vec::new();
    };
    let owner = Owner { environment: &environment, name: Some(&user.name) };
    let usual = defaults.graphroot.clone();
    let mut own_problems = Problems::default();
    // Root has no rootless store, but may have left one of a time in a user namespace.
    let mut found = match user.uid {
        0 => Vec::new(),
        _ => stores(files, &owner, &mut own_problems),
    };
    if !found.iter().any(|store| store.graphroot == usual) {
        found.push(owner.store(&Settings::default(), defaults, &mut own_problems));
    }
    found.retain(|store| is_directory(files, &store.graphroot));
    found.retain(|store| {
        let by_user = Path::new(&store.origin).starts_with(&user.home);
        !by_user || store.graphroot == usual || belongs(files, &store.graphroot, user.uid)
    });
    for store in &mut found {
        store.of_another_user = user.uid != 0;
        if store.additional_image_stores.len() > MOST_ADDITIONAL {
            let reason = format!("more than {MOST_ADDITIONAL} additional image stores; the rest are ignored");
            own_problems.note(&store.graphroot, reason);
            store.additional_image_stores.truncate(MOST_ADDITIONAL);
        }
        store.imagestore = store.imagestore.take().filter(|path| belongs(files, path, user.uid));
        if store.graphroot == usual {
            store.origin = format!("home of {}", user.name);
        }
    }
    problems.note_unread(user.uid, &own_problems);
    // A user without a store must not be able to make every scan end with warnings.
    if !found.is_empty() && !own_problems.found.is_empty() {
        let reason =
            format!("not known in full: nothing is deleted from any store that {} can read", user.name);
        own_problems.note(&user.home.join(".config/containers"), reason);
        problems.note_all(own_problems);
    }
    found
}

fn is_directory(files: &Files<'_>, path: &Path) -> bool {
    files.metadata(path).is_some_and(|metadata| metadata.is_dir())
}

fn belongs(files: &Files<'_>, path: &Path, uid: u32) -> bool {
    files.metadata(path).is_some_and(|metadata| metadata.is_dir() && metadata.uid() == uid)
}
