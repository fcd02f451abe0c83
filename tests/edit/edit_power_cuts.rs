//! Power cuts during deletions. The store's disk is a file on XFS, and a clone of that file (`FICLONE`) at any moment is
//! what a power cut leaves on the disk. Each clone is mounted, which replays the filesystem's journal, and is judged by
//! podman, by the content of every layer that the records name, by SQLite, and by the next run.
//!
//! The loop device of the disk uses direct I/O: what is in the file is what was written to the disk, and not what is
//! still in the page cache. Records of layersweep are on the same disk.
//!
//! `make test` judges a few clones. `LAYERSWEEP_POWER_CUTS=300` judges that many, on ext4, XFS and btrfs in turn.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, text};
use support::store::{self, Store};
use support::{edit, node};

const IMAGES: usize = 8;

/// The deletions whose disks are cloned.
const DELETIONS: [&[&str]; 2] = [
    &["gc", "--via", "direct", "--high", "2", "--low", "1", "--min-age", "0s", "-y"],
    &["sweep", "--delete", "--min-age", "0s", "-y"],
];

fn name(number: usize) -> String {
    format!("reg.local/cut-{number}:1")
}

fn image(number: usize) -> ImageSpec {
    let layer = |name: &str| LayerSpec { files: vec![200_000], small_files: 30, ..LayerSpec::new(name) };
    let own = [format!("own-{number}"), format!("top-{number}")];
    let layers = std::iter::once(layer("base")).chain(own.iter().map(|name| layer(name)));
    ImageSpec { names: vec![name(number)], layers: layers.collect(), label: name(number) }
}

/// The file that is the disk, and where it is mounted. Podman's store has to be at the same path after the cut.
struct Disk {
    fs: Fs,
    /// The XFS with the file and its clones.
    files: LoopFs,
    mount: PathBuf,
    device: Option<String>,
}

impl Disk {
    fn new(fs: Fs) -> Self {
        let files = LoopFs::new(Fs::Xfs, 4096 * MIB);
        let mount = files.path().with_file_name("disk");
        std::fs::create_dir(&mount).unwrap();
        let disk = Self { fs, files, mount, device: None };
        let bytes = if fs == Fs::Ext4 { 200 * MIB } else { 400 * MIB };
        std::fs::File::create(disk.file("disk")).unwrap().set_len(bytes).unwrap();
        let flags: &[&str] = match fs {
            // Without lazy initialisation, which would write during the deletions.
            Fs::Ext4 => {
                &["-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
            }
            // A loop device with direct I/O has the sectors of the disk below it.
            Fs::Xfs => &["-q", "-f", "-s", "size=4096"],
            Fs::Btrfs => &["-q", "-f", "-m", "single", "-d", "single"],
        };
        sbin(&format!("mkfs.{}", fs.name()), flags, &[&disk.file("disk")]);
        disk
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Mounts a file; `direct`: each write to the disk is at once in the file.
    fn mount(&mut self, name: &str, direct: bool) {
        let how = format!("--direct-io={}", if direct { "on" } else { "off" });
        let device = sbin("losetup", &[&how, "--find", "--show"], &[&self.file(name)]).trim().to_owned();
        if direct {
            let fact = device.replace("/dev/", "/sys/block/") + "/loop/dio";
            assert_eq!(std::fs::read_to_string(fact).unwrap().trim(), "1", "the disk has a cache");
        }
        if self.fs == Fs::Btrfs {
            // Two clones are one filesystem for the kernel, which remembers the newer one.
            let _ = Command::new("btrfs").args(["device", "scan", "--forget"]).output();
        }
        self.device = Some(device.clone());
        sbin("mount", &["-t", self.fs.name()], &[Path::new(&device), &self.mount]);
    }

    fn unmount(&mut self, store: &Store) {
        store.unmount();
        let busy = Instant::now();
        while nix::mount::umount(&self.mount).is_err() {
            assert!(busy.elapsed() < Duration::from_secs(20), "the disk stays busy");
            std::thread::sleep(Duration::from_millis(50));
        }
        sbin("losetup", &["--detach", &self.device.take().unwrap()], &[]);
    }

    /// `FICLONE`: the disk as it is now, in a moment and without a copy.
    fn clone_file(&self, from: &str, to: &str) {
        let to = std::fs::File::create(self.file(to)).unwrap();
        let from = std::fs::File::open(self.file(from)).unwrap();
        rustix::fs::ioctl_ficlone(to, from).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.mount, nix::mount::MntFlags::MNT_DETACH);
        if let Some(device) = self.device.take() {
            let _ = Command::new("/usr/sbin/losetup").args(["--detach", &device]).status();
        }
    }
}

fn sbin(program: &str, words: &[&str], paths: &[&Path]) -> String {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    store::succeed(command.env("PATH", format!("{path}:/usr/sbin:/sbin")).args(words).args(paths))
}

/// A node whose store and records are on the disk.
struct Node {
    disk: Disk,
    store: Store,
    /// Names and content of the layers, by id, before any deletion.
    layers: BTreeMap<String, BTreeMap<PathBuf, Vec<u8>>>,
    images: BTreeMap<String, String>,
}

impl Node {
    fn new(fs: Fs) -> Self {
        let mut disk = Disk::new(fs);
        disk.mount("disk", true);
        let store =
            Store::of(&disk.mount.join("graphroot"), "overlay", &(0..IMAGES).map(image).collect::<Vec<_>>());
        store.podman(["create", "--name", "kept", "--network", "none", &name(0), "/x"]);
        store.unmount();
        let overlay = store.root().join("overlay");
        // What a killed pull leaves: the sweep deletes it.
        for number in 0..40 {
            let orphan = overlay.join(format!("{:064x}", 0xdead_0000_u64 + number));
            std::fs::create_dir_all(orphan.join("diff")).unwrap();
            for file in 0..20 {
                std::fs::write(orphan.join(format!("diff/{file}")), vec![7; 6000]).unwrap();
            }
        }
        let mut node = Self { disk, store, layers: BTreeMap::new(), images: BTreeMap::new() };
        node.run(&["scan"], 0);
        let images = node.store.images();
        node.images = images
            .iter()
            .map(|image| (text(image, "/id").into(), program::texts(image, "/names").remove(0)))
            .collect();
        node.layers =
            node.recorded().into_iter().map(|id| (id.clone(), content(&overlay.join(id)))).collect();
        assert_eq!(node.images.len(), IMAGES);
        let device = std::fs::File::open(&node.disk.mount).unwrap();
        rustix::fs::syncfs(device).unwrap();
        node.disk.unmount(&node.store);
        node.disk.clone_file("disk", "start");
        node
    }

