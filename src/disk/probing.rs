//! Finds out whether kept extents still hold.
//!
//! A deduplication changes no time of any file, so nothing but the extents themselves show it. Each measurement keeps
//! the paths of some files, drawn in proportion to their bytes, and each scan asks some of them again: if none of
//! 700 differs, less than 1 % of the bytes have changed, with a confidence of 99.9 % (0.99 ^ 700 = 0.0009).

use std::os::fd::AsFd;
use std::path::PathBuf;

use rayon::prelude::*;
use rustix::fs::FileType;
use rustix::io::{Errno, Result};

use super::samples::{self, FileSample};
use super::sharing::Probe;
use super::top::{self, Top};
use super::walk::{ExtentOptions, Reflinks, Tree, ask_held};
use crate::sys::beneath::{HANDLE, Opener};
use crate::sys::mounts;
use crate::sys::quiet::Within;

/// Number of samples that each scan asks.
const ASKED: usize = 700;

/// Draws the samples to ask from those of the units, each as often as its weight says; `seed` is another number in each
/// scan.
#[must_use]
pub fn draw<'a>(units: impl Iterator<Item = (usize, &'a [u8])>, seed: u64) -> Vec<(usize, FileSample)> {
    let mut all: Vec<(usize, FileSample)> = Vec::new();
    for (unit, samples) in units {
        all.extend(samples::decode(samples).map(|sample| (unit, sample)));
    }
    all.sort_unstable();
    let mut sums = Vec::with_capacity(all.len());
    let mut sum = 0_u64;
    for (_, sample) in &all {
        sum = sum.saturating_add(sample.weight);
        sums.push(sum);
    }
    if sum == 0 || all.len() <= ASKED {
        return all;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut drawn: Vec<usize> = (0..ASKED)
        .map(|_| {
            let mark = random.u64(..sum);
            sums.partition_point(|sum| *sum <= mark)
        })
        .collect();
    drawn.sort_unstable();
    drawn.dedup();
    drawn.into_iter().filter_map(|position| all.get(position).cloned()).collect()
}

#[derive(Debug, Default)]
pub struct Asked {
    pub probes: Vec<Probe>,
    /// Units with a sample that is gone or is no regular file.
    pub lost: Vec<usize>,
}

/// Maximum number of extents of a sample that are compared.
const MOST_EXTENTS: usize = 4096;

/// Asks for the extents of samples. In `trees` those of a unit are adjacent.
#[must_use]
pub fn ask(
    roots: &[PathBuf],
    within: &Within,
    trees: &[Tree<'_>],
    samples: &[(usize, FileSample)],
    threads: usize,
) -> Asked {
    if samples.is_empty() {
        return Asked::default();
    }
    let mounts = mounts::read().unwrap_or_default();
    let roots = Top::all(roots, within);
    let opener = Top::opener(&roots);
    let options = ExtentOptions::default();
    let reflinks: Vec<_> =
        roots.iter().map(|root| Reflinks::of(root.as_ref().ok()?, &options, &mounts)).collect();
    let answers = top::in_pool(threads, samples.len(), || {
        let answers = samples
            .par_iter()
            .map(|(unit, sample)| (*unit, ask_sample(opener, &roots, &reflinks, trees, *unit, sample)));
        answers.collect::<Vec<_>>()
    });
    let mut asked = Asked::default();
    let mut has_estimates = false;
    for (unit, answer) in answers {
        match answer {
            Ok((probes, is_estimate)) => {
                asked.probes.extend(probes);
                has_estimates |= is_estimate;
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => asked.lost.push(unit),
            Err(error) => tracing::debug!(%error, unit, "a sample cannot be asked"),
        }
    }
    if has_estimates {
        // The size of compressed extents is unknown, so that neighbours seem to overlap.
        asked.probes.clear();
    }
    asked
}

/// Returns what the filesystem says of the sample, and true if that is an estimate.
fn ask_sample(
    opener: Opener,
    roots: &[Result<Top>],
    reflinks: &[Option<Reflinks>],
    trees: &[Tree<'_>],
    unit: usize,
    sample: &FileSample,
) -> Result<(Vec<Probe>, bool)> {
    let first = trees.iter().position(|tree| tree.unit == unit).ok_or(Errno::NOENT)?;
    let tree = trees.get(first + sample.tree).filter(|tree| tree.unit == unit).ok_or(Errno::NOENT)?;
    let root = roots.get(tree.root).and_then(|root| root.as_ref().ok()).ok_or(Errno::INVAL)?;
    let Some(reflinks) = reflinks.get(tree.root).copied().flatten() else { return Ok((Vec::new(), false)) };
    let path = if sample.path.as_os_str().is_empty() {
        tree.path.to_path_buf()
    } else {
        tree.path.join(&sample.path)
    };
    let handle = root.open(opener, &path, HANDLE)?;
    let stat = rustix::fs::fstat(&handle)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(Errno::NOENT);
    }
    let found = ask_held(handle.as_fd(), stat.st_ino, &reflinks)?;
    let runs = found.runs.into_iter().take(MOST_EXTENTS);
    let probes = runs.map(|run| Probe { filesystem: reflinks.filesystem, unit, run }).collect();
    Ok((probes, found.is_estimate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_asked_in_proportion_to_their_bytes() {
        fn samples(weight: u64) -> Box<[u8]> {
            let samples =
                (0..1000).map(|number| FileSample { tree: 0, path: number.to_string().into(), weight });
            samples::encode(&samples.collect::<Vec<_>>())
        }
        let (light, heavy) = (samples(1), samples(9));
        let drawn = draw([(1, &*light), (2, &*heavy)].into_iter(), 1);
        let of_light = drawn.iter().filter(|(unit, _)| *unit == 1).count();
        assert!(drawn.len() > 400 && (30..120).contains(&of_light), "{of_light} of {}", drawn.len());
        assert_ne!(draw([(1, &*light), (2, &*heavy)].into_iter(), 2), drawn);
    }
}
