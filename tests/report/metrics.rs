//! `metrics` for Prometheus and its operator: figures of the last scan, files for node_exporter, and damaged records.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use serde_json::Value;
use support::loopfs::{Fs, LoopFs, MIB};
use support::metrics::{Scrape, assert_same, check, float};
use support::program::{self, Run, list, number};
use support::store::{self, Store};
use support::{past, small, tree};

/// A node whose configuration names every path, so that no flag is needed.
struct Configured {
    store: Store,
    dir: tempfile::TempDir,
}

impl Configured {
    fn new(more: &str) -> Option<Self> {
        if !store::require_tools() || !support::require_program("promtool") {
            return None;
        }
        Some(Self::within(tempfile::tempdir().unwrap(), more))
    }

    fn within(dir: tempfile::TempDir, more: &str) -> Self {
        let store = small::still(&dir.path().join("graphroot"));
        store.unmount();
        let node = Self { store, dir };
        std::fs::create_dir(node.prom().parent().unwrap()).unwrap();
        node.configure(&format!("[metrics]\ntextfile = {:?}\n{more}", node.prom()));
        node
    }

    fn configure(&self, more: &str) {
        let (root, run) = (self.store.root(), self.store.runroot());
        let config = format!(
            "state_dir = {:?}\n[stores]\ngraphroot = [{root:?}]\nrunroot = [{run:?}]\n{more}",
            self.state()
        );
        std::fs::write(self.config(), config).unwrap();
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("layersweep.toml")
    }

    fn prom(&self) -> PathBuf {
        self.dir.path().join("collector/layersweep.prom")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.env_remove("LAYERSWEEP_STATE_DIR").args(words).arg("--config").arg(self.config());
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    fn scan(&self) -> Value {
        self.run(&["scan", "--format", "json"]).expect_code(0).json()
    }

    fn scrape(&self) -> Scrape {
        let run = self.run(&["metrics"]).expect_code(0);
        assert_eq!(run.stderr, "");
        check(&run.stdout);
        Scrape::read(&run.stdout)
    }

    /// Returns the file that node_exporter would read.
    fn file(&self) -> Scrape {
        let text = std::fs::read_to_string(self.prom()).unwrap();
        check(&text);
        Scrape::read(&text)
    }
}

/// Makes a directory of a layer that has no record, with a file.
fn plant(store: &Store) {
    let orphan = store.root().join("overlay").join("ab".repeat(32)).join("diff");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("file"), vec![7; 70_000]).unwrap();
}

#[test]
fn figures_are_those_of_last_scan() {
    let Some(node) = Configured::new("[images]\nhigh_percent = 81\nlow_percent = 61\nmin_free = \"1MiB\"")
    else {
        return;
    };
    plant(&node.store);
    let scan = node.scan();
    assert!(!list(&scan, "/leaks").is_empty(), "{scan:#}");
    let scrape = node.scrape();
    assert_same(&scrape, &scan);
    // The file that the scan has written has the same figures.
    assert_same(&node.file(), &scan);
    assert_eq!(std::fs::metadata(node.prom()).unwrap().permissions().mode() & 0o7777, 0o644);
    assert_eq!(scrape.one("gc_high_mark_ratio", &[("resource", "bytes")]), 0.81);
    assert_eq!(scrape.one("gc_low_mark_ratio", &[("resource", "bytes")]), 0.61);
    assert_eq!(scrape.one("gc_min_free_bytes", &[]), 1_048_576.0);
    assert_eq!(scrape.one("scans_total", &[("outcome", "done")]), 1.0);
    assert_eq!(scrape.one("database_ok", &[]), 1.0);
    assert!(scrape.one("database_size_bytes", &[]) > 4096.0);
    assert_eq!(scrape.all("image_exclusive_bytes", &[]).count(), 0, "no names unless asked for");
    let top = Scrape::read(&node.run(&["metrics", "--top", "2"]).expect_code(0).stdout);
    let biggest: Vec<_> = top.all("image_exclusive_bytes", &[]).collect();
    assert_eq!(biggest.len(), 2);
    for (labels, bytes) in biggest {
        let image = list(&scan, "/images").iter().find(|image| image["id"] == *labels["id"]).unwrap();
        assert_eq!(float(number(image, "/exclusive_bytes")), bytes);
        assert_eq!(labels["name"], image["names"][0]);
    }
    // Figures of objects that were not read again are remembered; figures that are queried anew are current.
    node.store.podman(["rmi", &small::name("other")]);
    assert_eq!(node.scrape().samples["layersweep_storage_bytes"], scrape.samples["layersweep_storage_bytes"]);
    assert_same(&node.scrape(), &scan);
    let scan = node.scan();
    assert_same(&node.scrape(), &scan);
    assert_same(&node.file(), &scan);
}

