//! Which server has to answer when a mount is read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::users::trusted_uids;

/// Who serves a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Kernel,
    /// A process or machine that need not answer.
    Remote,
    /// The process of a user who mounted FUSE.
    User,
}

/// The mounts that we see. Every step onto another mount asks for it, so it is read again only when the
/// kernel says that a mount has come or gone.
struct Table {
    file: File,
    servers: HashMap<u64, Server>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Whether reading in the mount needs somebody to answer who need not: the process of a user who
/// mounted FUSE, or anybody's server where a user could have mounted it.
pub(super) fn waits_for_others(mount: Option<u64>, in_trusted_directory: bool) -> bool {
    match mount.and_then(find) {
        Some(Server::Kernel) => false,
        Some(Server::User) => true,
        Some(Server::Remote) | None => !in_trusted_directory,
    }
}

fn find(mount: u64) -> Option<Server> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // What cannot be read tells nothing about any mount.
    let current = table.take().map_or_else(Table::read, Table::refresh).ok()?;
    table.insert(current).servers.get(&mount).copied()
}

impl Table {
    fn read() -> io::Result<Self> {
        let file = File::open("/proc/self/mountinfo")?;
        Self { file, servers: HashMap::new() }.read_again()
    }

    /// The kernel counts what comes and goes from when the file was opened, and a poll tells whether
    /// it has counted on since the last one (proc_pid_mounts(5)).
    fn refresh(self) -> io::Result<Self> {
        let mut asked = [PollFd::new(&self.file, PollFlags::PRI)];
        poll(&mut asked, Some(&Timespec::default()))?;
        if asked[0].revents().intersects(PollFlags::PRI | PollFlags::ERR) {
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

/// The number and the server of a line of the table.
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
    fn who_serves() {
        let of = |line: &str| server(line).map(|(_, server)| server);
        assert_eq!(of("36 35 98:0 / /m rw shared:1 - ext4 /dev/a rw"), Some(Server::Kernel));
        assert_eq!(of("36 35 0:9 / /m rw - fuse.sshfs a rw,user_id=4711,group_id=0"), Some(Server::User));
        assert_eq!(of("36 35 0:9 / /m rw - fuse.lxcfs a rw,user_id=0,group_id=0"), Some(Server::Remote));
        assert_eq!(of("36 35 0:9 / /m rw - nfs4 host:/a rw"), Some(Server::Remote));
        assert_eq!(of("nonsense"), None);
    }

    /// A mount that came after the table was read is known, and one that has gone is not.
    #[test]
    fn mounts_that_come_and_go() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        find(0);
        let dir = tempfile::tempdir().unwrap();
        let run = |name: &str, args: &[&str]| {
            let status = std::process::Command::new(name).args(args).arg(dir.path()).status();
            assert!(status.unwrap().success());
        };
        run("mount", &["-t", "tmpfs", "of-a-test"]);
        let all = || super::super::mounts::read().unwrap();
        let id = all().iter().find(|one| one.mount_point == dir.path()).unwrap().id;
        assert_eq!(find(id), Some(Server::Kernel));
        run("umount", &[]);
        // Another test may have got the number since.
        assert!(find(id).is_none() || all().iter().any(|one| one.id == id));
    }
}
