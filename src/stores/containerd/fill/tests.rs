//! Records that real containerds do not have: modified databases.

use std::fs::{self, File};
use std::path::Path;

use jiff::Timestamp;

use super::*;
use crate::disk::filesystem::CostModel;
use crate::model::{ContainerState, FilesystemIx, Inventory, LeakClass, Owner, StoreIx, Verdict};
use crate::stores::bolt::tests::build::{Builder, Value, bucket_in, tree_of};
use crate::stores::bolt::{BoltDatabase, Limits};
use crate::stores::containerd::places::{CRI, ContainerdPlaces, META_DB};
use crate::stores::containerd::{read, units};
use crate::stores::read_cache::ReadCache;
use crate::sys::clock::Present;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd/2.3.4").join(path)
}

fn noted(key: &str) -> String {
    let text = fs::read_to_string(fixture("pods")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap().to_owned()
}

/// Fills an inventory from the database of containerd 2.3.4 after `change` has modified its records. Each of its
/// sandboxes has its directory.
fn filled(change: impl FnOnce(&mut std::collections::BTreeMap<Vec<u8>, Value>)) -> Inventory {
    let original = File::open(fixture("root").join(META_DB)).unwrap();
    let mut tree = tree_of(&BoltDatabase::read(&original, &Limits::default()).unwrap().root());
    change(bucket_in(&mut tree, &["v1", KUBERNETES]));
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join(META_DB).parent().unwrap()).unwrap();
    fs::write(root.join(META_DB), Builder::usual().file(&tree)).unwrap();
    for pod in ["pod1", "pod2"] {
        let directory = root.join(CRI).join("sandboxes").join(noted(pod));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("hostname"), "pod").unwrap();
    }
    let snapshot =
        read::read(&ContainerdPlaces::at(root, true), read::ReadPatience::default(), &ReadCache::default())
            .unwrap();
    let units = units::sort(&snapshot);
    let mut inventory = Inventory::default();
    let writer = InventoryWriter {
        inventory: &mut inventory,
        store: StoreIx::from(0),
        root_costs: &vec![(FilesystemIx::from(0), CostModel::default()); snapshot.areas().len()],
        mounts: &[],
        labels: false,
        image: None,
        origins: true,
        blobs: false,
        leaks: true,
        present: &Present::at(Timestamp::now(), Vec::new()),
    };
    let node = ("linux/amd64", SignedDuration::from_mins(5));
    fill(writer, &snapshot, &units, &vec![Tally::default(); units.len()], node);
    inventory
}

