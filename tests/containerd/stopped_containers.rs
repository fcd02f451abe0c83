//! Stopped containers of containerd: the container of a pod that has ended is listed with the images that only it keeps,
//! if containerd says that the pod has ended. If containerd does not answer, each line names the remedy: to start it.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use crate::support;
use serde_json::Value;
use support::containerd_node::{ContainerdNode, full, image};
use support::gc_document::deleted;
use support::loopfs::{Fs, MIB};
use support::program::{list, number, text};

const DRY_RUN: [&str; 8] = ["gc", "--dry-run", "--high", "2", "--low", "1", "--min-age", "0s"];

/// Returns the ids of the images that only stopped containers keep.
fn held(document: &Value) -> Vec<&str> {
    list(document, "/stopped/images").iter().map(|image| text(image, "/name")).collect()
}

#[test]
fn exited_container_of_ended_pod_is_listed() {
    let images = [image(&["batch"], "batch", 8), image(&["unused"], "unused", 4)];
    let Some(node) = ContainerdNode::new(Fs::Ext4, 160 * MIB, &images) else { return };
    let batch = full("batch");
    let container = node.rig.script("30-pods.sh", &["--run", "pod3", &batch]);
    let container = container.trim().split_once('=').unwrap().1;
    let running = node.json(0, &["usage"]);
    assert_eq!(held(&running), [""; 0], "{running:#}");

    let sandbox = node.rig.noted("pods", "pod3.sandbox");
    node.rig.shell(&format!("cri RuntimeService/StopPodSandbox \"$(pb_str 1 {sandbox})\" >/dev/null"));
    let documents = [node.json(4, &DRY_RUN), node.json(0, &["report"]), node.json(0, &["usage"])];
    for document in &documents {
        assert_eq!(held(document), [batch.as_str()], "{document:#}");
        let removals = list(document, "/stopped/removals");
        assert_eq!(removals.len(), 1, "{document:#}");
        let command = text(&removals[0], "/command/deletes");
        assert_eq!(command, format!("crictl rm {}", &container[..12]), "{document:#}");
    }
    let screen = node.run(&DRY_RUN).expect_code(4).stdout;
    assert!(screen.contains("of them only by stopped containers: app ("), "{screen}");
    let explained = node.run(&["explain", &batch]).expect_code(0).stdout;
    assert!(explained.contains("crictl rm"), "{explained}");

    // The state of a sandbox is unknown without containerd.
    node.rig.stop();
    let silent = node.json(0, &["usage"]);
    assert_eq!(held(&silent), [""; 0], "{silent:#}");
    for words in [&DRY_RUN[..], &["rm", "-y", &full("unused")]] {
        let refused = node.run(words).expect_code(5).stderr;
        assert!(refused.contains("\nhint: start containerd"), "{refused}");
        assert!(!refused.contains("--via direct"), "{refused}");
    }

    node.rig.script("10-start.sh", &[]);
    node.rig.settle(images.len());
    node.rig.shell(&format!("cri RuntimeService/RemoveContainer \"$(pb_str 1 {container})\" >/dev/null"));
    node.rig.collect();
    let plan = node.json(4, &DRY_RUN);
    assert!(deleted(&plan).contains(&batch), "{plan:#}");
    let of_batch = list(&plan, "/deleted").iter().find(|step| text(step, "/names/0") == batch);
    let predicted = number(of_batch.unwrap(), "/predicted_bytes");
    assert_eq!(predicted, number(&documents[0], "/stopped/keeps_bytes"), "{plan:#}");
}

/// containerd has no record of a container's state: the task shows it.
#[test]
fn container_without_process_is_stopped() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 160 * MIB, &[]) else { return };
    node.import("tool", &[image(&["tool"], "tool", 8)], "CN default images import");
    let tool = full("tool");
    node.rig.shell(&format!(
        "(NS=default; as_pulled)
         CN default run -d --null-io {tool} runs /bin/busybox sleep 100000
         CN default run -d --null-io {tool} ended /bin/busybox dd if=/dev/zero of=/waste bs=1M count=3
         CN default containers create {tool} created
         for i in $(seq 600); do CN default tasks ls | grep -q 'ended.*STOPPED' && break; sleep 0.1; done"
    ));
    let states = || {
        let document = node.json(0, &["usage"]);
        let containers =
            list(&document, "/stopped/removals").iter().flat_map(|removal| list(removal, "/containers"));
        let mut names: Vec<_> = containers.map(|container| text(container, "/name").to_owned()).collect();
        names.sort();
        (names, document)
    };
    let (stopped, document) = states();
    assert_eq!(stopped, ["ended"], "{document:#}");
    let command = text(&document, "/stopped/removals/0/command/deletes");
    assert_eq!(command, "ctr -n default containers rm ended");
    for (name, state) in [("runs", "running"), ("ended", "exited"), ("created", "exited")] {
        let explained = node.run(&["explain", name]).expect_code(0).stdout;
        assert!(explained.contains(&format!("containerd, {state}")), "{name}: {explained}");
    }
    let report = node.run(&["report"]).expect_code(0).stdout;
    assert!(report.contains(command), "{report}");

    node.rig.shell(&command.replace("ctr -n", "CN"));
    let (stopped, document) = states();
    assert_eq!(stopped, [""; 0], "{document:#}");
    node.rig.shell("CN default tasks kill -s KILL runs; CN default tasks rm -f runs; CN default containers rm runs created");
    let unused = node.run(&["report"]).expect_code(0).stdout;
    let words = unused.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("or `ctr -n default images rm NAME`"), "{unused}");
}
