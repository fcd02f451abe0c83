//! Real containerds, each on its own root, started by the scripts in `tests/rigs/containerd`, and scans of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use layersweep::disk::{self, Progress, TreeScope, WalkOptions, filesystem};
use layersweep::model::refs::Refs;
use layersweep::model::{Consistency, FilesystemIx, Image, Inventory, Leak, Node, Store, StoreIx, StoreKind};
use layersweep::stores::ReadCache;
use layersweep::stores::containerd::fill::fill;
use layersweep::stores::containerd::places::{ConfiguredPin, ContainerdPlaces};
use layersweep::stores::containerd::read::{self, ReadPatience};
use layersweep::stores::containerd::snapshot::Snapshot;
use layersweep::stores::containerd::units;
use layersweep::stores::inventory_writer::InventoryWriter;
use layersweep::stores::{Scan, ScanRequest};
use layersweep::sys::clock::Present;
use layersweep::sys::sysroot::Sysroot;
use tempfile::TempDir;

/// Directory of the download whose writer was killed.
const BROKEN: &str = "75666b6100808367805ad70225ec98c3195af35c5fe6a7b037660cdd70c53983";
/// Directory of the download that has no record.
pub const ORPHAN: &str = "fb9382ea92b539da5ddbebe618c8923cbf5754d6cd20eb32fd707d6bb5f5a881";

/// Returns the captured root of a version.
pub fn fixture(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd").join(version)
}

/// Writes the root of a fixture below `target` from its listing. A file that the fixture does not contain becomes
/// a hole of the same length.
pub fn rebuild(version: &str, target: &Path) -> PathBuf {
    let fixture = fixture(version);
    let listing = std::fs::read_to_string(fixture.join("listing.txt")).expect("rebuilding a fixture");
    for line in listing.lines() {
        let [kind, _inode, _blocks, size, _links, directory, name] =
            line.splitn(7, ' ').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        let path = &Path::new(directory).join(name);
        let made = target.join(path);
        match kind {
            "d" => std::fs::create_dir_all(&made).expect("rebuilding a fixture"),
            // The fixture contains no references of downloads; the names of the downloads are digests of these.
            "f" if path.ends_with(format!("{BROKEN}/ref")) => {
                std::fs::write(&made, "k8s.io/1/broken-pull").expect("rebuilding a fixture");
            }
            "f" if path.ends_with(format!("{ORPHAN}/ref")) => {
                std::fs::write(&made, "k8s.io/999/layer-sha256:dead").expect("rebuilding a fixture");
            }
            "f" if fixture.join(path).exists() => {
                _ = std::fs::copy(fixture.join(path), &made).expect("rebuilding a fixture")
            }
            "f" => std::fs::File::create(&made)
                .expect("rebuilding a fixture")
                .set_len(size.parse().expect("rebuilding a fixture"))
                .expect("rebuilding a fixture"),
            "l" => std::os::unix::fs::symlink("elsewhere", &made).expect("rebuilding a fixture"),
            _ => panic!("{line}"),
        }
    }
    target.join("root")
}

/// Root as the library reads it.
pub struct Reading {
    pub snapshot: Snapshot,
    pub inventory: Inventory,
    pub refs: Refs,
}

impl Reading {
    pub fn image(&self, name: &str) -> &Image {
        let mut images = self.inventory.images.iter();
        let found = images.find(|image| image.names.iter().any(|tag| tag == name));
        found.unwrap_or_else(|| panic!("no image {name}"))
    }

    pub fn leaks(&self, class: &str) -> Vec<&Leak> {
        self.inventory.leaks.iter().filter(|leak| leak.class.as_str() == class).collect()
    }

    pub fn nodes(&self, leak: &Leak) -> Vec<&Node> {
        leak.holds.iter().map(|node| &self.inventory.nodes[node.get()]).collect()
    }
}

