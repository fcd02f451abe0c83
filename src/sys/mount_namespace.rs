//! The mount namespace of a process, and who may mount in it.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::root::Who;

pub(super) struct MountNamespace {
    pub(super) inode: u64,
    /// Users who may mount there.
    pub(super) owner: Who,
}

impl MountNamespace {
    /// Returns the mount namespace of the process with the directory `place` in `/proc`.
    ///
    /// A pidfd shows it without waiting for a process in `execve`, since version 6.11. Older kernels do not wait when
    /// the link is opened. `thread` is its number, if system calls accept it. The owner is not read for root's
    /// processes, which matter in any case.
    pub(super) fn of(place: &Path, thread: Option<u32>, is_of_root: bool) -> io::Result<Self> {
        let namespace = match thread.map_or(Err(Errno::NOSYS), from_pidfd) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTTY | Errno::PERM) => {
                fs::File::open(place.join("ns/mnt"))?
            }
            other => other?,
        };
        let inode = rustix::fs::fstat(&namespace)?.st_ino;
        let owner = if is_of_root { None } else { owner_of_mounts(&namespace) };
        Ok(Self { inode, owner: owner.unwrap_or_else(|| Who { is_privileged: true, uids: vec![] }) })
    }
}

/// Reads a mount table that is no longer than `limit`.
pub(super) fn read_table(place: &Path, limit: u64, until: Instant) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(place.join("mountinfo"))?;
    let (mut table, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(table),
            Ok(length) => table.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if table.len() as u64 > limit {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "there are too many"));
        }
        if Instant::now() >= until {
            return Err(io::Error::new(ErrorKind::TimedOut, "reading them takes too long"));
        }
    }
}

/// Returns who may mount in a mount namespace: the owner of its user namespace, and root if that is the namespace of
/// this process. `None` if the kernel does not show it.
fn owner_of_mounts(mounts: &fs::File) -> Option<Who> {
    /// `NS_GET_USERNS` of `ioctl_nsfs(2)`: returns the user namespace that another namespace belongs to.
    const GET_USERS: GetNamespace<0xb7, 1> = GetNamespace;
    let users = namespace_from(mounts, GET_USERS).ok()?;
    let this_process = fs::File::open("/proc/self/ns/user").ok()?;
    let (mine, other) = (rustix::fs::fstat(&this_process).ok()?, rustix::fs::fstat(&users).ok()?);
    if (mine.st_dev, mine.st_ino) == (other.st_dev, other.st_ino) {
        Some(Who { is_privileged: true, uids: vec![] })
    } else {
        owner_of_users(&users).ok().map(Who::user)
    }
}

fn from_pidfd(thread: u32) -> rustix::io::Result<fs::File> {
    /// `PIDFD_GET_MNT_NAMESPACE` of `ioctl_pidfd(2)`, since version 6.11.
    const GET_MOUNTS: GetNamespace<0xff, 3> = GetNamespace;
    // `PIDFD_THREAD` has the value of `O_EXCL`.
    let flags = rustix::process::PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    let thread = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw).ok_or(Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(thread, flags)?;
    namespace_from(&pidfd, GET_MOUNTS).map(fs::File::from)
}

/// An operation without an argument that returns the descriptor of a namespace.
struct GetNamespace<const GROUP: u8, const NUMBER: u8>;

#[allow(unsafe_code)]
// SAFETY: the operations above take no argument and return a new descriptor, which has no other owner; they do not
// change the caller's memory.
unsafe impl<const GROUP: u8, const NUMBER: u8> rustix::ioctl::Ioctl for GetNamespace<GROUP, NUMBER> {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;
    fn opcode(&self) -> rustix::ioctl::Opcode {
        rustix::ioctl::opcode::none(GROUP, NUMBER)
    }
    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        core::ptr::null_mut()
    }
    unsafe fn output_from_ptr(
        returned: rustix::ioctl::IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        use std::os::fd::FromRawFd;
        // SAFETY: the kernel has just created this descriptor for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(returned) })
    }
}

#[allow(unsafe_code)]
fn namespace_from<const GROUP: u8, const NUMBER: u8>(
    descriptor: impl std::os::fd::AsFd,
    operation: GetNamespace<GROUP, NUMBER>,
) -> rustix::io::Result<OwnedFd> {
    // SAFETY: as above; other kinds of descriptors answer ENOTTY.
    unsafe { rustix::ioctl::ioctl(descriptor, operation) }
}

/// `NS_GET_OWNER_UID`: returns the user who created a user namespace.
#[allow(unsafe_code)]
fn owner_of_users(users: &OwnedFd) -> rustix::io::Result<u32> {
    const NS_GET_OWNER_UID: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0xb7, 4);
    // SAFETY: the kernel writes a `uid_t`, which is a `u32` on Linux, and nothing else.
    unsafe { rustix::ioctl::ioctl(users, rustix::ioctl::Getter::<NS_GET_OWNER_UID, u32>::new()) }
}
