//! A scan that reuses sizes of an earlier one returns exactly the result of a scan that measures everything, whatever
//! happened in between; an invisible change is found by samples.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test talks to its reader

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use layersweep::disk::Fingerprint;
use layersweep::model::refs::Root;
use layersweep::stores::Scan;
use support::archive::{ImageSpec, LayerSpec, Noise};
use support::containerd::{self, Rig};
use support::loopfs::{Fs, LoopFs, MIB};
use support::rescan::{Scanner, assert_same, rest};
use support::store::{self, Store};

/// Images `base`, `a`, `b` and `c`: nine layers of 30 to 60 files and one of 1.5 MB.
fn images() -> Vec<ImageSpec> {
    [
        ("base", vec!["base"]),
        ("a", vec!["base", "a1", "a2", "a3"]),
        ("b", vec!["base", "b1", "b2"]),
        ("c", vec!["c1", "c2", "c3"]),
    ]
    .map(|(image, layers)| {
        image_of(
            image,
            layers
                .into_iter()
                .map(|name| LayerSpec {
                    small_files: 60,
                    files: vec![1_500_000],
                    hard_links: 2,
                    symlinks: 4,
                    ..LayerSpec::new(name)
                })
                .collect(),
        )
    })
    .into()
}

fn image_of(name: &str, layers: Vec<LayerSpec>) -> ImageSpec {
    ImageSpec { names: vec![reference(name)], layers, label: name.into() }
}

fn reference(name: &str) -> String {
    format!("localhost/rescan/{name}:1")
}

/// A store with those images on a filesystem of its own.
fn store_on(fs: Fs, driver: &str) -> Option<(LoopFs, Store)> {
    if !store::require_tools() || !fs.require() {
        return None;
    }
    let loopfs = LoopFs::new(fs, 600 * MIB);
    let store = Store::of(&loopfs.path().join("root"), driver, &images());
    loopfs.sync();
    Some((loopfs, store))
}

/// The directory of a layer that holds the directory `name`.
fn layer(store: &Store, name: &str) -> PathBuf {
    let entries = fs::read_dir(store.root().join("overlay")).unwrap();
    let mut layers = entries.map(|entry| entry.unwrap().path());
    layers.find(|path| path.join("diff").join(name).is_dir()).expect(name)
}

fn shell(script: &str, dir: &Path) {
    store::succeed(Command::new("sh").args(["-euc", script]).current_dir(dir));
}

/// Returns the number of layers whose size was reused, and the number of measured ones.
fn layers(scan: &Scan) -> (usize, usize) {
    (scan.effort.cached_layers, scan.effort.measured_layers)
}

/// Returns the fingerprints that show that the layers are unchanged.
fn stamps(scanner: &Scanner) -> Vec<(Fingerprint, Fingerprint)> {
    let cache = scanner.cache(0);
    let layers = cache.stores.values().flat_map(|sizes| &sizes.layers);
    let mut stamps: Vec<_> = layers.map(|(layer, size)| (*layer, size.stamp)).collect();
    stamps.sort_unstable();
    stamps
}

/// Checks that a scan with all known sizes returns the result of a scan without any.
#[track_caller]
fn same(what: &str, scanner: &mut Scanner) -> Scan {
    let again = scanner.again();
    assert_same(what, &again, &scanner.alone());
    assert!(again.is_complete(), "{what}: {:?}", again.inventory.findings);
    again
}

/// Returns a scanner that knows all sizes that can be reused, after a first scan and a rest.
fn learned(store: &Store) -> Scanner {
    rest();
    let mut scanner = Scanner::of(store);
    assert_eq!(layers(&scanner.again()).0, 0, "nothing is known at first");
    scanner
}

fn whatever_podman_does(fs: Fs) {
    let Some((loopfs, store)) = store_on(fs, "overlay") else { return };
    let mut scanner = learned(&store);
    let still = same("untouched", &mut scanner);
    let (cached, measured) = layers(&still);
    assert_eq!(cached + measured, 9);
    assert!(cached >= 7, "one layer is a sample, at most two: {cached} of 9");
    let podman = |what: &str, arguments: &[&str], scanner: &mut Scanner| {
        store.podman(arguments);
        loopfs.sync();
        let scan = same(what, scanner);
        assert!(layers(&scan).0 >= 3, "{what}: {:?}", layers(&scan));
        assert_eq!(scan.inventory.findings, [], "{what}");
    };
    let [a, b, c] = ["a", "b", "c"].map(reference);
    podman("tag", &["tag", &a, "localhost/other:1"], &mut scanner);
    podman("create", &["create", "--name", "one", "--network", "none", &a, "/x"], &mut scanner);
    let mounted = store.podman(["mount", "one"]);
    shell("echo changed >a1/d0/f1; rm a1/d0/f2; echo new >new", Path::new(mounted.trim()));
    podman("write and unmount", &["umount", "one"], &mut scanner);
    podman("commit", &["commit", "-q", "one", &reference("d")], &mut scanner);
    podman("image mount", &["image", "mount", &b], &mut scanner);
    podman("image unmount", &["image", "unmount", &b], &mut scanner);
    podman("remove an image", &["rmi", &b], &mut scanner);
    podman("remove the container", &["rm", "one"], &mut scanner);
    store.load(&images());
    loopfs.sync();
    same("load what was removed", &mut scanner);
    podman("remove another", &["rmi", &c], &mut scanner);
    rest();
    same("learn what came", &mut scanner);
    let last = same("and take it", &mut scanner);
    assert!(layers(&last).1 <= 2, "{:?}", layers(&last));
}

