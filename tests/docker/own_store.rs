//! The data root that a real dockerd left: its sum, its images, its containers, and what each deletion gave back.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use layersweep::disk::Progress;
use layersweep::model::refs::Root;
use layersweep::stores::{self, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use serde_json::Value;

use super::unpack;
use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text, texts};
use support::{fair, gc_document, node, schema, small, store, tree};

/// Order of the deletions, and the bytes that XFS gave back: `fixtures/docker/README.md`. i0 was refused.
const GIVEN_BACK: [(&str, u64); 7] = [
    ("local/built:1", 8_192),
    ("registry.local/small/i1:1", 843_776),
    ("registry.local/small/i2:1", 1_146_880),
    ("registry.local/small/i3:1", 4_526_080),
    ("registry.local/small/i4:1", 1_802_240),
    ("build cache", 6_082_560),
    ("stopped", 741_376),
];
/// Noise of the filesystem.
const NOISE: u64 = 64 << 10;

fn json(command: &str, flags: &[&str]) -> Value {
    let words: Vec<_> = command.split(' ').chain(["--format", "json"]).collect();
    let document = program::layersweep(words.iter().chain(flags)).expect_code(0).json();
    schema::assert_fits(command.split(' ').next().unwrap(), &document);
    document
}

fn root_of(scan: &Scan, name: &str) -> Option<Root> {
    let inventory = &scan.inventory;
    let image = inventory.images.iter().position(|image| image.names.iter().any(|known| known == name));
    let container = inventory.containers.iter().position(|container| container.name == name);
    image.map(|ix| Root::Image(ix.into())).or(container.map(|ix| Root::Container(ix.into())))
}

/// Returns the bytes that are freed when an object is deleted after others: `None` is the build cache.
fn frees(scan: &Scan, gone: &mut HashSet<Option<Root>>, root: Option<Root>) -> u64 {
    let held = |gone: &HashSet<Option<Root>>| -> u64 {
        let nodes = (0..scan.inventory.nodes.len()).map(layersweep::model::NodeIx::from);
        let held = nodes.filter(|node| {
            let is_cached = scan.refs.is_cached(*node) && !gone.contains(&None);
            is_cached || scan.refs.reached_by(*node).any(|root| !gone.contains(&Some(root)))
        });
        held.map(|node| scan.inventory[node].size.frees_bytes).sum()
    };
    let before = held(gone);
    gone.insert(root);
    before - held(gone)
}

