//! A node whose image filesystem can be filled up: a podman store on a loop filesystem behind the
//! test CRI server, its records, and the program's own `gc`.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;
use serde_json::Value;

use super::CriServer;
use crate::support::archive::{ImageSpec, LayerSpec};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::node;
use crate::support::program::{self, Run, list, number, text, texts};
use crate::support::running::Running;
use crate::support::store::{self, Store};

/// The image that a container of the runtime uses.
pub const IN_USE: usize = 5;

const DAY_MICROS: i64 = 24 * 3600 * 1_000_000;

/// The store, what serves it, and where the records lie. The order of the fields is the order in
/// which they go.
pub struct GcNode {
    pub server: CriServer,
    pub store: Arc<Store>,
    pub state: PathBuf,
    pub loopfs: LoopFs,
    images: usize,
}

/// The name of an image; the first one is the oldest.
pub fn name(at: usize) -> String {
    format!("reg.local/old-{at}:1")
}

fn base() -> LayerSpec {
    LayerSpec { files: vec![4 * MIB], small_files: 20, ..LayerSpec::new("base") }
}

fn own_layer(name: &str) -> LayerSpec {
    LayerSpec { files: vec![6 * MIB], small_files: 20, ..LayerSpec::new(name) }
}

impl GcNode {
    /// A node with so many images of 6 MiB each on a common base, on a filesystem of 400 MiB; the
    /// state directory lies outside. `None` where the machine lacks something.
    pub fn new(fs: Fs, images: usize) -> Option<Self> {
        Self::sized(fs, images, 400 * MIB)
    }

    pub fn sized(fs: Fs, images: usize, bytes: u64) -> Option<Self> {
        Self::on(fs, images, bytes, &[])
    }

    /// The same as [`Self::new`], with further flags for mkfs.
    pub fn with_mkfs(fs: Fs, images: usize, flags: &[&str]) -> Option<Self> {
        Self::on(fs, images, 400 * MIB, flags)
    }

