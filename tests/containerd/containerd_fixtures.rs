//! Roots that three versions of containerd left, read without containerd: each planted leak is found, and nothing
//! else is called a leak.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;

use crate::support;
use jiff::SignedDuration;
use layersweep::model::refs::Root;
use layersweep::model::{Consistency, Labels, Verdict};
use layersweep::stores::containerd::places::{ContainerdPlaces, Proxy};
use support::containerd::{ORPHAN, Reading, finding, fixture, read, rebuild};

const VERSIONS: [&str; 3] = ["1.6.20", "1.7.34", "2.3.4"];

/// soci, stargz and nydus keep their snapshots in separate directories, with other data beside them.
#[test]
fn snapshotter_outside_root_is_measured() {
    for below in ["", "snapshotter"] {
        let directory = tempfile::tempdir().unwrap();
        let root = rebuild("2.3.4", directory.path());
        let before = read(&ContainerdPlaces::at(&root, true), SignedDuration::ZERO);
        let proxy = directory.path().join("proxy");
        let data = proxy.join(below);
        fs::create_dir_all(data.parent().unwrap()).unwrap();
        fs::rename(root.join("io.containerd.snapshotter.v1.native"), &data).unwrap();
        fs::create_dir_all(proxy.join("content")).unwrap();
        fs::write(proxy.join("content/chunk"), vec![1; 300_000]).unwrap();
        let mut places = ContainerdPlaces::at(&root, true);
        let name = "native".to_owned();
        places.proxies.push(Proxy { name, directory: proxy.clone(), data: Some(data.clone()) });
        let reading = read(&places, SignedDuration::ZERO);

        fn snapshots(reading: &Reading) -> BTreeMap<String, Vec<String>> {
            let images = reading.inventory.images.iter().enumerate();
            let copies = images.map(|(number, image)| {
                let reached = reading.refs.reach(Root::Image(number.into())).iter();
                let mut ids: Vec<_> =
                    reached.map(|node| reading.inventory.nodes[node.get()].id.clone()).collect();
                ids.sort();
                (image.id.to_string(), ids)
            });
            copies.collect()
        }
        assert_eq!(snapshots(&reading), snapshots(&before), "{below:?}");
        let mut nodes = reading.inventory.nodes.iter();
        let content = nodes.find(|node| node.id == "snapshotter native: content").expect(below);
        assert_eq!(content.size.bytes, support::du::bytes(&[&proxy.join("content")]));
        let here =
            reading.inventory.nodes.iter().filter(|node| node.path.starts_with(data.join("snapshots")));
        let found = here.filter(|node| node.layer.as_ref().is_some_and(|layer| layer.snapshotter.is_some()));
        assert!(found.count() >= 5, "{below:?}");
        let all: u64 = reading.inventory.nodes.iter().map(|node| node.size.bytes).sum();
        assert_eq!(all, support::du::bytes(&[&root, &proxy]), "{below:?}");
    }
}

/// A snapshotter that is configured to be inside the root is counted once.
#[test]
fn snapshotter_inside_root_adds_up_to_du() {
    for place in ["snap", "deep/down/snap"] {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path();
        let root = rebuild("2.3.4", base);
        let moved = root.join(place);
        fs::create_dir_all(moved.parent().unwrap()).unwrap();
        fs::rename(root.join("io.containerd.snapshotter.v1.overlayfs"), &moved).unwrap();
        fs::write(moved.join("heavy"), vec![1; 300_000]).unwrap();
        fs::write(root.join("beside"), vec![1; 50_000]).unwrap();
        fs::create_dir_all(base.join("etc/containerd")).unwrap();
        let config = format!(
            "version = 2\nroot = \"/root\"\n[plugins.\"io.containerd.snapshotter.v1.overlayfs\"]\n\
             root_path = \"/root/{place}\"\n"
        );
        fs::write(base.join("etc/containerd/config.toml"), config).unwrap();
        let args = ["scan", "--format", "json", "--sysroot", base.to_str().unwrap()];
        let scan = support::program::layersweep(args).expect_no_crash().json();
        let total = support::program::number(&scan, "/stores/0/bytes/total");
        assert_eq!(total, support::tree::du(&root), "{place}");
        let elsewhere = support::program::number(&scan, "/stores/0/bytes/other");
        assert!(elsewhere < 300_000, "{place}: counted as something else: {elsewhere}");
    }
}