#[test]
fn data_outside_the_stores_is_counted_by_kind() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("promtool") {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 320 * MIB);
    let logs = disk.path().join("logs");
    std::fs::create_dir_all(logs.join("ns_web_11-22/main")).unwrap();
    std::fs::write(logs.join("ns_web_11-22/main/0.log"), vec![7; 20 << 20]).unwrap();
    std::fs::write(disk.path().join("other"), vec![7; 30 << 20]).unwrap();
    let deleted = disk.path().join("deleted");
    std::fs::write(&deleted, vec![7; 10 << 20]).unwrap();
    let held = std::fs::File::open(&deleted).unwrap();
    std::fs::remove_file(&deleted).unwrap();
    disk.sync();
    let more = format!("[kubelet]\npod_logs_dir = {logs:?}\n[images]\nhigh_percent = 15\nlow_percent = 10\n");
    let node = Configured::within(tempfile::tempdir_in(disk.path()).unwrap(), &more);
    node.scan();
    let scrape = node.scrape();
    let mount = scrape.samples["layersweep_outside_bytes"][0].0["mountpoint"].clone();
    for (kind, mib) in [("logs", 20), ("deleted_open", 10), ("other", 30), ("journal", 0), ("core_dumps", 0)]
    {
        let bytes = scrape.one("outside_bytes", &[("kind", kind), ("mountpoint", &mount)]);
        assert!((mib * MIB..(mib + 2) * MIB).contains(&(bytes as u64)), "{kind}: {bytes}");
    }
    drop(held);
    // The disk is above its high threshold, and has no reserve file yet.
    let available = scrape.one("filesystem_avail_bytes", &[]);
    let wanted = scrape.one("gc_wanted_bytes", &[("mountpoint", &mount)]);
    assert_eq!(wanted, (scrape.one("filesystem_size_bytes", &[]) * 0.9).ceil() - available);
    assert_eq!(scrape.one("gc_wanted_inodes", &[]), 0.0);
    assert_eq!(scrape.one("reserve_file_bytes", &[]), 0.0);
    node.run(&["scan", "--reserve"]).expect_code(0);
    assert!(node.scrape().one("reserve_file_bytes", &[]) >= float(4 * MIB));
}

