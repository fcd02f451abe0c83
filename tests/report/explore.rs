//! The full-screen view on a pseudo-terminal, over real stores.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::containerd_node::{ContainerdNode, image};
use support::loopfs::{Fs, LoopFs, MIB};
use support::pty::Terminal;
use support::store::{self, Store};

/// Images of which three share a layer of 9 MiB, and one has a container.
fn shop() -> Vec<ImageSpec> {
    let images = [("base", vec![9]), ("one", vec![9, 5]), ("two", vec![9, 6]), ("used", vec![3])];
    let images = images.map(|(name, sizes)| ImageSpec {
        names: vec![format!("reg.example/explore/{name}:1")],
        layers: sizes
            .into_iter()
            .map(|mebibytes| LayerSpec {
                plain: vec![mebibytes * MIB],
                // The image `two` deletes the file of the base.
                whiteouts: if mebibytes == 6 { vec!["explore-9/plain0".into()] } else { Vec::new() },
                younger: support::slot(),
                ..LayerSpec::new(&format!("explore-{mebibytes}"))
            })
            .collect(),
        label: name.into(),
    });
    images.into()
}

fn shop_in(root: &Path) -> Store {
    let store = Store::of(root, "overlay", &shop());
    store.podman(["create", "--name", "keeper", "--network", "none", "reg.example/explore/used:1", "/x"]);
    store
}

/// Returns the flags for a store, with an own state directory and images of any age.
fn flags(store: &Store, state: &Path) -> Vec<String> {
    let config = state.join("layersweep.toml");
    std::fs::write(&config, "[images]\nmin_age = \"0s\"\n").unwrap();
    [
        "explore",
        "--graphroot",
        store.root().to_str().unwrap(),
        "--runroot",
        store.runroot().to_str().unwrap(),
        "--state-dir",
        state.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ]
    .map(str::to_owned)
    .into()
}

