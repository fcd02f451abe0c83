//! Stores that a real dockerd (29) and a real buildkitd left, with containerd 2.4: stopped containers are containers,
//! the build cache is a build cache, and nothing in either store is called a leak.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use serde_json::Value;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text, texts};
use support::{fair, schema};

const LIVE: &str = "a2d0539db112487fff4398ed02bb97ae8017e45b0594bdcc5df13026f9854abb";

/// Unpacks the store of `kind` (`docker`, `buildkit`) at `place`.
fn unpack(kind: &str, place: &Path) {
    fs::create_dir_all(place).unwrap();
    let archive = fixture(kind).join("store.tar.gz");
    let unpacked = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(place).status();
    assert!(unpacked.unwrap().success());
}

fn fixture(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd").join(kind)
}

fn json(command: &str, flags: &[&str]) -> Value {
    let words = [command, "--format", "json"];
    let document = program::layersweep(words.iter().chain(flags)).expect_code(0).json();
    schema::assert_fits(command, &document);
    document
}

fn row<'a>(usage: &'a Value, kind: &str) -> Option<&'a Value> {
    list(usage, "/filesystems/0/rows").iter().find(|row| row["kind"] == kind)
}

/// Returns name, image, state and owner of each container, and for each image if it is in use.
fn users(scan: &Value) -> (Vec<[&str; 4]>, Vec<(String, bool)>) {
    let mut containers: Vec<_> = list(scan, "/containers")
        .iter()
        .map(|container| ["/name", "/image", "/state", "/owner"].map(|field| text(container, field)))
        .collect();
    containers.sort_unstable();
    let mut images: Vec<_> = list(scan, "/images")
        .iter()
        .map(|image| (texts(image, "/names").concat(), image["in_use"] == true))
        .collect();
    images.sort_unstable();
    (containers, images)
}

