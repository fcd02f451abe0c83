//! Replaces a record file atomically.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::directory::{self, Directory};
use super::error::Fault;
use super::locks::noise64;

/// Extended attribute with the SELinux label.
const LABEL: &str = "security.selinux";

/// Maximum length of a label; usual ones have a few dozen bytes.
const MOST_LABEL_BYTES: usize = 4096;

/// Writes `content` to `name` in `directory`. First writes a temporary file, with a name that every tool recognizes as
/// such (`.tmp-layers.json123`), syncs it if `durable`, gives it the owner and the label of the old file, and renames
/// it over the old file.
///
/// # Errors
/// When any of it fails; then the old file is unchanged, and the temporary one is removed.
pub(super) fn replace(
    directory: &Directory,
    name: &str,
    content: &[u8],
    mode: Mode,
    durable: bool,
    step: &dyn Fn(&'static str),
) -> Result<(), Fault> {
    let temporary = OsString::from(format!(".tmp-{name}{}", noise64() % 1_000_000_000));
    let written = (|| {
        let mut file = directory.create(&temporary, Mode::RUSR | Mode::WUSR)?;
        let shown = directory.path().join(&temporary);
        let fault = |doing, error| Fault::new(doing, &shown, error);
        step("temporary file created");
        file.write_all(content)
            .map_err(|error| fault("writing", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let old = directory.open(name, OFlags::RDONLY)?;
        // The umask may have cleared bits.
        rustix::fs::fchmod(&file, mode).map_err(|error| fault("setting the mode of", error))?;
        match old {
            Some(old) => {
                directory::give_to_owner(file.as_fd(), old.as_fd());
                keep_label(&old, &file).map_err(|error| fault("labelling", error))?;
            }
            None => directory::give_to_owner(file.as_fd(), directory.fd()),
        }
        if durable {
            rustix::fs::fdatasync(&file).map_err(|error| fault("syncing", error))?;
        }
        step("temporary file written");
        directory.replace(&temporary, name.as_ref())
    })();
    if written.is_err() {
        // If this fails as well, the file is an orphan of a known class.
        let _ = directory.unlink(&temporary);
    }
    written
}

/// The library's mode of record files, with the old file's read permissions for group and others: an administrator
/// makes a store readable for other users, who take images from it.
pub(super) fn mode_of_records(directory: &Directory, name: &str) -> Result<Mode, Fault> {
    let readers = directory.stat(name)?.map_or(Mode::empty(), |stat| Mode::from_raw_mode(stat.st_mode));
    Ok(Mode::RUSR | Mode::WUSR | (readers & (Mode::RGRP | Mode::ROTH)))
}

/// Copies the label of `old` to `new` if the filesystem has labels and they differ.
fn keep_label(old: impl AsFd, new: impl AsFd) -> Result<(), Errno> {
    let Some(wanted) = label(old)? else { return Ok(()) };
    if label(&new)?.as_ref() == Some(&wanted) {
        return Ok(());
    }
    rustix::fs::fsetxattr(new, LABEL, &wanted, XattrFlags::empty())
}

fn label(file: impl AsFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut label = vec![0; MOST_LABEL_BYTES];
    match rustix::fs::fgetxattr(file, LABEL, &mut label) {
        Ok(length) => {
            label.truncate(length);
            Ok(Some(label))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::root::Root;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn replacement_keeps_owner_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layers.json");
        let directory = Directory::top(&Root::open(dir.path()).unwrap()).unwrap();
        let mode = mode_of_records(&directory, "layers.json").unwrap();
        replace(&directory, "layers.json", b"[]", mode, true, &|_| {}).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"[]");
        let root = nix::unistd::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
            let _ = rustix::fs::setxattr(&path, LABEL, b"system_u:object_r:x_t:s0", XattrFlags::empty());
        }
        let before = std::fs::metadata(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        let mode = mode_of_records(&directory, "layers.json").unwrap();
        replace(&directory, "layers.json", b"[1]", mode, false, &|_| {}).unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"[1]");
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_eq!(after.mode() & 0o7777, 0o644);
        assert_ne!(after.ino(), before.ino(), "never written in place");
        if root {
            let mut label = [0; 64];
            if let Ok(length) = rustix::fs::getxattr(&path, LABEL, &mut label) {
                assert_eq!(&label[..length], b"system_u:object_r:x_t:s0");
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn failed_replacement_leaves_only_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("layers.json")).unwrap();
        let directory = Directory::top(&Root::open(dir.path()).unwrap()).unwrap();
        replace(&directory, "layers.json", b"[]", Mode::RUSR, false, &|_| {}).unwrap_err();
        assert!(dir.path().join("layers.json").is_dir());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
