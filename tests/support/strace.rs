//! Records a program's filesystem calls with strace.

use std::ffi::OsString;
use std::path::Path;

use super::program::{self, Run};

/// Every system call that can name or change a file.
const CALLS: &str = "trace=%file,ftruncate,fallocate,fchmod,fchown,fsetxattr,fremovexattr,\
                     utimensat,futimesat,write,pwrite64,writev,pwritev,copy_file_range,ioctl";

/// Runs the program under `strace -f -y` (descriptors are shown with their paths); returns the run and the lines of the
/// trace.
pub fn trace(args: &[OsString], scratch: &Path) -> (Run, Vec<String>) {
    let output = scratch.join("strace.out");
    let mut command = std::process::Command::new("strace");
    program::hermetic(&mut command);
    command
        .args(["-f", "-y", "-s", "4096", "-e", CALLS, "-e", "signal=none", "-o"])
        .arg(&output)
        .arg(env!("CARGO_BIN_EXE_layersweep"))
        .args(args);
    let run = program::run(&mut command);
    let text = std::fs::read(&output).expect("strace writes its output");
    let text = String::from_utf8_lossy(&text);
    (run, text.lines().map(str::to_owned).collect())
}

/// Returns the reason why a traced call changes something below `store`, or `None` if it only reads.
pub fn offence(line: &str, store: &Path) -> Option<&'static str> {
    let call = call_name(line)?;
    if !line.contains(store.to_str().expect("a path in UTF-8")) {
        return None;
    }
    match call {
        "open" | "openat" | "openat2" => open_offence(line),
        // Reading the facts of a path does not change it.
        "stat" | "lstat" | "newfstatat" | "fstatat64" | "statx" | "access" | "faccessat" | "faccessat2"
        | "statfs" | "statfs64" | "getcwd" | "execve" | "fstat" | "chdir" => None,
        "getxattr" | "lgetxattr" | "listxattr" | "llistxattr" | "name_to_handle_at" => None,
        // Reading a symlink changes its access time. On any other file the call fails and changes nothing (realpath
        // recognises symlinks this way).
        "readlink" | "readlinkat" if line.contains(" = -1 EINVAL") => None,
        // A link of procfs that leads into the store, such as an open file of a process.
        "readlink" if line.contains("readlink(\"/proc/") => None,
        "readlink" | "readlinkat" => Some("reads a symlink"),
        // A copy of a mount that is attached nowhere, and attributes of such a copy.
        "open_tree" if line.contains("OPEN_TREE_CLONE") => None,
        "mount_setattr" if line.contains(", \"\", AT_EMPTY_PATH, ") => None,
        // FIEMAP and the inode flags are queries, not changes.
        "ioctl" if line.contains("FIEMAP") || line.contains("GETFLAGS") => None,
        "ioctl" if line.contains("FSGETXATTR") || line.contains("XFS_IOC_FSGEOMETRY") => None,
        // Text about the store in the program's own output.
        "write" | "writev" if written_elsewhere(line, store) => None,
        _ => Some("changes something"),
    }
}

fn open_offence(line: &str) -> Option<&'static str> {
    let flags = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"];
    if flags.iter().any(|flag| line.contains(flag)) {
        return Some("opens for writing");
    }
    let failed = line.contains(" = -1 ");
    if !failed && !line.contains("O_NOATIME") && !line.contains("O_PATH") {
        return Some("opens with access times");
    }
    None
}

/// Returns whether the descriptor of a write is outside the store.
fn written_elsewhere(line: &str, store: &Path) -> bool {
    let Some((_, rest)) = line.split_once('(') else {
        return false;
    };
    let descriptor = rest.split(',').next().unwrap_or_default();
    !descriptor.contains(store.to_str().expect("a path in UTF-8"))
}

/// Returns the name of the call in a line such as `1234 openat(5</x>, "y", O_RDONLY) = 6`.
fn call_name(line: &str) -> Option<&str> {
    let after_pid = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let (name, _) = after_pid.split_once('(')?;
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (plain && !name.is_empty()).then_some(name)
}
