//! What we say that an image's removal over CRI gives back, against what the filesystem
//! shows after it.

#![allow(clippy::unwrap_used)]

mod support;

use jiff::SignedDuration;
use layersweep::inventory::refs::Root;
use layersweep::inventory::{ImageIx, Inventory};
use support::containerd::{self, Reading, Rig, read};
use support::loopfs::{Fs, LoopFs, MIB};

fn position(inventory: &Inventory, name: &str) -> ImageIx {
    let at = inventory.images.iter().position(|image| image.names.iter().any(|one| one == name));
    ImageIx::from(at.unwrap_or_else(|| panic!("no image {name}")))
}

fn ids(reading: &Reading, names: &[&str]) -> (Vec<Root>, Vec<String>) {
    let images: Vec<_> = names.iter().map(|name| position(&reading.inventory, name)).collect();
    let ids = images.iter().map(|at| reading.inventory.images[at.get()].id.clone()).collect();
    (images.into_iter().map(Root::Image).collect(), ids)
}

/// Used bytes once the filesystem has finished what it does in the background.
fn settled(loopfs: &LoopFs) -> i64 {
    let mut last = loopfs.used_bytes();
    let mut still = 0;
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = loopfs.used_bytes();
        still = if now == last { still + 1 } else { 0 };
        last = now;
        if still == 4 {
            break;
        }
    }
    i64::try_from(last).unwrap()
}

fn predictions_hold(fs: Fs) {
    if !containerd::require_rig() || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 600 * MIB);
    let root = loopfs.path().join("containerd");
    let rig = Rig::with_images(&root);
    let rounds: [&[&str]; 7] = [
        &["reg.local/app-b:1"],
        &["reg.local/dup:gz1"],
        &["reg.local/zdup:1", "reg.local/multi:1"],
        &["reg.local/app-d:1"],
        &["reg.local/app-c:1"],
        &["reg.local/base:1"],
        &["reg.local/pause:1", "reg.local/app-a:1"],
    ];
    let mut wrong = Vec::new();
    for names in rounds {
        let reading = read(&rig.places(), SignedDuration::ZERO);
        let (roots, ids) = ids(&reading, names);
        let weight = reading.refs.weight_of_set(&reading.inventory, &roots);
        let before = settled(&loopfs);
        let du_before = support::du::bytes(&[&root]);
        ids.iter().for_each(|id| rig.remove(id));
        let measured = before - settled(&loopfs);
        let by_du = i64::try_from(du_before).unwrap() - i64::try_from(support::du::bytes(&[&root])).unwrap();
        let predicted = weight.exclusive.frees_bytes;
        let line = format!(
            "{fs:?} {names:?}: predicted {predicted}, statvfs {measured}; exclusive {}, du {by_du}",
            weight.exclusive.bytes
        );
        #[allow(clippy::print_stderr)] // the harness shows it with --nocapture
        {
            eprintln!("{line}");
        }
        let allowed = (predicted / 100).max(64 << 10);
        // The databases may take a page more or less.
        let du_error = by_du.abs_diff(i64::try_from(weight.exclusive.bytes).unwrap());
        if measured.abs_diff(i64::try_from(predicted).unwrap()) > allowed || du_error > 16 << 10 {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let left = read(&rig.places(), SignedDuration::ZERO);
    assert!(left.inventory.images.is_empty());
    assert!(left.inventory.leaks.is_empty(), "{:?}", left.inventory.leaks);
}

#[test]
fn on_ext4() {
    predictions_hold(Fs::Ext4);
}

#[test]
fn on_xfs() {
    predictions_hold(Fs::Xfs);
}
