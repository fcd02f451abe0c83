use std::sync::Arc;

use proptest::prelude::*;

use crate::model::documents::comparison::growth::*;
use crate::model::documents::scan_summary::{ComparedScan, SummaryStore, layer_name};

fn entry(bytes: u64, name: &str) -> SummaryEntry {
    SummaryEntry { name: name.to_owned(), ..SummaryEntry::of_bytes(bytes) }
}

/// Adds the filesystem and the shares of a store with these objects: `(kind, id, bytes, name)`.
fn scan(used: u64, objects: &[(SummaryKind, &str, u64, &str)]) -> ScanSummary {
    use SummaryKind::{Container, Filesystem, Layer, Share};
    let store = SummaryStore { kind: "containerd".into(), root: "/var/lib/c".into(), driver: String::new() };
    let store = Arc::new(store);
    let mut summary = ScanSummary { complete: true, ..ScanSummary::default() };
    let filesystem = Key { place: Arc::default(), kind: Filesystem, id: "/var".into() };
    summary.entries.insert(filesystem, entry(used, "xfs"));
    let mut shares: BTreeMap<&str, u64> = [("images", 0), ("containers", 0), ("metadata", 3)].into();
    for (kind, id, bytes, name) in objects {
        let share = match kind {
            Layer if split_layer_name(name).1.is_some() => "images",
            Container => "containers",
            _ => "",
        };
        shares.entry(share).and_modify(|sum| *sum += bytes);
        let key = Key { place: Arc::clone(&store), kind: *kind, id: (*id).to_owned() };
        summary.entries.insert(key, entry(*bytes, name));
    }
    for (id, bytes) in shares {
        let key = Key { place: Arc::clone(&store), kind: Share, id: id.to_owned() };
        summary.entries.insert(key, entry(bytes, ""));
    }
    summary
}

fn user(name: &str, namespace: &str, image: &str) -> ContainerUser {
    ContainerUser {
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
        owner: "containerd".to_owned(),
        images: vec![image.to_owned()],
    }
}

fn growth(before: &ScanSummary, after: &ScanSummary, by: GroupBy) -> FilesystemGrowth {
    let [before, after] = [before, after].map(|summary| ComparedScan {
        id: String::new(),
        taken_at: jiff::Timestamp::UNIX_EPOCH,
        summary: summary.clone(),
    });
    let mut grown = ScanComparison { before, after }.growth(by);
    assert_eq!(grown.len(), 1, "{grown:?}");
    grown.remove(0)
}

fn rows(before: &ScanSummary, after: &ScanSummary, by: GroupBy) -> Vec<String> {
    let row = |row: &GrowthRow| {
        let [name, namespace, image] = [(&row.name, ""), (&row.namespace, "-"), (&row.image, "-")]
            .map(|(text, none)| text.as_deref().unwrap_or(none));
        format!("{} {name} {namespace} {image} {} -> {}", row.kind, row.before_bytes, row.after_bytes)
    };
    growth(before, after, by).rows.iter().map(row).collect()
}

/// A week: `writer` was restarted and writes, the image `old` was deleted, `new` was pulled on the base of `app`, a
/// container of another namespace ended, and a tag moved from `app` to `new`.
fn week() -> [ScanSummary; 2] {
    use SummaryKind::{Container, Image, Layer};
    let own = |image| layer_name("layer", Some(image));
    let mut before = scan(
        1000,
        &[
            (Image, "app", 60, "quay.io/app:1"),
            (Image, "old", 90, "quay.io/old:1"),
            (Layer, "base", 50, &own("app")),
            (Layer, "app", 10, &own("app")),
            (Layer, "old", 40, &own("old")),
            (Container, "c1", 5, "writer"),
            (Container, "c2", 7, "job"),
        ],
    );
    before.users =
        [("c1".into(), user("web-0/writer", "shop", "app")), ("c2".into(), user("job/job", "batch", "old"))]
            .into();
    let mut after = scan(
        1600,
        &[
            (Image, "app", 60, ""),
            (Image, "new", 130, "quay.io/app:1"),
            (Layer, "base", 50, &own("new")),
            (Layer, "app", 10, &own("app")),
            (Layer, "new", 80, &own("new")),
            (Container, "c3", 305, "writer"),
        ],
    );
    after.users = [("c3".into(), user("web-0/writer", "shop", "new"))].into();
    [before, after]
}

