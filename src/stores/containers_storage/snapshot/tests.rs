use std::os::unix::fs::symlink;

use super::*;
use crate::stores::containers_storage::store;
use crate::stores::request::ScanRequest;
use crate::sys::allowance::Allowance;
use crate::sys::root::Root;
use crate::sys::sysroot::Sysroot;

const LAYERS: &str = r#"[{"id":"l1"},{"id":"l2"}]"#;

/// A store in a temporary directory.
struct TestStore {
    dir: tempfile::TempDir,
    places: StorePlaces,
}

impl TestStore {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graphroot = dir.path().join("root");
        for path in ["overlay/l1/diff", "overlay/l2/diff", "overlay-containers/c1/userdata"] {
            std::fs::create_dir_all(graphroot.join(path)).unwrap();
        }
        let records = [("layers", LAYERS), ("images", "[]"), ("containers", r#"[{"id":"c1","layer":"l2"}]"#)];
        for (kind, json) in records {
            let directory = graphroot.join(format!("overlay-{kind}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(format!("{kind}.json")), json).unwrap();
            std::fs::write(directory.join(format!("{kind}.lock")), [7; 64]).unwrap();
        }
        let places = StorePlaces {
            graphroot: Root::open(&graphroot).unwrap(),
            imagestores: Vec::new(),
            temporary: vec![],
            runroots: Vec::new(),
            databases: vec![],
            caches: vec![],
            driver: "overlay".into(),
            other_drivers: Vec::new(),
            primary: true,
            read_only: false,
            foreign: false,
            allowance: Allowance::default(),
        };
        Self { dir, places }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.places.graphroot.join(below)
    }
}

/// Takes a write lock. Dropping the returned file releases it.
fn write_lock(path: &Path) -> std::fs::File {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // Unlike the library's POSIX locks, an open-file-description lock conflicts with locks of the same process.
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    file
}

const SHORT: WriterPatience =
    WriterPatience { unlocked: Duration::from_millis(50), locked: Duration::from_millis(50) };

#[test]
fn symlinks_below_graphroot_are_reported_and_not_followed() {
    let store = TestStore::new();
    assert_eq!(read(&store.places, SHORT).unwrap().consistency, Consistency::Consistent);
    for linked in ["overlay-images", "overlay", "overlay-containers/c1/userdata", "overlay-containers/c1"] {
        let store = TestStore::new();
        let elsewhere = store.dir.path().join("elsewhere");
        std::fs::rename(store.path(linked), &elsewhere).unwrap();
        std::fs::create_dir(elsewhere.join("stray")).unwrap();
        symlink(&elsewhere, store.path(linked)).unwrap();
        let snapshot = read(&store.places, SHORT).unwrap();
        assert_eq!(snapshot.consistency, Consistency::Damaged, "{linked}");
        let message = format!("{} is a symlink; not followed", store.path(linked).display());
        let mut findings = snapshot.findings.iter();
        assert!(
            findings.any(|finding| finding.incomplete && finding.message.contains(&message)),
            "{linked}: {:?}",
            snapshot.findings
        );
        assert!(snapshot.listing.values().flatten().all(|entry| entry.name != "stray"), "{linked}");
    }
}

#[test]
fn writer_below_mounted_root_is_detected() {
    let mut store = TestStore::new();
    store.places.foreign = true;
    assert_eq!(read(&store.places, SHORT).unwrap().consistency, Consistency::Consistent);
    for lock in ["overlay-layers/layers.lock", "overlay-images/images.lock"] {
        let held = write_lock(&store.path(lock));
        assert_eq!(read(&store.places, SHORT).unwrap().consistency, Consistency::WriterActive, "{lock}");
        drop(held);
    }
    let snapshot = read(&store.places, SHORT).unwrap();
    assert!(!moved(&snapshot).unwrap());
    std::fs::write(store.path("overlay-layers/layers.lock"), [8; 64]).unwrap();
    assert!(moved(&snapshot).unwrap(), "the token has changed");
}

#[test]
fn writer_is_waited_for_once() {
    let store = TestStore::new();
    let held = write_lock(&store.path("overlay-images/images.lock"));
    // Clones share what is known of earlier readings.
    let request = ScanRequest::of(Sysroot::live());
    let clone = request.clone();
    let unlocked = || store::patience(&clone, &store.places).unlocked;
    assert_eq!(unlocked(), WriterPatience::default().unlocked);
    assert_eq!(store::read(&store.places, &request).unwrap().consistency, Consistency::WriterActive);
    assert_eq!(unlocked(), WriterPatience::SHORT.unlocked);
    drop(held);
    assert_eq!(store::read(&store.places, &request).unwrap().consistency, Consistency::Consistent);
    assert_eq!(unlocked(), WriterPatience::default().unlocked);
}

#[test]
fn no_lock_is_taken_below_mounted_root() {
    // The writer releases its lock after the timeout without locks. Only a reader that takes locks is consistent then.
    for (foreign, expected) in [(true, Consistency::WriterActive), (false, Consistency::Consistent)] {
        let mut store = TestStore::new();
        store.places.foreign = foreign;
        let held = write_lock(&store.path("overlay-images/images.lock"));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let patience = WriterPatience { locked: Duration::from_secs(20), ..SHORT };
        assert_eq!(read(&store.places, patience).unwrap().consistency, expected);
        writer.join().unwrap();
    }
}

#[test]
fn lock_file_that_cannot_be_queried_counts_as_writer() {
    for foreign in [false, true] {
        let mut store = TestStore::new();
        store.places.foreign = foreign;
        let lock = store.path("overlay-images/images.lock");
        std::fs::remove_file(&lock).unwrap();
        assert_eq!(read(&store.places, SHORT).unwrap().consistency, Consistency::Consistent, "no lock file");
        std::fs::create_dir(&lock).unwrap();
        let snapshot = read(&store.places, SHORT).unwrap();
        assert_eq!(snapshot.consistency, Consistency::WriterActive);
        let [finding] = snapshot.findings.as_slice() else { panic!("{:?}", snapshot.findings) };
        assert_eq!(finding.path, lock);
        assert!(finding.message.contains("nothing in this store is reported as reclaimable"));
    }
}

#[test]
fn active_writer_changes_only_a_consistent_snapshot() {
    let store = TestStore::new();
    let snapshot = read(&store.places, SHORT).unwrap();
    assert!(!moved(&snapshot).unwrap());
    let held = write_lock(&store.path("overlay-layers/layers.lock"));
    assert!(moved(&snapshot).unwrap(), "a process is writing");
    // The snapshot was read while the writer held its lock. Reading again would not give a better result.
    let again = read(&store.places, SHORT).unwrap();
    assert_eq!(again.consistency, Consistency::WriterActive);
    assert!(!moved(&again).unwrap());
    drop(held);
}

#[test]
fn listings_before_and_after_are_merged() {
    fn list(names: &[&str]) -> DirectoryListing {
        let entries =
            names.iter().map(|name| DirectoryEntry { name: name.into(), kind: FileKind::Directory });
        [(PathBuf::from("d"), entries.collect())].into()
    }
    // Listing before, listing after, result. Only `r` has a record.
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&["r", "x"], &["r", "x"], &["r", "x"]),
        // Deleted or created in between: not a leak.
        (&["r", "x"], &["r"], &["r"]),
        (&["r"], &["r", "x"], &["r"]),
        // An entry with a record counts if it is in one of the listings.
        (&[], &["r"], &["r"]),
        (&["r", "r.tar-split.gz", "x"], &["x"], &["r", "r.tar-split.gz", "x"]),
        (&["a", "r", "x"], &["a", "b", "x"], &["a", "r", "x"]),
        (&["x"], &[], &[]),
    ];
    for (early, late, expected) in cases {
        let merged = merge(&list(early), list(late), &["r"].into());
        assert_eq!(merged, list(expected), "{early:?} {late:?}");
        // A directory that is missing from the later listing.
        let merged = merge(&list(early), DirectoryListing::new(), &["r"].into());
        let kept: Vec<_> = early.iter().copied().filter(|name| name.starts_with('r')).collect();
        assert_eq!(merged, list(&kept), "{early:?}");
    }
}

#[test]
fn reading_under_locks_is_complete_and_releases_them() {
    let store = TestStore::new();
    let (locks, _) = open_locks(&store.places);
    let snapshot = read_under_locks(&store.places, &RecordKind::ALL, &locks, Duration::ZERO).unwrap();
    let without = read(&store.places, SHORT).unwrap();
    assert_eq!(snapshot.consistency, Consistency::Consistent);
    assert_eq!((&snapshot.layers, &snapshot.containers), (&without.layers, &without.containers));
    assert_eq!(snapshot.listing, without.listing);
    assert!(!moved(&snapshot).unwrap());
    for lock in ["overlay-layers/layers.lock", "overlay-images/images.lock"] {
        drop(write_lock(&store.path(lock)));
    }
}

#[test]
fn too_many_containers_are_damage() {
    fn read_with_containers(store: &TestStore, count: usize) -> Snapshot {
        let records = (0..count).map(|number| format!(r#"{{"id":"{number:064x}"}}"#));
        let records = records.collect::<Vec<_>>().join(",");
        std::fs::write(store.path("overlay-containers/containers.json"), format!("[{records}]")).unwrap();
        read(&store.places, SHORT).unwrap()
    }
    let store = TestStore::new();
    let most = read_with_containers(&store, MOST_CONTAINERS);
    assert_eq!((most.containers.len(), most.consistency), (MOST_CONTAINERS, Consistency::Consistent));
    let more = read_with_containers(&store, MOST_CONTAINERS + 1);
    assert_eq!((more.containers.len(), more.consistency), (MOST_CONTAINERS, Consistency::Damaged));
    assert!(more.findings.iter().any(|finding| finding.message.contains("more than 20000 records")));
}
