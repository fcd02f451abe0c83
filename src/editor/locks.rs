//! The store's locks, taken exclusively and with a deadline.
//!
//! containers/storage takes POSIX record locks over the whole lock file. Open-file-description
//! locks conflict with those and, unlike them, survive the closing of another descriptor of
//! the same file in this process. The lock files are the library's: they are never created
//! and never truncated here.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::io::Errno;

use super::error::{Error, Fault, Refusal, StoreLockHolder};
use crate::stores::containers_storage::locks::whole_file;
use crate::stores::containers_storage::places::RecordKind;
use crate::sys::quiet::Within;
use crate::sys::stop;

/// Length of the token at the start of a lock file.
const TOKEN: usize = 64;

/// Pause between two attempts. The library sleeps in the kernel and is woken at once, so with a long pause this process
/// would never get a lock that many processes take in turn.
const PAUSE: Duration = Duration::from_millis(1);

/// Maximum time for which the first locks are held while waiting for a later one. The order is the library's, so there
/// is no deadlock; but other processes should not wait for long.
const HOLD_AND_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Lock {
    /// The records that it guards; `None` for the lock of a staging area or a temporary directory.
    guards: Option<RecordKind>,
    path: PathBuf,
    file: File,
}

impl Lock {
    /// `file` is open for reading and writing.
    pub(super) fn new(guards: Option<RecordKind>, path: PathBuf, file: File) -> Self {
        Self { guards, path, file }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the exclusive lock if no process holds any; it is released when `self` is dropped.
    pub(super) fn try_exclusive(&self) -> Result<bool, Fault> {
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
            Ok(_) => Ok(true),
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
            Err(error) => Err(self.fault("locking", error)),
        }
    }

    fn unlock(&self) {
        // The only way to fail is a closed descriptor, which `self` rules out.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)));
    }

    /// The process that holds a conflicting lock now.
    fn holder(&self) -> Option<StoreLockHolder> {
        let mut lock = whole_file(libc::F_WRLCK);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
        if libc::c_int::from(lock.l_type) == libc::F_UNLCK {
            return None;
        }
        // 0 or -1: a process of another namespace, or the lock of an open file.
        let pid = u32::try_from(lock.l_pid).ok().filter(|&pid| pid > 0);
        let command = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        let command = command.map(|command| command.trim().to_owned());
        Some(StoreLockHolder { pid, command, runs_for: pid.and_then(runs_for) })
    }

    /// Writes a new token. By it, processes that have read the records notice the change.
    fn touch(&self) -> Result<(), Fault> {
        self.file.write_all_at(&token(), 0).map_err(|error| {
            let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Fault::new("writing the token of", &self.path, error)
        })
    }

    fn fault(&self, doing: &'static str, error: nix::Error) -> Fault {
        Fault::new(doing, &self.path, Errno::from_raw_os_error(error as i32))
    }
}

/// Returns the time since a process was started.
fn runs_for(pid: u32) -> Option<SignedDuration> {
    /// `USER_HZ`, which is the same on all architectures that container runtimes support.
    const TICKS_OF_A_SECOND: i64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `starttime` is field 22 of `proc_pid_stat(5)`, in ticks since the boot; the name in parentheses is the second.
    let ticks: i64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(SignedDuration::from_secs(boot.tv_sec.saturating_sub(ticks / TICKS_OF_A_SECOND)))
}

