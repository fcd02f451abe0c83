//! Images that `gc` never deletes: those protected by containers of every owner, keep-lists, the configuration and
//! age, at the beginning of a run and in the middle of it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::Removal;
use cri_server::gc_node::{GcNode, IN_USE, deleted, events, kept, name, rule};
use serde_json::Value;
use support::loopfs::Fs;
use support::node;
use support::program::{list, text};
use support::store::Store;

/// Deletes every unprotected image; the low threshold is still not reached.
const ALL: [&str; 5] = ["gc", "--high", "1", "--low", "0"];

/// A running container, made from an image with a program. It ends when dropped: while it runs, its store cannot be
/// unmounted.
struct Runner(Arc<Store>);

impl Runner {
    /// Returns `None` if no container can run here.
    fn start(node: &GcNode) -> Option<Self> {
        let made = node.store.buildah(["from", "scratch"]);
        let busybox = which("busybox");
        node.store.buildah(["copy", made.trim(), &busybox, "/busybox"]);
        node.store.buildah(["commit", "--quiet", made.trim(), "reg.local/busy:1"]);
        node.store.buildah(["rm", made.trim()]);
        // Limits that any user may set, and the one runtime that accepts every arrangement of cgroups.
        let mut podman = node.store.podman_command();
        podman.args(["run", "-d", "--name", "runner", "--network", "none", "--log-driver", "none"]);
        podman.args(["--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        podman.args(["reg.local/busy:1", "/busybox", "sleep", "600"]);
        let runner = Self(Arc::clone(&node.store));
        let run = support::program::run(&mut podman);
        let runs = run.code == 0 || support::skip(&format!("podman runs no container here: {run:?}"));
        runs.then_some(runner)
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let mut podman = self.0.podman_command();
        support::program::run(podman.args(["rm", "--force", "--time", "0", "runner"]));
    }
}

fn which(program: &str) -> String {
    let path = std::env::var_os("PATH").unwrap();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file());
    found.unwrap().to_string_lossy().into_owned()
}

#[track_caller]
fn assert_kept(document: &Value, image: &str, expected_rule: &str, detail: &[&str]) {
    let kept = kept(document, image);
    assert_eq!(kept["rule"], expected_rule, "{kept:#}");
    for part in detail {
        assert!(text(kept, "/detail").contains(part), "{part:?}: {kept:#}");
    }
}

#[test]
fn used_or_named_images_are_kept() {
    let Some(node) = GcNode::new(Fs::Ext4, 13) else { return };
    node.age();
    let running = Runner::start(&node);
    node.store.podman(["create", "--name", "waiting", "--network", "none", &name(0), "/x"]);
    node.store.buildah(["from", "--name", "building", "--pull-never", &name(1)]);
    let unowned = node.store.pin(&name(2));
    node.run(&["pin", "add", &name(3), "--note", "for a rollback"]).expect_code(0);
    node.server.behave(|behaviour| behaviour.pinned = vec![name(6)]);
    let config = node.config(
        "[protect]\nnames = [\"reg.local/old-4:*\"]\nkeep_newest = 1\n[images]\nhigh_percent = 1\nlow_percent = 0\n",
    );
    // Three images of one repository: the last one is its newest.
    node.store.podman(["tag", &name(7), "reg.local/app:7"]);
    node.store.podman(["tag", &name(8), "reg.local/app:8"]);
    for number in (0..13).filter(|number| ![4, 9].contains(number)) {
        // Each other repository has only one image, which is its newest: it needs a second.
        node.store.podman(["tag", &name(12), &format!("reg.local/old-{number}:newer")]);
    }
    node.store.podman(["untag", &name(9)]);
    let words = ["gc", "--config", &config];
    let dry = node.json(4, &[&words[..], &["--dry-run"]].concat());
    let real = node.json(4, &words);
    for document in [&dry, &real] {
        if running.is_some() {
            assert_kept(document, "reg.local/busy:1", "in-use", &["podman container runner (running)"]);
        }
        assert_kept(document, &name(0), "in-use", &["podman container waiting (created)"]);
        assert_kept(document, &name(1), "in-use", &["buildah container building"]);
        assert_kept(document, &name(2), "in-use", &["used by"]);
        assert_kept(document, &name(3), "pinned", &[&name(3)]);
        assert_kept(document, &name(4), "protected-name", &["reg.local/old-4:*"]);
        assert_kept(document, &name(IN_USE), "in-use", &["cri-o container"]);
        assert_kept(document, &name(6), "pinned", &["the runtime's list"]);
        assert_kept(document, &name(12), "newest-of-repository", &["newest 1"]);
        assert_kept(document, &name(8), "newest-of-repository", &["reg.local/app"]);
        assert_eq!(document["outcome"], "not_reached");
        let mut gone: Vec<_> = list(document, "/deleted").iter().map(|row| text(row, "/id")).collect();
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(gone.len(), 4, "{document:#}");
    }
    let there = node.names();
    for number in [0, 1, 2, 3, 4, IN_USE, 6, 8, 12] {
        assert!(there.contains(&name(number)), "{number}: {there:?}");
    }
    assert!(!there.contains(&name(7)) && !there.contains(&name(10)) && !there.contains(&name(11)));
    // A container without an owner protects its image as long as it exists.
    node.store.unpin(&unowned);
    node.store.buildah(["rm", "building"]);
    drop(running);
    node.store.podman(["rm", "--all"]);
    node.run(&["pin", "remove", &name(3)]).expect_code(0);
    let later = node.json(4, &[&ALL[..], &["--min-age", "0s"]].concat());
    assert_eq!(rule(&later, &name(IN_USE)), "in-use");
    assert_eq!(rule(&later, &name(6)), "pinned");
    // It was built here, in a store with containers of CRI-O.
    assert_eq!(rule(&later, "reg.local/busy:1"), "not-repullable");
    assert_eq!(list(&later, "/kept").len(), 3, "{later:#}");
}

#[test]
fn protection_added_during_run_keeps_image() {
    let Some(node) = GcNode::new(Fs::Ext4, 10) else { return };
    node.age();
    node.server.behave(|behaviour| {
        behaviour.removals = vec![(name(0), Removal::Slow(Duration::from_secs(4)))];
    });
    let running = node.start(&ALL);
    node.wait_for_a_removal();
    // The plan contains them all; the first is being deleted.
    node.run(&["pin", "add", &name(1)]).expect_code(0);
    node.store.podman(["create", "--name", "quick", "--network", "none", &name(2), "/x"]);
    node.server.behave(|behaviour| behaviour.pinned = vec![name(3)]);
    node.store.buildah(["from", "--name", "builder", "--pull-never", &name(4)]);
    let real = node::document(running.end().expect_no_crash().expect_code(4));
    assert_eq!(deleted(&real), [name(0), name(6), name(7), name(8), name(9)]);
    for (number, expected, detail) in [
        (1, "pinned", "pinned: reg.local/old-1:1"),
        (2, "in-use", "podman container quick (created)"),
        (3, "pinned", "the runtime's list"),
        (4, "in-use", "buildah container builder"),
    ] {
        assert_kept(&real, &name(number), expected, &["since the run began", detail]);
    }
    assert_eq!(node.names(), [1, 2, 3, 4, IN_USE].map(name));
    node.store.remove_containers();
}

#[test]
fn new_image_is_kept_under_every_policy() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    // All of its layers belong to an old image.
    let young = "reg.local/young:1";
    node.load(&[young], "old-1");
    let strict = [&ALL[..], &["--max-age", "1s"]].concat();
    let real = node.json(4, &strict);
    assert_eq!(rule(&real, young), "min-age");
    assert_eq!(deleted(&real), (0..5).map(name).collect::<Vec<_>>());
    assert_eq!(events(&real), ["FreeDiskSpaceFailed"]);
    // A node without records: the disk shows the age of the image, not that of its layers.
    std::thread::sleep(Duration::from_secs(6));
    let newest = "reg.local/newest:1";
    node.load(&[newest], "old-1");
    #[allow(clippy::disallowed_methods)] // a directory of this test
    std::fs::remove_dir_all(&node.state).unwrap();
    let real = node.json(4, &[&ALL[..], &["--max-age", "5s", "--min-age", "5s"]].concat());
    assert_eq!(rule(&real, newest), "min-age", "{real:#}");
    assert_eq!(deleted(&real), [young]);
    // Deletion by name is refused too, until the image is old enough.
    let refused = node.json(5, &["rm", newest]);
    assert_eq!(rule(&refused, newest), "min-age");
    node.json(0, &["rm", newest, "--min-age", "0s"]);
    assert_eq!(node.names(), [name(IN_USE)]);
}

