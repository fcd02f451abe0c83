//! Processes that never answer; `tests/rigs/hostile.py` makes them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::store;

/// The user that nothing on this machine belongs to.
pub const NOBODY: &str = "65534";

/// Whether hostile processes can be made here; skips, or fails under CI.
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

/// One of them; it ends with this value.
#[derive(Debug)]
pub struct Hostile {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Hostile {
    /// Starts one and waits until it is ready.
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

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A filesystem that answers, until it is told not to.
    pub fn fuse(at: &Path, user: &str, options: &str) -> Self {
        Self::new(&["serve", at.to_str().expect("UTF-8"), user, options])
    }

    /// The same in a mount namespace of its own: nobody else comes by it.
    pub fn private_fuse(at: &Path, user: &str, options: &str) -> Self {
        Self::new(&["serve", at.to_str().expect("UTF-8"), user, options, "private"])
    }

    /// A path as this process has it.
    pub fn path(&self, path: &Path) -> std::path::PathBuf {
        let root = Path::new("/proc").join(self.id().to_string()).join("root");
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }

    /// From now on it answers nothing.
    pub fn fall_silent(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).expect("a signal");
        self.expect("silent");
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // Of a filesystem it is the end: who waited for it gets an error.
        let _ = self.child.kill();
        // One that waits for such a filesystem ends after that.
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Unmounted at the end, whatever is mounted there.
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