#[test]
fn stopped_containers_of_docker_are_containers() {
    if !Fs::Ext4.require() {
        return;
    }
    let disk = LoopFs::with(Fs::Ext4, 64 * MIB, &["-b", "4096"], &[]);
    let docker = disk.path().join("var/lib/docker");
    unpack("docker", &docker);
    let root = docker.join("containerd/daemon");
    let named = ["--containerd-root", root.to_str().unwrap()];
    let foreign = ["--sysroot", disk.path().to_str().unwrap()];
    fn images(others: bool) -> Vec<(String, bool)> {
        fn name(name: &str) -> String {
            format!("docker.io/library/{name}:1")
        }
        vec![(name("built"), false), (name("other"), others), (name("web"), true)]
    }
    let (web, other) = ("docker.io/library/web:1", "docker.io/library/other:1");
    for flags in [named, foreign] {
        let scan = json("scan", &flags);
        assert_eq!(list(&scan, "/leaks"), &[] as &[Value], "{flags:?}");
        let expected = [
            ["created", other, "created", "docker"],
            ["live", web, "created", "docker"],
            ["stopped", web, "created", "docker"],
        ];
        assert_eq!(users(&scan), (expected.to_vec(), images(true)), "{flags:?}");
        assert_eq!(number(&scan, "/stores/0/bytes/total"), support::tree::du(&root), "{flags:?}");
        assert_eq!(list(&json("sweep", &flags), "/leaks"), &[] as &[Value], "{flags:?}");
        fair::assert_shares_add_up(&scan, "docker");
        let usage = json("usage", &flags);
        let containers = row(&usage, "containers_other").unwrap();
        assert_eq!(number(containers, "/count"), 3);
        assert!(number(containers, "/bytes") > 300 << 10, "what the containers have written: {containers:#}");
        assert_eq!(number(row(&usage, "leaks").unwrap(), "/bytes"), 0);
        let explained = json("explain", &[&flags[..], &["web:1"]].concat());
        let in_use = list(&explained, "/rules").iter().find(|rule| rule["rule"] == "in-use").unwrap();
        assert_eq!(in_use["keeps"], true, "{in_use:#}");
    }
    fair::assert_usage_adds_up(&named, "docker");

    // Docker's configuration names the data root, which contains Docker's containerd.
    let data = disk.path().join("data/docker");
    fs::create_dir_all(disk.path().join("data")).unwrap();
    fs::rename(&docker, &data).unwrap();
    fs::create_dir_all(disk.path().join("etc/docker")).unwrap();
    fs::write(disk.path().join("etc/docker/daemon.json"), r#"{"data-root": "/data/docker"}"#).unwrap();
    let scan = json("scan", &foreign);
    assert_eq!(users(&scan).0[1], ["live", web, "created", "docker"]);

    // With the system's containerd, the configuration names the directory of Docker's records.
    let system = disk.path().join("var/lib/containerd");
    fs::rename(data.join("containerd/daemon"), &system).unwrap();
    let scan = json("scan", &foreign);
    assert_eq!(users(&scan).0[1], ["live", web, "created", "docker"]);

    // One record has an end, one cannot be read.
    let records = disk.path().join("data/docker/containers");
    let record = records.join(LIVE).join("config.v2.json");
    let ended = fs::read_to_string(&record)
        .unwrap()
        .replace(r#""FinishedAt":"0001-01-01T00:00:00Z""#, r#""FinishedAt":"2026-11-26T10:30:00Z""#);
    fs::write(&record, ended).unwrap();
    let scan = json("scan", &foreign);
    assert_eq!(users(&scan).0[1], ["live", web, "exited", "docker"]);
    fs::remove_file(&record).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &record).unwrap();
    let scan = json("scan", &foreign);
    let unread = users(&scan);
    assert_eq!(unread.0[0][2..], ["unknown", "docker"]);
    assert_eq!(unread.1, images(true));
    assert!(
        list(&scan, "/warnings").iter().any(|warning| text(warning, "/message").contains("Docker's record"))
    );

    // Without any record, each image whose layers a container uses is in use.
    support::tree::remove(&records);
    let scan = json("scan", &foreign);
    assert_eq!(users(&scan).1, images(true));
    assert_eq!(list(&scan, "/containers").len(), 3);
    assert_eq!(list(&scan, "/leaks"), &[] as &[Value]);
}

#[test]
fn build_cache_of_buildkit_is_one_row() {
    if !Fs::Ext4.require() {
        return;
    }
    let directory = LoopFs::with(Fs::Ext4, 64 * MIB, &["-b", "4096"], &[]);
    unpack("buildkit", directory.path());
    let root = directory.path().join("containerd");
    let flags = ["--containerd-root", root.to_str().unwrap()];
    let scan = json("scan", &flags);
    assert_eq!(list(&scan, "/leaks"), &[] as &[Value]);
    assert_eq!(number(&scan, "/stores/0/bytes/total"), support::tree::du(&root));
    fair::assert_shares_add_up(&scan, "buildkit");
    fair::assert_usage_adds_up(&flags, "buildkit");
    let usage = json("usage", &flags);
    let cache = row(&usage, "build_cache").unwrap();
    assert_eq!(number(cache, "/count"), 5, "as `buildctl du` lists: {cache:#}");
    assert_eq!(number(cache, "/bytes"), number(&scan, "/stores/0/bytes/build_cache"));
    assert_eq!(number(row(&usage, "leaks").unwrap(), "/count"), 0);

    // `buildctl du` counts the directory `fs` of a snapshot, and the length of a blob. The blobs of both layers belong
    // to the image too, so they are in its row.
    let du = fs::read_to_string(fixture("buildkit").join("buildctl-du.txt")).unwrap();
    let said: Vec<(&str, f64)> = du.lines().filter_map(size_of_record).collect();
    assert_eq!(said.len(), 5);
    let layers = list(&scan, "/layers");
    let of_kind = |kind: &'static str| layers.iter().filter(move |layer| layer["kind"] == kind);
    let mut counted = 0;
    for (id, _) in &said {
        let id = format!("buildkit/{id}");
        let snapshot = of_kind("snapshot").find(|layer| layer["id"] == id).unwrap();
        let path = Path::new(text(snapshot, "/path"));
        assert_eq!(snapshot["build_cache"], true, "{snapshot:#}");
        assert_eq!(number(snapshot, "/bytes"), support::tree::du(path), "{snapshot:#}");
        counted += support::tree::du(&path.join("fs"));
    }
    counted += of_kind("blob")
        .filter(|blob| number(blob, "/bytes") > 100 << 10)
        .map(|blob| number(blob, "/apparent_bytes"))
        .sum::<u64>();
    let expected = said.iter().map(|(_, bytes)| bytes).sum::<f64>();
    assert!((support::metrics::float(counted) - expected).abs() < 50.0, "{counted} and {expected}");

    let shown = program::layersweep(["layers"].iter().chain(&flags)).expect_code(0).stdout;
    assert!(shown.contains("build cache") && !shown.contains("nothing"), "{shown}");
    let swept = program::layersweep(["sweep"].iter().chain(&flags)).expect_code(0).stdout;
    assert!(swept.starts_with("No leaks") && !swept.contains("ctr "), "{swept}");
}

/// Returns id and bytes of a line of `buildctl du`.
fn size_of_record(line: &str) -> Option<(&str, f64)> {
    let [id, _, size, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let kilobytes: f64 = size.trim_end_matches('*').strip_suffix("kB")?.parse().ok()?;
    (id.trim_end_matches('*').len() == 25).then_some((id.trim_end_matches('*'), kilobytes * 1000.0))
}