fn start(flags: &[String]) -> Terminal {
    Terminal::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the MiB of the line about the marked images.
fn said(screen: &str) -> f64 {
    let said = regex::Regex::new(r"marked frees? ([0-9.]+) MiB").unwrap();
    said.captures(screen).expect("a sum")[1].parse().unwrap()
}

#[test]
fn marked_images_free_what_is_said() {
    if !store::require_tools() || !Fs::Ext4.require() || !Fs::Xfs.require() {
        return;
    }
    for fs in [Fs::Ext4, Fs::Xfs] {
        let disk = LoopFs::new(fs, 400 * MIB);
        let store = shop_in(&disk.path().join("storage"));
        let state = tempfile::tempdir().unwrap();
        let flags = flags(&store, state.path());
        // A first deletion would make the reserve file.
        let scan = ["scan", "-q", "--reserve"].into_iter().chain(flags[1..].iter().map(String::as_str));
        support::program::layersweep(scan).expect_code(0);
        let mut terminal = start(&flags);
        terminal.shows("All images");
        terminal.keys("/all images\r\r");
        terminal.shows("explore/two:1");
        terminal.keys("a");
        let screen = terminal.until("the sum", |text| text.contains("4 images marked"));
        assert!(screen.contains("1 stays: reg.example/explore/used:1: in use by keeper"), "{screen}");
        // Three images with a layer in common: their own sums say something else.
        assert!((said(&screen) - 20.0).abs() < 0.5, "{screen}");
        let before = disk.used_bytes();
        terminal.keys("\tDyes\r");
        terminal.shows("Done: 3 images deleted");
        assert!(!terminal.is_as_before(), "the view goes on");
        let freed = before - disk.used_bytes();
        #[allow(clippy::cast_precision_loss)] // a size for people
        let freed = freed as f64 / MIB as f64;
        assert!((freed - said(&screen)).abs() < 0.3, "{freed} MiB freed\n{screen}");
        terminal.keys("\r");
        // It is where it was, with what is left.
        let screen = terminal.shows("1 image marked");
        assert!(screen.contains("› images") && screen.contains("explore/used:1"), "{screen}");
        assert_eq!(store.images().len(), 1);
        terminal.keys("q");
        assert!(terminal.wait().success());
        terminal.until("the usual screen", |_| terminal.is_as_before());
    }
}

#[test]
fn marked_images_of_containerd_are_deleted() {
    let images = [image(&["one"], "one", 4), image(&["two"], "two", 5)];
    let Some(node) = ContainerdNode::new(Fs::Xfs, 400 * MIB, &images) else { return };
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("layersweep.toml");
    std::fs::write(&config, "[images]\nmin_age = \"0s\"\n").unwrap();
    let (root, socket) = (node.rig.places().root, format!("unix://{}", node.rig.socket().display()));
    let mut terminal = Terminal::start(&[
        "explore",
        "--containerd-root",
        root.to_str().unwrap(),
        "--cri-endpoint",
        &socket,
        "--state-dir",
        state.path().to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ]);
    terminal.shows("All images");
    terminal.keys("/all images\r\r/one\r ");
    let screen = terminal.shows("1 image marked");
    let before = node.loopfs.used_bytes();
    terminal.keys("\tDyes\r");
    terminal.shows("Done: 1 image deleted");
    #[allow(clippy::cast_precision_loss)] // a size for people
    let freed = (before - node.loopfs.used_bytes()) as f64 / MIB as f64;
    assert!((freed - said(&screen)).abs() < 0.4, "{freed} MiB freed\n{screen}");
}

#[test]
fn terminal_is_given_back_after_any_end() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = shop_in(&dir.path().join("storage"));
    let state = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut terminal = start(&flags(&store, state.path()));
        terminal.shows("All images");
        kill(Pid::from_raw(terminal.program()), signal).unwrap();
        assert_eq!(terminal.wait().code(), Some(1), "{signal}");
        terminal.until("the usual screen", |_| terminal.is_as_before());
    }
    let mut terminal = start(&flags(&store, state.path()));
    terminal.shows("All images");
    let program = Pid::from_raw(terminal.program());
    terminal.keys("\u{1a}");
    terminal.until("the usual screen", |_| terminal.is_as_before());
    kill(program, Signal::SIGCONT).unwrap();
    terminal.shows("All images");
    terminal.resize(30, 120);
    terminal.keys("?");
    terminal.shows("The same in plain text: layersweep usage");
    terminal.resize(24, 80);
    terminal.keys("q");
    terminal.shows("All images");
    terminal.keys("q");
    assert!(terminal.wait().success());
    terminal.until("the usual screen", |_| terminal.is_as_before());
    let mut terminal = start(&flags(&store, state.path()));
    terminal.shows("All images");
    terminal.keys("/all images\r\ra\tDyes\r");
    terminal.until("a deletion", |text| text.contains("Image 1 of") || text.contains("images deleted"));
    terminal.keys("\u{3}");
    let code = terminal.wait().code();
    terminal.until("the usual screen", |_| terminal.is_as_before());
    // If the deletion was faster than the key, the key has left the view.
    if code != Some(0) {
        assert_eq!(code, Some(1));
        terminal.until("the reason", |text| text.contains("interrupted by a signal"));
    }
}

#[test]
fn view_goes_down_to_files() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = shop_in(&dir.path().join("storage"));
    let state = tempfile::tempdir().unwrap();
    let mut args = flags(&store, state.path());
    args.push("--read-only".into());
    let mut terminal = start(&args);
    terminal.shows("All layers");
    terminal.keys("/all layers\r\r");
    terminal.shows("held by 3");
    // Fair share, then the others: the order changes with each key.
    terminal.keys("\r");
    terminal.shows("2 layers on it");
    terminal.keys("/files\r\r");
    let layer = terminal.shows("9.0 MiB hidden for some");
    assert!(layer.contains("~    9.0 MiB") && layer.contains("diff/"), "{layer}");
    terminal.keys("\r");
    terminal.shows("explore-9/");
    terminal.keys("\r");
    terminal.shows("hidden for 1 of 3 users");
    terminal.keys("\r");
    terminal.shows("9.0 MiB allocated, 9.0 MiB long");
    terminal.keys("qr");
    terminal.until("the same directory after a new scan", |text| {
        text.contains("hidden for 1 of 3 users") && !text.contains("measuring")
    });
    terminal.keys("h");
    terminal.keys("hhhh");
    terminal.shows("All layers");
    terminal.keys("\u{1b}");
    terminal.until("every row", |text| !text.contains("only"));
    terminal.keys("/all images\r\r");
    terminal.shows("by size");
    terminal.keys("ss");
    terminal.shows("by frees");
    terminal.keys("n");
    terminal.shows("by name");
    terminal.keys(" \tD");
    terminal.shows("Nothing can be deleted here: --read-only.");
    terminal.keys("\t/one\ri");
    terminal.shows("explain ");
    terminal.keys("qq");
    assert!(terminal.wait().success());
}

