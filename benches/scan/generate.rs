//! Makes a graphroot like those of large nodes: many layers of many small files, a few big ones, hard links, symlinks,
//! whiteouts, deep directories. The same seed makes the same tree.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};

use crate::random::Random;
use crate::records::{LARGE, Layer, Plan};

/// The average number of entries in a directory, as in image layers.
const ENTRIES_PER_DIRECTORY: u64 = 7;
/// The depth of the deepest random directories below a layer's root.
const DEPTH: usize = 14;
/// The number of files that some layers share with their parent by hard links.
const SHARED_FILES: usize = 10;

/// Fills the empty directory `graphroot` with about `inodes` inodes.
pub fn graphroot(graphroot: &Path, inodes: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random, LARGE);
    fs::create_dir_all(graphroot.join("overlay/l"))?;
    plan.write(graphroot, &mut random)?;
    let weights: Vec<u64> = plan.layers.iter().map(|layer| weight(layer, &mut random)).collect();
    let sum: u64 = weights.iter().sum();
    plan.layers.par_iter().enumerate().try_for_each(|(layer_ix, layer)| {
        let random = Random::new(seed ^ (layer_ix as u64 + 1));
        make_layer(graphroot, &plan, layer, inodes * weights[layer_ix] / sum, random)
            .with_context(|| format!("making layer {layer_ix}"))
    })?;
    share(graphroot, &plan).context("sharing files by hard links")
}

/// Returns the weight of a layer: its share of the inodes. The first layer of an image has a large one, and all
/// weights have a heavy tail.
fn weight(layer: &Layer, random: &mut Random) -> u64 {
    let tail = 1000 / random.between(10, 1000);
    (if layer.first_of_image { 40 } else { 8 }) + tail
}

fn make_layer(graphroot: &Path, plan: &Plan, layer: &Layer, inodes: u64, mut random: Random) -> Result<()> {
    let dir = graphroot.join("overlay").join(&layer.id);
    let diff = dir.join("diff");
    plan.make_directory(graphroot, layer)?;
    fs::create_dir(dir.join("merged"))?;
    for number in 0..SHARED_FILES {
        fs::write(diff.join(shared_name(number)), "shared")?;
    }
    if random.chance(50) {
        fs::create_dir_all(diff.join("node_modules/nested/".repeat(20)))?;
    }
    let directories = directories(&diff, inodes / ENTRIES_PER_DIRECTORY, &mut random);
    let mut left = inodes.saturating_sub(directories.len() as u64);
    let mut first_file: Option<PathBuf> = None;
    for (number, path) in directories.iter().enumerate() {
        fs::create_dir_all(path)?;
        let mean = left / (directories.len() - number) as u64;
        // Most directories hold few files, and some hold very many.
        let files = if random.chance(20) { mean * 12 } else { random.below(mean * 2 + 1) };
        let files = if number + 1 == directories.len() { left } else { files.min(left) };
        left -= files;
        fill(path, files, &mut first_file, &mut random).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns directories to make, each parent before its children.
fn directories(top: &Path, count: u64, random: &mut Random) -> Vec<PathBuf> {
    const WORDS: [&str; 16] = [
        "usr",
        "share",
        "lib",
        "python3",
        "site-packages",
        "doc",
        "locale",
        "x86_64-linux-gnu",
        "include",
        "src",
        "test",
        "assets",
        "vendor",
        "dist",
        "modules",
        "en_US.UTF-8",
    ];
    let mut made = vec![(top.to_path_buf(), 0)];
    for number in 1..=count {
        // Near the end of the list, for a deep tree.
        let window = made.len().min(40) as u64;
        let near = made.len() - 1 - usize::try_from(random.below(window)).unwrap_or(0);
        let (parent, depth) = &made[near];
        let (parent, depth) = if *depth < DEPTH { (parent, *depth) } else { (&made[0].0, 0) };
        let word = WORDS[usize::try_from(random.below(16)).unwrap_or(0)];
        made.push((parent.join(format!("{word}{number}")), depth + 1));
    }
    made.into_iter().map(|(path, _)| path).collect()
}

fn fill(dir: &Path, files: u64, first_file: &mut Option<PathBuf>, random: &mut Random) -> Result<()> {
    let dir_fd: OwnedFd = File::open(dir)?.into();
    for file in 0..files {
        let name = format!("file-{file}-{:x}.py", random.below(1 << 24));
        match (random.below(1000), &*first_file) {
            (0..90, _) => rustix::fs::symlinkat("../share/some/target", &dir_fd, &name)?,
            (90..170, Some(first)) => {
                // With too many links to one file, the filesystem's limit would be reached.
                if rustix::fs::linkat(rustix::fs::CWD, first, &dir_fd, &name, AtFlags::empty()).is_err() {
                    *first_file = None;
                }
            }
            (170..176, _) => {
                let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o600));
                rustix::fs::mknodat(&dir_fd, &name, kind, mode, 0)?;
            }
            _ => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&dir_fd, &name, flags, Mode::from_raw_mode(0o644))?;
                let length = length(random);
                if length > 0 {
                    // Blocks without content: allocated as usual, and quick to make.
                    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, length)?;
                }
                if random.chance(300) {
                    *first_file = Some(dir.join(&name));
                }
            }
        }
    }
    Ok(())
}

/// Returns the length of a file: mostly up to 8 KiB, sometimes MiB.
fn length(random: &mut Random) -> u64 {
    match random.below(10_000) {
        0..1_200 => 0,
        1_200..8_800 => random.between(1, 8 << 10),
        8_800..9_850 => random.between(8 << 10, 48 << 10),
        9_850..9_985 => random.between(64 << 10, 384 << 10),
        _ => random.between(1 << 20, 6 << 20),
    }
}

fn shared_name(number: usize) -> String {
    format!("shared-{number}.so")
}

/// Every tenth layer shares some files with its parent.
fn share(graphroot: &Path, plan: &Plan) -> Result<()> {
    for layer in plan.layers.iter().step_by(10) {
        let Some(parent) = layer.parent else { continue };
        let diff = |id: &str| graphroot.join("overlay").join(id).join("diff");
        for number in 0..SHARED_FILES {
            let file = diff(&layer.id).join(shared_name(number));
            fs::remove_file(&file)?;
            fs::hard_link(diff(&plan.layers[parent].id).join(shared_name(number)), file)?;
        }
    }
    Ok(())
}
