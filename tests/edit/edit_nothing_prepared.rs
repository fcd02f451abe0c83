//! A disk without a free byte or a free inode, filled before we were installed: nothing is prepared, and
//! our state directory would be on that disk as well.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::SignedDuration;
use layersweep::model::Orphan;
use layersweep::stores::containers_storage::edit::{Options, OrphanAt, PlannedImage};
use serde_json::{Value, json};

use crate::edit::edit_crash::{Recipe, kill_at};
use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, text};
use support::store::{self, Store};
use support::{edit, node};

/// Images of 5 MiB each on a common base; a container uses the last.
const IMAGES: usize = 10;

/// What the name of a quarantined directory begins with: `layersweep` in hexadecimal.
const QUARANTINED: &str = "6c617965727377656570";

fn name(at: usize) -> String {
    format!("reg.local/app-{at}:1")
}

fn image(at: usize) -> ImageSpec {
    let layer = |name: &str, bytes| LayerSpec { plain: vec![bytes], small_files: 20, ..LayerSpec::new(name) };
    ImageSpec {
        names: vec![name(at)],
        layers: vec![
            layer("base", 2 * MIB),
            layer(&format!("app-{at}"), 4 * MIB),
            // What is on top is too little to begin with.
            layer(&format!("top-{at}"), 4096),
        ],
        label: name(at),
    }
}

/// Another image with the same layers.
fn twin(at: usize) -> ImageSpec {
    like(at, "twin")
}

fn like(at: usize, name: &str) -> ImageSpec {
    let name = format!("reg.local/{name}-{at}:1");
    ImageSpec { names: vec![name.clone()], label: name, ..image(at) }
}

/// What `podman build` leaves without a name when it makes the last layer.
fn parent(at: usize) -> ImageSpec {
    let whole = like(at, "parent");
    ImageSpec { layers: whole.layers[..2].to_vec(), ..whole }
}

struct Disk {
    store: Store,
    loopfs: LoopFs,
}

impl Disk {
    fn new(fs: Fs, bytes: u64, mkfs: &[&str]) -> Option<Self> {
        Self::of(fs, bytes, mkfs, &(0..IMAGES).map(image).collect::<Vec<_>>())
    }

    fn of(fs: Fs, bytes: u64, mkfs: &[&str], images: &[ImageSpec]) -> Option<Self> {
        if !store::require_tools() || !fs.require() {
            return None;
        }
        let loopfs = LoopFs::with(fs, bytes, mkfs, &[]);
        let store = Store::of(&loopfs.path().join("graphroot"), "overlay", images);
        store.podman(["create", "--name", "app", "--network", "none", &name(IMAGES - 1), "/x"]);
        store.unmount();
        Some(Self { store, loopfs })
    }

    fn state(&self) -> PathBuf {
        self.loopfs.path().join("var/lib/layersweep")
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        let mut command = program::command();
        command.args(words).args(["--format", "json", "--graphroot"]).arg(self.store.root());
        command.arg("--runroot").arg(self.store.runroot()).arg("--state-dir").arg(self.state());
        node::document(program::run(&mut command).expect_no_crash().expect_code(code))
    }

    /// Takes every byte; a few thousand directories besides.
    fn fill(&self) {
        let top = self.loopfs.path();
        support::reserve_file::fill_filesystem_of(top);
        for round in 0..2 {
            self.loopfs.sync();
            for size in [65536, 4096, 500] {
                let file = |at| -> std::io::Result<()> {
                    let mut file = File::create(top.join(format!("fill-{round}-{size}-{at}")))?;
                    file.write_all(&vec![7; size])?;
                    file.sync_all()
                };
                assert!((0..200_000).any(|at| file(at).is_err()));
            }
            let directory = |at| std::fs::create_dir(top.join(format!("directory-{round}-{at}")));
            let _ = (0..1000).any(|at| directory(at).is_err());
        }
        self.loopfs.sync();
    }

    fn fill_inodes(&self) {
        let top = self.loopfs.path();
        assert!((0..200_000).any(|at| File::create(top.join(format!("inode-{at}"))).is_err()));
        self.loopfs.sync();
    }