/// Reads and measures `places` as if the time were `later` than now.
pub fn read(places: &ContainerdPlaces, later: SignedDuration) -> Reading {
    let patience = ReadPatience::default();
    let snapshot = read::read(places, patience, &ReadCache::default()).expect("the root is read");
    let sorted = units::sort(&snapshot);
    let areas = snapshot.areas();
    let mut trees = Vec::new();
    for (unit, found) in sorted.iter().enumerate() {
        for (root, path, scope) in &found.parts {
            let scope: TreeScope = *scope;
            trees.push(disk::Tree { root: *root, path: path.as_path().into(), unit, scope });
        }
    }
    let measured = disk::measure(&areas, &trees, &WalkOptions::default());
    let faults: Vec<_> = measured.errors.iter().filter(|error| !error.vanished).collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert!(measured.shared_inodes.is_empty(), "no snapshot shares inodes with another");

    let mut inventory = Inventory::default();
    let (facts, cost) = filesystem::of(&places.root).expect("the root's filesystem");
    inventory.filesystems.push(facts);
    inventory.stores.push(Store {
        kind: StoreKind::Containerd,
        root: places.root.clone(),
        driver: "overlayfs".into(),
        filesystem: FilesystemIx::from(0),
        read_only: false,
        origin: "test".into(),
        consistency: Consistency::Consistent,
    });
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let mounts: Vec<PathBuf> =
        mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Into::into).collect();
    let mut tallies = measured.units;
    tallies.resize(sorted.len(), disk::Tally::default());
    let writer = InventoryWriter {
        inventory: &mut inventory,
        store: StoreIx::from(0),
        root_costs: &vec![(FilesystemIx::from(0), cost); areas.len()],
        mounts: &mounts,
        labels: true,
        image: None,
        origins: true,
        blobs: false,
        present: &Present::at(Timestamp::now() + later, Vec::new()),
        leaks: true,
    };
    fill(writer, &snapshot, &sorted, &tallies, ("linux/amd64", SignedDuration::from_mins(15)));
    let refs = Refs::new(&inventory);
    Reading { snapshot, inventory, refs }
}

/// Scans a root as the program does, inode chunks included.
pub fn scan(root: &Path) -> Scan {
    let request =
        ScanRequest { containerd_roots: vec![root.to_path_buf()], ..ScanRequest::of(Sysroot::live()) };
    layersweep::stores::run(&request, &Progress::default()).expect("the root is scanned")
}

/// A private containerd, which is stopped and unmounted when the value is dropped.
pub struct Rig {
    /// State, socket, logs and image archive: everything but the root.
    scratch: TempDir,
    root: PathBuf,
    collection: Collection,
}

/// Times at which containerd deletes unreferenced objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Also some time after a deletion or many changes, as on every node.
    Default,
    /// Only with a deletion that waits for it, such as that of an image over CRI: objects that a test plants stay
    /// until then.
    OnRequest,
}

/// Returns whether the programs of the rig are installed; skips, or fails under CI.
pub fn require_rig() -> bool {
    super::require_root()
        && ["containerd", "runc", "ctr", "busybox", "curl", "openssl"]
            .iter()
            .all(|program| super::require_program(program))
}

impl Rig {
    /// Starts containerd with its root at `root`, and imports the eleven names of
    /// `20-images.sh`. It collects on request.
    pub fn with_images(root: &Path) -> Self {
        Self::with_images_and(root, Collection::OnRequest)
    }

    /// Like [`Self::with_images`], with a choice of the time of collection.
    pub fn with_images_and(root: &Path, collection: Collection) -> Self {
        let rig = Self::start(root, collection);
        rig.script("20-images.sh", &[]);
        rig.settle(9);
        rig.collect();
        rig
    }

    /// Starts containerd with its root at `root`, which must be empty.
    pub fn start(root: &Path, collection: Collection) -> Self {
        let scratch = tempfile::Builder::new().prefix("layersweep-ctrd-").tempdir();
        let scratch = scratch.expect("making a scratch directory");
        let rig = Self { scratch, root: root.to_path_buf(), collection };
        rig.script("10-start.sh", &[]);
        rig
    }

    /// Directory of state, socket, logs and archives: everything but the root.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Stops containerd; its pods keep running. [`Self::script`] starts it again.
    pub fn stop(&self) {
        self.script("90-stop.sh", &["--keep-pods"]);
    }