#[test]
fn changing_commands_write_metrics() {
    let Some(node) = Configured::new("") else { return };
    fn run_without_file(node: &Configured, words: &[&str]) -> program::Run {
        let run = node.run(words);
        assert!(!node.prom().exists(), "{words:?}: {run:?}");
        run
    }
    run_without_file(&node, &["scan", "--no-record"]).expect_code(0);
    // A store named by a flag need not be the node's, and commands that only read are not runs.
    let root = node.store.root().to_str().unwrap();
    run_without_file(&node, &["scan", "--graphroot", root]).expect_code(0);
    // Other records need not be the node's either.
    let other = node.dir.path().join("other");
    run_without_file(&node, &["scan", "--state-dir", other.to_str().unwrap()]).expect_code(0);
    program::run(node.command(&["scan", "--quiet"]).env("LAYERSWEEP_STATE_DIR", &other)).expect_code(0);
    assert!(!node.prom().exists());
    run_without_file(&node, &["usage"]).expect_code(0);
    let image = small::name("other");
    run_without_file(&node, &["rm", "--via", "direct", "--min-age", "0s", "--dry-run", &image])
        .expect_code(0);
    run_without_file(&node, &["gc", "--via", "direct", "--dry-run", "--min-age", "0s"]);
    run_without_file(&node, &["sweep"]).expect_code(0);

    let removed = ["rm", "--via", "direct", "--min-age", "0s", "--format", "json", &image];
    let removed = node.run(&removed).expect_code(0).json();
    let deleted = &list(&removed, "/deleted")[0];
    let file = node.file();
    let rm = [("command", "rm"), ("kind", "image")];
    assert_eq!(file.one("gc_deletions_total", &rm), 1.0);
    assert_eq!(file.one("gc_predicted_bytes_total", &rm), float(number(deleted, "/predicted_bytes")));
    // Other tests write to this filesystem. What such a measurement says does not count.
    let field = if deleted["disturbed"] == true { "predicted_bytes" } else { "measured_bytes" };
    assert_eq!(file.one("gc_freed_bytes_total", &rm), deleted[field].as_f64().unwrap().max(0.0));
    assert_eq!(file.one("gc_runs_total", &[("command", "rm"), ("outcome", "reached")]), 1.0);
    assert_eq!(file.one("gc_last_run_outcome", &[("command", "rm"), ("outcome", "reached")]), 1.0);
    assert_eq!(file.sum("gc_last_run_outcome", &[("command", "rm")]), 1.0);
    // A rule keeps the named image: the run is refused in the document, the exit code and the metrics.
    let pinned = small::name("b");
    node.run(&["pin", "add", &pinned]).expect_code(0);
    let kept = node.run(&["rm", "--via", "direct", "--min-age", "0s", "--format", "json", &pinned]);
    assert_eq!(kept.expect_code(5).json()["outcome"], "refused");
    let refused = [("command", "rm"), ("outcome", "refused")];
    assert_eq!(node.file().one("gc_last_run_outcome", &refused), 1.0);

    // The configured paths may be named by flags too.
    std::fs::remove_file(node.prom()).unwrap();
    node.run(&["scan", "--quiet", "--state-dir", node.state().to_str().unwrap()]).expect_code(0);
    std::fs::remove_file(node.prom()).unwrap();
    // A threshold of one run is not the configured one.
    node.run(&["gc", "--via", "direct", "--high", "99", "--low", "98"]).expect_code(0);
    let file = node.file();
    assert_eq!(file.one("gc_runs_total", &[("command", "gc"), ("outcome", "not_needed")]), 1.0);
    assert_eq!(file.one("gc_high_mark_ratio", &[("resource", "bytes")]), 0.75);
    assert!(file.one("gc_last_run_usage_before_ratio", &[("command", "gc")]) <= 1.0);

    std::fs::remove_file(node.prom()).unwrap();
    plant(&node.store);
    node.run(&["sweep", "--delete", "--min-age", "0s"]).expect_code(0);
    let file = node.file();
    assert_eq!(file.sum("gc_runs_total", &[("command", "sweep")]), 1.0);
    let refused = [("command", "gc"), ("outcome", "refused")];
    assert_eq!(file.one("gc_runs_total", &refused), 0.0);
}