/// A new token in the library's format: time, counter, process id, random bytes. Readers only check that it is new.
fn token() -> [u8; TOKEN] {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut token = [0; TOKEN];
    let (head, noise) = token.split_at_mut(20);
    // Nanoseconds since 1970 fit into 64 bits until the year 2554.
    head[..8].copy_from_slice(&u64::try_from(now).unwrap_or(u64::MAX).to_le_bytes());
    head[8..16].copy_from_slice(&COUNTER.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    head[16..].copy_from_slice(&std::process::id().to_le_bytes());
    for chunk in noise.chunks_mut(8) {
        chunk.copy_from_slice(&noise64().to_le_bytes()[..chunk.len()]);
    }
    token
}

/// A random number that cannot be guessed, from the seeds of the standard library's hash tables.
pub(super) fn noise64() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The locks of a store, all held; dropping them releases them.
#[derive(Debug)]
pub(super) struct HeldLocks {
    locks: Vec<Lock>,
    since: Instant,
}

impl HeldLocks {
    /// Takes `locks`, which must be in the library's order, within `patience`.
    pub(super) fn take(locks: Vec<Lock>, patience: Duration) -> Result<Self, Error> {
        let started = Instant::now();
        loop {
            if stop::is_requested() {
                return Err(Error::Interrupted);
            }
            let Some(missing) = take_all(&locks, started, patience)? else {
                return Ok(Self { locks, since: Instant::now() });
            };
            let waited = started.elapsed();
            if waited >= patience {
                let lock = &locks[missing];
                return Err(Error::Locked { path: lock.path.clone(), holder: lock.holder(), waited });
            }
        }
    }

    /// Proves that the locked files are those that other processes lock: a store that was wiped and recreated has new
    /// ones.
    pub(super) fn prove_current(&self, within: &Within) -> Result<(), Error> {
        use std::os::unix::fs::MetadataExt;
        for lock in &self.locks {
            let now = within.facts(&lock.path).map(|facts| (facts.device, facts.inode)).ok();
            if lock.file.metadata().map(|facts| (facts.dev(), facts.ino())).ok() != now {
                let change = "it was replaced".to_owned();
                return Err(Refusal::Changed { id: lock.path.display().to_string(), change }.into());
            }
        }
        Ok(())
    }

    /// Releases the locks. Returns the time for which they were held.
    pub(super) fn release(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }

    /// Writes new tokens into the locks that guard these records. A split store has two lock files, and readers compare
    /// the first.
    pub(super) fn touch(&self, kind: RecordKind) -> Result<(), Fault> {
        self.locks.iter().filter(|lock| lock.guards == Some(kind)).try_for_each(Lock::touch)
    }

    /// The lock file whose token could not be written, if `fault` is that failure.
    pub(super) fn file_of(&self, fault: &Fault) -> Option<&File> {
        self.locks.iter().find(|lock| lock.path == fault.path).map(|lock| &lock.file)
    }
}

/// Takes all locks, or none: then it returns the position of the first that another process holds.
fn take_all(locks: &[Lock], started: Instant, patience: Duration) -> Result<Option<usize>, Fault> {
    for (position, lock) in locks.iter().enumerate() {
        let since = Instant::now();
        let taken = loop {
            match lock.try_exclusive() {
                Ok(true) => break Ok(true),
                Err(fault) => break Err(fault),
                Ok(false) => {}
            }
            let holds_too_long = position > 0 && since.elapsed() >= HOLD_AND_WAIT;
            if holds_too_long || started.elapsed() >= patience || stop::is_requested() {
                break Ok(false);
            }
            std::thread::sleep(PAUSE);
        };
        if !matches!(taken, Ok(true)) {
            locks[..position].iter().rev().for_each(Lock::unlock);
            if matches!(taken, Ok(false)) {
                // Processes that wait for the locks just released take them first.
                std::thread::sleep(PAUSE * 3);
            }
            return taken.map(|_| Some(position));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(path: &Path) -> Lock {
        let file = File::options().read(true).write(true).open(path).unwrap();
        Lock::new(Some(RecordKind::Layers), path.to_path_buf(), file)
    }

    #[test]
    fn all_locks_or_none_are_taken_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        std::fs::write(&first, b"").unwrap();
        std::fs::write(&second, [b'x'; 64]).unwrap();
        let other = lock(&second);
        assert!(other.try_exclusive().unwrap());
        let started = Instant::now();
        let error =
            HeldLocks::take(vec![lock(&first), lock(&second)], Duration::from_millis(300)).unwrap_err();
        assert!((300..3000).contains(&started.elapsed().as_millis()));
        let Error::Locked { path, holder, .. } = error else { panic!("{error}") };
        assert_eq!(path, second);
        // The lock of an open file belongs to no process.
        assert_eq!(holder, Some(StoreLockHolder { pid: None, command: None, runs_for: None }));
        // The first was released.
        assert!(lock(&first).try_exclusive().unwrap());
        drop(other);
        let held = HeldLocks::take(vec![lock(&first), lock(&second)], Duration::from_millis(300)).unwrap();
        assert!(!lock(&first).try_exclusive().unwrap());
        // Opening and closing the file elsewhere must not drop the lock.
        drop(std::fs::read(&second).unwrap());
        assert!(!lock(&second).try_exclusive().unwrap());
        held.touch(RecordKind::Images).unwrap();
        assert_eq!(std::fs::read(&second).unwrap(), [b'x'; 64]);
        held.touch(RecordKind::Layers).unwrap();
        let tokens = [&first, &second].map(|path| std::fs::read(path).unwrap());
        assert!(tokens.iter().all(|token| token.len() == TOKEN) && tokens[0] != tokens[1]);
    }

    #[test]
    fn start_of_a_process_is_known() {
        let since = runs_for(std::process::id()).unwrap();
        assert!((0..86_400).contains(&since.as_secs()), "{since}");
        assert!(runs_for(1).unwrap() >= since);
    }

    #[test]
    fn tokens_never_repeat() {
        let tokens: std::collections::HashSet<_> = (0..1000).map(|_| token()).collect();
        assert_eq!(tokens.len(), 1000);
        let noise: std::collections::HashSet<_> = tokens.iter().map(|token| token[20..].to_vec()).collect();
        assert_eq!(noise.len(), 1000);
    }
}
