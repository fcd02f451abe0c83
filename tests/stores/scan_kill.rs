//! `layersweep scan` on a real store that changes all the time, killed at any instant: the database stays whole, no first
//! detection ever changes, and no life is lost.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use crate::support;
use jiff::Timestamp;
use rusqlite::Connection;
use support::node::{Node, image, time};
use support::program::list;
use support::{small, store};

const KILLS: usize = 200;

/// Number of kills during a scan that creates the database.
const FRESH: usize = 25;

/// Images that exist from the first scan to the last.
const STEADY: [&str; 4] = ["base", "a", "a2", "b"];

/// Columns that never change during a life, by row.
type Lives = BTreeMap<i64, (String, i64, i64, String)>;

/// Content of the records, read from a whole database.
struct Held {
    lives: Lives,
    record_time: i64,
    runs: i64,
}

impl Held {
    fn of(node: &Node) -> Option<Self> {
        let asides = node.state_names().iter().filter(|name| name.contains("corrupt")).count();
        assert_eq!(asides, 0, "a kill does not damage the database");
        let (from, _dir) = node.database()?;
        fn query(from: &Connection, sql: &str) -> i64 {
            from.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
        }
        let check: String = from.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        assert_eq!(query(&from, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
        Some(Self {
            lives: lives(&from),
            record_time: query(&from, "SELECT coalesce(max(record_time), 0) FROM clock"),
            runs: query(&from, "SELECT coalesce(sum(summed), 0) FROM runs"),
        })
    }

    /// Fails if something of `before` has changed or is gone.
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
    let rows = select
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))))
        .unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// Numbers that differ in each run of the test, which prints their seed first.
struct Dice(u64);

impl Dice {
    /// Returns a number from 0 to 1.
    #[allow(clippy::cast_precision_loss)]
    fn part(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Makes the changes between two scans, in turn; each is short.
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

/// Measures the time until a scan begins to save, and its whole time: the median of a few scans.
fn measured(node: &Node) -> Ends {
    fn median(node: &Node, words: &[&str]) -> Duration {
        let mut times: Vec<_> = (0..5).map(|_| node.run(words).expect_code(0).took).collect();
        times.sort();
        times[2]
    }
    let (reading, all) = (
        median(node, &["scan", "--no-record", "--format", "json"]),
        median(node, &["scan", "--format", "json"]),
    );
    let reading = (reading.as_secs_f64() / all.as_secs_f64()).min(0.9);
    Ends { killed: 0, done: 0, unclosed: 0, all, reading }
}

/// Results of the runs that were to be killed, and the duration of a run.
struct Ends {
    killed: usize,
    done: usize,
    /// Number of runs killed with the database open for writing.
    unclosed: usize,
    /// Duration of a whole run, adapted to the load of the machine.
    all: Duration,
    /// Part of the run before anything is written.
    reading: f64,
}

impl Ends {
    /// Kills a scan after `delay`, or `delay` after it has begun to write.
    fn kill(&mut self, node: &Node, delay: Duration, writing: bool) {
        let log = node.state.join("layersweep.db-wal");
        // A writer writes its name into this file.
        let lock = node.state.join("write.lock");
        fn signed(lock: &std::path::Path) -> Option<std::time::SystemTime> {
            std::fs::metadata(lock).and_then(|facts| facts.modified()).ok()
        }
        let before = signed(&lock);
        let mut command = node.command(&["scan", "--format", "json"]);
        let started = Instant::now();
        let mut scan = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut due = (!writing).then_some(delay);
        while due.is_none_or(|due| started.elapsed() < due) {
            if let Some(status) = scan.try_wait().unwrap() {
                assert_eq!(status.code(), Some(0), "a scan that completed");
                self.all = (self.all * 3 + started.elapsed()) / 4;
                self.done += 1;
                return;
            }
            if due.is_none() && signed(&lock) != before {
                due = Some(started.elapsed() + delay);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        scan.kill().unwrap();
        // The scan may have just completed.
        match scan.wait().unwrap().signal() {
            Some(signal) => {
                assert_eq!(signal, 9);
                self.killed += 1;
                self.unclosed += usize::from(signed(&lock) != before && log.exists());
            }
            None => self.done += 1,
        }
    }

    /// Returns a random moment of a run between two parts of it.
    fn moment(&self, dice: &mut Dice, from: f64, to: f64) -> Duration {
        self.all.mul_f64(from + (to - from) * dice.part())
    }
}

#[test]
fn kills_never_move_first_detection() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::of(small::still(dir.path()));
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    println!("seed {seed}");
    let mut dice = Dice(u64::from(seed) | 1);
    let started = Instant::now();
    let mut ends = measured(&node);

    let state = node.state.clone();
    while ends.killed < FRESH {
        let fresh = tempfile::tempdir().unwrap();
        node.state = fresh.path().join("state");
        let moment = ends.moment(&mut dice, ends.reading * 0.7, 1.1);
        ends.kill(&node, moment, false);
        let before = Held::of(&node);
        node.scan();
        let after = Held::of(&node).unwrap();
        before.inspect(|before| after.follows(before));
        assert_eq!(after.lives.len(), 5);
    }
    node.state = state;
    println!("{} of {FRESH} while the database was made", ends.unclosed);

    let first = node.scan();
    let steady = STEADY.map(|name| {
        let name = small::name(name);
        let since: Timestamp = time(image(&first, &name), "/first_detected");
        (name, since)
    });
    let mut held = Held::of(&node).unwrap();
    let (mut turns, mut kept) = (0, None);
    let mut tries = 0;
    while ends.killed < KILLS {
        tries += 1;
        assert!(tries < 4 * KILLS, "too few of the kills strike: {}", ends.killed);
        if tries % 4 == 0 {
            change(&node.store, turns, &mut kept);
            turns += 1;
            if [3, 5].contains(&(turns % 8)) {
                // A scan sees that an image is gone, and another that it has returned.
                node.scan();
            }
        }
        // Any moment; a moment around the writing; a moment after it has begun.
        let moment = match tries % 4 {
            0 | 2 => ends.moment(&mut dice, 0.0, 1.0),
            1 => ends.moment(&mut dice, ends.reading * 0.9, 1.05),
            _ => ends.moment(&mut dice, 0.0, (1.0 - ends.reading) / 3.0),
        };
        ends.kill(&node, moment, tries % 4 == 3);
        let now = Held::of(&node).unwrap();
        now.follows(&held);
        held = now;
        if tries % 20 == 0 || ends.killed == KILLS {
            let images = node.json(&["images"]);
            assert_eq!(list(&images, "/warnings").len(), 0, "{:#}", images["warnings"]);
            for (name, since) in &steady {
                let image = image(&images, name);
                assert_eq!(time(image, "/first_detected"), *since, "{name} after kill {}", ends.killed);
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
        "{} of {} killed while writing, {} at their end before; a run takes {:?}, {:.2} of it reading; \
         {} lives, {} runs, {turns} changes, {:?}",
        ends.unclosed,
        ends.killed,
        ends.done,
        ends.all,
        ends.reading,
        after.lives.len(),
        after.runs,
        started.elapsed()
    );
    assert!(ends.unclosed >= 10, "too few kills happened during writing");
    assert!(
        after.lives.len() > 7 && other["lives"].as_u64().unwrap() > 2,
        "no image was removed and returned"
    );
}
