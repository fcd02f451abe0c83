//! `sweep` as an operator runs it, on stores with every leak that `inject.sh` plants.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support;
use layersweep::history::RunLock;
use serde_json::Value;
use support::loopfs::{Fs, LoopFs, MIB};
use support::node;
use support::program::{self, Run, list, text};
use support::store::{self, Store};
use support::{locks, promises, small};

/// Planted leaks and their paths.
struct Planted {
    root: PathBuf,
    run: PathBuf,
    state: PathBuf,
    rows: Vec<Row>,
    /// Store that was copied, with the environment of its tools.
    tools: Store,
    _dir: tempfile::TempDir,
}

struct Row {
    class: String,
    verdict: String,
    id: String,
    paths: Vec<PathBuf>,
    /// Class of the finding.
    finding: String,
}

impl Row {
    fn is(&self, leak: &Value) -> bool {
        let path = Path::new(text(leak, "/path"));
        let is_here = text(leak, "/id") == self.id || self.paths.iter().any(|known| known == path);
        is_here && text(leak, "/class") == self.finding && text(leak, "/verdict") == self.verdict
    }
}

impl Planted {
    /// Copies the small store of `mkstore.sh` to `top` and plants `classes` in the copy.
    fn at(top: &Path, classes: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("store");
        std::fs::create_dir(&home).unwrap();
        let tools = Store::rig(&home.join("root"), "overlay");
        tools.unmount();
        let injected = top.join("injected");
        store::succeed(Command::new(store::rig("inject.sh")).args([&home, &injected]).args(classes));
        let table = std::fs::read_to_string(injected.join("INJECTED.tsv")).unwrap();
        let rows = table.lines().skip(1).map(|line| {
            let [class, verdict, id, paths, finding] = line.splitn(5, '\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let paths = paths.split(" (").next().unwrap().split_whitespace();
            Row {
                class: class.into(),
                verdict: verdict.into(),
                id: id.into(),
                paths: paths.map(|path| injected.join(path)).collect(),
                finding: finding.split('\t').next().unwrap().into(),
            }
        });
        let rows = rows.collect();
        Self {
            root: injected.join("root"),
            run: injected.join("run"),
            state: dir.path().join("state"),
            rows,
            tools,
            _dir: dir,
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(&self.root).arg("--runroot").arg(&self.run);
        command.arg("--state-dir").arg(&self.state);
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        program::run(&mut self.command(words)).expect_no_crash()
    }

    fn json(&self, code: i32, words: &[&str]) -> Value {
        node::document(self.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    }

    /// Runs podman, buildah or containers-storage on the planted store; fails if the tool fails.
    fn tool(&self, program: &str, words: &[&str]) -> String {
        let mut command = self.tools.command(program);
        if program == "containers-storage" {
            command.arg("--graph").arg(&self.root).arg("--run").arg(&self.run);
        } else {
            command.arg("--root").arg(&self.root).arg("--runroot").arg(&self.run);
        }
        let out = store::succeed(command.args(["--storage-driver", "overlay"]).args(words));
        self.unmount();
        out
    }

    fn unmount(&self) {
        while program::run(Command::new("umount").arg("-l").arg(self.root.join("overlay"))).code == 0 {}
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Returns `class path` of the rows of a document.
fn found(document: &Value, pointer: &str) -> BTreeSet<String> {
    let rows = list(document, pointer).iter();
    rows.map(|row| format!("{} {}", text(row, "/class"), text(row, "/path"))).collect()
}

/// Classes for which `sweep` reports another finding than the table of `inject.sh`, or none: traps without a finding,
/// and damage that is reported by its consequences.
const OTHERWISE: [&str; 8] = [
    // Not a finding: these are traps.
    "volatile-ok",
    "shared-top",
    "mapped-top",
    "hardlink-cross",
    "backingfs",
    "old-lastwrite",
    // Its digests would have to be computed.
    "modified-layer",
    // It imitates /var/tmp, which is not searched if a store is named.
    "vartmp",
];

/// Every planted leak is listed with its verdict, and nothing else; the run deletes what the dry run announced, to the
/// byte; the traps are kept.
#[test]
fn planted_leaks_are_found_and_swept() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("debugfs") {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 400 * MIB);
    let planted = Planted::at(loopfs.path(), &[]);
    // Young files are kept while a tool runs, as another test may do.
    loopfs.age(&[&planted.root.join("tmp")], 9);
    let staging = planted.root.join("overlay/staging");
    let _lock = locks::write_lock(&staging.join("3333333333/staging.lock"));
    let report = planted.json(0, &["sweep"]);
    assert_eq!(text(&report, "/outcome"), "reported");
    assert_eq!(report["run_id"], Value::Null);
    let leaks = list(&report, "/leaks");
    for row in planted.rows.iter().filter(|row| !OTHERWISE.contains(&row.class.as_str())) {
        assert!(leaks.iter().any(|leak| row.is(leak)), "{} is not found: {leaks:#?}", row.class);
    }
    for leak in leaks {
        assert!(planted.rows.iter().any(|row| row.is(leak)), "{leak:#} was not planted");
    }
    let references: Vec<_> = leaks.iter().map(|leak| text(leak, "/path").to_owned()).collect();
    let printed = |words: &[&str]| {
        let run = planted.run(words);
        run.stdout + &run.stderr
    };
    promises::assert_nothing_destroys(printed, &references);
    // Young leaks are kept with the default age, and a dry run changes nothing.
    let young = planted.json(0, &["sweep", "--dry-run", "--class", "orphan-dir"]);
    assert!(list(&young, "/deleted").is_empty(), "{young:#}");
    assert!(text(&list(&young, "/leaks")[0], "/remedy").starts_with("too young"), "{young:#}");

    let now = ["--min-age", "0s"];
    let dry = planted.json(0, &[&["sweep", "--delete", "--dry-run"], &now[..]].concat());
    assert_eq!(planted.json(0, &["sweep"])["leaks"].as_array().unwrap().len(), leaks.len());
    let real = planted.json(0, &[&["sweep", "--delete"], &now[..]].concat());
    fn predictions(document: &Value) -> Vec<(String, Value)> {
        let rows = list(document, "/deleted").iter();
        rows.map(|row| (text(row, "/path").to_owned(), row["predicted_bytes"].clone())).collect()
    }
    assert_eq!(predictions(&dry), predictions(&real), "{real:#}");
    assert_eq!((list(&real, "/kept").len(), list(&real, "/errors").len()), (0, 0), "{real:#}");
    for row in list(&real, "/deleted") {
        assert_eq!(row["differs"], false, "{row:#}");
        assert!(!Path::new(text(row, "/path")).exists(), "{row:#}");
    }
    // The series contains the end of the run, however recent the last scan was.
    let series = planted.json(0, &["history", "usage"]);
    let mount = loopfs.path().to_str().unwrap();
    let of_it = list(&series, "/filesystems").iter().find(|row| text(row, "/mount") == mount).unwrap();
    let last = list(of_it, "/points").last().unwrap();
    assert_eq!(last["readings"], 1, "{last:#}");
    let off = real["measured_bytes"].as_i64().unwrap() - real["predicted_bytes"].as_i64().unwrap();
    assert!(off.abs() <= 64 * 1024, "{off}: {real:#}");
    let after = planted.json(0, &["sweep"]);
    let kept = list(&report, "/leaks").iter().filter(|leak| leak["verdict"] != "reclaim");
    let kept: BTreeSet<_> =
        kept.map(|leak| format!("{} {}", text(leak, "/class"), text(leak, "/path"))).collect();
    assert_eq!(found(&after, "/leaks"), kept, "exactly the reclaimable leaks are gone");
    for row in planted.rows.iter().filter(|row| row.verdict == "keep") {
        assert!(row.paths.iter().all(|path| path.symlink_metadata().is_ok()), "{}", row.class);
    }
    // The short names of layers are repaired, but only on request.
    let mended = planted.json(0, &["sweep", "--repair", "missing-link"]);
    assert_eq!(found(&mended, "/repaired").len(), 2, "{mended:#}");
    let last = planted.json(0, &["sweep"]);
    assert!(!list(&last, "/leaks").iter().any(|leak| !leak["action"].is_null()), "{last:#}");
    // All deletions are in the history.
    let history = planted.json(0, &["history", "--kind", "leak"]);
    let run = list(&history, "/runs").iter().find(|run| run["run_id"] == real["run_id"]).unwrap();
    assert_eq!(list(run, "/deleted").len(), list(&real, "/deleted").len());
    assert!(
        list(run, "/deleted").iter().all(|row| row["reason"] == "leak" && row["measured_bytes"].is_i64())
    );
}

/// Remains of a crash, and traps; no damage that would stop a tool.
const HARMLESS: [&str; 21] = [
    "orphan-dir",
    "orphan-dir-partial",
    "incomplete",
    "incomplete-no-dir",
    "unref-old",
    "unref-young",
    "orphan-image-dir",
    "orphan-ctr-dir",
    "tarsplit-orphan",
    "layerdata-orphan",
    "staging-dead",
    "tempdirs-dead",
    "tmp-json",
    "graphroot-tmp",
    "volatile-ok",
    "volatile-ghost",
    "shared-top",
    "mapped-top",
    "hardlink-cross",
    "old-lastwrite",
    "backingfs",
];

const NOW: [&str; 5] = ["sweep", "--delete", "-y", "--min-age", "0s"];

fn reclaimable(document: &Value) -> Vec<&Value> {
    list(document, "/leaks").iter().filter(|leak| leak["verdict"] == "reclaim").collect()
}

/// Killed repeatedly, the sweep continues each time, and every tool works afterwards.
#[test]
fn killed_sweep_continues_and_tools_work() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("debugfs") {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 400 * MIB);
    let planted = Planted::at(loopfs.path(), &HARMLESS);
    loopfs.age(&[&planted.root.join("tmp")], 9);
    let all = reclaimable(&planted.json(0, &["sweep"])).len();
    let mut left = all;
    for round in 0..8_u64 {
        let mut command = planted.command(&[&NOW[..], &["--format", "json"]].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + 45 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = reclaimable(&planted.json(0, &["sweep"])).len();
        println!("killed after {} ms: {now} of {all} left", 60 + 45 * round);
        // A leak of a run that was killed between two steps may be two by now: a directory and its short name.
        assert!(now <= left + 1, "{now} > {left}");
        left = now;
    }
    let last = planted.json(0, &NOW);
    assert_eq!(list(&last, "/errors").len(), 0, "{last:#}");
    let after = planted.json(0, &["sweep"]);
    assert!(reclaimable(&after).is_empty(), "{after:#}");
    for row in planted.rows.iter().filter(|row| row.verdict == "keep") {
        assert!(row.paths.iter().all(|path| path.symlink_metadata().is_ok()), "{}", row.class);
    }
    // The tools work as usual.
    let listed = planted.tool("podman", &["images", "--all", "--format", "{{.Repository}}:{{.Tag}}"]);
    for name in ["localhost/mk/svc-b:1", "localhost/inj/shared-top:1", "localhost/inj/hardlink-cross:1"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    planted.tool("containers-storage", &["layers"]);
    let image = "localhost/mk/svc-b:1";
    planted.tool("podman", &["create", "--name", "after", "--network", "none", image, "/x"]);
    planted.tool("podman", &["rm", "after"]);
    planted.tool("buildah", &["from", "--pull-never", "--name", "built", image]);
    planted.tool("buildah", &["commit", "-q", "--rm", "built", "localhost/built:1"]);
    planted.tool("podman", &["rmi", "localhost/built:1"]);
    planted.tool("podman", &["rmi", "localhost/inj/hardlink-cross:1"]);
    planted.tool("podman", &["rmi", "localhost/inj/shared-top:1"]);
    let after = planted.json(0, &["sweep"]);
    assert!(reclaimable(&after).is_empty(), "{after:#}");
}

#[test]
fn sweep_refuses_bad_arguments_and_held_locks() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let planted = node::Node::of(small::store(&dir.path().join("root")));
    planted.store.unmount();
    let orphan = planted.store.root().join("overlay").join("0b".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    let json = |code: i32, words: &[&str]| {
        node::document(planted.run(&[words, &["--format", "json"]].concat()).expect_code(code))
    };
    let bad = planted.run(&["sweep", "--class", "orphan-dri"]).expect_code(2);
    assert!(bad.stderr.contains("orphan-dir") && bad.stderr.contains("vartmp"), "{bad:?}");
    let bad = planted.run(&["sweep", "--repair", "orphan-dir"]).expect_code(2);
    assert!(bad.stderr.contains("missing-link"), "{bad:?}");
    let bad = planted.run(&["sweep", "--min-age", "soon"]).expect_code(2);
    assert!(bad.stderr.contains("14d"), "{bad:?}");
    for more in [&["--delete"][..], &["--delete", "--dry-run"], &["--repair", "missing-link"]] {
        let mut command = program::command();
        let bad = program::run(command.args(["sweep", "--sysroot"]).arg(dir.path()).args(more));
        let bad = bad.expect_code(2);
        assert!(bad.stderr.contains("hint: "), "{bad:?}");
    }
    // Another run of layersweep is in progress.
    let held = RunLock::acquire(&planted.state).unwrap();
    let refused = json(5, &NOW);
    assert_eq!(text(&refused, "/outcome"), "refused");
    assert_eq!(list(&refused, "/errors")[0]["step"], "begin");
    // Listing is always allowed.
    assert_eq!(reclaimable(&json(0, &["sweep"])).len(), 1);
    assert_eq!(list(&json(0, &[&NOW[..], &["--dry-run"]].concat()), "/deleted").len(), 1);
    drop(held);
    // Another process holds the store's locks longer than the timeout: nothing is proven.
    let lock = locks::write_lock(&planted.store.record("layers.lock"));
    let late = json(5, &NOW);
    assert_eq!(text(&late, "/outcome"), "refused", "{late:#}");
    assert_eq!(list(&late, "/errors")[0]["step"], "read", "{late:#}");
    drop(lock);
    let done = json(0, &NOW);
    assert_eq!(text(&done, "/outcome"), "done", "{done:#}");
    assert_eq!(text(&json(0, &NOW), "/outcome"), "not_needed");
}

/// A promised leak is deleted: modification times that were set back, as in a copied or restored store, count neither
/// for the list nor for the deletion.
#[test]
fn young_leaks_are_not_promised() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = node::Node::of(small::store(&dir.path().join("root")));
    node.store.unmount();
    let root = node.store.root();
    for made in ["overlay/staging/1111111111/dir", "overlay/staging/2222222222/dir"] {
        std::fs::create_dir_all(root.join(made)).unwrap();
    }
    std::fs::write(root.join("overlay/staging/1111111111/staging.lock"), "").unwrap();
    let lost = root.join("overlay-containers").join("0c".repeat(32));
    std::fs::create_dir_all(lost.join("userdata")).unwrap();
    let mut old = Command::new("find");
    old.args([root.join("overlay/staging"), lost]);
    store::succeed(old.args(["-exec", "touch", "-d", "9 days ago", "{}", "+"]));
    let report = node.json(&["sweep"]);
    let leaks = list(&report, "/leaks");
    assert_eq!(leaks.len(), 3, "{report:#}");
    assert!(leaks.iter().all(|leak| leak["action"].is_null()), "{report:#}");
    let done = node.json(&["sweep", "--delete"]);
    assert_eq!((text(&done, "/outcome"), list(&done, "/kept").len()), ("not_needed", 0), "{done:#}");
    // A leak that is old enough by the same rule is deleted; without a lock file, 24 hours are required anyway.
    let done = node.json(&NOW);
    assert_eq!((list(&done, "/deleted").len(), list(&done, "/kept").len()), (2, 0), "{done:#}");
}

/// Checks the result of a run while other processes write all the time. The run never fails.
fn assert_consistent_with_storm(code: i32, document: &Value) {
    let errors = list(document, "/errors");
    let steps: BTreeSet<_> = errors.iter().map(|error| text(error, "/step")).collect();
    match code {
        // Everything could be read, and each leak is deleted or proven to be in use.
        0 | 3 => {
            assert!(["done", "not_needed"].contains(&text(document, "/outcome")), "{document:#}");
            assert!(errors.is_empty(), "{document:#}");
            // Files that were just being written could not be measured: lower bounds.
            assert_eq!(document["complete"], code == 0, "{document:#}");
            assert_eq!(
                list(document, "/warnings").iter().any(|warning| warning["incomplete"] == true),
                code == 3
            );
        }
        // No reading was consistent, or the locks were held too long: nothing is proven.
        5 => {
            assert_eq!(text(document, "/outcome"), "refused", "{document:#}");
            assert!(
                !steps.is_empty() && steps.iter().all(|step| ["read", "lock"].contains(step)),
                "{document:#}"
            );
        }
        _ => panic!("exit code {code}: {document:#}"),
    }
}

/// Deletion in a loop beside podman and buildah: no tool fails, nothing is lost.
#[test]
fn sweep_beside_busy_tools_loses_nothing() {
    if !store::require_tools() {
        return;
    }
    let seconds = std::env::var("LAYERSWEEP_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let storm = Duration::from_secs(seconds.unwrap_or(20));
    let dir = tempfile::tempdir().unwrap();
    let node = node::Node::of(small::still(&dir.path().join("root")));
    let steady = support::edit::whole(&node.store);
    let over = std::sync::atomic::AtomicBool::new(false);
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    fn is_over(over: &std::sync::atomic::AtomicBool) -> bool {
        over.load(std::sync::atomic::Ordering::Relaxed)
    }
    let mut swept = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over(&over) {
                let image = small::name("b");
                node.store.podman(["create", "--name", "gust", "--network", "none", &image, "/x"]);
                node.store.podman(["rm", "gust"]);
                rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !is_over(&over) {
                node.store.buildah(["from", "--pull-never", "--name", "storm", &small::name("a2")]);
                node.store.buildah(["commit", "-q", "--rm", "storm", "localhost/storm:1"]);
                node.store.buildah(["rmi", "localhost/storm:1"]);
            }
        });
        struct AtEnd<'a>(&'a std::sync::atomic::AtomicBool);
        impl Drop for AtEnd<'_> {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let _over = AtEnd(&over);
        let start = std::time::Instant::now();
        // On a slow machine it takes longer.
        while start.elapsed() < storm || swept <= 2 || rounds.load(std::sync::atomic::Ordering::Relaxed) <= 2
        {
            // An orphan, as a crash leaves it.
            let id = format!("{:064x}", start.elapsed().as_nanos());
            std::fs::create_dir_all(node.store.root().join("overlay").join(id).join("diff/a")).unwrap();
            let run = node.run(&[&NOW[..], &["--format", "json"]].concat());
            let code = run.code;
            let document = node::document(run);
            assert_consistent_with_storm(code, &document);
            swept += list(&document, "/deleted").len();
        }
    });
    let rounds = rounds.into_inner();
    println!("{swept} orphans, {rounds} containers");
    node.store.unmount();
    node.run(&NOW).expect_code(0);
    assert_eq!(support::edit::whole(&node.store), steady);
    assert_eq!(support::edit::podman_ids(&node.store), steady);
}

/// A signal ends the sweep after the current deletion, and the deletions are reported and recorded.
#[test]
fn signal_stops_between_two_deletions() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = node::Node::of(small::store(&dir.path().join("root")));
    node.store.unmount();
    for number in 0..300 {
        let orphan = node.store.root().join("overlay").join(format!("{number:064x}"));
        std::fs::create_dir_all(orphan.join("planted")).unwrap();
    }
    let mut command = node.command(&[&NOW[..], &["--format", "json"]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let overlay = node.store.root().join("overlay");
    /// Number of planted directories below `top`, without those below a directory of the name `except`.
    fn planted(top: &Path, except: &str) -> usize {
        let found = walkdir::WalkDir::new(top).into_iter();
        let found = found.filter_entry(|entry| entry.file_name() != except).filter_map(Result::ok);
        found.filter(|entry| entry.file_name() == "planted").count()
    }
    // In its place, or (counted second, so that none is missed) proven and moved away.
    let left = || planted(&overlay, "tempdirs") + planted(&overlay.join("tempdirs"), "-");
    let all = left();
    while left() > all - 3 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list(&document, "/errors")[0]["step"], "stop");
    let deleted = list(&document, "/deleted").len();
    assert!((3..300).contains(&deleted), "{deleted}");
    let history = node.json(&["history"]);
    let recorded = list(&list(&history, "/runs")[0], "/deleted");
    let (unknown, gone): (Vec<_>, Vec<_>) =
        recorded.iter().partition(|row| text(row, "/outcome") == "unknown");
    assert_eq!(gone.len(), deleted);
    // The outcome is unknown of those that were moved to the trash, and of one deletion that the signal interrupted.
    let moved = planted(&overlay.join("tempdirs"), "-");
    assert!((moved..=moved + 1).contains(&unknown.len()), "{moved}: {unknown:#?}");
    let removed = all - left();
    assert!((deleted..=deleted + 1).contains(&removed), "{removed} and {deleted}");
    // The next run deletes the leaks that were moved to the trash. Each deletion is recorded once.
    node.run(&NOW).expect_code(0);
    assert_eq!(left(), 0);
    let history = node.json(&["history", "--kind", "leak"]);
    let rows = list(&history, "/runs").iter().flat_map(|run| list(run, "/deleted"));
    let gone = rows.filter(|row| text(row, "/outcome") == "deleted").map(|row| text(row, "/id"));
    let mut gone: Vec<_> = gone.collect();
    gone.sort_unstable();
    assert_eq!(gone.len(), 300);
    gone.dedup();
    assert_eq!(gone.len(), 300);
}

/// Makes a store that contains only directories of layers without a record.
fn store_of_orphans(root: &Path, count: usize) {
    for directory in ["overlay/l", "overlay-layers", "overlay-images", "overlay-containers"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for kind in ["layers", "images", "containers"] {
        std::fs::write(root.join(format!("overlay-{kind}/{kind}.json")), "[]").unwrap();
        std::fs::write(root.join(format!("overlay-{kind}/{kind}.lock")), "").unwrap();
    }
    std::fs::write(root.join("storage.lock"), "").unwrap();
    for number in 0..count {
        // A layer of this name that another test uses keeps this one.
        let id = format!("{:016x}{number:048x}", 1 + support::slot());
        let digits = format!("{number:026b}").replace('0', "A").replace('1', "B");
        let layer = root.join("overlay").join(&id);
        std::fs::create_dir_all(layer.join("diff")).unwrap();
        std::fs::write(layer.join("link"), &digits).unwrap();
        std::fs::write(layer.join("diff/file"), "x".repeat(5000)).unwrap();
        std::os::unix::fs::symlink(format!("../{id}/diff"), root.join("overlay/l").join(digits)).unwrap();
    }
    let mut touch = Command::new("find");
    touch.arg(root.join("overlay")).args(["-depth", "-exec", "touch", "-h", "-d", "3 days ago", "{}", "+"]);
    store::succeed(&mut touch);
}

/// Returns the processor time of the programs that this process has started, in hundredths of a second.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[13..=14].iter().map(|field| field.parse::<f64>().unwrap()).sum()
}

#[test]
fn each_of_many_leaks_costs_the_same() {
    if !Fs::Ext4.require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = LoopFs::new(Fs::Ext4, 400 * MIB);
    fn for_each(dir: &tempfile::TempDir, disk: &LoopFs, count: usize) -> f64 {
        let root = disk.path().join(count.to_string());
        store_of_orphans(&root, count);
        let sweep = |words: &[&str]| {
            let mut command = program::command();
            command.args(words).arg("--graphroot").arg(&root);
            command.arg("--state-dir").arg(dir.path().join(format!("{count}-state")));
            program::run(&mut command).expect_no_crash().expect_code(0)
        };
        let listed = sweep(&["sweep"]).stdout;
        let sum: Vec<&str> = listed.lines().rev().nth(3).unwrap().split_whitespace().collect();
        assert_eq!((sum[0], sum[1]), ("orphan-dir", &*count.to_string()), "{listed}");
        let report = sweep(&["report"]).stdout;
        assert!(report.contains(&format!("{count} leaks of class orphan-dir")), "{report}");
        let before = processor_time();
        let document = node::document(sweep(&["sweep", "--delete", "-y", "--format", "json"]));
        let took = processor_time() - before;
        let deleted = list(&document, "/deleted");
        assert_eq!(deleted.len(), count);
        // Each leak is measured on its own, including its short name.
        for row in deleted {
            let bytes = row["measured_bytes"].as_i64().unwrap();
            assert!((8 << 10..=12 << 10).contains(&bytes), "{row:#}");
        }
        assert_eq!(std::fs::read_dir(root.join("overlay/l")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(root.join("overlay")).unwrap().count(), 1);
        took / count as f64
    }
    let (few, many) = (for_each(&dir, &disk, 200), for_each(&dir, &disk, 1600));
    println!("processor time a leak: {:.1} ms of 200, {:.1} ms of 1600", few * 10.0, many * 10.0);
    assert!(many < 1.5 * few, "{many} and {few}");
}
