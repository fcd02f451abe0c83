//! Temporary files of pulls and builds in configured places.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support;
use layersweep::disk::Progress;
use layersweep::stores::{self, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use serde_json::Value;
use support::program::{self, list, number, text};
use support::small;
use support::store::{self, Store, succeed};

/// Makes the leftover of a killed pull; returns its path.
fn blobs(directory: &Path) -> String {
    let path = directory.join("container_images_storage1402873645");
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("1"), vec![1; 2 << 20]).unwrap();
    path.display().to_string()
}

#[test]
fn leftovers_in_configured_places_are_found() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(&dir.path().join("root"), "overlay", &[small::image("base")]);
    // `image_copy_tmp_dir` of this store.
    let temporary = store.scratch().join("tmp");
    let pull = blobs(&temporary);
    let context = store.scratch().join("context");
    fs::create_dir(&context).unwrap();
    fs::copy("/bin/busybox", context.join("busybox")).unwrap();
    let steps = "FROM scratch\nCOPY busybox /bin/sh\nRUN --mount=type=cache,target=/c head -c 3000000 /dev/zero >/c/x\n";
    fs::write(context.join("Dockerfile"), steps).unwrap();
    succeed(store.buildah_command().args(["bud", "-q", "-t", "localhost/built:1"]).arg(&context));
    store.unmount();

    fn run(store: &Store, words: &[&str]) -> program::Run {
        let mut command = program::command();
        command.args(words).arg("--state-dir").arg(store.scratch().join("state"));
        for name in ["containers", "storage"] {
            let variable = if name == "containers" { "CONTAINERS_CONF" } else { "CONTAINERS_STORAGE_CONF" };
            command.env(variable, store.scratch().join(format!("{name}.conf")));
        }
        program::run(&mut command).expect_no_crash()
    }
    let sweep = run(&store, &["sweep", "--format", "json"]).json();
    let leaks: Vec<_> = list(&sweep, "/leaks").iter().filter(|leak| leak["class"] == "vartmp").collect();
    let find = |start: &str| -> &Value {
        let found = leaks.iter().find(|leak| text(leak, "/path").starts_with(start));
        found.unwrap_or_else(|| panic!("{start}: {sweep:#}"))
    };
    assert!(number(find(&pull), "/bytes") >= 2 << 20);
    let cache = find(&temporary.join("buildah-cache").display().to_string());
    assert!(number(cache, "/bytes") >= 3_000_000, "{cache:#}");
    assert_eq!(text(cache, "/verdict"), "report");
    assert!(text(cache, "/evidence").contains("`buildah prune`"), "{cache:#}");
    let report = run(&store, &["report"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains(text(cache, "/path")) && report.contains("`buildah prune`"), "{report}");
    let others = report.split("other data in ").skip(1);
    assert!(others.clone().all(|other| !other.starts_with(&pull)), "named as a leak alone: {report}");

    // The leftover of the pull is deleted unless a running tool may be making it; the cache is never deleted.
    let swept =
        run(&store, &["sweep", "--delete", "--class", "vartmp", "--min-age", "0s", "--format", "json"])
            .json();
    assert!(list(&swept, "/deleted").iter().all(|row| text(row, "/path") == pull), "{swept:#}");
    assert!(temporary.join("buildah-cache/c/x").exists());
}

#[test]
fn leftovers_of_units_and_crio_are_found() {
    let disk = tempfile::tempdir().unwrap();
    fn write(disk: &tempfile::TempDir, path: &str, text: &str) {
        let path = disk.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for kind in ["layers", "images", "containers"] {
        write(&disk, &format!("var/lib/containers/storage/overlay-{kind}/{kind}.json"), "[]");
    }
    write(&disk, "etc/crio/crio.conf", "[crio.image]\nbig_files_temporary_dir = \"/data/crio\"\n");
    write(&disk, "usr/lib/systemd/system/crio.service", "[Service]\nEnvironment=TMPDIR=/data/vendor\n");
    write(
        &disk,
        "etc/systemd/system/podman.service.d/tmp.conf",
        "[Service]\nEnvironment=\"A=b\" \"TMPDIR=/data/own\"\n",
    );
    let directories = ["var/tmp", "data/crio", "data/vendor", "data/own"].map(|path| disk.path().join(path));
    let mut expected = directories.map(|directory| blobs(&directory));
    let scan = stores::run(&ScanRequest::of(Sysroot::at(disk.path())), &Progress::default()).unwrap();
    let leaks = scan.inventory.leaks.iter().filter(|leak| leak.class.as_str() == "vartmp");
    let mut found: Vec<_> = leaks.map(|leak| leak.path.display().to_string()).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}
