//! The number of files that the walker keeps open. In a separate process: the limit applies to the process.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::support;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::du::{self, measure_one, total};

/// Levels of directories, each with siblings that have children.
fn deep_and_wide(root: &Path, levels: usize) {
    let mode = Mode::from_raw_mode(0o700);
    let mut here: OwnedFd = File::open(root).unwrap().into();
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "middle", mode).unwrap();
        for sibling in ["a", "b", "y", "z"] {
            rustix::fs::mkdirat(&here, sibling, mode).unwrap();
            rustix::fs::mkdirat(&here, format!("{sibling}/x"), mode).unwrap();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, "middle", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn low_limit_of_open_files_suffices() {
    let dir = tempfile::tempdir().unwrap();
    for tree in 0..40 {
        fs::create_dir(dir.path().join(format!("{tree}"))).unwrap();
        deep_and_wide(&dir.path().join(format!("{tree}")), 60);
    }
    let expected = du::bytes(&[dir.path()]);
    let maximum = getrlimit(Resource::Nofile).maximum;
    for limit in [1024, 256, 64] {
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
        let measured = measure_one(dir.path());
        assert!(measured.errors.is_empty(), "limit {limit}: {:?}", measured.errors);
        assert_eq!(total(&measured).0, expected);
    }
}
