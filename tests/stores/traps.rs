//! Planted leaks are found, and objects that only look like leaks are kept.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::{self, Store};
use support::{locks, tree};

/// A row of INJECTED.tsv.
#[derive(Debug)]
struct Planted {
    class: String,
    verdict: String,
    object: String,
    paths: Vec<PathBuf>,
    /// Class of the finding.
    finding: String,
}

/// Returns the classes that `docs/leaks.md` promises to find: the first column of its table.
fn promised() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/leaks.md");
    let text = std::fs::read_to_string(path).unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    cells.flat_map(|cell| cell.split("`, `")).map(|class| class.trim_end_matches('`').to_owned()).collect()
}

/// Objects that look like leaks and are not, and those that need no finding; see `docs/leaks.md`.
const QUIET: [&str; 7] = [
    "volatile-ok",
    "shared-top",
    "mapped-top",
    "hardlink-cross",
    "backingfs",
    // A lock file as an old library leaves it, or a new one that was never written: both are fine.
    "old-lastwrite",
    // The proof needs the digest of every file.
    "modified-layer",
];

/// Makes the store that leaks are planted in; its runroot is beside it.
fn source(dir: &Path) -> (Store, PathBuf) {
    let home = dir.join("store");
    std::fs::create_dir(&home).unwrap();
    let store = Store::rig(&home.join("root"), "overlay");
    // Two thirds of the bytes, which no class needs.
    store.podman(["rm", "batch"]);
    store.podman(["rmi", "localhost/mk/data:1"]);
    store.unmount();
    (store, home)
}

/// Plants `classes` in a copy of the store at `home`; `all` plants all.
fn inject(home: &Path, injected: &Path, classes: &str) -> Vec<Planted> {
    store::succeed(Command::new(store::rig("inject.sh")).args([home, injected]).arg(classes));
    let table = std::fs::read_to_string(injected.join("INJECTED.tsv")).unwrap();
    let planted = table.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        // A note in brackets may follow the paths.
        let paths = fields[3].split(" (").next().expect("at least one part");
        Planted {
            class: fields[0].into(),
            verdict: fields[1].into(),
            object: fields[2].into(),
            paths: paths.split_whitespace().map(|path| injected.join(path)).collect(),
            finding: fields[4].into(),
        }
    });
    planted.collect()
}

/// Scans an injected store as the only one of its machine, so that temporary files outside of it are found too.
fn scan(injected: &Path) -> Value {
    let config = injected.join("storage.conf");
    let text = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{0}/root\"\nrunroot = \"{0}/run\"\n",
        injected.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = program::command();
    command.args(["scan", "--format", "json", "--no-record"]);
    command.env("CONTAINERS_STORAGE_CONF", config).env("TMPDIR", injected.join("vartmp"));
    let run = program::run(&mut command).expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{run:?}");
    run.json()
}

/// Returns the leaks of the injected store; the machine may have others.
fn leaks_of(scan: &Value, injected: &Path) -> Vec<Value> {
    let root = injected.join("root");
    let leaks = list(scan, "/leaks").iter();
    leaks.filter(|leak| Path::new(text(leak, "/store")) == root).cloned().collect()
}