#[test]
fn own_store_is_read_in_full() {
    if !support::require_root() || !Fs::Xfs.require() {
        return;
    }
    let disk = LoopFs::new(Fs::Xfs, 320 * MIB);
    let docker = disk.path().join("docker");
    unpack(&docker);
    disk.sync();
    // It changes access times.
    let du = tree::du(&docker);
    let before = tree::listing(&docker);
    let root = docker.to_str().unwrap();
    let flags = ["--docker-root", root];

    let scan = json("scan", &flags);
    assert_eq!(number(&scan, "/stores/0/bytes/total"), du);
    assert_eq!([text(&scan, "/stores/0/kind"), text(&scan, "/stores/0/driver")], ["docker", "overlay2"]);
    assert_eq!((list(&scan, "/leaks"), list(&scan, "/warnings")), (&[] as &[Value], &[] as &[Value]));
    fair::assert_shares_add_up(&scan, "docker");
    let containers: Vec<_> = list(&scan, "/containers")
        .iter()
        .map(|container| ["/name", "/image", "/state", "/owner"].map(|field| text(container, field)))
        .collect();
    assert_eq!(containers, [["stopped", "registry.local/small/i0:1", "created", "docker"]]);
    let images: Vec<_> = list(&scan, "/images")
        .iter()
        .map(|image| {
            (texts(image, "/names").concat(), image["in_use"] == true, number(image, "/listed_bytes"))
        })
        .collect();
    let expected = [
        ("registry.local/small/i0:1", true, 6_464_512),
        ("registry.local/small/i4:1", false, 7_664_512),
        ("registry.local/small/i1:1", false, 9_764_512),
        ("", false, 10_464_512),
        ("registry.local/small/i3:1", false, 10_364_512),
        ("registry.local/small/i2:1", false, 7_064_512),
        ("local/built:1", false, 9_464_512),
    ];
    // The sizes are those that Docker printed.
    assert_eq!(images, expected.map(|(name, used, listed)| (name.to_owned(), used, listed)));

    let request = ScanRequest { docker_roots: vec![docker.clone()], ..ScanRequest::of(Sysroot::live()) };
    let scanned = stores::run(&request, &Progress::default()).unwrap();
    let mut gone = HashSet::new();
    for (name, measured) in GIVEN_BACK {
        let freed = frees(&scanned, &mut gone, root_of(&scanned, name));
        assert!(freed.abs_diff(measured) <= NOISE, "{name}: {freed}, measured {measured}");
    }

    let usage = fair::assert_usage_adds_up(&flags, "docker");
    let rows = list(&usage, "/filesystems/0/rows");
    let row = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(number(row("build_cache"), "/count"), 9, "as `docker system df` counts them");
    assert!(rows.iter().any(|row| text(row, "/label").contains("Volumes (docker)")), "{rows:#?}");
    assert_eq!(number(&usage, "/filesystems/0/reclaimable_bytes"), 0, "layersweep deletes nothing here");
    let volume = json("explain data", &flags);
    assert_eq!(text(&volume, "/volume/command/shows"), "docker volume inspect data");
    let layer = json(&format!("explain {root}/overlay2/fcikm5mrb2svk8rm3gdie5hhh"), &flags);
    assert!(text(&layer, "/path").ends_with("fcikm5mrb2svk8rm3gdie5hhh"), "{layer:#}");

    // The commands are Docker's, and none of them forces anything.
    for command in
        ["usage", "report", "doctor", "images", "explain registry.local/small/i0:1", "explain stopped"]
    {
        let words: Vec<_> = command.split(' ').chain(flags).collect();
        let screen = program::layersweep(&words).expect_code(0).stdout;
        assert!(
            !screen.contains("podman") && !screen.contains("prune -") && !screen.contains("crictl"),
            "{screen}"
        );
    }
    let report = program::layersweep(["report"].iter().chain(&flags)).expect_code(0).stdout;
    assert!(report.contains("docker builder prune"), "{report}");
    // All images were loaded or built here: perhaps no registry has them.
    assert!(!report.contains("docker rmi ") && report.contains("docker rm stopped"), "{report}");
    let sentence = report.split_whitespace().collect::<Vec<_>>().join(" ");
    let judged = "5 unused images of Docker, built or loaded here (7.";
    assert!(sentence.contains("only you can judge") && sentence.contains(judged), "{report}");
    assert!(sentence.contains("docker images perhaps no registry has them"), "{report}");
    assert!(sentence.contains("container stopped (7"), "{report}");
    assert!(report.contains("docker volume inspect data"), "{report}");
    let shown = |words: &str, code: i32, expected: &[&str]| {
        let done = program::layersweep(words.split(' ').chain(flags)).expect_code(code);
        let screen = format!("{}{}", done.stdout, done.stderr);
        expected.iter().for_each(|expected| assert!(screen.contains(expected), "{expected}: {screen}"));
    };
    let stopped = ["container stopped (docker, created, never started)", "docker rm stopped"];
    shown("usage", 0, &stopped);
    shown("layers", 0, &["6613cffee9e5-init  4bdc5ef113f4", "6613cffee9e5       6613cffee9e5-init"]);
    shown("explain 6613cffee9e5-init", 0, &["6613cffee9e5-init  layer"]);
    shown("explain local/built:1", 0, &["of its layers stay in a build cache: `docker builder prune`"]);
    shown("explain u3y978iynco2", 0, &["only a build cache uses it"]);

    // Nothing is deleted, in any way.
    for words in [
        &["gc", "-y"][..],
        &["gc", "-y", "--via", "direct"],
        &["rm", "-y", "local/built:1"],
        &["rm", "-y", "--via", "direct", "local/built:1"],
    ] {
        let refused = program::layersweep(words.iter().chain(&flags)).expect_code(5);
        assert!(refused.stderr.contains("in Docker's own store"), "{refused:?}");
        assert!(refused.stderr.contains("`docker rmi NAME` deletes an image"), "{refused:?}");
    }
    let after = tree::listing(&docker);
    assert_eq!(tree::differences(&before, &after), [""; 0], "the store is unchanged");
}