    /// Ids in the records of layers.
    fn recorded(&self) -> Vec<String> {
        let records = std::fs::read(self.store.record("layers.json")).unwrap();
        let records: Vec<Value> = serde_json::from_slice(&records).unwrap();
        records.iter().map(|record| text(record, "/id").to_owned()).collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).args(["--format", "json", "--graphroot"]).arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(self.state());
        command
    }

    fn state(&self) -> PathBuf {
        self.disk.mount.join("var/lib/layersweep")
    }

    fn run(&self, words: &[&str], code: i32) -> Value {
        node::document(program::run(&mut self.command(words)).expect_no_crash().expect_code(code))
    }

    /// Starts the deletion on a fresh disk and cuts the power again and again until it has ended; `kills`: also kills
    /// the run, when that many clones show a deletion. Returns the numbers of the clones from the last one before the
    /// first deletion on.
    fn cut(&mut self, deletion: &[&str], kills: Option<usize>) -> Range<usize> {
        self.disk.clone_file("start", "disk");
        self.disk.mount("disk", true);
        let mut run = self.command(deletion);
        let mut run: Child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let before = self.entries();
        let (mut clones, mut first) = (0, None);
        while run.try_wait().unwrap().is_none() {
            self.disk.clone_file("disk", &format!("cut-{clones}"));
            if self.entries() != before {
                let first = *first.get_or_insert(clones);
                if kills == Some(clones - first) {
                    run.kill().unwrap();
                }
            }
            clones += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
        self.disk.clone_file("disk", &format!("cut-{clones}"));
        self.disk.unmount(&self.store);
        first.unwrap_or(clones).saturating_sub(1)..clones + 1
    }

    /// Numbers of images and of entries of the driver's directory.
    fn entries(&self) -> [usize; 2] {
        ["overlay-images", "overlay"].map(|name| self.store.root().join(name).read_dir().unwrap().count())
    }

    /// Mounts a clone as after a reboot, and judges it.
    fn judge(&mut self, deletion: &[&str], cut: usize, podman_first: bool, context: &str) {
        #[allow(clippy::disallowed_methods)] // files of this test
        std::fs::remove_dir_all(self.store.runroot()).unwrap();
        std::fs::create_dir(self.store.runroot()).unwrap();
        self.disk.clone_file(&format!("cut-{cut}"), "judged");
        self.disk.mount("judged", false);
        self.check_database(context);
        self.is_whole(context);
        if podman_first {
            self.podman_works(context);
        }
        let next = program::run(&mut self.command(deletion)).expect_no_crash();
        // Of gc: done, or not down to 1 %.
        assert!([0, 4].contains(&next.code), "{context}: {next:?}");
        // Leaks stay for as long as a process of another test cannot be inspected.
        let began = Instant::now();
        loop {
            let sweep = self.run(DELETIONS[1], 0);
            let scan = self.run(&["scan"], 0);
            // Layers that no image uses are kept for a day if the records of the killed run were not on the disk yet.
            let mut leaks = list(&scan, "/leaks").iter();
            if leaks.all(|leak| text(leak, "/class") == "unreferenced") {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{context}: {sweep:#} {scan:#}");
            std::thread::sleep(Duration::from_secs(1));
        }
        self.is_whole(context);
        self.podman_works(context);
        self.disk.unmount(&self.store);
    }

    /// SQLite replays the log of a copy: the next run finds the files as the power cut left them.
    fn check_database(&self, context: &str) {
        let copy = tempfile::tempdir().unwrap();
        for name in ["layersweep.db", "layersweep.db-wal"] {
            if let Err(error) = std::fs::copy(self.state().join(name), copy.path().join(name)) {
                assert!(
                    name.ends_with("-wal") && error.kind() == ErrorKind::NotFound,
                    "{context}: {name}: {error}"
                );
            }
        }
        let database = rusqlite::Connection::open(copy.path().join("layersweep.db")).unwrap();
        let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok", "{context}");
    }

    /// Every layer with a record and without the flag `incomplete` has the content that it had.
    fn is_whole(&self, context: &str) {
        let records = std::fs::read(self.store.record("layers.json")).unwrap();
        let records: Vec<Value> =
            serde_json::from_slice(&records).unwrap_or_else(|error| panic!("{context}: {error}"));
        for record in records.iter().filter(|record| record["flags"]["incomplete"] != true) {
            let id = text(record, "/id");
            let now = content(&self.store.root().join("overlay").join(id));
            assert!(self.layers.get(id) == Some(&now), "{context}: layer {id} has changed");
        }
    }

    /// Podman lists what is left, the image in use among it, and makes a container of one image.
    fn podman_works(&self, context: &str) {
        let listed = edit::podman_ids(&self.store);
        assert!(listed.iter().all(|id| self.images.contains_key(id)), "{context}: {listed:?}");
        let names: Vec<_> = listed.iter().map(|id| self.images[id].as_str()).collect();
        assert!(names.contains(&name(0).as_str()), "{context}: {names:?}");
        if let Some(image) = names.iter().max() {
            self.store.podman(["create", "--name", "after", "--network", "none", image, "/x"]);
            let mount = self.store.podman(["mount", "after"]);
            assert!(Path::new(mount.trim()).read_dir().unwrap().count() > 0, "{context}: {image}");
            self.store.podman(["umount", "after"]);
            self.store.podman(["rm", "after"]);
        }
        self.store.unmount();
    }
}

/// The content of a layer, by path.
fn content(layer: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let diff = layer.join("diff");
    let entries = walkdir::WalkDir::new(&diff).into_iter().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().is_file());
    let content = files.map(|entry| {
        (entry.path().strip_prefix(&diff).unwrap().to_path_buf(), std::fs::read(entry.path()).unwrap())
    });
    content.collect()
}

#[test]
fn power_cuts_lose_nothing() {
    let wanted = std::env::var("LAYERSWEEP_POWER_CUTS").ok().map(|number| number.parse::<usize>().unwrap());
    let filesystems = if wanted.is_some() { &Fs::ALL[..] } else { &[Fs::Ext4] };
    let is_possible = store::require_tools()
        && filesystems.iter().chain([&Fs::Xfs]).all(|fs| fs.require())
        && support::require_program("losetup");
    if !is_possible {
        return;
    }
    let wanted = wanted.unwrap_or(6);
    let mut judged = 0;
    for round in 0.. {
        let fs = filesystems[round % filesystems.len()];
        let mut node = Node::new(fs);
        for deletion in DELETIONS {
            let mut whole_run = 1;
            for is_killed in [false, true] {
                let kills = is_killed.then(|| fastrand::usize(..whole_run));
                let clones = node.cut(deletion, kills);
                whole_run = clones.len();
                let most = if wanted > 6 { 4 } else { 2 - usize::from(is_killed) };
                for _ in 0..most {
                    let cut = fastrand::usize(clones.clone());
                    let context =
                        format!("{fs:?}, {}, clone {cut} of {clones:?}, killed: {kills:?}", deletion[0]);
                    println!("{context}");
                    node.judge(deletion, cut, judged % 2 == 0, &context);
                    judged += 1;
                }
            }
            if judged >= wanted {
                println!("{judged} power cuts");
                return;
            }
        }
    }
}
