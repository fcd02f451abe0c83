//! Random stores whose files are shared, deduplicated, rewritten and compressed between the scans: what a deletion is
//! said to free from kept sizes and in full is what the filesystem gives back.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use layersweep::model::refs::Root;
use layersweep::stores::Scan;
use support::archive::{ImageSpec, LayerSpec, Noise};
use support::chunks;
use support::loopfs::{Fs, LoopFs, MIB};
use support::rescan::{Scanner, rest};
use support::store::{self, Store};

const IMAGES: u64 = 6;

/// A store with files of 1 byte to 10 MiB in layers that differ.
struct Scene {
    loopfs: LoopFs,
    store: Store,
    noise: Noise,
    /// Directory with the files of each image's own layer.
    layers: Vec<PathBuf>,
}

fn name(image: u64) -> String {
    format!("localhost/extents/image-{image}:1")
}

impl Scene {
    fn new(fs: Fs, mount_options: &[&str], seed: u64) -> Self {
        let loopfs = LoopFs::with(fs, 2048 * MIB, &[], mount_options);
        let younger = support::slot();
        fn layer(name: &str, younger: u64) -> LayerSpec {
            LayerSpec { small_files: 40, younger, ..LayerSpec::new(name) }
        }
        let images = (0..IMAGES).map(|image| ImageSpec {
            names: vec![name(image)],
            layers: vec![layer("base", younger), layer(&format!("own-{image}"), younger)],
            label: name(image),
        });
        let store = Store::of(&loopfs.path().join("root"), "overlay", &images.collect::<Vec<_>>());
        let entries: Vec<_> =
            fs::read_dir(store.root().join("overlay")).unwrap().map(Result::unwrap).collect();
        let layers = (0..IMAGES).map(|image| {
            let files = entries.iter().map(|entry| entry.path().join(format!("diff/own-{image}")));
            files.into_iter().find(|path| path.is_dir()).unwrap()
        });
        let layers = layers.collect();
        let mut scene = Self { loopfs, store, noise: Noise::new(&format!("extents {seed}")), layers };
        for layer in scene.layers.clone() {
            for file in 0..60 {
                let content = scene.content();
                fs::write(layer.join(format!("file{file}")), content).unwrap();
            }
        }
        scene.loopfs.sync();
        scene
    }

    fn below(&mut self, most: u64) -> u64 {
        self.noise.next() % most
    }

    /// Random content of a random size, every third time compressible.
    fn content(&mut self) -> Vec<u8> {
        let bits = self.below(24);
        let length = (1 + self.below(1 << bits)).min(10 << 20);
        let is_random = self.below(3) > 0;
        let word = self.noise.next();
        let words = length.div_ceil(8);
        let mut content = Vec::with_capacity(8 * usize::try_from(words).unwrap());
        for _ in 0..words {
            content.extend(if is_random { self.noise.next() } else { word }.to_le_bytes());
        }
        content.truncate(usize::try_from(length).unwrap());
        content
    }

    fn file(&mut self) -> PathBuf {
        let layer = usize::try_from(self.below(self.layers.len() as u64)).unwrap();
        let file = self.below(60);
        self.layers[layer].join(format!("file{file}"))
    }

    /// Copies files by reflink, deduplicates equal files, and rewrites parts, without a change of any layer's top
    /// directories.
    fn disturb(&mut self) {
        for _ in 0..40 {
            let (from, to) = (self.file(), self.file());
            if from != to {
                // Overwritten in place, so that the directory stays the same.
                store::succeed(Command::new("cp").arg("--reflink=always").args([&from, &to]));
            }
        }
        for number in 0..40 {
            let (from, to) = (self.file(), self.file());
            if from != to && number % 2 == 0 {
                fs::write(&to, fs::read(&from).unwrap()).unwrap();
                dedupe(&self.loopfs, &from, &to);
            } else {
                let file = fs::OpenOptions::new().write(true).open(&to).unwrap();
                let size = file.metadata().unwrap().len();
                let at = self.below(size.max(1));
                let mut part = self.content();
                part.truncate(usize::try_from((size - at.min(size)).min(1 << 20)).unwrap());
                file.write_all_at(&part, at).unwrap();
            }
        }
        self.loopfs.sync();
    }

    /// Returns what `scan` says that the deletion of an image frees.
    fn said(scan: &Scan, image: u64) -> u64 {
        let images = &scan.inventory.images;
        let position = images.iter().position(|known| known.names == [name(image)]).unwrap();
        scan.refs.sizes(&scan.inventory, Root::Image(position.into())).exclusive.frees_bytes
    }

    fn settled(&self) -> u64 {
        let mut last = self.loopfs.used_bytes();
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = self.loopfs.used_bytes();
            if now == last {
                break;
            }
            last = now;
        }
        last
    }

    /// Deletes an image; returns the freed bytes.
    fn delete(&mut self, image: u64) -> i64 {
        let is_xfs = self.loopfs.fs() == Fs::Xfs;
        let inodes = is_xfs.then(|| chunks::inodes(self.loopfs.path()));
        let before = i64::try_from(self.settled()).unwrap();
        self.store.podman(["rmi", "--no-prune", &name(image)]);
        let freed = before - i64::try_from(self.settled()).unwrap();
        let own = format!("own-{image}");
        self.layers.retain(|layer| !layer.ends_with(&own));
        freed
            - inodes
                .map_or(0, |inodes| chunks::freed_by_records(&inodes, &chunks::inodes(self.loopfs.path())))
    }
}

/// Lets two equal files share their extents, as the storage library does, or leaves them alone if they are empty.
fn dedupe(loopfs: &LoopFs, from: &Path, to: &Path) {
    loopfs.sync();
    let length = fs::metadata(from).unwrap().len();
    if length > 0 {
        let request = format!("dedupe {} 0 0 {length}", from.display());
        store::succeed(Command::new("xfs_io").args(["-c", &request]).arg(to));
    }
}

fn random_store(fs: Fs, mount_options: &[&str], seed: u64) {
    if !store::require_tools() || !fs.require() || !support::require_program("xfs_io") {
        return;
    }
    let mut scene = Scene::new(fs, mount_options, seed);
    rest();
    let mut scanner = Scanner::of(&scene.store);
    scanner.again();
    let mut wrong = Vec::new();
    for image in 0..IMAGES {
        scene.disturb();
        let kept = Scene::said(&scanner.again(), image);
        let full = Scene::said(&scanner.alone(), image);
        let freed = scene.delete(image);
        println!("{fs:?} {mount_options:?} {image}: kept {kept}, full {full}, freed {freed}");
        for (how, said) in [("kept", kept), ("full", full)] {
            if freed.abs_diff(i64::try_from(said).unwrap()) > (said / 100).max(256 << 10) {
                wrong.push(format!("{image}: {how} {said}, freed {freed}"));
            }
        }
        rest();
        scanner.again();
    }
    assert_eq!(wrong, [] as [String; 0]);
}

#[test]
fn shared_files_free_what_is_said_on_xfs() {
    random_store(Fs::Xfs, &[], 1);
}

#[test]
fn shared_files_free_what_is_said_on_btrfs() {
    random_store(Fs::Btrfs, &[], 2);
}

#[test]
fn compressed_files_free_what_is_said_on_btrfs() {
    random_store(Fs::Btrfs, &["compress=zstd"], 3);
}
