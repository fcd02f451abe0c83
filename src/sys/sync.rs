//! `syncfs` in a child process.
//!
//! On a hanging disk it never returns and cannot be interrupted, and a process with a thread inside
//! it cannot exit. A child can be abandoned.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::{helper, stop};

/// The first argument of the process that synchronises; the filesystem is that of its stdin.
pub const ARGUMENT: &str = "__sync-filesystem";

/// What that process does. It exits with the number of the error, or 0.
#[must_use]
pub fn serve() -> ExitCode {
    // Nobody waits for it after the death of who asked.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    match rustix::fs::syncfs(io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(u8::try_from(error.raw_os_error()).unwrap_or(u8::MAX)),
    }
}

/// A synchronisation that was begun.
#[derive(Debug)]
pub struct Syncing(SyncState);

#[derive(Debug)]
enum SyncState {
    Runs(Child),
    Ended(Option<i32>),
}

impl Syncing {
    /// Begins to write out what the filesystem of `directory` has put off.
    ///
    /// In a program that only links this library it is done at once, by the caller itself.
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

    /// What came of it; `None`: it has not ended.
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
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            if stop::is_asked() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(50));
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
    fn one_that_never_ends_is_left_at_the_deadline() {
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
    fn its_error_is_told() {
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(child("exit 5").wait(until).unwrap_err().raw_os_error(), Some(5));
        child("exit 0").wait(until).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let directory = std::fs::File::open(dir.path()).unwrap();
        Syncing::start(&directory).unwrap().wait(until).unwrap();
    }
}