#[test]
fn rescans_after_podman_are_exact_on_ext4() {
    whatever_podman_does(Fs::Ext4);
}

#[test]
fn rescans_after_podman_are_exact_on_xfs() {
    whatever_podman_does(Fs::Xfs);
}

#[test]
fn rescan_of_rig_is_exact() {
    if !store::require_tools() || !Fs::Xfs.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Xfs, 1024 * MIB);
    let store = Store::rig(&loopfs.path().join("root"), "overlay");
    loopfs.sync();
    let mut scanner = learned(&store);
    let again = same("untouched", &mut scanner);
    assert!(layers(&again).0 > 10, "{:?}", layers(&again));
    assert!(
        again.inventory.nodes.iter().any(|node| node.layer.as_ref().is_some_and(|layer| layer.read_write))
    );
}

fn links_that_were_always_there(fs: Fs) {
    let Some((loopfs, store)) = store_on(fs, "overlay") else { return };
    let (a1, b1, c1) = (layer(&store, "a1"), layer(&store, "b1"), layer(&store, "c1"));
    // Two layers share a file, and one shares a file with a path outside the store.
    fs::hard_link(a1.join("diff/a1/d0/f5"), b1.join("diff/b1/d0/linked")).unwrap();
    fs::hard_link(c1.join("diff/c1/big0"), loopfs.path().join("mine")).unwrap();
    loopfs.sync();
    let mut scanner = learned(&store);
    for _ in 0..3 {
        let again = same("the same links", &mut scanner);
        assert_eq!(layers(&again).0, 0, "the link outside may be that of a cached layer");
    }
    fs::remove_file(loopfs.path().join("mine")).unwrap();
    store.podman(["rmi", &reference("b")]);
    loopfs.sync();
    same("no link any more", &mut scanner);
    rest();
    scanner.again();
    let last = same("and all is remembered", &mut scanner);
    assert!(layers(&last).0 >= 6, "{:?}", layers(&last));
}

#[test]
fn old_hard_links_are_exact_on_ext4() {
    links_that_were_always_there(Fs::Ext4);
}

#[test]
fn old_hard_links_are_exact_on_xfs() {
    links_that_were_always_there(Fs::Xfs);
}

/// `share` makes its second argument from its first. `repeats`: it makes everything be measured again.
fn shared_with_a_new_layer(fs: Fs, share: fn(&Path, &Path), repeats: bool) {
    let Some((loopfs, store)) = store_on(fs, "overlay") else { return };
    let mut scanner = learned(&store);
    assert!(layers(&same("untouched", &mut scanner)).0 >= 7);
    // Three times, since a sample may hit the old layer by chance.
    for (old, new) in [("a1", "new1"), ("b2", "new2"), ("c3", "new3")] {
        store.load(&[image_of(new, vec![LayerSpec { small_files: 10, ..LayerSpec::new(new) }])]);
        let from = layer(&store, old).join("diff").join(old);
        let to = layer(&store, new).join("diff").join(new);
        share(&from.join("big0"), &to.join("d0/shared"));
        share(&from.join("d0/f5"), &to.join("d0/small"));
        loopfs.sync();
        let seen = same("shares with the new layer", &mut scanner);
        assert_eq!(layers(&seen).0 == 0, repeats, "{old}: an unknown link makes everything be measured");
        assert_eq!(seen.inventory.findings, [], "{old}");
        for _ in 0..2 {
            let again = same("the second time", &mut scanner);
            assert!(layers(&again).0 >= 3, "{old}: once is enough: {:?}", layers(&again));
        }
    }
    store.podman(["rmi", &reference("new2")]);
    loopfs.sync();
    same("a new layer is gone", &mut scanner);
}

#[test]
fn new_hard_links_are_exact_on_ext4() {
    shared_with_a_new_layer(Fs::Ext4, |from, to| fs::hard_link(from, to).unwrap(), true);
}

#[test]
fn new_hard_links_are_exact_on_xfs() {
    shared_with_a_new_layer(Fs::Xfs, |from, to| fs::hard_link(from, to).unwrap(), true);
}

