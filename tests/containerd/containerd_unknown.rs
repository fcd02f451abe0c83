//! Roots of containerd that cannot be read or measured in full: damaged records, and snapshotters with other layouts.
//! Also images that CRI cannot remove, and content of other platforms.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use serde_json::Value;
use support::containerd::{self, Collection, Rig};
use support::containerd_node::{ContainerdNode, full, image, long_ago};
use support::gc_document::rule;
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::document;
use support::program::{self, Run, list, number, text, texts};

const META_DB: &str = "io.containerd.metadata.v1.bolt/meta.db";
const OF_OVERLAYFS: &str = "io.containerd.snapshotter.v1.overlayfs";

fn run(root: &Path, words: &[&str]) -> Run {
    let mut command = program::command();
    command.args(words).arg("--containerd-root").arg(root);
    program::run(&mut command).expect_no_crash()
}

/// Bytes of a row of `usage`; 0 without such a row.
fn row(usage: &Value, kind: &str) -> u64 {
    let rows = list(usage, "/filesystems/0/rows").iter().filter(|row| text(row, "/kind") == kind);
    rows.map(|row| number(row, "/bytes")).sum()
}

/// Checks that no command calls the content of the root garbage, other files or unused, and that each says with its exit
/// code that something is unknown. Returns the warnings.
fn assert_unknown(root: &Path, least: u64, context: &str) -> String {
    let scan = document(run(root, &["scan", "--no-record", "--format", "json"]).expect_code(3));
    let garbage = list(&scan, "/leaks").iter().filter(|leak| number(leak, "/bytes") > 0);
    assert_eq!(garbage.count(), 0, "{context}: {:#}", scan["leaks"]);
    let usage = document(run(root, &["usage", "--format", "json"]).expect_code(3));
    assert!(row(&usage, "unknown") >= least, "{context}: {usage:#}");
    assert!(row(&usage, "store_other") < MIB && row(&usage, "leaks") == 0, "{context}: {usage:#}");
    let sweep = run(root, &["sweep"]).expect_code(3).stdout;
    assert!(!sweep.contains("every byte") && !sweep.contains("garbage collection"), "{context}: {sweep}");
    let report = run(root, &["report"]).expect_code(3).stdout;
    for wrong in ["nothing to free", "inspect it before deleting", "No image or container needs it"] {
        assert!(!report.contains(wrong), "{context}: {report}");
    }
    let warnings = list(&scan, "/warnings").iter().map(|warning| text(warning, "/message").to_owned());
    warnings.collect::<Vec<_>>().join("\n")
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{}", to.display());
}

/// Overwrites the type of each page but the first two.
fn damage_pages(file: &Path) {
    let pages = fs::metadata(file).unwrap().len() / 4096;
    let mut file = fs::OpenOptions::new().write(true).open(file).unwrap();
    for page in 2..pages {
        file.seek(SeekFrom::Start(page * 4096 + 8)).unwrap();
        file.write_all(&[0x99, 0x99]).unwrap();
    }
}