/// A run must not guess the images of static pods; commands that only read report them as unknown.
#[test]
fn unreadable_static_pods_keep_everything() {
    let Some(node) = GcNode::new(Fs::Ext4, 6) else { return };
    node.age();
    let manifests = node.store.scratch().join("manifests");
    std::os::unix::fs::symlink(&manifests, &manifests).unwrap();
    let config = node.config(&format!("[protect]\nstatic_pods = {manifests:?}\n"));
    let run = node.run(&["gc", "--high", "1", "--low", "0", "--config", &config]).expect_code(5);
    assert!(run.stderr.contains("static pods"), "{run:?}");
    assert_eq!(node.names().len(), 6);
    let explained = node.json(0, &["explain", &name(0), "--config", &config]);
    assert_eq!(explained["decision"]["would_delete"], false, "{explained:#}");
    assert!(explained["decision"]["detail"].as_str().unwrap().contains("static pods"), "{explained:#}");
}

/// Checks that a document keeps these unnamed members of a manifest list by that rule.
#[track_caller]
fn assert_members_kept(document: &Value, members: &[String], expected_rule: &str, list_name: &str) {
    for id in members {
        let kept = list(document, "/kept").iter().find(|row| text(row, "/id") == id);
        let kept = kept.unwrap_or_else(|| panic!("{id} is not kept: {document:#}"));
        assert_eq!(kept["rule"], expected_rule, "{kept:#}");
        let words = format!("a member of the manifest list {list_name}");
        assert!(text(kept, "/detail").contains(&words), "{kept:#}");
    }
}

