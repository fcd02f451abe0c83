//! The three real databases, compared with the objects that the fixtures' script created.

use std::path::{Path, PathBuf};

use super::*;
use crate::stores::bolt::Limits;

fn fixture(version: &str, path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd").join(version).join(path)
}

fn database(version: &str, path: &str) -> BoltDatabase {
    let file = std::fs::File::open(fixture(version, path)).expect(path);
    BoltDatabase::read(&file, &Limits::default()).expect(path)
}

fn metadata(version: &str) -> Metadata {
    Metadata::read(&database(version, "root/io.containerd.metadata.v1.bolt/meta.db"))
}

/// Returns a value that the fixtures' script recorded, for example `pod1` in `pods`.
fn noted(version: &str, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(fixture(version, file)).expect(file);
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.expect(key).to_owned()
}

const VERSIONS: [(&str, i64); 3] = [("1.6.20", 3), ("1.7.34", 3), ("2.3.4", 4)];

#[test]
fn namespaces_and_images_are_read() {
    for (version, schema) in VERSIONS {
        let metadata = metadata(version);
        assert_eq!((metadata.version, metadata.oddities.as_slice()), (Some(schema), [].as_slice()));
        let names: Vec<_> = metadata.namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
        assert_eq!(names, ["default", "k8s.io", "moby"], "{version}");
        let names = |namespace: &str| -> Vec<String> {
            let namespace = metadata.namespace(namespace).expect(namespace);
            let names = namespace.images.iter().map(|image| image.name.clone());
            names.filter(|name| !name.starts_with("sha256:")).collect()
        };
        assert_eq!(names("default"), ["reg.local/multi:1"]);
        assert_eq!(names("moby"), ["reg.local/app-a:1"]);
        let expected = [
            "app-a:1",
            "app-b:1",
            "app-c:1",
            "app-c:alias",
            "app-d:1",
            "base:1",
            "dup:gz1",
            "dup:gz9",
            "multi:1",
            "pause:1",
            "zdup:1",
        ];
        assert_eq!(names("k8s.io"), expected.map(|name| format!("reg.local/{name}")), "{version}");

        let images = &metadata.namespace("k8s.io").expect("k8s.io").images;
        let app_c = images.iter().find(|image| image.name == "reg.local/app-c:1").expect("app-c");
        assert_eq!(app_c.target, format!("sha256:{}", noted(version, "digests", "manifest_app_c")));
        assert_eq!(app_c.target_size, Some(563));
        assert_eq!(app_c.labels.get("io.cri-containerd.image").map(String::as_str), Some("managed"));
        assert!(app_c.created.expect("time").to_string().starts_with("2026-11-21T00:"));
    }
}

#[test]
fn blobs_snapshots_and_leases_are_read() {
    for (version, _) in VERSIONS {
        let metadata = metadata(version);
        let k8s = metadata.namespace("k8s.io").expect("k8s.io");
        let base = format!("sha256:{}", noted(version, "digests", "layer_base"));
        let blob = k8s.blobs.iter().find(|blob| blob.digest == base).expect("base layer");
        assert_eq!(blob.size, Some(1_031_641));
        let diff_id = blob.labels.get("containerd.io/uncompressed").expect("unpacked");
        let snapshot = k8s.snapshots.iter().find(|snapshot| snapshot.key == *diff_id).expect("snapshot");
        assert_eq!((snapshot.parent.as_deref(), snapshot.snapshotter.as_str()), (None, "native"));

        let far = k8s.leases.iter().find(|lease| lease.id == "far-future").expect("lease");
        assert_eq!(far.labels["containerd.io/gc.expire"], "2099-01-01T00:00:00Z");
        assert_eq!(far.content.len(), 1);
        assert!(k8s.leases.iter().any(|lease| lease.id == "stuck-noexpiry" && lease.labels.is_empty()));

        let leaked = k8s.snapshots.iter().find(|snapshot| snapshot.key == "leaked-active").expect("planted");
        assert!(leaked.labels.contains_key("containerd.io/gc.root"));
        assert_eq!(leaked.parent.as_deref(), Some(diff_id.as_str()));
    }
}

