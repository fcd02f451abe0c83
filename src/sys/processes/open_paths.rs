//! Files that one process has open or mapped.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::super::patience::{Patience, Pulse};

/// Suffix that the kernel adds to the name of a deleted file.
pub(super) const DELETED: &[u8] = b" (deleted)";

/// Maximum size of the table of a process's mappings: 65,530 (the kernel's default limit) with long paths.
const MAX_MAPPINGS: u64 = 16 << 20;

/// Paths of the open and mapped files, the program, and the working and root directories of a process.
#[derive(Default)]
pub(super) struct OpenPaths {
    /// Each followed by a NUL.
    pub(super) paths: Vec<u8>,
    pub(super) count: usize,
    pub(super) is_complete: bool,
}

impl OpenPaths {
    /// Reads them, and retries for a process that is starting or exiting and therefore not readable for a moment.
    /// init is never readable to some.
    pub(super) fn read(
        place: &Path,
        is_init: bool,
        limit: usize,
        (patience, pulse): (&Patience, &Pulse),
    ) -> io::Result<Self> {
        loop {
            match Self::read_once(place, limit, pulse) {
                Err(error) if !is_gone(&error) && !is_init && patience.wait() => pulse.beat(),
                Ok(mut held) => {
                    // Also of a user without rights: a daemon may have given up root's rights afterwards.
                    held.add_mapped(place);
                    return Ok(held);
                }
                error => return error,
            }
        }
    }

    /// Adds the files that the process has mapped, which it may have closed. The kernel lists them without reading the
    /// memory of the process, but waits for a change of its mappings that is in progress.
    fn add_mapped(&mut self, place: &Path) {
        let mut table = Vec::new();
        let read = fs::File::open(place.join("maps"))
            .and_then(|file| file.take(MAX_MAPPINGS).read_to_end(&mut table));
        self.is_complete &= match read {
            Ok(length) => (length as u64) < MAX_MAPPINGS,
            Err(error) => is_gone(&error),
        };
        let mut last: &[u8] = b"";
        for line in table.split(|byte| *byte == b'\n') {
            // Address, rights, offset, device and inode are before the path.
            let Some(start) = line.iter().position(|byte| *byte == b'/') else { continue };
            if line[start..] != *last {
                last = &line[start..];
                self.add(Path::new(OsStr::from_bytes(last)));
            }
        }
    }

    fn read_once(place: &Path, limit: usize, pulse: &Pulse) -> io::Result<Self> {
        let mut held = Self { is_complete: true, ..Self::default() };
        for (position, entry) in fs::read_dir(place.join("fd"))?.enumerate() {
            if position >= limit {
                held.is_complete = false;
                break;
            }
            pulse.beat();
            held.link(entry?.path())?;
            held.count = position + 1;
        }
        for name in ["cwd", "root"] {
            // Kernel threads have none.
            held.link(place.join(name))?;
        }
        Ok(held)
    }

    fn link(&mut self, path: PathBuf) -> io::Result<()> {
        if let Some(target) = unless_gone(fs::read_link(path))? {
            self.add(&target);
        }
        Ok(())
    }

    /// Adds a path. Pipes, sockets and devices are ignored: they are not files on a disk.
    pub(super) fn add(&mut self, target: &Path) {
        let is_system = ["/proc", "/sys", "/dev"].iter().any(|top| target.starts_with(top));
        if target.is_absolute() && !is_system && target != Path::new("/") {
            let bytes = target.as_os_str().as_bytes();
            self.paths.extend_from_slice(bytes.strip_suffix(DELETED).unwrap_or(bytes));
            self.paths.push(0);
        }
    }
}

/// Returns whether the process ended meanwhile.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}

/// Returns `None` for a process that has ended; a zombie has no namespace any more.
pub(super) fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) || Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}
