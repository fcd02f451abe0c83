//! `gc` and `rm` as an operator runs them: a podman store on a real filesystem that fills up, the test CRI server in
//! front of it (a fake, see there), and the state directory beside it.

#![allow(clippy::unwrap_used)]

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, IN_USE, assert_exact, deleted, name, rule};
use support::loopfs::Fs;
use support::program::{list, text};

const GC: [&str; 5] = ["gc", "--high", "75", "--low", "74"];

#[test]
fn run_matches_dry_run_and_stops_at_low() {
    for fs in Fs::ALL {
        let Some(node) = GcNode::new(fs, 8) else { return };
        node.age();
        node.fill(80.0);
        let dry = node.json(0, &[&GC[..], &["--dry-run"]].concat());
        assert_eq!(node.names().len(), 8, "a dry run deletes nothing");
        let real = node.json(0, &GC);
        assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
        assert!(node.used_percent() <= 74.0, "{fs:?}: {}", node.used_percent());
        let expected: Vec<_> = (0..deleted(&real).len()).map(name).collect();
        assert_eq!(deleted(&real), expected, "the oldest first");
        assert_eq!(rule(&real, &name(IN_USE)), "in-use");
        if fs != Fs::Btrfs {
            assert_eq!(deleted(&dry), deleted(&real));
            assert_exact(&real);
        }
        // No more than needed: without the last deletion the threshold would not have been reached.
        let before_last = list(&real, "/deleted").iter().rev().nth(1).unwrap();
        assert!(before_last["usage_after_percent"].as_f64().unwrap() > 74.0, "{real:#}");
        let history = node.json(0, &["history"]);
        let run = &list(&history, "/runs")[0];
        assert_eq!(run["run_id"], real["run_id"]);
        assert_eq!(list(run, "/deleted").len(), expected.len());
    }
}
