//! `layersweep scan` on a real store that changes all the time, killed at any instant: the
//! database stays whole, no first detection ever moves, and no life is ever lost.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

mod support;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use rusqlite::Connection;
use support::node::{Node, image, time};
use support::program::list;
use support::{small, store};

const KILLS: usize = 200;

/// So many of them strike a scan that makes the database.
const FRESH: usize = 25;

/// Images that are there from the first scan to the last.
const STEADY: [&str; 4] = ["base", "a", "a2", "b"];

/// By row: all that never changes in a life.
type Lives = BTreeMap<i64, (String, i64, i64, String)>;

/// What the records hold; fails unless the database is whole.
struct Held {
    lives: Lives,
    record_time: i64,
    runs: i64,
}

impl Held {
    fn of(node: &Node) -> Option<Self> {
        let asides = node.state_names().iter().filter(|name| name.contains("corrupt")).count();
        assert_eq!(asides, 0, "a kill is no damage");
        let (from, _dir) = node.database()?;
        let one = |sql: &str| from.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        let check: String = from.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        assert_eq!(one("SELECT count(*) FROM pragma_foreign_key_check"), 0);
        Some(Self {
            lives: lives(&from),
            record_time: one("SELECT coalesce(max(record_time), 0) FROM clock"),
            runs: one("SELECT coalesce(sum(summed), 0) FROM runs"),
        })
    }

    /// Fails where something of `before` has moved or is gone.
    fn follows(&self, before: &Self) {
        for (row, life) in &before.lives {
            assert_eq!(self.lives.get(row), Some(life), "row {row}");
        }
        assert!(self.record_time >= before.record_time, "record time went back");
        assert!(self.runs >= before.runs, "a run that was recorded is gone");
    }
}

fn lives(from: &Connection) -> Lives {
    let mut select = from.prepare("SELECT id, image_id, life, first_detected, evidence FROM images").unwrap();
    let row =
        |row: &rusqlite::Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)));
    select.query_map([], row).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Numbers that differ in each run of the test; the first line it prints tells them again.
struct Dice(u64);

impl Dice {
    /// Anything from 0 to 1.
    #[allow(clippy::cast_precision_loss)]
    fn part(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, from: Duration, to: Duration) -> Duration {
        from + to.saturating_sub(from).mul_f64(self.part())
    }
}

/// What changes between two scans, in turns; each is over in a moment.
fn change(store: &store::Store, turn: usize, kept: &mut Option<String>) {
    match turn % 8 {
        0 => drop(store.podman(["tag", &small::name("a"), "localhost/small/also:1"])),
        1 => *kept = Some(store.pin(&small::name("b"))),
        2 => drop(store.podman(["rmi", "--no-prune", &small::name("other")])),
        3 => drop(store.podman(["untag", &small::name("a"), "localhost/small/also:1"])),
        4 => store.load(&[small::image("other")]),
        5 => drop(kept.take().map(|container| store.unpin(&container))),
        6 => *kept = Some(store.pin(&small::name("a2"))),
        _ => drop(kept.take().map(|container| store.unpin(&container))),
    }
}

/// How long a scan takes until it begins to save, and in all: the median of a few.
fn measured(node: &Node) -> (Duration, Duration) {
    let median = |words: &[&str]| {
        let mut times: Vec<_> = (0..5).map(|_| node.run(words).expect_code(0).took).collect();
        times.sort();
        times[2]
    };
    let (reading, all) =
        (median(&["scan", "--no-record", "--format", "json"]), median(&["scan", "--format", "json"]));
    (reading.min(all), all)
}

/// What came of a run that was to be killed.
#[derive(Default)]
struct Ends {
    killed: usize,
    done: usize,
    /// Killed with the database open for writing.
    unclosed: usize,
}