#[test]
fn only_bytes_that_came_are_growth() {
    let [before, after] = week();
    assert_eq!(
        rows(&before, &after, GroupBy::Container),
        [
            "container web-0/writer shop quay.io/app:1 5 -> 305",
            "not_in_store  - - 885 -> 1152",
            "images quay.io/app - - 50 -> 130",
            "images  - - 10 -> 10",
            "metadata  - - 3 -> 3",
            "container job/job batch quay.io/old:1 7 -> 0",
            "images quay.io/old - - 40 -> 0",
        ]
    );
    assert_eq!(
        rows(&before, &after, GroupBy::Namespace),
        [
            "group shop - - 55 -> 435",
            "not_in_store  - - 885 -> 1152",
            "unused  - - 10 -> 10",
            "metadata  - - 3 -> 3",
            "group batch - - 47 -> 0",
        ]
    );
    assert_eq!(
        rows(&before, &after, GroupBy::Repository),
        [
            "group quay.io/app - - 55 -> 435",
            "not_in_store  - - 885 -> 1152",
            "unnamed  - - 10 -> 10",
            "metadata  - - 3 -> 3",
            "group quay.io/old - - 47 -> 0",
        ]
    );
}

/// Adds paths outside the stores, `(kind, path, bytes, name)`, of a scan that names those of at least 10 bytes.
fn with_paths(mut summary: ScanSummary, paths: &[(SummaryKind, &str, u64, &str)]) -> ScanSummary {
    let rest = SummaryEntry { extra: 10, ..SummaryEntry::of_bytes(7) };
    summary.entries.insert(Key::outside(SummaryKind::Path, "/var".into()), rest);
    let paths = paths.iter().map(|(kind, path, bytes, name)| {
        (Key::outside(*kind, (*path).to_owned()), SummaryEntry { bytes: *bytes, ..entry(0, name) })
    });
    summary.entries.extend(paths);
    summary
}

#[test]
fn growth_outside_stores_has_a_name() {
    use SummaryKind::{Path, PodLog, PodVolume, Volume};
    let [before, after] = week();
    let plain = [rows(&before, &after, GroupBy::Owner), rows(&before, &after, GroupBy::Container)];
    let before = with_paths(
        before,
        &[
            (Path, "/var/db", 100, ""),
            (Path, "/var/mail", 30, ""),
            (Path, "/var/mail/a", 12, ""),
            (PodLog, "/var/log/pods/shop_web-0_1/app", 20, "shop/web-0/app"),
        ],
    );
    let mut after = with_paths(
        after,
        &[
            (Path, "/var/db", 250, ""),
            // Too small for the earlier scan: it counts with the directory around it.
            (Path, "/var/mail/b", 9, ""),
            (Path, "/var/mail", 33, ""),
            (Path, "/var/new", 40, ""),
            (PodLog, "/var/log/pods/shop_web-0_2/app", 25, "shop/web-0/app"),
            (PodVolume, "/var/lib/kubelet/pods/2/volumes/e/cache", 11, "shop/web-0/cache"),
        ],
    );
    let volume = after.entries.keys().find(|key| key.kind == SummaryKind::Share).unwrap().place.clone();
    let volume = Key { place: volume, kind: Volume, id: "/var/lib/c/volumes/pg".into() };
    after.entries.insert(volume, entry(13, "pg"));
    let found = rows(&before, &after, GroupBy::Container);
    for expected in [
        "path /var/db - - 100 -> 250",
        "path /var/new - - 0 -> 40",
        "path /var/mail - - 30 -> 42",
        "path /var/mail/a - - 12 -> 0",
        "pod_log web-0/app shop - 20 -> 25",
        "pod_volume web-0/cache shop - 0 -> 11",
        "volume pg - - 0 -> 13",
        "store_other  - - 0 -> -13",
        "not_in_store  - - 723 -> 784",
    ] {
        assert!(found.contains(&expected.to_owned()), "{expected}: {found:#?}");
    }
    let grown = growth(&before, &after, GroupBy::Container);
    let log = grown.rows.iter().find(|row| row.kind == GrowthKind::PodLog).unwrap();
    assert_eq!(log.path.as_deref(), Some("/var/log/pods/shop_web-0_2/app"));
    assert_eq!(rows(&before, &after, GroupBy::Owner), plain[0]);

    // A scan without paths, as of a file: all are in the rest.
    let [without, _] = week();
    assert!(!rows(&without, &after, GroupBy::Container).iter().any(|row| row.starts_with("path")));
    // A store that the later scan did not read is a path there.
    let unread = Key::outside(Path, "/var/lib/c".into());
    let mut later = ScanSummary { complete: true, ..ScanSummary::default() };
    let paths = after.entries.clone().into_iter().filter(|(key, _)| key.place.root.is_empty());
    later.entries = paths.chain([(unread.clone(), entry(500, ""))]).collect();
    let mut earlier = before.clone();
    earlier.retain_common(&later);
    assert_eq!(earlier.entries[&unread].bytes, 115);
    let found = rows(&earlier, &later, GroupBy::Container);
    assert!(found.contains(&"path /var/lib/c - - 115 -> 500".to_owned()), "{found:#?}");
}