    fn ids(&self) -> BTreeSet<String> {
        self.store.images().iter().map(|image| text(image, "/id").to_owned()).collect()
    }

    /// With a twin of each image that no container uses, and of some a third one.
    fn with_twins(fs: Fs, bytes: u64, mkfs: &[&str]) -> Option<Self> {
        let twins = (0..IMAGES - 1).map(twin).chain([0, 1, 2].map(|at| like(at, "third")));
        let disk = Self::of(fs, bytes, mkfs, &(0..IMAGES).map(image).chain(twins).collect::<Vec<_>>())?;
        // `podman build` leaves those that it makes on the way without a name.
        disk.store.podman(["untag", &twin(0).names[0]]);
        disk.store.unmount();
        Some(disk)
    }

    /// With the parent of each image.
    fn with_parents(fs: Fs, bytes: u64, mkfs: &[&str]) -> Option<Self> {
        let parents = (0..IMAGES).map(parent);
        let disk = Self::of(fs, bytes, mkfs, &(0..IMAGES).map(image).chain(parents).collect::<Vec<_>>())?;
        for at in [0, 1] {
            disk.store.podman(["untag", &parent(at).names[0]]);
        }
        disk.store.unmount();
        Some(disk)
    }

    fn id(&self, name: &str) -> String {
        let images = self.store.images();
        let is_it = |image: &&Value| program::texts(image, "/names").iter().any(|one| one == name);
        text(images.iter().find(is_it).unwrap(), "/id").to_owned()
    }

    /// Full, killed once the top layer of these images was quarantined, and with room again; returns where the
    /// notes are.
    fn killed(&self, targets: &[String]) -> PathBuf {
        self.killed_noting(targets, self.loopfs.path().join("notes"))
    }

    fn killed_noting(&self, targets: &[String], notes: PathBuf) -> PathBuf {
        self.fill();
        let kill = |step| kill_at(&self.store, Recipe::Image, &targets.join(","), &notes, step).unwrap();
        let is_lost = |step| match kill(step).as_str() {
            "layer quarantined" => true,
            "layer renamed" => {
                // Nothing is lost yet, and it gets its name back.
                let options = Options { intents: Some(notes.clone()), ..Options::default() };
                edit::with(&self.store, options).resume(&|_, _, _| false).unwrap();
                false
            }
            _ => false,
        };
        assert!((1..20).any(is_lost));
        self.empty_again();
        notes
    }

    fn is_full(&self) -> bool {
        let probe = self.loopfs.path().join("probe");
        let full = File::create(&probe)
            .and_then(|mut file| file.write_all(&[1; 8192]).and_then(|()| file.sync_all()))
            .is_err();
        let _ = std::fs::remove_file(probe);
        full
    }

