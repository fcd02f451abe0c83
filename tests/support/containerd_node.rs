//! A node with a real containerd: its root on a loop filesystem, images that can run, pods, layersweep's records,
//! and the program's `gc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::archive::{self, ImageSpec, LayerSpec};
use super::containerd::{self, Collection, Rig};
use super::loopfs::{BindMount, Fs, LoopFs, MIB};
use super::program::{self, Run};
use super::{node, past};

/// A node; its fields are dropped in this order.
pub struct ContainerdNode {
    pub rig: Rig,
    /// Disk of the snapshotter, if it has its own.
    pub snapshotter: Option<(BindMount, LoopFs)>,
    pub state: PathBuf,
    pub loopfs: LoopFs,
}

/// Returns the full reference of a short name.
pub fn full(name: &str) -> String {
    if name.contains(':') { format!("reg.local/{name}") } else { format!("reg.local/{name}:1") }
}

/// Returns an image with the busybox of this machine and a layer of `mebibytes` MiB that no other image shares.
/// The first name is also the label, so that images with the same layers differ.
pub fn image(names: &[&str], layer: &str, mebibytes: u64) -> ImageSpec {
    let base = LayerSpec { programs: vec![busybox()], small_files: 5, ..LayerSpec::new("base") };
    let top = LayerSpec { files: vec![mebibytes * MIB], small_files: 20, ..LayerSpec::new(layer) };
    ImageSpec {
        names: names.iter().map(|name| full(name)).collect(),
        layers: vec![base, top],
        label: names[0].to_owned(),
    }
}

/// The busybox of this machine.
pub fn busybox() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("busybox")).find(|path| path.is_file());
    found.expect("it was required")
}

impl ContainerdNode {
    /// Creates a node with these images, and the images for its pods: `pause`, `app-a` and `app-b` (running) and
    /// `app-d` (exited), which are small. The state directory is on another filesystem. Returns `None` if the
    /// machine lacks a program.
    pub fn new(fs: Fs, bytes: u64, images: &[ImageSpec]) -> Option<Self> {
        if !containerd::require_rig() || !fs.require() {
            return None;
        }
        Some(Self::build(LoopFs::new(fs, bytes), None, images))
    }

    /// Creates a node whose default snapshotter has a disk of `apart` bytes.
    pub fn with_snapshots_apart(fs: Fs, bytes: u64, apart: u64, images: &[ImageSpec]) -> Option<Self> {
        if !containerd::require_rig() || !fs.require() {
            return None;
        }
        let (loopfs, disk) = (LoopFs::new(fs, bytes), LoopFs::new(fs, apart));
        let source = disk.path().join("snapshotter");
        let target = loopfs.path().join("containerd/io.containerd.snapshotter.v1.overlayfs");
        for directory in [&source, &target] {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        let mount = BindMount::new(&source, &target);
        Some(Self::build(loopfs, Some((mount, disk)), images))
    }

    fn build(loopfs: LoopFs, snapshotter: Option<(BindMount, LoopFs)>, images: &[ImageSpec]) -> Self {
        let rig = Rig::start(&loopfs.path().join("containerd"), Collection::OnRequest);
        let state = rig.scratch().join("state");
        let node = Self { rig, snapshotter, state, loopfs };
        let pods = ["pause", "app-a", "app-b", "app-d"].map(|name| image(&[name], name, 0));
        let all: Vec<_> = pods.iter().chain(images).cloned().collect();
        node.import("images", &all, "C images import");
        node.rig.settle(all.len());
        node.rig.script("30-pods.sh", &[]);
        node.rig.collect();
        node
    }

    /// Moves the records to containerd's own filesystem.
    pub fn state_beside_store(mut self) -> Self {
        self.state = self.loopfs.path().join("state");
        self
    }

    /// Writes an archive of these images to the scratch directory; returns its path.
    pub fn archive(&self, file: &str, images: &[ImageSpec]) -> PathBuf {
        let path = self.rig.scratch().join(file).with_extension("tar");
        archive::write_running(&path, images, &["/bin/busybox", "sleep", "100000000"]).expect("an archive");
        path
    }

    /// Imports images with `command`, such as `C images import`.
    pub fn import(&self, file: &str, images: &[ImageSpec], command: &str) {
        let path = self.archive(file, images);
        self.rig.shell(&format!("{command} {} >/dev/null; as_pulled", path.display()));
    }

    /// Makes a container in an existing pod (`pod1`, `pod2`); returns its id. `image` is a short name.
    pub fn container(&self, pod: &str, image: &str, start: bool) -> String {
        let sandbox = self.rig.noted("pods", pod);
        let words = ["--one", &sandbox, pod, image, &full(image)];
        let start: &[&str] = if start { &["start"] } else { &[] };
        self.rig.script("30-pods.sh", &[&words[..], start].concat()).trim().to_owned()
    }

    /// Returns the program with the flags of this node. `words` begin with the command.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--containerd-root").arg(self.root()).arg("--state-dir").arg(&self.state);
        if ["gc", "rm", "usage", "images", "explain", "report"].contains(&words[0]) {
            command.args(["--cri-endpoint", &format!("unix://{}", self.rig.socket().display())]);
        }
        command
    }

    pub fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    /// Returns the document of a run that must exit with `code`; the document must fit its schema.
    pub fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    pub fn root(&self) -> PathBuf {
        self.loopfs.path().join("containerd")
    }

    /// Directory of the blobs of the content store.
    pub fn blobs(&self) -> PathBuf {
        self.root().join("io.containerd.content.v1.content/blobs/sha256")
    }

    /// Directory of the unpacked layers of the default snapshotter.
    pub fn snapshots(&self) -> PathBuf {
        self.root().join("io.containerd.snapshotter.v1.overlayfs/snapshots")
    }

    /// Changes the records so that an image (short name or id) was first detected `days` days ago.
    pub fn set_first_detected(&self, image: &str, days: i64) {
        let is_id = image.len() == 64 && image.bytes().all(|byte| byte.is_ascii_hexdigit());
        let image = if is_id { image.to_owned() } else { full(image) };
        past::set_first_detected(&self.state, &image, days);
    }

    /// Returns the names of all images of a namespace that containerd lists, without the names that CRI adds by
    /// id.
    pub fn names(&self, namespace: &str) -> Vec<String> {
        let text = self.rig.shell(&format!("CN {namespace} images ls -q"));
        let names = text.lines().filter(|name| !name.starts_with("sha256:"));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Returns the process id of containerd.
    pub fn pid(&self) -> nix::unistd::Pid {
        let text = std::fs::read_to_string(self.rig.scratch().join("containerd.pid")).expect("a process id");
        nix::unistd::Pid::from_raw(text.trim().parse().expect("a number"))
    }

    /// Kills containerd and everything but its pods.
    pub fn kill(&self) {
        nix::sys::signal::kill(self.pid(), nix::sys::signal::Signal::SIGKILL).expect("it runs");
    }

    /// Starts containerd again, after [`Self::kill`] or while it runs; waits until CRI lists this number of
    /// images.
    pub fn restart(&self, images: usize) {
        self.rig.stop();
        self.rig.script("10-start.sh", &[]);
        self.rig.settle(images);
    }
}

/// Sets the times of a file or directory back by three days, so that it counts as left behind.
pub fn long_ago(path: &Path) {
    let time = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 24 * 3600);
    let times = std::fs::FileTimes::new().set_accessed(time).set_modified(time);
    std::fs::File::open(path).and_then(|file| file.set_times(times)).expect("setting times");
}
