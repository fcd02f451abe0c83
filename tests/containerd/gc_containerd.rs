//! `gc` and `rm` on a real containerd with running pods, its root on a filesystem that runs full. Only the detection
//! times of the images are invented.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support;
use layersweep::model::deletion::outcome::tolerance;
use nix::sys::signal::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::archive::ImageSpec;
use support::containerd_node::{ContainerdNode, full, image, long_ago};
use support::gc_document::{assert_exact, deleted, rule};
use support::loopfs::{Fs, MIB};
use support::program::{list, number, text, texts};
use support::promises;
use support::reserve_file::{self, used_percent};
use support::running::Watched;

const SIZE: u64 = 320 * MIB;

fn gc<'a>(high: &'a str, low: &'a str) -> Vec<&'a str> {
    vec!["gc", "--high", high, "--low", low]
}

/// Images of 4 MiB that are on the disk twice: as a blob, and unpacked. The first one is the oldest.
fn old(count: usize) -> Vec<ImageSpec> {
    (0..count).map(|number| image(&[&format!("old-{number}")], &format!("old-{number}"), 4)).collect()
}

fn age_old(node: &ContainerdNode, count: usize) {
    node.run(&["scan", "-q"]).expect_code(0);
    for number in 0..count {
        node.set_first_detected(&format!("old-{number}"), 30 - i64::try_from(number).unwrap());
    }
}

/// Returns the id of the image of that name in the output of `images`.
fn id(node: &ContainerdNode, name: &str) -> String {
    let document = node.json(0, &["images"]);
    let all = list(&document, "/images").iter();
    let mut found = all.filter(|image| texts(image, "/names").contains(&full(name)));
    text(found.next().expect(name), "/id").to_owned()
}

/// Makes a node with every way of naming and sharing, and every reason to keep an image.
fn everything(fs: Fs) -> Option<ContainerdNode> {
    let mut images = old(4);
    images.push(image(&["two", "two:alias"], "two", 4));
    images.push(image(&["twin-a"], "twin", 4));
    images.push(image(&["twin-b"], "twin", 4));
    images.push(image(&["moved"], "moved-first", 4));
    images.push(image(&["created"], "created", 1));
    images.push(image(&["pinned", "pinned:second"], "pinned", 1));
    images.push(image(&["young"], "young", 1));
    images.push(image(&["native"], "native", 4));
    let node = ContainerdNode::new(fs, SIZE, &images)?;
    // A container that was never started; a pin on the second name only.
    node.container("pod2", "created", false);
    node.rig.shell("C images label reg.local/pinned:second io.cri-containerd.pinned=pinned >/dev/null");
    // Another snapshotter has one image too, and another namespace has an image of its own.
    node.import("native", &[image(&["native"], "native", 4)], "C images import --snapshotter native");
    node.import("foreign", &[image(&["foreign"], "foreign", 2)], "CN default images import");
    // The tag moves to another image; the previous image keeps only its id.
    let first = id(&node, "moved");
    node.import("moved", &[image(&["moved"], "moved-second", 1)], "C images import");
    node.rig.settle(images.len() + 5);
    node.run(&["scan", "-q"]).expect_code(0);
    let oldest = ["app-a", "app-b", "app-d", "created", "pause", "pinned", "foreign"];
    for (number, name) in oldest.into_iter().enumerate() {
        node.set_first_detected(name, 200 - i64::try_from(number).unwrap());
    }
    let order = ["twin-a", "native", &first, "two", "twin-b", "old-0", "old-1", "old-2", "old-3"];
    for (number, name) in order.into_iter().enumerate() {
        node.set_first_detected(name, 100 - i64::try_from(number).unwrap());
    }
    Some(node)
}