#[test]
fn content_of_lost_records_is_unknown() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 900 * MIB, &[image(&["old"], "old", 4)]) else { return };
    node.rig.stop();
    fn cut(file: &Path) {
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(10_000).unwrap();
    }
    fn empty(file: &Path) {
        fs::write(file, "").unwrap();
    }
    fn remove(file: &Path) {
        fs::remove_file(file).unwrap();
    }
    fn directory(file: &Path) {
        remove(file);
        fs::create_dir(file).unwrap();
    }
    type Case = (&'static str, fn(&Path), &'static str);
    let cases: [Case; 5] = [
        ("overwritten", damage_pages, "Stop containerd"),
        ("cut", cut, "Stop containerd"),
        ("empty", empty, "Stop containerd"),
        ("missing", remove, "Stop containerd"),
        ("unreadable", directory, "its records are missing"),
    ];
    let of_snapshotter = format!("{OF_OVERLAYFS}/metadata.db");
    for (name, damage, expected) in cases {
        for file in [META_DB, &of_snapshotter] {
            let root = node.loopfs.path().join("copy");
            copy(&node.root(), &root);
            damage(&root.join(file));
            let context = format!("{name} {file}");
            let warnings = assert_unknown(&root, 4 * MIB, &context);
            assert!(warnings.contains(expected), "{context}: {warnings}");
            let doctor = run(&root, &["doctor", "-q"]).stdout;
            assert!(
                doctor.contains("docs/recovery.md") && !doctor.contains("fix it, or"),
                "{context}: {doctor}"
            );
            if file != META_DB {
                let images = document(run(&root, &["images", "--format", "json"]).expect_code(3));
                let all = list(&images, "/images");
                let old = all.iter().find(|image| texts(image, "/names").contains(&full("old"))).unwrap();
                assert_eq!(old["frees_bytes"], Value::Null, "{context}: {old:#}");
            }
            #[allow(clippy::disallowed_methods)] // files of this test
            fs::remove_dir_all(&root).unwrap();
        }
    }
    // containerd's own lock does not matter.
    let file = fs::File::open(node.root().join(META_DB)).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    run(&node.root(), &["scan", "--no-record"]).expect_code(0);
}