/// Planned for containerd: `fs` is a symlink to a cache of contents. The bytes of such a snapshot are unknown, not 0.
#[test]
fn snapshot_with_symlink_for_content_is_unknown_layout() {
    let directory = tempfile::tempdir().unwrap();
    let root = rebuild("2.3.4", directory.path());
    let scan = |code| {
        let args = ["scan", "--format", "json", "--containerd-root", root.to_str().unwrap()];
        support::program::layersweep(args).expect_code(code).json()
    };
    let before = scan(0);
    let layer = support::program::list(&before, "/layers")
        .iter()
        .find(|layer| layer["kind"] == "snapshot" && layer["read_write"] == false)
        .unwrap();
    let fs_path = Path::new(layer["path"].as_str().unwrap()).join("fs");
    let _ = fs::rename(&fs_path, directory.path().join("fs"));
    std::os::unix::fs::symlink("../../../cache/sha256.0a.0.0.1", &fs_path).unwrap();
    let scan = scan(3);
    let warnings = support::program::list(&scan, "/warnings").iter();
    let unknown: Vec<_> = warnings
        .filter(|warning| {
            warning["message"].as_str().unwrap().contains("a layout that layersweep does not know")
        })
        .collect();
    assert_eq!(unknown.len(), 1, "{:#}", scan["warnings"]);
    assert_eq!(unknown[0]["incomplete"], true);
}

fn reading(version: &str) -> (tempfile::TempDir, Reading) {
    let directory = tempfile::tempdir().unwrap();
    let root = rebuild(version, directory.path());
    let reading = read(&ContainerdPlaces::at(&root, true), SignedDuration::from_mins(30));
    (directory, reading)
}

#[test]
fn leaks_of_three_versions() {
    for version in VERSIONS {
        let (directory, reading) = reading(version);
        let planted = fs::read_to_string(fixture(version).join("leaks")).unwrap();
        let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
        let root = directory.path().join("root");
        for (class, what) in planted.lines().map(|line| line.split_once('\t').unwrap()) {
            // The last start of some versions removed these.
            let content = root.join("io.containerd.content.v1.content");
            let cleared = match class {
                "cri-container-dir" => {
                    Some(root.join(format!("io.containerd.grpc.v1.cri/containers/{:064}", 1)))
                }
                "task-dir" => Some(root.join(format!("io.containerd.runtime.v2.task/k8s.io/{:064}", 1))),
                "orphan-blob" => Some(content.join(what.split(' ').next().unwrap())),
                "orphan-ingest" => Some(content.join(format!("ingest/{ORPHAN}"))),
                _ => None,
            };
            if cleared.is_none_or(|path| path.exists()) {
                *expected.entry(finding(class)).or_default() += 1;
            }
        }
        // Layer C belongs to two images: app-c and app-d.
        *expected.get_mut("broken-image").unwrap() += 1;
        // The blob of the lease has a label `containerd.io/gc.root-`; since containerd 2.2 that makes it a root.
        *expected.get_mut("gc-root").unwrap() += 1;
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for leak in &reading.inventory.leaks {
            *found.entry(leak.class.as_str()).or_default() += 1;
            assert_eq!(leak.verdict, Verdict::Report, "{version} {leak:?}");
        }
        assert_eq!(found, expected, "{version}: {:#?}", reading.inventory.leaks);
        assert_eq!(reading.inventory.findings, [], "{version}");
    }
}

#[test]
fn images_of_three_versions_are_equal() {
    fn of(version: &str) -> BTreeSet<(String, Vec<String>, usize, Option<u64>)> {
        let (_directory, reading) = reading(version);
        let images = reading.inventory.images.iter();
        images
            .map(|image| (image.id.to_string(), image.names.clone(), image.layers.len(), image.listed_bytes))
            .collect()
    }
    let first = of(VERSIONS[0]);
    assert_eq!(first.len(), 11, "nine in CRI's namespace (one unreadable), one in moby, one in default");
    for version in &VERSIONS[1..] {
        assert_eq!(of(version), first, "{version}");
    }
}

