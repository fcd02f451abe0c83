//! Growth on containerd: a container that writes to its writable layer, and to a volume that its image declares, is the
//! first row.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use crate::support;
use support::containerd_node::{ContainerdNode, image};
use support::loopfs::{Fs, MIB};
use support::program::{self, list, number, text};

#[test]
fn writing_container_is_first_row() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 300 * MIB, &[]) else { return };
    node.json(0, &["scan"]);
    let records = node.state.join("layersweep.db");
    let database = rusqlite::Connection::open(records).unwrap();
    database.execute("UPDATE kept_scans SET at = at - ?1", [6 * 3_600_000_000_i64]).unwrap();
    drop(database);
    let write = "/bin/busybox dd if=/dev/zero of=/grown bs=1M count=40 2>/dev/null";
    let container = node.rig.noted("pods", "ctr2");
    node.rig.shell(&format!("C tasks exec --exec-id w {container} {write}"));
    let volume =
        node.root().join("io.containerd.grpc.v1.cri/containers").join(container).join("volumes/0f1e");
    std::fs::create_dir_all(&volume).unwrap();
    std::fs::write(volume.join("data"), vec![7; usize::try_from(12 * MIB).unwrap()]).unwrap();
    node.import("more", &[image(&["more"], "more", 8)], "C images import");
    let growth = node.json(0, &["usage", "--since", "6h"]);
    let rows = list(&growth, "/filesystems/0/rows");
    assert_eq!((text(&rows[0], "/kind"), text(&rows[0], "/name")), ("container", "pod2/b"), "{growth:#}");
    assert_eq!((text(&rows[0], "/namespace"), text(&rows[0], "/image")), ("default", "reg.local/app-b:1"));
    let grown = number(&rows[0], "/change_bytes");
    assert!((52 * MIB..53 * MIB).contains(&grown), "{growth:#}");
    let per_day = number(&rows[0], "/bytes_per_day");
    assert!((grown * 4 * 98 / 100..=grown * 4).contains(&per_day), "{growth:#}");
    assert_eq!(
        (text(&rows[1], "/kind"), text(&rows[1], "/name")),
        ("images", "reg.local/more"),
        "{growth:#}"
    );
    let shown = node.run(&["usage", "--since", "6h"]).expect_code(0).stdout;
    let row = shown.lines().nth(3).unwrap();
    assert!(row.starts_with("container pod2/b ") && row.contains(" default "), "{shown}");
    assert!(row.contains("+52.0 MiB") && row.ends_with("reg.local/app-b:1"), "{shown}");
    let report = node.json(0, &["report"]);
    let causes = list(&report, "/verdict/causes").iter();
    let about_volume: Vec<_> = causes.filter(|cause| text(cause, "/kind") == "volume").collect();
    assert_eq!(about_volume.len(), 1, "{report:#}");
    assert_eq!(text(about_volume[0], "/title"), "volume of container b");
    let by_namespace = node.json(0, &["usage", "--since", "6h", "--by", "namespace"]);
    let names = list(&by_namespace, "/filesystems/0/rows").iter().take(2);
    let names: Vec<_> = names.map(|row| (text(row, "/kind"), row["name"].as_str())).collect();
    assert_eq!(names, [("group", Some("default")), ("unused", None)], "{by_namespace:#}");

    // Metrics by namespace are off, and bounded where they are on.
    node.json(0, &["scan"]);
    let config = node.rig.scratch().join("metrics.toml");
    let namespaces = |keys: &str| -> Vec<(String, u64)> {
        std::fs::write(&config, keys).unwrap();
        let words = ["metrics", "--config", config.to_str().unwrap(), "--state-dir"];
        let run = program::run(program::command().args(words).arg(&node.state)).expect_code(0);
        let lines = run.stdout.lines().filter_map(|line| {
            let (labels, bytes) =
                line.strip_prefix("layersweep_storage_namespace_bytes{")?.split_once("} ")?;
            let (_, namespace) = labels.split_once("namespace=\"")?;
            Some((namespace.trim_end_matches('"').to_owned(), bytes.parse().unwrap()))
        });
        lines.collect()
    };
    assert_eq!(namespaces(""), []);
    let found = namespaces("[metrics]\nnamespaces = 1\n");
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["_none", "default"], "{found:?}");
    assert!(found[1].1 >= 40 * MIB && found[0].1 >= 8 * MIB, "{found:?}");
}
