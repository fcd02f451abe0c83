//! The predicted gain of deleting an image through CRI, compared with the filesystem's free space afterwards.

#![allow(clippy::unwrap_used)]

use std::os::linux::fs::MetadataExt as _;

use crate::support;
use jiff::SignedDuration;
use layersweep::model::refs::Root;
use layersweep::model::{ImageIx, Inventory, NodeKind};
use support::containerd::{self, Reading, Rig, read};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};

fn position(inventory: &Inventory, name: &str) -> ImageIx {
    let number = inventory.images.iter().position(|image| image.names.iter().any(|known| known == name));
    ImageIx::from(number.unwrap_or_else(|| panic!("no image {name}")))
}

fn ids(inventory: &Inventory, names: &[&str]) -> (Vec<Root>, Vec<String>) {
    let images: Vec<_> = names.iter().map(|name| position(inventory, name)).collect();
    let ids = images.iter().map(|image_ix| inventory.images[image_ix.get()].id.to_string()).collect();
    (images.into_iter().map(Root::Image).collect(), ids)
}

/// Returns the used bytes after the filesystem has finished its background work.
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

/// Predicts and removes round by round, and checks every prediction.
fn predictions_hold(rig: &Rig, loopfs: &LoopFs, rounds: &[&[&str]]) {
    let root = rig.places().root;
    let mut wrong = Vec::new();
    for names in rounds {
        let scan = containerd::scan(&root);
        let (roots, ids) = ids(&scan.inventory, names);
        let sizes = scan.refs.sizes_of_set(&scan.inventory, &roots);
        let before = settled(loopfs);
        let du_before = support::du::bytes(&[&root]);
        ids.iter().for_each(|id| rig.remove(id));
        let measured = before - settled(loopfs);
        let by_du = i64::try_from(du_before).unwrap() - i64::try_from(support::du::bytes(&[&root])).unwrap();
        let predicted = sizes.exclusive.frees_bytes;
        let line = format!(
            "{:?} {names:?}: predicted {predicted}, statvfs {measured}; exclusive {}, du {by_du}",
            loopfs.fs(),
            sizes.exclusive.bytes
        );
        #[allow(clippy::print_stderr)] // the harness shows it with --nocapture
        {
            eprintln!("{line}");
        }
        let allowed = (predicted / 100).max(64 << 10);
        // The databases may use a few more or fewer pages.
        let du_error = by_du.abs_diff(i64::try_from(sizes.exclusive.bytes).unwrap());
        if measured.abs_diff(i64::try_from(predicted).unwrap()) > allowed || du_error > 32 << 10 {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every image of the rig, alone and in sets, until none is left.
const ALL: [&[&str]; 7] = [
    &["reg.local/app-b:1"],
    &["reg.local/dup:gz1"],
    &["reg.local/zdup:1", "reg.local/multi:1"],
    &["reg.local/app-d:1"],
    &["reg.local/app-c:1"],
    &["reg.local/base:1"],
    &["reg.local/pause:1", "reg.local/app-a:1"],
];

fn every_image(fs: Fs) {
    if !containerd::require_rig() || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 600 * MIB);
    let rig = Rig::with_images(&loopfs.path().join("containerd"));
    predictions_hold(&rig, &loopfs, &ALL);
    let left = read(&rig.places(), SignedDuration::ZERO);
    assert!(left.inventory.images.is_empty());
    assert!(left.inventory.leaks.is_empty(), "{:?}", left.inventory.leaks);
}

/// Checks that the copies of another snapshotter have a row, bytes, and a line in `explain` of an image.
fn second_snapshotter_is_told(rig: &Rig) {
    let root = rig.places().root;
    fn run(root: &std::path::Path, arguments: &[&str]) -> program::Run {
        let flags = ["--no-record", "--format", "json", "--containerd-root", root.to_str().unwrap()];
        let flags = if arguments[0] == "scan" { &flags[..] } else { &flags[1..] };
        program::layersweep(arguments.iter().chain(flags)).expect_code(0)
    }
    let snapshots = root.join("io.containerd.snapshotter.v1.native/snapshots");
    let copies = std::fs::read_dir(&snapshots).unwrap().count() as u64;
    let own_entry = std::fs::metadata(&snapshots).unwrap().st_blocks() * 512;
    let on_disk = support::du::bytes(&[&snapshots]) - own_entry;
    assert!(copies >= 5 && on_disk > 50_000_000, "{copies} {on_disk}");

    let scan = run(&root, &["scan"]).json();
    fn by_name<'a>(scan: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
        let mut all = list(scan, "/stores/0/snapshotters").iter();
        all.find(|row| row["name"] == name).unwrap_or_else(|| panic!("no snapshotter {name}"))
    }
    let native = by_name(&scan, "native");
    assert_eq!((number(native, "/snapshots"), number(native, "/bytes")), (copies, on_disk));
    assert_eq!((&native["second"], &by_name(&scan, "overlayfs")["second"]), (&true.into(), &false.into()));

    let usage = run(&root, &["usage"]).json();
    let rows = list(&usage, "/stores/0/rows");
    let row = rows.iter().find(|row| row["kind"] == "snapshotter").unwrap();
    assert_eq!(
        (text(row, "/name"), number(row, "/count"), number(row, "/bytes")),
        ("native", copies, on_disk)
    );
    let images = rows.iter().filter(|row| text(row, "/kind").starts_with("images_"));
    let images: u64 = images.map(|row| number(row, "/bytes")).sum();
    let total = number(&usage, "/stores/0/bytes/images");
    assert!(images + on_disk >= total, "the images' rows share layers among them");
    assert!(images < total, "{images} of {total}: the copies are not hidden in the images' rows");
    let printed = program::layersweep(["usage", "--containerd-root", root.to_str().unwrap()]).expect_code(0);
    assert!(printed.stdout.contains("Snapshotter native"), "{printed:?}");

    // Its container holds the chain in overlayfs; the copies are deleted with the image.
    let explained = run(&root, &["explain", "reg.local/app-b:1"]).json();
    let held = &explained["copies"][0];
    assert_eq!((text(held, "/snapshotter"), number(held, "/snapshots")), ("native", 3));
    let (all, exclusive) = (number(held, "/bytes"), number(held, "/exclusive_bytes"));
    assert!(0 < exclusive && exclusive < all && exclusive <= number(&explained, "/bytes"), "{held}");
    let more: i64 =
        list(&explained, "/frees_differs").iter().map(|part| part["bytes"].as_i64().unwrap()).sum();
    let (frees, bytes) = (number(&explained, "/frees_bytes"), number(&explained, "/bytes"));
    assert_eq!(i128::from(frees) - i128::from(bytes), i128::from(more), "{explained:#}");
}

#[test]
fn shared_content_is_kept() {
    if !containerd::require_rig() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 900 * MIB);
    let rig = Rig::with_images(&loopfs.path().join("containerd"));
    rig.script("30-pods.sh", &[]);
    // The same blobs and copies of the snapshots in another namespace, and full copies by another snapshotter; a lease
    // on a manifest, which holds everything that the manifest refers to.
    rig.shell("CN default images import $RC/images.tar >/dev/null");
    rig.shell(
        "for i in $(CN default images ls -q | grep -v app-c:1); do CN default images rm --sync $i; done",
    );
    rig.shell("C images import --snapshotter native $RC/images.tar >/dev/null");
    rig.shell(
        "m=$(C images ls | awk '$1==\"reg.local/multi:1\"{print $3}'); \
         grpc containerd.services.leases.v1.Leases/Create $(pb_str 1 held) k8s.io >/dev/null; \
         grpc containerd.services.leases.v1.Leases/AddResource \
           $(pb_str 1 held)$(pb_msg 2 $(pb_str 1 $m)$(pb_str 2 content)) k8s.io >/dev/null",
    );
    let reading = read(&rig.places(), SignedDuration::ZERO);
    fn sizes(reading: &Reading, name: &str) -> u64 {
        let root = Root::Image(position(&reading.inventory, name));
        reading.refs.sizes(&reading.inventory, root).exclusive.bytes
    }
    assert_eq!(sizes(&reading, "reg.local/multi:1"), 0, "the lease holds all of it");
    // In use: its blobs are deleted, its snapshots are kept for the container.
    assert!(sizes(&reading, "reg.local/app-b:1") > 5_000_000);
    second_snapshotter_is_told(&rig);
    let elsewhere = reading.inventory.images.iter().filter(|image| image.id.starts_with("default/"));
    assert_eq!(elsewhere.count(), 1);
    predictions_hold(&rig, &loopfs, &[&["reg.local/multi:1"], &["reg.local/app-d:1", "reg.local/app-b:1"]]);
    let c: Vec<_> =
        rig.images().into_iter().filter(|image| image.tags.contains(&"reg.local/app-c:1".into())).collect();
    rig.remove(&c[0].id.replace("sha256:", ""));
    let left = read(&rig.places(), SignedDuration::ZERO);
    assert!(left.image("reg.local/app-c:1").id.starts_with("default/"), "another namespace's stays");
}

#[test]
fn discarded_layers_are_not_damage() {
    if !containerd::require_rig() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 600 * MIB);
    let rig = Rig::with_images(&loopfs.path().join("containerd"));
    let before = read(&rig.places(), SignedDuration::ZERO);
    rig.shell("C content prune references >/dev/null");
    let after = read(&rig.places(), SignedDuration::ZERO);
    assert!(after.inventory.leaks.is_empty(), "{:?}", after.inventory.leaks);
    assert_eq!(after.image("reg.local/app-a:1").layers, before.image("reg.local/app-a:1").layers);
    fn blobs(reading: &Reading) -> u64 {
        let nodes = reading.inventory.nodes.iter().filter(|node| node.kind == NodeKind::Blob);
        nodes.map(|node| node.size.bytes).sum()
    }
    assert!(blobs(&before) > 30_000_000 && blobs(&after) < 3_000_000, "{} {}", blobs(&before), blobs(&after));
    predictions_hold(&rig, &loopfs, &[&["reg.local/app-d:1"], &["reg.local/app-b:1", "reg.local/app-a:1"]]);
}

#[test]
fn on_ext4() {
    every_image(Fs::Ext4);
}

#[test]
fn on_xfs() {
    every_image(Fs::Xfs);
}
