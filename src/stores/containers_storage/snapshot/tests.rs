use std::os::unix::fs::symlink;

use super::*;
use crate::sys::allowance::Allowance;
use crate::sys::root::Root;

const LAYERS: &str = r#"[{"id":"l1"},{"id":"l2"}]"#;

/// A store made by hand; nobody else knows of it.
struct Bed {
    dir: tempfile::TempDir,
    places: StorePlaces,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let graphroot = dir.path().join("root");
        for path in ["overlay/l1/diff", "overlay/l2/diff", "overlay-containers/c1/userdata"] {
            std::fs::create_dir_all(graphroot.join(path)).unwrap();
        }
        let records = [("layers", LAYERS), ("images", "[]"), ("containers", r#"[{"id":"c1","layer":"l2"}]"#)];
        for (what, json) in records {
            let directory = graphroot.join(format!("overlay-{what}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(format!("{what}.json")), json).unwrap();
            std::fs::write(directory.join(format!("{what}.lock")), [7; 64]).unwrap();
        }
        let places = StorePlaces {
            graphroot: Root::open(&graphroot).unwrap(),
            imagestores: Vec::new(),
            temporary: vec![],
            runroots: Vec::new(),
            databases: vec![],
            driver: "overlay".into(),
            other_drivers: Vec::new(),
            primary: true,
            read_only: false,
            foreign: false,
            allowance: Allowance::default(),
        };
        Self { dir, places }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.places.graphroot.join(path)
    }
}

/// Held by this process; gone with the returned file.
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
    // Unlike the library's own kind, this one is noticed by the process that holds it.
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    file
}

const SHORT: Patience = Patience { unlocked: Duration::from_millis(50), locked: Duration::from_millis(50) };

#[test]
fn symlinks_below_the_graphroot_are_named_and_not_followed() {
    let bed = Bed::new();
    assert_eq!(read(&bed.places, SHORT).unwrap().consistency, Consistency::Consistent);
    for linked in ["overlay-images", "overlay", "overlay-containers/c1/userdata", "overlay-containers/c1"] {
        let bed = Bed::new();
        let elsewhere = bed.dir.path().join("elsewhere");
        std::fs::rename(bed.at(linked), &elsewhere).unwrap();
        std::fs::create_dir(elsewhere.join("stray")).unwrap();
        symlink(&elsewhere, bed.at(linked)).unwrap();
        let snapshot = read(&bed.places, SHORT).unwrap();
        assert_eq!(snapshot.consistency, Consistency::Damaged, "{linked}");
        let named = format!("{} is a symlink; not followed", bed.at(linked).display());
        let said = |finding: &Finding| finding.incomplete && finding.message.contains(&named);
        assert!(snapshot.findings.iter().any(said), "{linked}: {:?}", snapshot.findings);
        assert!(snapshot.listing.values().flatten().all(|entry| entry.name != "stray"), "{linked}");
    }
}

#[test]
fn writers_below_a_mounted_root_are_noticed() {
    let mut bed = Bed::new();
    bed.places.foreign = true;
    assert_eq!(read(&bed.places, SHORT).unwrap().consistency, Consistency::Consistent);
    for lock in ["overlay-layers/layers.lock", "overlay-images/images.lock"] {
        let held = write_lock(&bed.at(lock));
        assert_eq!(read(&bed.places, SHORT).unwrap().consistency, Consistency::WriterActive, "{lock}");
        drop(held);
    }
    let snapshot = read(&bed.places, SHORT).unwrap();
    assert!(!moved(&snapshot).unwrap());
    std::fs::write(bed.at("overlay-layers/layers.lock"), [8; 64]).unwrap();
    assert!(moved(&snapshot).unwrap(), "its token moved");
}

#[test]
fn a_writer_is_waited_for_once() {
    let bed = Bed::new();
    let (busy, held) = (BusyStores::default(), write_lock(&bed.at("overlay-images/images.lock")));
    let next = || busy.clone().patience(&bed.places.graphroot, SHORT).unlocked;
    let look = || {
        let snapshot = read(&bed.places, busy.patience(&bed.places.graphroot, SHORT)).unwrap();
        busy.note(&snapshot);
        (snapshot.consistency, next())
    };
    assert_eq!(next(), SHORT.unlocked);
    assert_eq!(look(), (Consistency::WriterActive, Patience::LITTLE.unlocked));
    drop(held);
    assert_eq!(look(), (Consistency::Consistent, SHORT.unlocked));
}

#[test]
fn no_lock_is_taken_below_a_mounted_root() {
    // A writer that rests after the unlocked patience: whoever takes locks gets them then.
    for (foreign, expected) in [(true, Consistency::WriterActive), (false, Consistency::Consistent)] {
        let mut bed = Bed::new();
        bed.places.foreign = foreign;
        let held = write_lock(&bed.at("overlay-images/images.lock"));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let patience = Patience { locked: Duration::from_secs(20), ..SHORT };
        assert_eq!(read(&bed.places, patience).unwrap().consistency, expected);
        writer.join().unwrap();
    }
}

#[test]
fn a_lock_file_that_cannot_be_asked_proves_nothing() {
    for foreign in [false, true] {
        let mut bed = Bed::new();
        bed.places.foreign = foreign;
        let lock = bed.at("overlay-images/images.lock");
        std::fs::remove_file(&lock).unwrap();
        assert_eq!(read(&bed.places, SHORT).unwrap().consistency, Consistency::Consistent, "none is there");
        std::fs::create_dir(&lock).unwrap();
        let snapshot = read(&bed.places, SHORT).unwrap();
        assert_eq!(snapshot.consistency, Consistency::WriterActive);
        let [finding] = snapshot.findings.as_slice() else { panic!("{:?}", snapshot.findings) };
        assert_eq!(finding.path, lock);
        assert!(finding.message.contains("nothing in this store is reported as reclaimable"));
    }
}

#[test]
fn a_writer_moves_a_consistent_snapshot_only() {
    let bed = Bed::new();
    let snapshot = read(&bed.places, SHORT).unwrap();
    assert!(!moved(&snapshot).unwrap());
    let held = write_lock(&bed.at("overlay-layers/layers.lock"));
    assert!(moved(&snapshot).unwrap(), "somebody is writing");
    // Read again under the writer's lock: asking for ever would bring nothing new.
    let again = read(&bed.places, SHORT).unwrap();
    assert_eq!(again.consistency, Consistency::WriterActive);
    assert!(!moved(&again).unwrap());
    drop(held);
}

#[test]
fn listings_around_the_records_are_merged() {
    let list = |names: &[&str]| -> Listing {
        let entry = |name: &&str| DirectoryEntry { name: (*name).into(), kind: FileKind::Directory };
        [(PathBuf::from("d"), names.iter().map(entry).collect())].into()
    };
    // early, late, what counts; only `r` has a record
    let cases: [(&[&str], &[&str], &[&str]); 7] = [
        (&["r", "x"], &["r", "x"], &["r", "x"]),
        // Deleted, or made, around the reading: no leak.
        (&["r", "x"], &["r"], &["r"]),
        (&["r"], &["r", "x"], &["r"]),
        // Made before it or deleted after it: there when it counted.
        (&[], &["r"], &["r"]),
        (&["r", "r.tar-split.gz", "x"], &["x"], &["r", "r.tar-split.gz", "x"]),
        (&["a", "r", "x"], &["a", "b", "x"], &["a", "r", "x"]),
        (&["x"], &[], &[]),
    ];
    for (early, late, expected) in cases {
        let merged = merge(&list(early), list(late), &["r"].into());
        assert_eq!(merged, list(expected), "{early:?} {late:?}");
        // A directory that is there once only.
        let merged = merge(&list(early), Listing::new(), &["r"].into());
        let kept: Vec<_> = early.iter().copied().filter(|name| name.starts_with('r')).collect();
        assert_eq!(merged, list(&kept), "{early:?}");
    }
}

#[test]
fn a_reading_under_locks_is_whole_and_lets_go_of_them() {
    let bed = Bed::new();
    let (locks, _) = open_locks(&bed.places);
    let snapshot = read_under_locks(&bed.places, &locks, Duration::ZERO).unwrap();
    let without = read(&bed.places, SHORT).unwrap();
    assert_eq!(snapshot.consistency, Consistency::Consistent);
    assert_eq!((&snapshot.layers, &snapshot.containers), (&without.layers, &without.containers));
    assert_eq!(snapshot.listing, without.listing);
    assert!(!moved(&snapshot).unwrap());
    for lock in ["overlay-layers/layers.lock", "overlay-images/images.lock"] {
        drop(write_lock(&bed.at(lock)));
    }
}

#[test]
fn more_containers_than_anybody_has_are_damage() {
    let bed = Bed::new();
    let record = |at: usize| format!(r#"{{"id":"{at:064x}"}}"#);
    let write = |count: usize| {
        let text = (0..count).map(record).collect::<Vec<_>>().join(",");
        std::fs::write(bed.at("overlay-containers/containers.json"), format!("[{text}]")).unwrap();
        read(&bed.places, SHORT).unwrap()
    };
    let most = write(MOST_CONTAINERS);
    assert_eq!((most.containers.len(), most.consistency), (MOST_CONTAINERS, Consistency::Consistent));
    let more = write(MOST_CONTAINERS + 1);
    assert_eq!((more.containers.len(), more.consistency), (MOST_CONTAINERS, Consistency::Damaged));
    assert!(more.findings.iter().any(|finding| finding.message.contains("more than 20000 records")));
}