#[test]
fn images_of_podman_are_deleted_beside_docker() {
    if !store::require_tools() || !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let podman = small::still(&dir.path().join("podman"));
    podman.unmount();
    let docker = dir.path().join("docker");
    unpack(&docker);
    let run = |words: &[&str], code: i32| {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(podman.root()).arg("--runroot").arg(podman.runroot());
        command.arg("--docker-root").arg(&docker).arg("--state-dir").arg(dir.path().join("state"));
        command.args(["--format", "json"]);
        node::document(program::run(&mut command).expect_code(code))
    };
    // A name that both have means podman's image; Docker's is out of reach.
    let both = small::name("b");
    let repositories = docker.join("image/overlay2/repositories.json");
    let mut names: Value = serde_json::from_slice(&fs::read(&repositories).unwrap()).unwrap();
    let id = names["Repositories"]["registry.local/small/i4"]["registry.local/small/i4:1"].clone();
    names["Repositories"]["localhost/small/b"] = serde_json::json!({ &both: id });
    fs::write(&repositories, names.to_string()).unwrap();
    let rm = run(&["rm", "--via", "direct", "--min-age", "0s", "-y", &both], 5);
    assert_eq!(gc_document::deleted(&rm), [both.as_str()], "{rm:#}");
    assert_eq!(gc_document::rule(&rm, &both), "out-of-reach");
    // Podman loaded the last image less than a second ago.
    std::thread::sleep(Duration::from_secs(1));
    let gc = ["gc", "--via", "direct", "--min-age", "0s", "--max-age", "1s", "-y"];
    let done = run(&gc, 0);
    let mut deleted = gc_document::deleted(&done);
    deleted.sort();
    assert!(deleted.contains(&small::name("other")), "{done:#}");
    assert!(deleted.iter().all(|name| name.starts_with("localhost/small/")), "{done:#}");
    let kept = list(&done, "/kept").iter().filter(|kept| kept["rule"] == "out-of-reach");
    let of_docker: Vec<_> = kept.collect();
    assert_eq!(of_docker.len(), 6, "{done:#}");
    assert!(
        of_docker.iter().all(|kept| text(kept, "/detail").contains("only `docker rmi` deletes")),
        "{done:#}"
    );
    let rm = run(&["rm", "--via", "direct", "--min-age", "0s", "-y", "local/built:1"], 5);
    assert_eq!(gc_document::rule(&rm, "local/built:1"), "out-of-reach");
}

