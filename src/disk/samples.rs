//! Files that are kept with the extents of their unit, to see later whether these still hold. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::runs::{put, take};

/// Number of samples of a filesystem if all that it holds is measured.
const OF_A_FILESYSTEM: u64 = 8192;

/// Maximum number of samples that one walk takes: users without rights choose the sizes and links of their files.
pub const MOST: usize = 4 * OF_A_FILESYSTEM as usize;

/// Maximum bytes of a sample's path, for the same reason; few paths in images are longer.
const LONGEST_PATH: usize = 400;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileSample {
    pub tree: usize,
    /// Path below the tree; empty if the tree is the file.
    pub path: PathBuf,
    pub weight: u64,
}

/// Returns the bytes for each of which one file is kept, on a filesystem with these used bytes.
pub fn stride(used_bytes: u64) -> u64 {
    (used_bytes / OF_A_FILESYSTEM).max(1 << 16)
}

/// Returns true with a probability of `bytes` / `stride`, always the same for the same number.
pub fn is_drawn(number: u64, bytes: u64, stride: u64) -> bool {
    bytes >= stride || fastrand::Rng::with_seed(number).u64(..stride.max(1)) < bytes
}

pub fn encode(samples: &[FileSample]) -> Box<[u8]> {
    let mut bytes = Vec::new();
    for sample in samples {
        let path = sample.path.as_os_str().as_bytes();
        if path.len() <= LONGEST_PATH {
            put(&mut bytes, sample.tree as u64);
            put(&mut bytes, sample.weight);
            put(&mut bytes, path.len() as u64);
            bytes.extend(path);
        }
    }
    bytes.into()
}

pub fn decode(mut bytes: &[u8]) -> impl Iterator<Item = FileSample> + '_ {
    std::iter::from_fn(move || {
        let (tree, weight) = (usize::try_from(take(&mut bytes)?).ok()?, take(&mut bytes)?);
        let length = usize::try_from(take(&mut bytes)?).ok()?;
        let (path, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(FileSample { tree, path: Path::new(OsStr::from_bytes(path)).into(), weight })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64, weight: u64) -> FileSample {
        FileSample { tree: 1, path: format!("etc/{number}").into(), weight }
    }

    #[test]
    fn encoded_samples_are_decoded_unchanged() {
        let samples = [sample(1, 7), FileSample { path: PathBuf::new(), ..sample(2, 1 << 40) }];
        let bytes = encode(&samples);
        assert_eq!(decode(&bytes).collect::<Vec<_>>(), samples);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).count() < 2, "cut after {length}");
        }
        let long = FileSample { path: "a".repeat(4000).into(), ..sample(3, 1) };
        assert!(encode(&[long]).is_empty());
    }

    #[test]
    fn files_are_kept_in_proportion_to_their_bytes() {
        let kept = (0..10_000).filter(|inode| is_drawn(*inode, 1000, 10_000)).count();
        assert!((900..1100).contains(&kept), "{kept}");
        assert!(is_drawn(1, 10_000, 10_000));
    }
}
