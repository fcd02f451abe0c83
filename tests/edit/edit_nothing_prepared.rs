//! A disk without a free byte or a free inode, filled before layersweep was installed: nothing is prepared, and the
//! state directory is on that disk too.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use layersweep::editor::{Options, PlannedImage};
use serde_json::{Value, json};

use crate::edit::edit_crash::{Recipe, kill_at};
use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, text};
use support::store::{self, Store};
use support::{edit, node};

/// Images of 5 MiB on a common base; a container uses the last one.
const IMAGES: usize = 10;

/// The start of the name of a quarantined directory: `layersweep` in hexadecimal.
pub(super) const QUARANTINED: &str = "6c617965727377656570";

pub(super) fn name(number: usize) -> String {
    format!("reg.local/app-{number}:1")
}

pub(super) fn image(number: usize) -> ImageSpec {
    let layer = |name: &str, bytes| LayerSpec { plain: vec![bytes], small_files: 20, ..LayerSpec::new(name) };
    ImageSpec {
        names: vec![name(number)],
        layers: vec![
            layer("base", 2 * MIB),
            layer(&format!("app-{number}"), 4 * MIB),
            // The top layer frees too little for a first deletion.
            layer(&format!("top-{number}"), 4096),
        ],
        label: name(number),
    }
}

pub(super) struct Disk {
    pub(super) store: Store,
    pub(super) loopfs: LoopFs,
}

impl Disk {
    pub(super) fn new(fs: Fs, bytes: u64, mkfs: &[&str]) -> Option<Self> {
        Self::of(fs, bytes, mkfs, &(0..IMAGES).map(image).collect::<Vec<_>>())
    }

