use serde_json::{Value, json};

use crate::model::documents::fleet::*;

const GIB: u64 = 1 << 30;

/// Returns a document of `scan` with one filesystem of 100 GiB, of which `used` are used.
fn scan(name: &str, used: u64) -> Value {
    json!({
        "schema_version": 1, "kind": "scan", "generated_at": "2026-11-20T10:00:00Z", "node": name, "complete": true,
        "filesystems": [{
            "mount": "/var", "fstype": "xfs", "capacity_bytes": 100 * GIB, "used_bytes": used * GIB,
            "available_bytes": (100 - used) * GIB, "used_percent": used as f64, "inodes": 1000, "inodes_free": 900,
        }],
        "stores": [store(10 * GIB)],
        "images": [], "layers": [], "containers": [], "leaks": [], "scan": { "inodes": 1 },
        "totals": { "images": 1, "images_unused": 1, "containers": 2, "leaks": 3, "bytes": GIB, "reclaimable_bytes": 10 * GIB },
    })
}

fn store(reclaimable_bytes: u64) -> Value {
    json!({
        "kind": "containers-storage", "root": "/var/s", "driver": "overlay", "filesystem": "/var",
        "bytes": { "images": 0, "containers": 0, "build_cache": 0, "leaks": 0, "metadata": 0, "other": 0 },
        "reclaimable_bytes": reclaimable_bytes,
    })
}

/// Returns a document of `report` with this urgency, a low threshold of 85 %, and a forecast.
fn report(name: &str, used: u64, urgency: &str, full_in_seconds: Option<i64>) -> Value {
    let mut report = scan(name, used);
    report["scan"] = scan(name, used);
    report["kind"] = "report".into();
    report["host"] = name.into();
    report["verdict"] = json!({ "urgency": urgency, "headline": "/var is full" });
    report["filesystems"][0]["thresholds"] = json!([{ "name": "gc low", "percent": 85.0 }]);
    report["filesystems"][0]["forecast"] =
        json!(full_in_seconds.map(|seconds| json!({ "bytes_per_hour": 5, "full_in_seconds": seconds })));
    report
}

fn image(id: &str, name: &str, in_use: bool, bytes: u64) -> Value {
    json!({
        "id": id, "store": "/var/s", "names": [name], "in_use": in_use, "pinned": false,
        "total_bytes": 2 * bytes, "exclusive_bytes": bytes, "frees_bytes": bytes - 1,
    })
}

/// Returns the sums at the time of the usual document.
fn merged(documents: &[Value]) -> Fleet {
    let mut sums = FleetSums::new("2026-11-20T10:00:00Z".parse().unwrap());
    for document in documents {
        let text = serde_json::to_vec(document).unwrap();
        let document = NodeDocument::read(&text).unwrap();
        let name = document.origin().0.unwrap().to_owned();
        sums.add(name, &document);
    }
    sums.finish()
}

#[test]
fn document_from_the_future_changes_no_other_node() {
    let (mut future, mut before) = (scan("b", 50), report("a", 80, "warning", Some(7200)));
    before["filesystems"][0]["forecast"]["window_seconds"] = 3600.into();
    let alone = merged(&[before.clone()]);
    future["generated_at"] = "2099-01-01T00:00:00Z".into();
    let both = merged(&[before, future]);
    assert_eq!((both.nodes.stale, both.nodes.forecast, both.nodes.future), (0, 1, 1));
    assert_eq!((both.nodes.newest_at, both.nodes.count), (alone.nodes.newest_at, 2));
    assert_eq!(both.urgent[0], alone.urgent[0]);
}

#[test]
fn image_is_summed_where_it_is_unused() {
    let (mut a, mut b) = (scan("a", 50), scan("b", 50));
    a["images"] = json!([
        image("0a", "web:1", false, 100),
        // In a second store, and in another namespace.
        image("moby/sha256:0a", "web:2", false, 10),
        image("0b", "db:1", true, 70),
    ]);
    b["images"] = json!([image("sha256:0a", "web:1", true, 100), image("0b", "db:1", false, 7)]);
    let expected =
        |id: &str, names: &[&str], [nodes, nodes_unused, total, exclusive, frees]: [u64; 5]| FleetImage {
            id: id.into(),
            names: names.iter().map(|name| (*name).into()).collect(),
            nodes,
            nodes_unused,
            total_bytes: total,
            unused_exclusive_bytes: exclusive,
            unused_frees_bytes: frees,
        };
    let expected = [
        expected("0a", &["web:1", "web:2"], [2, 1, 200, 110, 108]),
        expected("0b", &["db:1"], [2, 1, 140, 7, 6]),
    ];
    assert_eq!(merged(&[a.clone(), b.clone()]).images, expected);
    assert_eq!(merged(&[b, a]).images, expected, "in any order");
}

