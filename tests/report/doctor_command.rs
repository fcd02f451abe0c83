//! `doctor` on disks of nodes with settings of all kinds, and on this machine with a podman store, records and a socket
//! of a runtime.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::support;
use crate::support::cri_server;
use cri_server::CriServer;
use layersweep::history::{Caller, RunLock, state_directory};
use layersweep::sys::sysroot::Sysroot;
use support::program::{self, Run, layersweep, list, text};
use support::store::{self, Store};
use support::{schema, small, tree};

/// Returns the document of a run that must exit with `code`; the document must fit its schema.
fn document(run: Run, code: i32) -> Value {
    let document = run.expect_no_crash().expect_code(code).json();
    schema::assert_fits("doctor", &document);
    for status in ["ok", "note", "warning", "error"] {
        let count = list(&document, "/checks").iter().filter(|check| check["status"] == status).count();
        assert_eq!(program::number(&document, &format!("/counts/{status}")), count as u64);
    }
    for check in list(&document, "/checks") {
        let is_wrong = ["warning", "error"].contains(&text(check, "/status"));
        assert!(!is_wrong || !text(check, "/remedy").is_empty(), "no remedy: {check:#}");
        assert!(!text(check, "/message").is_empty(), "{check:#}");
    }
    document
}

fn checks<'a>(document: &'a Value, name: &str) -> Vec<&'a Value> {
    list(document, "/checks").iter().filter(|check| check["name"] == name).collect()
}

/// Returns the worst status of the checks with a name; empty without such a check.
fn status<'a>(document: &'a Value, name: &str) -> &'a str {
    let order = ["ok", "note", "warning", "error"];
    let found = checks(document, name).into_iter().map(|check| text(check, "/status"));
    found.max_by_key(|status| order.iter().position(|other| other == status)).unwrap_or_default()
}

/// A disk of a node with a store and other files.
struct Disk {
    dir: tempfile::TempDir,
    _store: Store,
}

impl Disk {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let store = small::still(&dir.path().join("var/lib/containers/storage"));
        Some(Self { dir, _store: store })
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside)
    }

    fn run(&self, words: &[&str]) -> Run {
        layersweep([&["doctor", "--sysroot", self.dir.path().to_str().unwrap()], words].concat())
    }

    /// Returns the document for the node with these files, which are removed afterwards.
    fn with(&self, files: &[(&str, &str)], code: i32) -> Value {
        for (path, text) in files {
            let path = self.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let said = document(self.run(&["--format", "json"]), code);
        for (path, _) in files {
            std::fs::remove_file(self.path(path)).unwrap();
        }
        said
    }
}

const CONFIG: &str = "var/lib/kubelet/config.yaml";
const CONFIG_OF_LAYERSWEEP: &str = "etc/layersweep/layersweep.toml";

