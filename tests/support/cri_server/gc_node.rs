//! A node whose image filesystem can be filled: a podman store on a loop filesystem behind the test CRI server, its
//! records, and the program's `gc`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::Value;

use super::CriServer;
use crate::support::archive::{ImageSpec, LayerSpec};
pub use crate::support::gc_document::{assert_exact, assert_recorded, deleted, events, kept, rule};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::node;
use crate::support::past;
use crate::support::program::{self, Run, list, text, texts};
use crate::support::reserve_file;
use crate::support::running::Running;
use crate::support::store::{self, Store};

/// Number of the image that a container of the runtime uses.
pub const IN_USE: usize = 5;

/// The store, its server and its records; the fields are dropped in this order.
pub struct GcNode {
    pub server: CriServer,
    pub store: Arc<Store>,
    pub state: PathBuf,
    pub loopfs: LoopFs,
    images: usize,
}

/// Returns the name of an image; the first image is the oldest.
pub fn name(number: usize) -> String {
    format!("reg.local/old-{number}:1")
}

fn base() -> LayerSpec {
    LayerSpec { files: vec![4 * MIB], small_files: 20, ..LayerSpec::new("base") }
}

fn top_layer(name: &str) -> LayerSpec {
    LayerSpec { files: vec![6 * MIB], small_files: 20, ..LayerSpec::new(name) }
}

fn specs(images: usize) -> Vec<ImageSpec> {
    let specs = (0..images).map(|number| ImageSpec {
        names: vec![name(number)],
        layers: vec![base(), top_layer(&format!("old-{number}"))],
        label: name(number),
    });
    specs.collect()
}

impl GcNode {
    /// Creates a node with `images` images of 6 MiB each on a common base, on a filesystem of 400 MiB; the state
    /// directory is on another filesystem. Returns `None` if the machine lacks a program.
    pub fn new(fs: Fs, images: usize) -> Option<Self> {
        Self::sized(fs, images, 400 * MIB)
    }

    pub fn sized(fs: Fs, images: usize, bytes: u64) -> Option<Self> {
        Self::on(fs, images, bytes, &[])
    }

    /// Like [`Self::new`], with further flags for mkfs.
    pub fn with_mkfs(fs: Fs, images: usize, flags: &[&str]) -> Option<Self> {
        Self::on(fs, images, 400 * MIB, flags)
    }

    /// Like [`Self::new`], with a store that podman itself has just loaded: a copied store has other places on the
    /// disk, and on a full disk they decide whether the last small files still fit.
    pub fn loaded(fs: Fs, images: usize) -> Option<Self> {
        let specs = specs(images);
        let node = Self::with_store(fs, 400 * MIB, &[], images, |root| {
            let store = Store::at(root, "overlay");
            store.load(&specs);
            store
        });
        node.map(Self::with_pod)
    }

    fn on(fs: Fs, images: usize, bytes: u64, flags: &[&str]) -> Option<Self> {
        Self::with_images(fs, bytes, flags, &specs(images)).map(Self::with_pod)
    }

    fn with_pod(self) -> Self {
        let sandbox = self.server.podman().sandbox("pod-1", &name(IN_USE));
        self.server.podman().container(&sandbox, "pod-1", "app", &name(IN_USE));
        self
    }

    /// Creates a node with these images and no container, on a filesystem of `bytes` bytes, with further flags for
    /// mkfs. Returns `None` if the machine lacks a program.
    pub fn with_images(fs: Fs, bytes: u64, flags: &[&str], specs: &[ImageSpec]) -> Option<Self> {
        Self::with_store(fs, bytes, flags, specs.len(), |root| Store::of(root, "overlay", specs))
    }