/// Makes objects that containerd itself collects with its next removal: a blob, a snapshot's directory, an expired
/// lease with the blob that it held. Returns their bytes on the disk.
fn plant_garbage(node: &ContainerdNode) -> u64 {
    let blob = vec![7; 300_000];
    let digest = hex(&Sha256::digest(&blob));
    let path = node.blobs().join(digest);
    std::fs::write(&path, &blob).unwrap();
    long_ago(&path);
    let directory = node.snapshots().join("9999");
    std::fs::create_dir_all(directory.join("fs")).unwrap();
    std::fs::write(directory.join("fs/x"), vec![8; 400_000]).unwrap();
    for path in [directory.join("fs/x"), directory.join("fs"), directory] {
        long_ago(&path);
    }
    node.rig.shell(
        r#"
        head -c 500000 /dev/zero | tr '\0' z >"$RC/held"; d=$(sha256sum <"$RC/held" | cut -d' ' -f1)
        C content ingest --expected-digest "sha256:$d" held <"$RC/held" >/dev/null
        over=$(pb_msg 3 "$(pb_str 1 containerd.io/gc.expire)$(pb_str 2 2024-01-01T00:00:00Z)")
        grpc containerd.services.leases.v1.Leases/Create "$(pb_str 1 over)$over" k8s.io >/dev/null
        grpc containerd.services.leases.v1.Leases/AddResource \
            "$(pb_str 1 over)$(pb_msg 2 "$(pb_str 1 "sha256:$d")$(pb_str 2 content)")" k8s.io >/dev/null
        "#,
    );
    node.loopfs.sync();
    300_000 + 400_000 + 500_000
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const STAY: [(&str, &str); 7] = [
    ("app-a", "in-use"),
    ("app-b", "in-use"),
    ("app-d", "in-use"),
    ("created", "in-use"),
    ("pinned", "pinned"),
    ("young", "min-age"),
    ("foreign", "out-of-reach"),
];

/// The native snapshotter copies files, by reflink where it can. The exclusive bytes of an image whose layers are
/// there too are more than its deletion frees.
fn tells_why_what_goes_is_not_what_comes_free(node: &ContainerdNode) {
    let explained = node.json(0, &["explain", &full("native")]);
    let copies = &explained["copies"][0];
    assert_eq!(text(copies, "/snapshotter"), "native", "{explained:#}");
    assert!(number(copies, "/bytes") >= number(copies, "/exclusive_bytes"), "{copies}");
    let parts = list(&explained, "/frees_differs").iter().map(|part| part["bytes"].as_i64().unwrap());
    let difference =
        i128::from(number(&explained, "/frees_bytes")) - i128::from(number(&explained, "/bytes"));
    assert_eq!(parts.map(i128::from).sum::<i128>(), difference, "{explained:#}");
    println!("copies {copies}, and {}", explained["frees_differs"]);
}

fn collects(fs: Fs) {
    let Some(node) = everything(fs) else { return };
    tells_why_what_goes_is_not_what_comes_free(&node);
    promises_what_it_plans(&node);
    removes_nothing_by_name_that_is_kept(&node);
    ends_at_the_low_mark(&node);
    keeps_what_must_stay_whatever_is_missing(&node);
    // btrfs counts new files only after a commit.
    if fs != Fs::Btrfs {
        image_of_another_namespace_is_not_here(&node);
    }
}

/// `foreign` is in another namespace than CRI's.
fn promises_what_it_plans(node: &ContainerdNode) {
    let config = node.rig.scratch().join("promises.toml");
    std::fs::write(&config, "[images]\nmin_age = \"0s\"\nhigh_percent = 2\nlow_percent = 1\n").unwrap();
    let config = config.to_string_lossy();
    let dry = promises::assert_kept_by_plan(|words| {
        support::node::document(node.run(&[words, &["--config", &config, "--format", "json"]].concat()))
    });
    assert_eq!(rule(&dry, &full("foreign")), "out-of-reach");
}

/// Returns the number of reserve files in the state directory.
fn reserve_files(node: &ContainerdNode) -> usize {
    let names = std::fs::read_dir(&node.state).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("reserve-")).count()
}

