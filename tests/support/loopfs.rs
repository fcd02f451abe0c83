//! Real filesystems on loop devices, for tests of filesystem behaviour.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

/// One mebibyte, for sizes of images.
pub const MIB: u64 = 1 << 20;

/// Type of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// ext4 with the defaults of its mkfs, without lazy initialisation.
    Ext4,
    /// XFS with the defaults of its mkfs, which include reflinks (`-m reflink=0` disables them).
    Xfs,
    /// btrfs with single data and metadata.
    Btrfs,
}

impl Fs {
    /// Every type.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The type column of the mount table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Returns whether its mkfs is installed; skips, or fails under CI.
    pub fn require(self) -> bool {
        super::require_program(&format!("mkfs.{}", self.name()))
    }

    fn mkfs_flags(self) -> &'static [&'static str] {
        match self {
            // Lazy initialisation writes later, which would change statvfs during a test.
            Self::Ext4 => &["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            Self::Xfs => &["-q", "-f"],
            Self::Btrfs => &["-q", "-f", "-m", "single", "-d", "single"],
        }
    }

    /// Smallest image that its mkfs accepts, with some free space.
    fn minimum(self) -> u64 {
        match self {
            Self::Ext4 => 16 * MIB,
            Self::Xfs => 320 * MIB,
            Self::Btrfs => 256 * MIB,
        }
    }
}

/// A filesystem in an image file, mounted below a temporary directory until it is dropped.
#[derive(Debug)]
pub struct LoopFs {
    fs: Fs,
    dir: Option<TempDir>,
    image: PathBuf,
    mount: PathBuf,
    options: String,
}

impl LoopFs {
    /// Creates a filesystem of at least `size` bytes (sparse: only written bytes take space) and mounts it with the
    /// default options. Panics with the message of the failing command.
    pub fn new(fs: Fs, size: u64) -> Self {
        Self::with(fs, size, &[], &[])
    }

