//! The compared programs: layersweep, the floor, and other programs, with flags that make them count the same:
//! allocated bytes, and hard links once if they can.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// The name of layersweep in results.
pub const OURS: &str = "layersweep";
/// The name of layersweep in results when it has scanned before.
pub const AGAIN: &str = "again";
/// The floor that warm runs are compared with.
pub const FLOOR: &str = "floor-2";

/// The role of a program in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Ours,
    /// Layersweep with the records of an earlier scan.
    Again,
    Floor,
    Peer,
}

/// A program with its arguments.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    pub role: Role,
    path: PathBuf,
    arguments: Vec<String>,
}

impl Program {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }

    /// The command line as on a terminal.
    pub fn line(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} {}", self.arguments.join(" "))
    }

    /// Reads the program into the page cache; its loading is not measured.
    pub fn load(&self) {
        let _ = process::output(Command::new(&self.path).arg("--version"));
    }
}

/// Returns the existing programs, and the names of the missing ones.
pub fn all(state_dir: &Path, graphroot: &Path) -> (Vec<Program>, Vec<&'static str>) {
    let root = graphroot.display().to_string();
    let mut programs = vec![ours(&root), again(state_dir, &root)];
    for (name, threads) in [(FLOOR, "2"), ("floor-32", "32")] {
        programs.push(itself(name, Role::Floor, &["floor", threads, &root]));
    }
    let mut missing = Vec::new();
    let peers: [(&'static str, &[&str]); 6] = [
        ("du", &["-s", "--block-size=1", "--"]),
        (
            "gdu",
            &[
                "--non-interactive",
                "--no-progress",
                "--summarize",
                "--no-prefix",
                "--ignore-dirs",
                "/nowhere",
            ],
        ),
        (
            "dust",
            &["--depth", "0", "--no-progress", "--no-percent-bars", "--no-colors", "--output-format", "b"],
        ),
        ("dua", &["--format", "bytes", "aggregate"]),
        (
            "pdu",
            &[
                "--quantity",
                "block-size",
                "--deduplicate-hardlinks",
                "--max-depth",
                "1",
                "--bytes-format",
                "plain",
            ],
        ),
        ("diskus", &[]),
    ];
    for (name, flags) in peers {
        match find(name) {
            Some(path) => {
                let arguments = flags.iter().map(ToString::to_string).chain([root.clone()]);
                programs.push(Program { name, role: Role::Peer, path, arguments: arguments.collect() });
            }
            None => missing.push(name),
        }
    }
    (programs, missing)
}

/// A scan that measures everything and records nothing.
fn ours(root: &str) -> Program {
    scan(OURS, Role::Ours, &["--graphroot", root, "--full", "--no-record"])
}

/// A scan with records, as a timer runs it: layers that an earlier scan measured are not walked again.
fn again(state_dir: &Path, root: &str) -> Program {
    scan(AGAIN, Role::Again, &["--graphroot", root, "--state-dir", &state_dir.display().to_string()])
}

/// The real command.
fn scan(name: &'static str, role: Role, flags: &[&str]) -> Program {
    let arguments = ["scan", "--format", "json"].iter().chain(flags).map(ToString::to_string).collect();
    Program { name, role, path: env!("CARGO_BIN_EXE_layersweep").into(), arguments }
}

/// A part of this benchmark.
fn itself(name: &'static str, role: Role, arguments: &[&str]) -> Program {
    let path = std::env::current_exe().unwrap_or_default();
    Program { name, role, path, arguments: arguments.iter().map(ToString::to_string).collect() }
}

/// Searches first in the directory of `benches/peers.sh`, then in PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers/bin");
    std::iter::once(peers)
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
