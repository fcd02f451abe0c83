//! Images that the kubelet is pulling are kept.

#![allow(clippy::unwrap_used)]

use std::fs;

use crate::support;
use serde_json::json;
use support::gc_document::rule;
use support::node::{self, Node};
use support::{past, small, store};

#[test]
fn image_being_pulled_by_kubelet_is_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(&dir.path().join("root")));
    node.store.unmount();
    let config = dir.path().join("layersweep.toml");
    let top = dir.path().display();
    let text =
        format!("[kubelet]\nroot_dir = \"{top}/kubelet\"\n[protect]\nstatic_pods = \"{top}/manifests\"\n");
    fs::write(&config, text).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let pulled = dir.path().join("kubelet/image_manager/pulled");
    fs::create_dir_all(&pulled).unwrap();
    let images = node.json(&["images"]);
    let id = node::image(&images, &small::name("other"))["id"].as_str().unwrap().to_owned();
    let record = json!({
        "kind": "ImagePulledRecord",
        "apiVersion": "imagemanager.kubelet.config.k8s.io/v1beta1",
        "lastUpdatedTime": "2026-03-01T10:00:00Z",
        "imageRef": format!("sha256:{id}"),
    });
    fs::write(pulled.join(format!("sha256-{}", "1".repeat(64))), record.to_string()).unwrap();
    node.run(&["scan", "-q", config[0], config[1]]).expect_code(0);
    let explained = node.json(&["explain", config[0], config[1], &small::name("other")]);
    let remembered = &explained["records"];
    let evidence = remembered["evidence"].as_array().unwrap().iter();
    let evidence: Vec<_> = evidence.filter(|row| row["kind"] == "pull-record").collect();
    assert_eq!(evidence.len(), 1, "{remembered}");
    let told = (&evidence[0]["at"], &remembered["rule"]);
    assert_eq!(told, (&json!("2026-03-01T10:00:00Z"), &json!("creation")), "it may be older");
    assert_ne!(remembered["decided_by"]["kind"], "pull-record", "{remembered}");
    for name in ["other", "b"] {
        past::set_first_detected(&node.state, &small::name(name), 50);
    }
    let pulling = dir.path().join("kubelet/image_manager/pulling");
    fs::create_dir_all(&pulling).unwrap();
    let intent = json!({
        "kind": "ImagePullIntent",
        "apiVersion": "imagemanager.kubelet.config.k8s.io/v1beta1",
        "image": small::name("other"),
    });
    let intent_file = pulling.join(format!("sha256-{}", "0".repeat(64)));
    fs::write(&intent_file, intent.to_string()).unwrap();
    fn command(node: &Node, more: &[&str]) -> serde_json::Value {
        let words = ["gc", "--via", "direct", "--max-age", "1d", "--high", "100", "--low", "99", "--dry-run"];
        node.json(&[&words, more].concat())
    }
    let plan = command(&node, &config);
    assert_eq!(rule(&plan, &small::name("other")), "pull-in-progress");
    let deleted = support::gc_document::deleted(&plan);
    assert!(deleted.contains(&small::name("b")), "{deleted:?}");
    node.run(&["rm", "--via", "direct", config[0], config[1], &small::name("other")]).expect_code(5);
    let explained = node.run(&["explain", config[0], config[1], &small::name("other")]).expect_code(0).stdout;
    assert!(explained.contains("pull-in-progress") && explained.contains("sha256-0000"), "{explained}");
    // The pull has ended.
    fs::remove_file(intent_file).unwrap();
    assert!(support::gc_document::deleted(&command(&node, &config)).contains(&small::name("other")));
    let images = node.json(&["images"]);
    assert_eq!(node::image(&images, &small::name("other"))["in_use"], false);
}
