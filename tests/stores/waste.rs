//! `waste` against a slow tool that stacks the unpacked layers and digests every file.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test talks to its reader

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use crate::support;
use support::archive::{self, ImageSpec, LayerSpec, Noise, TarEntry};
use support::containerd::{self, Collection, Rig};
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::{self, Node};
use support::program::{self, list, number, text, texts};
use support::store::{self, Store};
use support::tree;

const ESCAPE: &str = "\u{1b}[2J";

/// Returns a layer with names that other layers have too. Nothing in it is below a file.
///
/// containerd 1.6 and later cannot unpack a directory two levels above a file that a lower layer has in its place: if
/// `is_plain`, all files are at the same depth.
fn layer(name: &str, is_plain: bool) -> LayerSpec {
    let mut noise = Noise::new(name);
    let (mut entries, mut whiteouts, mut taken) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut first = None;
    for _ in 0..20 + noise.below(30) {
        let kind = noise.below(10);
        let depth = match kind {
            _ if !is_plain => 1 + noise.below(3),
            1 | 2 => 2,
            _ => 3,
        };
        let names: Vec<_> = (0..depth)
            .map(|level| format!("{}{}", ["a", "b", "c"][level as usize], noise.below(5)))
            .collect();
        let path = names.join("/");
        let conflicts = taken.iter().any(|other: &String| {
            *other == path || other.starts_with(&format!("{path}/")) || path.starts_with(&format!("{other}/"))
        });
        if conflicts {
            continue;
        }
        taken.insert(path.clone());
        match (kind, &first) {
            (0, _) => whiteouts.push(path),
            (1, _) => {
                entries.push(TarEntry::Directory(path.clone()));
                whiteouts.push(path + "/");
            }
            (2, _) => entries.push(TarEntry::Directory(path)),
            (3, _) => entries.push(TarEntry::Symlink(path)),
            (4, Some(first)) => entries.push(TarEntry::Link(path, String::clone(first))),
            _ => {
                // Few contents, so that layers have equal files.
                let content = noise.below(60);
                let bytes = Noise::new(&format!("content {content}")).bytes(content * content * 7);
                first.get_or_insert_with(|| path.clone());
                entries.push(TarEntry::File(path, bytes));
            }
        }
    }
    // The largest file, which each layer overwrites, with a name that would clear a terminal.
    let length = 30_000 + noise.below(4096);
    entries.push(TarEntry::File(ESCAPE.into(), noise.bytes(length)));
    // Links follow their file; whiteouts precede what is in their directory.
    entries.sort_by_key(|entry| matches!(entry, TarEntry::Link(..)));
    LayerSpec { entries, whiteouts, younger: support::slot(), ..LayerSpec::new(name) }
}

fn images(number: usize, is_plain: bool) -> Vec<ImageSpec> {
    let mut images: Vec<ImageSpec> = Vec::new();
    let mut noise = Noise::new("waste");
    for number in 0..number {
        let below = match number {
            0..6 => Vec::new(),
            _ => images[usize::try_from(noise.below(number as u64)).unwrap()].layers.clone(),
        };
        let layers =
            (0..=noise.below(2)).map(|layer_no| layer(&format!("waste-{number}-{layer_no}"), is_plain));
        images.push(ImageSpec {
            names: vec![format!("localhost/waste/{number}:1")],
            layers: below.into_iter().chain(layers).collect(),
            label: format!("{number}"),
        });
    }
    images
}

/// File with an inode of its own in the unpacked layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct File {
    inode: u64,
    bytes: u64,
}

/// Content of an unpacked layer: what it hides, and what it shows.
#[derive(Default)]
struct Unpacked {
    hides: Vec<(PathBuf, bool)>,
    shows: BTreeMap<PathBuf, Option<File>>,
}

impl Unpacked {
    fn read(diff: &Path) -> Self {
        let mut unpacked = Self::default();
        for entry in WalkDir::new(diff).min_depth(1) {
            let entry = entry.unwrap();
            let (path, facts) =
                (entry.path().strip_prefix(diff).unwrap().to_owned(), entry.metadata().unwrap());
            if facts.is_dir() {
                let mut value = [0; 4];
                let mark = rustix::fs::lgetxattr(entry.path(), "trusted.overlay.opaque", &mut value[..]);
                unpacked.hides.push((path, mark.is_ok_and(|length| value[..length] == *b"y")));
                continue;
            }
            unpacked.hides.push((path.clone(), true));
            let bytes = facts.len().next_multiple_of(4096);
            let file = facts.is_file().then_some(File { inode: facts.ino(), bytes });
            if !facts.file_type().is_char_device() {
                unpacked.shows.insert(path, file);
            }
        }
        unpacked
    }

