//! Users of an image are searched in every store on the node, whichever stores were named: real stores of podman that
//! borrow images from each other, and the results of their own tools afterwards.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{self, GcNode};
use layersweep::editor::{Editor, Options, PlannedImage, Refusal};
use layersweep::stores::Environment;
use layersweep::stores::{self, Measure, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use serde_json::Value;
use support::archive::{ImageSpec, LayerSpec};
use support::gc_document::{assert_exact, deleted, kept, rule};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, Run, list, number, text};
use support::store::{self, Store, succeed};
use support::{edit, node, small};
use tempfile::TempDir;

/// A store of podman with the five small images, and a second one that borrows images from it.
struct Two {
    store: Store,
    borrower: Store,
    _dir: TempDir,
}

impl Two {
    fn new(driver: &str) -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let images = ["base", "a", "a2", "b", "other"].map(small::image);
        let store = Store::of(&dir.path().join("lender"), driver, &images);
        let borrower = borrower(&dir.path().join("borrower"), &store);
        Some(Self { store, borrower, _dir: dir })
    }

    /// Runs podman in the borrower, without flags, which would make it forget the additional store.
    fn podman(&self, args: &[&str]) -> String {
        succeed(self.borrower.command("podman").args(args))
    }

    fn create(&self, name: &str, image: &str) {
        self.podman(&["create", "--name", name, "--network", "none", &small::name(image), "/x"]);
    }

    /// Commits an image on top of one of the lender's.
    fn commit_on(&self, image: &str, new: &str) {
        self.create("job", image);
        self.podman(&["commit", "-q", "job", new]);
        self.podman(&["rm", "job"]);
    }

    fn command(&self, words: &[&str]) -> Command {
        command(&self.store, &self.borrower, words)
    }

    fn run(&self, words: &[&str]) -> Run {
        self.store.unmount();
        self.borrower.unmount();
        program::run(&mut self.command(words)).expect_no_crash()
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    /// Checks that a container runs from the borrower's image, which can be committed again.
    fn works(&self, image: &str) {
        works(&self.borrower, image);
    }

    fn names(&self) -> Vec<String> {
        let listed = self.store.podman(["images", "--format", "{{.Repository}}"]);
        let mut names: Vec<_> =
            listed.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

/// Makes a store whose configuration names `lender` as additional image store.
fn borrower(root: &Path, lender: &Store) -> Store {
    let store = Store::at(root, lender.driver());
    let config = store.scratch().join("storage.conf");
    let text = std::fs::read_to_string(&config).unwrap();
    let options = format!("[storage.options]\nadditionalimagestores = [{:?}]\n", lender.root());
    std::fs::write(config, text + &options).unwrap();
    store
}

/// Returns the program on `store` alone, on a node whose configuration names `other`.
fn command(store: &Store, other: &Store, words: &[&str]) -> Command {
    let mut command = program::command();
    command.args(words).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    command.env("CONTAINERS_STORAGE_CONF", other.scratch().join("storage.conf"));
    command.arg("--state-dir").arg(store.scratch().join("state"));
    if ["gc", "rm", "sweep"].contains(&words[0]) {
        command.arg("-y");
    }
    command
}

fn works(borrower: &Store, image: &str) {
    fn podman(borrower: &Store, args: &[&str]) -> String {
        succeed(borrower.command("podman").args(args))
    }
    podman(borrower, &["images", "--all"]);
    // crun may fail with the machine's control groups, which this test is not about.
    let run = ["run", "--rm", "--network", "none", "--log-driver", "none"];
    let limits = ["--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
    let busybox = ["--volume", "/bin/busybox:/busybox:ro", image, "/busybox", "true"];
    podman(borrower, &[&run[..], &limits, &busybox].concat());
    podman(borrower, &["create", "--name", "again", "--network", "none", image, "/x"]);
    podman(borrower, &["commit", "-q", "again", "localhost/again:1"]);
    podman(borrower, &["rm", "again"]);
}

const AGED: [&str; 10] =
    ["gc", "--via", "direct", "--high", "99", "--low", "98", "--min-age", "0s", "--max-age=1s"];

/// Returns the images that a document reports as deleted, sorted, by the last part of their names.
fn gone(document: &Value) -> Vec<String> {
    let mut names: Vec<_> = deleted(document)
        .iter()
        .map(|name| name.trim_end_matches(":1").rsplit('/').next().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// (a) Another store has an image that was committed on one of the lender's, and containers of the lender's images.
/// `gc` of the lender alone keeps what they need, and nothing else; the dry run reports the same.
#[test]
fn layers_below_another_store_are_kept() {
    let Some(two) = Two::new("overlay") else { return };
    two.commit_on("b", "localhost/t/on-b:1");
    two.create("keep", "a2");
    // When both are read, no configuration is needed to see that one borrows from the other.
    let config = two.store.scratch().join("empty.conf");
    std::fs::write(&config, "").unwrap();
    let mut both = program::command();
    both.args(["images", "--format", "json", "--graphroot"]).arg(two.store.root());
    both.arg("--graphroot").arg(two.borrower.root()).env("CONTAINERS_STORAGE_CONF", &config);
    both.arg("--state-dir").arg(two.store.scratch().join("unused"));
    let images = program::run(&mut both).expect_code(0).json();
    for (image, in_use) in [("a", false), ("a2", true), ("b", true)] {
        let name = small::name(image);
        let mut all = list(&images, "/images").iter();
        let found = all.find(|image| program::texts(image, "/names").contains(&name)).expect(&name);
        assert_eq!(found["in_use"], in_use, "{found:#}");
    }
    std::thread::sleep(Duration::from_millis(1500));
    let dry = two.json(0, &[&AGED[..], &["--dry-run"]].concat());
    let real = two.json(0, &AGED);
    for document in [&dry, &real] {
        assert_eq!(gone(document), ["a", "base", "other"], "{document:#}");
        for (image, user) in [("b", "the image localhost/t/on-b:1"), ("a2", "the podman container keep")] {
            assert_eq!(rule(document, &small::name(image)), "in-use");
            let detail = text(kept(document, &small::name(image)), "/detail");
            assert!(detail.contains(user) && detail.contains("borrower"), "{detail}");
        }
    }
    assert_eq!(number(&dry, "/predicted_bytes"), number(&real, "/predicted_bytes"));
    assert_eq!(two.names(), ["a2", "b"]);
    two.works("localhost/t/on-b:1");
    two.podman(&["commit", "-q", "keep", "localhost/t/kept:1"]);
    // `rm` refuses too, and `images` reports them as in use.
    for image in ["a2", "b"] {
        let refused = two.json(5, &["rm", "--via", "direct", "--min-age", "0s", &small::name(image)]);
        assert_eq!(rule(&refused, &small::name(image)), "in-use");
    }
    let images = two.json(0, &["images"]);
    assert!(list(&images, "/images").iter().all(|image| image["in_use"] == true), "{images:#}");
    // Once nothing needs them any more, they are deleted.
    two.podman(&["rm", "keep"]);
    two.podman(&["rmi", "localhost/t/on-b:1", "localhost/t/kept:1", "localhost/again:1"]);
    // Their idle time starts with the scan that sees them unused.
    two.json(0, &["scan"]);
    std::thread::sleep(Duration::from_millis(1500));
    let real = two.json(0, &AGED);
    assert_eq!(gone(&real), ["a2", "b"]);
}

/// A manifest list in the borrower needs the lender's images by their digests.
#[test]
fn member_of_foreign_manifest_list_is_kept() {
    let Some(two) = Two::new("overlay") else { return };
    let listed = "localhost/t/list:1";
    two.podman(&["manifest", "create", listed]);
    two.podman(&["manifest", "add", listed, &format!("containers-storage:{}", small::name("b"))]);
    std::thread::sleep(Duration::from_millis(1500));
    let real = two.json(0, &AGED);
    assert_eq!(rule(&real, &small::name("b")), "in-use");
    assert!(text(kept(&real, &small::name("b")), "/detail").contains(listed), "{real:#}");
    let refused = two.json(5, &["rm", "--via", "direct", "--min-age", "0s", &small::name("b")]);
    assert_eq!(rule(&refused, &small::name("b")), "in-use");
    assert_eq!(two.names(), ["b"]);
    two.podman(&["create", "--network", "none", listed, "/x"]);
}

/// A container of another store runs from one image, and an image there is built on another. Making room deletes all
/// but these two, exactly as predicted, and the container loses no file.
#[test]
fn running_container_of_another_store_keeps_files() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("runc") {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 128 * MIB);
    let store = Store::at(&loopfs.path().join("lender"), "overlay");
    fn layer(name: &str, mib: u64) -> LayerSpec {
        LayerSpec { files: vec![mib * MIB], small_files: 30, ..LayerSpec::new(name) }
    }
    let base = LayerSpec { programs: vec!["/bin/busybox".into()], ..layer("base", 2) };
    let images: Vec<_> = (0..6)
        .map(|number| ImageSpec {
            names: vec![small::name(&format!("i{number}"))],
            layers: vec![base.clone(), layer(&format!("own-{number}"), 4)],
            label: format!("i{number}"),
        })
        .collect();
    store.load(&images);
    store.unmount();
    let dir = tempfile::tempdir().unwrap();
    let borrower = borrower(&dir.path().join("borrower"), &store);
    let two = Two { store, borrower, _dir: dir };
    two.commit_on("i1", "localhost/t/on-i1:1");

    let sums = "/bin/busybox find / -xdev -type f -name '[0-9a-z]*' -exec /bin/busybox md5sum {} + | \
                /bin/busybox grep -v ' /\\(proc\\|sys\\|dev\\|etc\\|run\\)/'";
    fn sorted_lines(output: String) -> Vec<String> {
        let mut lines: Vec<_> = output.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
    let run = ["--runtime", "runc", "run", "--network", "none", "--log-driver", "none"];
    let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
    let shell = ["/bin/busybox", "sh", "-c"];
    let name = small::name("i0");
    let output = two.podman(&[&run[..], &limits, &["--rm", &name], &shell, &[sums]].concat());
    let expected = sorted_lines(output);
    assert!(expected.len() > 60, "{expected:?}");
    let _live = Live(&two.borrower);
    two.podman(&[&run[..], &limits, &["-d", "--name", "live", &name], &shell, &["sleep 600"]].concat());

    // Not `Two::run`, which would unmount what the container has mounted.
    let json = |code: i32, words: &[&str]| {
        let words = [words, &["--via", "direct", "--min-age", "0s", "--format", "json"]].concat();
        node::document(program::run(&mut two.command(&words)).expect_no_crash().expect_code(code))
    };
    // More than can be freed.
    let by_space = ["gc", "--high", "2", "--low", "1"];
    let dry = json(4, &[&by_space[..], &["--dry-run"]].concat());
    let real = json(4, &by_space);
    for document in [&dry, &real] {
        assert_eq!(gone(document), ["i2", "i3", "i4", "i5"], "{document:#}");
        for image in ["i0", "i1"] {
            assert_eq!(rule(document, &small::name(image)), "in-use");
        }
    }
    assert_exact(&real);
    assert_eq!(number(&dry, "/predicted_bytes"), number(&real, "/predicted_bytes"));

    for image in ["i0", "i1"] {
        let refused = json(5, &["rm", &small::name(image)]);
        assert_eq!(rule(&refused, &small::name(image)), "in-use", "{refused:#}");
    }

    let exec = ["--runtime", "runc", "exec", "live"];
    assert_eq!(sorted_lines(two.podman(&[&exec[..], &shell, &[sums]].concat())), expected);
    two.works("localhost/t/on-i1:1");
    two.works(&name);
    two.podman(&["--runtime", "runc", "commit", "-q", "--pause=false", "live", "localhost/t/live:1"]);
}

/// A store whose containers are killed when this is dropped.
struct Live<'s>(&'s Store);

impl Drop for Live<'_> {
    fn drop(&mut self) {
        let rm = ["--runtime", "runc", "rm", "--all", "--force", "--time", "0"];
        program::run(self.0.command("podman").args(rm));
    }
}

/// Two images contain layers that another store needs: one may be deleted, and the last one is kept, also in the dry
/// run.
#[test]
fn last_image_with_borrowed_layers_is_kept() {
    let Some(two) = Two::new("overlay") else { return };
    two.commit_on("a", "localhost/t/on-a:1");
    std::thread::sleep(Duration::from_millis(1500));
    let dry = two.json(0, &[&AGED[..], &["--dry-run"]].concat());
    let real = two.json(0, &AGED);
    assert_eq!(gone(&dry), gone(&real));
    let left = two.names();
    assert!(left == ["a"] || left == ["a2"], "{left:?} {dry:#}");
    assert_eq!(rule(&dry, &small::name(&left[0])), "in-use");
    assert_eq!(rule(&real, &small::name(&left[0])), "in-use");
    two.works("localhost/t/on-a:1");
}

/// Returns another image with the layers of `b` and another configuration.
fn twin() -> ImageSpec {
    ImageSpec { names: vec![small::name("twin")], label: "twin".into(), ..small::image("b") }
}

/// Returns the editor's reason for not deleting an image of the lender.
fn refusal(two: &Two, image: &str) -> Refusal {
    let (request, places) = (request(&two.store, &two.borrower), edit::places(&two.store));
    let editor = edit::with(
        &two.store,
        Options { outside: Some(Box::new(move || stores::outside(&request, &places))), ..Options::default() },
    );
    let images = two.store.images();
    let image = images.iter().find(|other| other["names"].to_string().contains(&small::name(image))).unwrap();
    let error = editor.delete_image(&edit::planned(image)).unwrap_err();
    error.refusal().cloned().unwrap_or_else(|| panic!("{error}"))
}

/// (b) podman 4 makes a record without data: manifest and configuration are those of the lender's image, so that
/// another image with the same layers cannot replace it.
#[test]
fn tag_in_another_store_keeps_exact_image() {
    let Some(two) = Two::new("overlay") else { return };
    two.store.load(&[twin()]);
    two.podman(&["tag", &small::name("b"), "localhost/t/tagged:1"]);
    two.create("keep", "b");
    let user = "the image localhost/t/tagged:1 in the store";
    std::thread::sleep(Duration::from_millis(1500));
    for words in [&["--dry-run"][..], &[]] {
        let document = two.json(0, &[&AGED[..], words].concat());
        assert_eq!(gone(&document), ["a", "a2", "base", "other", "twin"], "{document:#}");
        assert_eq!(rule(&document, &small::name("b")), "in-use");
        let detail = text(kept(&document, &small::name("b")), "/detail");
        assert!(detail.contains(user), "{detail}");
    }
    let refused = two.json(5, &["rm", "--via", "direct", "--min-age", "0s", &small::name("b")]);
    assert_eq!(rule(&refused, &small::name("b")), "in-use", "{refused:#}");
    let explained = two.run(&["explain", &small::name("b")]).expect_code(0).stdout;
    assert!(explained.contains(&format!("used by {user}")), "{explained}");
    let refusal = refusal(&two, "b");
    assert!(matches!(&refusal, Refusal::UsedElsewhere { by, .. } if by.contains(user)), "{refusal}");
    two.podman(&["rm", "keep"]);
    two.works("localhost/t/tagged:1");
    two.podman(&["rmi", "localhost/t/tagged:1", "localhost/again:1"]);
    assert_eq!(gone(&two.json(0, &["rm", "--via", "direct", "--min-age", "0s", &small::name("b")])), ["b"]);
}

/// The same through a runtime that does not know the other store.
#[test]
fn runtime_does_not_remove_borrowed_images() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    let dir = tempfile::tempdir().unwrap();
    let borrower = borrower(&dir.path().join("borrower"), &node.store);
    fn podman(borrower: &Store, args: &[&str]) -> String {
        succeed(borrower.command("podman").args(args))
    }
    podman(&borrower, &["create", "--name", "job", "--network", "none", &gc_node::name(1), "/x"]);
    podman(&borrower, &["commit", "-q", "job", "localhost/t/on:1"]);
    podman(&borrower, &["rm", "job"]);
    podman(&borrower, &["create", "--name", "keep", "--network", "none", &gc_node::name(2), "/x"]);
    node.age();
    fn run(borrower: &Store, node: &GcNode, code: i32, words: &[&str]) -> Value {
        let mut command = node.command(&[words, &["--format", "json"]].concat());
        command.env("CONTAINERS_STORAGE_CONF", borrower.scratch().join("storage.conf"));
        node::document(program::run(&mut command).expect_no_crash().expect_code(code))
    }
    let document = run(&borrower, &node, 0, &["gc", "-y", "--high", "99", "--low", "98", "--max-age", "1d"]);
    let expected: Vec<_> = [0, 3, 4, 6].map(gc_node::name).into();
    assert_eq!(deleted(&document), expected, "{document:#}");
    for number in [1, 2] {
        assert_eq!(rule(&document, &gc_node::name(number)), "in-use");
        let refused = run(&borrower, &node, 5, &["rm", "-y", &gc_node::name(number)]);
        assert_eq!(rule(&refused, &gc_node::name(number)), "in-use");
    }
    works(&borrower, "localhost/t/on:1");
    podman(&borrower, &["commit", "-q", "keep", "localhost/t/kept:1"]);
    borrower.unmount();
}

fn request(store: &Store, other: &Store) -> ScanRequest {
    ScanRequest {
        graphroots: vec![store.root().to_path_buf()],
        runroots: vec![store.runroot()],
        environment: Environment {
            containers_storage_conf: Some(other.scratch().join("storage.conf")),
            ..Environment::default()
        },
        measure: Measure::RecordsAndMounts,
        ..ScanRequest::of(Sysroot::live())
    }
}

/// The editor's own proof under the locks includes other stores: a container may be created at any moment. Stores that
/// change between the lookup and the locks are read again.
#[test]
fn editor_checks_other_stores_under_locks() {
    let Some(two) = Two::new("overlay") else { return };
    two.store.unmount();
    let images = two.store.images();
    fn id(images: &[Value], image: &str) -> String {
        let name = small::name(image);
        let found = images.iter().find(|image| program::texts(image, "/names") == [name.clone()]);
        text(found.unwrap(), "/id").to_owned()
    }
    let (request, places) = (request(&two.store, &two.borrower), edit::places(&two.store));
    let looked_up = places.clone();
    let looks = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = looks.clone();
    let options = Options {
        outside: Some(Box::new(move || {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            stores::outside(&request, &looked_up)
        })),
        ..Options::default()
    };
    let editor = Editor::new(&places, options).unwrap();
    let delete =
        |image: &str| editor.delete_image(&PlannedImage { id: id(&images, image), ..Default::default() });
    delete("other").unwrap();
    two.commit_on("b", "localhost/t/on-b:1");
    two.create("keep", "a2");
    for image in ["a2", "b"] {
        let error = delete(image).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::UsedElsewhere { .. })), "{image}: {error}");
    }
    assert!(looks.load(std::sync::atomic::Ordering::Relaxed) >= 2, "what moved is read again");
    // The same if both are named and no configuration shows the borrower.
    let config = two.store.scratch().join("empty.conf");
    std::fs::write(&config, "").unwrap();
    let mut both = self::request(&two.store, &two.borrower);
    both.graphroots.push(two.borrower.root().to_path_buf());
    both.environment.containers_storage_conf = Some(config);
    let looked_up = places.clone();
    let editor = Editor::new(
        &places,
        Options { outside: Some(Box::new(move || stores::outside(&both, &looked_up))), ..Options::default() },
    )
    .unwrap();
    for image in ["a2", "b"] {
        let error =
            editor.delete_image(&PlannedImage { id: id(&images, image), ..Default::default() }).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::UsedElsewhere { .. })), "{image}: {error}");
    }
    two.podman(&["rm", "keep"]);
    delete("a2").unwrap();
    // A process that writes all the time delays the editor for a limited time; then it gives up.
    let file = two.borrower.record("images.json");
    let places = edit::places(&two.store);
    let (request, looked_up) = (self::request(&two.store, &two.borrower), places.clone());
    let options = Options {
        outside: Some(Box::new(move || stores::outside(&request, &looked_up))),
        on_step: Some(Box::new(move |step: &str| {
            if step == "locked" {
                let text = std::fs::read(&file).unwrap();
                std::fs::write(file.with_extension("new"), text).unwrap();
                std::fs::rename(file.with_extension("new"), &file).unwrap();
            }
        })),
        ..Options::default()
    };
    let editor = Editor::new(&places, options).unwrap();
    let error =
        editor.delete_image(&PlannedImage { id: id(&images, "a"), ..Default::default() }).unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::BorrowersBusy), "{error}");
    two.works("localhost/t/on-b:1");
}