    fn empty_again(&self) {
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

    /// Records of 2,000 images: names and ids more for the one that a container uses.
    fn pad(&self) {
        let path = self.store.record("images.json");
        let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let is_used = |one: &&Value| one["names"][0] == name(IMAGES - 1).as_str();
        let base = records.iter().find(is_used).unwrap()["layer"].clone();
        for at in records.len()..2000 {
            records.push(json!({
                "id": format!("{at:064x}"), "names": [format!("reg.local/padding-{at}:1")], "layer": base,
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

    /// podman loads, makes containers and removes as on any other day.
    fn podman_works(&self) {
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

/// Their first names; of those without a name the id.
fn deleted(document: &Value) -> Vec<String> {
    let name = |one: &Value| one["names"][0].as_str().unwrap_or(text(one, "/id")).to_owned();
    list(document, "/deleted").iter().map(name).collect()
}

/// With the records of 10 images, then with those of 2,000.
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
            // What the others take for their own metadata on a full disk, nobody can say before.
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

/// Images of 24 layers: the layers' record file is many times as long as that of the images, and with some
/// blocks free there is room for the one and not for the other.
#[test]
fn room_for_some_of_the_record_files() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 128 * MIB, &["-b", "4096", "-m", "0"], &[]);
    let store = Store::at(&loopfs.path().join("graphroot"), "overlay");
    let many = |at: usize| {
        let layer = |number| LayerSpec { plain: vec![100_000], ..LayerSpec::new(&format!("l{at}-{number}")) };
        let layers = (0..24)
            .map(layer)
            .chain([LayerSpec { plain: vec![3 * MIB], ..LayerSpec::new(&format!("app-{at}")) }]);
        ImageSpec { names: vec![name(at)], layers: layers.collect(), label: name(at) }
    };
    store.load(&(0..6).map(many).collect::<Vec<_>>());
    store.unmount();
    let records = |file: &str| std::fs::metadata(store.record(file)).unwrap().len();
    let (images, layers) = (records("images.json"), records("layers.json"));
    assert!(layers > 3 * images, "{layers} {images}");
    let disk = Disk { store, loopfs };
    let slack = disk.loopfs.path().join("slack");
    std::fs::write(&slack, vec![7; 128 << 10]).unwrap();
    disk.fill();
    let state = tempfile::tempdir().unwrap();
    let Disk { store, loopfs } = disk;
    let copy = state.path().join("full");
    let cp = |from: &Path, to: &Path| {
        store::succeed(Command::new("cp").arg("--sparse=always").args([from, to]));
    };
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

/// No image has layers of its own: those that share them go together, and the dry run says which.
#[test]
fn images_that_share_all_their_layers() {
    let filesystems: [(Fs, u64, &[&str]); 3] = [
        (Fs::Ext4, 160 * MIB, &["-b", "4096"]),
        (Fs::Xfs, 320 * MIB, &[]),
        (Fs::Btrfs, 500 * MIB, &["-m", "dup"]),
    ];
    for (fs, bytes, mkfs) in filesystems {
        let Some(disk) = Disk::with_twins(fs, bytes, mkfs) else { return };
        disk.fill();
        // A rule that asks about each of them.
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(config.path(), "[protect]\nlabels = [\"of.nobody\"]\n").unwrap();
        let config = config.path().to_str().unwrap();
        let words =
            ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s", "--config", config];
        let dry = disk.json(0, &[&words[..], &["--dry-run"]].concat());
        let before = disk.ids();
        let real = disk.json(0, &words);
        let ids = |document: &Value| -> Vec<String> {
            list(document, "/deleted").iter().map(|one| text(one, "/id").to_owned()).collect()
        };
        assert_eq!(text(&real, "/outcome"), "reached", "{fs:?}: {real:#}");
        assert!(list(&real, "/errors").is_empty(), "{fs:?}: {real:#}");
        let count = if fs == Fs::Ext4 { ids(&real).len() } else { 3 };
        assert!(count >= 3 && ids(&dry)[..count] == ids(&real)[..count], "{fs:?}: {dry:#} {real:#}");
        for document in [&dry, &real] {
            let [first, second, third] = [0, 1, 2].map(|at| &list(document, "/deleted")[at]);
            assert!(first["predicted_bytes"].as_u64() > Some(4 << 20), "{first:#}");
            assert_eq!((&second["predicted_bytes"], &third["predicted_bytes"]), (&json!(0), &json!(0)));
        }
        let left = disk.ids();
        let gone: BTreeSet<_> = before.difference(&left).cloned().collect();
        assert_eq!(gone, ids(&real).into_iter().collect(), "{fs:?}");
        let measured =
            list(&real, "/deleted").iter().take(2).map(|one| one["measured_bytes"].as_i64().unwrap());
        assert!(measured.sum::<i64>() > 4 << 20, "{fs:?}: {real:#}");
        disk.empty_again();
        disk.podman_works();
    }
}

/// All that an image has for itself is too little, the rest is its parent's as well: they go together.
#[test]
fn images_with_their_parents() {
    let Some(disk) = Disk::with_parents(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    disk.fill();
    let one = disk.json(1, &["rm", "--via", "direct", "--min-age", "0s", &name(3)]);
    let message = text(&one, "/errors/0/message");
    let other = parent(3).names.remove(0);
    assert!(message.ends_with(&format!("shares its layers with {other}; name them together")), "{message}");
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "90", "--min-age", "0s"];
    let dry = disk.json(0, &[&words[..], &["--dry-run"]].concat());
    let before = disk.ids();
    let real = disk.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(list(&real, "/errors").is_empty(), "{real:#}");
    assert_eq!(deleted(&dry), deleted(&real));
    assert!(deleted(&real).len() > 3, "{real:#}");
    let [first, second] = [0, 1].map(|at| &list(&real, "/deleted")[at]);
    assert!(first["predicted_bytes"].as_u64() > Some(4 << 20), "{first:#}");
    assert_eq!(second["predicted_bytes"], json!(0), "{second:#}");
    assert_eq!(before.len() - disk.ids().len(), deleted(&real).len());
    disk.empty_again();
    disk.podman_works();
}

/// The directory of an image's own files is no room: it goes after its record.
#[test]
fn ext4_without_inodes_for_images_that_share_all_their_layers() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 160 * MIB, &["-b", "4096", "-N", "2200"]) else { return };
    disk.fill_inodes();
    let words = ["gc", "--via", "direct", "--inodes-high", "98", "--min-age", "0s"];
    let dry = disk.json(0, &[&words[..], &["--dry-run"]].concat());
    let real = disk.json(0, &words);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert_eq!(deleted(&dry), deleted(&real));
    assert!(deleted(&real).len() > 2, "{real:#}");
    disk.empty_again();
    disk.podman_works();
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

/// As in busybox: what takes the room in each image has several names.
#[test]
fn images_of_hard_links() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    let is_big = |path: &Path| path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() > MIB);
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

/// No image has enough: nothing is changed, and what to delete by hand is named.
#[test]
fn where_no_image_makes_room_a_person_is_told_what_does() {
    let Some(disk) = Disk::new(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    let log = disk.loopfs.path().join("core.4711");
    std::fs::write(log, vec![1; 6 << 20]).unwrap();
    disk.pad();
    // Each record is so long that ten of them need more than any image holds.
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

/// The names below a layer's content; `None` where its directory is missing.
fn content(store: &Store, layer: &str) -> Option<BTreeSet<PathBuf>> {
    let top = store.root().join("overlay").join(layer);
    top.exists().then(|| edit::facts(&top.join("diff")).into_keys().collect())
}

/// Killed at every step: what the image's record names is whole or missing as a whole, never in between;
/// podman works with the others; our next run finishes, on the full disk.
#[test]
fn killed_at_every_step() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    killed_at_every_step_of(&disk, &[disk.id(&name(2))]);
}

/// The same with two images that have all their layers in common.
#[test]
fn killed_at_every_step_of_two() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    disk.store.podman(["rmi", "reg.local/third-2:1"]);
    disk.store.unmount();
    killed_at_every_step_of(&disk, &[disk.id(&name(2)), disk.id(&twin(2).names[0])]);
}

/// The same with an image and its parent, which has the layer that makes the room.
#[test]
fn killed_at_every_step_of_an_image_with_its_parent() {
    let Some(disk) = Disk::with_parents(Fs::Ext4, 80 * MIB, &["-b", "1024"]) else { return };
    killed_at_every_step_of(&disk, &[disk.id(&parent(2).names[0]), disk.id(&name(2))]);
}

fn killed_at_every_step_of(disk: &Disk, targets: &[String]) {
    let store = &disk.store;
    let target = targets.join(",");
    let notes = disk.loopfs.path().join("notes");
    std::fs::create_dir(&notes).unwrap();
    let mut survivors = edit::ids(&store.images());
    survivors.retain(|id| !targets.contains(id));
    let records = || -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(store.record("images.json")).unwrap()).unwrap()
    };
    let top = |id: &String| -> String {
        let records = records();
        records.iter().find(|one| one["id"] == id.as_str()).unwrap()["layer"].as_str().unwrap().to_owned()
    };
    let tops: Vec<_> = targets.iter().map(|id| (top(id), content(store, &top(id)).unwrap())).collect();
    // The topmost that all of them have.
    let top = tops[0].0.clone();
    disk.fill();
    assert!(disk.is_full());
    let copy = tempfile::tempdir().unwrap();
    let copy = copy.path().join("full");
    let cp = |from: &Path, to: &Path| {
        store::succeed(Command::new("cp").arg("--sparse=always").args([from, to]));
    };
    store.unmount();
    disk.loopfs.exchange(|image| cp(image, &copy));
    let mut steps: Vec<String> = Vec::new();
    loop {
        disk.loopfs.exchange(|image| cp(&copy, image));
        let step = kill_at(store, Recipe::Image, &target, &notes, steps.len() + 1);
        let at = format!("step {} ({step:?})", steps.len() + 1);
        println!("{at}");
        let recorded =
            records().iter().filter(|one| targets.iter().any(|id| one["id"] == id.as_str())).count();
        assert!([0, targets.len()].contains(&recorded), "{at}: {recorded}");
        let is_recorded = recorded > 0;
        for (top, whole) in tops.iter().filter(|_| is_recorded) {
            assert!(content(store, top).is_none_or(|left| left == *whole), "{at}: half a layer");
        }
        if step.as_ref().is_some_and(|step| !steps.contains(step)) {
            // Somebody makes room, and podman comes first.
            disk.empty_again();
            store.podman(["create", "--name", "other", "--network", "none", &name(5), "/x"]);
            store.podman(["rm", "other"]);
            if is_recorded {
                let podman = |words: &[&str]| {
                    let mut command = store.podman_command();
                    command.args(words);
                    program::run(&mut command)
                };
                let create = podman(&["create", "--name", "lost", "--network", "none", &name(2), "/x"]);
                let mount = (create.code == 0).then(|| podman(&["mount", "lost"]));
                let works = mount.as_ref().is_some_and(|mount| mount.code == 0);
                assert_eq!(works, content(store, &top).is_some(), "{at}: {create:?} {mount:?}");
                if create.code == 0 {
                    store.podman(["rm", "lost"]);
                }
            }
            store.unmount();
            finish(disk, targets, &notes, &at);
            assert_eq!(edit::whole(store), survivors, "{at}, after podman");
            disk.loopfs.exchange(|image| cp(&copy, image));
            assert_eq!(kill_at(store, Recipe::Image, &target, &notes, steps.len() + 1), step, "{at}");
        }
        finish(disk, targets, &notes, &at);
        assert_eq!(edit::whole(store), survivors, "{at}");
        assert_eq!(std::fs::read_dir(&notes).unwrap().count(), 0, "{at}: a note is left");
        match step {
            Some(step) => steps.push(step),
            None => break,
        }
    }
    println!("{} steps: {steps:?}", steps.len());
    for wanted in ["layer quarantined", "layer emptied", "record file replaced"] {
        assert!(steps.iter().any(|step| step == wanted), "{wanted}: {steps:?}");
    }
    disk.empty_again();
    disk.podman_works();
}

fn finish(disk: &Disk, targets: &[String], notes: &Path, at: &str) {
    let options = Options { intents: Some(notes.to_path_buf()), ..Options::default() };
    let editor = edit::with(&disk.store, options);
    editor.resume(&|_, _, _| false).unwrap_or_else(|error| panic!("{at}: {error}"));
    let images = std::fs::read_to_string(disk.store.record("images.json")).unwrap();
    let left = targets.iter().filter(|id| images.contains(&format!("\"id\":\"{id}\"")));
    let left: Vec<_> = left.map(|id| PlannedImage { id: id.clone(), names: None }).collect();
    if !left.is_empty() {
        editor.delete_images(&left).map(drop).unwrap();
    }
    // Where there was room for it, nothing tells of what was killed while it was written.
    for records in ["overlay-images", "overlay-layers"] {
        for entry in std::fs::read_dir(disk.store.root().join(records)).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with(".tmp-") {
                let orphan = OrphanAt { kind: Orphan::TempRecord, path };
                assert!(editor.reclaim(&[orphan], SignedDuration::ZERO).unwrap().kept.is_empty());
            }
        }
    }
}

/// What a killed run had begun is finished for the image that it had chosen, and for no other; not even for
/// that one, if it is to stay by now.
#[test]
fn only_the_chosen_image_is_finished() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    let notes = disk.killed(std::slice::from_ref(&target));
    let editor = edit::with(store, Options { intents: Some(notes), ..Options::default() });
    assert!(editor.is_unfinished());
    let keeps = |id: &str, names: &[String], digests: &[String]| {
        id == target && names == [name(2)] && digests.iter().any(|digest| digest.starts_with("sha256:"))
    };
    editor.resume(&keeps).unwrap();
    assert!(disk.ids().contains(&target), "it is to stay");
    assert!(!editor.is_unfinished());
}

/// Of two that were chosen the one stays that was pinned since.
#[test]
fn of_two_chosen_images_one_may_be_kept() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let both = [disk.id(&name(2)), disk.id(&twin(2).names[0])];
    let third = [disk.id("reg.local/third-2:1")];
    let notes = disk.killed(&[both.as_slice(), third.as_slice()].concat());
    // podman comes first, and removes one of them.
    store.podman(["rmi", "reg.local/third-2:1"]);
    store.unmount();
    let editor = edit::with(store, Options { intents: Some(notes), ..Options::default() });
    editor.resume(&|id, _, _| id == both[1]).unwrap();
    let left = disk.ids();
    assert!(!left.contains(&both[0]) && left.contains(&both[1]), "{left:?}");
    assert!(!editor.is_unfinished());
}

