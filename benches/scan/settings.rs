//! The settings of the benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Settings from the environment.
#[derive(Debug)]
pub struct Settings {
    /// `BENCH_FS`: `ext4`, `xfs` or `btrfs`.
    pub fs: String,
    /// `BENCH_INODES`: the approximate number of inodes.
    pub inodes: u64,
    /// `BENCH_SEED`: the same seed makes the same tree.
    pub seed: u64,
    /// `BENCH_WARM`: rounds with everything in the page cache.
    pub warm_rounds: usize,
    /// `BENCH_COLD`: rounds with an empty page cache.
    pub cold_rounds: usize,
    /// `BENCH_DIR`: the directory of the image; needs up to 8 GiB.
    pub dir: PathBuf,
    /// `BENCH_KEEP_CACHES`: cold rounds drop only the image from the page cache, not everything. For machines with
    /// other users.
    pub keep_caches: bool,
}

impl Settings {
    /// Returns a new directory for the records of the scans.
    pub fn state_dir(&self) -> Result<PathBuf> {
        let path = self.dir.join(format!("state-{}", self.fs));
        if path.exists() {
            #[allow(clippy::disallowed_methods)] // the benchmark's scratch directory
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(path.canonicalize()?)
    }

    pub fn from_environment() -> Result<Self> {
        let fs = text("BENCH_FS").unwrap_or_else(|| "ext4".into());
        if !["ext4", "xfs", "btrfs"].contains(&fs.as_str()) {
            bail!("BENCH_FS is {fs:?}; it can be ext4, xfs or btrfs");
        }
        Ok(Self {
            fs,
            inodes: number("BENCH_INODES", 700_000)?,
            seed: number("BENCH_SEED", 1)?,
            warm_rounds: usize::try_from(number("BENCH_WARM", 9)?)?,
            cold_rounds: usize::try_from(number("BENCH_COLD", 5)?)?,
            dir: text("BENCH_DIR").unwrap_or_else(|| "bench-work".into()).into(),
            keep_caches: text("BENCH_KEEP_CACHES").is_some(),
        })
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str, default: u64) -> Result<u64> {
    text(name).map_or(Ok(default), |value| {
        value.parse().with_context(|| format!("{name} is {value:?}, not a number"))
    })
}