/// M4: a container whose records are in a runroot that is not named is still in podman's database: its image is in use,
/// and its possible layer is only reported.
#[test]
fn container_in_podman_database_keeps_image() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    store.unmount();
    let read = |name: &str| -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(store.record(name)).unwrap()).unwrap()
    };
    fn save(store: &Store, name: &str, records: &[Value]) {
        std::fs::write(store.record(name), serde_json::to_vec(records).unwrap()).unwrap();
    }
    let containers = read("containers.json");
    let mut layers = read("layers.json");
    let layer = text(&containers[0], "/layer").to_owned();
    layers.retain(|record| record["id"] != layer.as_str());
    save(&store, "containers.json", &[]);
    save(&store, "layers.json", &layers);
    #[allow(clippy::disallowed_methods)] // a store of this test
    std::fs::remove_dir_all(store.root().join("overlay-containers").join(text(&containers[0], "/id")))
        .unwrap();
    let images = store.json("images");
    let image = node::image(&images, &small::name("a"));
    assert_eq!(image["in_use"], true, "{image:#}");
    assert_eq!(text(image, "/used_by/0/name"), "the podman container web");
    let scan = store.json("scan");
    let leaks = list(&scan, "/leaks");
    let orphan = leaks.iter().find(|leak| leak["id"] == layer.as_str()).expect("the container's layer");
    assert_eq!((text(orphan, "/class"), text(orphan, "/verdict")), ("orphan-dir", "report"), "{orphan:#}");
    let mut command = program::command();
    command.args(["rm", "-y", "--via", "direct", "--min-age", "0s", "--format", "json"]);
    command.arg(small::name("a")).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
    let refused = program::run(&mut command).expect_code(5).json();
    assert_eq!(rule(&refused, &small::name("a")), "in-use");
    assert!(edit::podman_ids(&store).contains(&text(image, "/id").to_owned()));

    // The same if containers.conf moves podman's database.
    let bolt = store.root().join("libpod/bolt_state.db");
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(&bolt, elsewhere.join("bolt_state.db")).unwrap();
    let settings = dir.path().join("containers.conf");
    std::fs::write(&settings, format!("[engine]\nstatic_dir = {elsewhere:?}\n")).unwrap();
    command.env("CONTAINERS_CONF", &settings);
    let refused = program::run(&mut command).expect_code(5).json();
    assert_eq!(rule(&refused, &small::name("a")), "in-use");
    std::fs::rename(elsewhere.join("bolt_state.db"), &bolt).unwrap();

    // The database of podman 5 while podman runs: all of it is in the log.
    std::fs::rename(&bolt, bolt.with_extension("away")).unwrap();
    let database = rusqlite::Connection::open(store.root().join("db.sql")).unwrap();
    let config = serde_json::json!({"name": "five", "rootfsImageID": text(image, "/id")});
    database
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE ContainerConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT, PodID TEXT, JSON TEXT);
             CREATE TABLE ContainerState(ID TEXT PRIMARY KEY NOT NULL, State INTEGER NOT NULL, JSON TEXT);
             CREATE TABLE VolumeConfig(Name TEXT PRIMARY KEY NOT NULL, JSON TEXT);
             INSERT INTO ContainerConfig VALUES('c5', 'five', NULL, '{config}');
             INSERT INTO ContainerState VALUES('c5', 3, '');"
        ))
        .unwrap();
    let log = store.root().join("db.sql-wal");
    let before = std::fs::read(&log).unwrap();
    assert!(before.len() > 4096);
    let refused = program::run(&mut command).expect_code(5).json();
    assert_eq!(rule(&refused, &small::name("a")), "in-use");
    assert!(text(kept(&refused, &small::name("a")), "/detail").contains("the podman container five"));
    assert_eq!(std::fs::read(&log).unwrap(), before);
    drop(database);

    // A database that cannot be read may name any image.
    let journal = store.root().join("db.sql-journal");
    std::fs::write(&journal, "a change that was interrupted").unwrap();
    for image in list(&store.json("images"), "/images") {
        assert_eq!(image["in_use"], true, "{image:#}");
    }
    let refused = program::run(&mut command).expect_code(5).json();
    let detail = text(kept(&refused, &small::name("a")), "/detail");
    assert!(detail.contains("podman's database cannot be read"), "{detail}");
    std::fs::remove_file(&journal).unwrap();
    let (images, other) = (store.images(), small::name("other"));
    let other = images.iter().find(|image| image["names"].to_string().contains(&other)).unwrap();
    edit::delete(&edit::editor(&store), other);
}