#[test]
fn an_image_that_came_to_the_layer_stays() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let notes = disk.killed(&[disk.id(&name(2))]);
    let before = disk.ids();
    store.load(&[ImageSpec { names: vec!["reg.local/vip:1".into()], label: "vip".into(), ..image(2) }]);
    store.podman(["rmi", &name(2)]);
    store.unmount();
    let came: Vec<_> = disk.ids().difference(&before).cloned().collect();
    assert_eq!(came.len(), 1, "{came:?}");
    edit::with(store, Options { intents: Some(notes), ..Options::default() })
        .resume(&|_, _, _| false)
        .unwrap();
    assert!(disk.ids().contains(&came[0]), "it was never chosen");
}

/// What a killed deletion emptied is no leak: it is the sign that the rest has to be deleted.
#[test]
fn the_sign_of_an_unfinished_deletion_is_not_swept() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(std::slice::from_ref(&target));
    let report = disk.json(0, &["sweep", "--min-age", "0s"]);
    let is_it = |one: &&Value| text(one, "/id").starts_with(QUARANTINED);
    let leak = list(&report, "/leaks").iter().find(is_it).unwrap();
    assert_eq!((text(leak, "/verdict"), text(leak, "/action")), ("keep", "none"), "{leak:#}");
    let path = PathBuf::from(text(leak, "/path"));
    let orphan = OrphanAt { kind: Orphan::LayerDirectory, path: path.clone() };
    let editor = edit::with(store, Options::default());
    let kept = editor.reclaim(std::slice::from_ref(&orphan), SignedDuration::ZERO).unwrap().kept;
    assert!(kept[0].1.to_string().contains("has a record now"), "{kept:?}");
    editor.resume(&|_, _, _| false).unwrap();
    assert!(!path.exists() && !disk.ids().contains(&target));
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