    fn with_store(
        fs: Fs,
        bytes: u64,
        flags: &[&str],
        images: usize,
        make: impl FnOnce(&Path) -> Store,
    ) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::with(fs, bytes, flags, &[]);
        let store = Arc::new(make(&loopfs.path().join("graphroot")));
        let server = CriServer::start(&store);
        let state = store.scratch().join("state");
        Some(Self { server, store, state, loopfs, images })
    }

    /// Moves the records to the store's own filesystem.
    pub fn state_beside_store(mut self) -> Self {
        self.state = self.loopfs.path().join("state");
        self
    }

    /// Returns the program with the flags of this node. `words` begin with the command.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(&self.state);
        if ["gc", "rm", "usage", "images", "explain", "report"].contains(&words[0]) {
            command.args(["--cri-endpoint", &self.server.endpoint()]);
        }
        command
    }

    pub fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    /// Starts the program with JSON output.
    pub fn start(&self, words: &[&str]) -> Running {
        Running::start(self.command(words).args(["--format", "json"]))
    }

    /// Returns the document of a run that must exit with `code`; the document must fit its schema.
    pub fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    /// Records a scan, and changes the records so that image number `n` was first detected `30 - n` days ago. Only
    /// these times are made up.
    pub fn age(&self) {
        self.run(&["scan", "-q"]).expect_code(0);
        for number in 0..self.images {
            self.set_first_detected(&name(number), 30 - i64::try_from(number).expect("few"));
        }
    }

    /// Changes the records so that an image was first detected `days` days ago.
    pub fn set_first_detected(&self, name: &str, days: i64) {
        past::set_first_detected(&self.state, name, days);
    }

    /// Fills the filesystem until `used` percent of it are not available.
    pub fn fill(&self, used: f64) {
        reserve_file::fill(&self.loopfs, used);
    }

    /// Fills the filesystem until not one more byte can be written.
    pub fn fill_to_the_last_byte(&self) {
        reserve_file::fill_to_the_last_byte(&self.loopfs);
    }

    /// Deletes the files of [`Self::fill`] and [`Self::fill_to_the_last_byte`].
    pub fn make_room(&self) {
        for name in ["reserve", "rest"] {
            let path = self.loopfs.path().join(name);
            if path.exists() {
                std::fs::remove_file(path).expect("making room");
            }
        }
        self.loopfs.sync();
    }

    /// Loads one more image, whose layer `layer` is on the common base.
    pub fn load(&self, names: &[&str], layer: &str) {
        self.store.load(&[ImageSpec {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            layers: vec![base(), top_layer(layer)],
            label: names[0].to_owned(),
        }]);
    }

    /// Writes a configuration file; returns its path, for `--config`.
    pub fn config(&self, toml: &str) -> String {
        let path = self.store.scratch().join("layersweep.toml");
        std::fs::write(&path, toml).expect("writing a configuration");
        path.to_string_lossy().into_owned()
    }

    /// Waits until the runtime receives a request to remove an image.
    pub fn wait_for_a_removal(&self) {
        let began = Instant::now();
        while !self.server.take_calls().iter().any(|call| call.starts_with("RemoveImage")) {
            assert!(began.elapsed() < Duration::from_secs(120), "nothing is removed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of removals that the runtime was asked for since the calls were last taken.
    pub fn removals(&self) -> usize {
        self.server.take_calls().iter().filter(|call| call.starts_with("RemoveImage")).count()
    }

    /// Returns the full id of an image.
    pub fn id(&self, name: &str) -> String {
        let found = self.store.podman(["image", "inspect", "--format", "{{.Id}}", name]);
        found.trim().to_owned()
    }

    /// Returns the runs of `gc` and `rm` in the history, each once, the newest first.
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

    /// Opens the database.
    pub fn database(&self) -> Connection {
        Connection::open(self.state.join("layersweep.db")).expect("the database")
    }

    /// Returns the percentage that is not available, as the kubelet counts.
    pub fn used_percent(&self) -> f64 {
        reserve_file::used_percent(&self.loopfs)
    }

    /// Returns the names of all images that podman lists.
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