#[test]
fn thresholds_of_all_kinds() {
    let Some(disk) = Disk::new() else { return };
    let order = "kubelet-order";
    for (files, name, expected) in [
        (&[][..], order, ""),
        (&[(CONFIG, "kind: KubeletConfiguration\n")], order, "note"),
        // The article's settings: eviction at 85 % used, image collection from 95 % on.
        (&[(CONFIG, "imageGCHighThresholdPercent: 95\nimageGCLowThresholdPercent: 90\n")], order, "error"),
        (&[(CONFIG, "imageGCHighThresholdPercent: 75\nimageGCLowThresholdPercent: 70\n")], order, "ok"),
        (
            &[(CONFIG, "imageGCHighThresholdPercent: 75\nimageGCLowThresholdPercent: 70\n")],
            "our-thresholds",
            "warning",
        ),
        (&[(CONFIG, "{\"evictionHard\": {\"imagefs.available\": \"30%\"}}")], "our-thresholds", "error"),
        (
            &[(CONFIG, "evictionHard: {imagefs.available: 5%, nodefs.available: 5%}\n")],
            "kubelet-eviction",
            "warning",
        ),
        (&[(CONFIG, "imageGCLowThresholdPercent: 85\n")], "kubelet-settings", "error"),
        (&[(CONFIG, "imageMaximumGCAge: 168h\n")], "image-age", "note"),
        (&[(CONFIG, "evictionSoft: {nodefs.available: 22%}\n")], order, "warning"),
        (&[(CONFIG, "evictionHard: [\n")], "kubelet-files", "warning"),
        (
            &[
                ("etc/kubernetes/kubelet.conf", "imageGCHighThresholdPercent: 85\n"),
                ("etc/openshift/kubelet.conf.d/10-pool.conf", "imageGCHighThresholdPercent: 95\n"),
            ],
            order,
            "error",
        ),
        (&[("etc/default/kubelet", "KUBELET_EXTRA_ARGS=\"--image-gc-high-threshold=95\"\n")], order, "error"),
        (
            &[(
                "etc/systemd/system/kubelet.service",
                "ExecStart=/usr/bin/kubelet \\\n --eviction-hard=imagefs.available<40%% \\\n -v 2\n",
            )],
            "our-thresholds",
            "error",
        ),
        (
            &[
                ("etc/rancher/k3s/config.yaml", "kubelet-arg:\n- image-gc-high-threshold=75\n"),
                ("etc/rancher/k3s/config.yaml.d/9.yaml", "kubelet-arg+: [image-gc-high-threshold=95]\n"),
            ],
            order,
            "error",
        ),
        (
            &[("etc/rancher/rke2/config.yaml", "kubelet-arg: [1]\n"), (CONFIG, "a: b\n")],
            "kubelet-files",
            "warning",
        ),
        (
            &[(CONFIG, "a: b\n"), (CONFIG_OF_LAYERSWEEP, "[images]\nhigh_percent = 90\n")],
            "our-thresholds",
            "error",
        ),
        (
            &[(CONFIG, "a: b\n"), (CONFIG_OF_LAYERSWEEP, "[containers]\nenabled = true\n")],
            "container-gc",
            "warning",
        ),
        (
            &[
                (CONFIG_OF_LAYERSWEEP, "[containers]\nenabled = true\n"),
                ("etc/sysconfig/kubelet", "A=--maximum-dead-containers-per-container=-1\n"),
            ],
            "container-gc",
            "ok",
        ),
        (&[(CONFIG_OF_LAYERSWEEP, "[images]\nhigh = 90\n")], "configuration", "error"),
        (&[("etc/crio/crio.conf", "[crio]\n")], "crio-start", "note"),
        (&[("etc/crio/crio.conf.d/1", "[crio]\ninternal_repair = false\n")], "crio-start", "ok"),
        (&[("etc/crio/crio.conf", "[crio]\nclean_shutdown_file = \"\"\n")], "crio-start", "ok"),
    ] {
        let errors = expected == "error";
        let said = disk.with(files, i32::from(errors));
        assert_eq!(status(&said, name), expected, "{files:?}: {said:#}");
        assert_eq!(text(&said, "/status") == "error", errors, "{files:?}: {said:#}");
    }
}

/// The packaged drop-ins of the kubelet, in the directory that its flag names.
#[test]
fn packaged_kubelet_drop_ins_are_recognised() {
    let Some(disk) = Disk::new() else { return };
    const UNIT: &str = "usr/lib/systemd/system/layersweep-gc.timer";
    const ENABLED: &str = "etc/systemd/system/timers.target.wants/layersweep-gc.timer";
    let flags = ("etc/default/kubelet", "KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d\n");
    let main = (CONFIG, "kind: KubeletConfiguration\nimageGCHighThresholdPercent: 85\n");
    for (name, order, alone, says) in [
        (
            "50-layersweep-only.conf",
            "note",
            "warning",
            ["collection is off (", "only layersweep's gc comes before"],
        ),
        (
            "50-layersweep-first.conf",
            "ok",
            "note",
            ["collects images at 80% used", "last resort after gc (75.0%)"],
        ),
    ] {
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kubelet").join(name);
        let drop_in = std::fs::read_to_string(packaged).unwrap();
        let path = format!("etc/kubernetes/kubelet.conf.d/{name}");
        let files =
            [main, flags, (path.as_str(), drop_in.as_str()), (UNIT, "[Timer]\n"), (ENABLED, "[Timer]\n")];
        let said = disk.with(&files[..4], 0);
        assert_eq!((status(&said, "kubelet-order"), status(&said, "gc-timer")), (order, alone), "{said:#}");
        let said = disk.with(&files, 0);
        for (check, expected) in [
            ("kubelet-files", "ok"),
            ("kubelet-settings", "ok"),
            ("kubelet-order", order),
            ("our-thresholds", "ok"),
            ("gc-timer", "ok"),
        ] {
            assert_eq!(status(&said, check), expected, "{check}: {said:#}");
        }
        let message = text(checks(&said, "kubelet-order")[0], "/message");
        for part in
            says.iter().chain(&["hard eviction at imagefs.available<15%", "deletes every unused image"])
        {
            assert!(message.contains(part), "no {part}: {message}");
        }
    }
}

