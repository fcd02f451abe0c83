//! `gc` with dead containers and logs, as an operator runs it: a podman store on its own filesystem, the test CRI
//! server in front of it (a fake, see there), and the kubelet's directories beside it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, IN_USE, deleted, name};
use serde_json::Value;
use support::loopfs::Fs;
use support::program::{list, text, texts};

const UID: &str = "uid-done";

struct Node {
    node: GcNode,
    directory: tempfile::TempDir,
    config: PathBuf,
    dead: String,
    sandbox: String,
}

/// Makes a node with a live pod, and a pod that is gone whose container uses image 0.
fn node() -> Option<Node> {
    let node = GcNode::new(Fs::Ext4, 6)?;
    node.age();
    let directory = tempfile::Builder::new().prefix("layersweep-gccc-").tempdir().unwrap();
    let top = directory.path();
    fs::create_dir_all(top.join("kubelet/pods/uid-pod-1")).unwrap();
    fs::create_dir_all(top.join("containers")).unwrap();
    let logs = top.join(format!("pods/default_done_{UID}/job"));
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("0.log"), [b'x'; 300_000]).unwrap();
    let podman = node.server.podman();
    let sandbox = podman.sandbox("done", &name(IN_USE));
    let dead = podman.container(&sandbox, "done", "job", &name(0));
    podman.set_state(&dead, "exited");
    podman.set_state(&sandbox, "exited");
    let config = top.join("layersweep.toml");
    let text = format!(
        "[containers]\nmin_age = \"0s\"\n[kubelet]\nroot_dir = \"{0}/kubelet\"\npod_logs_dir = \"{0}/pods\"\n\
         container_logs_dir = \"{0}/containers\"\n[protect]\nstatic_pods = \"{0}/manifests\"\n",
        top.display()
    );
    fs::write(&config, text).unwrap();
    Some(Node { node, directory, config, dead, sandbox })
}

impl Node {
    fn json(&self, code: i32, args: &[&str]) -> Value {
        let config = self.config.to_str().unwrap();
        self.node.json(code, &[args, &["--config", config]].concat())
    }

    fn logs(&self) -> PathBuf {
        Path::new(self.directory.path()).join(format!("pods/default_done_{UID}"))
    }
}

fn kinds(document: &Value) -> Vec<&str> {
    list(document, "/deleted").iter().map(|row| text(row, "/kind")).collect()
}

#[test]
fn containers_are_deleted_before_their_images() {
    let Some(node) = node() else { return };
    let all = ["gc", "--high", "1", "--low", "0"];
    // Off by default: the dead container keeps its image.
    let off = node.json(4, &[&all[..], &["--dry-run"]].concat());
    assert!(kinds(&off).iter().all(|kind| *kind == "image"));
    assert!(!deleted(&off).contains(&name(0)), "{off:#}");
    // As CRI-O writes it on the disk.
    let podman = node.node.server.podman();
    podman.set_state(&node.dead, "stopped");
    podman.set_state(&node.sandbox, "stopped");
    let off = node.json(4, &[&all[..], &["--dry-run"]].concat());
    let removal = &off["stopped"]["removals"][0];
    assert_eq!(text(removal, "/command/deletes"), format!("crictl rm {}", &node.dead[..12]), "{off:#}");
    assert_eq!(text(removal, "/images/0/name"), name(0));
    // If its pod runs, the kubelet may run the container again: no command removes it for the sake of its image.
    podman.set_state(&node.sandbox, "running");
    let live = node.json(4, &[&all[..], &["--dry-run"]].concat());
    assert_eq!(live["stopped"]["removals"], serde_json::json!([]), "{live:#}");
    podman.set_state(&node.sandbox, "exited");
    podman.set_state(&node.dead, "exited");

    let explained = node.json(0, &["explain", &node.dead]);
    assert_eq!(
        (text(&explained, "/subject"), &explained["decision"]["would_delete"]),
        ("container", &Value::Bool(true))
    );
    assert_eq!(text(&explained, "/decision/detail"), "its pod is gone");
    let explained = node.json(0, &["explain", &node.sandbox]);
    assert_eq!(text(&explained, "/subject"), "container", "{explained:#}");

    let everything = [&all[..], &["--only", "containers,logs,images"]].concat();
    let dry = node.json(4, &[&everything[..], &["--dry-run"]].concat());
    assert_eq!(kinds(&dry)[..3], ["container", "sandbox", "log"], "{dry:#}");
    assert!(node.node.names().contains(&name(0)) && node.logs().exists(), "a dry run deletes nothing");
    let real = node.json(4, &everything);
    assert_eq!(kinds(&real), kinds(&dry), "{real:#}");
    assert_eq!(
        (texts(&real, "/deleted/0/names"), text(&real, "/deleted/0/reason")),
        (texts(&dry, "/deleted/0/names"), "age")
    );
    assert!(kinds(&real)[3..].iter().all(|kind| *kind == "image"));
    // The same run deletes the image that only the dead container used.
    assert!(list(&real, "/deleted").iter().any(|row| texts(row, "/names") == [name(0)]), "{real:#}");
    assert_eq!(node.node.names(), [name(IN_USE)]);
    assert!(!node.logs().exists());

    let history = node.json(0, &["history"]);
    let run = &list(&history, "/runs")[0];
    assert_eq!(run["run_id"], real["run_id"]);
    let recorded: Vec<_> = list(run, "/deleted").iter().map(|row| text(row, "/kind").to_owned()).collect();
    assert_eq!(recorded, kinds(&real));
    let sandboxes = node.json(0, &["history", "--kind", "sandbox"]);
    assert_eq!(list(&sandboxes, "/runs").len(), 1, "{sandboxes:#}");
}

#[test]
fn only_named_kinds_are_deleted() {
    let Some(node) = node() else { return };
    let before = node.node.names();
    let ran = node.json(0, &["gc", "--high", "1", "--low", "0", "--only", "logs"]);
    assert_eq!(kinds(&ran), Vec::<&str>::new(), "its containers are still there: {ran:#}");
    assert!(list(&ran, "/kept").iter().any(|kept| text(kept, "/rule") == "has-containers"));
    let ran = node.json(0, &["gc", "--high", "1", "--low", "0", "--only", "containers"]);
    assert_eq!(kinds(&ran), ["container", "sandbox"], "{ran:#}");
    assert_eq!(text(&ran, "/outcome"), "reached");
    assert_eq!(text(&ran, "/deleted/0/id"), node.dead);
    assert!(list(&ran, "/kept").iter().all(|kept| text(kept, "/kind") != "image"));
    let ran = node.json(0, &["gc", "--high", "1", "--low", "0", "--only", "logs"]);
    assert_eq!(kinds(&ran), ["log"], "{ran:#}");
    assert_eq!(node.node.names(), before);
    let ran = node.json(0, &["gc", "--only", "containers,logs"]);
    assert_eq!((text(&ran, "/outcome"), kinds(&ran).len()), ("not_needed", 0));
}