fn removes_nothing_by_name_that_is_kept(node: &ContainerdNode) {
    let before = node.names("k8s.io");
    // containerd would remove each of them on request.
    for name in ["app-a", "app-d", "created", "pinned", "pinned:second", "young", "pause"] {
        let document = node.json(5, &["rm", "--all-tags", &full(name)]);
        assert_eq!(deleted(&document), [""; 0], "{document:#}");
        assert_eq!(node.names("k8s.io"), before, "{name}");
    }
    assert_eq!(reserve_files(node), 0, "a refused command takes no room");
}

fn ends_at_the_low_mark(node: &ContainerdNode) {
    let fs = node.loopfs.fs();
    reserve_file::fill(&node.loopfs, 80.0);
    let garbage = plant_garbage(node);
    let dry = node.json(0, &[&gc("75", "63")[..], &["--dry-run"]].concat());
    let real = node.json(0, &gc("75", "63"));
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(used_percent(&node.loopfs) <= 63.0, "{fs:?}: {}", used_percent(&node.loopfs));
    let before_last = list(&real, "/deleted").iter().rev().nth(1).unwrap();
    assert!(before_last["usage_after_percent"].as_f64().unwrap() > 63.0, "no more than needed: {real:#}");

    // The oldest first; images that share all layers are deleted together.
    let first: Vec<_> = deleted(&real).into_iter().filter(|name| !name.starts_with("sha256:")).collect();
    let expected = ["native", "two:1", "two:alias", "twin-a", "twin-b", "old-0"].map(full);
    assert!(first.starts_with(&expected), "{first:?}");
    if fs != Fs::Btrfs {
        assert_eq!(deleted(&dry), deleted(&real), "{dry:#}\n{real:#}");
        assert_exact(&real);
    }
    // containerd's garbage was deleted with the first image, and is not counted as its gain.
    let gone: Vec<_> =
        list(&real, "/deleted").iter().map(|deletion| number(deletion, "/byproduct_bytes")).collect();
    // The run does not wait for bytes within the tolerance; btrfs frees less for small files than their bytes.
    let least = if fs == Fs::Btrfs { garbage / 2 } else { garbage - tolerance(garbage) };
    assert!(gone[0] >= least, "{gone:?}: {real:#}");
    assert!(gone[1..].iter().all(|bytes| *bytes == 0), "{gone:?}");
    assert_eq!(number(&real, "/byproduct_bytes"), gone[0]);
    assert!(!node.snapshots().join("9999").exists());

    // containerd agrees.
    let left = node.names("k8s.io");
    assert!(deleted(&real).iter().all(|name| !left.contains(name)), "{left:?}");
    let history = node.json(0, &["history"]);
    let run = &list(&history, "/runs")[0];
    assert_eq!(run["run_id"], real["run_id"]);
    fn field(document: &Value, name: &str) -> Vec<Value> {
        list(document, "/deleted").iter().map(|deletion| deletion[name].clone()).collect()
    }
    for name in ["id", "predicted_bytes", "measured_bytes"] {
        assert_eq!(field(run, name), field(&real, name), "{name}");
    }
    assert!(list(&real, "/kept").iter().any(|image| image["rule"] == "not-needed"), "{real:#}");
}

fn keeps_what_must_stay_whatever_is_missing(node: &ContainerdNode) {
    let real = node.json(4, &gc("2", "1"));
    assert_eq!(text(&real, "/outcome"), "not_reached");
    for (name, expected) in STAY {
        assert_eq!(rule(&real, &full(name)), expected, "{name}");
    }
    assert!(["sandbox-image", "pinned", "in-use"].contains(&rule(&real, &full("pause"))), "{real:#}");
    let left: BTreeSet<_> = node.names("k8s.io").into_iter().collect();
    let stay = ["app-a", "app-b", "app-d", "created", "pinned", "pinned:second", "young", "pause", "moved"];
    let stay: BTreeSet<_> = stay.into_iter().map(full).collect();
    assert_eq!(left, stay);
    assert_eq!(node.names("default"), [full("foreign")]);
    // The containers are unchanged.
    let tasks = node.rig.shell("C tasks ls");
    assert_eq!(tasks.matches("RUNNING").count(), 4, "{tasks}");
}

