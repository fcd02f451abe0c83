//! Every protection rule on a graphroot and a root of containerd, for every way of finding a store: the verdicts are
//! the same.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support;
use jiff::SignedDuration;
use layersweep::config::Config;
use layersweep::disk::Progress;
use layersweep::model::Pattern;
use layersweep::policy::rules::Judge;
use layersweep::policy::{Ages, Facts, Input, Policy};
use layersweep::services::protect::FromNode;
use layersweep::services::request::Request;
use layersweep::stores::{self, Measure, ScanRequest};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use support::{containerd, program, store};

use super::protection::labelled_store;

const GRAPHROOT: &str = "/var/lib/containers/storage";
/// Root of containerd below RKE2's data directory.
const CONTAINERD_ROOT: &str = "/var/lib/dd/agent/containerd";

/// Images, first those of the graphroot, and the rule that keeps each. Quadlets belong to podman: they name no image of
/// containerd.
const IMAGES: [(&str, &str); 14] = [
    ("docker.io/library/busybox:1.36", "in-use"),
    ("quay.io/pods/half:1", "pinned"),
    ("registry.k8s.io/pause:3.9", "sandbox-image"),
    ("localhost/other:1", "static-pod"),
    ("localhost/none:1", "quadlet"),
    ("docker.io/library/short:latest", "pull-in-progress"),
    ("quay.io/pods/volume:1", "protected-name"),
    ("localhost/keep:1", "protected-label"),
    ("reg.local/app-b:1", "in-use"),
    ("reg.local/pause:1", "pinned"),
    ("reg.local/app-d:1", "sandbox-image"),
    ("reg.local/app-c:1", "static-pod"),
    ("reg.local/dup:gz1", "pull-in-progress"),
    ("reg.local/zdup:1", "protected-name"),
];

