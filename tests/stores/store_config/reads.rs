//! Counts how often each configuration file is read. A run reads these files right before each deletion, also on nodes
//! with many users.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use layersweep::disk::Progress;
use layersweep::node::kubelet::Kubelet;
use layersweep::stores::containers_storage::config::{discover, named, sandboxes};
use layersweep::stores::{self, Measure, RunningPrograms, ScanRequest, sandbox_images};
use layersweep::sys::sysroot::Sysroot;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::{line, made, root};

/// Files whose openings are counted.
struct Watched {
    queue: OwnedFd,
    files: BTreeMap<i32, &'static str>,
}

impl Watched {
    fn new(disk: &Path, files: &[&'static str]) -> Self {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).expect("a queue");
        // The kernel merges equal consecutive events: each opening is followed by a closing.
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
        let files = files
            .iter()
            .map(|file| (inotify::add_watch(&queue, disk.join(file), flags).expect("a watch"), *file))
            .collect();
        Self { queue, files }
    }

    /// Returns the number of openings of each file since the last call, in the order of `files`.
    fn opened(&self) -> Vec<(&'static str, usize)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.queue, &mut buffer);
        let mut opened = BTreeMap::new();
        while let Ok(event) = events.next() {
            assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
            let count: &mut usize = opened.entry(event.wd()).or_default();
            *count += usize::from(event.events().contains(ReadFlags::OPEN));
        }
        self.files.iter().map(|(watch, file)| (*file, opened.get(watch).copied().unwrap_or(0))).collect()
    }

    fn expect(&self, what: &str, times: &[usize]) {
        let expected: Vec<_> = self.files.values().copied().zip(times.iter().copied()).collect();
        assert_eq!(self.opened(), expected, "{what}");
    }
}

const VENDOR: &str = "usr/share/containers/storage.conf";
const DROP_IN: &str = "etc/containers/storage.conf.d/10.conf";
const CRIO: &str = "etc/crio/crio.conf";
const PASSWD: &str = "etc/passwd";
const OF_A_USER: &str = "home/user7/.config/containers/storage.conf";

/// Makes a node with thirty users who all have a store.
fn node() -> (tempfile::TempDir, Sysroot) {
    let mut passwd = "root:x:0:0:root:/root:/bin/sh\n".to_owned();
    for number in 0..30 {
        let uid = 1000 + number;
        writeln!(passwd, "user{number}:x:{uid}:{uid}::/home/user{number}:/bin/sh").expect("a line");
    }
    let (disk, sysroot) = made(&[
        (VENDOR, b"[storage]\ndriver = \"overlay\"\n"),
        (DROP_IN, b"[storage]\ntransient_store = false\n"),
        (CRIO, b"[crio.image]\npause_image = \"reg.local/pause:1\"\n"),
        (PASSWD, passwd.as_bytes()),
        (OF_A_USER, b"[storage]\nrunroot = \"/run/seven\"\n"),
        ("store/overlay-images/images.json", b"[]"),
        ("var/lib/containers/storage/overlay-images/images.json", b"[]"),
    ]);
    for number in 0..30 {
        let store = disk.path().join(format!("home/user{number}/.local/share/containers/storage"));
        fs::create_dir_all(store).expect("a store");
    }
    (disk, sysroot)
}

#[test]
fn each_file_is_read_once() {
    let (disk, sysroot) = node();
    let watched = Watched::new(disk.path(), &[VENDOR, DROP_IN, CRIO, PASSWD, OF_A_USER]);
    let stores = discover(&sysroot, &root(), &RunningPrograms::default()).stores;
    assert_eq!(stores.len(), 31);
    watched.expect("all stores", &[1, 1, 1, 1, 1]);
    assert_eq!(sandboxes(&sysroot).0.len(), 1);
    watched.expect("what sandboxes are made from", &[0, 0, 1, 0, 0]);
}

/// If a store is named, homes are searched once: any user's store may borrow from it. If none is named, they are not
/// searched.
#[test]
fn homes_are_searched_once() {
    let (disk, sysroot) = node();
    let watched = Watched::new(disk.path(), &[VENDOR, DROP_IN, CRIO, PASSWD, OF_A_USER]);
    let usual = "/var/lib/containers/storage";
    let users = "/home/user7/.local/share/containers/storage";
    let (of_root, of_user) =
        (format!("{usual} /run/containers/storage driver=overlay"), format!("{users} /run/seven"));
    for (graphroots, expected, of_users) in [
        (vec![usual], vec![&of_root], 1),
        (vec![users], vec![&of_user], 1),
        (vec![usual, users, usual], vec![&of_root, &of_user, &of_root], 1),
        (vec![], vec![], 0),
    ] {
        let paths: Vec<PathBuf> = graphroots.iter().map(PathBuf::from).collect();
        let found: Vec<_> =
            named(&sysroot, &root(), &RunningPrograms::default(), &paths).stores.iter().map(line).collect();
        let expected: Vec<_> = expected.iter().map(|line| format!("{line} (--graphroot)")).collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.starts_with(expected.split(" (").next().expect("a start")), "{found}: {expected}");
        }
        watched.expect(&format!("{graphroots:?}"), &[1, 1, 1, 1, of_users]);
    }
}

/// Before a deletion, the scan reads each file once, and the search for sandbox images reads CRI-O's file once more.
#[test]
fn lookup_reads_each_file_once() {
    let (disk, sysroot) = node();
    let watched = Watched::new(disk.path(), &[VENDOR, DROP_IN, CRIO, PASSWD, OF_A_USER]);
    for (graphroots, of_users) in
        [(vec![], 1), (vec!["/store".into()], 1), (vec!["/var/lib/containers/storage".into()], 1)]
    {
        let request = ScanRequest {
            graphroots,
            environment: root(),
            measure: Measure::RecordsAndMounts,
            ..ScanRequest::of(sysroot.clone())
        };
        stores::run(&request, &Progress::default()).expect("a scan");
        watched.expect(&format!("{:?}", request.graphroots), &[1, 1, 1, 1, of_users]);
        assert_eq!(sandbox_images(&request, &Kubelet::default()).expect("readable").len(), 1);
        watched.expect("what sandboxes are made from", &[0, 0, 1, 0, 0]);
    }
}