/// A library's garbage collection takes the quarantined directory for an orphan: the note tells what is left.
#[test]
fn without_the_sign_the_note_finishes() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    let store = &disk.store;
    let target = disk.id(&name(2));
    let state = tempfile::tempdir().unwrap();
    let notes = disk.killed_noting(std::slice::from_ref(&target), state.path().to_path_buf());
    for entry in std::fs::read_dir(store.root().join("overlay")).unwrap().flatten() {
        if entry.file_name().to_str().unwrap().starts_with(QUARANTINED) {
            store::succeed(Command::new("rm").arg("-r").arg(entry.path()));
        }
    }
    let editor = edit::with(store, Options { intents: Some(notes), ..Options::default() });
    editor.resume(&|_, _, _| false).unwrap();
    assert!(!disk.ids().contains(&target), "it is lost, and was to be deleted");
    assert!(!editor.is_unfinished());
    assert_eq!(edit::podman_ids(store), edit::whole(store));
}

/// On a terminal, what a killed run began is finished after the answer, and the plan says that it will be.
#[test]
fn nothing_is_finished_before_the_answer() {
    let Some(disk) = Disk::new(Fs::Ext4, 80 * MIB, &["-b", "4096"]) else { return };
    if !support::require_program("script") {
        return;
    }
    let store = &disk.store;
    let target = disk.id(&name(2));
    disk.killed(std::slice::from_ref(&target));
    let is_there = || disk.ids().contains(&target);
    let gc = |answer: &str| {
        let mut words = vec![env!("CARGO_BIN_EXE_layersweep").to_owned()];
        let flags = "gc --via direct --high 99 --low 98 --min-age 0s --no-progress --color never";
        words.extend(flags.split(' ').map(str::to_owned));
        for (flag, path) in [
            ("graphroot", store.root().to_path_buf()),
            ("runroot", store.runroot()),
            ("state-dir", disk.state()),
        ] {
            words.extend([format!("--{flag}"), path.to_str().unwrap().to_owned()]);
        }
        let input = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(input.path(), answer).unwrap();
        let mut command = Command::new("script");
        program::hermetic(&mut command);
        command.args(["-qec", &words.join(" "), "/dev/null"]);
        command.stdin(std::process::Stdio::from(File::open(input.path()).unwrap()));
        program::run(&mut command).expect_no_crash()
    };
    let no = gc("n\n");
    assert!(no.stdout.contains("Finish the interrupted deletion? [y/N]"), "{no:?}");
    assert!(no.stdout.contains("Nothing was deleted."), "{no:?}");
    assert!(is_there());
    let yes = gc("y\n");
    assert!(yes.stdout.contains("finished an interrupted run"), "{yes:?}");
    assert!(!is_there(), "{yes:?}");
    let none = gc("");
    assert!(!none.stdout.contains("[y/N]"), "{none:?}");
}

