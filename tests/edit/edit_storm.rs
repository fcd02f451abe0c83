//! Deletions of ours beside podman and buildah, which build, load, create and remove.

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

/// How long the storm lasts: `LAYERSWEEP_STORM_SECONDS`, or what CI has time for.
fn storm() -> Duration {
    let seconds = std::env::var("LAYERSWEEP_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// What failed among the tools, one line each.
type Failures = Mutex<Vec<String>>;

fn podman(store: &Store, failures: &Failures, args: &[&str]) {
    note(failures, program::run(store.podman_command().args(args)), args);
}

fn note(failures: &Failures, run: program::Run, args: &[&str]) {
    if run.code != 0 {
        failures.lock().unwrap().push(format!("{args:?}: {run:?}"));
    }
}

/// Ends the storm, also where we fail.
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
    // Images that only we delete, loaded anew by podman again and again: layers of their own,
    // and one that both share with the steady ones.
    let ours = dir.path().join("ours.tar");
    let spec = |name: &str| ImageSpec {
        names: vec![small::name(name)],
        layers: ["base", name].map(|layer| LayerSpec { small_files: 6, ..LayerSpec::new(layer) }).to_vec(),
        label: name.into(),
    };
    archive::write(&ours, &[spec("ours-1"), spec("ours-2"), spec("ours-3")]).unwrap();
    let load = ["load", "-q", "-i", ours.to_str().unwrap()];
    let over = AtomicBool::new(false);
    let failures = Failures::default();
    let [ours_deleted, orphans, tools, late] = [const { AtomicUsize::new(0) }; 4];
    let rounds = |round: &dyn Fn()| {
        while !over.load(Ordering::Relaxed) {
            round();
            tools.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rounds(&|| {
                let image = small::name("b");
                podman(&store, &failures, &["create", "--name", "gust", "--network", "none", &image, "/x"]);
                podman(&store, &failures, &["rm", "gust"]);
            });
        });
        scope.spawn(|| {
            rounds(&|| {
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
                // An orphan, as a crash leaves it.
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
                for image in listed.filter(|image| image["names"].to_string().contains("/ours-")) {
                    match editor.delete_image(&edit::planned(image)) {
                        Ok(_) => ours_deleted.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Locked { .. }) => late.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            }
        });
    });
    store.unmount();
    println!(
        "{ours_deleted:?} images, {orphans:?} orphans, {late:?} too late, {tools:?} rounds of the tools"
    );
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(ours_deleted.into_inner() > 3 && tools.into_inner() > 5);
    let editor = edit::editor(&store);
    for image in store.images().iter().filter(|image| image["names"].to_string().contains("/ours-")) {
        edit::delete(&editor, image);
    }
    // What was not deleted for want of the lock is an orphan of ours.
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
