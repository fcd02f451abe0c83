//! Consecutive scans, each with the database left by the previous ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use layersweep::disk::Progress;
use layersweep::disk::size_cache::SizeCache;
use layersweep::history::sizes;
use layersweep::model::Inventory;
use layersweep::stores::Environment;
use layersweep::stores::{self, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use tempfile::TempDir;

use super::scan_records;
use super::store::Store;

/// Scans the same stores repeatedly.
pub struct Scanner {
    request: ScanRequest,
    state: TempDir,
    seed: u64,
}

impl Scanner {
    /// Returns a scanner of the store's graphroot.
    pub fn of(store: &Store) -> Self {
        Self::new(Sysroot::live(), vec![store.root().to_path_buf()], vec![], Some(store.runroot()))
    }

    /// Returns a scanner of a containerd root.
    pub fn of_containerd(root: &Path) -> Self {
        Self::new(Sysroot::live(), vec![], vec![root.to_path_buf()], None)
    }

    /// Returns a scanner of a graphroot on a disk that is mounted at `sysroot`.
    pub fn foreign(sysroot: &Path, graphroot: &Path) -> Self {
        Self::new(Sysroot::at(sysroot), vec![graphroot.to_path_buf()], vec![], None)
    }

    fn new(
        sysroot: Sysroot,
        graphroots: Vec<PathBuf>,
        containerd_roots: Vec<PathBuf>,
        runroot: Option<PathBuf>,
    ) -> Self {
        let request = ScanRequest {
            environment: Environment::of_process(&sysroot),
            graphroots,
            containerd_roots,
            runroots: runroot.into_iter().collect(),
            ..ScanRequest::of(sysroot)
        };
        let state = tempfile::tempdir().expect("making a state directory");
        Self { request, state, seed: 0 }
    }

    /// Adds a graphroot to the scans.
    pub fn and(mut self, store: &Store) -> Self {
        self.request.graphroots.push(store.root().to_path_buf());
        self
    }

    /// Scans without the results of earlier scans.
    pub fn alone(&self) -> Scan {
        self.scan(None, false)
    }

    /// Scans with the results of the earlier scans and another sample each time.
    pub fn again(&mut self) -> Scan {
        self.seed += 1;
        self.with_seed(self.seed)
    }

    /// Scans with the results of the earlier scans and a sample that `seed` chooses.
    pub fn with_seed(&self, seed: u64) -> Scan {
        let scan = self.scan(Some(self.cache(seed)), false);
        self.keep(&scan);
        scan
    }

    /// Returns the sizes that the earlier scans recorded. A layer counts as settled after two seconds.
    pub fn cache(&self, seed: u64) -> SizeCache {
        let records = scan_records::open(self.state.path());
        let cache = records.read(|connection| sizes::load(connection, seed)).expect("sizes are read");
        SizeCache { settled_after: SignedDuration::from_secs(2), ..cache }
    }

    /// Scans without recording the results.
    pub fn scan(&self, sizes: Option<SizeCache>, full: bool) -> Scan {
        let now = Timestamp::now();
        let request = ScanRequest { full, now, ..self.request.clone() };
        let records = stores::read(&request).expect("the stores are read");
        stores::measure(&request, records, sizes, &Progress::default()).expect("the stores are scanned")
    }

    fn keep(&self, scan: &Scan) {
        let mut records = scan_records::open(self.state.path());
        let changes = scan.sizes.as_ref().expect("something to keep");
        let now = Timestamp::now();
        records.write(|transaction| sizes::store(transaction, changes, now)).expect("sizes are written");
    }
}

/// Waits until every layer counts as settled.
pub fn rest() {
    std::thread::sleep(Duration::from_millis(3100));
}

/// Every figure of a scan and every sharing, one line each.
pub fn figures(scan: &Scan) -> Vec<String> {
    let Inventory { nodes, images, containers, leaks, anchored, .. } = &scan.inventory;
    let mut lines: Vec<String> = nodes.iter().map(|node| format!("{node:?}")).collect();
    lines.extend(images.iter().enumerate().map(|(image_ix, image)| {
        let sizes = scan.refs.sizes(&scan.inventory, layersweep::model::refs::Root::Image(image_ix.into()));
        format!("{image:?} {sizes:?}")
    }));
    lines.extend(containers.iter().map(|container| format!("{container:?}")));
    lines.extend(leaks.iter().map(|leak| format!("{leak:?}")));
    lines.push(format!("{anchored:?} {:?}", scan.refs));
    lines
}

/// Fails unless both scans have the same figures.
#[track_caller]
pub fn assert_same(what: &str, left: &Scan, right: &Scan) {
    let (left, right) = (figures(left), figures(right));
    let differ: Vec<_> = left.iter().zip(&right).filter(|(left, right)| left != right).take(6).collect();
    assert!(
        left.len() == right.len() && differ.is_empty(),
        "{what}: {} and {} lines, {differ:#?}",
        left.len(),
        right.len()
    );
}