/// However the files are damaged, the bytes are counted, the reading is reported as incomplete, and nothing is
/// called a leak.
#[test]
fn damaged_roots_are_counted_and_reported() {
    let meta = "io.containerd.metadata.v1.bolt/meta.db";
    let backend = "io.containerd.snapshotter.v1.overlayfs/metadata.db";
    type Make<'a> = &'a dyn Fn(&Path);
    let damages: [(&str, &str, Make<'_>); 6] = [
        ("a short meta.db", meta, &|path| {
            fs::write(path, &fs::read(fixture("1.7.34").join("root").join(meta)).unwrap()[..300_000]).unwrap()
        }),
        ("an empty meta.db", meta, &|path| fs::write(path, "").unwrap()),
        ("a foreign meta.db", meta, &|path| fs::write(path, vec![b'x'; 10_000]).unwrap()),
        ("a fifo", meta, &|path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("a symlink", meta, &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap()),
        ("a foreign metadata.db", backend, &|path| fs::write(path, vec![b'x'; 10_000]).unwrap()),
    ];
    for (what, path, make) in damages {
        let directory = tempfile::tempdir().unwrap();
        let root = rebuild("1.7.34", directory.path());
        fs::remove_file(root.join(path)).unwrap();
        make(&root.join(path));
        let reading = read(&ContainerdPlaces::at(&root, true), SignedDuration::from_mins(30));
        assert_eq!(reading.snapshot.consistency, Consistency::Damaged, "{what}");
        assert!(reading.inventory.findings.iter().any(|finding| finding.incomplete), "{what}");
        let sum: u64 = reading.inventory.nodes.iter().map(|node| node.size.bytes).sum();
        assert_eq!(sum, support::du::bytes(&[&root]), "{what}");
        // Only findings that need no other record are reported.
        let said: BTreeSet<_> = reading
            .inventory
            .leaks
            .iter()
            .filter(|leak| leak.verdict != Verdict::Keep)
            .map(|leak| leak.class.as_str())
            .collect();
        assert!(said.is_subset(&BTreeSet::from(["inconsistent"])), "{what}: {said:?}");
    }
}

/// Labels of configurations and records. An image that cannot be read completely has no known labels.
#[test]
fn labels_of_configurations_and_records() {
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let root = rebuild(version, directory.path());
        let places = ContainerdPlaces::at(&root, true);
        let before = read(&places, SignedDuration::ZERO);
        fn configuration(before: &Reading, root: &Path, name: &str) -> std::path::PathBuf {
            let id = &before.image(name).id;
            root.join("io.containerd.content.v1.content/blobs/sha256").join(id.as_str())
        }
        fs::write(
            configuration(&before, &root, "reg.local/app-a:1"),
            r#"{"config":{"Labels":{"team":"a"}}}"#,
        )
        .unwrap();
        fs::write(configuration(&before, &root, "reg.local/app-b:1"), "{\"config\"").unwrap();
        fs::remove_file(configuration(&before, &root, "reg.local/app-c:1")).unwrap();
        File::create(configuration(&before, &root, "reg.local/app-d:1")).unwrap().set_len(1 << 40).unwrap();
        fs::remove_file(configuration(&before, &root, "reg.local/base:1")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", configuration(&before, &root, "reg.local/base:1"))
            .unwrap();

        let reading = read(&places, SignedDuration::ZERO);
        let managed = ("io.cri-containerd.image".to_owned(), "managed".to_owned());
        fn labels(reading: &Reading, name: &str) -> layersweep::model::Labels {
            let images = reading.inventory.images.iter();
            let mut images = images.filter(|image| image.names.iter().any(|known| known == name));
            images.find(|image| !image.id.contains('/')).unwrap().labels.clone()
        }
        assert_eq!(
            labels(&reading, "reg.local/app-a:1"),
            Labels::Known(vec![managed.clone(), ("team".into(), "a".into())]),
            "{version}"
        );
        assert_eq!(labels(&reading, "reg.local/dup:gz1"), Labels::Known(vec![managed.clone()]), "two names");
        if version != "1.6.20" {
            let pinned = ("io.cri-containerd.pinned".to_owned(), "pinned".to_owned());
            assert_eq!(labels(&reading, "reg.local/pause:1"), Labels::Known(vec![managed, pinned]));
        }
        for (name, why) in [
            ("reg.local/app-b:1", "its configuration is not JSON"),
            ("reg.local/app-c:1", "its configuration sha256:"),
            ("reg.local/app-d:1", "its configuration sha256:"),
            ("reg.local/base:1", "is a symlink"),
            ("reg.local/zdup:1", "its manifest could not be read"),
        ] {
            let Labels::Unknown(said) = labels(&reading, name) else { panic!("{version} {name}") };
            assert!(said.contains(why), "{version} {name}: {said}");
        }
    }
}

/// Names in two namespaces of one store, and the texts of its findings.
#[test]
fn hints_name_the_object_and_its_own_command() {
    let directory = tempfile::tempdir().unwrap();
    let root = rebuild("2.3.4", directory.path());
    let root = root.to_str().unwrap();
    let run = |command: &[&str], code| {
        support::program::layersweep(command.iter().chain(&["--containerd-root", root])).expect_code(code)
    };
    let ambiguous = run(&["explain", "reg.local/app-a:1"], 2);
    let command = regex::Regex::new("`layersweep .*?explain ([0-9a-z/:]+)").unwrap();
    let hint = command.captures(&ambiguous.stderr).unwrap_or_else(|| panic!("{}", ambiguous.stderr));
    let explained = run(&["explain", &hint[1]], 0);
    assert!(explained.stdout.contains("reg.local/app-a:1"), "{explained:?}");
    let sweep = run(&["sweep"], 0).stdout;
    assert!(sweep.contains("1 image and ") && !sweep.contains("1 images"), "{sweep}");
    // A label that lets containerd delete the object would be a deletion.
    assert!(!sweep.contains("content label ") && !sweep.contains("overlayfs label "), "{sweep}");
    let refused = run(&["sweep", "--delete", "--sysroot", "/srv"], 2).stderr;
    let listing = format!("`layersweep --containerd-root {root} --sysroot /srv sweep`");
    assert!(refused.contains(&listing), "{refused}");
}
