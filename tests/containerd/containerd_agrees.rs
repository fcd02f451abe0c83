//! Compares layersweep's reading of a real containerd's files with containerd's own answers.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support;
use jiff::SignedDuration;
use layersweep::model::refs::Root;
use layersweep::model::{Consistency, ContainerState, ImageIx, Labels, NodeKind, Verdict};
use layersweep::stores::containerd::places::ContainerdPlaces;
use support::containerd::{self, Reading, Rig, read};
use support::{program, promises};

const NOW: SignedDuration = SignedDuration::ZERO;

/// The values that must not differ between two readings of one root.
fn summary(reading: &Reading) -> Vec<String> {
    let inventory = &reading.inventory;
    let mut lines: Vec<String> = inventory
        .images
        .iter()
        .enumerate()
        .map(|(number, image)| {
            let sizes = reading.refs.sizes(inventory, Root::Image(ImageIx::from(number)));
            format!("{} {:?} {:?} {:?} {sizes:?}", image.id, image.names, image.layers, image.pinned_by)
        })
        .collect();
    lines.extend(
        inventory
            .containers
            .iter()
            .map(|container| format!("{} {:?} {:?}", container.id, container.image_id, container.name)),
    );
    lines.extend(inventory.leaks.iter().map(|leak| format!("{} {}", leak.class, leak.id)));
    lines.sort();
    lines
}

/// Checks that the nodes add up to `du`. containerd's databases may grow between the two, so they are
/// compared until they agree.
fn sum_is_du(places: &ContainerdPlaces) {
    let mut differences = Vec::new();
    for _ in 0..5 {
        let reading = read(places, NOW);
        let all = &reading.inventory.nodes;
        for (number, node) in all.iter().enumerate() {
            let held = reading.refs.is_held(number.into()) || node.size.inodes == 0;
            assert!(held, "nothing holds {} {:?}", node.id, node.path);
        }
        let bytes =
            (all.iter().map(|node| node.size.bytes).sum::<u64>(), support::du::bytes(&[&places.root]));
        let inodes =
            (all.iter().map(|node| node.size.inodes).sum::<u64>(), support::du::inodes(&[&places.root]));
        if bytes.0 == bytes.1 && inodes.0 == inodes.1 {
            return;
        }
        differences.push((bytes, inodes));
    }
    panic!("we and du: {differences:?}");
}

/// Checks that the images are those that CRI lists.
fn images_are_cris(reading: &Reading, rig: &Rig) {
    let mut listed = rig.images();
    listed.sort();
    let mut ours: Vec<_> = reading
        .inventory
        .images
        .iter()
        .filter(|image| !image.id.contains('/'))
        .map(|image| containerd::CriImage {
            id: format!("sha256:{}", image.id),
            tags: image.names.clone(),
            size: image.listed_bytes.expect("a size"),
            ..containerd::CriImage::default()
        })
        .collect();
    ours.sort();
    assert_eq!(
        ours,
        listed
            .iter()
            .map(|image| containerd::CriImage { digests: Vec::new(), pinned: false, ..image.clone() })
            .collect::<Vec<_>>()
    );
}

/// Checks that names and targets are those of `ctr images ls`.
fn digests_are_ctrs(reading: &Reading, rig: &Rig) {
    let text = rig.shell("C images ls | awk 'NR>1{print $1, $3}'");
    for line in text.lines().filter(|line| !line.starts_with("sha256:")) {
        let (name, digest) = line.split_once(' ').unwrap();
        assert!(reading.image(name).digests.contains(&digest.to_owned()), "{line}");
    }
}

/// Checks that every image's chain is the one of `ctr snapshots ls`.
fn chains_are_ctrs(reading: &Reading, rig: &Rig) {
    let text = rig.shell("C snapshots ls | awk 'NR>1{print $1, $2, $3}'");
    let mut parents = BTreeMap::new();
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [key, parent, "Committed" | "Active" | "View"] => parents.insert(key, Some(parent)),
            [key, "Committed" | "Active" | "View", ..] => parents.insert(key, None),
            _ => panic!("{line}"),
        };
    }
    let snapshots: BTreeSet<_> = reading
        .inventory
        .nodes
        .iter()
        .filter(|node| node.kind == NodeKind::Snapshot && !node.id.contains('/'))
        .map(|node| node.id.as_str())
        .collect();
    assert_eq!(snapshots, parents.keys().copied().collect());
    let ids: BTreeSet<_> = reading.inventory.nodes.iter().map(|node| &node.id).collect();
    for node in &reading.inventory.nodes {
        let parent = node.layer.as_ref().and_then(|layer| layer.parent.as_ref());
        assert!(parent.is_none_or(|parent| ids.contains(parent)), "{} has parent {parent:?}", node.id);
    }
    let mut layers = 0;
    for image in &reading.inventory.images {
        let pairs = image.layers.iter().zip(image.layers.iter().skip(1).map(Some).chain([None]));
        for (layer, parent) in pairs {
            assert_eq!(parents[layer.as_str()], parent.map(|parent| parent.as_str()), "{:?}", image.names);
            layers += 1;
        }
    }
    assert_eq!(layers, 1 + 1 + 2 + 3 + 2 + 3 + 2 + 2 + 2, "base, pause, app-a … zdup");
}