impl Ends {
    /// Kills a scan after `delay`, or `delay` after it has begun to write.
    fn kill(&mut self, node: &Node, delay: Duration, writing: bool) {
        let log = node.state.join("layersweep.db-wal");
        let mut command = node.command(&["scan", "--format", "json"]);
        let mut scan = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if writing {
            let started = Instant::now();
            while !log.exists() && started.elapsed() < Duration::from_secs(10) {
                if scan.try_wait().unwrap().is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        std::thread::sleep(delay);
        scan.kill().unwrap();
        let status = scan.wait().unwrap();
        match status.signal() {
            Some(9) => {
                self.killed += 1;
                self.unclosed += usize::from(log.exists());
            }
            _ => {
                assert_eq!(status.code(), Some(0), "a scan that came to its end");
                self.done += 1;
            }
        }
    }
}

#[test]
fn killed_at_any_instant_no_first_detection_ever_moves() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::of(small::store(dir.path()));
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    println!("seed {seed}");
    let mut dice = Dice(u64::from(seed) | 1);
    let started = Instant::now();
    let (reading, all) = measured(&node);
    let write = (all - reading).max(Duration::from_millis(10));

    let mut ends = Ends::default();
    let state = node.state.clone();
    for _ in 0..FRESH {
        let fresh = tempfile::tempdir().unwrap();
        node.state = fresh.path().join("state");
        ends.kill(&node, dice.between(reading.mul_f64(0.7), all.mul_f64(1.2)), false);
        let before = Held::of(&node);
        node.scan();
        let after = Held::of(&node).unwrap();
        before.inspect(|before| after.follows(before));
        assert_eq!(after.lives.len(), 5);
    }
    node.state = state;
    println!("{} of {FRESH} while the database was made", ends.unclosed);

    let first = node.scan();
    let since = |name: &str| -> Timestamp { time(image(&first, &small::name(name)), "/first_detected") };
    let steady = STEADY.map(|name| (small::name(name), since(name)));
    let mut held = Held::of(&node).unwrap();
    let (mut turns, mut kept) = (0, None);
    for kill in FRESH..KILLS {
        if kill % 4 == 0 {
            change(&node.store, turns, &mut kept);
            turns += 1;
        }
        // A log that a kill has left tells nothing of when this scan begins to write.
        let open = node.state.join("layersweep.db-wal").exists();
        match kill % 4 {
            0 | 2 => ends.kill(&node, dice.between(Duration::ZERO, all.mul_f64(1.1)), false),
            1 => ends.kill(&node, dice.between(reading.mul_f64(0.9), all.mul_f64(1.1)), false),
            _ if open => ends.kill(&node, dice.between(reading.mul_f64(0.9), all.mul_f64(1.1)), false),
            _ => ends.kill(&node, dice.between(Duration::ZERO, write), true),
        }
        let now = Held::of(&node).unwrap();
        now.follows(&held);
        held = now;
        if kill % 20 == 19 || kill + 1 == KILLS {
            let images = node.json(&["images"]);
            assert_eq!(list(&images, "/warnings").len(), 0, "{:#}", images["warnings"]);
            for (name, since) in &steady {
                let image = image(&images, name);
                assert_eq!(time(image, "/first_detected"), *since, "{name} after kill {kill}");
                assert_eq!(image["first_detected_from"], "records");
                assert_eq!(image["lives"], 1);
            }
        }
    }
    node.store.load(&[small::image("other")]);
    let last = node.scan();
    let after = Held::of(&node).unwrap();
    after.follows(&held);
    let other = image(&last, &small::name("other"));
    println!(
        "{} killed, {} of them while writing, {} at their end before; reading {reading:?}, all {all:?}; {} lives, {} runs, {turns} changes, {:?}",
        ends.killed,
        ends.unclosed,
        ends.done,
        after.lives.len(),
        after.runs,
        started.elapsed()
    );
    assert!(ends.killed >= KILLS / 2, "most scans came to their end: the delays are too long");
    assert!(ends.unclosed >= 10, "hardly a kill struck the writing");
    assert!(after.lives.len() > 7 && other["lives"].as_u64().unwrap() > 2, "nothing went and came back");
}