/// The overlayfs snapshots of containerd 2.3.4 as snapshots of erofs: one layer has its content in a cache by a
/// symlink, another by a label, and the others have their own content.
#[test]
fn cached_layers_are_kept() {
    fn rename(tree: &mut std::collections::BTreeMap<Vec<u8>, Value>, from: &[u8], to: &[u8]) {
        let value = tree.remove(from).unwrap();
        tree.insert(to.to_vec(), value);
    }
    fn database(path: &str) -> std::collections::BTreeMap<Vec<u8>, Value> {
        let original = File::open(fixture("root").join(path)).unwrap();
        tree_of(&BoltDatabase::read(&original, &Limits::default()).unwrap().root())
    }
    let dir = tempfile::tempdir().unwrap();
    let (root, cache) = (dir.path().join("root"), dir.path().join("cache"));
    let erofs = root.join("io.containerd.snapshotter.v1.erofs");
    fs::create_dir_all(root.join(META_DB).parent().unwrap()).unwrap();
    let mut tree = database(META_DB);
    let k8s = bucket_in(&mut tree, &["v1", KUBERNETES]);
    rename(bucket_in(k8s, &["snapshots"]), b"overlayfs", b"erofs");
    let blobs: Vec<Vec<u8>> = bucket_in(k8s, &["content", "blob"]).keys().cloned().collect();
    for blob in blobs {
        let blob = bucket_in(k8s, &["content", "blob", std::str::from_utf8(&blob).unwrap()]);
        let Some(Value::Bucket(labels, _)) = blob.get_mut(b"labels".as_slice()) else { continue };
        let label = b"containerd.io/gc.ref.snapshot.";
        if labels.contains_key([&label[..], b"overlayfs"].concat().as_slice()) {
            rename(labels, &[&label[..], b"overlayfs"].concat(), &[&label[..], b"erofs"].concat());
        }
    }
    fs::write(root.join(META_DB), Builder::usual().file(&tree)).unwrap();

    let layer = |digit: &str| {
        let hex = digit.repeat(64);
        (format!("sha256:{hex}"), cache.join(format!("sha256/{}/{hex}.erofs", &hex[..2])))
    };
    for digit in ["a", "b", "c"] {
        let (_, path) = layer(digit);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![1; 100_000]).unwrap();
        fs::write(format!("{}.dmverity", path.display()), "{}").unwrap();
    }
    fs::write(cache.join("README"), "x").unwrap();
    let mut records = database("io.containerd.snapshotter.v1.overlayfs/metadata.db");
    let mut committed = Vec::new();
    let all = bucket_in(&mut records, &["v1", "snapshots"]);
    let keys: Vec<Vec<u8>> = all.keys().cloned().collect();
    for key in &keys {
        let record = bucket_in(all, &[std::str::from_utf8(key).unwrap()]);
        let Some(Value::Bytes(id)) = record.get(b"id".as_slice()) else { panic!("{record:?}") };
        let directory = erofs.join("snapshots").join(id[0].to_string());
        assert!(id[0] < 0x80, "one byte of a varint");
        fs::create_dir_all(&directory).unwrap();
        if matches!(record.get(b"kind".as_slice()), Some(Value::Bytes(kind)) if kind == &[3]) {
            committed.push((key.clone(), directory));
        }
    }
    let (by_link, by_label) = (committed.remove(0), committed.remove(0));
    std::os::unix::fs::symlink(layer("a").1, by_link.1.join("layer.erofs")).unwrap();
    let labels = [
        (b"io.containerd.erofs.v1/blob.source".to_vec(), Value::Bytes(b"cache".to_vec())),
        (b"io.containerd.erofs.v1/blob.ref".to_vec(), Value::Bytes(layer("b").1.to_str().unwrap().into())),
    ];
    let record = bucket_in(all, &[std::str::from_utf8(&by_label.0).unwrap()]);
    record.insert(b"labels".to_vec(), Value::Bucket(labels.into(), true));
    fs::write(erofs.join("metadata.db"), Builder::usual().file(&records)).unwrap();

    let mut places = ContainerdPlaces::at(&root, true);
    places.layer_caches.push(cache.clone());
    // A symlink with an unknown target: then no layer in the cache is called unused.
    let astray = committed[0].1.join("layer.erofs");
    std::os::unix::fs::symlink("/somewhere/else", &astray).unwrap();
    assert!(
        read::read(&places, read::ReadPatience::default(), &ReadCache::default()).unwrap().more_cached_layers
    );
    fs::remove_file(&astray).unwrap();
    let snapshot = read::read(&places, read::ReadPatience::default(), &ReadCache::default()).unwrap();
    let units = units::sort(&snapshot);
    let mut inventory = Inventory::default();
    let writer = InventoryWriter {
        inventory: &mut inventory,
        store: StoreIx::from(0),
        root_costs: &vec![(FilesystemIx::from(0), CostModel::default()); snapshot.areas().len()],
        mounts: &[],
        labels: false,
        image: None,
        origins: true,
        blobs: false,
        leaks: true,
        present: &Present::at(Timestamp::now() + SignedDuration::from_hours(1), Vec::new()),
    };
    let tally = Tally { bytes: 100, ..Tally::default() };
    let node = ("linux/amd64", SignedDuration::from_mins(5));
    fill(writer, &snapshot, &units, &vec![tally; units.len()], node);
    let refs = crate::model::refs::Refs::new(&inventory);
    for (digit, holder) in [("a", Some(&by_link.1)), ("b", Some(&by_label.1)), ("c", None)] {
        let (diff_id, path) = layer(digit);
        let position = inventory.nodes.iter().position(|node| node.path == path).expect(digit);
        assert_eq!(
            (inventory.nodes[position].kind, &inventory.nodes[position].id),
            (NodeKind::CachedLayer, &diff_id)
        );
        let unit = units.iter().find(|unit| unit.path == path).unwrap();
        assert_eq!(unit.parts.len(), 2, "the file of dm-verity is deleted with it");
        let needed: Vec<_> =
            inventory.nodes.iter().filter(|node| node.needs.contains(&position.into())).collect();
        assert_eq!(
            needed.iter().map(|node| &node.path).collect::<Vec<_>>(),
            holder.into_iter().collect::<Vec<_>>()
        );
        let unused: Vec<_> =
            inventory.leaks.iter().filter(|leak| leak.class == LeakClass::NeverCollected).collect();
        let is_unused =
            unused.iter().any(|leak| leak.holds == [position.into()] && leak.verdict == Verdict::Report);
        assert_eq!((unused.len(), is_unused), (1, holder.is_none()), "{digit}");
        // No deletion of an image deletes it.
        for image in (0..inventory.images.len()).map(crate::model::ImageIx::from) {
            let is_deleted = refs
                .live()
                .last_held(crate::model::refs::Root::Image(image))
                .any(|deleted| deleted.get() == position);
            assert!(!is_deleted, "{digit}");
        }
    }
    for digit in ["a", "b"] {
        let node = inventory.nodes.iter().position(|node| node.path == layer(digit).1).unwrap();
        assert!(refs.reached_by(node.into()).count() > 0, "images have layer {digit} in the cache");
    }
}

