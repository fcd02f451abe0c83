//! The I/O priority of this process.

use std::io;

use nix::libc;

/// Priority of a process for the disk; see `ioprio_set(2)`. Schedulers without priorities (`none`, `mq-deadline` in
/// part) ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPriority {
    #[default]
    Normal,
    /// Best effort, at the lowest of its eight levels.
    BestEffort,
    /// Only while no other process uses the disk; on a busy node that may be never.
    Idle,
}

const CLASS_SHIFT: u32 = 13;
const CLASS_BEST_EFFORT: u32 = 2;
const CLASS_IDLE: u32 = 3;
const LOWEST_LEVEL: u32 = 7;
const WHO_PROCESS: libc::c_int = 1;

impl IoPriority {
    fn encoded(self) -> Option<u32> {
        match self {
            Self::Normal => None,
            Self::BestEffort => Some((CLASS_BEST_EFFORT << CLASS_SHIFT) | LOWEST_LEVEL),
            Self::Idle => Some(CLASS_IDLE << CLASS_SHIFT),
        }
    }

    /// Sets it for the calling thread and for all threads that it starts afterwards. The kernel keeps the priority
    /// per thread, so call this before any pool starts.
    pub fn apply(self) -> io::Result<()> {
        self.encoded().map_or(Ok(()), set)
    }
}

#[allow(unsafe_code)]
fn set(priority: u32) -> io::Result<()> {
    // SAFETY: ioprio_set takes three integers and does not touch the caller's memory; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, priority) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unsafe_code)]
    fn get() -> u32 {
        // SAFETY: as in `set`.
        let now = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
        u32::try_from(now).unwrap()
    }

    #[test]
    fn is_set_and_inherited_by_later_threads() {
        // In a separate thread, so that its priority does not affect other tests.
        std::thread::spawn(|| {
            let before = get();
            IoPriority::Normal.apply().unwrap();
            assert_eq!(get(), before);
            for (priority, class) in [(IoPriority::BestEffort, 2), (IoPriority::Idle, 3)] {
                priority.apply().unwrap();
                assert_eq!(get() >> CLASS_SHIFT, class);
                let inherited = std::thread::spawn(get).join().unwrap();
                assert_eq!(inherited >> CLASS_SHIFT, class);
            }
        })
        .join()
        .unwrap();
    }
}
