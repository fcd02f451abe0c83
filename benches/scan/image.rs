//! The filesystem with the graphroot, in an image file that is kept between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use layersweep::disk::size_cache::SETTLED_AFTER;
use rustix::fs::Advice;

use crate::process::must;
use crate::settings::Settings;

/// Sparse: files are allocated but not written, so it needs only a small part of this.
const BYTES: u64 = 32 << 30;

/// The mounted image; unmounted when dropped.
#[derive(Debug)]
pub struct Image {
    file: PathBuf,
    mount: PathBuf,
    graphroot: PathBuf,
    keep_caches: bool,
}

impl Image {
    /// Mounts the image, and makes it first if it does not exist.
    pub fn mount(settings: &Settings) -> Result<Self> {
        fs::create_dir_all(&settings.dir)?;
        let dir = settings.dir.canonicalize()?;
        let name = format!("{}-{}-{}", settings.fs, settings.inodes, settings.seed);
        let mount = dir.join(format!("{name}.mnt"));
        fs::create_dir_all(&mount)?;
        let file = dir.join(format!("{name}.img"));
        let image = Self { graphroot: mount.join("storage"), file, mount, keep_caches: settings.keep_caches };
        // An interrupted run leaves it mounted.
        let _ = must(Command::new("umount").arg(&image.mount));
        if image.file.exists() {
            image.attach()?;
        } else {
            image.make(settings)?;
        }
        Ok(image)
    }

    pub fn graphroot(&self) -> &Path {
        &self.graphroot
    }

    /// Makes the image under another name and renames it: an image with the right name is complete.
    fn make(&self, settings: &Settings) -> Result<()> {
        let begin = Instant::now();
        let partial = self.file.with_extension("partial");
        File::create(&partial)?.set_len(BYTES)?;
        let flags: &[&str] = match settings.fs.as_str() {
            // No initialisation may run in the background during the measurement.
            "ext4" => &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            _ => &["-q", "-f"],
        };
        must(Command::new(format!("mkfs.{}", settings.fs)).args(flags).arg(&partial))?;
        must(Command::new("mount").args(["-o", "loop"]).args([&partial, &self.mount]))?;
        // In a separate process, whose memory is not measured.
        must(
            Command::new(std::env::current_exe()?)
                .arg("generate")
                .arg(&self.graphroot)
                .args([settings.inodes.to_string(), settings.seed.to_string()]),
        )?;
        self.detach()?;
        fs::rename(&partial, &self.file)?;
        println!("made the graphroot in {:.0} s", begin.elapsed().as_secs_f64());
        // No scan keeps the size of a layer that changed in the last minute.
        std::thread::sleep(SETTLED_AFTER.unsigned_abs());
        self.attach()
    }

    /// Removes the image from the page cache.
    pub fn forget(&self) -> Result<()> {
        self.detach()?;
        let file = File::open(&self.file)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        if !self.keep_caches {
            fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the caches")?;
        }
        self.attach()
    }

    fn attach(&self) -> Result<()> {
        must(Command::new("mount").args(["-o", "loop"]).args([&self.file, &self.mount]))
    }

    fn detach(&self) -> Result<()> {
        let mut result = Ok(());
        for _ in 0..50 {
            result = must(Command::new("umount").arg(&self.mount));
            if result.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        result
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            eprintln!("{error:#}");
        }
    }
}