#[test]
fn image_lists_few_of_many_names() {
    let documents = (0..20).rev().map(|number| {
        let mut document = scan(&format!("node-{number}"), 50);
        document["images"] = json!([image("0a", &format!("web:{number:02}"), true, 1)]);
        document
    });
    let images = merged(&documents.collect::<Vec<_>>()).images;
    let names: Vec<_> = (0..LISTED_NAMES).map(|number| format!("web:{number:02}")).collect();
    assert_eq!(images[0].names, names);
}

#[test]
fn leaks_are_summed_by_class() {
    let leak = |class: &str, verdict: &str, bytes: u64| json!({ "id": "a", "store": "/var/s", "class": class, "verdict": verdict, "bytes": bytes });
    let (mut a, mut b) = (scan("a", 50), scan("b", 50));
    a["leaks"] = json!([leak("x", "reclaim", 4), leak("x", "keep", 2), leak("y", "report", 100)]);
    b["leaks"] = json!([leak("x", "reclaim", 1)]);
    let leaks = merged(&[a, b]).leaks;
    let found =
        leaks.iter().map(|leak| (&*leak.class, leak.nodes, leak.count, leak.bytes, leak.reclaim_bytes));
    assert_eq!(found.collect::<Vec<_>>(), [("y", 1, 1, 100, 0), ("x", 2, 3, 7, 5)]);
}

#[test]
fn most_urgent_node_is_first() {
    let hour = Some(3600);
    let fleet = merged(&[
        scan("empty", 10),
        scan("filling", 90),
        scan("fuller", 92),
        report("soon", 60, "calm", hour),
        report("later", 60, "calm", Some(30 * 24 * 3600)),
        report("evicting", 96, "critical", None),
        report("pressed", 88, "warning", hour),
        scan("full", 100),
    ]);
    let names: Vec<_> = fleet.urgent.iter().map(|node| node.node.as_str()).collect();
    assert_eq!(names, ["full", "evicting", "pressed", "fuller", "filling", "soon", "later", "empty"]);
    let node = |name: &str| fleet.urgent.iter().find(|node| node.node == name).unwrap();
    // Deleting 10 of the 96 GiB leaves 86 %, above the low threshold of 85 %.
    assert_eq!(
        (node("evicting").used_after_percent, node("evicting").reaches_low),
        (Some(86.0), Some(false))
    );
    assert_eq!((node("pressed").used_after_percent, node("pressed").reaches_low), (Some(78.0), Some(true)));
    assert_eq!((node("filling").reaches_low, node("filling").full_at), (None, None));
    let nodes = &fleet.nodes;
    assert_eq!((nodes.count, nodes.critical, nodes.warning, nodes.calm), (8, 2, 3, 3));
    assert_eq!((nodes.low_not_reached, nodes.forecast), (1, 3));
    let within: Vec<_> = fleet.forecasts.iter().map(|forecast| forecast.nodes).collect();
    assert_eq!(within, [2, 2, 2, 3]);
    assert_eq!(fleet.totals.containers, 16);
}