/// A record that is twice in a file of the borrower: tools of one version use the first, others the last. What either
/// names is kept.
#[test]
fn image_of_container_recorded_twice_is_kept() {
    for is_first in [true, false] {
        let Some(two) = Two::new("overlay") else { return };
        two.create("keep", "a2");
        two.borrower.unmount();
        fn twice(store: &Store, name: &str, is_first: bool, change: impl Fn(&mut Value)) {
            let path = store.record(name);
            let mut records: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let mut other = records[0].clone();
            change(&mut other);
            records.insert(if is_first { 0 } else { records.len() }, other);
            std::fs::write(path, serde_json::to_vec(&records).unwrap()).unwrap();
        }
        twice(&two.borrower, "containers.json", is_first, |container| container["image"] = "".into());
        twice(&two.borrower, "layers.json", is_first, |layer| {
            layer.as_object_mut().unwrap().remove("parent");
        });
        // Podman's database knows the container too.
        #[allow(clippy::disallowed_methods)] // a store of this test
        std::fs::remove_dir_all(two.borrower.root().join("libpod")).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let document = two.json(0, &AGED);
        let gone = gone(&document);
        assert!(gone.contains(&"other".to_owned()), "{is_first}: {document:#}");
        assert!(!gone.contains(&"a2".to_owned()), "{is_first}: {document:#}");
        assert_eq!(rule(&document, &small::name("a2")), "in-use");
    }
}

