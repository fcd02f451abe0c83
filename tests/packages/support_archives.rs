//! How a node reaches support: the plugin for sos, run by sos itself, and the must-gather script for OpenShift.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use support::packages::{sources, succeed, tool};
use support::program::{self, layersweep, list, text, texts};
use support::schema::assert_fits;
use support::{require_program, small, store};

/// Runs sos on a node whose podman store is in its usual place. The working directory, the first place where sos looks
/// for its modules, has a copy of them with the plugin; no byte of the machine's sos changes.
const SOS: &str = r#"
work=$1 graphroot=$2 runroot=$3 program=$4 plugin=$5
mkdir "$work/dpkg" && mount --bind /var/lib/dpkg "$work/dpkg"
mount -t tmpfs none /var/lib && mount -t tmpfs none /run && mount -t tmpfs none /usr/local/bin
mkdir -m 700 /var/lib/layersweep
mkdir -p /var/lib/dpkg /var/lib/containers/storage /run/containers/storage /etc/layersweep
mount --bind "$work/dpkg" /var/lib/dpkg
mount --bind "$graphroot" /var/lib/containers/storage
mount --bind "$runroot" /run/containers/storage
ln -s "$program" /usr/local/bin/layersweep
layersweep scan --quiet
mkdir "$work/out"
modules=$(/usr/bin/python3 -c 'import os, sos; print(os.path.dirname(sos.__file__))')
cp -r "$modules" "$work/sos"
cp "$plugin" "$work/sos/report/plugins/"
cd "$work"
sos report --batch --tmp-dir "$work/out" --only-plugins=layersweep --plugin-option=layersweep.records=on
tar -xf "$work"/out/*.tar.xz -C "$work" --strip-components=1 --one-top-level=archive
"#;

#[test]
fn sos_report_holds_the_documents() {
    if !store::require_tools() || !require_program("sos") {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let store = small::still(&work.path().join("graphroot"));
    let mut command = Command::new("unshare");
    program::hermetic(&mut command);
    command.env_remove("LAYERSWEEP_STATE_DIR").env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", SOS, "sh"]).arg(work.path());
    command.arg(store.root()).arg(store.runroot()).arg(env!("CARGO_BIN_EXE_layersweep"));
    command.arg(sources().join("packaging/sos/layersweep.py"));
    let said = program::run(&mut command).expect_code(0);
    assert!(!said.stderr.contains("Traceback"), "{said:?}");

    let archive = work.path().join("archive");
    let documents = archive.join("sos_commands/layersweep");
    for kind in ["report", "doctor", "gc", "history"] {
        let document = std::fs::read(documents.join(format!("{kind}.json"))).unwrap();
        let document = serde_json::from_slice(&document).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_fits(kind, &document);
        if kind == "report" {
            assert_eq!(list(&document, "/filesystems").len(), 1, "{document:#}");
        }
    }
    for (name, wanted) in [
        ("report.txt", "/var/lib/containers"),
        ("usage.txt", "Store /var/lib/containers/storage"),
        ("config.txt", "images.high_percent"),
        ("version.txt", env!("CARGO_PKG_VERSION")),
    ] {
        let text = std::fs::read_to_string(documents.join(name)).unwrap();
        assert!(text.contains(wanted), "{name}: {text}");
    }

    // With the records, the archive is a disk that can be read, without the content of any layer.
    let images =
        layersweep(["images", "--format", "json", "--sysroot"].map(Path::new).into_iter().chain([&*archive]));
    let images = images.json();
    let names: Vec<String> =
        list(&images, "/images").iter().flat_map(|image| texts(image, "/names")).collect();
    assert!(names.contains(&small::name("a")), "{images:#}");
    let history = layersweep(
        ["history", "--all", "--format", "json", "--sysroot"].map(Path::new).into_iter().chain([&*archive]),
    );
    assert_eq!(text(&history.expect_code(0).json(), "/runs/0/command"), "scan");
    let layers = archive.join("var/lib/containers/storage/overlay");
    assert!(!layers.exists(), "contents of layers were copied");
}

/// Writes a program for a test.
fn stand_in(directory: &Path, name: &str, script: &str) {
    let path = directory.join(name);
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A cluster of two nodes: `debug` runs the command here, in memory of its own, and `chroot` does not leave this root.
const OC: &str = r#"#!/bin/sh
case $1 in
get) printf 'node/one\nnode/two\n' ;;
debug)
    [ "$3" != node/two ] || { echo 'error: node two does not answer' >&2; exit 1; }
    while [ "$1" != -- ]; do shift; done
    shift
    echo "Starting pod/one-debug ..." >&2
    exec unshare --mount --propagation private \
        sh -c 'mount -t tmpfs none /dev/shm && exec "$@"' sh "$@" ;;
esac
"#;

#[test]
fn must_gather_collects_answering_nodes() {
    if !store::require_tools() || !require_program("shellcheck") {
        return;
    }
    let script = sources().join("packaging/openshift/gather_layersweep");
    succeed(tool("shellcheck").arg(&script));
    let dir = tempfile::tempdir().unwrap();
    stand_in(dir.path(), "oc", OC);
    let store = small::still(&dir.path().join("graphroot"));
    let stores = format!("--graphroot {} --runroot {}", store.root().display(), store.runroot().display());
    let chroot = format!("#!/bin/sh\nshift\n[ $1 = journalctl ] || set -- \"$@\" {stores}\nexec \"$@\"\n");
    stand_in(dir.path(), "chroot", &chroot);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_layersweep"), dir.path().join("layersweep")).unwrap();
    let mut command = Command::new("sh");
    program::hermetic(&mut command);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", dir.path().display()));
    command.arg(&script).arg(dir.path().join("out"));
    let run = program::run(&mut command);
    // One node that does not answer takes no document from the others, and is named.
    assert!(run.stderr.contains("error: no documents of two, see "), "{run:?}");
    let gathered: PathBuf = dir.path().join("out/layersweep");
    for kind in ["report", "doctor", "gc", "history"] {
        let document = std::fs::read(gathered.join("one").join(format!("{kind}.json"))).unwrap();
        let document = serde_json::from_slice(&document).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_fits(kind, &document);
    }
    let reason = std::fs::read_to_string(gathered.join("two/oc-debug.txt")).unwrap();
    assert!(reason.contains("does not answer"), "{reason}");
}
