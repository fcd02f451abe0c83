//! What Docker has forgotten is found, and what only looks like that is not.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use layersweep::disk::Progress;
use layersweep::model::{Consistency, LeakClass, Verdict};
use layersweep::policy::leaks::by_hand;
use layersweep::stores::{self, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;

use super::{STOPPED, unpack};
use crate::support;

/// Age of everything that was unpacked, at the time of the scan.
const LATER: SignedDuration = SignedDuration::from_hours(72);

fn scan(root: &Path) -> Scan {
    let now = Timestamp::now() + LATER;
    let request =
        ScanRequest { docker_roots: vec![root.to_path_buf()], now, ..ScanRequest::of(Sysroot::live()) };
    stores::run(&request, &Progress::default()).unwrap()
}

/// Returns id, class and verdict of all leaks.
fn leaks(scan: &Scan) -> Vec<(String, LeakClass, Verdict)> {
    let mut leaks: Vec<_> =
        scan.inventory.leaks.iter().map(|leak| (leak.id.clone(), leak.class, leak.verdict)).collect();
    leaks.sort();
    leaks
}

fn layer(docker: &Path, name: &str) {
    fs::create_dir_all(docker.join("overlay2").join(name).join("diff")).unwrap();
    fs::write(docker.join("overlay2").join(name).join("diff/file"), vec![1; 300_000]).unwrap();
}

#[test]
fn what_docker_has_forgotten_is_found() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let docker = dir.path().join("docker");
    unpack(&docker);
    let (image, build, container) = ("a".repeat(64), "b".repeat(25), "c".repeat(64));
    // Directories that no record names: of a pull, a build, and an init layer without its container.
    layer(&docker, &image);
    layer(&docker, &build);
    layer(&docker, &format!("{image}-init"));
    // A container whose removal was interrupted: only its layer has a record.
    layer(&docker, &container);
    let mount = docker.join("image/overlay2/layerdb/mounts").join("d".repeat(64));
    fs::create_dir_all(&mount).unwrap();
    fs::write(mount.join("mount-id"), &container).unwrap();
    // Downloads and records that a killed daemon left.
    fs::write(docker.join("tmp/GetImageBlob123"), vec![1; 200_000]).unwrap();
    fs::create_dir_all(docker.join("image/overlay2/layerdb/tmp/write-set-1")).unwrap();
    fs::create_dir_all(docker.join("containers").join("e".repeat(64))).unwrap();

    let found = scan(&docker);
    let expected = [
        (image.clone(), LeakClass::OrphanDir, Verdict::Report),
        (format!("{image}-init"), LeakClass::OrphanDir, Verdict::Report),
        (build, LeakClass::OrphanDir, Verdict::Report),
        (container, LeakClass::OrphanDir, Verdict::Report),
        ("e".repeat(64), LeakClass::OrphanContainerDir, Verdict::Report),
        ("GetImageBlob123".to_owned(), LeakClass::UnfinishedPull, Verdict::Report),
        ("write-set-1".to_owned(), LeakClass::UnfinishedPull, Verdict::Report),
    ];
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(leaks(&found), expected);
    let bytes: u64 = found.inventory.nodes.iter().map(|node| node.size.bytes).sum();
    assert_eq!(bytes, support::tree::du(&docker));
    // Invariant 13: no command that deletes.
    for leak in &found.inventory.leaks {
        let advice = by_hand(&found.inventory, leak);
        assert!(advice.contains("docs/docker.md"), "{advice}");
        let text = format!("{} {advice}", leak.evidence);
        assert!(!text.contains("rm ") && !text.contains("prune -") && !text.contains("umount"), "{text}");
    }

    // A directory whose records cannot be read may belong to any of them.
    fs::write(docker.join("buildkit/snapshots.db"), "not a database").unwrap();
    let damaged = scan(&docker);
    let layers = leaks(&damaged).into_iter().filter(|(_, class, _)| *class == LeakClass::OrphanDir);
    assert_eq!(layers.count(), 0);
    assert!(!damaged.is_complete());
}