/// M6: an image that is mounted into a container, which need not run.
#[test]
fn image_mounted_into_container_is_kept() {
    let Some(two) = Two::new("overlay") else { return };
    let mount = format!("type=image,src={},dst=/data", small::name("other"));
    two.store.podman([
        "create",
        "--name",
        "v",
        "--network",
        "none",
        "--mount",
        &mount,
        &small::name("b"),
        "/x",
    ]);
    let mount = format!("type=image,src={},dst=/data", small::name("a2"));
    two.podman(&["create", "--name", "w", "--network", "none", "--mount", &mount, &small::name("b"), "/x"]);
    for (image, user) in [("other", "the podman container v"), ("a2", "the podman container w in the store")]
    {
        let refused = two.json(5, &["rm", "--via", "direct", "--min-age", "0s", &small::name(image)]);
        let detail = text(kept(&refused, &small::name(image)), "/detail");
        assert!(detail.contains(user), "{detail}");
        assert_eq!(rule(&refused, &small::name(image)), "in-use");
    }
    two.store.podman(["rm", "v"]);
    assert_eq!(
        gone(&two.json(0, &["rm", "--via", "direct", "--min-age", "0s", &small::name("other")])),
        ["other"]
    );
}

/// podman finds an image by many references, and stores the given one.
#[test]
fn image_mounted_by_digest_or_id_is_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::store(&dir.path().join("root"));
    store.podman(["tag", &small::name("other"), "docker.io/library/hub:latest"]);
    store.podman(["untag", &small::name("other"), &small::name("other")]);
    store.unmount();
    let hub = "docker.io/library/hub";
    let images = store.images();
    let image = images.iter().find(|other| other["names"].to_string().contains(hub)).unwrap();
    let (id, digest) = (text(image, "/id"), text(image, "/digests/0"));
    let shortest = (1..=id.len()).map(|length| &id[..length]);
    let mut shortest = shortest
        .filter(|start| images.iter().filter(|other| text(other, "/id").starts_with(start)).count() == 1);
    fn rm(id: &str, store: &Store, code: i32) -> Value {
        let mut command = program::command();
        command.args(["rm", "-y", "--via", "direct", "--min-age", "0s", "--dry-run", "--format", "json", id]);
        command.arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        program::run(&mut command).expect_code(code).json()
    }
    rm(id, &store, 0);
    let request = ScanRequest { graphroots: vec![store.root().to_path_buf()], ..request(&store, &store) };
    for reference in [
        &format!("{hub}@{digest}"),
        &format!("{hub}:latest@{digest}"),
        &format!("elsewhere/hub@{digest}"),
        "docker.io/hub",
        shortest.next().unwrap(),
        &format!("containers-storage:{hub}"),
    ] {
        let mount = format!("type=image,src={reference},dst=/data");
        let create =
            ["create", "--name", "v", "--network", "none", "--mount", &mount, &small::name("b"), "/x"];
        store.podman(create);
        let refused = rm(id, &store, 5);
        let kept = &list(&refused, "/kept")[0];
        assert_eq!(kept["rule"], "in-use", "{reference}: {refused:#}");
        assert!(text(kept, "/detail").contains("the podman container v"), "{reference}: {kept:#}");
        let (request, places) = (request.clone(), edit::places(&store));
        let editor = edit::with(
            &store,
            Options {
                outside: Some(Box::new(move || stores::outside(&request, &places))),
                ..Options::default()
            },
        );
        let error = editor.delete_image(&edit::planned(image)).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::UsedElsewhere { .. })), "{reference}: {error}");
        store.podman(["rm", "v"]);
        store.unmount();
    }
    rm(id, &store, 0);
}

