//! Processes that do not answer; `tests/rigs/hostile.py` makes them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::store;

/// Uid of a user that owns nothing on this machine.
pub const NOBODY: &str = "65534";

/// Returns whether hostile processes can be made here; skips, or fails under CI.
pub fn require() -> bool {
    if !super::require_root() || !super::require_program("python3") {
        return false;
    }
    if !Path::new("/dev/fuse").exists() {
        let made = Command::new("mknod").args(["/dev/fuse", "c", "10", "229"]).status();
        if !made.is_ok_and(|status| status.success()) {
            return super::skip("this test needs /dev/fuse");
        }
    }
    true
}

/// A hostile process, which ends when the value is dropped.
#[derive(Debug)]
pub struct Hostile {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Hostile {
    /// Starts a process and waits until it is ready.
    pub fn new(arguments: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.arg(store::rig("hostile.py")).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starting python3");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut hostile = Self { child, output };
        hostile.expect("ready");
        hostile
    }

    fn expect(&mut self, word: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("reading what it says");
        assert_eq!(line.trim(), word);
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Mounts a filesystem that answers until [`Self::fall_silent`].
    pub fn fuse(mount: &Path, user: &str, options: &str) -> Self {
        Self::new(&["serve", mount.to_str().expect("UTF-8"), user, options])
    }

    /// Mounts the same filesystem in a private mount namespace, which no other process sees.
    pub fn private_fuse(mount: &Path, user: &str, options: &str) -> Self {
        Self::new(&["serve", mount.to_str().expect("UTF-8"), user, options, "private"])
    }

    /// Returns a path as this process sees it.
    pub fn path(&self, path: &Path) -> std::path::PathBuf {
        let root = Path::new("/proc").join(self.id().to_string()).join("root");
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }

    /// Stops answering.
    pub fn fall_silent(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).expect("a signal");
        self.expect("silent");
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // Ending a filesystem gives an error to every process that waits for it.
        let _ = self.child.kill();
        // A process that waits for such a filesystem ends after that.
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Mount point that is unmounted when this is dropped.
#[derive(Debug)]
pub struct Unmounted<'a>(pub &'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        while Command::new("umount")
            .arg("-l")
            .arg(self.0)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
        {}
    }
}
