//! Servers that have to answer when a mount is read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::users::trusted_uids;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Kernel,
    /// A process or machine that may not answer.
    Remote,
    /// The process of a user who mounted FUSE.
    User,
}

/// Table of the mounts that this process sees. Every step onto another mount needs it, so it is read again only
/// after the kernel reports a change.
struct ServerTable {
    file: File,
    servers: HashMap<u64, Server>,
}

static TABLE: Mutex<Option<ServerTable>> = Mutex::new(None);

/// Returns whether reading in the mount depends on a server that may not answer: the process of a user who mounted
/// FUSE, or any server if a user could have mounted it there.
pub(super) fn waits_for_others(mount: Option<u64>, in_trusted_directory: bool) -> bool {
    match mount.and_then(find) {
        Some(Server::Kernel) => false,
        Some(Server::User) => true,
        Some(Server::Remote) | None => !in_trusted_directory,
    }
}

fn find(mount: u64) -> Option<Server> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // If the table cannot be read, nothing is known about any mount.
    let current = table.take().map_or_else(ServerTable::read, ServerTable::refresh).ok()?;
    table.insert(current).servers.get(&mount).copied()
}

impl ServerTable {
    fn read() -> io::Result<Self> {
        let file = File::open("/proc/self/mountinfo")?;
        Self { file, servers: HashMap::new() }.read_again()
    }

    /// Reads the table again if it has changed. The kernel counts changes since the file was opened, and a poll
    /// reports whether there were any since the last one (proc_pid_mounts(5)).
    fn refresh(self) -> io::Result<Self> {
        let mut polled = [PollFd::new(&self.file, PollFlags::PRI)];
        poll(&mut polled, Some(&Timespec::default()))?;
        if polled[0].revents().intersects(PollFlags::PRI | PollFlags::ERR) {
            self.read_again()
        } else {
            Ok(self)
        }
    }

    fn read_again(mut self) -> io::Result<Self> {
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        self.servers = String::from_utf8_lossy(&text).lines().filter_map(server).collect();
        Ok(self)
    }
}

/// Parses the number and the server of a line of the table.
fn server(line: &str) -> Option<(u64, Server)> {
    let id = line.split(' ').next()?.parse().ok()?;
    // proc_pid_mountinfo(5): type, source, options of the filesystem.
    let mut facts = line.split_once(" - ")?.1.split(' ');
    let (kind, options) = (facts.next().unwrap_or_default(), facts.nth(1).unwrap_or_default());
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    if kind.starts_with("fuse") && user.is_some_and(|uid| !trusted_uids().contains(&uid)) {
        return Some((id, Server::User));
    }
    const REMOTE: [&str; 10] =
        ["fuse", "nfs", "cifs", "smb", "9p", "afs", "ceph", "autofs", "coda", "virtiofs"];
    let is_remote = REMOTE.iter().any(|remote| kind.starts_with(remote));
    Some((id, if is_remote { Server::Remote } else { Server::Kernel }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_mount_table_lines() {
        fn of(line: &str) -> Option<Server> {
            server(line).map(|(_, server)| server)
        }
        assert_eq!(of("36 35 98:0 / /m rw shared:1 - ext4 /dev/a rw"), Some(Server::Kernel));
        assert_eq!(of("36 35 0:9 / /m rw - fuse.sshfs a rw,user_id=4711,group_id=0"), Some(Server::User));
        assert_eq!(of("36 35 0:9 / /m rw - fuse.lxcfs a rw,user_id=0,group_id=0"), Some(Server::Remote));
        assert_eq!(of("36 35 0:9 / /m rw - nfs4 host:/a rw"), Some(Server::Remote));
        assert_eq!(of("nonsense"), None);
    }

    /// A mount that was added after the table was read is known, and one that was removed is not.
    #[test]
    fn table_follows_mounts_and_unmounts() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        find(0);
        let dir = tempfile::tempdir().unwrap();
        fn run(words: &[&str], mount_point: &std::path::Path) {
            let status = std::process::Command::new(words[0]).args(&words[1..]).arg(mount_point).status();
            assert!(status.unwrap().success());
        }
        run(&["mount", "-t", "tmpfs", "of-a-test"], dir.path());
        let mounts = crate::sys::mounts::read().unwrap();
        let id = mounts.iter().find(|mount| mount.mount_point == dir.path()).unwrap().id;
        assert_eq!(find(id), Some(Server::Kernel));
        run(&["umount"], dir.path());
        // Another test may have a mount with this number by now.
        let mounts = crate::sys::mounts::read().unwrap();
        assert!(find(id).is_none() || mounts.iter().any(|mount| mount.id == id));
    }
}
