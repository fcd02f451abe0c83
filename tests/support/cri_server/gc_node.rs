//! A node whose image filesystem can be filled up: a podman store on a loop filesystem behind the
//! test CRI server, its records, and the program's own `gc`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

use super::CriServer;
use crate::support::archive::{ImageSpec, LayerSpec};
use crate::support::ballast;
pub use crate::support::gc_document::{assert_exact, deleted, rule};
use crate::support::loopfs::{Fs, LoopFs, MIB};
use crate::support::node;
use crate::support::past;
use crate::support::program::{self, Run, texts};
use crate::support::store::{self, Store};

/// The image that a container of the runtime uses.
pub const IN_USE: usize = 5;

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

impl GcNode {
    /// A node with so many images of 6 MiB each on a common base, on a filesystem of 400 MiB; the
    /// state directory lies outside. `None` where the machine lacks something.
    pub fn new(fs: Fs, images: usize) -> Option<Self> {
        Self::sized(fs, images, 400 * MIB)
    }

    pub fn sized(fs: Fs, images: usize, bytes: u64) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::new(fs, bytes);
        let store = Arc::new(Store::at(&loopfs.path().join("graphroot"), "overlay"));
        let layer = |name: &str, bytes: u64| LayerSpec {
            files: vec![bytes],
            small_files: 20,
            ..LayerSpec::new(name)
        };
        let specs: Vec<_> = (0..images)
            .map(|at| ImageSpec {
                names: vec![name(at)],
                layers: vec![layer("base", 4 * MIB), layer(&format!("old-{at}"), 6 * MIB)],
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
        past::set_first_detected(&self.state, name, days);
    }

    /// Fills the filesystem up, until `used` percent of it are not available.
    pub fn fill(&self, used: f64) {
        ballast::fill(&self.loopfs, used);
    }

    /// Fills it until not one more byte can be written.
    pub fn fill_to_the_last_byte(&self) {
        ballast::fill_to_the_last_byte(&self.loopfs);
    }

    /// Percent that is not available, as the kubelet counts.
    pub fn used_percent(&self) -> f64 {
        ballast::used_percent(&self.loopfs)
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