/// Stopped while the layer is emptied: neither image counts as refused, and the next run finishes both.
#[test]
fn stopped_while_the_layer_is_emptied() {
    let Some(disk) = Disk::with_twins(Fs::Ext4, 160 * MIB, &["-b", "4096"]) else { return };
    if !support::require_program("strace") {
        return;
    }
    disk.fill();
    let words = ["gc", "--via", "direct", "--high", "99", "--low", "97", "--min-age", "0s", "-y"];
    let mut command = Command::new("strace");
    program::hermetic(&mut command);
    // Each unlink takes so many microseconds.
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=unlinkat", "-e"]);
    command.arg("inject=unlinkat:delay_exit=200000").arg(env!("CARGO_BIN_EXE_layersweep")).args(words);
    command.args(["--format", "json", "--graphroot"]).arg(disk.store.root());
    command.arg("--runroot").arg(disk.store.runroot()).arg("--state-dir").arg(disk.state());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    let quarantined = || {
        let names = std::fs::read_dir(disk.store.root().join("overlay")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(QUARANTINED))
    };
    assert!((0..600).any(|_| quarantined() || (std::thread::sleep(Duration::from_millis(50)), false).1));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    let pid = children.split_whitespace().next().unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = run.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{document:#}");
    assert!(quarantined(), "{document:#}");
    assert!(list(&document, "/deleted").is_empty(), "{document:#}");
    let is_refused = |one: &&Value| text(one, "/rule") == "refused";
    assert!(!list(&document, "/kept").iter().any(|one| is_refused(&one)), "{document:#}");
    let next = disk.json(0, &words);
    assert!(!quarantined(), "{next:#}");
    assert_eq!(text(&next, "/outcome"), "not_needed", "{next:#}");
    let history = disk.json(0, &["history"]);
    let gone = list(&history, "/runs/0/deleted");
    assert_eq!(gone.len(), 3, "{history:#}");
    for one in gone {
        assert_eq!((text(one, "/outcome"), &one["error"]), ("gone", &Value::Null), "{history:#}");
        assert!(!disk.ids().contains(text(one, "/id")));
    }
    disk.empty_again();
    disk.podman_works();
}
