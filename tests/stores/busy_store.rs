//! Scans of a store that other processes write to at the same time.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support;
use support::program::{self, list, text};
use support::store::Store;
use support::{locks, small, store};

/// Duration of the storm.
const STORM: Duration = Duration::from_secs(8);

#[test]
fn scans_during_builds_and_removals_are_exact() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let steady: Vec<Value> = store.images();
    let over = AtomicBool::new(false);
    let runs = std::thread::scope(|scope| {
        scope.spawn(|| write_on(&over, || build_and_remove(&store)));
        scope.spawn(|| write_on(&over, || create_and_remove(&store)));
        scope.spawn(|| write_on(&over, || mount_and_unmount(&store)));
        let runs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let start = Instant::now();
            let mut runs = 0;
            // On a slow machine it takes longer.
            while start.elapsed() < STORM || runs <= 20 {
                check(&store, &steady);
                runs += 1;
            }
            runs
        }));
        over.store(true, Ordering::Relaxed);
        runs
    });
    let runs = runs.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!("{runs} scans");
    assert_eq!(store.images(), steady, "after the storm");
}

/// Runs `round` repeatedly. Writers may fail in a race with each other, which is not tested.
fn write_on(over: &AtomicBool, round: impl Fn()) {
    while !over.load(Ordering::Relaxed) {
        round();
    }
}

fn build_and_remove(store: &Store) {
    let steps: [&[&str]; 4] = [
        &["from", "--pull-never", "--name", "storm", "localhost/small/a:1"],
        &["config", "--env", "STORM=1", "storm"],
        &["commit", "-q", "--rm", "storm", "localhost/storm:1"],
        &["rmi", "localhost/storm:1"],
    ];
    for step in steps {
        program::run(store.buildah_command().args(step));
    }
}

fn create_and_remove(store: &Store) {
    let image = small::name("b");
    for step in [&["create", "--name", "gust", "--network", "none", &image, "/x"][..], &["rm", "gust"]] {
        program::run(store.podman_command().args(step));
    }
}

fn mount_and_unmount(store: &Store) {
    let volume: [&[&str]; 2] = [&["volume", "create", "puff"], &["volume", "rm", "puff"]];
    for step in [&["mount", "web"][..], &["umount", "web"]].iter().chain(&volume) {
        program::run(store.podman_command().args(*step));
    }
}

fn check(store: &Store, steady: &[Value]) {
    let run = store.run("scan").expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{run:?}");
    assert!(run.took < Duration::from_secs(15), "{run:?}");
    let scan = run.json();
    if run.code == 3 {
        assert!(!list(&scan, "/warnings").is_empty(), "{run:?}");
    }
    let seen: HashMap<&str, &Value> =
        list(&scan, "/images").iter().map(|image| (text(image, "/id"), image)).collect();
    for image in steady {
        let id = text(image, "/id");
        let now = seen.get(id).unwrap_or_else(|| panic!("{id} is missing: {run:?}"));
        for field in ["names", "layers", "total_bytes", "listed_bytes"] {
            assert_eq!(now[field], image[field], "{field} of {id}: {run:?}");
        }
    }
    for leak in list(&scan, "/leaks") {
        // Nothing is lost here: every finding is being created or deleted.
        assert_eq!(leak["verdict"], "keep", "work in progress: {leak:#}");
        assert_ne!(leak["class"], "leaked-mount", "work in progress: {leak:#}");
    }
}

#[test]
fn held_write_lock_does_not_stop_scan() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let quiet = store.images();
    for name in ["layers.lock", "images.lock", "containers.lock"] {
        // Held as long as the test runs, so a scan that waits never ends.
        let held = locks::write_lock(&store.record(name));
        let run = store.run("scan").expect_no_crash();
        assert!(run.took < Duration::from_secs(10), "{name}: {run:?}");
        assert!(matches!(run.code, 0 | 3), "{name}: {run:?}");
        let scan = run.json();
        assert_eq!(list(&scan, "/images").len(), quiet.len(), "{name}");
        let warnings = list(&scan, "/warnings");
        let mut lines = warnings.iter().map(Value::to_string);
        assert!(lines.any(|line| line.contains("lock") || line.contains("writ")), "{name}: {warnings:#?}");
        drop(held);
    }
    assert_eq!(store.images(), quiet);
}

/// A shared lock blocks every tool that opens the store, so it may be held only to read a few small files. The test
/// forces the locks by changing the token all the time.
#[test]
fn shared_locks_are_held_briefly() {
    if !store::require_tools() || !support::require_program("strace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let over = AtomicBool::new(false);
    let lock = store.record("images.lock");
    std::thread::scope(|scope| {
        // Changes the token as the library does: under the write lock, for a moment.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                locks::touch(&lock);
            }
        });
        let trace = locks::trace_locks(&store);
        over.store(true, Ordering::Relaxed);
        let (run, held) = trace;
        assert!(matches!(run.code, 0 | 3), "{run:?}");
        println!("shared locks held for {held:?}");
        for time in held {
            assert!(time < Duration::from_millis(200), "held for {time:?}");
        }
    });
}
