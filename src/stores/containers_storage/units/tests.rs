use super::*;
use crate::stores::containers_storage::engine::{Engine, PodmanRecords};
use crate::stores::containers_storage::inspection::Inspection;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::records::{ContainerRecord, ImageRecord, LayerRecord};
use crate::stores::unit::DirectoryListing;
use crate::sys::allowance::Allowance;
use crate::sys::root::Root;

const LAYER: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const WRITABLE: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const ORPHAN: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

fn snapshot(driver: &str, primary: bool, listing: &[(&str, &[&str])]) -> Snapshot {
    let root = PathBuf::from("/g");
    let listing: DirectoryListing = listing
        .iter()
        .map(|(directory, names)| {
            // A name that ends in `/` means a directory.
            let entries = names.iter().map(|name| match name.strip_suffix('/') {
                Some(name) => DirectoryEntry { name: name.into(), kind: FileKind::Directory },
                None => DirectoryEntry { name: name.into(), kind: FileKind::File },
            });
            (root.join(directory), entries.collect())
        })
        .collect();
    Snapshot::for_tests(
        StorePlaces {
            graphroot: Root::for_tests(&root),
            imagestores: vec![],
            temporary: vec![],
            runroots: vec![],
            databases: vec![],
            caches: vec![],
            driver: driver.into(),
            other_drivers: if primary { vec!["vfs".into()] } else { vec!["overlay".into()] },
            primary,
            read_only: false,
            foreign: false,
            allowance: Allowance::default(),
        },
        vec![
            LayerRecord { id: LAYER.into(), ..LayerRecord::default() },
            LayerRecord { id: WRITABLE.into(), ..LayerRecord::default() },
        ],
        vec![ImageRecord { id: LAYER.into(), ..ImageRecord::default() }],
        vec![ContainerRecord {
            id: LAYER.into(),
            layer: Some(WRITABLE.into()),
            ..ContainerRecord::default()
        }],
        listing,
    )
}

/// Returns the path of every part of every unit, with the kind of the unit.
fn parts(driver: &str, units: &[GraphrootUnit]) -> Vec<(String, String)> {
    let mut parts: Vec<_> = units
        .iter()
        .flat_map(|unit| {
            let kind = match &unit.kind {
                StorageUnit::Orphan(orphan) => orphan.class().to_string(),
                StorageUnit::Other(name) => format!("other {name}"),
                other => format!("{other:?}"),
            };
            unit.parts.iter().map(move |(root, path, scope)| {
                let path = match (root % 2, path.as_os_str().is_empty()) {
                    (0, _) => path.clone(),
                    (_, true) => PathBuf::from(driver),
                    (_, false) => Path::new(driver).join(path),
                };
                let only = if *scope == TreeScope::EntryOnly { " alone" } else { "" };
                (format!("{}{only}", path.display()), kind.clone())
            })
        })
        .collect();
    parts.sort();
    parts
}

fn kind_of<'a>(parts: &'a [(String, String)], path: &str) -> &'a str {
    parts.iter().find(|(part, _)| part == path).map_or("nothing", |(_, kind)| kind)
}

#[test]
fn entries_of_overlay_store_are_sorted() {
    let tar_split = format!("{LAYER}.tar-split.gz");
    let lost_split = format!("{ORPHAN}.tar-split.gz");
    let layer = format!("{LAYER}/");
    let writable = format!("{WRITABLE}/");
    let orphan = format!("{ORPHAN}/");
    let in_writable = format!("overlay/{WRITABLE}");
    let (sorted, _) = sort(&snapshot(
        "overlay",
        true,
        &[
            (
                "",
                &[
                    "overlay/",
                    "overlay-layers/",
                    "overlay-images/",
                    "overlay-containers/",
                    "storage.lock",
                    "libpod/",
                    "volumes/",
                    "db.sql",
                    "vfs/",
                    "vfs-layers/",
                    "overlayed/",
                ],
            ),
            (
                "overlay",
                &[
                    "l/",
                    "staging/",
                    "tempdirs/",
                    "compat123/",
                    "metacopy-check9/",
                    "compatible/",
                    ".has-mount-program",
                    "backingFsBlockDev",
                    &layer,
                    &writable,
                    &orphan,
                    "readme",
                ],
            ),
            ("overlay/staging", &["111/"]),
            ("overlay/tempdirs", &["lock-7", "temp-dir-7/", "temp-dir-8/"]),
            (&in_writable, &["diff/", "diff1/", "work/", "link", "lower"]),
            (
                "overlay-layers",
                &[
                    "layers.json",
                    "layers.lock",
                    ".tmp-layers.json5",
                    "tmp/",
                    &tar_split,
                    &lost_split,
                    &layer,
                    &orphan,
                ],
            ),
            ("overlay-layers/tmp", &["lock-1"]),
            ("overlay-images", &["images.json", &layer, &orphan]),
            ("overlay-containers", &["containers.json", "volatile-containers.json", &layer, &orphan]),
        ],
    ));
    let parts = parts("overlay", &sorted);
    for (path, kind) in [
        (" alone", "Metadata"),
        ("storage.lock", "Metadata"),
        ("libpod", "other libpod"),
        ("overlayed", "other overlayed"),
        ("vfs", "nothing"),
        ("vfs-layers", "nothing"),
        ("overlay alone", "Metadata"),
        ("overlay/l", "ShortNames"),
        ("overlay/staging alone", "Metadata"),
        ("overlay/staging/111", "staging"),
        ("overlay/tempdirs/lock-7", "tempdirs"),
        ("overlay/tempdirs/temp-dir-8", "tempdirs"),
        ("overlay/compat123", "other overlay/compat123"),
        ("overlay/metacopy-check9", "other overlay/metacopy-check9"),
        ("overlay/compatible", "other overlay/compatible"),
        ("overlay/backingFsBlockDev", "Records"),
        ("overlay/readme", "other overlay/readme"),
        (&format!("overlay/{LAYER}"), "Layer(0)"),
        (&format!("overlay/{ORPHAN}"), "orphan-dir"),
        (&format!("{in_writable} alone"), "Layer(1)"),
        (&format!("{in_writable}/diff"), "LayerContent(1)"),
        (&format!("{in_writable}/diff1"), "LayerContent(1)"),
        (&format!("{in_writable}/work"), "Layer(1)"),
        (&format!("overlay-layers/{tar_split}"), "Layer(0)"),
        (&format!("overlay-layers/{lost_split}"), "layerdata-orphan"),
        (&format!("overlay-layers/{LAYER}"), "Layer(0)"),
        (&format!("overlay-layers/{ORPHAN}"), "layerdata-orphan"),
        ("overlay-layers/.tmp-layers.json5", "tmp-json"),
        ("overlay-layers/tmp/lock-1", "tempdirs"),
        (&format!("overlay-images/{LAYER}"), "Image(0)"),
        (&format!("overlay-images/{ORPHAN}"), "orphan-image-dir"),
        (&format!("overlay-containers/{LAYER}"), "Container(0)"),
        (&format!("overlay-containers/{ORPHAN}"), "orphan-ctr-dir"),
        ("overlay-containers/volatile-containers.json", "Records"),
    ] {
        assert_eq!(kind_of(&parts, path), kind, "{path}");
    }
    let mut paths: Vec<_> = parts.iter().map(|(path, _)| path).collect();
    paths.dedup();
    assert_eq!(paths.len(), parts.len(), "no entry is counted twice");
    let pair = sorted.iter().find(|unit| unit.id == "7").unwrap();
    assert_eq!(pair.parts.len(), 2, "a temporary directory and its lock are one thing");
}

