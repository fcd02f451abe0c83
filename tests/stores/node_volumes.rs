//! Images that are mounted as volumes are in use, according to the disk alone: CRI-O's annotation, and containerd's
//! snapshot keys.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::support;
use jiff::{SignedDuration, Timestamp};
use layersweep::editor::Refusal;
use layersweep::model::Verdict;
use serde_json::{Value, json};
use support::containerd::{self};
use support::containerd_node::{ContainerdNode, full, image};
use support::gc_document::{deleted, rule};
use support::loopfs::{Fs, MIB};
use support::node::{self, Node};
use support::program::{list, number, text};
use support::store;
use support::{edit, past, small, tree};

const POD: &str = "0f8a31b2-7a5c-4f7e-9d1e-0b6a7c8d9e01";

/// Makes the container of a pod as CRI-O does, from the image `base`, with image volumes.
fn crio_container(node: &Node, name: &str, volumes: &[&str]) -> PathBuf {
    let metadata = json!({
        "pod-name": "pod", "pod-id": POD, "image-name": small::name("base"), "image-id": "",
        "name": name, "container-name": name, "attempt": 0,
    });
    let words =
        ["create-container", "--metadata", &metadata.to_string(), "--name", name, &small::name("base")];
    let id = node.store.storage(words).split_whitespace().next().unwrap().to_owned();
    let userdata = node.store.root().join("overlay-containers").join(id).join("userdata");
    fs::create_dir_all(&userdata).unwrap();
    fs::write(userdata.join("config.json"), config(name, volumes)).unwrap();
    let state = json!({"status": "stopped", "finished": Timestamp::now().to_string()});
    fs::write(userdata.join("state.json"), state.to_string()).unwrap();
    userdata
}

fn config(name: &str, volumes: &[&str]) -> String {
    let mut all = vec![json!({"container_path": "/etc/hosts", "host_path": "/h", "readonly": false})];
    all.extend(volumes.iter().map(|id| {
        json!({"container_path": "/model", "host_path": "/x", "readonly": true,
        "image": {"image": id}})
    }));
    json!({"ociVersion": "1.0.2", "annotations": {
        "io.kubernetes.cri-o.Labels": "{}",
        "io.kubernetes.cri-o.Metadata": json!({"name": name, "attempt": 0}).to_string(),
        "io.kubernetes.cri-o.Volumes": Value::from(all).to_string(),
    }})
    .to_string()
}

fn id_of(node: &Node, name: &str) -> String {
    let images = node.json(&["images"]);
    text(node::image(&images, &small::name(name)), "/id").to_owned()
}

