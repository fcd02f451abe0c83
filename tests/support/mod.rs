//! Code shared by the tests.

pub mod alice;
pub mod archive;
pub mod artifacts;
pub mod browser;
pub mod chunks;
pub mod containerd;
pub mod containerd_node;
pub mod containers;
pub mod cri_server;
pub mod du;
pub mod edit;
pub mod fair;
pub mod fixture;
pub mod gc_document;
pub mod hostile;
pub mod locks;
pub mod loopfs;
pub mod machine;
pub mod made;
pub mod metrics;
pub mod node;
pub mod own_commands;
pub mod packages;
pub mod past;
pub mod pods;
pub mod program;
pub mod promises;
pub mod pty;
pub mod report_document;
pub mod rescan;
pub mod reserve_file;
pub mod rulings;
pub mod running;
pub mod scan_records;
pub mod scenario;
pub mod schema;
pub mod small;
pub mod store;
pub mod strace;
pub mod traces;
pub mod tree;
pub mod usage;

use std::io::Write;

/// Returns whether the test runs as root, which it needs for mounts and device nodes. Otherwise prints that the test
/// is skipped, or fails under CI (the variable `CI` is set), so that a skipped test does not pass for a good one.
pub fn require_root() -> bool {
    nix::unistd::geteuid().is_root() || skip("this test needs root (loop mounts, device nodes)")
}

/// Returns a number that no test has that runs at the same time, and that later tests have again. Without nextest all
/// tests have the same one.
pub fn slot() -> u64 {
    std::env::var("NEXTEST_TEST_GLOBAL_SLOT").map_or(0, |slot| slot.parse().expect("a number from nextest"))
}

/// Returns whether the program `name` can be run; else skips or fails like [`require_root`].
pub fn require_program(name: &str) -> bool {
    find_program(name) || skip(&format!("this test needs the program {name}"))
}

/// Prints that the test is skipped, or fails under CI. Also writes the reason into the file that `tests/run.sh` reads
/// when all tests have run.
pub fn skip(why: &str) -> bool {
    assert!(std::env::var_os("CI").is_none(), "CI is set, and {why}");
    #[allow(clippy::print_stderr)] // the test harness shows it
    {
        eprintln!("SKIPPED: {why}");
    }
    if let Some(path) = std::env::var_os("LAYERSWEEP_SKIPPED") {
        let test = std::env::args().skip_while(|word| word != "--exact").nth(1).unwrap_or_default();
        let mut file =
            std::fs::OpenOptions::new().append(true).open(path).expect("the file of skipped tests");
        file.write_all(format!("{test}: {why}\n").as_bytes()).expect("writing what is skipped");
    }
    false
}

fn find_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|dir| dir.join(name).is_file())
}
