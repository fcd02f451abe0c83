//! Files that the kernel itself has open: those behind loop devices, and swap files. No process has to have them open.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::mounts::unescape;

/// A file and the user of it, for people: `loop device loop3`.
pub(super) type KernelFile = (String, PathBuf);

/// Suffix that the kernel adds to the name of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// Reads the paths of all these files, as the program saw them that passed them to the kernel. Asks no filesystem.
///
/// # Errors
/// If they are not known: without `/sys`, for example.
pub(super) fn read() -> io::Result<Vec<KernelFile>> {
    let mut files = behind_loop_devices(Path::new("/sys/block"))?;
    match std::fs::read("/proc/swaps") {
        Ok(table) => files.extend(swap_files(&table)),
        // The kernel has no swap.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(files)
}

fn behind_loop_devices(block: &Path) -> io::Result<Vec<KernelFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(block)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        // An unused device has no such file.
        let Ok(path) = std::fs::read(block.join(&name).join("loop/backing_file")) else { continue };
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        files.push((format!("loop device {}", name.to_string_lossy()), path_of(path)));
    }
    Ok(files)
}

fn swap_files(table: &[u8]) -> impl Iterator<Item = KernelFile> {
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    lines.filter_map(|line| {
        let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let path = words.next()?;
        (words.next()? == b"file").then(|| ("swap".to_owned(), path_of(&unescape(path))))
    })
}

fn path_of(path: &[u8]) -> PathBuf {
    OsString::from_vec(path.strip_suffix(DELETED).unwrap_or(path).to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_and_swap_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for (device, content) in [("loop0", "/a/b c\n"), ("loop1", "/gone (deleted)\n"), ("sda", "/no\n")] {
            let place = dir.path().join(device).join("loop");
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("backing_file"), content).unwrap();
        }
        std::fs::create_dir(dir.path().join("loop2")).unwrap();
        let mut files = behind_loop_devices(dir.path()).unwrap();
        files.sort();
        let expected = [("loop device loop0", "/a/b c"), ("loop device loop1", "/gone")];
        assert_eq!(files, expected.map(|(user, path)| (user.to_owned(), PathBuf::from(path))));
        assert!(behind_loop_devices(&dir.path().join("none")).is_err(), "nothing is known");
        let table = b"Filename\tType\tSize\n/dev/sda2   partition\t1\n/swap\\040file   file\t\t1\n";
        let swap: Vec<_> = swap_files(table).collect();
        assert_eq!(swap, [("swap".to_owned(), PathBuf::from("/swap file"))]);
    }
}
