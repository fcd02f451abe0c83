//! A dry run knows the reasons for which a deletion would be refused: it keeps the same images as the run.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support;
use serde_json::Value;
use support::gc_document::{deleted, kept, rule};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::{self, Store, succeed};
use support::{node, small};

const GC: [&str; 12] = [
    "gc",
    "--via",
    "direct",
    "--min-age",
    "0s",
    "--high",
    "1",
    "--low",
    "0",
    "--only",
    "images",
    "--format=json",
];

/// Makes a store on a filesystem that is more than 1 % used.
fn on_a_disk() -> Option<(LoopFs, Store)> {
    if !store::require_tools() || !Fs::Ext4.require() {
        return None;
    }
    let disk = LoopFs::new(Fs::Ext4, 128 * MIB);
    std::fs::write(disk.path().join("filler"), vec![1; 8 << 20]).unwrap();
    let store = small::still(&disk.path().join("root"));
    store.unmount();
    Some((disk, store))
}

/// Runs `gc` on a store with that imagestore.
fn gc(store: &Store, imagestore: Option<&Path>, words: &[&str]) -> Value {
    let config = store.scratch().join("gc.conf");
    let places = [("graphroot", store.root().to_path_buf()), ("runroot", store.runroot())];
    let places = places.into_iter().chain(imagestore.map(|path| ("imagestore", path.to_path_buf())));
    let lines = places.map(|(key, path)| format!("{key} = {path:?}\n")).collect::<String>();
    std::fs::write(&config, format!("[storage]\ndriver = \"overlay\"\n{lines}")).unwrap();
    let mut command = program::command();
    command.args(GC).args(words).arg("--state-dir").arg(store.scratch().join("state"));
    command.env("CONTAINERS_STORAGE_CONF", config);
    // 0 % is not reachable: exit code 4.
    node::document(program::run(&mut command).expect_no_crash())
}

/// Checks that a dry run and a run report the same for every image; returns the run's document.
fn compared(store: &Store, imagestore: Option<&Path>) -> Value {
    let (planned, done) = (gc(store, imagestore, &["--dry-run"]), gc(store, imagestore, &["-y"]));
    let promised: u64 = list(&planned, "/deleted").iter().map(|row| number(row, "/predicted_bytes")).sum();
    let measured: u64 = list(&done, "/deleted").iter().map(|row| number(row, "/measured_bytes")).sum();
    assert_eq!(deleted(&planned), deleted(&done), "{planned:#} {done:#}");
    assert!(promised.abs_diff(measured) <= 64 << 10, "{promised} {measured}");
    assert_eq!(list(&done, "/errors"), list(&planned, "/errors"), "{done:#}");
    for image in list(&planned, "/kept") {
        let name = text(image, "/names/0");
        assert_eq!(text(image, "/rule"), rule(&done, name), "{done:#}");
    }
    done
}

/// Copies the record and the layer of an image to an imagestore.
fn copy(store: &Store, name: &str, imagestore: &Path) {
    let image = store.images().into_iter().find(|image| image["names"][0] == name).unwrap();
    let (id, layer) = (text(&image, "/id"), text(&image, "/layers/0"));
    for (kind, id) in [("images", id), ("layers", layer)] {
        let directory = imagestore.join(format!("overlay-{kind}"));
        std::fs::create_dir_all(&directory).unwrap();
        let file = store.record(&format!("{kind}.json"));
        let records: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let record = records.into_iter().find(|record| record["id"] == id).unwrap();
        std::fs::write(directory.join(format!("{kind}.json")), serde_json::to_vec(&[&record]).unwrap())
            .unwrap();
        std::fs::write(directory.join(format!("{kind}.lock")), "").unwrap();
    }
    let link = std::fs::read_to_string(store.root().join("overlay").join(layer).join("link")).unwrap();
    std::fs::create_dir_all(imagestore.join("overlay/l")).unwrap();
    for path in [format!("overlay/{layer}"), format!("overlay/l/{link}"), format!("overlay-images/{id}")] {
        succeed(Command::new("cp").arg("-a").args([store.root().join(&path), imagestore.join(&path)]));
    }
}

#[test]
fn image_in_graphroot_and_imagestore_is_kept() {
    let Some((disk, store)) = on_a_disk() else { return };
    let imagestore = disk.path().join("imagestore");
    copy(&store, &small::name("other"), &imagestore);
    let done = compared(&store, Some(&imagestore));
    assert_eq!(rule(&done, &small::name("other")), "out-of-reach", "{done:#}");
    let detail = text(kept(&done, &small::name("other")), "/detail");
    assert!(detail.contains("recorded twice"), "{detail}");
    assert!(deleted(&done).contains(&small::name("b")), "{done:#}");
}

/// A process that has a directory mounted where other processes do not see it.
struct Elsewhere(Child);

impl Elsewhere {
    fn mount(from: &Path, on: &Path) -> Self {
        let script = "mount --bind \"$0\" \"$1\" && echo mounted && exec sleep 600";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]).args([from, on]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let said = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mounted_layer_is_kept_by_dry_run() {
    let Some((disk, store)) = on_a_disk() else { return };
    let [of_other, of_b] = ["other", "b"].map(|name| {
        let image = store.images().into_iter().find(|image| image["names"][0] == small::name(name).as_str());
        store.root().join("overlay").join(text(&image.unwrap(), "/layers/0")).join("diff")
    });
    let (target, inside) = (disk.path().join("target"), of_b.join("inside"));
    [&target, &inside].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let elsewhere = Elsewhere::mount(&of_other, &target);
    succeed(Command::new("mount").arg("--bind").args([&target, &inside]));
    let done = compared(&store, None);
    for image in ["other", "b"] {
        assert_eq!(rule(&done, &small::name(image)), "in-use", "{done:#}");
    }
    assert!(deleted(&done).contains(&small::name("a2")), "{done:#}");
    succeed(Command::new("umount").arg(&inside));
    drop(elsewhere);
    let all = deleted(&compared(&store, None));
    assert!(all.contains(&small::name("other")) && all.contains(&small::name("b")), "{all:?}");
}
