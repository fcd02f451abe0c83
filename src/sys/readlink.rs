//! Reading of symlinks without a change of their access time.
//!
//! `readlink(2)` updates the access time of the symlink, whatever flags it was opened with, unless the mount has
//! `noatime`. The directory is therefore read through a private clone of its mount, which is not attached anywhere
//! and disappears when it is closed. This requires `CAP_SYS_ADMIN` and Linux 5.12.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use nix::libc;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::mount::OpenTreeFlags;

/// A directory whose symlinks can be read.
#[derive(Debug)]
pub struct Untraced {
    directory: OwnedFd,
}

impl Untraced {
    /// Opens a private clone of the mount of `directory`.
    ///
    /// # Errors
    /// `PERM` without the privilege, `NOSYS` on an old kernel, `INVAL` if the mount must not be cloned.
    pub fn of(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let clone = rustix::mount::open_tree(directory, c"", flags)?;
        without_times(clone.as_fd())?;
        Ok(Self { directory: clone })
    }

    pub fn target(&self, name: &OsStr) -> io::Result<OsString> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        let link = rustix::fs::openat2(&self.directory, name, flags, Mode::empty(), resolve)?;
        let target = rustix::fs::readlinkat(link, c"", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOATIME`, and `MOUNT_ATTR__ATIME`, of `linux/mount.h`.
const READ_ONLY_NO_ATIME: u64 = 0x1 | 0x10;
const ALL_ATIME: u64 = 0x70;

#[allow(unsafe_code)]
fn without_times(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes =
        MountAttributes { set: READ_ONLY_NO_ATIME, clear: ALL_ATIME, propagation: 0, user_namespace: 0 };
    let empty = AtFlags::EMPTY_PATH.bits();
    // SAFETY: mount_setattr takes a descriptor, a path that ends with NUL, flags, and a `struct mount_attr` of the
    // given size, which is four 64-bit integers without padding; it only reads them, and both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            empty,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    #[test]
    fn access_time_is_unchanged() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("../somewhere/diff", &link).unwrap();
        fn times(link: &Path) -> (i64, i64, i64, i64) {
            let facts = std::fs::symlink_metadata(link).unwrap();
            (facts.atime(), facts.atime_nsec(), facts.ctime(), facts.ctime_nsec())
        }
        let before = times(&link);
        let open = std::fs::File::open(dir.path()).unwrap();
        let untraced = Untraced::of(open.as_fd()).unwrap();
        assert_eq!(untraced.target(OsStr::new("link")).unwrap(), "../somewhere/diff");
        assert!(untraced.target(OsStr::new("none")).is_err());
        assert!(untraced.target(OsStr::new("../x")).is_err(), "not outside");
        assert_eq!(times(&link), before);
    }
}
