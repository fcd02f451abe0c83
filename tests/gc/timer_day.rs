//! A day of timers on a small store: a scan every ten minutes, `gc` every hour, images and leaks that are added and
//! removed, and a client that reads metrics all the time. Nothing grows, nothing is left, no counter decreases.
//!
//! The clock of the machine is not changed. Instead all records are made ten minutes older before each scan, by record
//! time and by the node's clock, so that the program sees a day pass. Tasks that run once a day (forgetting, checking
//! the file) are tested elsewhere.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support;
use layersweep::history::{Caller, state_directory};
use layersweep::sys::sysroot::Sysroot;
use rusqlite::Connection;
use serde_json::Value;
use support::archive::{ImageSpec, LayerSpec};
use support::metrics::{Labels, Scrape, assert_same, check, float};
use support::program::{self, Run, list};
use support::small;
use support::store::{self, Store};

const SCANS: usize = 144;
/// Scans in an hour.
const HOUR: usize = 6;
const STEP_MICROS: i64 = 600_000_000;
/// Maximum number of descriptors of a run.
const FILES: u32 = 256;
/// Maximum size of the state directory after a day. Two years are below 50 MiB (docs/records.md).
const STATE_BYTES: u64 = 1 << 20;
/// Maximum growth of memory since the beginning.
const MORE_KIB: u64 = 16 << 10;

/// Files in the state directory between two runs, beside the reserve file.
const KEPT: [&str; 4] = ["layersweep.db", "metrics.lock", "run.lock", "write.lock"];

/// `reserve-` and the number of the device, see docs/collecting.md.
fn is_reserve_file(name: &str) -> bool {
    name.starts_with("reserve-")
}

/// Columns with times of the records. Times from the disk do not change.
const TIMES: &[(&str, &[&str])] = &[
    ("clock", &["record_time", "wall", "since_boot", "unsettled_after"]),
    ("stores", &["first_seen", "last_seen", "last_complete", "last_wall"]),
    ("images", &["first_detected", "last_seen", "last_used", "proven_since", "gone_since"]),
    ("containers", &["first_seen", "last_seen", "gone_since"]),
    ("runs", &["started", "ended"]),
    ("deletions", &["at"]),
    ("filesystems", &["first_seen", "last_seen"]),
    ("usage", &["at"]),
    ("store_figures", &["at", "wall"]),
];

struct Day {
    store: Store,
    dir: tempfile::TempDir,
}

impl Day {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = small::still(&dir.path().join("graphroot"));
        store.unmount();
        let day = Self { store, dir };
        for name in ["collector", "tmp", "run"] {
            std::fs::create_dir(day.path(name)).unwrap();
        }
        let config = format!(
            "state_dir = {:?}\n[stores]\ngraphroot = [{:?}]\nrunroot = [{:?}]\n\
             [images]\nhigh_percent = \"off\"\nmin_age = \"0s\"\nmax_age = \"90m\"\n\
             [leaks]\ndelete = true\nmin_age = \"0s\"\n[metrics]\ntextfile = {:?}\n",
            day.path("state"),
            day.store.root(),
            day.store.runroot(),
            day.path("collector"),
        );
        std::fs::write(day.path("layersweep.toml"), config).unwrap();
        day
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn environment(&self, command: &mut Command) {
        program::hermetic(command);
        command.env_remove("LAYERSWEEP_STATE_DIR");
        command.env("TMPDIR", self.path("tmp")).env("XDG_RUNTIME_DIR", self.path("run"));
    }

    /// Returns the program as a unit runs it, with a limit on its descriptors.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        self.environment(&mut command);
        command.args(["-c", &format!("ulimit -n {FILES}; exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_layersweep")).args(words);
        command.arg("--config").arg(self.path("layersweep.toml"));
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        let run = program::run(&mut self.command(words)).expect_no_crash().expect_code(0);
        assert_eq!(run.stderr, "", "{words:?}");
        run
    }