#[test]
fn image_volume_of_crio_container_is_kept() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::store(&dir.path().join("root")));
    node.store.unmount();
    let other = id_of(&node, "other");
    // The id of an OCI artifact is in no store of images.
    let userdata = crio_container(&node, "served", &[&other, &"f".repeat(64)]);
    // The library mounts its root, as CRI-O does, and the container writes to it.
    let merged = node.store.storage(["mount", "served"]);
    fs::write(Path::new(merged.trim()).join("written"), vec![1; 700 << 10]).unwrap();

    let scan = node.scan();
    assert_eq!(number(&scan, "/totals/bytes"), tree::du(node.store.root()));
    let served =
        list(&scan, "/containers").iter().find(|container| text(container, "/name") == "served").unwrap();
    let bytes = number(served, "/bytes");
    assert!((700 << 10..800 << 10).contains(&bytes), "its own bytes, without its image: {served:#}");
    node.store.storage(["unmount", "served"]);
    let found = node::image(&scan, &small::name("other"));
    assert_eq!(found["in_use"], true);
    assert_eq!((text(found, "/used_by/0/name"), text(found, "/used_by/0/owner")), ("served", "cri-o"));
    assert_eq!(list(&scan, "/leaks"), &[] as &[Value]);
    let images = node.json(&["images"]);
    assert!(node::image(&images, &small::name("other"))["last_used"].is_string());
    let usage = node.json(&["usage"]);
    let rows = list(&usage, "/stores/0/rows");
    let in_use = rows.iter().find(|row| text(row, "/kind") == "images_in_use").unwrap();
    assert_eq!(number(in_use, "/count"), 3, "base, a and other");
    let explained = node.run(&["explain", &small::name("other")]).expect_code(0).stdout;
    assert!(explained.contains("served (exited), which has it mounted as a volume"), "{explained}");

    for name in ["base", "a", "a2", "b", "other"] {
        past::set_first_detected(&node.state, &small::name(name), 50);
    }
    let editor = edit::editor(&node.store);
    let error = editor.delete_image(&edit::planned(node::image(&images, &small::name("other")))).unwrap_err();
    assert!(matches!(error.refusal(), Some(Refusal::UsedByContainer { .. })), "{error}");
    node.run(&["rm", "--via", "direct", &small::name("other")]).expect_code(5);
    let gc = node.json(&["gc", "--via", "direct", "--max-age", "1d", "--high", "100", "--low", "99"]);
    let mut gone = deleted(&gc);
    gone.sort();
    assert_eq!(gone, [small::name("a2"), small::name("b")]);
    assert_eq!(rule(&gc, &small::name("other")), "in-use");

    // Every form in which the runtime may write the reference.
    let planned = edit::planned(node::image(&images, &small::name("other")));
    let digest = text(node::image(&images, &small::name("other")), "/digests/0").to_owned();
    for reference in
        [&small::name("other"), &format!("sha256:{other}"), &digest, &format!("x/other@{digest}")]
    {
        fs::write(userdata.join("config.json"), config("served", &[reference])).unwrap();
        assert_eq!(node::image(&node.scan(), &small::name("other"))["in_use"], true, "{reference}");
        let error = editor.delete_image(&planned).unwrap_err();
        assert!(matches!(error.refusal(), Some(Refusal::UsedByContainer { .. })), "{reference}: {error}");
    }
    // A file that a power failure emptied names no image, so no image may be deleted.
    fs::write(userdata.join("config.json"), b"").unwrap();
    let run = node.run(&["scan", "--format", "json"]).expect_code(3);
    assert!(
        list(&run.json(), "/warnings")
            .iter()
            .any(|warning| text(warning, "/message").contains("image volumes"))
    );
    node.run(&["rm", "--via", "direct", &small::name("other")]).expect_code(5);
    // A container that is being created: CRI-O writes this file after the record.
    fs::remove_file(userdata.join("config.json")).unwrap();
    assert_eq!(node::image(&node.scan(), &small::name("other"))["in_use"], false);
}

#[test]
fn image_left_mounted_by_crio_is_reported() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::store(&dir.path().join("root")));
    let other = id_of(&node, "other");
    node.store.podman(["image", "mount", &small::name("other")]);
    fn leaks(node: &Node) -> Vec<Value> {
        list(&node.scan(), "/leaks").to_vec()
    }
    assert_eq!(leaks(&node), &[] as &[Value], "podman's own mount, on a node without CRI-O");
    let userdata = crio_container(&node, "served", &[&other]);
    assert_eq!(leaks(&node), &[] as &[Value], "a volume");
    fs::write(userdata.join("config.json"), config("served", &[])).unwrap();
    let found = leaks(&node);
    let classes: Vec<_> = found.iter().map(|leak| (text(leak, "/class"), text(leak, "/id"))).collect();
    assert_eq!(classes, [("orphan-image-volume", other.as_str())]);
    assert_eq!(text(&found[0], "/verdict"), "report");
    assert!(
        text(&found[0], "/evidence").contains("CRI-O unmounts it when it removes the image"),
        "{found:#?}"
    );
    node.store.podman(["image", "unmount", &small::name("other")]);
    assert_eq!(leaks(&node), &[] as &[Value]);
    node.store.unmount();
}