fn reflink(from: &Path, to: &Path) {
    store::succeed(Command::new("cp").arg("--reflink=always").args([from, to]));
}

#[test]
fn new_reflinks_are_exact_on_xfs() {
    shared_with_a_new_layer(Fs::Xfs, reflink, false);
}

#[test]
fn new_reflinks_are_exact_on_btrfs() {
    shared_with_a_new_layer(Fs::Btrfs, reflink, false);
}

#[test]
fn reflinked_layer_copies_are_exact() {
    let Some((_loopfs, store)) = store_on(Fs::Xfs, "vfs") else { return };
    let mut scanner = learned(&store);
    same("untouched", &mut scanner);
    store.podman(["rmi", &reference("b")]);
    same("one is gone", &mut scanner);
}

/// Deduplication changes no time of any file, and none of these files is large.
#[test]
fn deduplicated_small_files_are_not_promised() {
    if !store::require_tools() || !Fs::Xfs.require() || !support::require_program("xfs_io") {
        return;
    }
    let loopfs = LoopFs::new(Fs::Xfs, 600 * MIB);
    fn of(name: &str) -> ImageSpec {
        image_of(name, vec![LayerSpec { small_files: 4, ..LayerSpec::new(name) }])
    }
    let store = Store::of(&loopfs.path().join("root"), "overlay", &["one", "two"].map(of));
    let directory = |name: &str| layer(&store, name).join("diff").join(name);
    let (first, second) = (directory("one"), directory("two"));
    const FILES: u64 = 100;
    const LENGTH: usize = 40 << 10;
    let mut noise = Noise::new("dedup");
    for file in 0..FILES {
        let content: Vec<u8> = (0..LENGTH / 8).flat_map(|_| noise.next().to_le_bytes()).collect();
        for directory in [&first, &second] {
            fs::write(directory.join(format!("same{file}")), &content).unwrap();
        }
    }
    loopfs.sync();
    let mut scanner = learned(&store);
    assert!(layers(&scanner.again()).0 > 0, "sizes are known");
    for file in 0..FILES {
        let [from, to] = [&first, &second].map(|directory| directory.join(format!("same{file}")));
        let dedupe = format!("dedupe {} 0 0 {LENGTH}", from.display());
        store::succeed(Command::new("xfs_io").args(["-c", &dedupe]).arg(to));
    }
    loopfs.sync();
    let scan = scanner.again();
    assert_same("deduplicated", &scan, &scanner.alone());
    let image = scan.inventory.images.iter().position(|image| image.names == [reference("two")]).unwrap();
    let sizes = scan.refs.sizes(&scan.inventory, Root::Image(image.into()));
    let promised = sizes.exclusive.frees_bytes;
    let before = loopfs.used_bytes();
    store.podman(["rmi", &reference("two")]);
    loopfs.sync();
    let freed = before.saturating_sub(loopfs.used_bytes());
    assert!(freed < FILES * LENGTH as u64 / 2, "the files are shared: {freed}");
    assert!(promised.abs_diff(freed) <= 128 << 10, "promised {promised}, freed {freed}");
}

/// Scans with one seed after another until a sample finds something, and returns that scan.
fn found_by_a_sample(scanner: &Scanner, before: &Scan) -> Scan {
    for seed in 0..400 {
        let scan = scanner.with_seed(seed);
        if !scan.inventory.findings.is_empty() {
            return scan;
        }
        assert_same("an unknown change", &scan, before);
    }
    panic!("400 samples found nothing");
}

#[test]
fn changed_byte_is_found_by_sample_or_full() {
    let Some((loopfs, store)) = store_on(Fs::Xfs, "overlay") else { return };
    let mut scanner = learned(&store);
    let before = same("untouched", &mut scanner);
    let changed = layer(&store, "b2");
    shell("head -c 100000 /dev/zero >>diff/b2/d0/f3", &changed);
    loopfs.sync();
    rest();

    let full = scanner.scan(Some(scanner.cache(0)), true);
    assert_same("full", &full, &scanner.alone());
    let assert_reported = |scan: &Scan| {
        let findings = &scan.inventory.findings;
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].path, changed);
        assert!(!findings[0].incomplete, "the figures are right");
        fn bytes(changed: &Path, scan: &Scan) -> String {
            let node = scan.inventory.nodes.iter().find(|node| node.path == changed);
            node.unwrap().size.bytes.to_string()
        }
        let message = &findings[0].message;
        assert!(
            message.contains(&bytes(&changed, &before)) && message.contains(&bytes(&changed, &full)),
            "{message}"
        );
    };
    assert_reported(&full);
    let found = found_by_a_sample(&scanner, &before);
    assert_same("found by a sample", &found, &full);
    assert_eq!(layers(&found), (0, 9), "the whole store was measured");
    assert_reported(&found);
    let after = same("learned", &mut scanner);
    assert!(after.inventory.findings.is_empty() && layers(&after).0 >= 7);
}

