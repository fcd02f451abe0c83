//! Files that have no name any more and still cost bytes, since a process holds them open.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::mounts;

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
const MARK: &str = " (deleted)";

/// The deleted files that processes hold open, each once, the largest first. Processes that we
/// may not look into are passed over.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn files() -> io::Result<Vec<DeletedFile>> {
    files_in(Path::new("/proc"))
}

fn files_in(proc: &Path) -> io::Result<Vec<DeletedFile>> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for process in std::fs::read_dir(proc)? {
        let Ok(process) = process else { continue };
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // It may end at any moment.
        let Ok(open) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for one in open.flatten() {
            let Ok(target) = std::fs::read_link(one.path()) else { continue };
            let Some(path) = target.to_str().and_then(|target| target.strip_suffix(MARK)) else { continue };
            // Through the descriptor, not by the name: that is another file's by now, or nobody's.
            let Ok(facts) = std::fs::metadata(one.path()) else { continue };
            if facts.nlink() > 0 || !facts.is_file() || !seen.insert((facts.dev(), facts.ino())) {
                continue;
            }
            let lies = if rustix::fs::major(facts.dev()) == 0 {
                lies(&process.path(), &one.file_name())
            } else {
                Some(None)
            };
            // Of an overlay only what was written to is in its own layer.
            let Some(lies) = lies else { continue };
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(DeletedFile {
                device: facts.dev(),
                lies,
                bytes: facts.blocks().saturating_mul(512),
                path: path.into(),
                holder: format!("{} (pid {id})", name.trim_end()),
            });
        }
    }
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
}

/// By the mount that a descriptor was opened through. `None`: it is a file of a layer below, which
/// still has its name there.
fn lies(process: &Path, descriptor: &OsStr) -> Option<Option<Lies>> {
    let opened = std::fs::read_to_string(process.join("fdinfo").join(descriptor)).unwrap_or_default();
    let field = |name: &str| opened.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let Some(id) = field("mnt_id:").and_then(|id| id.parse().ok()) else { return Some(None) };
    let table = std::fs::read(process.join("mountinfo")).unwrap_or_default();
    let Some((mount, upper)) = mount_of(&table, id) else { return Some(None) };
    if mount.fstype != "overlay" {
        return Some(Some(Lies::Source(mount.source)));
    }
    let flags = field("flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok());
    // O_WRONLY or O_RDWR: opening has copied it up.
    let writes = flags.is_some_and(|flags| flags & 0o3 != 0);
    writes.then(|| upper.map(Lies::Upper))
}

/// A mount of a table by its number, and the upper directory if it is an overlay.
fn mount_of(table: &[u8], id: u64) -> Option<(mounts::Mount, Option<PathBuf>)> {
    let line = table.split(|byte| *byte == b'\n').find(|line| {
        let number = line.split(|byte| *byte == b' ').next();
        number.is_some_and(|number| number == id.to_string().as_bytes())
    })?;
    let options = line.rsplit(|byte| *byte == b' ').next()?;
    let upper = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"upperdir="));
    let upper = upper.map(|upper| OsString::from_vec(mounts::unescape(upper)).into());
    Some((mounts::parse_line(line)?, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
        let table = br"29 1 254:1 / / rw - ext4 /dev/vda1 rw
123 29 0:52 / /merged rw,relatime - overlay overlay rw,lowerdir=l/A:l/B,upperdir=/var/lib/a\040b/diff,workdir=/w
124 29 0:53 / /data rw - btrfs /dev/vdb rw,subvol=/x
";
        let (mount, upper) = mount_of(table, 123).unwrap();
        assert_eq!((mount.fstype.as_str(), upper), ("overlay", Some("/var/lib/a b/diff".into())));
        let (mount, upper) = mount_of(table, 124).unwrap();
        assert_eq!((mount.source.as_str(), upper), ("/dev/vdb", None));
        assert_eq!(mount_of(table, 12), None);
    }
}