#[test]
fn unwritable_file_is_one_warning() {
    let Some(node) = Configured::new("") else { return };
    fn into(node: &Configured, path: &Path) -> program::Run {
        node.configure(&format!("[metrics]\ntextfile = {path:?}\n"));
        node.run(&["scan", "--quiet"]).expect_code(0)
    }
    let missing = into(&node, &node.dir.path().join("none/layersweep.prom"));
    let lines: Vec<_> = missing.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{missing:?}");
    assert!(lines[0].starts_with("warning: the metrics cannot be written to ") && lines[0].contains("none/"));
    assert!(lines[1].starts_with("hint: make the directory "), "{missing:?}");
    // In a directory the file has its usual name.
    let dir = node.dir.path().join("collector");
    assert_eq!(into(&node, &dir).stderr, "");
    node.file();
    // Root without the right to write everywhere, as in the unit of a scan.
    if support::require_program("setpriv") {
        let other = dir.join("of-another-user");
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::chown(&other, Some(65534), Some(65534)).unwrap();
        node.configure(&format!("[metrics]\ntextfile = {other:?}\n"));
        fn scan(node: &Configured) -> program::Run {
            let mut bound = Command::new("setpriv");
            program::hermetic(&mut bound);
            bound.env_remove("LAYERSWEEP_STATE_DIR").arg("--bounding-set=-all,+dac_read_search");
            bound.args([env!("CARGO_BIN_EXE_layersweep"), "scan", "--quiet", "--config"]).arg(node.config());
            program::run(&mut bound).expect_code(0)
        }
        let refused = scan(&node);
        assert!(refused.stderr.contains("Permission denied"), "{refused:?}");
        assert!(refused.stderr.contains(&format!("chgrp root {0} && chmod g+w {0}", other.display())));
        // The command in the hint helps.
        std::os::unix::fs::chown(&other, None, Some(0)).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o775)).unwrap();
        assert_eq!(scan(&node).stderr, "");
        assert!(other.join("layersweep.prom").exists());
    }
    node.configure("[metrics]\ntextfile = \"off\"\n");
    std::fs::remove_file(node.prom()).unwrap();
    assert_eq!(node.run(&["scan", "--quiet"]).expect_code(0).stderr, "");
    assert!(!node.prom().exists());
}

/// Removing the only store of a node removes its figures.
#[test]
fn removed_store_leaves_the_metrics() {
    const SCRIPT: &str = "mount -t tmpfs none /var/lib && mkdir -p /var/lib/containers/storage || exit 1
        if [ -d /etc/containers ]; then mount -t tmpfs none /etc/containers || exit 1; fi
        if [ \"$1\" ]; then mount --bind \"$1\" /var/lib/containers/storage
        else rmdir /var/lib/containers/storage; fi && shift && exec \"$@\"";
    if !support::require_program("unshare") {
        return;
    }
    let Some(node) = Configured::new("") else { return };
    let config = format!("state_dir = {:?}\n[metrics]\ntextfile = {:?}\n", node.state(), node.prom());
    std::fs::write(node.config(), config).unwrap();
    fn scan(node: &Configured, store: &Path) -> program::Run {
        let mut command = Command::new("unshare");
        program::hermetic(&mut command);
        command.env_remove("LAYERSWEEP_STATE_DIR");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]).arg(store);
        command.args([env!("CARGO_BIN_EXE_layersweep"), "scan", "--quiet", "--config"]).arg(node.config());
        program::run(&mut command)
    }
    // A machine without a store gets no file.
    scan(&node, Path::new("")).expect_code(10);
    assert!(!node.prom().exists() && !node.state().exists());
    scan(&node, node.store.root()).expect_code(0);
    let before = node.file();
    assert_eq!(before.all("scan_timestamp_seconds", &[]).count(), 1);
    assert_eq!(before.one("scans_total", &[("outcome", "done")]), 1.0);
    for _ in 0..2 {
        scan(&node, Path::new("")).expect_code(10);
        let after = node.file();
        assert_eq!(after.all("scan_timestamp_seconds", &[]).count(), 0);
        assert_eq!(after.all("storage_bytes", &[]).count(), 0);
        assert_eq!(after.one("scans_total", &[("outcome", "done")]), 2.0, "once");
    }
    scan(&node, node.store.root()).expect_code(0);
    assert_eq!(node.file().all("scan_timestamp_seconds", &[]).count(), 1);
}

