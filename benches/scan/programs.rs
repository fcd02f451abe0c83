//! What is compared: ours, the floor, and other programs with the flags that make them
//! count the same: allocated bytes, and hard links once where they can.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// The name of ours in results.
pub const OURS: &str = "layersweep";
/// The name of ours when it has scanned before.
pub const AGAIN: &str = "again";
/// The floor that warm runs are measured by.
pub const FLOOR: &str = "floor-2";

/// What a program is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Ours,
    /// Ours, with what an earlier scan left.
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

    /// The command line as a person would type it.
    pub fn line(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} {}", self.arguments.join(" "))
    }

    /// Reads the program itself into the page cache; it is not what is measured.
    pub fn load(&self) {
        let _ = process::output(Command::new(&self.path).arg("--version"));
    }
}

/// Programs that are there, and the names of those that are missing.
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

/// The real command; where this build has none yet, the walker alone.
fn ours(root: &str) -> Program {
    let arguments = ["scan", "--graphroot", root, "--no-record", "--format", "json"];
    let scan = Program {
        name: OURS,
        role: Role::Ours,
        path: env!("CARGO_BIN_EXE_layersweep").into(),
        arguments: arguments.map(str::to_owned).into(),
    };
    let text = process::output(&mut scan.command()).unwrap_or_default();
    let is_scan =
        serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|document| document["kind"] == "scan");
    if is_scan { scan } else { itself(OURS, Role::Ours, &["measure", root]) }
}

/// A scan that keeps records: the library's parts that `scan` with a state directory uses.
/// This is the one place to change for the command itself.
fn again(state_dir: &Path, root: &str) -> Program {
    itself(AGAIN, Role::Again, &["rescan", &state_dir.display().to_string(), root])
}

/// A part of this program.
fn itself(name: &'static str, role: Role, arguments: &[&str]) -> Program {
    let path = std::env::current_exe().unwrap_or_default();
    Program { name, role, path, arguments: arguments.iter().map(ToString::to_string).collect() }
}

/// First where `benches/peers.sh` puts them, then in the PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers/bin");
    std::iter::once(own)
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
