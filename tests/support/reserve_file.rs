//! Fills a loop filesystem up.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::loopfs::{Fs, LoopFs, MIB};
use super::store::succeed;

/// Fills it until `used` percent of it are not available.
pub fn fill(loopfs: &LoopFs, used: f64) {
    // It takes the disk in large pieces, and of the last one something has to be left for its metadata.
    if loopfs.fs() == Fs::Btrfs {
        succeed(Command::new("mount").args(["-o", "remount,metadata_ratio=2"]).arg(loopfs.path()));
    }
    let file = File::create(loopfs.path().join("reserve")).expect("a file");
    let mut length = 0;
    while used_percent(loopfs) < used {
        let take = || rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, MIB);
        // btrfs gives some of what it has only after a commit.
        let taken = take().or_else(|_| {
            loopfs.sync();
            take()
        });
        taken.expect("room");
        length += MIB;
        if length % (16 * MIB) == 0 {
            loopfs.sync();
        }
    }
    // btrfs takes another piece of the disk for its metadata as soon as something is deleted
    // on a filesystem that is rather full, and calls all of it used at once.
    if loopfs.fs() == Fs::Btrfs {
        let junk = loopfs.path().join("junk");
        for round in 0..3 {
            std::fs::create_dir(&junk).expect("a directory");
            for at in 0..500 {
                std::fs::write(junk.join(format!("{round}-{at}")), [7; 1000]).expect("a file");
            }
            loopfs.sync();
            #[allow(clippy::disallowed_methods)] // our own files
            std::fs::remove_dir_all(&junk).expect("removing them");
            loopfs.sync();
        }
    }
    while used_percent(loopfs) > used + 0.5 && length > MIB {
        length -= MIB;
        file.set_len(length).expect("a smaller file");
        loopfs.sync();
    }
}

/// Fills it until not one more byte can be written.
pub fn fill_to_the_last_byte(loopfs: &LoopFs) {
    fill_filesystem_of(loopfs.path());
    loopfs.sync();
}

/// Fills the filesystem that this directory lies on, by files in it.
pub fn fill_filesystem_of(directory: &Path) {
    let file = File::create(directory.join("reserve")).expect("a file");
    let mut at = 0;
    for piece in [16 * MIB, MIB, 65536, 4096] {
        while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, piece).is_ok() {
            at += piece;
        }
    }
    let _ = std::fs::write(directory.join("rest"), vec![1; 1 << 20]);
}

/// Percent that is not available, as the kubelet counts.
pub fn used_percent(loopfs: &LoopFs) -> f64 {
    let sizes = rustix::fs::statvfs(loopfs.path()).expect("statvfs");
    #[allow(clippy::cast_precision_loss)] // percents
    let share = sizes.f_bavail as f64 / sizes.f_blocks as f64;
    100.0 - share * 100.0
}