/// Docker has a lease of every container, even while containerd has a record of it.
#[test]
fn running_container_of_docker_is_one_container() {
    let id = noted("ctr1");
    fn bucket(below: Vec<(String, Value)>) -> Value {
        Value::Bucket(below.into_iter().map(|(key, value)| (key.into_bytes(), value)).collect(), false)
    }
    let inventory = filled(|k8s| {
        let snapshots = bucket_in(k8s, &["snapshots", "overlayfs"]);
        let container = bucket_in(snapshots, &[&id]);
        let init = Value::Bucket(container.clone(), false);
        container.insert(b"parent".to_vec(), Value::Bytes(format!("{id}-init").into_bytes()));
        snapshots.insert(format!("{id}-init").into_bytes(), init);
        let held = bucket(vec![("overlayfs".into(), bucket(vec![(id.clone(), Value::Bytes(Vec::new()))]))]);
        let leases = k8s.entry(b"leases".to_vec()).or_insert_with(|| bucket(Vec::new()));
        let Value::Bucket(leases, _) = leases else { panic!("{leases:?}") };
        leases.insert(id.clone().into_bytes(), bucket(vec![("snapshots".into(), held)]));
    });
    let before = filled(|_| {});
    assert_eq!(inventory.containers.len(), before.containers.len());
    let [docker, containerd] = [&inventory, &before].map(|inventory| {
        let mut containers = inventory.containers.iter();
        containers.find(|container| container.id == id.as_str()).unwrap()
    });
    assert_eq!((docker.owner, docker.image), (Owner::Docker, containerd.image));
    let [leases, leases_before] = [&inventory, &before]
        .map(|inventory| inventory.leaks.iter().filter(|leak| leak.class == LeakClass::Lease).count());
    assert_eq!(leases, leases_before);
}

