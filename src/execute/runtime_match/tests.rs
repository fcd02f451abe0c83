//! Comparison of listings.

use std::path::PathBuf;

use crate::execute::runtime_match::*;
use crate::model::{Container, ContainerState, Image, Owner, Store, StoreKind, samples};

fn store(kind: StoreKind, root: &str, driver: &str, read_only: bool) -> Store {
    Store { kind, root: root.into(), driver: driver.into(), read_only, ..samples::store() }
}

fn image(store: usize, id: &str) -> Image {
    Image { store: store.into(), ..samples::image(id, &[]) }
}

fn container(store: usize, id: &str, owner: Owner) -> Container {
    Container { store: store.into(), ..samples::container(id, owner, ContainerState::Unknown) }
}

/// Stores: 0 is a graphroot, 1 its additional store, 2 another graphroot, 3 a store of containerd.
fn inventory() -> Inventory {
    let storage = StoreKind::ContainersStorage;
    Inventory {
        stores: vec![
            store(storage, "/g", "overlay", false),
            store(storage, "/extra", "overlay", true),
            store(storage, "/other", "overlay", false),
            store(StoreKind::Containerd, "/c", "overlayfs", false),
            store(storage, "/g", "vfs", false),
        ],
        images: vec![
            image(0, "aa"),
            image(0, "ab"),
            image(1, "e0"),
            image(2, "01"),
            image(3, "ca"),
            image(3, "cb"),
            image(3, "moby/ca"),
        ],
        containers: vec![
            container(0, "k0", Owner::CriO),
            container(0, "k1", Owner::CriO),
            container(0, "p0", Owner::Podman),
            container(3, "k2", Owner::Containerd),
            container(3, "moby/k3", Owner::Containerd),
        ],
        ..Inventory::default()
    }
}

fn graphroot() -> RuntimeStores {
    RuntimeStores { main: StoreIx::from(0), artifacts: None, additional: vec![StoreIx::from(1)] }
}

fn containerd() -> RuntimeStores {
    RuntimeStores { main: StoreIx::from(3), artifacts: None, additional: vec![] }
}

fn listed(ids: &[&str]) -> Vec<RuntimeImage> {
    ids.iter().map(|id| RuntimeImage { id: (*id).into(), ..RuntimeImage::default() }).collect()
}

fn ix(image_numbers: &[usize]) -> Vec<ImageIx> {
    image_numbers.iter().map(|number| ImageIx::from(*number)).collect()
}

fn runtime_store(kind: StoreKind, root: &str, driver: Option<&str>) -> RuntimeStore {
    RuntimeStore {
        kind,
        root: PathBuf::from(root),
        state: None,
        driver: driver.map(Into::into),
        image_root: None,
        sandbox_image: None,
        ended_sandboxes: Vec::new(),
        origin: "test".into(),
    }
}

#[test]
fn stores_are_found_by_root_and_driver() {
    let inventory = inventory();
    let storage = StoreKind::ContainersStorage;
    for (kind, root, driver, expected) in [
        (storage, "/g", Some("overlay"), Some(0)),
        // One root, two drivers.
        (storage, "/g", Some("vfs"), Some(4)),
        (storage, "/g", Some("btrfs"), None),
        (storage, "/other", None, Some(2)),
        // A read-only store.
        (storage, "/extra", None, None),
        // Another kind.
        (storage, "/c", None, None),
        // All snapshotters of a containerd.
        (StoreKind::Containerd, "/c", Some("native"), Some(3)),
    ] {
        let found = RuntimeStores::find(&runtime_store(kind, root, driver), &inventory);
        assert_eq!(found.map(|stores| stores.main.get()), expected, "{root} {driver:?}");
    }
    let found = RuntimeStores::find(&runtime_store(storage, "/g", None), &inventory);
    assert_eq!(found, Some(graphroot()));
}