    pub(super) fn of(fs: Fs, bytes: u64, mkfs: &[&str], images: &[ImageSpec]) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::with(fs, bytes, mkfs, &[]);
        let store = Store::of(&loopfs.path().join("graphroot"), "overlay", images);
        store.podman(["create", "--name", "app", "--network", "none", &name(IMAGES - 1), "/x"]);
        store.unmount();
        Some(Self { store, loopfs })
    }

    pub(super) fn state(&self) -> PathBuf {
        self.loopfs.path().join("var/lib/layersweep")
    }

    pub(super) fn json(&self, code: i32, words: &[&str]) -> Value {
        let mut command = program::command();
        command.args(words).args(["--format", "json", "--graphroot"]).arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(self.state());
        node::document(program::run(&mut command).expect_no_crash().expect_code(code))
    }

    /// Returns a command that runs layersweep in strace with these flags; `None` without strace.
    pub(super) fn traced(&self, flags: &[&str], words: &[&str]) -> Option<Command> {
        if !support::require_program("strace") {
            return None;
        }
        let mut command = Command::new("strace");
        program::hermetic(&mut command);
        let output: &[&str] = if flags.contains(&"-o") { &[] } else { &["-o", "/dev/null"] };
        // The filter lets other calls run at full speed.
        command.args(["-f", "-qq", "--seccomp-bpf"]).args(output).args(flags);
        command.arg(env!("CARGO_BIN_EXE_layersweep")).args(words);
        command.args(["--format", "json", "--graphroot"]).arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(self.state());
        Some(command)
    }

    /// Uses every byte, and makes a few thousand directories.
    pub(super) fn fill(&self) {
        let top = self.loopfs.path();
        support::reserve_file::fill_filesystem_of(top);
        for round in 0..2 {
            self.loopfs.sync();
            for size in [65536, 4096, 500] {
                let file = |number| -> std::io::Result<()> {
                    let mut file = File::create(top.join(format!("fill-{round}-{size}-{number}")))?;
                    file.write_all(&vec![7; size])?;
                    file.sync_all()
                };
                assert!((0..200_000).any(|number| file(number).is_err()));
            }
            let directory = |number| std::fs::create_dir(top.join(format!("directory-{round}-{number}")));
            let _ = (0..1000).any(|number| directory(number).is_err());
        }
        self.loopfs.sync();
    }

    fn fill_inodes(&self) {
        let top = self.loopfs.path();
        assert!((0..200_000).any(|number| File::create(top.join(format!("inode-{number}"))).is_err()));
        self.loopfs.sync();
    }

    pub(super) fn ids(&self) -> BTreeSet<String> {
        self.store.images().iter().map(|image| text(image, "/id").to_owned()).collect()
    }

    pub(super) fn id(&self, name: &str) -> String {
        let images = self.store.images();
        text(
            images
                .iter()
                .find(|image| program::texts(image, "/names").iter().any(|known| known == name))
                .unwrap(),
            "/id",
        )
        .to_owned()
    }

    /// Fills the disk, kills the deletion of the image after its top layer was quarantined, and frees space again.
    pub(super) fn killed(&self, target: &str) {
        self.fill();
        assert!((1..20).any(|step| {
            kill_at(&self.store, Recipe::Image, target, step).unwrap();
            !self.signs().is_empty()
        }));
        self.empty_again();
    }

    /// Returns the quarantined directories.
    pub(super) fn signs(&self) -> Vec<PathBuf> {
        let layers = std::fs::read_dir(self.store.root().join("overlay")).unwrap().flatten();
        let signs = layers.filter(|entry| entry.file_name().to_str().unwrap().starts_with(QUARANTINED));
        signs.map(|entry| entry.path()).collect()
    }

    pub(super) fn is_full(&self) -> bool {
        let probe = self.loopfs.path().join("probe");
        let full = File::create(&probe)
            .and_then(|mut file| file.write_all(&[1; 8192]).and_then(|()| file.sync_all()))
            .is_err();
        let _ = std::fs::remove_file(probe);
        full
    }

    pub(super) fn empty_again(&self) {
        for entry in std::fs::read_dir(self.loopfs.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_file() {
                std::fs::remove_file(&path).unwrap();
            } else if name.starts_with("directory-") {
                std::fs::remove_dir(&path).unwrap();
            }
        }
        self.loopfs.sync();
    }

    /// Pads the records to 2,000 images that have the same top layer as the image that a container uses.
    fn pad(&self) {
        let path = self.store.record("images.json");
        let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let base =
            records.iter().find(|image| image["names"][0] == name(IMAGES - 1).as_str()).unwrap()["layer"]
                .clone();
        for number in records.len()..2000 {
            records.push(json!({
                "id": format!("{number:064x}"), "names": [format!("reg.local/padding-{number}:1")], "layer": base,
                "metadata": "{}".repeat(200), "created": "2024-01-01T00:00:00Z",
            }));
        }
        std::fs::write(path, serde_json::to_vec(&records).unwrap()).unwrap();
    }

    fn unpad(&self) {
        let path = self.store.record("images.json");
        let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        records.retain(|record| !record["names"][0].as_str().unwrap_or_default().contains("/padding-"));
        std::fs::write(path, serde_json::to_vec(&records).unwrap()).unwrap();
    }

    /// Checks that podman can load images, make containers and remove both.
    pub(super) fn podman_works(&self) {
        self.store.load(&[image(0)]);
        let name = name(0);
        self.store.podman(["create", "--name", "after", "--network", "none", &name, "/x"]);
        self.store.podman(["rm", "after"]);
        self.store.podman(["rmi", &name]);
        self.store.unmount();
        assert_eq!(edit::podman_ids(&self.store), edit::whole(&self.store));
        self.store.unmount();
    }
}

/// Returns the first names of the deleted images, or the id of an image without a name.
fn deleted(document: &Value) -> Vec<String> {
    list(document, "/deleted")
        .iter()
        .map(|image| image["names"][0].as_str().unwrap_or(text(image, "/id")).to_owned())
        .collect()
}

/// Runs with the records of 10 images, then with those of 2,000.
fn from_zero(fs: Fs, bytes: u64, mkfs: &[&str]) {
    let Some(disk) = Disk::new(fs, bytes, mkfs) else { return };
    for images in [IMAGES, 2000] {
        if images > IMAGES {
            disk.store.load(&(0..3).map(image).collect::<Vec<_>>());
            disk.store.unmount();
            disk.pad();
        }
        assert!(!disk.state().exists(), "a clean install");
        disk.fill();
        assert!(disk.is_full(), "{fs:?}");
        let words = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s"];
        let dry = disk.json(0, &[&words[..], &["--dry-run"]].concat());
        let real = disk.json(0, &words);
        println!("{fs:?}, {images} images: {:?}", deleted(&real));
        assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
        assert!(list(&real, "/errors").is_empty(), "{real:#}");
        assert!(!deleted(&real).is_empty());
        match fs {
            Fs::Ext4 => assert_eq!(deleted(&dry), deleted(&real), "{dry:#}"),
            // The space that the others use for metadata on a full disk cannot be predicted.
            _ => assert_eq!(deleted(&dry)[..1], deleted(&real)[..1], "{dry:#}"),
        }
        assert!(!deleted(&real).contains(&name(IMAGES - 1)), "a container uses it");
        disk.empty_again();
        disk.unpad();
        disk.podman_works();
        store::succeed(Command::new("rm").arg("-rf").arg(disk.loopfs.path().join("var")));
        let _ = std::fs::remove_file(disk.store.root().join(".layersweep-reserve"));
        store::succeed(Command::new("rm").arg("-rf").arg(disk.store.root().join(".layersweep-reserve")));
    }
}

