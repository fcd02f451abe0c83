//! Fills loop filesystems.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::loopfs::{Fs, LoopFs, MIB};
use super::store::succeed;

/// Fills a filesystem until `used` percent of it are not available.
pub fn fill(loopfs: &LoopFs, used: f64) {
    // btrfs allocates the disk in large chunks; some space must be left for metadata.
    if loopfs.fs() == Fs::Btrfs {
        succeed(Command::new("mount").args(["-o", "remount,metadata_ratio=2"]).arg(loopfs.path()));
    }
    let file = File::create(loopfs.path().join("reserve")).expect("a file");
    let mut length = 0;
    while used_percent(loopfs) < used {
        let (flags, end) = (rustix::fs::FallocateFlags::empty(), length);
        // btrfs releases some of its space only at a commit: try again after one.
        let taken = rustix::fs::fallocate(&file, flags, end, MIB).or_else(|_| {
            loopfs.sync();
            rustix::fs::fallocate(&file, flags, end, MIB)
        });
        taken.expect("room");
        length += MIB;
        if length % (16 * MIB) == 0 {
            loopfs.sync();
        }
    }
    // On a rather full filesystem btrfs allocates another chunk for its metadata at the next deletion, and reports all
    // of that chunk as used.
    if loopfs.fs() == Fs::Btrfs {
        let junk = loopfs.path().join("junk");
        for round in 0..3 {
            std::fs::create_dir(&junk).expect("a directory");
            for number in 0..500 {
                std::fs::write(junk.join(format!("{round}-{number}")), [7; 1000]).expect("a file");
            }
            loopfs.sync();
            #[allow(clippy::disallowed_methods)] // files of this test
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

/// Fills a filesystem until not one more byte can be written.
pub fn fill_to_the_last_byte(loopfs: &LoopFs) {
    fill_filesystem_of(loopfs.path());
    loopfs.sync();
}

/// Fills the filesystem of this directory with files in it.
pub fn fill_filesystem_of(directory: &Path) {
    let file = File::create(directory.join("reserve")).expect("a file");
    let mut end = 0;
    for piece in [16 * MIB, MIB, 65536, 4096] {
        while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, piece).is_ok() {
            end += piece;
        }
    }
    let _ = std::fs::write(directory.join("rest"), vec![1; 1 << 20]);
}

/// Returns the percentage that is not available, as the kubelet counts.
pub fn used_percent(loopfs: &LoopFs) -> f64 {
    let sizes = rustix::fs::statvfs(loopfs.path()).expect("statvfs");
    #[allow(clippy::cast_precision_loss)] // percents
    let share = sizes.f_bavail as f64 / sizes.f_blocks as f64;
    100.0 - share * 100.0
}