/// Root does not write the metrics file in place of a device, through a link, or into a store.
#[test]
fn file_inside_store_is_not_written() {
    let Some(node) = Configured::new("") else { return };
    let inside = |name: &str| node.dir.path().join(name);
    let null = inside("null");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    let device = nix::sys::stat::makedev(1, 3);
    nix::sys::stat::mknod(&null, nix::sys::stat::SFlag::S_IFCHR, mode, device).unwrap();
    std::fs::write(inside("other"), "mine").unwrap();
    std::os::unix::fs::symlink(inside("other"), inside("link")).unwrap();
    std::fs::create_dir(inside("metrics.d")).unwrap();
    std::os::unix::fs::symlink("/dev/stdout", inside("metrics.d/layersweep.prom")).unwrap();
    // A link of another user in a directory that every user may write to.
    std::fs::create_dir(inside("shared")).unwrap();
    std::fs::set_permissions(inside("shared"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::create_dir(inside("etc")).unwrap();
    std::os::unix::fs::symlink(inside("etc"), inside("shared/metrics")).unwrap();
    std::os::unix::fs::lchown(inside("shared/metrics"), Some(5001), Some(5001)).unwrap();
    node.scan();
    let (store, run) = (node.store.root().join("x.prom"), node.store.runroot().join("x.prom"));
    let before = tree::listing(node.store.root());
    for (path, why) in [
        (null.clone(), "not a regular file"),
        (inside("link"), "symbolic link"),
        (inside("metrics.d"), "symbolic link"),
        (inside("shared/metrics"), "shared/metrics is a symbolic link of the user 5001"),
        (inside("shared/metrics/x.prom"), "shared/metrics is a symbolic link of the user 5001"),
        (store.clone(), "belongs to a store"),
        (run.clone(), "belongs to a store"),
    ] {
        let refused = node.run(&["metrics", "--textfile", path.to_str().unwrap()]).expect_code(2);
        assert!(
            refused.stderr.starts_with("error: --textfile ") && refused.stderr.contains(why),
            "{refused:?}"
        );
        assert!(refused.stderr.contains("hint: "), "{refused:?}");
        node.configure(&format!("[metrics]\ntextfile = {path:?}\n"));
        let warned = node.run(&["scan", "--quiet"]).expect_code(0);
        assert!(warned.stderr.starts_with("warning: metrics.textfile "), "{warned:?}");
        assert!(warned.stderr.contains(why) && warned.stderr.lines().count() == 2, "{warned:?}");
    }
    // A store that is only in the records.
    let state = node.state();
    let refused = metrics_of(&state, &["--textfile", node.store.root().join("x.prom").to_str().unwrap()])
        .expect_code(2);
    assert!(refused.stderr.contains("belongs to a store"), "{refused:?}");
    assert!(null.symlink_metadata().unwrap().file_type().is_char_device());
    assert!(inside("link").is_symlink() && inside("metrics.d/layersweep.prom").is_symlink());
    assert_eq!(std::fs::read_to_string(inside("other")).unwrap(), "mine");
    assert!(!run.exists() && std::fs::read_dir(inside("etc")).unwrap().next().is_none());
    // Root's own link is followed.
    std::os::unix::fs::lchown(inside("shared/metrics"), Some(0), Some(0)).unwrap();
    node.run(&["metrics", "--textfile", inside("shared/metrics/x.prom").to_str().unwrap()]).expect_code(0);
    assert!(inside("etc/x.prom").is_file());
    assert_eq!(tree::listing(node.store.root()), before);
}

/// Runs `metrics` with a state directory.
fn metrics_of(state: &Path, more: &[&str]) -> Run {
    let mut command = program::command();
    command.args(["metrics", "--state-dir"]).arg(state).args(more);
    program::run(&mut command).expect_no_crash()
}

#[test]
fn missing_scan_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("none");
    let run = metrics_of(&state, &[]).expect_code(0);
    assert!(run.stderr.starts_with("note: no scan is recorded in "), "{run:?}");
    assert_eq!(metrics_of(&state, &["--quiet"]).stderr, "");
    let scrape = Scrape::read(&run.stdout);
    assert_eq!(scrape.all("scan_timestamp_seconds", &[]).count(), 0);
    assert_eq!(scrape.sum("scans_total", &[]), 0.0);
    assert!(scrape.counters().len() > 40, "series that are to come begin at 0");
    assert!(!state.exists(), "it only looks");
    for wrong in [
        &["--graphroot", "/x"][..],
        &["--format", "json"],
        &["--top", "101"],
        &["--listen", "localhost:1"],
        &["--listen", "1", "--textfile", "/x"],
        &["--sysroot", "/", "--listen", "1"],
        &["--sysroot", "/", "--textfile", "/x"],
    ] {
        let run = metrics_of(&state, wrong).expect_code(2);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{run:?}");
    }
    let nowhere = dir.path().join("missing/x.prom");
    let nowhere = nowhere.to_str().unwrap();
    let run = metrics_of(&state, &["--textfile", nowhere]).expect_code(1);
    assert!(run.stderr.starts_with(&format!("error: the metrics cannot be written to {nowhere}")), "{run:?}");
}

#[test]
fn old_records_are_counted_and_damage_reported() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), jiff::Timestamp::now());
    let file = dir.path().join("x.prom");
    metrics_of(dir.path(), &["--textfile", file.to_str().unwrap()]).expect_code(0);
    let before = Scrape::read(&std::fs::read_to_string(&file).unwrap());
    let gc = [("command", "gc"), ("kind", "image")];
    let runs = before.one("gc_runs_total", &[("command", "gc"), ("outcome", "reached")]);
    assert!(runs >= 1.0);
    assert_eq!(before.one("gc_deletions_total", &gc), 3.0 * runs);
    assert_eq!(before.one("gc_predicted_bytes_total", &gc), 6.0 * float(1 << 30) * runs);
    let freed = float((5 << 30) - 4096 + (300 << 20));
    assert_eq!(before.one("gc_freed_bytes_total", &gc), freed * runs);
    assert_eq!(before.one("gc_failures_total", &[("command", "sweep"), ("kind", "leak")]), 1.0);
    assert_eq!(before.one("gc_runs_total", &[("command", "rm"), ("outcome", "failed")]), 1.0);
    assert_eq!(before.one("gc_last_run_outcome", &[("command", "sweep"), ("outcome", "unfinished")]), 1.0);
    assert!(before.sum("scans_total", &[]) > 2700.0);

    // Damaged: no counter is better than one that starts at 0 and returns to its old value.
    std::fs::write(dir.path().join("layersweep.db"), "no database at all").unwrap();
    let run = metrics_of(dir.path(), &[]).expect_code(3);
    assert!(run.stderr.contains("hint: "), "{run:?}");
    let damaged = Scrape::read(&run.stdout);
    assert_eq!(damaged.one("database_ok", &[]), 0.0);
    assert_eq!(damaged.counters().len(), 0);
}