    /// The socket that containerd listens on.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join("containerd.sock")
    }

    /// Sends a signal to containerd itself, not to its shims.
    pub fn signal(&self, signal: &str) {
        self.shell(&format!("kill -{signal} \"$(cat \"$PIDFILE\")\""));
    }

    /// Returns the places of the root as the configuration of the rig describes them.
    pub fn places(&self) -> ContainerdPlaces {
        let mut places = ContainerdPlaces::at(&self.root, false);
        places.pins.push(ConfiguredPin { image: "reg.local/pause:1".into(), origin: "config.toml".into() });
        places
    }

    /// Returns a value from a file of the rig, for example `pod1` from `pods`.
    pub fn noted(&self, file: &str, key: &str) -> String {
        let text = std::fs::read_to_string(self.scratch.path().join(file)).expect(file);
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.expect(key).to_owned()
    }

    /// Class and description of everything that `40-leaks.sh` planted.
    pub fn planted(&self) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(self.scratch.path().join("leaks")).expect("leaks");
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(class, description)| (class.to_owned(), description.to_owned())).collect()
    }

    /// Runs a script of the rig; returns its output.
    pub fn script(&self, name: &str, arguments: &[&str]) -> String {
        let script = super::store::rig("containerd").join(name);
        self.run(Command::new(script).args(arguments))
    }

    /// Runs shell code with the rig's functions (`C`, `cri`, `pb_str`, …).
    pub fn shell(&self, code: &str) -> String {
        let env = super::store::rig("containerd").join("env.sh");
        let code = format!("set -euo pipefail; . '{}'; {code}", env.display());
        self.run(Command::new("bash").args(["-c", &code]))
    }

    fn run(&self, command: &mut Command) -> String {
        let output = command
            .env("RC", self.scratch.path())
            .env("ROOT", &self.root)
            .env("KEPT", env!("CARGO_TARGET_TMPDIR"))
            .env(
                "COLLECTION",
                if self.collection == Collection::OnRequest { "on-request" } else { "default" },
            )
            .output()
            .expect("a script of the rig runs");
        assert!(
            output.status.success(),
            "{command:?}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Has containerd collect unreferenced objects, such as the index of an import, and waits until it has.
    pub fn collect(&self) {
        self.shell(
            r#"
            S=containerd.services.leases.v1.Leases
            grpc $S/Create "$(pb_str 1 now)" k8s.io >/dev/null
            grpc $S/Delete "$(pb_str 1 now)$(pb_int 2 1)" k8s.io >/dev/null
            "#,
        );
    }

    /// Waits until CRI lists this number of images: events fill its cache.
    pub fn settle(&self, images: usize) {
        for _ in 0..100 {
            if self.images().len() >= images {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("CRI does not list the images");
    }

    /// Returns the images that CRI lists.
    pub fn images(&self) -> Vec<CriImage> {
        let hex = self.shell("cri ImageService/ListImages | od -An -v -tx1 | tr -d ' \\n'");
        let bytes = unhex(hex.trim());
        fields(&bytes)
            .into_iter()
            .filter(|field| field.0 == 1)
            .map(|(_, _, image)| CriImage::parse(image))
            .collect()
    }

    /// Removes an image over CRI, by its id.
    pub fn remove(&self, id: &str) {
        self.shell(&format!("cri_remove_image sha256:{id}"));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let script = super::store::rig("containerd").join("90-stop.sh");
        let _ = Command::new(script).env("RC", self.scratch.path()).env("ROOT", &self.root).output();
    }
}

/// An image as CRI lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CriImage {
    pub id: String,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size: u64,
    pub pinned: bool,
}

impl CriImage {
    fn parse(bytes: &[u8]) -> Self {
        let mut image = Self::default();
        for (number, value, content) in fields(bytes) {
            let text = String::from_utf8_lossy(content).into_owned();
            match number {
                1 => image.id = text,
                2 => image.tags.push(text),
                3 => image.digests.push(text),
                4 => image.size = value,
                8 => image.pinned = value != 0,
                _ => {}
            }
        }
        image.tags.sort();
        image.digests.sort();
        image
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|start| u8::from_str_radix(&hex[start..start + 2], 16).expect("hex"))
        .collect()
}

/// The fields of a protobuf message: number, number value, content.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => found.push((tag >> 3, varint(&mut bytes), &[][..])),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("small");
                let (content, rest) = bytes.split_at(length);
                found.push((tag >> 3, 0, content));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// Returns the class of the finding for something that `40-leaks.sh` planted.
pub fn finding(planted: &str) -> &str {
    match planted {
        "default-namespace" | "second-snapshotter" => "foreign-namespace",
        "orphan-blob"
        | "orphan-ingest"
        | "orphan-snapshot-dir"
        | "orphan-new-dir"
        | "backend-snapshot-unknown" => "garbage",
        "content-gc-root" | "snapshot-gc-root" => "gc-root",
        "lease-without-expiry" | "lease-far-expiry" => "lease",
        "stale-ingest" => "unfinished-pull",
        "ingest-without-ref" | "tmpmount" | "foreign-snapshotter-dir" => "never-collected",
        "cri-container-dir" | "task-dir" => "container-dir",
        "missing-manifest-blob" | "missing-layer-blob" => "broken-image",
        "truncated-blob" => "inconsistent",
        "container-without-cri" => "forgotten-container",
        other => other,
    }
}
