//! Planted leaks are found, and what only looks like one is left in peace.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use support::program::{self, list, number, text};
use support::store::{self, Store};
use support::{locks, tree};

/// A row of INJECTED.tsv.
#[derive(Debug)]
struct Planted {
    class: String,
    verdict: String,
    object: String,
    paths: Vec<PathBuf>,
}

/// The classes that `docs/leaks.md` promises to find: the first column of its table.
fn promised() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/leaks.md");
    let text = std::fs::read_to_string(path).unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.flat_map(|cell| cell.split("`, `")).map(|class| class.trim_end_matches('`').to_owned()).collect()
}

fn inject(dir: &Path) -> (Store, Vec<Planted>) {
    let home = dir.join("store");
    std::fs::create_dir(&home).unwrap();
    let store = Store::rig(&home.join("root"), "overlay");
    let injected = dir.join("injected");
    store::succeed(Command::new(store::rig("inject.sh")).args([&home, &injected]));
    let table = std::fs::read_to_string(injected.join("INJECTED.tsv")).unwrap();
    let planted = table.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        // A note in brackets may follow the paths.
        let paths = fields[3].split(" (").next().expect("at least one part");
        Planted {
            class: fields[0].into(),
            verdict: fields[1].into(),
            object: fields[2].into(),
            paths: paths.split_whitespace().map(|path| injected.join(path)).collect(),
        }
    });
    let planted = planted.collect();
    (store, planted)
}

#[test]
fn planted_leaks_are_found_and_traps_are_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_store, planted) = inject(dir.path());
    let injected = dir.path().join("injected");
    let root = injected.join("root");
    let _lock = locks::write_lock(&root.join("overlay/staging/3333333333/staging.lock"));
    let run = program::store_run("scan", &root, &injected.join("run")).expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{run:?}");
    let scan = run.json();
    let leaks = list(&scan, "/leaks");

    let promised = promised();
    assert!(promised.len() > 15, "the table is not understood: {promised:?}");
    let mut wrong = Vec::new();
    for planted in &planted {
        if planted.verdict == "keep" {
            wrong.extend(called_garbage(planted, leaks));
        }
        if promised.contains(&planted.class) {
            wrong.extend(overlooked(planted, leaks));
        }
    }
    for leak in leaks {
        let class = text(leak, "/class");
        if !planted.iter().any(|planted| planted.class == class) {
            wrong.push(format!("nobody planted {leak}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{leaks:#?}", wrong.join("\n"));
}

/// Complaints about a trap that somebody would delete.
fn called_garbage(trap: &Planted, leaks: &[Value]) -> Vec<String> {
    let doomed = leaks.iter().filter(|leak| leak["verdict"] == "reclaim");
    doomed
        .filter(|leak| {
            let path = Path::new(text(leak, "/path"));
            let touches = |kept: &PathBuf| kept.starts_with(path) || path.starts_with(kept);
            text(leak, "/id") == trap.object || trap.paths.iter().any(touches)
        })
        .map(|leak| format!("the trap {} is called garbage: {leak}", trap.class))
        .collect()
}

/// Complaints about a leak that was not found, or found as something else.
fn overlooked(planted: &Planted, leaks: &[Value]) -> Vec<String> {
    let found: Vec<&Value> = leaks
        .iter()
        .filter(|leak| text(leak, "/class") == planted.class)
        .filter(|leak| {
            let path = PathBuf::from(text(leak, "/path"));
            text(leak, "/id") == planted.object || planted.paths.contains(&path)
        })
        .collect();
    let mut wrong = Vec::new();
    if found.is_empty() {
        wrong.push(format!("{planted:?} is not found"));
    }
    for leak in found {
        let path = Path::new(text(leak, "/path"));
        if text(leak, "/verdict") != planted.verdict {
            wrong.push(format!("{} is to be {}: {leak}", planted.class, planted.verdict));
        }
        // Where the finding is one directory and nothing else, its bytes are du's.
        let one_directory = ["orphan-dir-partial", "orphan-image-dir", "staging-dead"];
        if one_directory.contains(&planted.class.as_str()) && number(leak, "/bytes") != tree::du(path) {
            wrong.push(format!("du says {}: {leak}", tree::du(path)));
        }
    }
    wrong
}

#[test]
fn a_store_just_made_has_no_leaks() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for driver in ["overlay", "vfs"] {
        let store = Store::rig(&dir.path().join(driver), driver);
        let scan = store.json("scan");
        assert_eq!(list(&scan, "/leaks"), [] as [Value; 0], "{driver}");
        assert_eq!(list(&scan, "/warnings"), [] as [Value; 0], "{driver}");
    }
}