#[test]
fn snapshots_of_unknown_layout_are_unknown() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 320 * MIB, &[image(&["old"], "old", 4)]) else { return };
    node.rig.stop();
    for name in ["devmapper", "zfs"] {
        let root = node.loopfs.path().join("copy");
        copy(&node.root(), &root);
        // The layout of the files does not matter, only that layersweep does not know it.
        let directory = root.join(format!("io.containerd.snapshotter.v1.{name}"));
        #[allow(clippy::disallowed_methods)] // files of this test
        let _ = fs::remove_dir_all(&directory);
        fs::rename(root.join(OF_OVERLAYFS), directory).unwrap();
        let warnings = assert_unknown(&root, 4 * MIB, name);
        assert!(warnings.contains("of the snapshotter overlayfs not measured"), "{warnings}");
        let images = document(run(&root, &["images", "--format", "json"]).expect_code(3));
        assert!(list(&images, "/images").iter().all(|image| image["frees_bytes"].is_null()), "{images:#}");
        let explained = run(&root, &["explain", &full("old")]).expect_code(3).stdout;
        assert!(explained.contains("what deleting it frees is unknown"), "{explained}");
        #[allow(clippy::disallowed_methods)] // files of this test
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn btrfs_snapshots_are_measured() {
    if !containerd::require_rig() || !Fs::Btrfs.require() || !support::require_program("btrfs") {
        return;
    }
    let loopfs = LoopFs::with(Fs::Btrfs, 500 * MIB, &[], &["commit=1"]);
    let root = loopfs.path().join("containerd");
    let rig = Rig::start(&root, Collection::OnRequest);
    let path = rig.scratch().join("images.tar");
    let images = [image(&["one"], "one", 20), image(&["two"], "two", 10)];
    support::archive::write_running(&path, &images, &["/bin/busybox"]).unwrap();
    rig.shell("C images import --snapshotter btrfs $RC/images.tar >/dev/null; as_pulled");
    // The writable layer of a container.
    let key = rig.shell("C snapshots --snapshotter btrfs ls | awk 'NF == 2 && /Committed/ { print $1 }'");
    rig.shell(&format!("C snapshots --snapshotter btrfs prepare probe {} >/dev/null", key.trim()));
    let active = fs::read_dir(root.join("io.containerd.snapshotter.v1.btrfs/active")).unwrap();
    let active: Vec<PathBuf> = active.map(|entry| entry.unwrap().path()).collect();
    fs::write(active[0].join("written"), vec![7; 3 << 20]).unwrap();
    rig.collect();
    // Committing a snapshot deletes a subvolume, which has its extents until the filesystem has cleaned up.
    rig.shell(&format!("btrfs subvolume sync '{}' >/dev/null", loopfs.path().display()));
    loopfs.sync();

    let scan = document(run(&root, &["scan", "--no-record", "--format", "json"]).expect_code(0));
    let layers = list(&scan, "/layers").iter().filter(|layer| text(layer, "/kind") == "snapshot");
    let layers: Vec<_> = layers.collect();
    assert!(layers.iter().all(|layer| number(layer, "/inodes") > 0), "{layers:#?}");
    let one = list(&scan, "/images").iter().find(|image| texts(image, "/names") == [full("one")]).unwrap();
    let frees = number(one, "/frees_bytes");
    assert!(
        (40 * MIB..43 * MIB).contains(&frees),
        "as a blob and unpacked, without the shared base: {one:#}"
    );
    let usage = document(run(&root, &["usage", "--format", "json"]).expect_code(0));
    assert!(row(&usage, "store_other") < MIB && row(&usage, "unknown") == 0, "{usage:#}");
    let used = number(&usage, "/filesystems/0/used_bytes");
    let rows = list(&usage, "/filesystems/0/rows").iter().map(|row| number(row, "/bytes"));
    assert_eq!(rows.sum::<u64>(), used, "{usage:#}");
    let probe = scan["leaks"].as_array().unwrap().iter().map(|leak| number(leak, "/bytes")).max();
    assert!(probe >= Some(3 * MIB), "only a lease or nothing keeps it: {:#}", scan["leaks"]);
}

#[test]
fn image_that_cri_leaves_is_out_of_reach() {
    let images = [image(&["loaded"], "loaded", 4), image(&["free"], "free", 4)];
    let Some(node) = ContainerdNode::new(Fs::Ext4, 320 * MIB, &images) else { return };
    // CRI knows this name in full, and removes only that.
    node.rig.shell("C images tag reg.local/loaded:1 short:1 >/dev/null");
    node.rig.settle(6);
    node.run(&["scan", "-q"]).expect_code(0);
    for (name, days) in [("loaded", 60), ("free", 50)] {
        node.set_first_detected(name, days);
    }
    let words = ["gc", "--max-age", "1d", "--high", "100", "--low", "99"];
    let planned = node.json(0, &[&words[..], &["--dry-run"]].concat());
    assert_eq!(rule(&planned, &full("loaded")), "out-of-reach");
    let kept = list(&planned, "/kept").iter().find(|kept| texts(kept, "/names").contains(&full("loaded")));
    let detail = text(kept.unwrap(), "/detail").to_owned();
    assert!(detail.contains("`ctr -n k8s.io images rm ") && detail.contains("short:1"), "{detail}");
    let done = node.json(0, &words);
    let deleted: Vec<_> = list(&done, "/deleted").iter().flat_map(|one| texts(one, "/names")).collect();
    assert_eq!(deleted, [full("free")]);
    assert!(node.names("k8s.io").contains(&full("loaded")), "its tag stays");
    let rm = node.run(&["rm", "--min-age", "0s", "--all-tags", &full("loaded")]);
    assert!(
        rm.code != 0 && (rm.stdout + &rm.stderr).contains("ctr -n k8s.io images rm"),
        "rm names the command"
    );
    let explained = node.run(&["explain", &full("loaded")]).expect_code(0).stdout;
    let command = explained.split('`').find(|word| word.starts_with("ctr -n k8s.io images rm")).unwrap();
    node.rig.shell(&command.replacen("ctr -n k8s.io", "C", 1));
    assert!(!node.names("k8s.io").contains(&full("loaded")));
}

#[test]
fn other_platforms_of_an_index_have_a_sum() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 320 * MIB, &[image(&["multi"], "multi", 4)]) else {
        return;
    };
    // A manifest of another platform, whose layer is here, and the index of both.
    node.rig.shell(
        r#"
        put() { d=$(sha256sum <"$1" | cut -d' ' -f1); C content ingest "x-$d" <"$1" >/dev/null; echo "$d"; }
        size() { stat -c %s "$1"; }
        M=application/vnd.oci.image.manifest.v1+json; I=application/vnd.oci.image.index.v1+json
        amd=$(C images ls | awk '$1 == "reg.local/multi:1" { print $3 }'); amd_size=$(C content ls | awk -v d="$amd" '$1 == d { print 300 }')
        head -c 3000000 /dev/urandom >"$RC/layer"; layer=$(put "$RC/layer")
        printf '{"architecture":"s390x","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}' >"$RC/config"; config=$(put "$RC/config")
        printf '{"schemaVersion":2,"mediaType":"%s","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":3000000}]}' \
            $M "$config" "$(size "$RC/config")" "$layer" >"$RC/other"; other=$(put "$RC/other")
        printf '{"schemaVersion":2,"mediaType":"%s","manifests":[{"mediaType":"%s","digest":"%s","size":%s,"platform":{"architecture":"amd64","os":"linux"}},{"mediaType":"%s","digest":"sha256:%s","size":%s,"platform":{"architecture":"s390x","os":"linux"}}]}' \
            $I $M "$amd" "${amd_size:-300}" $M "$other" "$(size "$RC/other")" >"$RC/index"; index=$(put "$RC/index")
        C content label "sha256:$index" containerd.io/gc.ref.content.m.0="$amd" containerd.io/gc.ref.content.m.1="sha256:$other" >/dev/null
        C content label "sha256:$other" containerd.io/gc.ref.content.config="sha256:$config" containerd.io/gc.ref.content.l.0="sha256:$layer" >/dev/null
        target=$(pb_str 1 $I)$(pb_str 2 "sha256:$index")$(pb_int 3 "$(size "$RC/index")")
        grpc containerd.services.images.v1.Images/Create "$(pb_msg 1 "$(pb_str 1 reg.local/index:1)$(pb_msg 3 "$target")")" k8s.io >/dev/null
        "#,
    );
    let explained = node.json(0, &["explain", &full("index")]);
    let manifests = list(&explained, "/manifests").iter();
    let manifests: Vec<_> = manifests
        .map(|manifest| (text(manifest, "/platform"), manifest["used"].as_bool().unwrap()))
        .collect();
    assert_eq!(manifests, [("linux/amd64", true), ("linux/s390x", false)], "{explained:#}");
    let others = number(&explained, "/other_platforms_bytes");
    assert!((3_000_000..3_050_000).contains(&others), "{others}");
    let shown = node.run(&["explain", &full("index")]).expect_code(0).stdout;
    assert!(shown.contains("linux/s390x") && shown.contains("Content of other platforms"), "{shown}");
}

