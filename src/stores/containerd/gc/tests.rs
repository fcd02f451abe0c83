//! containerd's rules one by one, on generated namespaces.

use super::*;

fn labels(pairs: &[(&str, &str)]) -> RecordLabels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn blob(digest: &str, edges: &[(&str, &str)]) -> BlobRecord {
    BlobRecord { digest: digest.into(), labels: labels(edges), ..BlobRecord::default() }
}

fn snapshot(key: &str, parent: Option<&str>, edges: &[(&str, &str)]) -> SnapshotRecord {
    SnapshotRecord {
        snapshotter: "overlayfs".into(),
        key: key.into(),
        parent: parent.map(str::to_owned),
        labels: labels(edges),
        ..SnapshotRecord::default()
    }
}

fn image(name: &str, target: &str) -> ImageRecord {
    ImageRecord { name: name.into(), target: target.into(), ..ImageRecord::default() }
}

/// An index with a child that was never fetched, a manifest, its configuration and layer, and two snapshots.
fn namespace() -> Namespace {
    Namespace {
        name: "k8s.io".into(),
        images: vec![image("app", "index")],
        blobs: vec![
            blob(
                "index",
                &[
                    ("containerd.io/gc.ref.content.m.0", "manifest"),
                    ("containerd.io/gc.ref.content.m.1", "never fetched"),
                ],
            ),
            blob(
                "manifest",
                &[
                    ("containerd.io/gc.ref.content.config", "config"),
                    ("containerd.io/gc.ref.content.l.0", "layer"),
                ],
            ),
            blob("config", &[("containerd.io/gc.ref.snapshot.overlayfs", "top")]),
            blob("layer", &[("containerd.io/uncompressed", "base")]),
            blob("alone", &[]),
        ],
        snapshots: vec![snapshot("top", Some("base"), &[]), snapshot("base", None, &[])],
        ..Namespace::default()
    }
}

fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().expect("time")
}

#[test]
fn image_keeps_its_blobs_and_top_snapshot() {
    let namespace = namespace();
    let graph = Graph::new(&namespace, false);
    let expected = ["index", "manifest", "config"].map(Ref::Content);
    let expected =
        [expected.as_slice(), &[Ref::Snapshot("overlayfs", "top"), Ref::Content("layer")]].concat();
    assert_eq!(graph.image(&namespace.images[0]), expected);
    assert_eq!(graph.needs((&namespace.snapshots[0]).into()), [Ref::Snapshot("overlayfs", "base")]);
    let marked = graph.marked(now());
    assert!(marked.contains(&Ref::Snapshot("overlayfs", "base")), "through its child");
    assert!(!marked.contains(&Ref::Content("alone")));
    assert_eq!(marked.len(), 6);
}

#[test]
fn every_form_of_an_edge_is_recognized() {
    let table = [
        ("containerd.io/gc.ref.content", Some(Ref::Content("v"))),
        ("containerd.io/gc.ref.content.l.12", Some(Ref::Content("v"))),
        ("containerd.io/gc.ref.content/custom", Some(Ref::Content("v"))),
        ("containerd.io/gc.ref.contents", None),
        ("containerd.io/gc.ref.snapshot.native", Some(Ref::Snapshot("native", "v"))),
        ("containerd.io/gc.ref.snapshot.native/second", Some(Ref::Snapshot("native", "v"))),
        ("containerd.io/gc.ref.image", Some(Ref::Image("v"))),
        ("containerd.io/gc.ref.image.base", Some(Ref::Image("v"))),
        ("containerd.io/gc.cond.snapshot.erofs", Some(Ref::Snapshot("erofs", "v"))),
        ("containerd.io/gc.root", None),
        ("containerd.io/uncompressed", None),
    ];
    for (label, edge) in table {
        assert_eq!(label_edge(label, "v"), edge, "{label}");
    }
    let conditional = label_edge("containerd.io/gc.cond.snapshot.erofs/x", "usedat<72h|key");
    assert_eq!(conditional, Some(Ref::Snapshot("erofs", "key")));
}

#[test]
fn back_references_keep_their_child() {
    let mut namespace = namespace();
    namespace.blobs[4].labels = labels(&[
        ("containerd.io/gc.bref.snapshot.overlayfs/x", "base"),
        ("containerd.io/gc.bref.container", "c1"),
    ]);
    namespace.containers.push(ContainerRecord { id: "c1".into(), ..ContainerRecord::default() });
    let graph = Graph::new(&namespace, false);
    assert_eq!(graph.needs((&namespace.snapshots[1]).into()), [Ref::Content("alone")]);
    assert_eq!(graph.container(&namespace.containers[0]), [Ref::Content("alone")]);
}