#[test]
fn disk_of_dead_node_is_only_read() {
    let Some(disk) = Disk::new() else { return };
    std::fs::create_dir_all(disk.path("var/lib/kubelet")).unwrap();
    std::fs::create_dir_all(disk.path("var/lib/layersweep")).unwrap();
    std::fs::write(disk.path(CONFIG), "imageGCHighThresholdPercent: 95\n").unwrap();
    std::fs::write(disk.path("var/lib/layersweep/layersweep.db"), "no database").unwrap();
    let before = tree::listing(disk.dir.path());
    let said = document(disk.run(&["--format", "json"]), 1);
    let changes = tree::differences(&before, &tree::listing(disk.dir.path()));
    assert!(changes.is_empty(), "{changes:#?}");
    assert_eq!(status(&said, "database"), "error", "{said:#}");
    // No fact of the reading machine is reported as the node's.
    for name in ["clock", "permissions", "reserve", "run", "socket"] {
        assert_eq!(status(&said, name), "", "{said:#}");
    }
    let stores = checks(&said, "store");
    assert_eq!(text(stores[0], "/object"), "/var/lib/containers/storage");
    assert!(text(stores[0], "/message").contains(" 5 images"), "{said:#}");
}

#[test]
fn unreadable_file_exits_3_without_other_errors() {
    let Some(disk) = Disk::new() else { return };
    // A directory in place of a file: no user can read it.
    std::fs::create_dir_all(disk.path(CONFIG)).unwrap();
    let said = document(disk.run(&["--format", "json"]), 3);
    assert_eq!(said["complete"], false);
    assert_eq!(status(&said, "kubelet-files"), "warning", "{said:#}");
    let said = disk.with(&[("etc/default/kubelet", "A=--image-gc-high-threshold=95\n")], 1);
    assert_eq!(said["complete"], false);
}

#[test]
fn missing_store_does_not_stop_other_checks() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("var/lib/kubelet")).unwrap();
    std::fs::write(dir.path().join(CONFIG), "imageGCHighThresholdPercent: 95\n").unwrap();
    let sysroot = dir.path().to_str().unwrap();
    let said = document(layersweep(["doctor", "--sysroot", sysroot, "--format", "json"]), 1);
    assert_eq!(status(&said, "store"), "error", "{said:#}");
    assert_eq!(status(&said, "kubelet-order"), "error", "{said:#}");
    let records = checks(&said, "records");
    assert!(records.iter().all(|check| !text(check, "/message").contains("scan")), "{records:#?}");
    let scan = layersweep(["scan", "--sysroot", sysroot]).expect_code(10);
    assert!(scan.stderr.contains(&format!("inside of --sysroot {sysroot}")), "{scan:?}");
    assert!(scan.stderr.contains("mount it below"), "{scan:?}");
    layersweep(["doctor", "--sysroot", "/no/such/directory"]).expect_code(2);
}

#[test]
fn worst_finding_is_first_in_80_columns() {
    let Some(disk) = Disk::new() else { return };
    std::fs::create_dir_all(disk.path("var/lib/kubelet")).unwrap();
    std::fs::write(disk.path(CONFIG), "imageGCHighThresholdPercent: 95\n").unwrap();
    let whole = disk.run(&[]).expect_code(1);
    let positions = ["Errors\n", "Notes\n", "Nothing wrong\n"]
        .map(|heading| whole.stdout.find(heading).unwrap_or_else(|| panic!("no {heading}: {whole:?}")));
    assert!(positions.is_sorted(), "{whole:?}");
    for line in whole.stdout.lines() {
        assert!(line.len() <= 80 || line.split_whitespace().count() == 1, "{line}");
    }
    assert!(
        whole.stdout.contains("    fix: set the kubelet's imageGCHighThresholdPercent to 80"),
        "{whole:?}"
    );
    let quiet = disk.run(&["-q"]).expect_code(1);
    assert!(quiet.stdout.contains("Errors\n") && !quiet.stdout.contains("Nothing wrong"), "{quiet:?}");
}

