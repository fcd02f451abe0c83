//! What a scan says that took almost all sizes from an earlier one, against what the
//! filesystem gives back.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test talks to its reader

use crate::support;
use layersweep::model::ImageIx;
use layersweep::model::refs::Root;
use support::archive::Noise;
use support::chunks;
use support::loopfs::{Fs, LoopFs, MIB};
use support::rescan::{Scanner, assert_same, rest};
use support::store::{self, Store};

/// Used bytes once the filesystem has finished what it does in the background.
fn standing_still(loopfs: &LoopFs) -> u64 {
    let mut last = loopfs.used_bytes();
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = loopfs.used_bytes();
        if now == last {
            break;
        }
        last = now;
    }
    last
}

#[test]
fn images_of_the_forest_on_xfs() {
    if !store::require_tools() || !Fs::Xfs.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Xfs, 1024 * MIB);
    let store = Store::forest(&loopfs.path().join("root"), "overlay");
    loopfs.sync();
    rest();
    let mut scanner = Scanner::of(&store);
    scanner.again();
    let mut order: Vec<String> =
        scanner.alone().inventory.images.into_iter().map(|image| image.id.to_string()).collect();
    order.sort_by_key(|id| Noise::new(id).next());
    let mut wrong = Vec::new();
    for id in &order[..12] {
        let scan = scanner.again();
        let (cached, measured) = (scan.effort.cached_layers, scan.effort.measured_layers);
        assert!(cached > 10 * measured, "{cached} {measured}");
        assert_same(id, &scan, &scanner.alone());
        let images = &scan.inventory.images;
        let at: ImageIx = images.iter().position(|image| image.id == *id).unwrap().into();
        let said = scan.refs.sizes(&scan.inventory, Root::Image(at)).exclusive.frees_bytes;
        let inodes = chunks::inodes(loopfs.path());
        let before = standing_still(&loopfs);
        let names = images[at.get()].names.clone();
        store.podman(["rmi", "--no-prune"].into_iter().map(String::from).chain(names));
        let came = i64::try_from(before).unwrap() - i64::try_from(standing_still(&loopfs)).unwrap();
        let came = came - chunks::freed_by_records(&inodes, &chunks::inodes(loopfs.path()));
        let off = came.abs_diff(i64::try_from(said).unwrap());
        if off > (said / 100).max(64 << 10) {
            wrong.push(format!("{id}: said {said}, came {came}"));
        }
    }
    assert_eq!(wrong, [] as [String; 0]);
}