#[test]
fn ext4_with_its_reserve() {
    from_zero(Fs::Ext4, 160 * MIB, &["-b", "1024", "-m", "5"]);
}

#[test]
fn ext4_without_reserve() {
    from_zero(Fs::Ext4, 160 * MIB, &["-b", "4096", "-m", "0"]);
}

#[test]
fn xfs() {
    from_zero(Fs::Xfs, 320 * MIB, &[]);
}

#[test]
fn btrfs() {
    from_zero(Fs::Btrfs, 500 * MIB, &["-m", "dup"]);
}

/// Images of 24 layers: the layers' record file is several times as long as that of the images, and with some free
/// blocks there is room for only one of them.
#[test]
fn room_for_some_of_the_record_files() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 128 * MIB, &["-b", "4096", "-m", "0"], &[]);
    let store = Store::at(&loopfs.path().join("graphroot"), "overlay");
    store.load(
        &(0..6)
            .map(|image_number| {
                let layers = (0..24)
                    .map(|number| LayerSpec {
                        plain: vec![100_000],
                        ..LayerSpec::new(&format!("l{image_number}-{number}"))
                    })
                    .chain([LayerSpec {
                        plain: vec![3 * MIB],
                        ..LayerSpec::new(&format!("app-{image_number}"))
                    }]);
                ImageSpec {
                    names: vec![name(image_number)],
                    layers: layers.collect(),
                    label: name(image_number),
                }
            })
            .collect::<Vec<_>>(),
    );
    store.unmount();
    fn records(store: &Store, file: &str) -> u64 {
        std::fs::metadata(store.record(file)).unwrap().len()
    }
    let (images, layers) = (records(&store, "images.json"), records(&store, "layers.json"));
    assert!(layers > 3 * images, "{layers} {images}");
    let disk = Disk { store, loopfs };
    let slack = disk.loopfs.path().join("slack");
    std::fs::write(&slack, vec![7; 128 << 10]).unwrap();
    disk.fill();
    let state = tempfile::tempdir().unwrap();
    let Disk { store, loopfs } = disk;
    let copy = state.path().join("full");
    fn cp(from: &Path, to: &Path) {
        store::succeed(Command::new("cp").arg("--sparse=always").args([from, to]));
    }
    loopfs.exchange(|image| cp(image, &copy));
    for blocks in [0, 1, 3, 5, 8, 12, 16] {
        loopfs.exchange(|image| cp(&copy, image));
        File::options().write(true).open(&slack).unwrap().set_len((128 << 10) - blocks * 4096).unwrap();
        loopfs.sync();
        let run = |more: &[&str]| {
            let mut command = program::command();
            let words = ["gc", "--via", "direct", "--high", "99", "--low", "96", "--min-age", "0s"];
            command.args(words).args(more).args(["--format", "json", "--graphroot"]).arg(store.root());
            command.arg("--runroot").arg(store.runroot());
            command.arg("--state-dir").arg(state.path().join(format!("state-{blocks}-{}", more[0])));
            node::document(program::run(&mut command).expect_no_crash().expect_code(0))
        };
        let dry = run(&["--dry-run"]);
        let real = run(&["-y"]);
        println!("{blocks} blocks free: {:?}", deleted(&real));
        assert_eq!(deleted(&dry), deleted(&real), "{blocks} blocks: {real:#}");
        assert_eq!(text(&real, "/outcome"), "reached", "{blocks} blocks: {real:#}");
        assert_eq!(edit::podman_ids(&store), edit::whole(&store), "{blocks} blocks");
        store.unmount();
    }
}

/// A reserve file that is empty, or that a killed run has partly released, does not count as room.
#[test]
fn empty_reserve_file_is_ignored() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    File::create(disk.store.root().join(".layersweep-reserve")).unwrap();
    disk.fill();
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s"];
    let dry = disk.json(0, &[&words[..], &["--dry-run"]].concat());
    let real = disk.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(list(&real, "/errors").is_empty(), "{real:#}");
    assert_eq!(deleted(&dry), deleted(&real));
    disk.empty_again();
    disk.podman_works();
}

