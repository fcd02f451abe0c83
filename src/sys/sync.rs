//! `syncfs` in a child process.
//!
//! On a disk that hangs, `syncfs` never returns and cannot be interrupted, and a process with a thread inside it
//! cannot exit. A child process can be abandoned.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::processes::helper;
use super::stop;

/// First argument of the child process. Its stdin is on the filesystem that is synchronised.
pub const ARGUMENT: &str = "__sync-filesystem";

/// Runs the child process. It exits with the error number, or 0.
#[must_use]
pub fn serve() -> ExitCode {
    // After the death of the parent, no process waits for this one.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    match rustix::fs::syncfs(io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(u8::try_from(error.raw_os_error()).unwrap_or(u8::MAX)),
    }
}

#[derive(Debug)]
pub struct Syncing(SyncState);

#[derive(Debug)]
enum SyncState {
    Runs(Child),
    Ended(Option<i32>),
}

impl Syncing {
    /// Starts to write the delayed data of the filesystem of `directory` to the disk.
    ///
    /// In a program that only links this library, the calling process does this at once.
    pub fn start(directory: impl AsFd) -> io::Result<Self> {
        let Some(mut command) = helper::command(ARGUMENT) else {
            let failed = rustix::fs::syncfs(directory).err();
            return Ok(Self(SyncState::Ended(failed.map(rustix::io::Errno::raw_os_error))));
        };
        let directory = directory.as_fd().try_clone_to_owned()?;
        command.stdin(directory).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(|child| Self(SyncState::Runs(child)))
    }

    #[cfg(test)]
    pub(crate) fn of_child(child: Child) -> Self {
        Self(SyncState::Runs(child))
    }

    /// Returns the result; `None` if it is still running.
    pub fn outcome(&mut self) -> Option<io::Result<()>> {
        if let SyncState::Runs(child) = &mut self.0 {
            match child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => self.0 = SyncState::Ended(status.code().filter(|code| *code != 0)),
                Err(error) => return Some(Err(error)),
            }
        }
        match self.0 {
            SyncState::Ended(Some(code)) => Some(Err(io::Error::from_raw_os_error(code))),
            _ => Some(Ok(())),
        }
    }

    /// Waits for the end, until a deadline or a signal.
    pub fn wait(&mut self, until: Instant) -> io::Result<()> {
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            if stop::is_requested() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Sleeps until the child process has ended, or for `time`.
    fn sleep(&self, time: Duration) {
        let SyncState::Runs(child) = &self.0 else { return };
        let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).and_then(|ended| {
            let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
            poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&time))
        });
        // Kernels before 5.3 have no descriptor for a process.
        if ended.is_err() {
            std::thread::sleep(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn child(script: &str) -> Syncing {
        Syncing::of_child(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    #[test]
    fn hanging_child_is_abandoned_at_the_deadline() {
        let began = Instant::now();
        let mut hangs = Command::new("sleep").arg("600").spawn().map(Syncing::of_child).unwrap();
        assert!(hangs.outcome().is_none());
        let error = hangs.wait(began + Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(2));
        if let SyncState::Runs(child) = &mut hangs.0 {
            child.kill().unwrap();
        }
    }

    #[test]
    fn error_of_the_child_is_returned() {
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(child("exit 5").wait(until).unwrap_err().raw_os_error(), Some(5));
        child("exit 0").wait(until).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap();
        Syncing::start(&directory).unwrap().wait(until).unwrap();
    }
}
