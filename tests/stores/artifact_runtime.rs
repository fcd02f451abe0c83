//! Artifacts through CRI, with a server that answers as CRI-O 1.36 does: it lists artifacts among the images, accepts a
//! removal by id without removing anything, and removes by name and digest.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use crate::support;
use crate::support::cri_server;
use cri_server::Removal;
use cri_server::gc_node::{GcNode, assert_exact, deleted, name, rule};
use serde_json::json;
use support::artifacts::{Artifacts, content};
use support::loopfs::{Fs, MIB};
use support::program::{list, number, text, texts};

const MODEL: &str = "quay.io/test/model:v1";
const GC: [&str; 5] = ["gc", "--high", "75", "--low", "74"];

/// Makes a node whose oldest image is an artifact of 12 MiB, with two names in one repository.
fn node() -> Option<(GcNode, Artifacts, String)> {
    let node = GcNode::new(Fs::Ext4, 6)?;
    let artifacts = Artifacts::make(node.store.root());
    let id = artifacts.add(Some(MODEL), &[&content(1, usize::try_from(12 * MIB).unwrap())]);
    artifacts.entry(Some("quay.io/test/model:stable"), &format!("sha256:{id}"));
    node.age();
    node.set_first_detected(MODEL, 60);
    node.fill(77.0);
    Some((node, artifacts, id))
}

#[test]
fn artifact_is_removed_by_name_and_measured() {
    let Some((node, artifacts, id)) = node() else { return };
    // An artifact without a name cannot be removed through CRI.
    let unnamed = artifacts.add(None, &[&content(2, 4096)]);
    let compared = node.json(0, &["gc", "--high", "75", "--low", "74", "--dry-run", "--policy", "kubelet"]);
    let story = &compared["comparison"][0]["policies"][0];
    let first = &list(story, "/runs")[0];
    assert_eq!(texts(first, "/still_there").first(), Some(&id), "{story:#}");
    assert!(number(first, "/believed_bytes") >= 12 * MIB, "{story:#}");
    assert_eq!(number(first, "/freed_bytes"), 0, "{story:#}");
    assert!(list(story, "/runs").len() < 10, "it ends: {story:#}");

    node.server.take_calls();
    let done = node.json(0, &GC);
    assert_eq!(deleted(&done)[..2], [MODEL.to_owned(), "quay.io/test/model:stable".to_owned()], "{done:#}");
    assert_exact(&done);
    assert!(number(&list(&done, "/deleted")[0], "/measured_bytes") >= 12 * MIB, "{done:#}");
    let request = format!("RemoveImage quay.io/test/model@sha256:{id}");
    let calls = node.server.take_calls();
    assert!(calls.contains(&request), "{calls:?}");
    assert!(!calls.contains(&format!("RemoveImage {id}")), "{calls:?}");
    assert_eq!(artifacts.list().len(), 1);
    let kept = list(&done, "/kept").iter().find(|kept| text(kept, "/id") == unnamed).unwrap();
    assert_eq!(text(kept, "/rule"), "out-of-reach", "{kept:#}");
}

/// A container's own records and the runtime both report the volume.
#[test]
fn artifact_volume_of_container_is_reported_once() {
    let Some((node, _, id)) = node() else { return };
    let container = node.json(0, &["scan"])["containers"].clone();
    let container =
        container.as_array().unwrap().iter().find(|container| container["owner"] == "cri-o").unwrap().clone();
    let container = text(&container, "/id").to_owned();
    let userdata = node.store.root().join("overlay-containers").join(&container).join("userdata");
    std::fs::create_dir_all(&userdata).unwrap();
    let volumes = json!([{"container_path": "/model", "image": {"image": id}}]).to_string();
    let config = json!({"annotations": {"io.kubernetes.cri-o.Volumes": volumes}});
    std::fs::write(userdata.join("config.json"), config.to_string()).unwrap();
    node.server.behave(|behaviour| behaviour.image_volumes = vec![(container.clone(), id.clone())]);
    let kept = node.json(5, &["rm", MODEL, "--all-tags"]);
    assert_eq!(rule(&kept, MODEL), "in-use");
    let detail = text(&list(&kept, "/kept")[0], "/detail");
    assert_eq!(detail, format!("used by the cri-o container {container}, which has it as a volume"));
    let shown = node.run(&["explain", MODEL]).expect_code(0).stdout;
    assert!(shown.contains("\n  the cri-o container") && !shown.contains("elsewhere"), "{shown}");
    assert!(!shown.contains("created -"), "{shown}");
}

/// The runtime reports the artifact as removed, but it still exists: no bytes are claimed.
#[test]
fn unfreed_bytes_are_not_claimed() {
    let Some((node, artifacts, id)) = node() else { return };
    let reference = format!("quay.io/test/model@sha256:{id}");
    node.server.behave(|behaviour| behaviour.removals = vec![(reference, Removal::Lie)]);
    let done = node.json(0, &GC);
    assert!(!deleted(&done).contains(&MODEL.to_owned()), "{done:#}");
    assert_eq!(rule(&done, MODEL), "removal-failed", "{done:#}");
    assert_exact(&done);
    assert_eq!(artifacts.list().len(), 1);
}

/// Removing the artifact would remove an image with the same manifest.
#[test]
fn artifact_that_is_also_image_is_kept() {
    let Some((node, artifacts, _)) = node() else { return };
    let digest = node.store.podman(["image", "inspect", "--format", "{{.Digest}}", &name(0)]);
    let digest = digest.trim();
    std::fs::write(artifacts.path(digest), "{\"layers\":[]}").unwrap();
    artifacts.entry(Some("quay.io/test/both:v1"), digest);
    let done = node.json(0, &GC);
    assert_eq!(rule(&done, "quay.io/test/both:v1"), "out-of-reach", "{done:#}");
    assert!(!node.server.take_calls().iter().any(|call| call.contains("both")));
}