/// CRI does not see the image, so `fits` predicts its pull: its blobs are here, and the layer that no image of CRI's
/// namespace has is unpacked again.
fn image_of_another_namespace_is_not_here(node: &ContainerdNode) {
    let (name, scratch) = (full("foreign"), node.rig.scratch());
    let [manifest, archive] =
        ["foreign.json", "foreign.tar"].map(|file| scratch.join(file).display().to_string());
    let digest = format!("$(CN default images ls | awk '$1 == \"{name}\" {{ print $3 }}')");
    node.rig.shell(&format!("CN default content get {digest} >{manifest}"));
    fn fits(node: &ContainerdNode, image: &str) -> Value {
        support::node::document(node.run(&["fits", image, "--format", "json"]))["images"][0].clone()
    }
    assert_eq!(text(&fits(node, &name), "/state"), "unknown", "only its name is known");
    let coming = fits(node, &manifest);
    assert_eq!((text(&coming, "/state"), number(&coming, "/download_bytes")), ("arrives", 0), "{coming:#}");
    assert_eq!((number(&coming, "/layers"), number(&coming, "/new_layers")), (2, 1), "{coming:#}");

    node.loopfs.sync();
    let before = node.loopfs.used_bytes();
    node.rig
        .shell(&format!("CN default images export {archive} {name}; C images import {archive} >/dev/null"));
    node.loopfs.sync();
    let arrived = node.loopfs.used_bytes() - before;
    let predicted = number(&coming, "/disk_bytes");
    assert!(predicted.abs_diff(arrived) <= 128 << 10, "{predicted}, arrived: {arrived}");
    assert_eq!(text(&fits(node, &name), "/state"), "present");
}

#[test]
fn collects_on_ext4() {
    collects(Fs::Ext4);
}

#[test]
fn collects_on_xfs() {
    collects(Fs::Xfs);
}

/// btrfs allocates and frees pieces of its trees during deletions: the gain of one deletion is not known to the
/// percent, but the usage at the end of the run is.
#[test]
fn collects_on_btrfs() {
    collects(Fs::Btrfs);
}

/// The snapshotter's disk is full, the one with the blobs is not.
#[test]
fn deletions_are_listed_on_the_disk_they_free() {
    const OLD: usize = 5;
    let apart = ContainerdNode::with_snapshots_apart(Fs::Ext4, SIZE, 96 * MIB, &old(OLD));
    let Some(node) = apart else { return };
    age_old(&node, OLD);
    let disk = &node.snapshotter.as_ref().unwrap().1;
    reserve_file::fill(disk, 80.0);
    disk.sync();
    let words = gc("75", "70");
    let dry = node.json(0, &[&words[..], &["--dry-run"]].concat());
    let used = || [node.loopfs.used_bytes(), disk.used_bytes()];
    let before = used();
    let text_run = node.run(&[&words[..], &["--dry-run"]].concat()).expect_code(0).stdout;
    assert!(text_run.contains("no deletion needed, but those for other filesystems free "), "{text_run}");
    let real = node.json(0, &words);
    assert!(!deleted(&real).is_empty() && deleted(&real).len() < OLD, "{real:#}");
    assert_eq!(deleted(&dry), deleted(&real));
    assert_exact(&real);
    assert!(used_percent(disk) <= 70.0, "{real:#}");
    let after = used();
    let freed = [before[0] - after[0], before[1] - after[1]];
    let filesystems = list(&real, "/filesystems");
    assert_eq!(filesystems.len(), 2, "{real:#}");
    for (filesystem, planned) in filesystems.iter().zip(list(&dry, "/filesystems")) {
        let is_main = filesystem["outcome"] == "not_needed";
        let freed = freed[usize::from(!is_main)];
        for bytes in ["/predicted_bytes", "/measured_bytes"] {
            let told = number(filesystem, bytes);
            assert!(told.abs_diff(freed) <= 2 * tolerance(freed), "{freed} {bytes}: {real:#}");
        }
        assert_eq!(number(planned, "/predicted_bytes"), number(filesystem, "/predicted_bytes"));
        assert!(is_main || filesystem["outcome"] == "reached", "{real:#}");
    }
    for deletion in list(&real, "/deleted") {
        let parts = list(deletion, "/freed").iter().map(|part| number(part, "/measured_bytes"));
        assert_eq!(parts.sum::<u64>(), number(deletion, "/measured_bytes"), "{deletion:#}");
    }
}