#[test]
fn commands_are_for_docker_that_has_the_store() {
    if !support::require_root() {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let sysroot = disk.path();
    let docker = sysroot.join("var/lib/docker");
    unpack(&docker);
    fs::create_dir_all(sysroot.join("etc/docker")).unwrap();
    let configuration = sysroot.join("etc/docker/daemon.json");
    let screens = |code: i32| {
        ["report", "usage", "images", "explain stopped", "explain registry.local/small/i4:1"].map(|command| {
            let words = command.split(' ').chain(["--sysroot", sysroot.to_str().unwrap()]);
            program::layersweep(words).expect_code(code).stdout
        })
    };
    let has_command = |screen: &String| {
        ["rm", "rmi", "image", "builder", "volume"]
            .iter()
            .any(|word| [" ", "`"].iter().any(|end| screen.contains(&format!("docker {word}{end}"))))
    };
    assert!(screens(0).iter().any(has_command));
    // An image whose name has a digest was pulled, or pushed: it can be pulled again.
    let repositories = docker.join("image/overlay2/repositories.json");
    let mut names: Value = serde_json::from_slice(&fs::read(&repositories).unwrap()).unwrap();
    let of_image = &mut names["Repositories"]["registry.local/small/i4"];
    let id = of_image["registry.local/small/i4:1"].clone();
    of_image[format!("registry.local/small/i4@sha256:{}", "a".repeat(64))] = id;
    fs::write(&repositories, names.to_string()).unwrap();
    let [report, ..] = screens(0);
    assert!(report.contains("docker rmi registry.local/small/i4:1 9b74f666c8be\n"), "{report}");
    // As dockerd does, it is read with a byte order mark.
    fs::write(&configuration, "\u{feff}{\"data-root\": \"/srv/docker\"}").unwrap();
    let of_another = screens(0);
    assert!(!of_another.iter().any(has_command), "{of_another:#?}");
    assert!(
        of_another.iter().any(|screen| screen.contains("Docker's data root is /srv/docker")),
        "{of_another:#?}"
    );
    fs::remove_file(&configuration).unwrap();
    std::os::unix::fs::chown(&docker, Some(1234), Some(1234)).unwrap();
    let of_user = screens(0);
    assert!(!of_user.iter().any(has_command), "{of_user:#?}");
    assert!(of_user.iter().any(|screen| screen.contains("whose own Docker deletes here")), "{of_user:#?}");
    std::os::unix::fs::chown(&docker, Some(0), Some(0)).unwrap();

    // A broken file does not silently mean the default.
    for text in ["{\"data-root\": \"/srv", "{\"data-root\": \"docker\"}", "{\"data-root\": 5}"] {
        fs::write(&configuration, text).unwrap();
        let words = ["usage", "--sysroot", sysroot.to_str().unwrap()];
        let run = program::layersweep(words).expect_code(3);
        assert_eq!(run.stderr.matches("daemon.json").count(), 1, "{run:?}");
    }
}

#[test]
fn data_root_is_found_below_sysroot() {
    if !support::require_root() {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let sysroot = disk.path();
    // The default is a symlink, as on hosts whose data disk is mounted elsewhere.
    unpack(&sysroot.join("data/docker"));
    fs::create_dir_all(sysroot.join("var/lib")).unwrap();
    std::os::unix::fs::symlink("/data/docker", sysroot.join("var/lib/docker")).unwrap();
    let flags = ["--sysroot", sysroot.to_str().unwrap()];
    let du = tree::du(&sysroot.join("data/docker"));
    let find = |expected: usize, origin: &str| {
        let scan = json("scan", &flags);
        let stores = list(&scan, "/stores");
        assert_eq!(stores.len(), expected, "{stores:#?}");
        let of_docker = stores.iter().find(|store| store["kind"] == "docker").unwrap();
        assert_eq!(text(of_docker, "/origin"), origin);
        scan
    };
    let scan = find(1, "Docker's default");
    assert_eq!(number(&scan, "/stores/0/bytes/total"), du);
    assert_eq!(list(&scan, "/leaks"), &[] as &[Value]);

    fs::create_dir_all(sysroot.join("etc/docker")).unwrap();
    fs::write(sysroot.join("etc/docker/daemon.json"), r#"{"data-root": "/data/docker"}"#).unwrap();
    find(1, "data-root in /etc/docker/daemon.json");

    // After an upgrade, the containerd below the data root is a store of its own: each byte counts once.
    let containerd = sysroot.join("data/docker/containerd");
    fs::create_dir_all(&containerd).unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd/docker/store.tar.gz");
    store::succeed(
        std::process::Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(disk.path().join("etc")),
    );
    fs::rename(sysroot.join("etc/containerd/daemon"), containerd.join("daemon")).unwrap();
    for record in fs::read_dir(sysroot.join("etc/containers")).unwrap().flatten() {
        fs::rename(record.path(), sysroot.join("data/docker/containers").join(record.file_name())).unwrap();
    }
    let both = find(2, "data-root in /etc/docker/daemon.json");
    assert_eq!(list(&both, "/containers").len(), 4, "each container is in one store");
    assert_eq!(list(&both, "/warnings").len(), 1, "{both:#}");
    assert!(text(&both, "/warnings/0/message").contains("containers outside this store"), "{both:#}");
    let total: u64 = list(&both, "/stores").iter().map(|store| number(store, "/bytes/total")).sum();
    assert_eq!(total, tree::du(&sysroot.join("data/docker")));

    // A graphroot in the data root would count twice.
    let (graphroot, configuration) =
        (sysroot.join("data/docker/storage"), sysroot.join("etc/containers/storage.conf"));
    fs::create_dir_all(graphroot.join("overlay-layers")).unwrap();
    fs::write(&configuration, "[storage]\ndriver = \"overlay\"\ngraphroot = \"/data/docker/storage\"\n")
        .unwrap();
    let shared = program::layersweep(["scan", "--format", "json"].iter().chain(&flags)).expect_code(3).json();
    let kinds: Vec<_> = list(&shared, "/stores").iter().map(|store| text(store, "/kind")).collect();
    assert_eq!(kinds, ["containers-storage", "containerd"]);
    let warnings = list(&shared, "/warnings");
    let about = "the store /data/docker/storage is in the same directory";
    assert!(warnings.iter().any(|warning| text(warning, "/message").contains(about)), "{warnings:#?}");
    fs::remove_file(configuration).unwrap();
    fs::remove_dir(graphroot.join("overlay-layers")).unwrap();
    fs::remove_dir(graphroot).unwrap();

    // Docker keeps the records of layers by driver. What another driver has is unknown.
    fs::rename(sysroot.join("data/docker/image/overlay2"), sysroot.join("data/docker/image/vfs")).unwrap();
    fs::rename(sysroot.join("data/docker/overlay2"), sysroot.join("data/docker/vfs")).unwrap();
    let unknown =
        program::layersweep(["scan", "--format", "json"].iter().chain(&flags)).expect_code(3).json();
    let of_docker = list(&unknown, "/stores").iter().find(|store| store["kind"] == "docker").unwrap();
    assert_eq!((text(of_docker, "/driver"), number(of_docker, "/images")), ("vfs", 0));
    let warnings = list(&unknown, "/warnings");
    let about: Vec<_> = warnings.iter().filter(|warning| text(warning, "/message").contains("vfs")).collect();
    assert_eq!(about.len(), 1, "{warnings:#?}");
    assert!(
        list(&unknown, "/leaks").iter().all(|leak| text(leak, "/store") != text(of_docker, "/root")),
        "{unknown:#}"
    );
}