    fn files(&self) -> impl Iterator<Item = File> + '_ {
        self.shows.values().flatten().copied()
    }
}

/// Figures of the slow tool: hidden files of each image by name, those of the store, bytes of equal files.
struct Honest {
    images: HashMap<String, (u64, u64)>,
    store: (u64, u64),
    equal_bytes: u64,
}

fn honest(store: &Store) -> Honest {
    let [layers, records] = ["layers.json", "images.json"].map(|name| -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(store.record(name)).unwrap()).unwrap()
    });
    let diff = |id: &str| store.root().join("overlay").join(id).join("diff");
    let unpacked: HashMap<_, _> =
        layers.iter().map(|layer| (text(layer, "/id"), Unpacked::read(&diff(text(layer, "/id"))))).collect();
    let parents: HashMap<_, _> =
        layers.iter().map(|layer| (text(layer, "/id"), layer["parent"].as_str())).collect();
    let (mut images, mut seen) = (HashMap::new(), HashSet::new());
    for image in &records {
        let mut chain: Vec<_> =
            std::iter::successors(image["layer"].as_str(), |layer| parents[layer]).collect();
        chain.reverse();
        let mut shown: BTreeMap<PathBuf, Option<File>> = BTreeMap::new();
        for layer in &chain {
            let layer = &unpacked[layer];
            for (path, hides_below) in &layer.hides {
                shown.retain(|lower, _| {
                    let is_below = lower != path && lower.starts_with(path);
                    lower != path && !(is_below && *hides_below)
                });
            }
            shown.extend(layer.shows.clone());
        }
        let all: HashSet<File> = chain.iter().flat_map(|layer| unpacked[layer].files()).collect();
        let shown: HashSet<File> = shown.into_values().flatten().collect();
        images.insert(texts(image, "/names")[0].clone(), sum(all.difference(&shown)));
        seen.extend(shown);
    }
    let all: HashSet<File> = unpacked.values().flat_map(Unpacked::files).collect();
    let (mut contents, mut inodes, mut equal_bytes) = (HashSet::new(), HashSet::new(), 0);
    for layer in &layers {
        for entry in WalkDir::new(diff(text(layer, "/id"))).into_iter().map(Result::unwrap) {
            let facts = entry.metadata().unwrap();
            if facts.is_file()
                && inodes.insert(facts.ino())
                && !contents.insert(Sha256::digest(std::fs::read(entry.path()).unwrap()))
            {
                equal_bytes += facts.len().next_multiple_of(4096);
            }
        }
    }
    Honest { images, store: sum(all.difference(&seen)), equal_bytes }
}

fn sum<'a>(files: impl Iterator<Item = &'a File>) -> (u64, u64) {
    files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes))
}

fn hidden(row: &Value) -> (u64, u64) {
    (number(row, "/hidden_files"), number(row, "/hidden_bytes"))
}

/// Fails unless the hidden files in the document are those of the slow tool.
fn assert_hidden(document: &Value, honest: &Honest) {
    assert_eq!(list(document, "/images").len(), honest.images.len());
    for image in list(document, "/images") {
        assert_eq!(hidden(image), honest.images[&texts(image, "/names")[0]], "{image:#}");
    }
    assert_eq!(hidden(&list(document, "/stores")[0]), honest.store);
    let layers = list(document, "/layers").iter().map(|layer| number(layer, "/hidden_bytes"));
    assert_eq!(layers.sum::<u64>(), honest.store.1);
}

#[test]
fn waste_agrees_with_a_slow_tool() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(Store::of(&dir.path().join("root"), "overlay", &images(60, false)));
    let start = Instant::now();
    let honest = honest(&node.store);
    let took = start.elapsed();
    let run = node.run(&["waste", "--format", "json"]).expect_code(0);
    let start = Instant::now();
    tree::du(node.store.root());
    eprintln!("slow tool {took:?}, waste {:?}, du {:?}", run.took, start.elapsed());
    let document = node::document(run);
    assert_hidden(&document, &honest);
    assert!(honest.store.1 > 0 && honest.images.values().filter(|(_, bytes)| *bytes > 0).count() > 40);
    let equal = number(&document, "/stores/0/equal_bytes");
    assert!(equal.abs_diff(honest.equal_bytes) * 100 <= honest.equal_bytes, "{equal} {}", honest.equal_bytes);
    files_are_those_of_the_layers(&node, &document);
    damage_is_named_and_walked_layers_agree(&node, &honest);
}

