//! What the records of real containerds do not have: databases changed by hand.

use std::fs::{self, File};
use std::path::Path;

use super::*;
use crate::containerd::places::{CRI, META_DB, Places};
use crate::containerd::{snapshot, units};
use crate::inventory::{ContainerState, Owner};
use crate::sys::bolt::tests::build::{Builder, Value, bucket_in, tree_of};
use crate::sys::bolt::{Database, Limits};
use crate::sys::clock::Present;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd/2.3.4").join(path)
}

fn noted(key: &str) -> String {
    let text = fs::read_to_string(fixture("pods")).unwrap();
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap().to_owned()
}

/// What is made of the database of containerd 2.3.4, once `change` is done with its records. Each
/// of its sandboxes has its directory.
fn filled(change: impl FnOnce(&mut std::collections::BTreeMap<Vec<u8>, Value>)) -> Inventory {
    let original = File::open(fixture("root").join(META_DB)).unwrap();
    let mut tree = tree_of(&Database::read(&original, &Limits::default()).unwrap().root());
    change(bucket_in(&mut tree, &["v1", KUBERNETES]));
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join(META_DB).parent().unwrap()).unwrap();
    fs::write(root.join(META_DB), Builder::usual().file(&tree)).unwrap();
    for pod in ["pod1", "pod2"] {
        let own = root.join(CRI).join("sandboxes").join(noted(pod));
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("hostname"), "pod").unwrap();
    }
    let snapshot = snapshot::read(&Places::at(root, true), snapshot::Patience::default()).unwrap();
    let units = units::sort(&snapshot);
    let context = Context {
        store: StoreIx::from(0),
        areas: &vec![(FilesystemIx::from(0), CostModel::default()); snapshot.areas().len()],
        mounts: &[],
        platform: "linux/amd64",
        labels: &LabelsOf::Nobody,
        leaks: true,
        present: &Present::at(Timestamp::now(), Vec::new()),
        in_flight: SignedDuration::from_mins(5),
    };
    let mut inventory = Inventory::default();
    fill(&mut inventory, &snapshot, &units, &vec![Tally::default(); units.len()], &context);
    inventory
}

/// With `sandboxer = "shim"` a sandbox has no record among the containers: it is one all the same.
#[test]
fn a_sandbox_that_only_the_sandbox_store_has_is_a_container() {
    let pod = noted("pod1");
    let both = filled(|_| {});
    let one = filled(|k8s| {
        let gone = bucket_in(k8s, &["containers"]).remove(pod.as_bytes());
        assert!(gone.is_some() && bucket_in(k8s, &["sandboxes"]).contains_key(pod.as_bytes()));
    });
    assert_eq!(one.containers.len(), both.containers.len(), "each sandbox once");

    let sandbox = one.containers.iter().find(|one| one.id == pod).expect("the sandbox");
    assert_eq!((sandbox.name.as_str(), sandbox.sandbox, sandbox.owner), ("pod1", true, Owner::Containerd));
    assert_eq!(sandbox.state, ContainerState::Unknown);
    assert!(sandbox.created.is_some());
    let image = &one.images[sandbox.image.expect("its spec names it").get()];
    assert_eq!(image.names, ["reg.local/pause:1"]);
    let held: Vec<_> = sandbox.holds.iter().map(|node| one.nodes[node.get()].id.as_str()).collect();
    assert_eq!(held, [pod.as_str()], "its directory");
    let debris: Vec<_> = one.leaks.iter().filter(|leak| leak.class == "cri-sandbox-dir").collect();
    assert!(debris.is_empty(), "{debris:?}");
}

/// Of a sandbox that is not CRI's nothing is known but that it is there.
#[test]
fn a_sandbox_of_somebody_else_is_one_too() {
    let inventory = filled(|k8s| {
        let record = [(b"sandboxer".to_vec(), Value::Bytes(b"shim".to_vec()))];
        let record = Value::Bucket(record.into(), true);
        bucket_in(k8s, &["sandboxes"]).insert(b"alien".to_vec(), record);
    });
    let sandbox = inventory.containers.iter().find(|one| one.id == "alien").expect("the sandbox");
    assert_eq!((sandbox.name.as_str(), sandbox.sandbox, sandbox.image), ("alien", true, None));
    assert_eq!(sandbox.image_id, None);
}

/// An expired name of a real image: what other images need stays, the rest goes with the next removal.
#[test]
fn an_image_whose_time_is_over_holds_nothing() {
    let name = "reg.local/app-c";
    let both = filled(|_| {});
    let one = filled(|k8s| {
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
    let of = |inventory: &Inventory| {
        let found = inventory.images.iter().find(|image| image.names.iter().any(|one| one.starts_with(name)));
        found.cloned().expect("CRI lists it until it is collected")
    };
    assert!(!of(&both).holds.is_empty() && of(&one).holds.is_empty());
    assert!(both.leaks.iter().all(|leak| leak.class != "image-expired"));
    let expired: Vec<_> = one.leaks.iter().filter(|leak| leak.class == "image-expired").collect();
    assert!(expired.len() >= 2, "each name: {expired:?}");
    let others: std::collections::HashSet<_> =
        one.images.iter().flat_map(|image| image.holds.iter().copied()).collect();
    for leak in expired {
        assert!(
            leak.verdict == Verdict::Report && leak.evidence.contains("2026-01-01T00:00:00Z"),
            "{leak:?}"
        );
        assert!(leak.holds.iter().all(|node| !others.contains(node)), "{leak:?}");
    }
}