#[test]
fn leases_keep_content_until_they_expire() {
    let lease = |expire: Option<&str>, flat: bool| {
        let mut lease = LeaseRecord { content: vec!["manifest".into()], ..LeaseRecord::default() };
        if let Some(expire) = expire {
            lease.labels.insert(EXPIRE.into(), expire.into());
        }
        if flat {
            lease.labels.insert(FLAT.into(), "x".into());
        }
        lease
    };
    fn time(text: &str) -> Timestamp {
        text.parse().expect("time")
    }
    let table = [
        (None, Term::Unlimited),
        (Some("no time"), Term::Unlimited),
        (Some("2026-01-03T00:00:00Z"), Term::Until(time("2026-01-03T00:00:00Z"))),
        (Some("2026-01-01T00:00:00+02:00"), Term::Expired(time("2025-12-31T22:00:00Z"))),
    ];
    for (expire, expected) in table {
        assert_eq!(term(&lease(expire, false).labels, now()), expected);
        let mut namespace = namespace();
        namespace.images.clear();
        namespace.leases.push(lease(expire, false));
        let graph = Graph::new(&namespace, false);
        let marked = graph.marked(now());
        let count = if matches!(expected, Term::Expired(_)) { 0 } else { 5 };
        assert_eq!(marked.len(), count, "{expire:?}: manifest, config, layer, two snapshots");
    }
    let mut namespace = namespace();
    namespace.leases.push(lease(None, true));
    assert_eq!(Graph::new(&namespace, false).lease(&namespace.leases[0]), [Ref::Content("manifest")], "flat");
}

#[test]
fn images_keep_content_until_they_expire() {
    for (expire, since_2, count) in [
        ("2026-01-01T00:00:00Z", true, 0),
        ("2026-01-01T00:00:00Z", false, 6),
        ("2026-01-03T00:00:00Z", true, 6),
        ("no time", true, 6),
    ] {
        let mut namespace = namespace();
        namespace.images[0].labels = labels(&[(EXPIRE, expire)]);
        let graph = Graph::new(&namespace, since_2);
        assert_eq!(graph.marked(now()).len(), count, "{expire}, {since_2}");
        assert_eq!(graph.expired(&namespace.images[0], now()).is_some(), count == 0, "{expire}, {since_2}");
    }
}

#[test]
fn expired_image_with_back_reference_is_kept() {
    let bref = ("containerd.io/gc.bref.image", "app");
    let expired = |edges: &[(&str, &str)]| {
        let mut namespace = namespace();
        let mut extra = image("app@sha256:0", "alone");
        extra.labels = labels(&[&[(EXPIRE, "2026-01-01T00:00:00Z")], edges].concat());
        namespace.images.push(extra);
        let graph = Graph::new(&namespace, true);
        (
            graph.expired(&namespace.images[1], now()).is_some(),
            graph.marked(now()).contains(&Ref::Content("alone")),
        )
    };
    assert_eq!(expired(&[bref]), (false, true), "as long as the image that it names");
    assert_eq!(expired(&[]), (true, false));
}

#[test]
fn labels_and_ingests_are_roots() {
    let mut namespace = namespace();
    namespace.images.clear();
    namespace.blobs[4].labels = labels(&[("containerd.io/gc.root", "1999-01-01T00:00:00Z")]);
    namespace.blobs[3].labels = labels(&[("containerd.io/gc.root.mytool", "true")]);
    namespace.blobs[2].labels = labels(&[("containerd.io/gc.roo", "true")]);
    namespace.snapshots[1].labels = labels(&[("containerd.io/gc.root", "x")]);
    let ingest = |key: &str, expires: Option<&str>| IngestRecord {
        key: key.into(),
        expires: expires.map(|text| text.parse().expect("time")),
        ..IngestRecord::default()
    };
    namespace.ingests = vec![
        ingest("running", Some("2026-01-02T01:00:00Z")),
        ingest("over", Some("2026-01-01T23:00:00Z")),
        ingest("of a lease", None),
    ];
    let graph = Graph::new(&namespace, false);
    let mut marked: Vec<_> = graph.marked(now()).iter().copied().collect();
    marked.sort();
    let expected = [
        Ref::Content("alone"),
        Ref::Content("layer"),
        Ref::Snapshot("overlayfs", "base"),
        Ref::Ingest("running"),
    ];
    assert_eq!(marked, expected, "every label that starts with gc.root, as in containerd 2.2");
}

#[test]
fn cycles_end() {
    let mut namespace = namespace();
    namespace.blobs[3].labels = labels(&[("containerd.io/gc.ref.content.x", "index")]);
    namespace.snapshots[1].parent = Some("top".into());
    assert_eq!(Graph::new(&namespace, false).marked(now()).len(), 6);
}