#[test]
fn scan_without_users_is_unknown() {
    use SummaryKind::Container;
    let [mut before, after] = week();
    before.users.clear();
    let cri_o = "k8s_writer_web-0_shop_0f_1";
    before.entries.extend(
        scan(1000, &[(Container, "c9", 4, cri_o)])
            .entries
            .into_iter()
            .filter(|(key, _)| key.kind == Container),
    );
    let found = rows(&before, &after, GroupBy::Namespace);
    // The image of the ended job has no user any more, and no name says whose its container was.
    assert!(found.contains(&"unknown  - - 52 -> 0".to_owned()), "{found:#?}");
    assert!(found.contains(&"group shop - - 54 -> 435".to_owned()), "{found:#?}");
    let by_container = rows(&before, &after, GroupBy::Container);
    assert!(
        by_container.contains(&"container web-0/writer shop quay.io/app:1 4 -> 305".to_owned()),
        "{by_container:#?}"
    );
}

#[test]
fn pods_are_read_from_names_of_cri_o() {
    for (name, expected) in [
        ("k8s_app_web-0_shop_0f-1_2", Some(("web-0/app", "shop"))),
        ("k8s_POD_web-0_shop_0f-1_0", Some(("web-0 (sandbox)", "shop"))),
        ("k8s_app_web-0_shop", None),
        ("k8s_app_web_0_shop_0f-1_2", None),
        ("web", None),
    ] {
        let expected = expected.map(|(name, namespace)| (name.to_owned(), namespace.to_owned()));
        assert_eq!(pod_container(name), expected, "{name}");
    }
}

fn any_scan() -> impl Strategy<Value = ScanSummary> {
    use SummaryKind::{Container, Image, Layer};
    let object = (0..3_usize, 0..6_u8, 0..1_u64 << 30, 0..4_u8, 0..3_u8);
    let objects = proptest::collection::vec(object, 0..12);
    (objects, 0..1_u64 << 40, any::<bool>()).prop_map(|(objects, used, has_users)| {
        let names: Vec<_> = objects
            .iter()
            .map(|(kind, id, bytes, image, group)| {
                let name = match kind {
                    0 => layer_name("layer", (*image > 0).then_some(["a", "b", "c"][usize::from(*group)])),
                    1 => format!("quay.io/{group}:1"),
                    _ => format!("c{group}"),
                };
                (
                    [Layer, Image, Container][*kind],
                    ["a", "b", "c", "d", "e", "f"][usize::from(*id)],
                    *bytes,
                    name,
                )
            })
            .collect();
        // Each object once: the second of the same kind and id would not be in the shares.
        let unique: BTreeMap<_, _> =
            names.iter().map(|(kind, id, bytes, name)| ((*kind, *id), (*bytes, name.as_str()))).collect();
        let unique: Vec<_> =
            unique.into_iter().map(|((kind, id), (bytes, name))| (kind, id, bytes, name)).collect();
        let mut summary = scan(used, &unique);
        if has_users {
            let paths = names.iter().map(|(_, id, bytes, _)| {
                (
                    SummaryKind::Path,
                    ["/var/x", "/var/x/y", "/z"][usize::from(id.as_bytes()[0] % 3)],
                    *bytes,
                    "",
                )
            });
            summary = with_paths(summary, &paths.collect::<Vec<_>>());
        }
        if has_users {
            let containers = unique.iter().filter(|(kind, ..)| *kind == Container);
            summary.users =
                containers.map(|(_, id, _, name)| ((*id).to_owned(), user(name, name, "a"))).collect();
        }
        summary
    })
}

proptest! {
    #[test]
    fn rows_add_up_to_used_bytes(before in any_scan(), after in any_scan()) {
        for by in GroupBy::ALL {
            let grown = growth(&before, &after, *by);
            let sum = |field: fn(&GrowthRow) -> i64| grown.rows.iter().map(field).sum::<i64>();
            prop_assert_eq!(sum(|row| row.before_bytes), i64::try_from(grown.used.before_bytes).unwrap());
            prop_assert_eq!(sum(|row| row.after_bytes), i64::try_from(grown.used.after_bytes).unwrap());
            prop_assert!(grown.rows.iter().all(|row| row.path.is_some() == (row.kind == GrowthKind::Path)));
            let rest = grown.rows.iter().position(|row| row.kind == GrowthKind::Rest);
            prop_assert!(rest.is_none_or(|position| position + 1 == grown.rows.len()));
        }
        let unchanged = growth(&before, &before, GroupBy::Container);
        prop_assert!(unchanged.rows.iter().all(|row| row.change_bytes == 0));
    }
}