#[test]
fn collection_beside_other_clients_loses_nothing() {
    const OLD: usize = 14;
    let Some(node) = ContainerdNode::new(Fs::Ext4, SIZE, &old(OLD)) else { return };
    age_old(&node, OLD);
    a_container_that_starts_meanwhile_protects_its_image(&node);
    an_import_meanwhile_stays_whole(&node);
    containerd_is_killed_and_comes_back(&node);
}

fn a_container_that_starts_meanwhile_protects_its_image(node: &ContainerdNode) {
    reserve_file::fill(&node.loopfs, 80.0);
    // Three images are needed to get from 80 to 73 percent.
    let dry = node.json(0, &[&gc("75", "73")[..], &["--dry-run"]].concat());
    assert_eq!(deleted(&dry), ["old-0", "old-1", "old-2"].map(full));
    let mut run = Watched::start(&mut node.command(&gc("75", "73")));
    run.until("deleting");
    run.signal(Signal::SIGSTOP);
    let id = node.container("pod1", "old-2", true);
    run.signal(Signal::SIGCONT);
    let (code, real) = run.end();
    assert_eq!(code, 0, "{real:#}");
    assert_eq!(deleted(&real), ["old-0", "old-1", "old-3"].map(full));
    assert_eq!(rule(&real, &full("old-2")), "in-use");
    let kept = list(&real, "/kept")
        .iter()
        .find(|image| image["rule"] == "in-use" && image["names"][0] == full("old-2"));
    assert!(text(kept.unwrap(), "/detail").starts_with("since the run began"), "{kept:?}");
    assert!(node.rig.shell("C tasks ls").contains(&id));
    assert!(used_percent(&node.loopfs) <= 73.0);
}

fn an_import_meanwhile_stays_whole(node: &ContainerdNode) {
    let news: Vec<_> =
        (0..2).map(|number| image(&[&format!("new-{number}")], &format!("new-{number}"), 2)).collect();
    let archive = node.archive("news", &news);
    reserve_file::fill(&node.loopfs, 80.0);
    let mut run = Watched::start(&mut node.command(&gc("79", "76")));
    run.until("deleting");
    node.rig.shell(&format!("C images import {} >/dev/null", archive.display()));
    let (code, real) = run.end();
    // The import takes space while the run frees some, and the run measures that: the old images hold more than
    // the new ones, so it continues down to its mark.
    assert_eq!((code, text(&real, "/outcome")), (0, "reached"), "{real:#}");
    assert!(!deleted(&real).is_empty() && deleted(&real).len() < 10, "{real:#}");
    assert!(deleted(&real).iter().all(|name| name.contains("/old-")), "{real:#}");
    for number in 0..2 {
        let name = full(&format!("new-{number}"));
        let check = node.rig.shell(&format!("C images check name=={name}"));
        assert!(check.contains("complete") && check.contains("true"), "{check}");
    }
    let id = node.container("pod1", "new-1", true);
    assert!(node.rig.shell("C tasks ls").contains(&id));
}

