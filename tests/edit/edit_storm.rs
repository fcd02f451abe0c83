//! Deletions while podman and buildah build, load, create and remove.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use layersweep::editor::{Error, OrphanAt};
use layersweep::model::Orphan;

use crate::support;
use support::archive::{self, ImageSpec, LayerSpec};
use support::program;
use support::store::{self, Store};
use support::{edit, small};

/// The duration of the storm: `LAYERSWEEP_STORM_SECONDS`, or a default for CI.
fn storm() -> Duration {
    let seconds = std::env::var("LAYERSWEEP_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// The failures of the tools, one line each.
type Failures = Mutex<Vec<String>>;

fn podman(store: &Store, failures: &Failures, args: &[&str]) {
    note(failures, program::run(store.podman_command().args(args)), args);
}

fn note(failures: &Failures, run: program::Run, args: &[&str]) {
    if run.code != 0 {
        failures.lock().unwrap().push(format!("{args:?}: {run:?}"));
    }
}

/// Ends the storm, also after a failure.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tools_succeed_and_nothing_is_lost() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let steady = edit::whole(&store);
    // Images that only layersweep deletes and that podman loads again and again: unshared layers, and one that both
    // share with the steady images.
    let archive_path = dir.path().join("targets.tar");
    fn spec(name: &str) -> ImageSpec {
        ImageSpec {
            names: vec![small::name(name)],
            layers: ["base", name]
                .map(|layer| LayerSpec { small_files: 6, ..LayerSpec::new(layer) })
                .to_vec(),
            label: name.into(),
        }
    }
    archive::write(&archive_path, &[spec("target-1"), spec("target-2"), spec("target-3")]).unwrap();
    let load = ["load", "-q", "-i", archive_path.to_str().unwrap()];
    let over = AtomicBool::new(false);
    let failures = Failures::default();
    let [deleted, orphans, tools, late] = [const { AtomicUsize::new(0) }; 4];
    fn rounds(over: &AtomicBool, tools: &AtomicUsize, round: &dyn Fn()) {
        while !over.load(Ordering::Relaxed) {
            round();
            tools.fetch_add(1, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rounds(&over, &tools, &|| {
                let image = small::name("b");
                podman(&store, &failures, &["create", "--name", "gust", "--network", "none", &image, "/x"]);
                podman(&store, &failures, &["rm", "gust"]);
            });
        });
        scope.spawn(|| {
            rounds(&over, &tools, &|| {
                let image = small::name("a2");
                let steps: [&[&str]; 3] = [
                    &["from", "--pull-never", "--name", "storm", &image],
                    &["commit", "-q", "--rm", "storm", "localhost/storm:1"],
                    &["rmi", "localhost/storm:1"],
                ];
                for step in steps {
                    note(&failures, program::run(store.buildah_command().args(step)), step);
                }
            });
        });
        scope.spawn(|| {
            let _over = SetAtEnd(&over);
            let editor = edit::editor(&store);
            let start = Instant::now();
            while start.elapsed() < storm() {
                podman(&store, &failures, &load);
                // An orphan as after a crash.
                let orphan =
                    store.root().join("overlay").join(format!("{:064x}", start.elapsed().as_nanos()));
                std::fs::create_dir_all(orphan.join("diff/a")).unwrap();
                let leftover = OrphanAt { kind: Orphan::LayerDirectory, path: orphan };
                match edit::reclaim(&editor, &leftover, SignedDuration::ZERO) {
                    Ok(_) => orphans.fetch_add(1, Ordering::Relaxed),
                    Err(Error::Refused(_)) => 0,
                    Err(Error::Locked { .. }) => late.fetch_add(1, Ordering::Relaxed),
                    Err(error) => panic!("{error}"),
                };
                let listed = store.run("images").expect_no_crash().json();
                let listed = program::list(&listed, "/images").iter();
                for image in listed.filter(|image| image["names"].to_string().contains("/target-")) {
                    match editor.delete_image(&edit::planned(image)) {
                        Ok(_) => deleted.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Locked { .. }) => late.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            }
        });
    });
    store.unmount();
    println!("{deleted:?} images, {orphans:?} orphans, {late:?} too late, {tools:?} rounds of the tools");
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(deleted.into_inner() > 3 && tools.into_inner() > 5);
    let editor = edit::editor(&store);
    for image in store.images().iter().filter(|image| image["names"].to_string().contains("/target-")) {
        edit::delete(&editor, image);
    }
    // Layers that were not deleted because the lock was held are orphans of layersweep.
    let scan = store.json("scan");
    let left = program::list(&scan, "/leaks").iter();
    let kind = Orphan::LayerDirectory;
    let left: Vec<_> =
        left.map(|leak| OrphanAt { kind, path: program::text(leak, "/path").into() }).collect();
    assert!(left.len() <= late.into_inner(), "{left:?}");
    for orphan in &left {
        edit::reclaim(&editor, orphan, SignedDuration::ZERO).unwrap();
    }
    assert_eq!(edit::whole(&store), steady);
    assert_eq!(edit::podman_ids(&store), steady);
}