#[test]
fn volumes_of_a_pod_that_is_gone_are_named() {
    let Some(node) = ContainerdNode::new(Fs::Ext4, 320 * MIB, &[]) else { return };
    let kubelet = node.loopfs.path().join("kubelet");
    for uid in ["uid-pod1", "uid-gone"] {
        let volume = kubelet.join("pods").join(uid).join("volumes/kubernetes.io~csi/pvc-1");
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join("data"), vec![1; 40 << 20]).unwrap();
        long_ago(&kubelet.join("pods").join(uid));
    }
    let config = node.rig.scratch().join("layersweep.toml");
    fs::write(&config, format!("[kubelet]\nroot_dir = {:?}\n", kubelet.display().to_string())).unwrap();
    let words = ["report", "--config", config.to_str().unwrap()];
    let remedy = |report: &Value, uid: &str| {
        let causes = list(report, "/verdict/causes").iter();
        let mut of_pod = causes.filter(|cause| cause["id"].as_str() == Some(uid));
        let cause = of_pod.next().unwrap_or_else(|| panic!("{uid}: {report:#}"));
        assert!(cause["command"]["deletes"].is_null(), "{cause:#}");
        text(cause, "/remedy").to_owned()
    };
    let report = node.json(0, &words);
    let gone = remedy(&report, "uid-gone");
    assert!(gone.contains("no sandbox of this pod exists") && gone.contains("CSI"), "{gone}");
    assert!(remedy(&report, "uid-pod1").starts_with("deleted with the pod; an emptyDir"), "{report:#}");
    node.rig.stop();
    let unknown = document(node.run(&[&words[..], &["--format", "json"]].concat()));
    assert!(remedy(&unknown, "uid-gone").contains("is unknown"), "{unknown:#}");
}