/// Images that share all their layers free no space: one refusal, and nothing is changed.
#[test]
fn images_that_share_all_their_layers_are_refused() {
    fn twin(number: usize) -> ImageSpec {
        let name = format!("reg.local/twin-{number}:1");
        ImageSpec { names: vec![name.clone()], label: name, ..image(number) }
    }
    let images: Vec<_> = (0..IMAGES).flat_map(|number| [image(number), twin(number)]).collect();
    let Some(disk) = Disk::of(Fs::Ext4, 160 * MIB, &["-b", "4096"], &images) else { return };
    disk.fill();
    let alone = PlannedImage { id: disk.id(&name(1)), ..PlannedImage::default() };
    let error = edit::with(&disk.store, Options::default()).delete_image(&alone).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    let before = disk.ids();
    for (words, which) in [
        (&["gc", "--high", "99", "--low", "97"][..], "no single image"),
        (&["rm", "--all-tags", &name(3)], "none of the named images"),
    ] {
        let words = [words, &["--via", "direct", "--min-age", "0s"]].concat();
        let document = disk.json(1, &words);
        let message = text(&document, "/errors/0/message");
        let begins = format!("no space left to write: {which} frees the ");
        assert!(message.starts_with(&begins), "{message}");
        assert!(text(&document, "/errors/0/hint").contains("by hand"), "{document:#}");
    }
    assert_eq!(disk.ids(), before);
}

#[test]
fn ext4_without_inodes() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096", "-N", "2000"]) else { return };
    disk.fill_inodes();
    let removed = disk.json(0, &["rm", "--via", "direct", "--min-age", "0s", &name(3), &name(4)]);
    assert_eq!(deleted(&removed), [name(3), name(4)], "{removed:#}");
    disk.empty_again();
    disk.podman_works();
}

/// As in busybox: the large file of each image has several names.
#[test]
fn images_of_hard_links() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    fn is_big(path: &Path) -> bool {
        path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() > MIB)
    }
    let find = walkdir::WalkDir::new(disk.store.root().join("overlay")).into_iter().flatten();
    let big: Vec<_> = find.map(walkdir::DirEntry::into_path).filter(|path| is_big(path)).collect();
    assert_eq!(big.len(), IMAGES + 1);
    for path in big {
        std::fs::hard_link(&path, path.with_extension("too")).unwrap();
    }
    disk.fill();
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s"];
    let real = disk.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(list(&real, "/errors").is_empty(), "{real:#}");
}

/// No image frees enough: nothing is changed, and the hint names the file to look at.
#[test]
fn hint_names_files_when_images_free_nothing() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    let log = disk.loopfs.path().join("core.4711");
    std::fs::write(log, vec![1; 6 << 20]).unwrap();
    disk.pad();
    // Each record is so long that ten of them need more room than any image frees.
    let path = disk.store.record("images.json");
    let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    records[0]["metadata"] = json!("x".repeat(6 << 20));
    std::fs::write(&path, serde_json::to_vec(&records).unwrap()).unwrap();
    disk.fill();
    let before = edit::facts(&disk.store.root().join("overlay"));
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s"];
    for dry in [true, false] {
        let more: &[&str] = if dry { &["--dry-run"] } else { &[] };
        let document = disk.json(1, &[&words[..], more].concat());
        let errors = list(&document, "/errors");
        assert_eq!(errors.len(), 1, "{document:#}");
        let message = text(&errors[0], "/message");
        println!("{message}");
        assert!(message.starts_with("no space left to write"), "{message}");
        assert!(
            text(&errors[0], "/hint").starts_with("free space by hand and run this again: "),
            "{document:#}"
        );
        assert!(deleted(&document).is_empty());
    }
    assert_eq!(edit::facts(&disk.store.root().join("overlay")), before);
}

/// A partial record file of a dead process is room, and no image is lost for it.
#[test]
fn leftover_record_file_makes_room() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let left = disk.store.root().join("overlay-images/.tmp-images.json123");
    std::fs::write(&left, vec![7; 512 << 10]).unwrap();
    disk.fill();
    assert!(disk.is_full());
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&steps);
    let on_step = Box::new(move |step| seen.lock().unwrap().push(step));
    let editor = edit::with(&disk.store, Options { on_step: Some(on_step), ..Options::default() });
    editor.delete_image(&PlannedImage { id: disk.id(&name(0)), ..Default::default() }).unwrap();
    assert!(!left.exists());
    let steps = steps.lock().unwrap();
    assert!(!steps.contains(&"layer quarantined"), "{steps:?}");
}
