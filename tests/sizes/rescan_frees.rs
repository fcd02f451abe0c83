//! A scan that reused almost all sizes of an earlier one, compared with the bytes that the filesystem frees.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test talks to its reader

use crate::support;
use layersweep::model::ImageIx;
use layersweep::model::refs::Root;
use support::archive::Noise;
use support::chunks;
use support::loopfs::{Fs, LoopFs, MIB};
use support::rescan::{Scanner, assert_same, rest};
use support::store::{self, Store};

/// Returns the used bytes after the filesystem has finished its background work.
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
        let image_ix: ImageIx = images.iter().position(|image| image.id == *id).unwrap().into();
        let said = scan.refs.sizes(&scan.inventory, Root::Image(image_ix)).exclusive.frees_bytes;
        let inodes = chunks::inodes(loopfs.path());
        let before = standing_still(&loopfs);
        let names = images[image_ix.get()].names.clone();
        store.podman(["rmi", "--no-prune"].into_iter().map(String::from).chain(names));
        let freed = i64::try_from(before).unwrap() - i64::try_from(standing_still(&loopfs)).unwrap();
        let freed = freed - chunks::freed_by_records(&inodes, &chunks::inodes(loopfs.path()));
        let off = freed.abs_diff(i64::try_from(said).unwrap());
        if off > (said / 100).max(64 << 10) {
            wrong.push(format!("{id}: said {said}, came {freed}"));
        }
    }
    assert_eq!(wrong, [] as [String; 0]);
}