/// The disk of a dead node: its records, and no fact of this machine.
#[test]
fn other_disk_is_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("var/lib/layersweep");
    std::fs::create_dir_all(&state).unwrap();
    past::ten_days(&state, jiff::Timestamp::now());
    let before = tree::listing(dir.path());
    let mut command = program::command();
    command.args(["metrics", "--sysroot"]).arg(dir.path());
    let scrape = Scrape::read(&program::run(&mut command).expect_code(0).stdout);
    assert!(scrape.sum("scans_total", &[]) > 2700.0);
    assert_eq!(scrape.one("database_ok", &[]), 1.0);
    assert_eq!(scrape.all("filesystem_size_bytes", &[]).count(), 0);
    assert_eq!(scrape.all("records_waiting", &[]).count(), 0);
    assert_eq!(tree::listing(dir.path()), before);
}

#[test]
fn hostile_names_stay_inside_their_labels() {
    let Some(node) = Configured::new("") else { return };
    node.scan();
    let database = rusqlite::Connection::open(node.state().join("layersweep.db")).unwrap();
    for (number, name) in
        (0_i64..).zip(["a\"} 1\nlayersweep_evil 1\n#", "b\\", past::NASTY, "c\u{0}d", "{x=\"y\"}"])
    {
        let names = serde_json::to_string(&[name]).unwrap();
        let sql =
            "UPDATE images SET names = ?1 WHERE id = (SELECT id FROM images ORDER BY id LIMIT 1 OFFSET ?2)";
        database.execute(sql, rusqlite::params![names, number]).unwrap();
    }
    drop(database);
    let run = node.run(&["metrics", "--top", "100"]).expect_code(0);
    check(&run.stdout);
    let scrape = Scrape::read(&run.stdout);
    assert_eq!(scrape.all("image_exclusive_bytes", &[]).count(), 5);
    assert_eq!(scrape.all("evil", &[]).count(), 0);
    assert!(!run.stdout.contains(['\u{1b}', '\u{202e}', '\0']));
}