fn containerd_is_killed_and_comes_back(node: &ContainerdNode) {
    let names = node.names("k8s.io");
    let left: Vec<_> = names.into_iter().filter(|name| name.contains("/old-")).collect();
    assert!(left.len() >= 4, "{left:?}");
    reserve_file::fill(&node.loopfs, 80.0);
    let mut run = Watched::start(&mut node.command(&gc("75", "70")));
    run.until("deleted");
    run.until("deleting");
    node.kill();
    let (code, first) = run.end();
    assert_eq!((code, text(&first, "/outcome")), (1, "failed"), "{first:#}");
    let done = deleted(&first);
    assert!(!done.is_empty() && done.len() <= 2, "{first:#}");
    assert!(!list(&first, "/errors").is_empty());
    assert_recorded(node, &first);
    // Without containerd, no deletion is tried.
    node.json(5, &gc("75", "70"));

    node.restart(5);
    let second = node.json(0, &gc("75", "70"));
    assert_eq!(text(&second, "/outcome"), "reached", "{second:#}");
    assert!(used_percent(&node.loopfs) <= 70.0);
    assert_eq!(rule(&second, &full("old-2")), "in-use", "its container went on");

    // The ages are layersweep's: a restart makes nothing younger.
    node.run(&["scan", "-q"]).expect_code(0);
    node.restart(5);
    let third = node.json(0, &["gc", "--max-age", "10d", "--high", "99", "--low", "98"]);
    assert!(third["trigger"]["age"].as_bool().unwrap(), "{third:#}");
    let left = node.names("k8s.io");
    // An image that containerd was deleting when it died is tried later: it may have been the cause.
    let failed: Vec<_> = list(&first, "/errors").iter().map(|error| &error["id"]).collect();
    fn waits(failed: &[&Value], third: &Value, name: &String) -> bool {
        let mut kept = list(third, "/kept").iter().filter(|image| texts(image, "/names").contains(name));
        kept.any(|image| image["rule"] == "backing-off" && failed.contains(&&image["id"]))
    }
    let old = left.iter().filter(|name| name.contains("/old-") && !waits(&failed, &third, name));
    assert_eq!(old.cloned().collect::<Vec<_>>(), [full("old-2")], "{third:#}");
    assert!(left.contains(&full("new-0")), "it came just now");
}

/// Makes a node without a free byte whose records are on the same filesystem.
fn full_disk(fs: Fs, images: usize) -> Option<ContainerdNode> {
    let node = ContainerdNode::new(fs, SIZE, &old(images))?.state_beside_store();
    age_old(&node, images);
    fill_up(&node);
    Some(node)
}

fn fill_up(node: &ContainerdNode) {
    reserve_file::fill_to_the_last_byte(&node.loopfs);
    let more = node.loopfs.path().join("more");
    assert!(std::fs::write(&more, [1; 4096]).is_err(), "it is full");
    // The file may not exist.
    let _ = std::fs::remove_file(&more);
}

/// Checks that the last run is recorded as in `document`.
fn assert_recorded(node: &ContainerdNode, document: &Value) {
    let history = node.json(0, &["history"]);
    let run = &list(&history, "/runs")[0];
    for field in ["run_id", "outcome"] {
        assert_eq!(run[field], document[field], "{history:#}");
    }
    let done = list(run, "/deleted").iter().filter(|deletion| deletion["error"].is_null());
    let ids: Vec<_> = list(document, "/deleted").iter().map(|deletion| &deletion["id"]).collect();
    assert_eq!(done.map(|deletion| &deletion["id"]).collect::<Vec<_>>(), ids);
}

fn works_on_a_full_disk(fs: Fs) {
    let Some(node) = full_disk(fs, 5) else { return };
    let real = node.json(0, &gc("98", "95"));
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert_eq!(deleted(&real)[..1], [full("old-0")]);
    assert!(used_percent(&node.loopfs) <= 95.0);
    assert_recorded(&node, &real);
}

#[test]
fn works_on_a_full_ext4() {
    works_on_a_full_disk(Fs::Ext4);
}

