//! A name of an image that has others is removed alone, as podman does it; an image only goes where
//! all of it is meant.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use layersweep::stores::containers_storage::edit::{PlannedImage, Refusal};
use serde_json::Value;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, deleted, name, rule};
use support::loopfs::Fs;
use support::program::{self, Run, list, number, text, texts};
use support::store::{self, Store};
use support::{edit, node, small};

/// A small store whose runtime is away, and records of its own.
struct Bed {
    store: Store,
    state: PathBuf,
    _dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let store = small::store(&dir.path().join("root"));
        Some(Self { store, state: dir.path().join("state"), _dir: dir })
    }

    fn run(&self, args: &[&str]) -> Run {
        let mut command = program::command();
        command.args(args).arg("--state-dir").arg(&self.state);
        command.arg("--graphroot").arg(self.store.root()).arg("--runroot").arg(self.store.runroot());
        program::run(&mut command).expect_no_crash()
    }

    /// `rm --via direct`.
    fn rm(&self, code: i32, args: &[&str]) -> Value {
        let all = [&["rm", "--via", "direct", "--min-age", "0s", "--format", "json"], args].concat();
        let document = self.run(&all).expect_code(code).json();
        node::assert_fits(&document);
        document
    }

    fn tag(&self, image: &str, names: &[&str]) {
        for name in names {
            self.store.podman(["tag", &small::name(image), name]);
        }
    }

    /// What `images.json` has of the image with this name, its id left aside.
    fn record(&self, name: &str) -> Value {
        let records = std::fs::read(self.store.record("images.json")).unwrap();
        let records: Value = serde_json::from_slice(&records).unwrap();
        let mut found = list(&records, "").iter().find(|one| texts(one, "/names").contains(&name.to_owned()));
        found.take().unwrap_or_else(|| panic!("no {name} in {records:#}")).clone()
    }

    fn names(&self, id: &str) -> Option<Vec<String>> {
        let images = self.store.images();
        let found = images.iter().find(|image| text(image, "/id") == id)?;
        let mut names = texts(found, "/names");
        names.sort();
        Some(names)
    }
}

/// Kind and name of what a document says was deleted.
fn gone(document: &Value) -> Vec<(&str, &str)> {
    list(document, "/deleted").iter().map(|one| (text(one, "/kind"), text(one, "/names/0"))).collect()
}

#[test]
fn one_name_of_several_goes_as_podman_takes_it() {
    let Some(bed) = Bed::new() else { return };
    bed.tag("b", &["reg.local/b:2", "reg.local/b:3", "reg.local/b:4"]);
    bed.tag("other", &["reg.local/other:2", "reg.local/other:3", "reg.local/other:4"]);
    let id = text(&bed.record("reg.local/b:2"), "/id").to_owned();
    let before = std::fs::read(bed.store.record("layers.json")).unwrap();
    let dry = bed.rm(0, &["reg.local/b:3", "--dry-run"]);
    assert_eq!(bed.names(&id).unwrap().len(), 4);
    let real = bed.rm(0, &["reg.local/b:3"]);
    for document in [&dry, &real] {
        assert_eq!(gone(document), [("name", "reg.local/b:3")], "{document:#}");
        assert_eq!((text(document, "/outcome"), number(document, "/predicted_bytes")), ("reached", 0));
        assert_eq!(text(document, "/deleted/0/id"), id);
    }
    assert_eq!((&real["measured_bytes"], &real["deleted"][0]["measured_bytes"]), (&0.into(), &0.into()));
    assert!(dry["deleted"][0]["measured_bytes"].is_null());
    // podman does the same to its image.
    bed.store.podman(["untag", "reg.local/other:3", "reg.local/other:3"]);
    let (ours, theirs) = (bed.record("reg.local/b:2"), bed.record("reg.local/other:2"));
    for field in ["/names", "/names-history"] {
        let theirs: Vec<_> = texts(&theirs, field).iter().map(|name| name.replace("other", "b")).collect();
        assert_eq!(texts(&ours, field), theirs, "{field}");
    }
    assert_eq!(std::fs::read(bed.store.record("layers.json")).unwrap(), before);
    assert_eq!(bed.names(&id).unwrap(), ["localhost/small/b:1", "reg.local/b:2", "reg.local/b:4"]);
    bed.store.podman(["create", "--name", "after", "--network", "none", "reg.local/b:4", "/x"]);
    bed.store.podman(["rm", "after"]);

    // It is in the history as what it was.
    let history = bed.run(&["history", "--kind", "name", "--format", "json"]).expect_code(0).json();
    assert_eq!(gone(&history["runs"][0]), [("name", "reg.local/b:3")], "{history:#}");
    let table = bed.run(&["rm", "--via", "direct", "reg.local/b:4"]).expect_code(0);
    assert!(table.stdout.contains("untagged reg.local/b:4") && table.stdout.contains("1 name"), "{table:?}");
    edit::whole(&bed.store);
}