#[test]
fn damaged_row_does_not_affect_others() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), jiff::Timestamp::now());
    let before = Scrape::read(&metrics_of(dir.path(), &[]).expect_code(0).stdout);
    let database = rusqlite::Connection::open(dir.path().join("layersweep.db")).unwrap();
    database
        .execute_batch(
            "INSERT INTO stores (kind, root, driver, first_seen, last_seen)
             VALUES ('containers-storage', '/damaged', 'overlay', 1, 1);
             INSERT INTO store_figures (store, at, wall, seconds, figures)
             SELECT id, 1, 1, 1.0, '[]' FROM stores WHERE root = '/damaged'",
        )
        .unwrap();
    assert_eq!(database.changes(), 1);
    drop(database);
    let run = metrics_of(dir.path(), &[]).expect_code(3);
    assert!(run.stderr.contains("figures of one store"), "{run:?}");
    let scrape = Scrape::read(&run.stdout);
    assert_eq!((before.one("database_ok", &[]), scrape.one("database_ok", &[])), (1.0, 0.0));
    assert_eq!(scrape.counters(), before.counters(), "counters are as they were");
}

/// A waiting run is counted, once; a scan that could not be recorded is not.
#[test]
fn unsaved_runs_are_counted() {
    let Some(node) = Configured::new("") else { return };
    node.scan();
    let before = node.scrape();
    // Another process holds the database for a moment.
    let database = node.state().join("layersweep.db");
    let writer = rusqlite::Connection::open(&database).unwrap();
    writer.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE").unwrap();
    node.store.podman(["rmi", &small::name("other")]);
    let scan = node.run(&["scan", "--format", "json"]).expect_code(0);
    assert!(scan.stderr.contains("this scan was not recorded: "), "{scan:?}");
    let unrecorded = node.file();
    assert_eq!(unrecorded.one("records_waiting", &[]), 0.0);
    assert_eq!(unrecorded.one("scans_total", &[("outcome", "done")]), 1.0);
    let rm = ["rm", "--via", "direct", "--min-age", "0s", &small::name("a2")];
    assert!(node.run(&rm).expect_code(0).stderr.contains("is queued in"));
    let (image, ended) =
        ([("command", "rm"), ("kind", "image")], [("command", "rm"), ("outcome", "reached")]);
    let counted = |scrape: &Scrape| {
        let bytes = ["gc_freed_bytes_total", "gc_predicted_bytes_total"].map(|name| scrape.one(name, &image));
        (scrape.one("gc_deletions_total", &image), scrape.one("gc_runs_total", &ended), bytes)
    };
    let waiting = node.file();
    let once = counted(&waiting);
    assert_eq!((once.0, once.1), (1.0, 1.0));
    assert_eq!(waiting.one("records_waiting", &[]), 1.0);
    writer.execute_batch("ROLLBACK").unwrap();
    drop(writer);
    let scan = node.scan();
    let after = node.file();
    assert_same(&after, &scan);
    assert_eq!(after.one("records_waiting", &[]), 0.0);
    assert_eq!(after.one("scans_total", &[("outcome", "done")]), 2.0);
    assert_eq!(counted(&after), once, "counted once");
    assert_eq!(counted(&node.scrape()), once);
    assert_eq!(before.one("scans_total", &[("outcome", "done")]), 1.0);
}