#[test]
fn deduplication_between_scans_has_a_row() {
    use SummaryKind::{Layer, Saved};
    let name = layer_name("overlay", Some("x"));
    let layers = [(Layer, "a", 60, name.as_str()), (Layer, "b", 60, name.as_str())];
    let mut scans = [scan(130, &layers), scan(90, &layers)];
    for (summary, saved) in scans.iter_mut().zip([0, 40]) {
        summary.entries.insert(Key::outside(Saved, "/var".into()), entry(saved, ""));
    }
    let [before, after] = &scans;
    let grown = growth(before, after, GroupBy::Container);
    let changed: Vec<_> = grown.rows.iter().filter(|row| row.change_bytes != 0).collect();
    assert_eq!(
        changed.iter().map(|row| (row.kind, row.change_bytes)).collect::<Vec<_>>(),
        [(GrowthKind::Saved, -40)]
    );
    assert_eq!(grown.rows.iter().map(|row| row.after_bytes).sum::<i64>(), 90);
    // A scan of a document does not say what is saved.
    let mut without = before.clone();
    without.entries.retain(|key, _| key.kind != Saved);
    let grown = growth(&without, after, GroupBy::Container);
    assert!(grown.rows.iter().all(|row| row.kind != GrowthKind::Saved), "{grown:?}");
    assert_eq!(grown.rows.iter().map(|row| row.change_bytes).sum::<i64>(), -40);
}

#[test]
fn inodes_have_rows_if_they_grew() {
    use SummaryKind::{Inodes, Layer, Path};
    let name = layer_name("layer", Some("a"));
    // Used bytes, used inodes of 1000, inodes of the layer, of its share, and of a path.
    let taken = |used, inodes: [u64; 3]| {
        let [of_filesystem, of_layer, of_path] = inodes;
        let mut summary = scan(used, &[(Layer, "l", 50, &name)]);
        summary = with_paths(summary, &[(Path, "/var/mail", 20, "")]);
        for (key, entry) in &mut summary.entries {
            match (key.kind, key.id.as_str()) {
                (SummaryKind::Layer, _) | (SummaryKind::Share, "images") => entry.inodes = of_layer,
                (SummaryKind::Path, "/var/mail") => entry.inodes = of_path,
                (SummaryKind::Filesystem, _) => entry.extra = 10_000,
                _ => {}
            }
        }
        let entry = SummaryEntry { inodes: of_filesystem, extra: 1000, ..SummaryEntry::default() };
        summary.entries.insert(Key::outside(Inodes, "/var".into()), entry);
        summary
    };
    let before = taken(5000, [300, 100, 50]);
    for (used, inodes, by_inodes) in [
        // A larger part of the inodes than of the bytes, of which more are left.
        (5500, [600, 110, 340], true),
        // As many, and fewer bytes are left.
        (5500, [400, 110, 140], false),
        (5500, [340, 110, 80], false),
        (5000, [309, 105, 54], false),
        // Nothing grew, but few are left.
        (5500, [950, 110, 690], true),
    ] {
        let grown = growth(&before, &taken(used, inodes), GroupBy::Container);
        assert_eq!(grown.by_inodes, by_inodes, "{used} {inodes:?}");
        let change = i64::try_from(inodes[0]).unwrap() - 300;
        assert_eq!(grown.change_inodes, Some(change));
        let all = grown.rows.iter().map(|row| row.change_inodes.unwrap());
        assert_eq!(all.sum::<i64>(), change, "{grown:?}");
        let path = grown.rows.iter().find(|row| row.kind == GrowthKind::Path).unwrap();
        assert_eq!(path.change_inodes, Some(i64::try_from(inodes[2]).unwrap() - 50));
        assert_eq!(grown.rows[0].kind == GrowthKind::Path, by_inodes, "the most inodes are first: {grown:?}");
    }
    // A document has no inodes.
    let mut document = before.clone();
    document.entries.retain(|key, _| key.kind != Inodes);
    let grown = growth(&document, &taken(5500, [950, 110, 690]), GroupBy::Container);
    assert_eq!((grown.change_inodes, grown.by_inodes), (None, false));
    assert!(grown.rows.iter().all(|row| row.change_inodes.is_none()));
}