/// A forecast counts only while its document is not older than its readings.
#[test]
fn forecast_ages_with_its_document() {
    let aged = |name: &str, time: &str, full_in: i64, window: i64| {
        let mut document = report(name, 60, "calm", Some(full_in));
        document["generated_at"] = time.into();
        document["filesystems"][0]["forecast"]["window_seconds"] = window.into();
        document
    };
    const NOW: &str = "2026-11-20T10:00:00Z";
    const DAY: i64 = 24 * 3600;
    let fleet = merged(&[
        scan("newest", 50),
        aged("gone", "2026-10-13T10:00:00Z", 3600, 7 * DAY),
        aged("hours", "2026-11-20T07:00:00Z", 10 * 3600, 6 * 3600),
        aged("past", "2026-11-20T09:00:00Z", 60, 6 * 3600),
        aged("days", "2026-11-17T10:00:00Z", 5 * DAY, 7 * DAY),
        aged("old-hours", "2026-11-20T03:00:00Z", 10 * 3600, 6 * 3600),
    ]);
    let now: Timestamp = NOW.parse().unwrap();
    let full_in = |name: &str| {
        let node = fleet.urgent.iter().find(|node| node.node == name).unwrap();
        node.full_at.map(|full_at| full_at.duration_since(now).as_secs())
    };
    for (name, expected) in [
        ("gone", None),
        ("hours", Some(7 * 3600)),
        ("past", Some(60 - 3600)),
        ("days", Some(2 * DAY)),
        ("old-hours", None),
    ] {
        assert_eq!(full_in(name), expected, "{name}");
    }
    let within: Vec<_> = fleet.forecasts.iter().map(|forecast| forecast.nodes).collect();
    assert_eq!((fleet.nodes.forecast, within), (3, vec![2, 3, 3, 3]));
    let stale: Vec<_> = fleet.stale.iter().map(|node| node.node.as_str()).collect();
    assert_eq!((fleet.nodes.stale, stale), (2, vec!["gone", "days"]));
    assert_eq!((fleet.nodes.of_scan, fleet.nodes.with_thresholds), (1, 5));
}

#[test]
fn only_the_most_urgent_nodes_are_kept() {
    let documents: Vec<_> = (0..500).map(|number| scan(&format!("node-{number}"), number % 85)).collect();
    let fleet = merged(&documents);
    assert_eq!((fleet.nodes.count, fleet.urgent.len()), (500, LISTED_NODES));
    assert_eq!(fleet.urgent[0].used_percent, Some(84.0));
    // Five nodes of each percentage from 75 on, six below.
    assert_eq!(fleet.urgent[LISTED_NODES - 1].used_percent, Some(66.0));
}

#[test]
fn volumes_and_stores_of_users_are_figures() {
    let mut document = report("a", 50, "calm", None);
    document["filesystems"][0]["parts"] = json!([
        { "kind": "volumes", "bytes": 1 },
        { "kind": "kubelet-volumes", "bytes": 20 },
        { "kind": "other-store", "bytes": 300 },
        { "kind": "logs", "bytes": 4000 },
    ]);
    let totals = merged(&[document, scan("b", 50)]).totals;
    assert_eq!((totals.volume_bytes, totals.other_store_bytes), (21, 300));
}

#[test]
fn sums_beyond_u64_are_saturated() {
    let mut document = scan("a", 50);
    document["totals"]["bytes"] = u64::MAX.into();
    document["stores"] = json!([store(u64::MAX), store(1)]);
    document["filesystems"][0]["inodes_free"] = u64::MAX.into();
    let fleet = merged(&[document.clone(), document]);
    assert_eq!(fleet.totals.store_bytes, u64::MAX);
    assert_eq!(fleet.urgent[0].used_after_percent, Some(0.0));
}

#[test]
fn nameless_node_has_no_name() {
    for name in ["", "localhost", "localhost.localdomain", &"x".repeat(300)] {
        let text = serde_json::to_vec(&scan(name, 1)).unwrap();
        assert_eq!(NodeDocument::read(&text).unwrap().origin().0, None, "{name}");
    }
}

#[test]
fn document_without_a_scan_is_refused() {
    let without = |field: &str| {
        let mut document = scan("a", 1);
        document.as_object_mut().unwrap().remove(field);
        document.to_string()
    };
    let mut newer = scan("a", 1);
    newer["schema_version"] = 2.into();
    newer["images"] = "in another form".into();
    for (text, expected) in [
        (String::new(), "not a JSON document"),
        ("{\"kind\":\"scan\"".into(), "not a JSON document"),
        (format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)), "not a document of layersweep"),
        ("{}".into(), "not a document of layersweep"),
        ("[1]".into(), "it is not a document of layersweep"),
        ("null".into(), "it is not a document of layersweep"),
        (r#"{"schema_version":1,"kind":"scan","scan":5}"#.into(), "expected an object"),
        (r#"{"schema_version":1,"kind":"images","images":[]}"#.into(), "kind \"images\""),
        (newer.to_string(), "schema_version is 2"),
        (without("images"), "missing field `images`"),
        (without("generated_at"), "missing field `generated_at`"),
        (without("totals").replace("\"kind\":\"scan\"", "\"kind\":\"report\""), "missing field `stores`"),
    ] {
        let error = NodeDocument::read(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{}: {error}", text.chars().take(60).collect::<String>());
    }
}
