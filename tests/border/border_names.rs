//! An image with several names is deleted by its id, by all its names, or with `--all-tags`.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use serde_json::Value;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, deleted, name, rule};
use support::loopfs::Fs;
use support::program::{self, Run, list, text, texts};
use support::store::{self, Store};
use support::{edit, node, small};

/// A small store whose runtime does not run, with its own records.
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

    /// Runs `rm --via direct`, which must exit with `code`.
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

    /// Returns the record of the image with this name from `images.json`.
    fn record(&self, name: &str) -> Value {
        let records = std::fs::read(self.store.record("images.json")).unwrap();
        let records: Value = serde_json::from_slice(&records).unwrap();
        let mut found =
            list(&records, "").iter().find(|record| texts(record, "/names").contains(&name.to_owned()));
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

/// Kind and name of everything that a document reports as deleted.
fn gone(document: &Value) -> Vec<(&str, &str)> {
    list(document, "/deleted").iter().map(|row| (text(row, "/kind"), text(row, "/names/0"))).collect()
}

/// A name of an image with several names deletes nothing; the message names the others and the options.
#[test]
fn name_of_tagged_image_is_refused() {
    let Some(bed) = Bed::new() else { return };
    bed.tag("b", &["reg.local/b:2", "reg.local/b:3"]);
    let before = bed.record("reg.local/b:2");
    for more in [&[][..], &["--dry-run"]] {
        // No other named image is deleted either.
        let words =
            [&["rm", "-y", "--via", "direct", "reg.local/b:3", "localhost/small/a2:1"], more].concat();
        let run = bed.run(&words).expect_code(2);
        assert!(run.stderr.contains("it is also tagged "), "{run:?}");
        assert!(run.stderr.contains("reg.local/b:2; name the id or add --all-tags"), "{run:?}");
        assert!(run.stderr.contains("hint: to remove only the name, use `podman --root "), "{run:?}");
        assert!(run.stdout.is_empty(), "{run:?}");
    }
    assert_eq!(bed.record("reg.local/b:2"), before);
    bed.record("localhost/small/a2:1");
    // The hint's command works.
    bed.store.podman(["untag", text(&before, "/id"), "reg.local/b:3"]);
    assert_eq!(bed.names(text(&before, "/id")).unwrap(), ["localhost/small/b:1", "reg.local/b:2"]);
}

#[test]
fn all_names_are_the_image() {
    let Some(bed) = Bed::new() else { return };
    let [a, base] = ["a2", "base"].map(|image| text(&bed.record(&small::name(image)), "/id").to_owned());
    bed.tag("a2", &["reg.local/a2:2", "reg.local/a2:3"]);
    let all = bed.rm(0, &[&small::name("a2"), "reg.local/a2:3", "reg.local/a2:2"]);
    assert_eq!(text(&all, "/deleted/0/kind"), "image", "{all:#}");
    assert_eq!(bed.names(&a), None);
    // By --all-tags, by id, by digest.
    bed.tag("b", &["reg.local/b:2"]);
    bed.tag("other", &["reg.local/other:2"]);
    let both = bed.rm(0, &["reg.local/other:2", &small::name("b"), "--all-tags"]);
    assert_eq!(gone(&both).iter().map(|row| row.0).collect::<Vec<_>>(), ["image", "image"], "{both:#}");
    bed.store.load(&[small::image("b"), small::image("other")]);
    bed.tag("b", &["reg.local/b:2", "reg.local/b:3"]);
    bed.tag("other", &["reg.local/other:2"]);
    let other = text(&bed.record("reg.local/other:2"), "/id").to_owned();
    let by_id = bed.rm(0, &[&other[..12]]);
    assert_eq!(text(&by_id, "/deleted/0/kind"), "image", "{by_id:#}");
    assert_eq!(bed.names(&other), None);
    // A digest with a repository names the tags of that repository.
    let digest = text(&bed.record("reg.local/b:3"), "/digest").to_owned();
    let named = format!("reg.local/b@{digest}");
    let run = bed.run(&["rm", "-y", "--via", "direct", &named]).expect_code(2);
    assert!(run.stderr.contains("it is also tagged localhost/small/b:1"), "{run:?}");
    assert_eq!(gone(&bed.rm(0, &[&digest]))[0], ("image", "localhost/small/b:1"));
    assert_eq!(bed.names(&base).unwrap().len(), 1);
    edit::whole(&bed.store);
}

#[test]
fn protected_name_keeps_tagged_image() {
    let Some(bed) = Bed::new() else { return };
    bed.tag("a", &["reg.local/a:2", "keep.me/a:1"]);
    let config = bed.store.scratch().join("layersweep.toml");
    std::fs::write(&config, "[protect]\nnames = [\"keep.me/*\"]\n").unwrap();
    let config = config.to_str().unwrap();
    let real = bed.rm(5, &["reg.local/a:2", "--all-tags", "--config", config]);
    assert_eq!(gone(&real), [] as [(&str, &str); 0], "{real:#}");
    assert!(list(&real, "/kept").iter().all(|kept| kept["rule"] == "in-use"), "{real:#}");
    bed.tag("a2", &["keep.me/a2:1"]);
    let real = bed.rm(5, &[&small::name("a2"), "--all-tags", "--config", config]);
    assert_eq!(rule(&real, "keep.me/a2:1"), "protected-name", "{real:#}");
    // A short name that matches two names is ambiguous.
    bed.tag("a", &["reg.local/x:7", "quay.local/x:7"]);
    let refused = bed.run(&["rm", "--via", "direct", "x:7"]).expect_code(2);
    assert!(refused.stderr.contains("quay.local/x:7") && refused.stderr.contains("hint: "), "{refused:?}");
    edit::whole(&bed.store);
}

/// A runtime removes an image with all its names, so all must be named.
#[test]
fn runtime_removes_only_named_images() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    node.store.podman(["tag", &name(3), "reg.local/also-3:1"]);
    let first = name(1);
    for dry in [&["--dry-run"][..], &[]] {
        let words = [&["rm", "reg.local/also-3:1", &first], dry].concat();
        let told = node.run(&words).expect_code(2);
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
