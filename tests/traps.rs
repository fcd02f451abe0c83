//! Planted leaks are found, and what only looks like one is left in peace.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use support::locks;
use support::program::{self, list, text};
use support::store::{self, Store};

/// A row of INJECTED.tsv.
#[derive(Debug)]
struct Planted {
    class: String,
    verdict: String,
    object: String,
    paths: Vec<PathBuf>,
}

/// Classes outside of what a scan of one store looks at: nothing of them lies in it.
const ELSEWHERE: [&str; 1] = ["vartmp"];

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

fn leaks_at<'a>(leaks: &'a [Value], path: &Path) -> Vec<&'a Value> {
    leaks.iter().filter(|leak| Path::new(text(leak, "/path")) == path).collect()
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

    let mut wrong = Vec::new();
    for planted in &planted {
        match planted.verdict.as_str() {
            "keep" => wrong.extend(called_garbage(planted, leaks)),
            "reclaim" if !ELSEWHERE.contains(&planted.class.as_str()) => {
                wrong.extend(overlooked(planted, leaks));
            }
            _ => {}
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

/// Complaints about a leak that was not found, or not called one.
fn overlooked(planted: &Planted, leaks: &[Value]) -> Vec<String> {
    let found = |path: &PathBuf| {
        let at = leaks_at(leaks, path);
        let named = |leak: &&Value| text(leak, "/id") == planted.object;
        at.into_iter().chain(leaks.iter().filter(named)).any(|leak| leak["verdict"] == "reclaim")
    };
    planted
        .paths
        .iter()
        .filter(|path| !found(path))
        .map(|path| format!("{} is not found: {}", planted.class, path.display()))
        .collect()
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