/// With `sandboxer = "shim"` a sandbox has no record among the containers, but counts as a container.
#[test]
fn sandbox_without_container_record_is_a_container() {
    let pod = noted("pod1");
    let both = filled(|_| {});
    let bare = filled(|k8s| {
        let gone = bucket_in(k8s, &["containers"]).remove(pod.as_bytes());
        assert!(gone.is_some() && bucket_in(k8s, &["sandboxes"]).contains_key(pod.as_bytes()));
    });
    assert_eq!(bare.containers.len(), both.containers.len(), "each sandbox once");

    let sandbox = bare.containers.iter().find(|container| container.id == pod).expect("the sandbox");
    assert_eq!((sandbox.name.as_str(), sandbox.sandbox, sandbox.owner), ("pod1", true, Owner::Containerd));
    assert_eq!(sandbox.state, ContainerState::Unknown);
    assert!(sandbox.created.is_some());
    let image = &bare.images[sandbox.image.expect("its spec names it").get()];
    assert_eq!(image.names, ["reg.local/pause:1"]);
    let held: Vec<_> = sandbox.holds.iter().map(|node| bare.nodes[node.get()].id.as_str()).collect();
    assert_eq!(held, [pod.as_str()], "its directory");
    let orphans: Vec<_> = bare.leaks.iter().filter(|leak| leak.class == LeakClass::ContainerDir).collect();
    assert!(orphans.is_empty(), "{orphans:?}");
}

/// Nothing but the id is known of a sandbox that CRI did not create.
#[test]
fn sandbox_of_another_client_is_a_container() {
    let inventory = filled(|k8s| {
        let record = [(b"sandboxer".to_vec(), Value::Bytes(b"shim".to_vec()))];
        let record = Value::Bucket(record.into(), true);
        bucket_in(k8s, &["sandboxes"]).insert(b"alien".to_vec(), record);
    });
    let mut containers = inventory.containers.iter();
    let sandbox = containers.find(|container| container.id == "alien").expect("the sandbox");
    assert_eq!((sandbox.name.as_str(), sandbox.sandbox, sandbox.image), ("alien", true, None));
    assert_eq!(sandbox.image_id, None);
}

/// An expired name of a real image: content that other images need is kept, the rest is deleted with the next object.
#[test]
fn expired_image_keeps_nothing() {
    let name = "reg.local/app-c";
    let both = filled(|_| {});
    let expired = filled(|k8s| {
        let images = bucket_in(k8s, &["images"]);
        let names: Vec<Vec<u8>> = images.keys().cloned().collect();
        for key in names {
            // All names of the image: its tags, and the digest that CRI adds.
            let target = |images: &mut std::collections::BTreeMap<Vec<u8>, Value>, key: &[u8]| {
                let key = std::str::from_utf8(key).unwrap().to_owned();
                match bucket_in(images, &[&key, "target"]).get(b"digest".as_slice()) {
                    Some(Value::Bytes(digest)) => digest.clone(),
                    other => panic!("{other:?}"),
                }
            };
            let wanted = target(images, format!("{name}:1").as_bytes());
            if target(images, &key) == wanted {
                let key = std::str::from_utf8(&key).unwrap().to_owned();
                let labels = bucket_in(images, &[&key, "labels"]);
                let end = Value::Bytes(b"2026-01-01T00:00:00Z".to_vec());
                labels.insert(b"containerd.io/gc.expire".to_vec(), end);
            }
        }
    });
    let [before, after] = [&both, &expired].map(|inventory| {
        let mut images = inventory.images.iter();
        let found = images.find(|image| image.names.iter().any(|image_name| image_name.starts_with(name)));
        found.expect("CRI lists it until it is collected")
    });
    assert!(!before.holds.is_empty() && after.holds.is_empty());
    assert!(both.leaks.iter().all(|leak| leak.class != LeakClass::Garbage));
    let garbage: Vec<_> = expired.leaks.iter().filter(|leak| leak.class == LeakClass::Garbage).collect();
    assert!(garbage.len() >= 2, "each name: {garbage:?}");
    let others: std::collections::HashSet<_> =
        expired.images.iter().flat_map(|image| image.holds.iter().copied()).collect();
    for leak in garbage {
        assert!(
            leak.verdict == Verdict::Report && leak.evidence.contains("2026-01-01T00:00:00Z"),
            "{leak:?}"
        );
        assert!(leak.holds.iter().all(|node| !others.contains(node)), "{leak:?}");
    }
}