#[test]
fn what_only_looks_forgotten_is_not() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let docker = dir.path().join("docker");
    unpack(&docker);
    // BuildKit's snapshots and a container's init layer have no record in layerdb.
    assert_eq!(leaks(&scan(&docker)), []);

    // The image of a container can be deleted by force; its layers stay for the container.
    let i0 = "03257929855a01a2f85ca5ea6803354d66d3d8d1ee31a12b113a5703ac3c5939";
    fs::remove_file(docker.join("image/overlay2/imagedb/content/sha256").join(i0)).unwrap();
    let without = scan(&docker);
    assert_eq!(leaks(&without), []);
    let container = &without.inventory.containers[0];
    assert_eq!((container.image, container.image_id.as_deref()), (None, Some("registry.local/small/i0:1")));
    assert_eq!(container.id, STOPPED);

    // A pull has just begun: at the time of the scan, its files are a minute old.
    let pulled = "f".repeat(64);
    layer(&docker, &pulled);
    let download = docker.join("tmp/GetImageBlob7");
    fs::write(&download, vec![1; 200_000]).unwrap();
    let recent = SystemTime::now() + Duration::from_secs(72 * 3600 - 60);
    for path in [docker.join("overlay2").join(&pulled).join("diff"), download] {
        fs::File::open(path).unwrap().set_modified(recent).unwrap();
    }
    let expected =
        ["GetImageBlob7", &pulled].map(|id| (id.to_owned(), LeakClass::UnfinishedPull, Verdict::Keep));
    assert_eq!(leaks(&scan(&docker)), expected);

    // The data root is a symlink.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("docker", &link).unwrap();
    let by_link = scan(&link);
    assert_eq!(leaks(&by_link), expected);
    assert_eq!(by_link.inventory.stores[0].root, docker.canonicalize().unwrap());
}

/// Base layer of all images of the fixture, and a layer above it.
const BASE: &str = "f3c0c79c9303f30b606de3239e4f833ac53fcac2333d97da97b59e394f3ddef3";
const ABOVE: &str = "e62a0647fafe5185307bfa2114765269b74dd8473596478a890e696dbb8569e4";
const BASE_DIRECTORY: &str = "de44a942f2159eecf2bc038a40062a1fbd155a1bff49dacfb0e3a1027e86da20";

