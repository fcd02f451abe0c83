//! What a deletion gives back, measured on real filesystems that give it back late.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use layersweep::gc::measure::{Ended, Gauge, NOISE_BYTES, Patience};
use support::loopfs::{Fs, LoopFs, MIB};

fn write(path: &Path, bytes: u64) {
    let mut file = fs::File::create(path).unwrap();
    // Not zeroes, which a filesystem may treat as holes.
    let block = vec![0xa5_u8; 1 << 20];
    for _ in 0..bytes / MIB {
        file.write_all(&block).unwrap();
    }
    file.sync_all().unwrap();
}

fn each(test: impl Fn(&LoopFs)) {
    if !support::require_root() {
        return;
    }
    for fs in Fs::ALL {
        if fs.require() {
            test(&LoopFs::new(fs, 512 * MIB));
        }
    }
}

#[test]
fn late_frees_are_awaited() {
    each(|loopfs| {
        write(&loopfs.path().join("big"), 128 * MIB);
        let gauge = Gauge::open(loopfs.path()).unwrap();
        loopfs.sync();
        let before = gauge.room().unwrap();
        fs::remove_file(loopfs.path().join("big")).unwrap();
        let settled = gauge.settle(&before, 128 * MIB, Patience::default()).unwrap();
        let off = settled.measured_bytes - i64::try_from(128 * MIB).unwrap();
        let name = loopfs.fs().name();
        assert_eq!(settled.why, Ended::Came, "{name}: {settled:?}");
        // btrfs frees metadata too.
        assert!(off.unsigned_abs() <= 128 * MIB / 100, "{name}: off by {off}");
    });
}

#[test]
fn what_a_process_holds_open_does_not_come() {
    each(|loopfs| {
        let path = loopfs.path().join("held");
        write(&path, 32 * MIB);
        let held = fs::File::open(&path).unwrap();
        let gauge = Gauge::open(loopfs.path()).unwrap();
        loopfs.sync();
        let before = gauge.room().unwrap();
        fs::remove_file(&path).unwrap();
        let patience = Patience { still: Duration::from_millis(400), ..Patience::default() };
        let settled = gauge.settle(&before, 32 * MIB, patience).unwrap();
        let name = loopfs.fs().name();
        assert_eq!(settled.why, Ended::Still, "{name}: {settled:?}");
        assert!(settled.measured_bytes.unsigned_abs() < 16 * NOISE_BYTES, "{name}: {settled:?}");
        drop(held);
        let settled = gauge.settle(&before, 32 * MIB, Patience::default()).unwrap();
        assert_eq!(settled.why, Ended::Came, "{name}: {settled:?}");
    });
}

#[test]
fn somebody_who_deletes_later_is_waited_for() {
    each(|loopfs| {
        for at in 0..8 {
            write(&loopfs.path().join(format!("{at}")), 8 * MIB);
        }
        let gauge = Gauge::open(loopfs.path()).unwrap();
        loopfs.sync();
        let before = gauge.room().unwrap();
        let directory = loopfs.path().to_path_buf();
        let other = std::thread::spawn(move || {
            for at in 0..8 {
                std::thread::sleep(Duration::from_millis(150));
                fs::remove_file(directory.join(format!("{at}"))).unwrap();
            }
        });
        let settled = gauge.settle(&before, 64 * MIB, Patience::default()).unwrap();
        other.join().unwrap();
        assert_eq!(settled.why, Ended::Came, "{}: {settled:?}", loopfs.fs().name());
    });
}