#[test]
fn all_names_are_the_image() {
    let Some(bed) = Bed::new() else { return };
    let [a, base] = ["a2", "base"].map(|image| text(&bed.record(&small::name(image)), "/id").to_owned());
    bed.tag("a2", &["reg.local/a2:2", "reg.local/a2:3"]);
    // One after the other: the last one takes the image along.
    assert_eq!(gone(&bed.rm(0, &["reg.local/a2:2"])), [("name", "reg.local/a2:2")]);
    let rest = bed.rm(0, &[&small::name("a2"), "reg.local/a2:3"]);
    assert_eq!(text(&rest, "/deleted/0/kind"), "image", "{rest:#}");
    assert_eq!(bed.names(&a), None);
    // By --all-tags, by id, by digest; a name and an image in one go.
    bed.tag("b", &["reg.local/b:2"]);
    bed.tag("other", &["reg.local/other:2"]);
    let both = bed.rm(0, &["reg.local/other:2", &small::name("b"), "--all-tags"]);
    assert_eq!(gone(&both).iter().map(|one| one.0).collect::<Vec<_>>(), ["image", "image"], "{both:#}");
    bed.store.load(&[small::image("b"), small::image("other")]);
    bed.tag("b", &["reg.local/b:2", "reg.local/b:3"]);
    bed.tag("other", &["reg.local/other:2"]);
    let other = text(&bed.record("reg.local/other:2"), "/id").to_owned();
    let mixed = bed.rm(0, &["reg.local/b:2", &other[..12]]);
    assert_eq!(text(&mixed, "/deleted/0/kind"), "image", "{mixed:#}");
    assert_eq!(text(&mixed, "/deleted/1/kind"), "name", "{mixed:#}");
    assert_eq!(bed.names(&other), None);
    // A digest with a repository means the names there.
    let digest = text(&bed.record("reg.local/b:3"), "/digest").to_owned();
    let there = bed.rm(0, &[&format!("reg.local/b@{digest}")]);
    assert_eq!(gone(&there), [("name", "reg.local/b:3")], "{there:#}");
    assert_eq!(gone(&bed.rm(0, &[&digest]))[0], ("image", "localhost/small/b:1"));
    assert_eq!(bed.names(&base).unwrap().len(), 1);
    edit::whole(&bed.store);
}

#[test]
fn what_keeps_a_name() {
    let Some(bed) = Bed::new() else { return };
    bed.tag("a", &["reg.local/a:2", "keep.me/a:1"]);
    let config = bed.store.scratch().join("layersweep.toml");
    std::fs::write(&config, "[protect]\nnames = [\"keep.me/*\"]\n").unwrap();
    let config = config.to_str().unwrap();
    // A container uses it, and loses nothing; but the name that protects it stays.
    let real = bed.rm(5, &["reg.local/a:2", "keep.me/a:1", "--config", config]);
    assert_eq!(gone(&real), [] as [(&str, &str); 0], "{real:#}");
    assert_eq!(rule(&real, "keep.me/a:1"), "protected-name", "{real:#}");
    assert_eq!(gone(&bed.rm(0, &["reg.local/a:2", "--config", config])), [("name", "reg.local/a:2")]);
    assert_eq!(rule(&bed.rm(5, &["keep.me/a:1", &small::name("a")]), "keep.me/a:1"), "in-use");
    // What two names of it end in means neither.
    bed.tag("a", &["reg.local/x:7", "quay.local/x:7"]);
    let told = bed.run(&["rm", "--via", "direct", "x:7"]).expect_code(2);
    assert!(told.stderr.contains("quay.local/x:7") && told.stderr.contains("hint: "), "{told:?}");
    // Somebody tags it between the plan and the lock.
    let record = bed.record("reg.local/x:7");
    let planned = PlannedImage {
        id: text(&record, "/id").into(),
        names: Some(vec!["reg.local/x:7".into()]),
        ..Default::default()
    };
    let error = edit::editor(&bed.store).remove_names(&planned, &["reg.local/x:7".into()]).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::Changed { .. })), "{error}");
    let all = PlannedImage { names: Some(texts(&record, "/names")), ..planned };
    let error = edit::editor(&bed.store).remove_names(&all, &texts(&record, "/names")).unwrap_err();
    assert!(error.to_string().contains("no names left"), "{error}");
    assert_eq!(bed.record("reg.local/x:7"), record);
    edit::whole(&bed.store);
}

/// A runtime takes the image with all its names: only where that is said.
#[test]
fn a_runtime_is_not_asked_for_more_than_was_named() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    node.store.podman(["tag", &name(3), "reg.local/also-3:1"]);
    let first = name(1);
    for dry in [&["--dry-run"][..], &[]] {
        let words = [&["rm", "reg.local/also-3:1", &first], dry].concat();
        let refused = node.json(5, &words);
        assert_eq!(text(&refused, "/outcome"), "refused", "{refused:#}");
        let told = node.run(&words).expect_code(5);
        assert!(told.stderr.contains(&name(3)) && told.stderr.contains("--all-tags"), "{told:?}");
    }
    assert_eq!(node.removals(), 0);
    let real = node.json(0, &["rm", "reg.local/also-3:1", "--all-tags"]);
    assert_eq!(deleted(&real), [name(3), "reg.local/also-3:1".into()], "{real:#}");
    assert!(!node.names().contains(&name(3)));
    node.store.podman(["tag", &name(2), "reg.local/also-2:1"]);
    let real = node.json(0, &["rm", "reg.local/also-2:1", &name(2)]);
    assert_eq!(text(&real, "/deleted/0/kind"), "image", "{real:#}");
}