#[test]
fn report_names_stores_with_waste() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 64 * MIB);
    let node = Node::of(Store::of(&loopfs.path().join("root"), "overlay", &images(40, false)));
    let waste = node.json(&["waste"]);
    let report = node.json(&["report"]);
    assert_eq!(report["waste"], waste["stores"]);
    let screen = node.run(&["report"]).expect_code(0).stdout;
    assert!(screen.contains("of further copies of equal files"), "{screen}");
}

/// The same images in containerd, below a sysroot: walked directories instead of tar-splits.
#[test]
fn containerd_hides_what_podman_hides() {
    if !store::require_tools() || !containerd::require_rig() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = images(20, true);
    let node = Node::of(Store::of(&dir.path().join("podman"), "overlay", &images));
    let rig = Rig::start(&dir.path().join("sysroot/var/lib/containerd"), Collection::OnRequest);
    archive::write(&rig.scratch().join("waste.tar"), &images).unwrap();
    rig.shell("C images import \"$RC/waste.tar\" >/dev/null");
    rig.stop();
    let sysroot = dir.path().join("sysroot");
    let args = ["waste", "--format", "json", "--sysroot", sysroot.to_str().unwrap()];
    let document = node::document(program::layersweep(args).expect_code(0));
    let podman = node.json(&["waste"]);
    assert_eq!(list(&document, "/images").len(), images.len());
    for image in list(&document, "/images") {
        let same = node::image(&podman, &texts(image, "/names")[0]);
        assert_eq!(hidden(image), hidden(same), "{image:#}");
    }
    assert_eq!(hidden(&document["stores"][0]), hidden(&podman["stores"][0]));
    assert!(document["stores"][0]["equal_bytes"].is_null());
    let sources: HashSet<_> = list(&document, "/layers").iter().map(|layer| text(layer, "/source")).collect();
    assert_eq!(sources, HashSet::from(["directory"]));
}

fn files_are_those_of_the_layers(node: &Node, all: &Value) {
    let image = &list(all, "/images")[0];
    let name = &texts(image, "/names")[0];
    let document = node.json(&["waste", name, "--files", "--all"]);
    assert_eq!(hidden(&document["images"][0]), hidden(image));
    let layers = list(&document, "/layers").iter().map(|layer| number(layer, "/hidden_bytes"));
    assert_eq!(layers.sum::<u64>(), number(image, "/hidden_bytes"));
    let files = list(&document, "/files");
    let bytes = files.iter().map(|file| number(file, "/bytes")).sum::<u64>();
    assert_eq!((files.len() as u64, bytes), hidden(image));
    for file in files {
        let diff = node.store.root().join("overlay").join(text(file, "/layer")).join("diff");
        let length = diff.join(text(file, "/path")).metadata().unwrap().len();
        assert_eq!(length.next_multiple_of(4096), number(file, "/bytes"), "{file:#}");
    }
    let screen = node.run(&["waste", name, "--files"]).expect_code(0).stdout;
    assert!(screen.contains("HIDDEN BY") && screen.contains("This image does not show"), "{screen}");
    assert!(screen.contains("\\u{1b}[2J") && !screen.contains('\u{1b}'), "{screen}");
    assert!(files.iter().any(|file| text(file, "/path") == ESCAPE));
    let bytes = files.iter().filter(|file| text(file, "/how") == "copied").map(|file| number(file, "/bytes"));
    assert_eq!(bytes.sum::<u64>(), number(image, "/copied_bytes"));
    node.run(&["waste", "localhost/waste/none:1"]).expect_code(1);
}

fn damage_is_named_and_walked_layers_agree(node: &Node, honest: &Honest) {
    let directory = node.store.record("layers.json").parent().unwrap().to_owned();
    let splits = || {
        let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_str().unwrap().ends_with(".tar-split.gz"))
    };
    let damaged = splits().next().unwrap();
    std::fs::write(&damaged, &std::fs::read(&damaged).unwrap()[..50]).unwrap();
    let run = node.run(&["waste", "--format", "json"]).expect_code(3);
    assert!(run.stderr.contains(damaged.to_str().unwrap()), "{run:?}");
    let document = node::document(run);
    assert_eq!(
        (number(&document, "/stores/0/unread_layers"), &document["complete"]),
        (1, &Value::Bool(false))
    );
    splits().for_each(|path| std::fs::remove_file(path).unwrap());
    let document = node.json(&["waste"]);
    assert_hidden(&document, honest);
    assert!(document["stores"][0]["equal_bytes"].is_null());
}