#[test]
fn images_are_matched_by_exact_id() {
    let inventory = inventory();
    let table: [(&str, RuntimeStores, &[&str], ImageMatch); 6] = [
        (
            "all known, the additional store's too",
            graphroot(),
            &["e0", "ab", "aa"],
            ImageMatch {
                known: vec![
                    (ImageIx::from(0), vec![2]),
                    (ImageIx::from(1), vec![1]),
                    (ImageIx::from(2), vec![0]),
                ],
                ..ImageMatch::default()
            },
        ),
        (
            "one unknown, one unseen; another graphroot's image is unseen",
            graphroot(),
            &["aa", "01", "e0"],
            ImageMatch {
                known: vec![(ImageIx::from(0), vec![0]), (ImageIx::from(2), vec![2])],
                unknown: ix(&[1]),
                unseen: vec![1],
                ..ImageMatch::default()
            },
        ),
        (
            "a prefix is no id",
            graphroot(),
            &["a", "aab", "ab", "e0"],
            ImageMatch {
                known: vec![(ImageIx::from(1), vec![2]), (ImageIx::from(2), vec![3])],
                unknown: ix(&[0]),
                unseen: vec![0, 1],
                ..ImageMatch::default()
            },
        ),
        (
            "two handlers",
            graphroot(),
            &["aa", "ab", "aa", "e0"],
            ImageMatch {
                known: vec![
                    (ImageIx::from(0), vec![0, 2]),
                    (ImageIx::from(1), vec![1]),
                    (ImageIx::from(2), vec![3]),
                ],
                ..ImageMatch::default()
            },
        ),
        (
            "containerd: digests against hex, other namespaces apart",
            containerd(),
            &["sha256:ca"],
            ImageMatch {
                known: vec![(ImageIx::from(4), vec![0])],
                unknown: ix(&[5]),
                foreign: ix(&[6]),
                ..ImageMatch::default()
            },
        ),
        (
            "nothing",
            containerd(),
            &[],
            ImageMatch { unknown: ix(&[4, 5]), foreign: ix(&[6]), ..ImageMatch::default() },
        ),
    ];
    for (what, stores, ids, expected) in table {
        assert_eq!(ImageMatch::new(&inventory, &stores, &listed(ids)), expected, "{what}");
    }
}

#[test]
fn artifacts_are_not_images() {
    let mut images = listed(&["aa", "ab", "e0", "f0", "f1"]);
    images[3].digests = vec!["quay.io/model@sha256:f0".into()];
    images[4].digests = vec!["quay.io/image@sha256:f2".into()];
    let found = ImageMatch::new(&inventory(), &graphroot(), &images);
    assert_eq!(found.unseen, [4]);
}

#[test]
fn contradictory_listings_are_refused() {
    let inventory = inventory();
    for (ids, objection) in [
        (&["aa", "ab", "e0"][..], None),
        (&["aa"], None),
        (&["aa", "ff"], Some("the first is ff")),
        (&[], Some("none of the 3 images")),
    ] {
        let images = listed(ids);
        let found = ImageMatch::new(&inventory, &graphroot(), &images).objection(&images);
        match objection {
            None => assert_eq!(found, None),
            Some(part) => {
                assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{ids:?}: {found:?}");
            }
        }
    }
    let empty = ImageMatch::new(&Inventory::default(), &graphroot(), &[]);
    assert_eq!(empty.objection(&[]), None, "an empty store and an empty listing agree");
}

#[test]
fn containers_are_matched_by_exact_id() {
    fn unseen(stores: &RuntimeStores, containers: &[&str], sandboxes: &[&str]) -> Option<String> {
        let containers = containers.iter();
        let containers =
            containers.map(|id| RuntimeContainer { id: (*id).into(), ..RuntimeContainer::default() });
        let sandboxes = sandboxes.iter();
        let sandboxes = sandboxes.map(|id| RuntimeSandbox { id: (*id).into(), ..RuntimeSandbox::default() });
        let (containers, sandboxes): (Vec<_>, Vec<_>) = (containers.collect(), sandboxes.collect());
        unseen_container(&inventory(), stores, &containers, &sandboxes)
    }
    assert_eq!(unseen(&graphroot(), &["k1"], &["k0"]), None);
    assert_eq!(unseen(&graphroot(), &[], &["k0"]), None);
    assert_eq!(unseen(&containerd(), &[], &[]), None);
    assert!(unseen(&graphroot(), &["k1", "new"], &["k0"]).unwrap().contains("container new"));
    assert!(unseen(&graphroot(), &["k1"], &["k0", "moby/k3"]).unwrap().contains("sandbox moby/k3"));
}
