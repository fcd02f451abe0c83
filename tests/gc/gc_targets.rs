//! Targets other than percent used, and filesystems that are shared or separate.

#![allow(clippy::unwrap_used)]

use std::fs::File;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, IN_USE, assert_exact, deleted, name, rule};
use support::loopfs::{Fs, MIB};
use support::program::{list, number, text};
use support::promises;
use support::store::Store;

fn inodes_used_percent(node: &GcNode) -> f64 {
    let sizes = rustix::fs::statvfs(node.loopfs.path()).unwrap();
    #[allow(clippy::cast_precision_loss)] // percents
    let free = sizes.f_ffree as f64 / sizes.f_files as f64;
    100.0 - free * 100.0
}

#[test]
fn inode_thresholds_start_collection() {
    let Some(node) = GcNode::with_mkfs(Fs::Ext4, 9, &["-N", "1500"]) else { return };
    node.age();
    // Far from short of bytes, nearly out of inodes.
    let junk = node.loopfs.path().join("junk");
    std::fs::create_dir(&junk).unwrap();
    let mut count = 0;
    while inodes_used_percent(&node) < 90.0 {
        File::create(junk.join(count.to_string())).unwrap();
        count += 1;
    }
    node.loopfs.sync();
    assert!(node.used_percent() < 50.0);
    let config = node.config("[images]\ninodes_high_percent = 90\ninodes_low_percent = 86\n");
    let words = ["gc", "--config", &config];
    let dry = node.json(0, &[&words[..], &["--dry-run"]].concat());
    let real = node.json(0, &words);
    assert_eq!(deleted(&dry), deleted(&real));
    assert!(inodes_used_percent(&node) <= 86.0, "{}", inodes_used_percent(&node));
    assert_eq!(real["outcome"], "reached");
    let filesystem = &list(&real, "/filesystems")[0];
    assert_eq!(filesystem["started"], serde_json::json!(["inodes"]));
    assert!(number(filesystem, "/wanted_inodes") > 0);
    let deletions = deleted(&real).len();
    assert!((1..8).contains(&deletions), "no more than needed: {real:#}");
    assert_eq!(deleted(&real), (0..deletions).map(name).collect::<Vec<_>>());
}

/// A spool directory holds all inodes: bytes are freed, no image is deleted for inodes, and the directory is named.
#[test]
fn directory_with_all_inodes_is_named() {
    let Some(node) = GcNode::with_mkfs(Fs::Ext4, 9, &["-N", "65536"]) else { return };
    node.age();
    node.fill(80.0);
    let spool = node.loopfs.path().join("spool/q");
    std::fs::create_dir_all(&spool).unwrap();
    let count = (0..).find(|number: &u64| File::create(spool.join(number.to_string())).is_err()).unwrap();
    (0..20).for_each(|number: u64| std::fs::remove_file(spool.join(number.to_string())).unwrap());
    node.loopfs.sync();
    let files = layersweep::model::text::display::thousands(count - 20 + 1);
    let named = format!("{}: {files} files", spool.display());

    let usage = node.run(&["usage"]).expect_code(0).stdout;
    assert!(usage.contains(&format!("{} has {files} files", spool.display())), "{usage}");
    let document = node.json(0, &["usage"]);
    let inodes = list(&document, "/filesystems/0/rows").iter().map(|row| number(row, "/inodes"));
    let (all, free) =
        (number(&document, "/filesystems/0/inodes"), number(&document, "/filesystems/0/inodes_free"));
    assert_eq!(inodes.sum::<u64>(), all - free, "{document:#}");
    let owners = node.run(&["explain", &node.loopfs.path().display().to_string()]).expect_code(0).stdout;
    assert!(owners.contains("INODES"), "{owners}");

    let dry = node.json(4, &["gc", "--dry-run"]);
    let text = node.run(&["gc", "--dry-run"]).expect_code(4).stdout;
    assert!(text.contains("(reaches the low threshold for bytes only). STILL FULL: "), "{text}");
    assert!(text.contains(&named), "{text}");
    let real = node.json(4, &["gc"]);
    assert_eq!((deleted(&dry), &dry["outcome"]), (deleted(&real), &real["outcome"]));
    assert_eq!(real["outcome"], "not_reached");
    assert!(node.used_percent() <= 70.0 && deleted(&real).len() < 9, "deletes for bytes as usual: {real:#}");
    assert_eq!(real["inode_use"][0]["largest"][0]["path"], spool.display().to_string());
    // With enough bytes, no image is deleted.
    let rest = node.json(4, &["gc"]);
    assert!(deleted(&rest).is_empty(), "{rest:#}");
    assert_eq!(
        node.json(0, &["gc", "--config", &node.config("[images]\ninodes_high_percent = \"off\"\n")])["outcome"],
        "not_needed"
    );
}