#[test]
fn missing_permission_is_reported() {
    let Some(disk) = Disk::new() else { return };
    if !support::require_program("setpriv") {
        return;
    }
    // Copies of the program and the disk that this user can reach.
    let public = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
    let program = public.path().join("layersweep");
    std::fs::copy(env!("CARGO_BIN_EXE_layersweep"), &program).unwrap();
    std::fs::set_permissions(disk.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let store = disk.path("var/lib/containers/storage");
    fn run(program: &Path, words: &[&str]) -> program::Run {
        let mut command = std::process::Command::new("setpriv");
        program::hermetic(&mut command);
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command.args(["doctor", "--format", "json"]).args(words);
        program::run(&mut command)
    }
    let state = public.path().join("state");
    let words = ["--graphroot", store.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
    let said = document(run(&program, &words), 3);
    assert_eq!(status(&said, "permissions"), "warning", "{said:#}");
    assert_eq!(said["complete"], false);
    // Manifests of static pods that only root may read: gc would refuse.
    let manifests = disk.path("etc/kubernetes/manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    std::fs::set_permissions(&manifests, PermissionsExt::from_mode(0o700)).unwrap();
    let said = document(run(&program, &["--sysroot", disk.dir.path().to_str().unwrap()]), 3);
    assert_eq!(status(&said, "static-pods"), "warning", "{said:#}");
}

/// This machine with its own store, records, and a server of the store.
struct Node {
    // Dropped before the store.
    server: CriServer,
    store: Arc<Store>,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(small::still(&dir.path().join("graphroot")));
        Some(Self { server: CriServer::start(&store), store, dir })
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn run(&self, words: &[&str], endpoint: &str) -> Run {
        let mut command = program::command();
        command.args(words).args(["--format", "json", "--cri-endpoint", endpoint]);
        command.arg("--graphroot").arg(self.store.root()).arg("--runroot").arg(self.store.runroot());
        command.arg("--state-dir").arg(self.state());
        program::run(&mut command)
    }

    fn doctor(&self, code: i32) -> Value {
        document(self.run(&["doctor"], &self.server.endpoint()), code)
    }

    fn database(&self) -> PathBuf {
        self.state().join("layersweep.db")
    }
}

#[test]
fn the_runtime_and_its_store() {
    let Some(node) = Node::new() else { return };
    let said = node.doctor(0);
    assert_eq!((status(&said, "socket"), status(&said, "runtime")), ("ok", "ok"), "{said:#}");
    let root = node.store.root().to_str().unwrap();
    assert!(text(checks(&said, "runtime")[0], "/message").contains(root), "{said:#}");
    // The server has another store than the one that was read.
    let other = small::still(&node.dir.path().join("other"));
    let mut command = program::command();
    command.args(["doctor", "--format", "json", "--cri-endpoint", &node.server.endpoint()]);
    command.arg("--graphroot").arg(other.root()).arg("--runroot").arg(other.runroot());
    let said = document(program::run(&mut command), 1);
    assert_eq!(status(&said, "runtime"), "error", "{said:#}");
    let unserved = node.run(&["doctor"], &format!("unix://{}/none.sock", node.dir.path().display()));
    let said = document(unserved, 0);
    assert_eq!((status(&said, "socket"), status(&said, "runtime")), ("warning", "warning"), "{said:#}");
    let said = document(node.run(&["doctor"], "tcp://127.0.0.1:1"), 1);
    assert_eq!(status(&said, "socket"), "error", "{said:#}");
}

#[test]
fn state_directory_is_checked_through_its_life() {
    let Some(node) = Node::new() else { return };
    let said = node.doctor(0);
    assert_eq!(status(&said, "state-directory"), "note", "{said:#}");
    assert_eq!(status(&said, "database"), "note", "{said:#}");
    assert!(!node.state().exists(), "doctor makes nothing");

    node.run(&["scan"], &node.server.endpoint()).expect_code(0);
    let before = tree::listing(&node.state());
    let said = node.doctor(0);
    let changes = tree::differences(&before, &tree::listing(&node.state()));
    assert!(changes.is_empty(), "{changes:#?}");
    assert_eq!(status(&said, "database"), "ok", "{said:#}");
    assert_eq!(status(&said, "last-scan"), "ok", "{said:#}");
    assert_eq!(status(&said, "last-runs"), "note", "gc has not run: {said:#}");
    assert_eq!(status(&said, "run"), "", "{said:#}");

    let lock = RunLock::acquire(&node.state()).unwrap();
    let said = node.doctor(0);
    let run = checks(&said, "run");
    assert!(text(run[0], "/message").contains(&format!("process {}", std::process::id())), "{said:#}");
    drop(lock);

    // The timer has stopped, and gc fails.
    let records = rusqlite::Connection::open(node.database()).unwrap();
    let hours = 2 * 3600 * 1_000_000_i64;
    records.execute("UPDATE runs SET started = started - ?1, ended = ended - ?1", [hours]).unwrap();
    drop(records);
    let gone = format!("unix://{}/none.sock", node.dir.path().display());
    for (failures, expected, code) in [(1, "warning", 0), (2, "warning", 0), (3, "error", 1)] {
        node.run(&["gc", "--high", "1", "--low", "0"], &gone).expect_code(5);
        let said = node.doctor(code);
        assert_eq!(status(&said, "last-runs"), expected, "after {failures}: {said:#}");
        assert_eq!(status(&said, "last-scan"), "warning", "{said:#}");
    }
}

/// A run of gc would be refused, and doctor says so before, with the exact command.
#[test]
fn refusal_of_gc_is_foreseen() {
    let Some(node) = Node::new() else { return };
    let said = node.doctor(0);
    assert_eq!(status(&said, "gc"), "ok", "{said:#}");
    std::fs::create_dir(node.state()).unwrap();
    std::fs::set_permissions(node.state(), PermissionsExt::from_mode(0o777)).unwrap();
    node.run(&["gc", "--high", "1", "--low", "0"], &node.server.endpoint()).expect_code(5);
    let said = node.doctor(1);
    let directory = checks(&said, "state-directory");
    assert_eq!(text(directory[0], "/status"), "error", "{said:#}");
    assert_eq!(text(directory[0], "/remedy"), format!("chmod go-w {}", node.state().display()));
    std::fs::set_permissions(node.state(), PermissionsExt::from_mode(0o755)).unwrap();
    // A socket of a runtime that does not answer, and a store that another user owns.
    let gone = format!("unix://{}/none.sock", node.dir.path().display());
    node.run(&["gc", "--high", "1", "--low", "0"], &gone).expect_code(5);
    let said = document(node.run(&["doctor"], &gone), 0);
    assert_eq!(status(&said, "runtime"), "warning", "{said:#}");
    std::os::unix::fs::chown(node.store.root(), Some(5001), None).unwrap();
    let mut command = program::command();
    command.args(["doctor", "--format", "json", "--graphroot"]).arg(node.store.root());
    let said = document(program::run(command.arg("--state-dir").arg(node.state())), 0);
    let refused = checks(&said, "gc");
    assert_eq!(text(refused[0], "/status"), "warning", "{said:#}");
    assert!(text(refused[0], "/message").contains("would be refused now"), "{said:#}");
}

#[test]
fn damaged_database_is_reported_until_replaced() {
    let Some(node) = Node::new() else { return };
    node.run(&["scan"], &node.server.endpoint()).expect_code(0);
    damage(&node.database());
    let said = node.doctor(1);
    assert_eq!(status(&said, "database"), "error", "{said:#}");
    node.run(&["scan"], &node.server.endpoint());
    let said = node.doctor(0);
    let aside: Vec<_> = checks(&said, "database")
        .into_iter()
        .filter(|check| text(check, "/object").contains("layersweep.db.corrupt-"))
        .collect();
    assert_eq!(aside.len(), 1, "{said:#}");
    assert_eq!(text(aside[0], "/status"), "warning");
    // Records that wait to be saved.
    let place = state_directory(&Sysroot::live(), Some(&node.state()), &Caller::present());
    let pending = place.pending.unwrap();
    std::fs::create_dir_all(&pending).unwrap();
    std::fs::write(pending.join("20261121T000000.000000Z-1.json"), "{}").unwrap();
    let before = tree::listing(&pending);
    let said = document(node.run(&["doctor"], &node.server.endpoint()), 0);
    assert_eq!(status(&said, "unsaved"), "warning", "{said:#}");
    assert!(tree::differences(&before, &tree::listing(&pending)).is_empty());
    std::fs::remove_file(pending.join("20261121T000000.000000Z-1.json")).unwrap();
    std::fs::remove_dir(&pending).unwrap();
}

/// Overwrites everything but the header.
fn damage(database: &Path) {
    for end in ["-wal", "-shm"] {
        let beside = PathBuf::from(format!("{}{end}", database.display()));
        assert!(!beside.exists() || std::fs::metadata(&beside).unwrap().len() == 0, "{beside:?}");
    }
    let mut content = std::fs::read(database).unwrap();
    content[4096..].fill(0x5a);
    std::fs::write(database, content).unwrap();
}

#[test]
fn invalid_configuration_is_a_finding() {
    let Some(node) = Node::new() else { return };
    let config = node.dir.path().join("layersweep.toml");
    std::fs::write(&config, "[images]\nhigh_percent = 50\nlow_percent = 60\nmax = 1\n").unwrap();
    let config = config.to_str().unwrap();
    node.run(&["images", "--config", config], &node.server.endpoint()).expect_code(2);
    let said = document(node.run(&["doctor", "--config", config], &node.server.endpoint()), 1);
    assert_eq!(status(&said, "configuration"), "error", "{said:#}");
    assert!(
        text(checks(&said, "configuration")[0], "/object").contains("layersweep.toml, line "),
        "{said:#}"
    );
    assert_eq!(status(&said, "store"), "ok", "{said:#}");
}

#[test]
fn timers_cron_jobs_and_hold_files() {
    let Some(disk) = Disk::new() else { return };
    const UNITS: &str = "usr/lib/systemd/system";
    const WANTS: &str = "etc/systemd/system/timers.target.wants";
    let scan = format!("{UNITS}/layersweep-scan.timer");
    let gc = format!("{UNITS}/layersweep-gc.timer");
    let (scan_on, gc_on) = (format!("{WANTS}/layersweep-scan.timer"), format!("{WANTS}/layersweep-gc.timer"));
    let unit = "[Timer]\n";
    let both = [(scan.as_str(), unit), (gc.as_str(), unit)];
    let hold = ("etc/layersweep/hold", "");
    let job = ("etc/cron.d/own", "*/5 * * * * root layersweep scan --quiet\n");
    let masked = ("etc/systemd/system/layersweep-scan.timer", "");
    let gc_job = ("etc/cron.d/own-gc", "*/5 * * * * root layersweep gc --quiet\n");
    for (files, scans, deletes, holds) in [
        (vec![], "note", "note", ""),
        (vec![both[0], both[1]], "warning", "note", ""),
        (vec![both[0], both[1], job], "note", "note", ""),
        (vec![job, gc_job], "note", "note", ""),
        (vec![both[0], both[1], (scan_on.as_str(), unit)], "ok", "note", ""),
        (vec![both[0], both[1], (scan_on.as_str(), unit), masked], "warning", "note", ""),
        (vec![both[0], both[1], (scan_on.as_str(), unit), hold], "ok", "note", "note"),
        (vec![both[0], both[1], (scan_on.as_str(), unit), (gc_on.as_str(), unit)], "ok", "ok", ""),
        (
            vec![both[0], both[1], (scan_on.as_str(), unit), (gc_on.as_str(), unit), hold],
            "ok",
            "ok",
            "warning",
        ),
    ] {
        let said = disk.with(&files, 0);
        let found = (status(&said, "scan-timer"), status(&said, "gc-timer"), status(&said, "hold"));
        assert_eq!(found, (scans, deletes, holds), "{files:?}: {said:#}");
    }
    // What was not checked is not vouched for.
    let said = disk.with(&[job, gc_job, hold], 0);
    for (name, expected) in [
        ("scan-timer", "a cron job is installed; cron itself was not checked"),
        ("gc-timer", "a cron job is installed; cron itself was not checked"),
        ("kubelet-files", "no kubelet settings found: eviction was not checked"),
        ("hold", "has held deletion back since "),
    ] {
        assert!(text(checks(&said, name)[0], "/message").starts_with(expected), "{name}: {said:#}");
    }
}