#[test]
fn mark_means_the_image_of_one_store() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stores = ["first", "second"].map(|name| shop_in(&dir.path().join(name)));
    let state = tempfile::tempdir().unwrap();
    let mut args = flags(&stores[0], state.path());
    args.extend(flags(&stores[1], state.path())[1..5].to_vec());
    let mut terminal = start(&args);
    terminal.shows("All images");
    terminal.keys("/all images\r\r/one\r");
    let screen = terminal.shows("explore/one:1");
    assert!(screen.contains("/first") && screen.contains("/second"), "{screen}");
    terminal.keys("i");
    terminal.shows("deleting it alone frees");
    terminal.keys("q ");
    terminal.shows("1 image marked");
    // A list has no stores: its id would mean both.
    terminal.keys("E");
    terminal.shows("is also in");
    terminal.keys("\tD");
    let screen = terminal.shows("Type yes and Enter");
    assert!(screen.contains("Delete 1 image in ") && !screen.contains("as `layersweep rm`"), "{screen}");
    // A suspension waits until the deletion has given its locks back.
    terminal.keys("yes\r\u{1a}");
    terminal.until("the usual screen", |_| terminal.is_as_before());
    let left: usize = stores.iter().map(|store| store.images().len()).sum();
    assert_eq!(left, 7);
    kill(Pid::from_raw(terminal.program()), Signal::SIGCONT).unwrap();
    terminal.shows("Done: 1 image deleted");
    terminal.keys("\r");
    terminal.shows("No image is marked");
    terminal.keys("q");
    assert!(terminal.wait().success());
    let mut left = stores.iter().map(|store| store.images().len()).collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, [3, 4]);
}

#[test]
fn saved_scan_is_only_shown() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = shop_in(&dir.path().join("storage"));
    let state = tempfile::tempdir().unwrap();
    let flags = flags(&store, state.path());
    let saved = dir.path().join("saved.json");
    for document in ["scan", "report"] {
        let flags = flags[1..].iter().map(String::as_str);
        let run = support::program::layersweep([document, "--format", "json"].into_iter().chain(flags));
        std::fs::write(&saved, run.expect_code(0).stdout).unwrap();
        let mut terminal = Terminal::start(&["explore", saved.to_str().unwrap()]);
        terminal.shows("saved 20");
        terminal.keys("/all images\r\ra");
        let screen = terminal.until("the sum", |text| text.contains("4 images marked"));
        assert!((said(&screen) - 20.0).abs() < 0.5, "{screen}");
        assert!(screen.contains("1 stays: reg.example/explore/used:1: in use by keeper"), "{screen}");
        terminal.keys("\tD");
        terminal.shows("Nothing can be deleted here: a saved scan is only shown.");
        terminal.keys("\ti");
        terminal.shows("A saved scan has no directories and files");
        terminal.keys("q");
        assert!(terminal.wait().success());
    }
    std::fs::write(&saved, "{}").unwrap();
    let mut terminal = Terminal::start(&["explore", saved.to_str().unwrap()]);
    terminal.shows("it is not a document of layersweep");
    assert_eq!(terminal.wait().code(), Some(2));
    terminal.until("the usual screen", |_| terminal.is_as_before());
}

#[test]
fn view_needs_a_terminal() {
    let run = support::program::layersweep(["explore"]).expect_code(2);
    assert!(run.stderr.contains("explore needs a terminal"), "{}", run.stderr);
}