    /// Peak memory of a scan in KiB.
    fn memory_of_a_scan(&self) -> u64 {
        const MEASURE: &str = "import os, sys\n\
            pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])\n\
            _, status, used = os.wait4(pid, 0)\n\
            assert status == 0, status\n\
            print(used.ru_maxrss)";
        let mut command = Command::new("python3");
        self.environment(&mut command);
        command.args(["-c", MEASURE, env!("CARGO_BIN_EXE_layersweep"), "scan", "--quiet", "--config"]);
        command.arg(self.path("layersweep.toml"));
        program::run(&mut command).expect_code(0).stdout.trim().parse().unwrap()
    }

    /// Makes the records ten minutes older.
    fn pass(&self) {
        let mut database = Connection::open(self.path("state/layersweep.db")).unwrap();
        let tx = database.transaction().unwrap();
        for (table, columns) in TIMES {
            let set: Vec<_> = columns.iter().map(|column| format!("{column} = {column} - ?1")).collect();
            tx.execute(&format!("UPDATE {table} SET {}", set.join(", ")), [STEP_MICROS]).unwrap();
        }
        tx.commit().unwrap();
    }

    /// Reads the metrics file as node_exporter does.
    fn file(&self) -> Scrape {
        Scrape::read(&std::fs::read_to_string(self.path("collector/layersweep.prom")).unwrap())
    }

    fn load(&self, name: &str) {
        let layers = ["base", name].map(|name| LayerSpec { small_files: 4, ..LayerSpec::new(name) }).to_vec();
        self.store.load(&[ImageSpec { names: vec![small::name(name)], layers, label: name.into() }]);
        self.store.unmount();
    }

    /// Makes a directory of a layer that has no record.
    fn leak(&self, number: usize) {
        let diff = self.store.root().join("overlay").join(format!("{number:064x}")).join("diff");
        std::fs::create_dir_all(&diff).unwrap();
        std::fs::write(diff.join("file"), vec![1; 9000]).unwrap();
    }
}