    /// Like [`Self::new`], with further flags for mkfs and options for mount (`["strictatime"]`).
    pub fn with(fs: Fs, size: u64, mkfs: &[&str], mount_options: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("loopfs-").tempdir();
        let dir = dir.expect("making a temporary directory");
        let image = dir.path().join("image");
        let file = File::create(&image).expect("making the image file");
        file.set_len(size.max(fs.minimum())).expect("sizing the image file");
        let mkfs_program = format!("mkfs.{}", fs.name());
        run(sbin(&mkfs_program).args(fs.mkfs_flags()).args(mkfs).arg(&image));
        let mount = dir.path().join("mnt");
        std::fs::create_dir(&mount).expect("making the mount point");
        let mut options = String::from("loop");
        for option in mount_options {
            options.push(',');
            options.push_str(option);
        }
        let loopfs = Self { fs, dir: Some(dir), image, mount, options };
        loopfs.mount();
        loopfs
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// The image file.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Returns the type of the filesystem.
    pub fn fs(&self) -> Fs {
        self.fs
    }

    /// Writes everything to the device: `syncfs`.
    pub fn sync(&self) {
        let mount = File::open(&self.mount).expect("opening the mount point");
        nix::unistd::syncfs(mount).expect("syncfs on the loop mount");
    }

    /// Used bytes by `statvfs`, after `syncfs`.
    pub fn used_bytes(&self) -> u64 {
        self.sync();
        let facts = nix::sys::statvfs::statvfs(&self.mount).expect("statvfs on the loop mount");
        (facts.blocks() - facts.blocks_free()) * facts.fragment_size()
    }

    /// Unmounts and mounts again, which empties the page cache.
    pub fn remount(&self) {
        umount(&self.mount).expect("unmounting to mount again");
        self.mount();
    }

    /// Unmounts, runs `work` on the image file, and mounts the result.
    pub fn exchange(&self, work: impl FnOnce(&Path)) {
        umount(&self.mount).expect("unmounting for another image");
        work(&self.image);
        self.mount();
    }

    /// Unmounts and mounts again with `options` (`"ro,norecovery"`) instead of the first ones.
    pub fn remount_with(&mut self, options: &str) {
        umount(&self.mount).expect("unmounting to mount again");
        self.options = format!("loop,{options}");
        self.mount();
    }

    /// Changes with `debugfs` facts that no system call can change, such as a birth time (ext4 only). It reports few
    /// errors: check the result.
    pub fn debugfs(&self, requests: &[String]) {
        assert_eq!(self.fs, Fs::Ext4, "debugfs knows no other");
        let script = self.image.with_extension("debugfs");
        std::fs::write(&script, requests.join("\n")).expect("writing the requests");
        umount(&self.mount).expect("unmounting for debugfs");
        run(sbin("debugfs").arg("-w").arg("-f").args([&script, &self.image]));
        self.mount();
    }

    /// Makes everything below `tops`, which must not be in use, `days` days old (ext4 only).
    pub fn age(&self, tops: &[&Path], days: u64) {
        use std::os::unix::fs::MetadataExt;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
        let mut waiting: Vec<PathBuf> = tops.iter().map(|top| top.to_path_buf()).collect();
        let mut requests = Vec::new();
        while let Some(path) = waiting.pop() {
            let facts = path.symlink_metadata().expect("what is to be aged");
            for field in ["mtime", "ctime", "crtime"] {
                let then = now - days * 86_400;
                requests.push(format!("set_inode_field <{}> {field}_extra 0", facts.ino()));
                requests.push(format!("set_inode_field <{}> {field} @{then}", facts.ino()));
            }
            if facts.is_dir() {
                let entries = std::fs::read_dir(&path).expect("listing what is to be aged");
                waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        }
        self.debugfs(&requests);
    }

    /// Mounts the filesystem, and retries: a process in another mount namespace (podman's) may still use it for a
    /// moment after it was unmounted here, and then other mount options are refused.
    fn mount(&self) {
        let mut message = String::new();
        for _ in 0..100 {
            let mut mount = sbin("mount");
            mount.args(["-t", self.fs.name(), "-o", &self.options]);
            match attempt(mount.args([self.image.as_os_str(), self.mount.as_os_str()])) {
                Ok(()) => return,
                Err(error) if error.contains("busy") => message = error,
                Err(error) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{message}");
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        if let (Err(message), Some(dir)) = (umount(&self.mount), self.dir.take()) {
            // Removing the directory now would delete what is mounted there.
            let kept = dir.keep();
            #[allow(clippy::print_stderr)] // the test harness shows it
            {
                eprintln!("{} stays behind: {message}", kept.display());
            }
        }
    }
}

/// A bind mount, which is unmounted when the value is dropped.
#[derive(Debug)]
pub struct BindMount {
    target: PathBuf,
}

impl BindMount {
    /// Mounts `source` on `target`, which must exist. Drop it before the [`LoopFs`] below it.
    pub fn new(source: &Path, target: &Path) -> Self {
        run(sbin("mount").arg("--bind").args([source, target]));
        Self { target: target.to_path_buf() }
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        if let Err(message) = umount(&self.target) {
            #[allow(clippy::print_stderr)] // the test harness shows it
            {
                eprintln!("{message}");
            }
        }
    }
}

/// Unmounts `target`, and retries while a process is closing a file there.
fn umount(target: &Path) -> Result<(), String> {
    let mut message = String::new();
    for _ in 0..50 {
        match attempt(sbin("umount").arg(target)) {
            Ok(()) => return Ok(()),
            Err(error) => message = error,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(message)
}

/// Returns a command for a program that may be in a directory that only root's PATH contains.
fn sbin(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn run(command: &mut Command) {
    if let Err(message) = attempt(command) {
        panic!("{message}");
    }
}

fn attempt(command: &mut Command) -> Result<(), String> {
    let line = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ");
    let output = command.output().map_err(|error| format!("`{line}` cannot start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{line}` failed ({}): {}", output.status, words.trim()))
}