/// The broken configuration might name stores that borrow from this one.
#[test]
fn editor_without_configuration_knows_no_borrower() {
    let Some(two) = Two::new("overlay") else { return };
    two.create("keep", "a2");
    two.store.unmount();
    two.borrower.unmount();
    let images = two.store.images();
    let image = images.iter().find(|image| image["names"].to_string().contains(&small::name("a2"))).unwrap();
    let config = two.borrower.scratch().join("storage.conf");
    let whole = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{whole}[storage")).unwrap();
    let (request, places) = (request(&two.store, &two.borrower), edit::places(&two.store));
    let editor = edit::with(
        &two.store,
        Options { outside: Some(Box::new(move || stores::outside(&request, &places))), ..Options::default() },
    );
    let error = editor.delete_image(&edit::planned(image)).unwrap_err();
    assert_eq!(error.refusal(), Some(&Refusal::BorrowerUnknown(config.clone())), "{error}");
    std::fs::write(&config, whole).unwrap();
    two.works(&small::name("a2"));
}

/// A store under two paths is one store.
#[test]
fn bind_mount_makes_no_second_store() {
    let Some(two) = Two::new("overlay") else { return };
    let second = two.store.scratch().join("second");
    std::fs::create_dir(&second).unwrap();
    let bound = Bound::new(two.store.root(), &second);
    let scan = two.json(0, &["scan", "--no-record", "--graphroot", second.to_str().unwrap()]);
    assert_eq!(list(&scan, "/stores").len(), 1, "{:#}", scan["stores"]);
    assert_eq!(list(&scan, "/images").len(), 5);
    drop(bound);
}

/// A bind mount that is unmounted when this is dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(from: &Path, to: &Path) -> Self {
        succeed(Command::new("mount").arg("--bind").arg(from).arg(to));
        Self(to.to_path_buf())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        succeed(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// The library counts mounts per layer, and two images have the same top layer. With vfs nothing is mounted when podman
/// provides an image's directory.
#[test]
fn images_possibly_mounted_by_podman_are_kept() {
    for driver in ["overlay", "vfs"] {
        let Some(two) = Two::new(driver) else { return };
        two.store.load(&[twin()]);
        two.store.podman(["image", "mount", &small::name("twin")]);
        fn rm(two: &Two, image: &str) -> Value {
            let name = small::name(image);
            let words = ["rm", "--via", "direct", "--min-age", "0s", &name, "--format", "json"];
            // Not `Two::run`, which unmounts.
            node::document(program::run(&mut two.command(&words)).expect_no_crash())
        }
        for image in ["b", "twin"] {
            let refused = rm(&two, image);
            assert_eq!(rule(&refused, &small::name(image)), "in-use", "{driver}: {refused:#}");
            let detail = text(kept(&refused, &small::name(image)), "/detail");
            assert!(detail.contains("podman image unmount"), "{driver}: {detail}");
            let refusal = refusal(&two, image);
            let is_mounted = matches!(refusal, Refusal::Mounted { .. } | Refusal::UsedElsewhere { .. });
            assert!(is_mounted, "{driver}: {refusal}");
        }
        assert_eq!(gone(&rm(&two, "other")), ["other"], "{driver}");
        if driver == "vfs" {
            unknown_counts(&two, "b");
        }
        two.store.podman(["image", "unmount", &small::name("twin")]);
        assert_eq!(gone(&rm(&two, "b")), ["b"], "{driver}");
    }
}

/// If the mount counts cannot be read, any image may be mounted.
fn unknown_counts(two: &Two, image: &str) {
    let counts = two.store.runroot().join("vfs-layers/mountpoints.json");
    let whole = std::fs::read(&counts).unwrap();
    for broken in ["[{", r#"[{"id":7}]"#, "{}"] {
        std::fs::write(&counts, broken).unwrap();
        let refused = two.json(5, &["rm", "--via", "direct", "--min-age", "0s", &small::name(image)]);
        let detail = text(kept(&refused, &small::name(image)), "/detail");
        assert!(detail.contains("which images are mounted is unknown"), "{detail}");
        let refusal = refusal(two, image);
        assert!(matches!(refusal, Refusal::UsedElsewhere { .. }), "{refusal}");
    }
    std::fs::write(&counts, whole).unwrap();
}
