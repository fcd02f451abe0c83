//! Files that have no name any more and still cost bytes, since a process holds them open.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A deleted file that somebody holds open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedFile {
    /// Device number of its filesystem.
    pub device: u64,
    /// Allocated bytes.
    pub bytes: u64,
    /// The name that it had, as its holder's mount namespace had it.
    pub path: PathBuf,
    /// Who holds it: `java (pid 17)`.
    pub holder: String,
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
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(DeletedFile {
                device: facts.dev(),
                bytes: facts.blocks().saturating_mul(512),
                path: path.into(),
                holder: format!("{} (pid {id})", name.trim_end()),
            });
        }
    }
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    Ok(found)
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
}