#[test]
fn scan_agrees_with_containerd_and_cri() {
    if !containerd::require_rig() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let rig = Rig::with_images(&root);

    let reading = read(&rig.places(), NOW);
    assert_eq!(reading.snapshot.consistency, Consistency::Consistent);
    assert_eq!(reading.inventory.findings, []);
    assert!(reading.inventory.leaks.is_empty(), "{:?}", reading.inventory.leaks);
    images_are_cris(&reading, &rig);
    digests_are_ctrs(&reading, &rig);
    chains_are_ctrs(&reading, &rig);
    sum_is_du(&rig.places());

    rig.script("30-pods.sh", &[]);
    fn exited(reading: &Reading) -> bool {
        reading.inventory.containers.iter().any(|container| container.state == ContainerState::Exited)
    }
    let mut reading = read(&rig.places(), NOW);
    for _ in 0..50 {
        if exited(&reading) {
            break;
        }
        // CRI records the end of a container when it learns of it.
        std::thread::sleep(std::time::Duration::from_millis(200));
        reading = read(&rig.places(), NOW);
    }
    images_are_cris(&reading, &rig);
    sum_is_du(&rig.places());
    used_by(&reading, &rig);
    pinned(&reading, &rig);
    labelled(&rig);

    // Stopped and copied elsewhere: the same inventory.
    rig.stop();
    let stopped = read(&rig.places(), NOW);
    let copy = directory.path().join("copy");
    assert!(Command::new("cp").args(["-a"]).arg(&root).arg(&copy).status().unwrap().success());
    let mut places = rig.places();
    places.root.clone_from(&copy);
    places.foreign = true;
    let copied = read(&places, NOW);
    assert_eq!(copied.inventory.findings, []);
    let ids = |reading: &Reading| {
        let lines =
            summary(reading).into_iter().map(|line| line.split(" RootSizes").next().unwrap().to_owned());
        lines.collect::<Vec<_>>()
    };
    assert_eq!(ids(&copied), ids(&stopped));
    sum_is_du(&places);
}

fn used_by(reading: &Reading, rig: &Rig) {
    fn by_id<'a>(reading: &'a Reading, rig: &Rig, key: &str) -> &'a layersweep::model::Container {
        let id = rig.noted("pods", key);
        let mut containers = reading.inventory.containers.iter();
        containers.find(|container| container.id == id).unwrap_or_else(|| panic!("no container {key}"))
    }
    let table = [
        ("pod1", "pod1", "reg.local/pause:1", ContainerState::Running, true),
        ("ctr1", "a", "reg.local/app-a:1", ContainerState::Running, false),
        ("pod2", "pod2", "reg.local/pause:1", ContainerState::Running, true),
        ("ctr2", "b", "reg.local/app-b:1", ContainerState::Running, false),
        ("ctr3", "d", "reg.local/app-d:1", ContainerState::Exited, false),
    ];
    assert_eq!(reading.inventory.containers.len(), table.len());
    for (key, name, image, state, sandbox) in table {
        let container = by_id(reading, rig, key);
        assert_eq!(
            (container.name.as_str(), container.state, container.sandbox),
            (name, state, sandbox),
            "{key}"
        );
        let used = &reading.inventory.images[container.image.expect("its image").get()];
        assert_eq!(used.names, [image]);
        let held: Vec<_> = container.holds.iter().map(|node| &reading.inventory.nodes[node.get()]).collect();
        let writable = held.iter().filter(|node| node.layer.as_ref().is_some_and(|layer| layer.read_write));
        assert_eq!(writable.map(|node| node.id.as_str()).collect::<Vec<_>>(), [container.id.as_str()]);
        assert!(held.iter().any(|node| node.kind == NodeKind::ContainerMetadata), "CRI's own directory");
    }
}

