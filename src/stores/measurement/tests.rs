use std::fs;
use std::io;

use super::*;
use crate::disk::TreeScope;
use crate::disk::filesystem::CostModel;
use crate::model::{FilesystemIx, StoreIx, samples};
use crate::stores::store::{Filling, UnitView};
use crate::stores::unit::UnitTree;
use crate::sys::sysroot::Sysroot;

/// A store whose units are the directories below its root, and the writes to it before each new reading.
#[derive(Debug)]
struct Moving {
    root: PathBuf,
    units: Vec<(String, Vec<UnitTree>)>,
    writes: Vec<fn(&Path) -> io::Result<()>>,
}

impl Moving {
    fn new(root: &Path, writes: &[fn(&Path) -> io::Result<()>]) -> Self {
        let mut store = Self { root: root.to_path_buf(), units: Vec::new(), writes: writes.to_vec() };
        store.list();
        store
    }

    fn list(&mut self) {
        self.units = vec![("top".into(), vec![(0, PathBuf::new(), TreeScope::EntryOnly)])];
        for entry in fs::read_dir(&self.root).unwrap() {
            let name = entry.unwrap().file_name();
            self.units.push((name.to_str().unwrap().into(), vec![(0, name.into(), TreeScope::Whole)]));
        }
    }
}

impl Store for Moving {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store {
        crate::model::Store { root: self.root.clone(), filesystem, ..samples::store() }
    }

    fn roots(&self) -> Vec<PathBuf> {
        vec![self.root.clone()]
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        self.units.iter().map(|(id, parts)| UnitView { tag: "layer", id, parts }).collect()
    }

    fn moved(&self) -> bool {
        !self.writes.is_empty()
    }

    fn read_again(&mut self, _: &ScanRequest) -> io::Result<()> {
        self.writes.remove(0)(&self.root)?;
        self.list();
        Ok(())
    }

    fn fill(
        &mut self,
        _: &mut Filling<'_>,
        _: StoreIx,
        _: &[(FilesystemIx, CostModel)],
        _: &[Tally],
    ) -> Vec<NodeIx> {
        unreachable!("only measured")
    }
}

fn measure(store: Moving) -> (Measurement, Vec<Finding>) {
    let request = ScanRequest { ..ScanRequest::of(Sysroot::live()) };
    let mut measurement = Measurement::new(vec![Box::new(store)], None);
    let mut findings = Vec::new();
    let wanted = MeasurementNeeds { extents: false, inode_chunks: false };
    measurement.run(&request, wanted, &Progress::default(), &mut findings);
    (measurement, findings)
}

/// Returns the allocated bytes of all units, and of the inodes that they share.
fn total(measurement: &Measurement) -> u64 {
    let alone: u64 = measurement.tallies(0).iter().map(|tally| tally.bytes).sum();
    alone + measurement.shares.inodes.iter().map(|group| group.tally.bytes).sum::<u64>()
}

/// Returns the size that `du` reports for a store of directories of files.
fn du(root: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut inodes = HashMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let facts = fs::metadata(&directory).unwrap();
        inodes.insert(facts.ino(), facts.blocks() * 512);
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let facts = fs::metadata(&path).unwrap();
            inodes.insert(facts.ino(), facts.blocks() * 512);
            directories.extend(facts.is_dir().then_some(path));
        }
    }
    inodes.values().sum()
}

fn link(root: &Path, from: &str, to: &str) -> io::Result<()> {
    fs::create_dir(root.join(to))?;
    fs::hard_link(root.join(from).join("file"), root.join(to).join("file"))
}

fn unlink_b(root: &Path) -> io::Result<()> {
    fs::remove_file(root.join("b/file"))?;
    fs::remove_dir(root.join("b"))
}

#[test]
fn links_to_new_units_count_once() {
    type Case<'a> = (&'a str, &'a [fn(&Path) -> io::Result<()>], usize);
    let cases: [Case<'_>; 6] = [
        ("unchanged", &[], 0),
        ("a link to an old unit", &[|root| link(root, "a", "b")], 0),
        ("twice", &[|root| link(root, "a", "b"), |root| link(root, "b", "c")], 0),
        ("deleted again", &[|root| link(root, "a", "b"), unlink_b], 0),
        (
            "until the last walk",
            &[
                |root| link(root, "a", "b"),
                |root| link(root, "a", "c"),
                |root| link(root, "a", "d"),
                |root| link(root, "a", "e"),
            ],
            0,
        ),
        (
            "after the last walk",
            &[
                |root| link(root, "a", "b"),
                |root| link(root, "a", "c"),
                |root| link(root, "a", "d"),
                |root| link(root, "a", "e"),
                |root| link(root, "a", "f"),
            ],
            1,
        ),
    ];
    for (name, writes, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/file"), vec![1; 1_000_000]).unwrap();
        let (measurement, findings) = measure(Moving::new(dir.path(), writes));
        assert_eq!(findings.len(), expected, "{name}: {findings:?}");
        assert!(findings.iter().all(|finding| finding.incomplete), "{name}");
        if expected == 0 {
            assert_eq!(total(&measurement), du(dir.path()), "{name}");
        }
    }
}

#[test]
fn store_that_cannot_be_reread_is_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Moving::new(dir.path(), &[|_| Err(io::Error::other("no more"))]);
    store.units.push(("gone".into(), vec![(0, "gone".into(), TreeScope::Whole)]));
    let (_, findings) = measure(store);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.incomplete));
    assert!(findings[0].path == dir.path() && findings[0].message.contains("no more"), "{findings:?}");
    assert_eq!(findings[1].path, dir.path().join("gone"));
}