#[test]
fn min_free_starts_collection() {
    let Some(node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age();
    node.fill(80.0);
    fn available(node: &GcNode) -> u64 {
        let sizes = rustix::fs::statvfs(node.loopfs.path()).unwrap();
        sizes.f_bavail * sizes.f_frsize
    }
    let wanted = available(&node) + 15 * MIB;
    // The percentage alone would not start a collection.
    let real = node.json(0, &["gc", "--high", "99", "--low", "98", "--min-free", &wanted.to_string()]);
    assert_eq!(real["outcome"], "reached");
    assert_eq!(list(&real, "/filesystems")[0]["started"], serde_json::json!(["free"]));
    assert!(available(&node) >= wanted);
    assert_eq!(deleted(&real), [name(0), name(1), name(2)]);
    assert_exact(&real);
    // `free_until` wants more free bytes than the floor that starts the collection.
    let config = node.config(&format!(
        "[images]\nhigh_percent = \"off\"\nmin_free = {}\nfree_until = {}\n",
        available(&node) + 1,
        available(&node) + 10 * MIB
    ));
    let real = node.json(0, &["gc", "--config", &config]);
    assert_eq!(deleted(&real), [name(3), name(4)]);
    assert_eq!(
        (&real["high_percent"], &real["low_percent"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
}

#[test]
fn two_stores_share_one_filesystem() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    // The runtime's store, and a store of podman beside it.
    let other = Store::at(&node.loopfs.path().join("other"), "overlay");
    other.load(&[support::archive::ImageSpec {
        names: vec!["reg.local/podmans:1".into()],
        layers: vec![support::archive::LayerSpec {
            files: vec![8 * MIB],
            ..support::archive::LayerSpec::new("podmans")
        }],
        label: "podmans".into(),
    }]);
    node.age();
    let root = other.root().to_string_lossy().into_owned();
    let config = node.config("[images]\nmin_age = \"0s\"\nhigh_percent = 1\nlow_percent = 0\n");
    let dry = promises::assert_kept_by_plan(|words| {
        let flags = ["--graphroot", &root, "--config", &config, "--format", "json"];
        support::node::document(node.run(&[words, &flags].concat()))
    });
    assert!(deleted(&dry).contains(&"reg.local/podmans:1".to_owned()), "{dry:#}");
    node.fill(80.0);
    let real = node.json(4, &["gc", "--high", "1", "--low", "0", "--min-age", "0s", "--graphroot", &root]);
    assert_eq!(list(&real, "/filesystems").len(), 1, "they are judged together");
    assert_eq!(deleted(&real).len(), 8);
    assert!(deleted(&real).contains(&"reg.local/podmans:1".to_owned()), "{real:#}");
    assert_eq!(rule(&real, &name(IN_USE)), "in-use");
    assert_eq!(other.podman(["images", "--quiet"]), "");
    assert!(text(&real, "/outcome") == "not_reached");
    // The file that fills the disk does not belong to an image.
    let outside = &list(&real, "/not_in_store")[0];
    let filling = number(outside, "/bytes");
    assert!(filling > 100 * MIB && filling < node.loopfs.used_bytes(), "{outside:#}");
    let said = text(outside, "/text");
    assert!(said.starts_with("After this run ") && said.contains("of it is outside the stores"), "{said}");
}