/// Checks each way to pin an image; the CRI of this containerd knows none of them.
fn pinned(reading: &Reading, rig: &Rig) {
    fn names(reading: &Reading) -> BTreeSet<String> {
        let images = reading.inventory.images.iter().filter(|image| !image.pinned_by.is_empty());
        images.flat_map(|image| image.names.clone()).collect()
    }
    assert_eq!(names(reading), BTreeSet::from(["reg.local/pause:1".to_owned()]));
    assert_eq!(reading.image("reg.local/pause:1").pinned_by.len(), 2, "configured, and used by a sandbox");
    rig.shell("C images label reg.local/app-c:alias io.cri-containerd.pinned=pinned");
    let reading = read(&rig.places(), NOW);
    assert_eq!(
        names(&reading),
        BTreeSet::from(
            ["reg.local/app-c:1", "reg.local/app-c:alias", "reg.local/pause:1"].map(str::to_owned)
        ),
        "the label on any name pins the image"
    );
}

/// Checks the labels of an image: those of its configuration, and those on each of its names.
fn labelled(rig: &Rig) {
    rig.shell("C images label reg.local/app-c:alias team=a; C images label reg.local/app-c:1 team=b");
    let reading = read(&rig.places(), NOW);
    fn labels(reading: &Reading, name: &str) -> Vec<String> {
        match &reading.image(name).labels {
            Labels::Known(labels) => {
                labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let managed = "io.cri-containerd.image=managed";
    assert_eq!(labels(&reading, "reg.local/zdup:1"), [managed, "z=1"]);
    assert_eq!(labels(&reading, "reg.local/app-a:1"), [managed]);
    assert_eq!(
        labels(&reading, "reg.local/app-c:1"),
        [managed, "io.cri-containerd.pinned=pinned", "team=a", "team=b"]
    );
}

#[test]
fn every_planted_leak_is_found() {
    if !containerd::require_rig() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let rig = Rig::with_images(&root);
    rig.script("30-pods.sh", &[]);
    rig.script("40-leaks.sh", &[]);
    rig.shell("echo stray >$BLOBS/not-a-digest");

    let printed = |words: &[&str]| {
        let mut command = program::command();
        let run = program::run(command.args(words).arg("--containerd-root").arg(&root)).expect_no_crash();
        run.stdout + &run.stderr
    };
    promises::assert_nothing_destroys(printed, &[root.to_str().unwrap().to_owned(), "app-d:1".into()]);
    // Shortly after that, all of it may still be work in progress.
    let young = read(&rig.places(), NOW);
    assert!(young.leaks("garbage").iter().all(|leak| leak.verdict == Verdict::Keep));
    let reading = read(&rig.places(), SignedDuration::from_mins(30));
    sum_is_du(&rig.places());
    let classes: BTreeSet<_> = reading.inventory.leaks.iter().map(|leak| leak.class.as_str()).collect();
    for (class, what) in rig.planted() {
        // A restart clears CRI's directories on 1.6.
        let cleared = ["cri-container-dir", "task-dir"].contains(&class.as_str());
        assert!(classes.contains(containerd::finding(&class)) || cleared, "{class}: {what}\n{classes:?}");
    }
    let alive: Vec<_> = reading.inventory.leaks.iter().filter(|leak| leak.verdict == Verdict::Keep).collect();
    assert!(alive.is_empty(), "{alive:?}");
    let stray = reading.leaks("stray-blob-name");
    assert_eq!(stray.len(), 1);
    assert_eq!(stray[0].id, "not-a-digest");
    let namespaces: Vec<_> = reading
        .leaks("foreign-namespace")
        .iter()
        .filter(|leak| leak.evidence.contains("neither CRI"))
        .map(|leak| leak.id.clone())
        .collect();
    assert_eq!(namespaces, ["default", "moby"]);
    fn bytes(reading: &Reading, class: &str, evidence: &str) -> u64 {
        let leaks = reading.leaks(class).into_iter().filter(|leak| leak.evidence.contains(evidence));
        leaks.flat_map(|leak| reading.nodes(leak)).map(|node| node.size.apparent_bytes).sum()
    }
    assert_eq!(bytes(&reading, "lease", "without expiry"), 2_000_000);
    assert_eq!(bytes(&reading, "lease", "expires only at"), 1_000_000);
    assert_eq!(bytes(&reading, "gc-root", "content ls"), 1_100_000);
    assert_eq!(bytes(&reading, "garbage", "this blob"), 1_500_000);
    assert_eq!(bytes(&reading, "garbage", "does not have this snapshot"), 1_200_000 + 300_000);
    assert_eq!(bytes(&reading, "never-collected", "file `ref`"), 800_000);
    assert_eq!(bytes(&reading, "never-collected", "a mount point"), 400_000);
    assert_eq!(bytes(&reading, "never-collected", "a snapshotter's directory"), 600_000);
}