/// Writes the files of a node with CRI-O, and RKE2 in a separate data directory.
fn write_files(node: &Path) {
    let pod = "kind: Pod\nspec:\n  containers:\n  - image: localhost/other:1\n  - image: reg.local/app-c:1\n";
    fn intent(image: &str) -> String {
        format!(
            r#"{{"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1alpha1", "image": "{image}"}}"#
        )
    }
    fn pulling(digit: &str) -> String {
        format!("var/lib/kubelet/image_manager/pulling/sha256-{}", digit.repeat(64))
    }
    for (path, text) in [
        // The user has no store: the system's storage.conf names root's store for every user.
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/var/lib/user:/bin/sh\n"),
        ("var/lib/user/x", ""),
        (
            "etc/containers/storage.conf",
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"/var/lib/containers/storage\"\n",
        ),
        ("etc/rancher/rke2/config.yaml", "data-dir: /var/lib/dd\n"),
        (
            "var/lib/dd/agent/etc/containerd/config.toml",
            "root = \"/drive\"\n[plugins.cri]\nsandbox_image = \"reg.local/pause:1\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"registry.k8s.io/pause:3.9\"\n",
        ),
        ("var/lib/dd/agent/pod-manifests/pod.yaml", pod),
        (
            "etc/crio/crio.conf",
            "[crio.image]\npause_image = \"reg.local/app-d:1\"\npinned_images = [\"quay.io/pods/half:1\"]\n",
        ),
        ("etc/containers/systemd/a.container", "[Container]\nImage=localhost/none:1\n"),
        (&pulling("1"), &intent("docker.io/library/short:latest")),
        (&pulling("2"), &intent("reg.local/dup:gz1")),
        ("run/x", ""),
    ] {
        let path = node.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Directories of the node in place of the machine's, in the mount namespace of this test process.
struct Live;

const DIRECTORIES: [&str; 3] = ["/etc", "/run", "/var/lib"];

impl Live {
    fn new(node: &Path) -> Self {
        for path in DIRECTORIES {
            let none = None::<&str>;
            mount(Some(&node.join(&path[1..])), path, none, MsFlags::MS_BIND, none).unwrap();
        }
        Self
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        for path in DIRECTORIES {
            umount2(path, MntFlags::MNT_DETACH).unwrap();
        }
    }
}

/// Returns the rules that keep each image of the stores of `request`, in order.
fn rules(request: &Request) -> BTreeMap<String, Vec<&'static str>> {
    let request =
        ScanRequest { measure: Measure::RecordsAndMounts, labels: true, ..request.stores().unwrap() };
    let scan = stores::run(&request, &Progress::default()).unwrap();
    let found = FromNode::read(&request, &Config::defaults(&[]).unwrap()).unwrap();
    let mut policy = Policy::default();
    found.apply(&mut policy.protect);
    policy.protect.names =
        ["quay.io/pods/volume:*", "reg.local/zdup:*"].map(|pattern| Pattern::new(pattern).unwrap()).into();
    policy.protect.labels = vec![("keep".into(), Some("yes".into()))];
    let (inventory, refs, now) = (&scan.inventory, &scan.refs, scan.taken_at);
    let ages = Some(Ages::new(now - SignedDuration::from_hours(1000), None, 0));
    let facts = vec![Facts { ages, ..Facts::default() }; inventory.images.len()];
    let judge = Judge::new(Input {
        inventory,
        refs,
        facts: &facts,
        full_filesystems: &[],
        policy: &policy,
        now,
        scanned: now,
    });
    let mut kept = BTreeMap::new();
    for (image_ix, image) in inventory.images.iter().enumerate() {
        let rulings = judge.rulings(image_ix.into()).into_iter().filter(|ruling| ruling.keeps);
        let rules: Vec<_> = rulings.map(|ruling| ruling.rule.as_str()).collect();
        for name in &image.names {
            kept.insert(name.clone(), rules.clone());
        }
    }
    kept
}

#[test]
#[allow(clippy::print_stdout)] // the table is for the reader of the test
fn every_rule_holds_however_store_was_found() {
    if !store::require_tools() || !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("node");
    fs::create_dir_all(node.join("var/lib/containers/storage")).unwrap();
    let store = labelled_store(&node.join("var/lib/containers/storage"));
    store.podman(["create", "--name", "waiting", "--network", "none", IMAGES[0].0, "/x"]);
    let placed = containerd::rebuild("1.6.20", &dir.path().join("fixture"));
    write_files(&node);
    fs::rename(placed, node.join(&CONTAINERD_ROOT[1..])).unwrap();

    let found = Request::default();
    let configured = Request {
        graphroots: vec![GRAPHROOT.into()],
        containerd_roots: vec![CONTAINERD_ROOT.into()],
        ..Request::default()
    };
    let named = Request { names_stores: true, running: Arc::default(), ..configured.clone() };
    let [found_below, named_below] = [&found, &named].map(|request| Request {
        sysroot: Some(PathBuf::from(&node)),
        running: Arc::default(),
        ..request.clone()
    });
    let live = Live::new(&node);
    let [found_rules, named_rules, configured_rules] = [&found, &named, &configured].map(rules);
    drop(live);
    let ways = [
        ("found", found_rules),
        ("named", named_rules),
        ("configured", configured_rules),
        ("--sysroot", rules(&found_below)),
        ("named below --sysroot", rules(&named_below)),
    ];
    println!("{:32} {}", "IMAGE", ways.each_ref().map(|(way, _)| format!("{way:32}")).concat());
    for (image, _) in IMAGES {
        let cells = ways.each_ref().map(|(_, rules)| format!("{:32}", rules[image].join(",")));
        println!("{image:32} {}", cells.concat());
    }
    for (image, rule) in IMAGES {
        let expected = &ways[0].1[image];
        assert!(expected.contains(&rule), "{rule} does not keep {image}: {expected:?}");
        for (way, rules) in &ways {
            assert_eq!(&rules[image], expected, "{way}: {image}");
        }
    }
    assert_kept_images_are_not_reclaimable(&node);
    store.remove_containers();
}

/// Checks that `usage` counts an image that a rule of the configuration or of the node's files keeps as kept, not as
/// reclaimable.
fn assert_kept_images_are_not_reclaimable(node: &Path) {
    let config = node.join("layersweep.toml");
    fn unused(config: &Path, node: &Path, protect: &str) -> (u64, u64, u64) {
        fs::write(config, format!("[protect]\nnot_repullable = \"never\"\n{protect}\n")).unwrap();
        let args = ["usage", "--format", "json", "--config", "/layersweep.toml", "--sysroot"];
        let run = program::layersweep(args.iter().chain(&[node.to_str().unwrap()]));
        assert!([0, 3].contains(&run.code), "{run:?}");
        let usage = run.json();
        let rows = program::list(&usage, "/filesystems/0/rows").iter();
        let row = |kind: &str| rows.clone().find(|row| row["kind"] == kind);
        let count = |kind: &str| row(kind).map_or(0, |row| program::number(row, "/count"));
        let of_pinned = row("images_pinned").map_or(0, |row| program::number(row, "/reclaimable_bytes"));
        let sum = program::number(&usage, "/filesystems/0/reclaimable_bytes");
        (count("images_unused") + count("images_out_of_reach"), of_pinned, sum)
    }
    let all = unused(&config, node, "");
    // One image has the label, one may have it: its configuration cannot be read.
    for (protect, kept) in [
        (r#"names = ["quay.io/pods/volume:1"]"#, 1),
        (
            r#"names = ["quay.io/pods/volume:1"]
labels = ["keep=yes"]"#,
            3,
        ),
    ] {
        let (count, of_pinned, sum) = unused(&config, node, protect);
        assert_eq!((all.0 - count, of_pinned), (kept, 0), "{protect}");
        assert!(sum < all.2, "{protect}: {sum} of {}", all.2);
    }
    // A quadlet names an image.
    let quadlet = node.join("etc/containers/systemd/a.container");
    fs::rename(&quadlet, quadlet.with_extension("before")).unwrap();
    let (count, of_pinned, _) = unused(&config, node, "");
    assert_eq!((count, of_pinned), (all.0 + 1, 0));
}
