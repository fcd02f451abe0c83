//! Ages survive restarts of the program and of the runtime, count from the last use, and decide the age pass.

#![allow(clippy::unwrap_used)]

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, IN_USE, deleted, name, rule};
use support::loopfs::Fs;
use support::program::{list, text};

fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(name).collect()
}

#[test]
fn ages_survive_restarts() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 9) else { return };
    node.age(); // image 0 was detected 30 days ago, 1 was detected 29 days ago, ...
    // Space is sufficient, and by default no image is too old.
    let nothing = node.json(0, &["gc"]);
    assert_eq!(nothing["outcome"], "not_needed");
    let old = ["gc", "--max-age", "684h"]; // 28 days and a half
    let dry = node.json(0, &[&old[..], &["--dry-run"]].concat());
    assert_eq!(deleted(&dry), names([0, 1]));
    // Above the threshold, until the old ones are gone.
    let aged = node.json(0, &["gc", "--dry-run", "--max-age", "1d"]);
    let [before, after] =
        ["usage_before_percent", "usage_after_percent"].map(|key| aged[key].as_f64().unwrap());
    let high = before.floor();
    assert!(after < high, "{aged:#}");
    let high = high.to_string();
    let shown = node
        .run(&["gc", "--dry-run", "--max-age", "1d", "--high", &high, "--low", "0"])
        .expect_code(0)
        .stdout;
    assert!(shown.contains(": no deletion needed for space after those by age\n"), "{shown}");
    node.server.stop();
    node.server.restart();
    node.run(&["scan", "-q"]).expect_code(0);
    let real = node.json(0, &old);
    assert_eq!(deleted(&real), names([0, 1]));
    assert_eq!(real["trigger"], serde_json::json!({"space": false, "age": true}));
    assert_eq!(real["outcome"], "reached");
    assert!(list(&real, "/deleted").iter().all(|row| row["reason"] == "age"));

    // The same by configuration; the flag overrides it.
    let config = node.config("[images]\nmax_age = \"27d12h\"\n");
    let real = node.json(0, &["gc", "--config", &config, "--max-age", "off"]);
    assert_eq!((deleted(&real).len(), text(&real, "/outcome")), (0, "not_needed"));
    let real = node.json(0, &["gc", "--config", &config]);
    assert_eq!(deleted(&real), names([2]));
    assert_eq!(node.names(), names(3..9));
}

#[test]
fn use_resets_age_of_image() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    // Used for a while, and no longer.
    let made = node.server.podman().container(
        &node.server.podman().sandbox("pod-2", &name(0)),
        "pod-2",
        "app",
        &name(0),
    );
    let unowned = node.store.pin(&name(1));
    node.run(&["scan", "-q"]).expect_code(0);
    let containers = node.store.storage(["containers", "--json"]);
    let containers: serde_json::Value = serde_json::from_str(&containers).unwrap();
    for container in containers.as_array().unwrap() {
        if container["names"].to_string().contains("pod-2") {
            node.store.unpin(text(container, "/id"));
        }
    }
    assert!(!node.store.storage(["containers", "--json"]).contains(&made));
    node.store.unpin(&unowned);
    let old = ["gc", "--max-age", "672h30m"]; // a little more than 28 days
    let real = node.json(0, &old);
    assert!(
        deleted(&real).is_empty(),
        "both were detected 29 days ago or earlier, and used just now: {real:#}"
    );
    // Ordered by idle time: images that were never used come first, although they were detected later.
    let all = ["gc", "--high", "1", "--low", "0"];
    let real = node.json(4, &all);
    let mut expected = names([2, 3, 4, 6, 7]);
    let gone = deleted(&real);
    assert_eq!(gone[..5], expected);
    expected.extend(names([0, 1]));
    let mut gone = gone;
    gone[5..].sort();
    assert_eq!(gone, expected);
    assert_eq!(rule(&real, &name(IN_USE)), "in-use");
}

#[test]
fn unused_image_is_not_infinitely_old() {
    let Some(node) = GcNode::new(Fs::Ext4, 7) else { return };
    node.age();
    // Image 6 was detected yesterday and never used; image 0 was in use until two days ago.
    node.set_first_detected(&name(6), 1);
    let two_days_ago = jiff::Timestamp::now().as_microsecond() - 2 * 24 * 3600 * 1_000_000;
    let changed = node
        .database()
        .execute(
            "UPDATE images SET last_used = ?1, use_count = 1 WHERE names LIKE ?2",
            rusqlite::params![two_days_ago, format!("%\"{}\"%", name(0))],
        )
        .unwrap();
    assert_eq!(changed, 1);
    let real = node.json(4, &["gc", "--high", "1", "--low", "0"]);
    assert_eq!(deleted(&real), names([1, 2, 3, 4, 0, 6]));
}