#[test]
fn containers_and_cri_facts_are_read() {
    for (version, _) in VERSIONS {
        let metadata = metadata(version);
        let containers = &metadata.namespace("k8s.io").expect("k8s.io").containers;
        assert_eq!(containers.len(), 6, "two sandboxes, three containers, one that CRI did not create");
        let by_id = |key: &str| {
            let id = noted(version, "pods", key);
            containers.iter().find(|container| container.id == id).expect(key)
        };
        let cri = by_id("ctr2").cri.clone().expect("CRI's");
        assert!(!cri.sandbox);
        assert_eq!(cri.name.as_deref(), Some("b"));
        assert_eq!(cri.sandbox_id, Some(noted(version, "pods", "pod2")));
        assert_eq!(cri.image_asked.as_deref(), Some("reg.local/app-b:1"));
        let config = "sha256:c236c5d7d8c9f27acbde86fcee7c234fd1220d62d61d16db1de382933bfb6cdf";
        assert_eq!(cri.image_ref.as_deref(), Some(config));
        let sandbox = by_id("pod1");
        assert_eq!(sandbox.image.as_deref(), Some("reg.local/pause:1"));
        let cri = sandbox.cri.clone().expect("CRI's");
        assert!(cri.sandbox);
        assert_eq!(cri.namespace.as_deref(), Some("default"));
        let ghost = containers.iter().find(|container| container.id == "ghost").expect("ghost");
        assert_eq!(ghost.cri, None);
        assert_eq!(ghost.snapshot_key.as_deref(), Some("ghost"));
    }
}

#[test]
fn snapshots_have_their_directories() {
    for (version, _) in VERSIONS {
        for (snapshotter, active) in [("overlayfs", 8), ("native", 0)] {
            let path = format!("root/io.containerd.snapshotter.v1.{snapshotter}/metadata.db");
            let (entries, odd) = snapshotter::read(&database(version, &path));
            assert_eq!(odd, []);
            let metadata = metadata(version);
            let listing = std::fs::read_to_string(fixture(version, "listing.txt")).expect("listing");
            for entry in &entries {
                let directory = format!("io.containerd.snapshotter.v1.{snapshotter}/snapshots {}", entry.id);
                assert!(listing.lines().any(|line| line.ends_with(&directory)), "{version} {directory}");
                let mut snapshots = metadata.namespaces.iter().flat_map(|namespace| &namespace.snapshots);
                let known = snapshots.any(|snapshot| snapshot.backend.as_ref() == Some(&entry.key));
                assert_eq!(known, !entry.key.ends_with("/rolled-back"), "{version} {}", entry.key);
            }
            let count =
                entries.iter().filter(|entry| entry.kind == Some(snapshotter::SnapshotKind::Active)).count();
            assert_eq!(count, active, "{version} {snapshotter}");
        }
    }
}

/// Damages bytes of any page: the result has oddities, and nothing panics.
#[test]
fn damaged_values_become_oddities() {
    let path = fixture("2.3.4", "root/io.containerd.metadata.v1.bolt/meta.db");
    let good = std::fs::read(path).expect("meta.db");
    let directory = tempfile::tempdir().expect("temporary directory");
    let (mut read, mut odd) = (0, 0);
    for start in (8192..663_552).step_by(4001) {
        let mut broken = good.clone();
        // Damage some bytes all over the file, except the meta pages.
        for position in (start..broken.len()).step_by(40_009) {
            broken[position] ^= 0x55;
        }
        let path = directory.path().join("meta.db");
        std::fs::write(&path, &broken).expect("written");
        let file = std::fs::File::open(&path).expect("opened");
        if let Ok(database) = BoltDatabase::read(&file, &Limits::default()) {
            let metadata = Metadata::read(&database);
            read += 1;
            odd += metadata.oddities.len();
        }
    }
    assert!(read > 20, "some trees stay whole: {read}");
    assert!(odd > 0, "some values do not");
}