/// A server `metrics --listen` that runs all day.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(day: &Day) -> Self {
        let mut command = day.command(&["metrics", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("note: serving /metrics on http://").unwrap().to_owned();
        Self { child, address }
    }

    fn get(&self) -> Scrape {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Scrape::read(body)
    }

    /// Memory of the server in KiB, and its descriptors.
    fn needs(&self) -> (u64, usize) {
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = std::fs::read_to_string(proc.join("status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let memory = memory.trim().trim_end_matches(" kB").parse().unwrap();
        (memory, std::fs::read_dir(proc.join("fd")).unwrap().count())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn bytes(dir: &Path) -> u64 {
    let entries = walkdir::WalkDir::new(dir).into_iter().map(Result::unwrap);
    // The size of the reserve file does not change.
    let files = entries
        .filter(|entry| !is_reserve_file(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.metadata().unwrap());
    files.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// Checks that no counter decreased or disappeared.
fn assert_went_on(before: &BTreeMap<(String, Labels), f64>, now: &BTreeMap<(String, Labels), f64>) {
    for (counter, value) in before {
        let now = now.get(counter).unwrap_or_else(|| panic!("{counter:?} is gone"));
        assert!(now >= value, "{counter:?} went from {value} to {now}");
    }
}

#[test]
fn day_of_timers_leaves_only_records() {
    if !store::require_tools() || !["promtool", "python3"].into_iter().all(support::require_program) {
        return;
    }
    let day = Day::new();
    let began = Instant::now();
    let first = day.memory_of_a_scan();
    let server = Server::start(&day);
    server.get();
    let runroot = names(&day.store.runroot());
    let (mut counters, mut served, mut after_an_hour) = (BTreeMap::new(), (0, 0), 0);
    let (mut loaded, mut planted, mut gone) = (0, 0, 0);
    for number in 1..=SCANS {
        day.pass();
        if number % (4 * HOUR) == HOUR {
            day.load(&format!("churn-{number}"));
            loaded += 1;
        }
        if number % HOUR == 5 {
            day.leak(number);
            planted += 1;
        }
        day.run(&["scan", "--quiet"]);
        let mut file = day.file();
        assert_eq!(file.one("scan_complete", &[]), 1.0);
        assert_went_on(&counters, &file.counters());
        if number % HOUR == 0 {
            let run = day.run(&["gc", "--via", "direct", "--quiet", "--format", "json"]).json();
            file = day.file();
            assert_went_on(&counters, &file.counters());
            gone += list(&run, "/deleted").len() as u64;
            assert_eq!(file.sum("gc_deletions_total", &[]), float(gone));
            let answer = server.get();
            for name in ["layersweep_storage_bytes", "layersweep_gc_runs_total", "layersweep_leaks"] {
                assert_eq!(answer.samples.get(name), file.samples.get(name), "{name}");
            }
            if number == HOUR {
                (served, after_an_hour) = (server.needs(), bytes(&day.path("state")));
            }
        }
        if number % 4 == 0 {
            server.get();
        }
        counters = file.counters();
        for name in names(&day.path("state")) {
            let is_kept = KEPT.contains(&name.as_str()) || is_reserve_file(&name);
            assert!(is_kept, "{name} is in the state directory after scan {number}");
        }
    }
    let scan: Value = day.run(&["scan", "--format", "json"]).json();
    let file = day.file();
    check(&std::fs::read_to_string(day.path("collector/layersweep.prom")).unwrap());
    assert_same(&file, &scan);
    assert_same(&server.get(), &scan);

    // Runs of the timer, each of which was counted once: gc scans, too.
    let hours = SCANS / HOUR;
    let [reached, not_needed, failed, refused, killed] =
        ["reached", "not_needed", "failed", "refused", "killed"]
            .map(|outcome| file.one("gc_runs_total", &[("command", "gc"), ("outcome", outcome)]));
    assert_eq!(reached + not_needed, float(hours as u64));
    assert!(reached >= 1.0, "an age of 90 minutes was reached");
    assert_eq!(failed + refused + killed, 0.0);
    assert!(file.sum("scans_total", &[]) >= float((SCANS + 2) as u64));
    // Every planted leak is deleted or was just planted, and so is every unused image.
    let [leaks, images] =
        ["leak", "image"].map(|kind| file.one("gc_deletions_total", &[("command", "gc"), ("kind", kind)]));
    assert_eq!(leaks, float(planted));
    assert_eq!(list(&scan, "/leaks").len(), 0, "{:#}", scan["leaks"]);
    assert_eq!(images, float(loaded + 4), "all but that of the container");
    assert_eq!(file.sum("gc_failures_total", &[]), 0.0);
    assert_eq!(list(&scan, "/images").len(), 1);
    day.store.podman(["inspect", "--type", "image", &small::name("a")]);

    // Nothing is left in the wrong place, and nothing has grown that should not.
    assert_eq!(names(&day.path("collector")), ["layersweep.prom"]);
    for name in ["tmp", "run"] {
        assert_eq!(names(&day.path(name)), Vec::<String>::new(), "{name}");
    }
    assert_eq!(names(&day.store.runroot()), runroot);
    let pending = state_directory(&Sysroot::live(), Some(&day.path("state")), &Caller::present()).pending;
    assert!(pending.iter().all(|dir| !dir.exists()), "{pending:?}");
    let state = bytes(&day.path("state"));
    assert!(state < STATE_BYTES, "{state} bytes");
    let last = day.memory_of_a_scan();
    assert!(last < first + MORE_KIB, "a scan took {first} KiB at first and takes {last} KiB now");
    let now = server.needs();
    assert!(now.0 < served.0 + MORE_KIB && now.1 <= served.1, "the server had {served:?} and has {now:?}");
    println!(
        "{SCANS} scans and {hours} gc in {:?}: the state went from {after_an_hour} to {state} bytes, a scan \
         from {first} to {last} KiB, the server from {served:?} to {now:?} (KiB, descriptors)",
        began.elapsed()
    );
}
