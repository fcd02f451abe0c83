//! Reads small files and directory listings inside a root without leaving a trace: no access
//! time changes, only regular files are opened, and sizes are limited.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode};

use super::Sysroot;
use crate::sys::{beneath, root};

/// What a directory entry is, without following it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    File,
    Symlink,
    /// A socket, FIFO or device.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysrootEntry {
    pub name: OsString,
    pub kind: EntryKind,
}

impl Sysroot {
    /// The text of a file inside the root, UTF-8, at most `limit_bytes` long. `/dev/null`
    /// reads as empty, since people name it to mean "no configuration".
    ///
    /// # Errors
    /// When it cannot be found or read, is not a regular file, is longer, or is not UTF-8.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> io::Result<String> {
        String::from_utf8(self.read_bytes(path, limit_bytes)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            io::Error::new(io::ErrorKind::InvalidData, format!("not valid UTF-8 at byte {at} on"))
        })
    }

    /// The bytes of a file inside the root, at most `limit_bytes` of them.
    pub fn read_bytes(&self, path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let (handle, placed) = self.handle(path)?;
        // Looked at before it is opened: opening a device or a FIFO can have effects.
        let stat = rustix::fs::fstat(&handle)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::CharacterDevice && placed == Path::new("/dev/null") {
            return Ok(Vec::new());
        }
        if kind != FileType::RegularFile {
            return Err(not_a_file(kind == FileType::Directory));
        }
        let file = File::from(beneath::reopen(handle.as_fd())?);
        // One more than there should be tells the end at the first try.
        let length = u64::try_from(stat.st_size).unwrap_or(0).min(limit_bytes).saturating_add(1);
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        file.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit_bytes {
            let message = format!("larger than {limit_bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(bytes)
    }

    /// What a path leads to, opened only to be examined, and where that is.
    fn handle(&self, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
        if !self.is_foreign() {
            return root::find(&std::path::absolute(path)?);
        }
        let placed = self.resolve(path)?;
        Ok((rustix::fs::openat(CWD, &placed, beneath::HANDLE, Mode::empty())?, placed))
    }

    /// What is in a directory inside the root, sorted by name as bytes.
    ///
    /// # Errors
    /// When it cannot be found or listed, or is not a directory.
    pub fn list(&self, path: &Path) -> io::Result<Vec<SysrootEntry>> {
        let fd = self.open(path)?.directory()?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                let stat = rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
                kind = FileType::from_raw_mode(stat.st_mode);
            }
            let kind = match kind {
                FileType::Directory => EntryKind::Directory,
                FileType::RegularFile => EntryKind::File,
                FileType::Symlink => EntryKind::Symlink,
                _ => EntryKind::Other,
            };
            entries.push(SysrootEntry { name: name.to_os_string(), kind });
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    }
}

fn not_a_file(is_directory: bool) -> io::Error {
    if is_directory {
        io::Error::new(io::ErrorKind::IsADirectory, "a directory, not a file")
    } else {
        io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
    }
}