#[test]
fn top_level_is_counted_for_primary_driver_only() {
    let layer = format!("{LAYER}/");
    let (sorted, _) = sort(&snapshot(
        "vfs",
        false,
        &[
            ("", &["overlay/", "overlay-layers/", "vfs/", "vfs-layers/", "storage.lock", "libpod/"]),
            ("vfs", &["dir/", "tempdirs/", "odd"]),
            ("vfs/dir", &[&layer]),
        ],
    ));
    let parts = parts("vfs", &sorted);
    for (path, kind) in [
        (" alone", "nothing"),
        ("storage.lock", "nothing"),
        ("libpod", "nothing"),
        ("overlay", "nothing"),
        ("vfs alone", "Metadata"),
        ("vfs/dir alone", "Metadata"),
        ("vfs/odd", "other odd"),
        (&format!("vfs/dir/{LAYER}"), "Layer(0)"),
        ("vfs-layers alone", "Metadata"),
    ] {
        assert_eq!(kind_of(&parts, path), kind, "{path}");
    }
}

#[test]
fn unknown_volumes_are_orphans() {
    let listing: &[(&str, &[&str])] = &[
        ("", &["overlay/", "tmp/", "volumes/"]),
        ("tmp", &["pull/", "blob"]),
        ("volumes", &["known/", "lost/", "note"]),
    ];
    let mut read = snapshot("overlay", true, listing);
    // Without an inspection it is unknown which volumes podman has.
    let found = parts("overlay", &sort(&read).0);
    assert_eq!(kind_of(&found, "tmp alone"), "other tmp");
    assert_eq!(kind_of(&found, "tmp/pull"), "graphroot-tmp");
    assert_eq!(kind_of(&found, "tmp/blob"), "graphroot-tmp");
    assert_eq!(kind_of(&found, "volumes"), "other volumes");

    let volumes = [("known".to_owned(), None)].into();
    let engine = Engine::Known(PodmanRecords { volumes, ..PodmanRecords::default() });
    read.inspection = Inspection { valid: true, engine, ..Inspection::default() };
    let found = parts("overlay", &sort(&read).0);
    assert_eq!(kind_of(&found, "volumes alone"), "other volumes");
    assert_eq!(kind_of(&found, "volumes/known"), "other volumes");
    assert_eq!(kind_of(&found, "volumes/lost"), "volume-orphan");
    assert_eq!(kind_of(&found, "volumes/note"), "other volumes");

    read.inspection.engine = Engine::Unreadable("why".into());
    assert_eq!(kind_of(&parts("overlay", &sort(&read).0), "volumes"), "other volumes");
    // They are not counted for a second driver in the same graphroot.
    let found = parts("overlay", &sort(&snapshot("overlay", false, listing)).0);
    assert_eq!(kind_of(&found, "tmp/pull"), "nothing");
}

#[test]
fn temporary_files_have_their_own_roots() {
    let mut read = snapshot("overlay", true, &[("", &["overlay/"])]);
    read.places.temporary = vec![Root::for_tests(Path::new("/var/tmp"))];
    let entry = DirectoryEntry { name: "buildah4089947572".into(), kind: FileKind::Directory };
    read.listing.insert("/var/tmp".into(), vec![entry]);
    let (units, _) = sort(&read);
    let found = units.iter().find(|unit| unit.kind == StorageUnit::Orphan(Orphan::VarTmp)).unwrap();
    assert_eq!(found.path, Path::new("/var/tmp/buildah4089947572"));
    let (root, below, _) = &found.parts[0];
    assert_eq!(read.places.roots()[*root].join(below), found.path);
}
