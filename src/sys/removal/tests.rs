use std::fs::{self, File};
use std::os::unix::fs::symlink;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::*;
use crate::sys::beneath;

/// Removes `path` below `root`, a trusted directory (that of a store).
///
/// # Errors
/// If `root` or the directory of `path` cannot be opened: a symlink or a mount on the path, or no such directory.
fn remove_beneath(root: &Path, path: &Path) -> Result<Removal, Errno> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, rustix::fs::Mode::empty())?;
    let opener = Opener::detect(top.as_fd());
    let (parent, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().ok_or(Errno::INVAL)?);
    let parent_fd = opener.beneath(top.as_fd(), parent, beneath::DIRECTORY, false)?;
    let name: OsString = OsString::from_vec(name.as_bytes().to_vec());
    Ok(remove(parent_fd.as_fd(), &root.join(parent), &name))
}

fn remove_in(dir: &Path, name: &str) -> Removal {
    remove_beneath(dir, Path::new(name)).unwrap()
}

#[test]
fn tree_is_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let to_delete = dir.path().join("to_delete");
    let outside = dir.path().join("outside");
    fs::create_dir_all(to_delete.join("a/b/c")).unwrap();
    fs::create_dir_all(outside.join("kept")).unwrap();
    fs::write(outside.join("kept/file"), b"x").unwrap();
    fs::write(to_delete.join("a/file"), b"x").unwrap();
    fs::hard_link(outside.join("kept/file"), to_delete.join("a/link")).unwrap();
    symlink(&outside, to_delete.join("a/b/to-directory")).unwrap();
    symlink("../outside/kept", to_delete.join("relative")).unwrap();
    symlink("/none", to_delete.join("dangling")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, to_delete.join("fifo"), FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"-rf", b"..."] {
        fs::write(to_delete.join(OsStr::from_bytes(name)), b"").unwrap();
        fs::create_dir(to_delete.join("a/b/c").join(OsStr::from_bytes(name))).unwrap();
    }
    let done = remove_in(dir.path(), "to_delete");
    assert_eq!(done.failures, []);
    assert_eq!(done.removed, 4 + 2 + 4 + 10);
    assert!(!to_delete.exists());
    assert_eq!(fs::read(outside.join("kept/file")).unwrap(), b"x");
}

#[test]
fn files_are_removed_and_missing_ones_ignored() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    symlink(".", dir.path().join("link")).unwrap();
    assert_eq!(remove_in(dir.path(), "file").removed, 1);
    assert_eq!(remove_in(dir.path(), "link").removed, 1);
    assert_eq!(remove_in(dir.path(), "file"), Removal::default());
    assert!(dir.path().exists());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    symlink("a", dir.path().join("link")).unwrap();
    let top = File::open(dir.path().join("a")).unwrap();
    for name in ["", ".", "..", "b/..", "/", "/etc", "a\0b"] {
        let done = remove(top.as_fd(), Path::new("a"), OsStr::new(name));
        assert_eq!(done.failures.len(), 1, "{name:?}");
        assert_eq!(done.removed, 0);
    }
    for path in ["link/b", "../x", "a/../a", "/etc/x", ".."] {
        assert!(remove_beneath(dir.path(), Path::new(path)).is_err(), "{path}");
    }
    assert!(dir.path().join("a/b").exists());
}

#[test]
fn tree_deeper_than_any_path_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("to_delete")).unwrap();
    let mut here = rustix::fs::open(
        dir.path().join("to_delete"),
        rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    // 3000 levels with names of 20 characters make a path of 60 kB; PATH_MAX is 4 kB.
    let name = "directory-of-a-chain";
    for level in 0..3000 {
        rustix::fs::mkdirat(&here, name, rustix::fs::Mode::RWXU).unwrap();
        if level % 100 == 0 {
            rustix::fs::symlinkat("nowhere", &here, "link").unwrap();
        }
        here = rustix::fs::openat(&here, name, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty())
            .unwrap();
    }
    let done = remove_in(dir.path(), "to_delete");
    assert_eq!(done.failures, []);
    assert_eq!(done.removed, 3001 + 30);
    assert!(!dir.path().join("to_delete").exists());
}

#[test]
fn failures_are_described() {
    fn failure(error: Errno) -> String {
        RemovalFailure { path: "/s/a".into(), error }.to_string()
    }
    assert_eq!(failure(Errno::BUSY), "/s/a: a filesystem is mounted there");
    assert!(failure(Errno::PERM).contains("lsattr"));
    assert!(failure(Errno::IO).starts_with("/s/a: "));
}

#[test]
fn many_failures_are_counted() {
    let mut removal = Removal::default();
    for _ in 0..50 {
        removal.fail("/x".into(), Errno::PERM);
    }
    assert_eq!((removal.failures.len(), removal.more_failures), (MAX_FAILURES, 30));
    assert!(!removal.is_complete());
}