    fn on(fs: Fs, images: usize, bytes: u64, flags: &[&str]) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::with(fs, bytes, flags, &[]);
        let store = Arc::new(Store::at(&loopfs.path().join("graphroot"), "overlay"));
        let specs: Vec<_> = (0..images)
            .map(|at| ImageSpec {
                names: vec![name(at)],
                layers: vec![base(), own_layer(&format!("old-{at}"))],
                label: name(at),
            })
            .collect();
        store.load(&specs);
        let server = CriServer::start(&store);
        let sandbox = server.podman().sandbox("pod-1", &name(IN_USE));
        server.podman().container(&sandbox, "pod-1", "app", &name(IN_USE));
        let state = store.scratch().join("state");
        Some(Self { server, store, state, loopfs, images })
    }

    /// Puts the records on the store's own filesystem.
    pub fn state_beside_store(mut self) -> Self {
        self.state = self.loopfs.path().join("state");
        self
    }

    /// The program with the flags of this node. `words` begin with the command.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(&self.state);
        if ["gc", "rm"].contains(&words[0]) {
            command.args(["--cri-endpoint", &self.server.endpoint()]);
        }
        command
    }

    pub fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    /// Starts the program, whose document is wanted.
    pub fn start(&self, words: &[&str]) -> Running {
        Running::start(self.command(words).args(["--format", "json"]))
    }

    /// The document of a run that ends with `code`; it must fit its schema.
    pub fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    /// Records a scan, and makes the records say that image number `at` came `30 - at` days ago.
    /// All that is made up is the time since which they are here.
    pub fn age(&self) {
        self.run(&["scan", "-q"]).expect_code(0);
        for at in 0..self.images {
            self.set_first_detected(&name(at), 30 - i64::try_from(at).expect("few"));
        }
    }

    /// Makes the records say that an image came so many days ago.
    pub fn set_first_detected(&self, name: &str, days: i64) {
        let at = Timestamp::now().as_microsecond() - days * DAY_MICROS;
        let changed = self
            .database()
            .execute(
                "UPDATE images SET first_detected = ?1, proven_since = NULL WHERE names LIKE ?2",
                rusqlite::params![at, format!("%\"{name}\"%")],
            )
            .expect("changing the records");
        assert_eq!(changed, 1, "{name}");
    }

    /// Fills the filesystem up, until `used` percent of it are not available.
    pub fn fill(&self, used: f64) {
        let file = File::create(self.loopfs.path().join("ballast")).expect("a file");
        let mut length = 0;
        while self.used_percent() < used {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), length, MIB).expect("room");
            length += MIB;
            if length % (16 * MIB) == 0 {
                self.loopfs.sync();
            }
        }
        // btrfs takes another piece of the disk for its metadata as soon as something is deleted
        // on a filesystem that is rather full, and calls all of it used at once.
        if self.loopfs.fs() == Fs::Btrfs {
            let junk = self.loopfs.path().join("junk");
            for round in 0..3 {
                std::fs::create_dir(&junk).expect("a directory");
                for at in 0..500 {
                    std::fs::write(junk.join(format!("{round}-{at}")), [7; 1000]).expect("a file");
                }
                self.loopfs.sync();
                #[allow(clippy::disallowed_methods)] // our own files
                std::fs::remove_dir_all(&junk).expect("removing them");
                self.loopfs.sync();
            }
        }
        while self.used_percent() > used + 0.5 && length > MIB {
            length -= MIB;
            file.set_len(length).expect("a smaller file");
            self.loopfs.sync();
        }
    }

    /// Fills it until not one more byte can be written.
    pub fn fill_to_the_last_byte(&self) {
        let file = File::create(self.loopfs.path().join("ballast")).expect("a file");
        let mut at = 0;
        for piece in [16 * MIB, MIB, 65536, 4096] {
            while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, piece).is_ok() {
                at += piece;
            }
        }
        let rest = self.loopfs.path().join("rest");
        let _ = std::fs::write(&rest, vec![1; 1 << 20]);
        self.loopfs.sync();
    }

    /// Takes away what [`Self::fill`] and [`Self::fill_to_the_last_byte`] wrote.
    pub fn make_room(&self) {
        for name in ["ballast", "rest"] {
            let path = self.loopfs.path().join(name);
            if path.exists() {
                std::fs::remove_file(path).expect("making room");
            }
        }
        self.loopfs.sync();
    }

    /// Loads one more image, of a layer of that name on the common base.
    pub fn load(&self, names: &[&str], layer: &str) {
        self.store.load(&[ImageSpec {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            layers: vec![base(), own_layer(layer)],
            label: names[0].to_owned(),
        }]);
    }

    /// A configuration file; its path, for `--config`.
    pub fn config(&self, toml: &str) -> String {
        let path = self.store.scratch().join("layersweep.toml");
        std::fs::write(&path, toml).expect("writing a configuration");
        path.to_string_lossy().into_owned()
    }

    /// Waits until the runtime is asked to remove an image.
    pub fn wait_for_a_removal(&self) {
        let began = Instant::now();
        while !self.server.take_calls().iter().any(|call| call.starts_with("RemoveImage")) {
            assert!(began.elapsed() < Duration::from_secs(120), "nothing is removed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many removals the runtime was asked for since the calls were taken the last time.
    pub fn removals(&self) -> usize {
        self.server.take_calls().iter().filter(|call| call.starts_with("RemoveImage")).count()
    }

    /// The full id of an image.
    pub fn id(&self, name: &str) -> String {
        let found = self.store.podman(["image", "inspect", "--format", "{{.Id}}", name]);
        found.trim().to_owned()
    }

    /// The runs of `gc` and `rm` in the history, the newest first; each once.
    pub fn history(&self) -> Vec<Value> {
        let history = self.json(0, &["history", "--all"]);
        assert_eq!(history["complete"], true);
        let runs = list(&history, "/runs").iter().filter(|run| run["command"] != "scan");
        let runs: Vec<_> = runs.cloned().collect();
        let mut ids: Vec<_> = runs.iter().map(|run| text(run, "/run_id")).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), runs.len(), "a run is there twice: {runs:#?}");
        runs
    }

    /// The database itself.
    pub fn database(&self) -> Connection {
        Connection::open(self.state.join("layersweep.db")).expect("the database")
    }

    /// Percent that is not available, as the kubelet counts.
    pub fn used_percent(&self) -> f64 {
        let sizes = rustix::fs::statvfs(self.loopfs.path()).expect("statvfs");
        #[allow(clippy::cast_precision_loss)] // percents
        let share = sizes.f_bavail as f64 / sizes.f_blocks as f64;
        100.0 - share * 100.0
    }

    /// The names of all images that are there, by podman's own word.
    pub fn names(&self) -> Vec<String> {
        let images = self.store.podman_json(["images", "--all", "--format", "json"]);
        let images = images.as_array().expect("a list");
        let names = images.iter().filter(|image| image["Names"].is_array());
        let mut names: Vec<_> = names.flat_map(|image| texts(image, "/Names")).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The names of what a document says was deleted, in order.
pub fn deleted(document: &Value) -> Vec<String> {
    list(document, "/deleted").iter().flat_map(|one| texts(one, "/names")).collect()
}

/// What a document says of the image of that name, which it keeps.
#[track_caller]
pub fn kept<'a>(document: &'a Value, name: &str) -> &'a Value {
    let kept = list(document, "/kept").iter().find(|one| texts(one, "/names").iter().any(|n| n == name));
    kept.unwrap_or_else(|| panic!("{name} is not kept: {document:#}"))
}

/// The rule that keeps the image of that name.
#[track_caller]
pub fn rule<'a>(document: &'a Value, name: &str) -> &'a str {
    text(kept(document, name), "/rule")
}

/// The events of a document, or of a run in the history.
pub fn events(document: &Value) -> Vec<&str> {
    list(document, "/events").iter().map(|event| text(event, "/reason")).collect()
}

/// A run of the history says of its deletions what its document said.
#[track_caller]
pub fn assert_recorded(run: &Value, document: &Value) {
    assert_eq!(run["run_id"], document["run_id"]);
    assert_eq!(run["outcome"], document["outcome"], "{run:#}");
    let done: Vec<_> = list(run, "/deleted").iter().filter(|one| one["error"].is_null()).collect();
    assert_eq!(done.len(), list(document, "/deleted").len(), "{run:#}");
    for (recorded, told) in done.into_iter().zip(list(document, "/deleted")) {
        for field in ["id", "names", "reason", "predicted_bytes", "measured_bytes"] {
            assert_eq!(recorded[field], told[field], "{field}: {recorded:#} {told:#}");
        }
        assert!(number(recorded, "/measured_bytes") > 0, "{recorded:#}");
    }
}

/// Each deletion's measured bytes are what was predicted, within 1 % (64 KiB at least).
#[track_caller]
pub fn assert_exact(document: &Value) {
    for one in list(document, "/deleted") {
        let predicted = one["predicted_bytes"].as_i64().expect("predicted bytes");
        let measured = one["measured_bytes"].as_i64().expect("measured bytes");
        let off = (measured - predicted).abs();
        assert!(off <= (predicted / 100).max(64 * 1024), "{one:#}");
        assert_eq!(one["differs"], false, "{one:#}");
    }
}