#[test]
fn layer_without_a_record_is_not_forgotten() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let docker = dir.path().join("docker");
    unpack(&docker);
    let records = docker.join("image/overlay2/layerdb/sha256");
    let mount = docker.join("image/overlay2/layerdb/mounts").join(STOPPED);
    // It would be forgotten; made by the filesystem, the other one is no layer.
    layer(&docker, &"a".repeat(64));
    fs::create_dir(docker.join("overlay2/lost+found")).unwrap();
    let forgotten =
        |scan: &Scan| leaks(scan).into_iter().filter(|(_, class, _)| *class == LeakClass::OrphanDir).count();
    assert_eq!(forgotten(&scan(&docker)), 1);

    // A word of a record was not written, or is another one.
    let [base, above] = [BASE, ABOVE].map(|chain| records.join(chain));
    for (word, text) in [
        (base.join("cache-id"), ""),
        (base.join("cache-id"), "l"),
        (base.join("diff"), ""),
        (base.join("size"), ""),
        (above.join("parent"), ""),
        (above.join("parent"), BASE_DIRECTORY),
        (mount.join("mount-id"), ""),
        (mount.join("init-id"), ""),
        (mount.join("parent"), ""),
    ] {
        let before = fs::read(&word).unwrap();
        fs::write(&word, text).unwrap();
        let damaged = scan(&docker);
        assert_eq!(forgotten(&damaged), 0, "{word:?} {text:?}");
        assert!(!damaged.is_complete(), "{word:?} {text:?}");
        let of_records =
            damaged.inventory.findings.iter().filter(|finding| finding.path.starts_with(&docker));
        assert_eq!(of_records.count(), 1, "{:?}", damaged.inventory.findings);
        fs::write(&word, before).unwrap();
    }
    // Many damaged records are one warning, about the first of them.
    for record in [&base, &above] {
        fs::rename(record.join("diff"), record.join("away")).unwrap();
    }
    let damaged = scan(&docker);
    let [finding] = &damaged.inventory.findings[..] else { panic!("{:?}", damaged.inventory.findings) };
    assert!(finding.message.ends_with("; the same for 1 more"), "{finding:?}");
    assert!([&base, &above].contains(&&finding.path), "{finding:?}");
    for record in [&base, &above] {
        fs::rename(record.join("away"), record.join("diff")).unwrap();
    }
    fs::rename(above.join("parent"), dir.path().join("parent")).unwrap();
    assert!(forgotten(&scan(&docker)) == 0 && !scan(&docker).is_complete());
    fs::rename(dir.path().join("parent"), above.join("parent")).unwrap();

    // The record of a layer is missing: any directory may be its. Each image lacks it, also far below its top.
    fs::rename(&base, dir.path().join("base")).unwrap();
    let without = scan(&docker);
    assert!(!without.is_complete());
    let found = leaks(&without);
    assert!(found.iter().all(|(_, class, _)| *class == LeakClass::BrokenImage), "{found:?}");
    assert_eq!(found.len(), without.inventory.images.len());
    fs::rename(dir.path().join("base"), &base).unwrap();

    // BuildKit's layers alone name it.
    let link = docker.join("overlay2").join("a".repeat(64)).join("link");
    fs::write(link, "ABCDEFGHIJKLMNOPQRSTUVWXYZ").unwrap();
    let cached = docker.join("overlay2/fcikm5mrb2svk8rm3gdie5hhh/lower");
    let lower = fs::read_to_string(&cached).unwrap();
    fs::write(&cached, format!("{}:l/ABCDEFGHIJKLMNOPQRSTUVWXYZ", lower.trim())).unwrap();
    assert_eq!(leaks(&scan(&docker)), []);
    fs::write(&cached, lower).unwrap();

    // So does the mount of a container, by the short name.
    let options = "lowerdir=l/ABCDEFGHIJKLMNOPQRSTUVWXYZ:l/BASE";
    let point = dir.path().join("merged");
    fs::create_dir(&point).unwrap();
    std::os::unix::fs::symlink(
        format!("../{}/diff", "a".repeat(64)),
        docker.join("overlay2/l/ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    )
    .unwrap();
    std::os::unix::fs::symlink(format!("../{BASE_DIRECTORY}/diff"), docker.join("overlay2/l/BASE")).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", options])
        .arg(&point)
        .current_dir(docker.join("overlay2"))
        .status();
    assert!(mounted.unwrap().success());
    let used = scan(&docker);
    assert!(Command::new("umount").arg(&point).status().unwrap().success());
    assert_eq!(leaks(&used), [("a".repeat(64), LeakClass::OrphanDir, Verdict::Keep)]);
    assert_eq!(forgotten(&scan(&docker)), 1);
}

#[test]
fn layer_without_its_directory_is_reported() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let docker = dir.path().join("docker");
    unpack(&docker);
    fs::rename(docker.join("overlay2").join(BASE_DIRECTORY), dir.path().join("away")).unwrap();
    let found = scan(&docker);
    assert_eq!(leaks(&found), [(BASE_DIRECTORY.to_owned(), LeakClass::LayerNoDir, Verdict::Report)]);
    assert!(found.is_complete());

    // The disk of the layers is not mounted: its directory is empty, or missing.
    fs::rename(docker.join("overlay2"), dir.path().join("overlay2")).unwrap();
    for make in [false, true] {
        if make {
            fs::create_dir(docker.join("overlay2")).unwrap();
        }
        let found = scan(&docker);
        assert_eq!((leaks(&found), found.is_complete()), (vec![], false));
        assert_eq!(found.inventory.images.len(), 7);
    }
}

#[test]
fn writing_daemon_is_read_whole_or_proves_nothing() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let docker = dir.path().join("docker");
    unpack(&docker);
    layer(&docker, &"a".repeat(64));
    let is_done = AtomicBool::new(false);
    let scanned = thread::scope(|scope| {
        scope.spawn(|| {
            let names = docker.join("image/overlay2/repositories.json");
            let text = fs::read(&names).unwrap();
            // As Docker replaces it with each tag.
            while !is_done.load(Ordering::Relaxed) {
                fs::write(dir.path().join("new"), &text).unwrap();
                fs::rename(dir.path().join("new"), &names).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let scanned = std::panic::catch_unwind(|| scan(&docker));
        is_done.store(true, Ordering::Relaxed);
        scanned.unwrap()
    });
    // On a busy machine there may be a quiet moment.
    let verdict = match scanned.inventory.stores[0].consistency {
        Consistency::Consistent => Verdict::Report,
        Consistency::WriterActive => Verdict::Keep,
        Consistency::Damaged => panic!("{:?}", scanned.inventory.findings),
    };
    assert_eq!(leaks(&scanned), [("a".repeat(64), LeakClass::OrphanDir, verdict)]);
    assert_eq!(scanned.inventory.images.len(), 7, "each file was read whole");
}