#[test]
fn planted_leaks_are_found_and_traps_are_kept() {
    if !store::require_tools() || !Fs::Ext4.require() || !support::require_program("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_store, home) = source(dir.path());
    let disk = LoopFs::new(Fs::Ext4, 400 * MIB);
    let injected = disk.path().join("injected");
    let planted = inject(&home, &injected, "all");
    // Young files are kept while a tool runs, as another test may do.
    disk.age(&[&injected.join("vartmp"), &injected.join("root/tmp")], 9);
    assert!(planted.len() >= 35, "{planted:#?}");
    let _lock = locks::write_lock(&injected.join("root/overlay/staging/3333333333/staging.lock"));
    let scan = scan(&injected);
    let leaks = leaks_of(&scan, &injected);

    let promised = promised();
    assert!(promised.len() >= 30, "the table is not understood: {promised:?}");
    let mut wrong = Vec::new();
    for planted in &planted {
        if planted.verdict == "keep" {
            wrong.extend(called_garbage(planted, &leaks));
        }
        if QUIET.contains(&planted.class.as_str()) {
            continue;
        }
        assert!(promised.contains(&planted.finding), "docs/leaks.md lacks {}", planted.finding);
        wrong.extend(overlooked(planted, &leaks));
    }
    for leak in &leaks {
        let class = text(leak, "/class");
        if !planted.iter().any(|planted| planted.finding == class) {
            wrong.push(format!("{leak} was not planted"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{leaks:#?}", wrong.join("\n"));
}

#[test]
fn each_class_is_found_with_its_bytes() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_store, home) = source(dir.path());
    let listed = store::succeed(Command::new(store::rig("inject.sh")).arg("list"));
    let classes = Mutex::new(listed.split_whitespace().collect::<Vec<_>>());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let class = classes.lock().unwrap().pop();
                    let Some(class) = class else { break };
                    let found = alone(&home, &dir.path().join(class), class);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plants only `class`; returns the errors in the findings.
fn alone(home: &Path, injected: &Path, class: &str) -> Vec<String> {
    let planted = inject(home, injected, class).pop().expect("it was planted");
    let lock = injected.join("root/overlay/staging/3333333333/staging.lock");
    let _lock = lock.exists().then(|| locks::write_lock(&lock));
    let scan = scan(injected);
    let leaks = leaks_of(&scan, injected);
    let mut wrong = Vec::new();
    for leak in leaks.iter().filter(|leak| QUIET.contains(&class) || text(leak, "/class") != planted.finding)
    {
        wrong.push(format!("{class} planted, and found {leak}"));
    }
    if !QUIET.contains(&class) {
        wrong.extend(overlooked(&planted, &leaks));
        let bytes: u64 = leaks.iter().map(|leak| number(leak, "/bytes")).sum();
        let du = du_of(&planted);
        if bytes != du {
            wrong.push(format!("{class}: du says {du}, we say {bytes}: {leaks:#?}"));
        }
    }
    let stores = list(&scan, "/stores");
    let root = injected.join("root");
    let store = stores.iter().find(|store| Path::new(text(store, "/root")) == root).expect("the store");
    if number(store, "/bytes/total") != tree::du(&root) {
        wrong.push(format!("{class}: du says {}: {}", tree::du(&root), store["bytes"]));
    }
    tree::remove(injected);
    wrong
}

/// Returns the bytes of the planted objects that nothing else contains. Record files are excluded, and so are objects
/// that a repair would keep, and the short name of a layer, which belongs to the store.
fn du_of(planted: &Planted) -> u64 {
    let whole = ["reclaim", "keep"].contains(&planted.verdict.as_str()) || planted.class == "volume-orphan";
    fn is_object(path: &Path) -> bool {
        let name = path.extension().is_some_and(|extension| extension == "json");
        let link = path.parent().is_some_and(|parent| parent.ends_with("overlay/l"));
        !name && !link && path.symlink_metadata().is_ok()
    }
    let mut objects: Vec<PathBuf> =
        planted.paths.iter().filter(|path| whole && is_object(path)).cloned().collect();
    if planted.class == "unref-young" {
        let split = format!("../../overlay-layers/{}.tar-split.gz", planted.object);
        objects.push(planted.paths[0].join(split));
    }
    if planted.class == "vartmp" {
        let entries = std::fs::read_dir(&planted.paths[0]).unwrap();
        objects = entries.map(|entry| entry.unwrap().path()).collect();
    }
    objects.iter().map(|path| tree::du(path)).sum()
}

/// Returns the errors for a trap that a finding would delete.
fn called_garbage(trap: &Planted, leaks: &[Value]) -> Vec<String> {
    let to_delete = leaks.iter().filter(|leak| leak["verdict"] == "reclaim");
    to_delete
        .filter(|leak| {
            let path = Path::new(text(leak, "/path"));
            let mut kept = trap.paths.iter();
            text(leak, "/id") == trap.object
                || kept.any(|kept| kept.starts_with(path) || path.starts_with(kept))
        })
        .map(|leak| format!("the trap {} is called garbage: {leak}", trap.class))
        .collect()
}

/// Returns the errors for a leak that was not found, or found as another class.
fn overlooked(planted: &Planted, leaks: &[Value]) -> Vec<String> {
    let found: Vec<&Value> = leaks
        .iter()
        .filter(|leak| text(leak, "/class") == planted.finding)
        .filter(|leak| {
            let path = PathBuf::from(text(leak, "/path"));
            let below = planted.class == "vartmp" && planted.paths.iter().any(|top| path.starts_with(top));
            text(leak, "/id") == planted.object || planted.paths.contains(&path) || below
        })
        .collect();
    let mut wrong = Vec::new();
    if found.is_empty() {
        wrong.push(format!("{planted:?} is not found"));
    }
    for leak in found {
        // A planted file may be taken for that of a tool which another test is running.
        let of_a_tool = ["vartmp", "graphroot-tmp"].contains(&planted.class.as_str())
            && text(leak, "/evidence").contains("may be using it");
        if text(leak, "/verdict") != planted.verdict && !of_a_tool {
            wrong.push(format!("{} is to be {}: {leak}", planted.class, planted.verdict));
        }
    }
    wrong
}

#[test]
fn new_store_has_no_leaks() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for driver in ["overlay", "vfs"] {
        let store = Store::rig(&dir.path().join(driver), driver);
        let scan = store.json("scan");
        assert_eq!(list(&scan, "/leaks"), [] as [Value; 0], "{driver}");
        assert_eq!(list(&scan, "/warnings"), [] as [Value; 0], "{driver}");
    }
}
