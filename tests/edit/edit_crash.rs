//! Deletions that are killed at every step, and the first program that uses the store afterwards: podman, buildah, or
//! layersweep.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use layersweep::editor::{BegunDeletion, Editor, LayerFlag, Options, OrphanAt, PlannedImage, Unused};
use layersweep::model::Orphan;

use crate::support;
use support::edit::{self, Copy};
use support::program::{self, list, text};
use support::small;
use support::store::{self, Store};

/// The operation of the killed process; its arguments are environment variables. A target may be several images,
/// separated by commas.
#[derive(Clone, Copy, Debug)]
pub enum Recipe {
    Image,
    ImageInPlace,
    ImageWithoutMarks,
    Incomplete,
    OrphanDirectory,
}

impl Recipe {
    const ALL: [Self; 5] =
        [Self::Image, Self::ImageInPlace, Self::ImageWithoutMarks, Self::Incomplete, Self::OrphanDirectory];

    fn options(self) -> Options {
        Options {
            tempdirs: !matches!(self, Self::ImageInPlace),
            layer_flag: match self {
                Self::ImageWithoutMarks => LayerFlag::Unset,
                _ => LayerFlag::Set,
            },
            ..Options::default()
        }
    }

    fn run(self, editor: &Editor, target: &str, graphroot: &Path) {
        fn target_path(graphroot: &Path, target: &str) -> PathBuf {
            graphroot.join("overlay").join(target)
        }
        match self {
            Self::Image | Self::ImageInPlace | Self::ImageWithoutMarks => {
                let planned = PlannedImage { id: target.into(), ..Default::default() };
                editor.delete_image(&planned).map(drop).unwrap();
            }
            Self::Incomplete => {
                editor.delete_unused_layer(target, Unused::Incomplete).map(drop).unwrap();
            }
            Self::OrphanDirectory => {
                let kind = Orphan::LayerDirectory;
                let orphan = OrphanAt { kind, path: target_path(graphroot, target) };
                edit::reclaim(editor, &orphan, SignedDuration::ZERO).map(drop).unwrap();
            }
        }
    }
}

/// The process that is killed: this test program with only this test.
#[test]
#[ignore = "only the other tests run it, in a process of its own"]
fn victim() {
    let Some(step) = std::env::var_os("VICTIM_DIES_AT") else { return };
    fn text(name: &str) -> String {
        std::env::var(name).unwrap()
    }
    let recipe = Recipe::ALL[text("VICTIM_RECIPE").parse::<usize>().unwrap()];
    let graphroot = PathBuf::from(text("VICTIM_GRAPHROOT"));
    let places = edit::places_at(&graphroot, Path::new(&text("VICTIM_RUNROOT")), "overlay");
    let last: usize = step.to_str().unwrap().parse().unwrap();
    let steps = AtomicUsize::new(0);
    let mut options = recipe.options();
    options.on_step = Some(Box::new(move |name: &'static str| {
        if steps.fetch_add(1, Ordering::Relaxed) + 1 == last {
            eprintln!("dying at: {name}");
            let pid = nix::unistd::getpid();
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    }));
    recipe.run(&Editor::new(&places, options).unwrap(), &text("VICTIM_TARGET"), &graphroot);
}

