//! Files that have no name any more and still cost bytes, since a process holds them open.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::processes::read::{Record, Wanted};
use super::{helper, mounts};

/// A deleted file that somebody holds open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedFile {
    /// Device number as `stat` has it: that of an overlay or a subvolume is no filesystem's.
    pub device: u64,
    /// Where that is none: what its bytes lie on.
    pub lies: Option<Lies>,
    /// Allocated bytes.
    pub bytes: u64,
    /// The name that it had, as its holder's mount namespace had it.
    pub path: PathBuf,
    /// Who holds it: `java (pid 17)`.
    pub holder: String,
}

/// What the bytes of a file lie on whose device number tells nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lies {
    /// The upper directory of an overlay, as whoever mounted it has it: it may be relative.
    Upper(PathBuf),
    /// The source of its mount: `/dev/vda4`.
    Source(String),
}

/// What the kernel puts behind the name of a file without one.
pub(super) const MARK: &[u8] = b" (deleted)";

/// The deleted files that processes hold open, each once, the largest first. Processes that we
/// may not look into are passed over, and so are files on filesystems that wait for a server or
/// a process: asking for their size may take for ever.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn files() -> io::Result<Vec<DeletedFile>> {
    let mut found = Vec::new();
    helper::ask(Wanted { deleted: true, ..Wanted::default() }, &mut |record, body| {
        if let Record::Deleted { id, name, device, bytes, lies } = record {
            let path = PathBuf::from(OsStr::from_bytes(body));
            let holder = format!("{name} (pid {id})");
            found.push(DeletedFile { device, lies: lies.map(Lies::from), bytes, path, holder });
        }
    })?;
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
}

/// The mount of a line of a mount table, and the upper directory (as bytes) if it is an overlay.
pub(super) fn mount_with_upper(line: &[u8]) -> Option<(mounts::Mount, Option<Vec<u8>>)> {
    let mount = mounts::parse_line(line)?;
    let options = line.rsplit(|byte| *byte == b' ').next()?;
    let upper = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"upperdir="));
    Some((mount, upper.map(mounts::unescape)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_of_ours_that_is_deleted_and_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let device = file.metadata().unwrap().dev();
        let is_it = |one: &&DeletedFile| one.path.ends_with("gone") && one.path.starts_with(dir.path());
        assert!(files().unwrap().iter().find(is_it).is_none(), "it still has its name");
        std::fs::remove_file(&path).unwrap();
        let all = files().unwrap();
        let found: Vec<_> = all.iter().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{all:?}");
        assert_eq!(found[0].device, device);
        assert!(found[0].bytes >= 1 << 20);
        assert!(found[0].holder.contains(&format!("pid {}", std::process::id())));
    }

    #[test]
    fn where_an_overlay_keeps_what_was_written() {
        let line = br"123 29 0:52 / /merged rw,relatime - overlay overlay rw,lowerdir=l/A:l/B,upperdir=/var/lib/a\040b/diff,workdir=/w";
        let (mount, upper) = mount_with_upper(line).unwrap();
        assert_eq!((mount.fstype.as_str(), upper.as_deref()), ("overlay", Some(&b"/var/lib/a b/diff"[..])));
        let (mount, upper) =
            mount_with_upper(b"124 29 0:53 / /data rw - btrfs /dev/vdb rw,subvol=/x").unwrap();
        assert_eq!((mount.source.as_str(), upper), ("/dev/vdb", None));
        assert!(mount_with_upper(b"nonsense").is_none());
    }
}