/// Makes the objects of an image volume of containerd 2.1: a snapshot, and a lease of the sandbox on it.
fn volume(node: &ContainerdNode, sandbox: &str, image: &Value) -> PathBuf {
    let digest = text(image, "/digests/0").strip_prefix("sha256:").unwrap().to_owned();
    let key =
        node.rig.scratch().join("state/io.containerd.grpc.v1.cri/image-volumes").join(sandbox).join(digest);
    let (path, top) = (key.display(), text(image, "/layers/0"));
    node.rig.shell(&format!(
        "S=containerd.services.leases.v1.Leases
         grpc $S/Create \"$(pb_str 1 {sandbox})\" \"$NS\" >/dev/null
         C snapshots prepare {path} {top} >/dev/null
         grpc $S/AddResource \"$(pb_str 1 {sandbox})$(pb_msg 2 \"$(pb_str 1 {path})$(pb_str 2 snapshots/overlayfs)\")\" \"$NS\" >/dev/null
         C snapshots label {path} containerd.io/gc.root= >/dev/null"
    ));
    key
}

#[test]
fn image_volume_of_containerd_pod_is_kept() {
    let images = [image(&["model"], "model", 4), image(&["free"], "free", 4)];
    let Some(node) = ContainerdNode::new(Fs::Ext4, 200 * MIB, &images) else { return };
    let sandbox = node.rig.noted("pods", "pod1");
    let before = node.json(0, &["images"]);
    let model = node::image(&before, &full("model"));
    assert_eq!(model["in_use"], false);
    let key = volume(&node, &sandbox, model);

    let scan = node.json(0, &["scan"]);
    let found = node::image(&scan, &full("model"));
    assert_eq!((text(found, "/used_by/0/id"), text(found, "/used_by/0/name")), (sandbox.as_str(), "pod1"));
    assert_eq!(list(&scan, "/leaks"), &[] as &[Value]);
    let explained = node.run(&["explain", &full("model")]).expect_code(0).stdout;
    assert!(explained.contains("mounted as a volume"), "{explained}");

    for name in ["model", "free"] {
        node.set_first_detected(name, 50);
    }
    // containerd itself would remove the image.
    node.run(&["rm", &full("model")]).expect_code(5);
    let gc = node.json(0, &["gc", "--max-age", "1d"]);
    let gone = deleted(&gc);
    assert_eq!(gone, [full("free")]);
    assert_eq!(rule(&gc, &full("model")), "in-use");

    // The tag moves to another image. The mounted image is still known by its layers, or exists by its id.
    let places = node.rig.places();
    let later = SignedDuration::from_hours(1);
    let read = containerd::read(&places, later);
    assert!(read.leaks("orphan-image-volume").is_empty());

    // The pod is removed; this version of containerd does not know the lease.
    node.rig.shell(&format!(
        "cri RuntimeService/StopPodSandbox \"$(pb_str 1 {sandbox})\" >/dev/null
         cri RuntimeService/RemovePodSandbox \"$(pb_str 1 {sandbox})\" >/dev/null"
    ));
    let scan = node.json(0, &["scan"]);
    assert_eq!(node::image(&scan, &full("model"))["in_use"], false);
    let read = containerd::read(&places, SignedDuration::ZERO);
    assert!(read.leaks("orphan-image-volume").iter().all(|leak| leak.verdict == Verdict::Keep), "just made");
    let read = containerd::read(&places, later);
    let [leak] = read.leaks("orphan-image-volume")[..] else { panic!("{:?}", read.inventory.leaks) };
    assert_eq!((leak.verdict, leak.id.as_str()), (Verdict::Report, key.to_str().unwrap()));
    assert!(leak.evidence.contains(&format!("leases rm {sandbox}")), "{}", leak.evidence);
    assert_eq!(read.nodes(leak).len(), 1);
    assert!(read.leaks("lease").is_empty(), "told once");

    // The snapshot is removed, but a mount stays: only a configured state directory shows its owner.
    node.rig.shell(&format!("C leases rm {sandbox} >/dev/null; C snapshots rm {} || true", key.display()));
    fs::create_dir_all(&key).unwrap();
    let mount = support::loopfs::BindMount::new(node.rig.scratch(), &key);
    let mut places = places;
    places.state = Some(node.rig.scratch().join("state"));
    let read = containerd::read(&places, later);
    let [leak] = read.leaks("orphan-image-volume")[..] else { panic!("{:?}", read.inventory.leaks) };
    assert_eq!((leak.verdict, &leak.path), (Verdict::Report, &key));
    assert!(leak.evidence.contains("umount"), "{}", leak.evidence);
    drop(mount);
}