#[test]
fn works_on_a_full_xfs() {
    works_on_a_full_disk(Fs::Xfs);
}

/// btrfs writes nothing in place, so containerd cannot even remove an image from its database. It needs about
/// 20 KiB: the reserve file that earlier runs made in the state directory.
#[test]
fn full_btrfs_needs_the_reserve_file() {
    let Some(node) = full_disk(Fs::Btrfs, 9) else { return };
    let began = Instant::now();
    // The missing room is no fault of an image: the run ends at the first one.
    let real = node.json(1, &gc("98", "85"));
    assert!(began.elapsed() < Duration::from_secs(45), "ends soon: {:?}", began.elapsed());
    assert_eq!(text(&real, "/outcome"), "failed", "{real:#}");
    let errors = list(&real, "/errors");
    assert_eq!(errors.len(), 1, "{real:#}");
    assert!(text(&errors[0], "/message").contains("no space left on device"), "{real:#}");
    let refused = list(&real, "/kept").iter().filter(|image| image["rule"] == "removal-failed").count();
    assert_eq!(refused, 1, "{real:#}");
    assert_recorded(&node, &real);

    // An operator frees a little space (the records take some of it): no image has to wait after its failure.
    let file = std::fs::File::options().write(true).open(node.loopfs.path().join("reserve")).unwrap();
    file.set_len(file.metadata().unwrap().len() - MIB).unwrap();
    node.loopfs.sync();
    let real = node.json(0, &gc("98", "85"));
    assert_eq!(deleted(&real)[..1], [full("old-0")]);
    assert_recorded(&node, &real);

    // With enough room, the run makes a reserve file.
    assert_eq!(reserve_files(&node), 1);
    fill_up(&node);
    let left = node.names("k8s.io");
    let real = node.json(0, &gc("98", "97"));
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert!(node.names("k8s.io").len() < left.len());
    assert_eq!(reserve_files(&node), 0, "given up, and there is not yet room for it again");
    assert_recorded(&node, &real);
}

/// Docker keeps a stopped container as a lease that holds only its writable snapshot on `<id>-init`.
#[test]
fn image_of_stopped_docker_container_is_kept() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, SIZE, &old(2)) else { return };
    node.run(&["scan", "-q"]).expect_code(0);
    let images = node.json(0, &["images"]);
    let old =
        list(&images, "/images").iter().find(|image| texts(image, "/names") == [full("old-0")]).unwrap();
    let (id, top) = ("d".repeat(64), text(old, "/layers/0"));
    node.rig.shell(&format!(
        "grpc containerd.services.leases.v1.Leases/Create \"$(pb_str 1 {id})\" k8s.io >/dev/null
         C snapshots prepare init {top} >/dev/null; C snapshots commit {id}-init init
         C snapshots prepare {id} {id}-init >/dev/null
         grpc containerd.services.leases.v1.Leases/AddResource \\
           \"$(pb_str 1 {id})$(pb_msg 2 \"$(pb_str 1 {id})$(pb_str 2 snapshots/overlayfs)\")\" k8s.io >/dev/null"
    ));
    let flags = ["gc", "--high", "1", "--low", "0", "--min-age", "0s"];
    for words in [&[&flags[..], &["--dry-run"]].concat(), &[&flags[..]].concat()] {
        let document = node.json(4, words);
        assert_eq!(rule(&document, &full("old-0")), "in-use", "{document:#}");
        assert_eq!(
            deleted(&document).into_iter().filter(|name| name.contains("old")).collect::<Vec<_>>(),
            [full("old-1")]
        );
    }
    let document = node.json(5, &["rm", &full("old-0")]);
    assert_eq!(rule(&document, &full("old-0")), "in-use", "{document:#}");
    assert!(node.names("k8s.io").contains(&full("old-0")));
    assert!(node.rig.shell("C snapshots ls").contains(&id), "the container's data are there");
}