/// Without its members, `podman run` and `podman manifest push` of a list fail.
#[test]
fn kept_manifest_list_keeps_its_members() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age();
    let config = node.config("[protect]\nnot_repullable = \"never\"\n");
    let all = [&ALL[..], &["--config", &config]].concat();
    let multi = "reg.local/multi:1";
    let members = node.store.manifest_list(multi, &[&name(0), &name(1)]);
    let others = node.store.manifest_list("reg.local/other:1", &[&name(2), &name(3)]);
    let young = node.json(4, &[&all[..], &["--dry-run", "--min-age", "1h"]].concat());
    assert_members_kept(&young, &members, "min-age", multi);
    node.run(&["scan", "-q"]).expect_code(0);
    for list in [multi, "reg.local/other:1"] {
        node.set_first_detected(list, 20);
    }

    let mount = format!("type=image,src={multi},dst=/data");
    let create = ["create", "--name", "reader", "--network", "none", "--mount", &mount];
    node.store.podman(create.into_iter().chain([name(4).as_str(), "/x"]));
    assert_members_kept(
        &node.json(5, &["rm", &members[0], "--config", &config]),
        &members[..1],
        "in-use",
        multi,
    );
    node.store.podman(["rm", "reader"]);

    node.run(&["pin", "add", multi]).expect_code(0);
    let dry = node.json(4, &[&all[..], &["--dry-run"]].concat());
    let real = node.json(4, &all);
    for document in [&dry, &real] {
        assert_members_kept(document, &members, "pinned", multi);
        let gone: Vec<_> = list(document, "/deleted").iter().map(|row| text(row, "/id")).collect();
        assert!(others.iter().all(|id| gone.contains(&id.as_str())), "{document:#}");
    }
    assert_members_kept(
        &node.json(5, &["rm", &members[1], "--config", &config]),
        &members[1..],
        "pinned",
        multi,
    );
    let explained = node.run(&["explain", &members[0]]).expect_code(0).stdout;
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains(&format!("a member of the manifest list {multi}")), "{explained}");
    let pushed = format!("dir:{}", node.store.scratch().join("pushed").display());
    node.store.podman(["manifest", "push", "--all", multi, &pushed]);

    // Once nothing keeps the list, one run deletes list and members.
    node.run(&["pin", "remove", multi]).expect_code(0);
    let real = node.json(4, &all);
    let gone: Vec<_> = list(&real, "/deleted").iter().map(|row| text(row, "/id")).collect();
    assert!(members.iter().all(|id| gone.contains(&id.as_str())), "{real:#}");
}
