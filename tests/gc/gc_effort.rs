//! The effort of a deletion, counted and not timed: requests to the runtime, and files that are opened.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::support;
use crate::support::cri_server::gc_node::{GcNode, IN_USE, deleted};
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, MIB};
use support::strace;

/// Enough that one file for each image or layer is noticed.
const IMAGES: usize = 60;

/// Maximum number of processes that read `/proc` for a run: of the command lines of containerds, of the mounts of other
/// processes, of the kubelet's command line, of open deleted files, and of what may own a store that is edited.
const MOST_READERS: usize = 5;

/// Maximum number of files that the proof, the removal, the confirmation and the record of one deletion open.
const MOST_OPENS: usize = 600;

fn name(number: usize) -> String {
    support::cri_server::gc_node::name(number)
}

fn node() -> Option<GcNode> {
    let specs: Vec<_> = (0..IMAGES)
        .map(|number| ImageSpec {
            names: vec![name(number)],
            layers: vec![
                LayerSpec { small_files: 5, ..LayerSpec::new("base") },
                LayerSpec { small_files: 5, ..LayerSpec::new(&name(number)) },
            ],
            label: name(number),
        })
        .collect();
    let node = GcNode::with_images(Fs::Ext4, 400 * MIB, &[], &specs)?;
    let sandbox = node.server.podman().sandbox("pod-1", &name(IN_USE));
    node.server.podman().container(&sandbox, "pod-1", "app", &name(IN_USE));
    node.run(&["scan", "-q"]).expect_code(0);
    Some(node)
}

/// Deletes these images because of their age; returns the run's requests to the runtime by name, the number of files
/// that it opened, and the number of processes that read `/proc`.
fn delete(node: &GcNode, images: std::ops::Range<usize>) -> (BTreeMap<String, usize>, usize, usize) {
    let expected: Vec<_> = images.map(name).collect();
    expected.iter().for_each(|name| node.set_first_detected(name, 30));
    node.server.take_calls();
    let words = ["gc", "--only", "images", "--max-age", "20d", "--high", "99", "--low", "98", "-y"];
    let words = [&words[..], &["--format", "json"]].concat();
    let args: Vec<OsString> = node.command(&words).get_args().map(OsString::from).collect();
    let (run, lines) = strace::trace(&args, node.store.scratch());
    let document = run.expect_no_crash().expect_code(0).json();
    let mut names = deleted(&document);
    names.sort();
    let mut sorted = expected;
    sorted.sort();
    assert_eq!(names, sorted, "{document:#}");
    let mut calls = BTreeMap::new();
    for call in node.server.take_calls() {
        *calls.entry(call.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    let opens = lines.iter().filter(|line| line.contains(" openat(") || line.contains(" openat2("));
    let readers = lines.iter().filter(|line| line.contains(" execve(") && line.contains("__read-processes"));
    (calls, opens.count(), readers.count())
}

/// A deletion asks about its own image: neither requests nor files grow with the number of other images.
#[test]
fn effort_of_deletion_is_bounded() {
    if !support::require_program("strace") {
        return;
    }
    let Some(node) = node() else { return };
    let (one, opens_for_one, readers) = delete(&node, 10..11);
    let (six, opens_for_six, readers_for_six) = delete(&node, 20..26);
    assert_eq!(one.get("ListImages"), Some(&1), "the plan's listing is not repeated: {one:?}");
    assert!(readers <= MOST_READERS && readers_for_six <= MOST_READERS, "{readers}, {readers_for_six}");
    let more: BTreeMap<_, _> = six
        .iter()
        .map(|(call, count)| (call.as_str(), count - one.get(call).unwrap_or(&0)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let each = ["ImageStatus", "ListContainers", "ListPodSandbox", "RemoveImage"];
    assert_eq!(more, each.map(|call| (call, 5)).into(), "{one:?} {six:?}");
    let opens = opens_for_six.saturating_sub(opens_for_one) / 5;
    assert!(opens <= MOST_OPENS, "{opens} opens for each deletion, at most {MOST_OPENS} are expected");
}
