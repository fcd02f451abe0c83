//! The loop-mounted filesystems of the other tests.

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};

#[test]
fn loop_filesystem_counts_and_is_removed() {
    if !support::require_root() {
        return;
    }
    for fs in Fs::ALL {
        if !fs.require() {
            continue;
        }
        let loopfs = LoopFs::new(fs, 64 * MIB);
        let mount = loopfs.path().to_path_buf();
        let before = loopfs.used_bytes();
        std::fs::write(mount.join("file"), vec![7; 8 << 20]).unwrap();
        let grown = loopfs.used_bytes() - before;
        assert!((8 * MIB..10 * MIB).contains(&grown), "{fs:?} grew by {grown}");
        loopfs.remount();
        assert!(mount.join("file").exists());
        drop(loopfs);
        assert!(!mount.exists(), "{} is left", mount.display());
    }
}