#[test]
fn other_inodes_of_the_same_size_are_found() {
    let Some((loopfs, store)) = store_on(Fs::Xfs, "overlay") else { return };
    let mut scanner = learned(&store);
    let before = same("untouched", &mut scanner);
    shell(
        "cp -p f3 f3.new; cp -p f4 f4.new; mv f3.new f3; mv f4.new f4",
        &layer(&store, "c2").join("diff/c2/d0"),
    );
    loopfs.sync();
    rest();
    let now = scanner.alone();
    // The freed inodes no longer belong to the layer, which only the recorded inodes show.
    let found = (0..400).map(|seed| scanner.with_seed(seed)).find(|scan| !scan.inventory.findings.is_empty());
    let found = found.expect("found by a sample");
    assert_same("found", &found, &now);
    assert!(found.inventory.findings[0].message.contains("other files"), "{:?}", found.inventory.findings);
    drop(before);
}

#[test]
fn visible_changes_are_measured() {
    let Some((loopfs, store)) = store_on(Fs::Ext4, "overlay") else { return };
    let mut scanner = learned(&store);
    let before = same("untouched", &mut scanner);
    let all = layer(&store, "base");
    let changes: [(&str, &Path, String); 4] = [
        ("chown", &all, "chown -R 1000:1000 .".into()),
        (
            "replaced",
            store.root(),
            format!("cp -a {0} copy; rm copy/diff/base/big0; rm -r {0}; mv copy {0}", all.display()),
        ),
        ("a file beside diff", &all, "head -c 50000 /dev/zero >more".into()),
        ("permissions of diff", &all, "chmod 711 diff; rm diff/base/d0/f7".into()),
    ];
    for (what, dir, script) in changes {
        shell(&script, dir);
        loopfs.sync();
        let again = same(what, &mut scanner);
        assert!((6..=8).contains(&layers(&again).0), "{what}: {:?}", layers(&again));
        assert_eq!(again.inventory.findings, [], "{what}");
        rest();
        scanner.again();
    }
    drop(before);
}

#[test]
fn foreign_disk_is_read_without_traces() {
    let Some((loopfs, store)) = store_on(Fs::Ext4, "overlay") else { return };
    rest();
    let scanner = Scanner::foreign(loopfs.path(), Path::new("/root"));
    let first = scanner.scan(Some(scanner.cache(0)), false);
    assert_eq!((&first.sizes, layers(&first)), (&None, (0, 9)));
    // The same store, scanned on its own machine.
    let local = Scanner::of(&store);
    local.with_seed(1);
    let again = scanner.scan(Some(local.cache(2)), false);
    assert!(again.sizes.is_none() && layers(&again).0 >= 7, "{:?}", layers(&again));
    assert_same("from what is remembered", &again, &first);
}

#[test]
fn stores_agree_alone_and_together() {
    let Some((loopfs, store)) = store_on(Fs::Ext4, "overlay") else { return };
    let other = Store::at(&loopfs.path().join("other"), "overlay");
    other.load(&images()[..2]);
    fs::hard_link(layer(&store, "a1").join("diff/a1/big0"), layer(&other, "a2").join("diff/a2/linked"))
        .unwrap();
    loopfs.sync();
    rest();
    let mut both = Scanner::of(&store).and(&other);
    both.again();
    for _ in 0..2 {
        let again = same("both", &mut both);
        assert!(layers(&again).0 >= 9, "{:?}", layers(&again));
    }
}

#[test]
fn containerd() {
    if !containerd::require_rig() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 800 * MIB);
    let root = loopfs.path().join("root");
    let rig = Rig::with_images(&root);
    loopfs.sync();
    rest();
    let mut scanner = Scanner::of_containerd(&root);
    scanner.again();
    let again = same("untouched", &mut scanner);
    assert!(layers(&again).0 > 0, "{:?}", layers(&again));
    let committed = stamps(&scanner);
    assert_eq!(committed.len(), 7, "all committed snapshots");
    rig.script("30-pods.sh", &[]);
    rig.stop();
    loopfs.sync();
    let pods = same("with pods", &mut scanner);
    assert_eq!(stamps(&scanner), committed, "active snapshots are measured, the others stay as they were");
    assert!(layers(&pods).0 > 0, "{:?}", layers(&pods));
    rig.script("10-start.sh", &[]);
    let images = rig.images();
    let gone = images.iter().find(|image| image.tags.iter().any(|tag| tag.contains("app-b"))).expect("app-b");
    rig.remove(&gone.id);
    rig.stop();
    loopfs.sync();
    same("an image less", &mut scanner);
}