/// Runs the recipe and kills it at a step. Returns the step's name, or `None` if it had fewer steps.
pub fn kill_at(store: &Store, recipe: Recipe, target: &str, step: usize) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let recipe = Recipe::ALL.iter().position(|known| *known as usize == recipe as usize).unwrap();
    command
        .args(["edit::edit_crash::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("VICTIM_DIES_AT", step.to_string())
        .env("VICTIM_RECIPE", recipe.to_string())
        .env("VICTIM_GRAPHROOT", store.root())
        .env("VICTIM_RUNROOT", store.runroot())
        .env("VICTIM_TARGET", target);
    let run = program::run(&mut command);
    if run.code == 0 {
        return None;
    }
    assert_eq!(run.code, -1, "{run:?}");
    let name = run.stderr.lines().find_map(|line| line.split("dying at: ").nth(1));
    Some(name.unwrap_or_else(|| panic!("{run:?}")).to_owned())
}

/// Kills the deletion of an image right after the step `wanted`.
pub fn kill_after(store: &Store, target: &str, wanted: &str) {
    assert!((1..40).any(|step| kill_at(store, Recipe::Image, target, step).unwrap() == wanted));
}

/// Prepares a store for the recipe. Returns the recipe's target, and the ids of the images that must survive.
fn prepare(store: &Store, recipe: Recipe) -> (String, Vec<String>) {
    let images = store.images();
    fn id_of(images: &[serde_json::Value], name: &str) -> String {
        let name = small::name(name);
        let image = images.iter().find(|image| program::texts(image, "/names").contains(&name));
        text(image.unwrap(), "/id").to_owned()
    }
    let mut survivors = edit::ids(&images);
    let target = match recipe {
        // Two layers that no other image uses.
        Recipe::Image | Recipe::ImageInPlace | Recipe::ImageWithoutMarks => {
            let id = id_of(&images, "deep");
            survivors.retain(|known| *known != id);
            id
        }
        Recipe::Incomplete => {
            let id = store.storage(["create-layer"]).split_whitespace().next().unwrap().to_owned();
            let path = store.record("layers.json");
            let records = std::fs::read_to_string(&path).unwrap();
            let found = format!("{{\"id\":\"{id}\",");
            assert!(records.contains(&found));
            let flagged = records.replace(&found, &format!("{found}\"flags\":{{\"incomplete\":true}},"));
            std::fs::write(&path, flagged).unwrap();
            id
        }
        Recipe::OrphanDirectory => {
            let orphan = "0a".repeat(32);
            let directory = store.root().join("overlay").join(&orphan);
            std::fs::create_dir_all(directory.join("diff/some/more")).unwrap();
            std::fs::write(directory.join("diff/some/file"), [7; 9000]).unwrap();
            std::fs::write(directory.join("link"), "ZZZZZZZZZZZZZZZZZZZZZZZZZZ").unwrap();
            let link = store.root().join("overlay/l/ZZZZZZZZZZZZZZZZZZZZZZZZZZ");
            std::os::unix::fs::symlink(format!("../{orphan}/diff"), link).unwrap();
            orphan
        }
    };
    store.unmount();
    (target, survivors)
}

/// The first program that uses the store after the crash.
#[derive(Clone, Copy, Debug)]
enum First {
    Podman,
    Buildah,
    Layersweep,
}

impl First {
    fn come(self, store: &Store, survivors: &[String]) {
        match self {
            Self::Podman => {
                let listed: BTreeSet<_> = edit::podman_ids(store).into_iter().collect();
                assert!(survivors.iter().all(|id| listed.contains(id)), "{listed:?}");
                store.podman(["create", "--name", "after", "--network", "none", &small::name("a2"), "/x"]);
                store.podman(["rm", "after"]);
            }
            Self::Buildah => {
                let made = store.buildah(["from", "--pull-never", &small::name("a2")]);
                store.buildah(["rm", made.trim()]);
            }
            Self::Layersweep => {}
        }
        store.unmount();
    }
}

fn killed_at_every_step(recipe: Recipe, firsts: &[First]) {
    if !store::require_tools() {
        return;
    }
    // In memory if possible: this test has no power loss, and every round copies the store.
    let memory = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap();
    let store = small::still(&dir.path().join("root"));
    store.load(&small::deep());
    let (target, survivors) = prepare(&store, recipe);
    let begun: Vec<_> = begun(&store, recipe, &target).into_iter().collect();
    let whole = Copy::of(&store, &dir.path().join("whole"));
    let mut steps = Vec::new();
    loop {
        whole.restore(&store);
        let step = kill_at(&store, recipe, &target, steps.len() + 1);
        // The programs take turns.
        let first = firsts[steps.len() % firsts.len()];
        let context = format!("{recipe:?} at step {} ({step:?}), then {first:?}", steps.len() + 1);
        println!("{context}");
        first.come(&store, &survivors);
        finish(&store, recipe, &target, &begun);
        let scan = edit::whole_scan(&store);
        assert_eq!(edit::ids(list(&scan, "/images")), survivors, "{context}");
        let containers = list(&scan, "/containers").iter().map(|container| text(container, "/name"));
        assert_eq!(containers.collect::<Vec<_>>(), ["web"], "{context}");
        match step {
            Some(step) => steps.push(step),
            None => break,
        }
    }
    println!("{recipe:?}: {} steps: {steps:?}", steps.len());
    assert!(steps.len() > 6, "too few steps: {steps:?}");
    // podman still works with the last of the finished stores.
    edit::podman_ids(&store);
    store.podman(["mount", "web"]);
    store.podman(["umount", "web"]);
}

/// Returns the journal's entry of the deletion.
fn begun(store: &Store, recipe: Recipe, target: &str) -> Option<BegunDeletion> {
    let is_image = matches!(recipe, Recipe::Image | Recipe::ImageInPlace | Recipe::ImageWithoutMarks);
    let image = store.images().into_iter().find(|image| is_image && text(image, "/id") == target)?;
    Some(edit::begun(store, &image))
}

/// Simulates the next run: finishes the interrupted deletion, and repeats it if the target is still there.
fn finish(store: &Store, recipe: Recipe, target: &str, begun: &[BegunDeletion]) {
    let editor = edit::with(store, recipe.options());
    editor.resume(begun, &|_, _, _| false).unwrap();
    fn records(store: &Store, target: &str, name: &str) -> bool {
        std::fs::read_to_string(store.record(name)).unwrap().contains(target)
    }
    let again = match recipe {
        Recipe::Image | Recipe::ImageInPlace | Recipe::ImageWithoutMarks => {
            records(store, target, "images.json")
        }
        Recipe::Incomplete => records(store, target, "layers.json"),
        Recipe::OrphanDirectory => store.root().join("overlay").join(target).exists(),
    };
    if again {
        recipe.run(&editor, target, store.root());
    }
}

const ALL_PROGRAMS: [First; 3] = [First::Layersweep, First::Podman, First::Buildah];

#[test]
fn killed_deletion_of_image_is_finished() {
    killed_at_every_step(Recipe::Image, &ALL_PROGRAMS);
}

#[test]
fn killed_deletion_in_place_is_finished() {
    killed_at_every_step(Recipe::ImageInPlace, &[First::Layersweep, First::Podman]);
}

#[test]
fn killed_deletion_without_marks_is_finished() {
    killed_at_every_step(Recipe::ImageWithoutMarks, &[First::Layersweep, First::Buildah]);
}

#[test]
fn killed_deletion_of_incomplete_layer_is_finished() {
    killed_at_every_step(Recipe::Incomplete, &[First::Layersweep, First::Podman]);
}

#[test]
fn killed_deletion_of_orphan_is_finished() {
    killed_at_every_step(Recipe::OrphanDirectory, &ALL_PROGRAMS);
}
