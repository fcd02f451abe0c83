//! After a kill at any instant, the records are intact: the database opens, no first detection ever changes, and no
//! committed record is lost.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::support;
use layersweep::history::Records;
use support::scan_records::{Seen, at, container, image, open, record_fresh, scan_at};

/// The environment variable of the killed program: its state directory.
const STATE: &str = "LAYERSWEEP_KILL_STATE";

/// The number of kills. `scan_kill` does the same with the whole program and more kills.
const KILLS: usize = 60;

/// Seconds between two scan records.
const PERIOD: i64 = 300;

/// The result of the scan number `step`: images come, go, come back and are pulled again, the machine reboots, some
/// listings are incomplete.
fn scan(step: i64) -> Seen {
    let mut seen = scan_at(step * PERIOD);
    seen.clock.boot_id = format!("boot {}", step / 40);
    seen.clock.since_boot = (step % 40 * PERIOD + 20) * 1_000_000;
    seen.clock.synchronised = step % 40 > 0;
    for slot in 0..30 {
        // Each slot has one image for some scans, then another, then the first again.
        let round = (step + slot) / (5 + slot);
        let number = slot * 4 + round % 3;
        let made = (round * (5 + slot) - slot) * PERIOD - 7;
        seen.images.push(image(number.unsigned_abs(), made));
    }
    for slot in 0..15 {
        let started = step / (2 + slot) * (2 + slot);
        let number = (started * 100 + slot).unsigned_abs();
        seen.containers.push(container(number, started * PERIOD - 1, usize::try_from(slot).ok()));
    }
    seen
}

/// The program that [`records_survive_every_kill`] kills. Opens the records, records a scan, closes them, and repeats
/// that.
#[test]
#[ignore = "another test starts it as a process of its own"]
fn scan_loop() {
    let Some(state) = std::env::var_os(STATE) else { return };
    let mut step = last_step(&open(Path::new(&state))).map_or(0, |last| last + 1);
    let mut out = std::io::stdout();
    loop {
        let mut records = open(Path::new(&state));
        record_fresh(&mut records, scan(step));
        drop(records);
        // Not with println, whose output the test harness captures.
        out.write_all(format!("recorded {step}\n").as_bytes()).unwrap();
        out.flush().unwrap();
        step += 1;
    }
}

/// The killed program. It must print `recorded N` on standard output when a scan is saved.
fn program(state: &Path) -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["history::records_kill::scan_loop", "--exact", "--ignored"]).env(STATE, state);
    program
}

/// Returns the last scan in the records.
fn last_step(records: &Records) -> Option<i64> {
    let wall: Option<i64> = records
        .read(|from| from.query_row("SELECT max(last_wall) FROM stores", [], |row| row.get(0)))
        .unwrap();
    wall.map(|wall| (wall - at(0).as_microsecond()) / (PERIOD * 1_000_000))
}

/// By row: the values that never change in a life.
type Lives = BTreeMap<i64, (String, i64, i64, String)>;

fn lives(records: &Records) -> Lives {
    let read = records.read(|from| {
        let mut select = from.prepare("SELECT id, image_id, life, first_detected, evidence FROM images")?;
        let rows = select
            .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))))?;
        rows.collect()
    });
    read.unwrap()
}

/// Returns the time from the program's start to its first scan, which depends on the load of the machine.
fn first_scan() -> Duration {
    let state = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut child = program(state.path()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with("recorded ")));
    child.kill().unwrap();
    child.wait().unwrap();
    started.elapsed()
}

#[test]
#[allow(clippy::cast_precision_loss)] // a random part of a second
fn records_survive_every_kill() {
    let state = tempfile::tempdir().unwrap();
    let seed = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    println!("seed {seed}");
    let mut random = u64::from(seed) | 1;
    let started = Instant::now();
    let longest = 4 * first_scan();
    let longest = longest.clamp(Duration::from_millis(60), Duration::from_millis(240));
    let mut known = Lives::new();
    let mut clock = None;
    let (mut steps, mut inside) = (-1, 0);
    for kill in 0..KILLS {
        let mut child = program(state.path()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(longest.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64));
        child.kill().unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it ended by itself");

        let records = open(state.path());
        let check: String =
            records.read(|from| from.query_row("PRAGMA integrity_check", [], |row| row.get(0))).unwrap();
        assert_eq!(check, "ok", "after kill {kill}");
        let orphans: i64 = records
            .read(|from| {
                from.query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0))
            })
            .unwrap();
        assert_eq!(orphans, 0, "after kill {kill}");

        let now = lives(&records);
        for (row, life) in &known {
            assert_eq!(now.get(row), Some(life), "after kill {kill}");
        }
        known = now;
        let ticked = records.read(layersweep::history::known::clock).unwrap().map(|clock| clock.record_time);
        assert!(ticked >= clock, "record time went back at kill {kill}");
        clock = ticked;

        // Every scan that it reported is there, and the last one is complete.
        let recorded = said.lines().filter_map(|line| line.strip_prefix("recorded ")?.parse().ok()).max();
        let step = last_step(&records).unwrap_or(-1);
        assert!(step >= recorded.unwrap_or(steps), "{step} after {recorded:?} at kill {kill}");
        inside += usize::from(recorded.is_none_or(|recorded| step > recorded));
        steps = step;
        if step >= 0 {
            let mut there: Vec<_> =
                support::scan_records::known(&records).all().map(|life| life.image_id.clone()).collect();
            there.sort();
            let last = scan(step);
            let mut seen: Vec<_> = last.images.iter().map(|image| image.id.to_string()).collect();
            seen.sort();
            assert_eq!(there, seen, "after kill {kill}");
        }
    }
    let ended = known.values().filter(|(_, life, ..)| *life > 1).count();
    println!(
        "{steps} scans, {} lives, {inside} kills before a scan was said, {:?}",
        known.len(),
        started.elapsed()
    );
    assert!(steps > 50, "it was killed too early to mean anything: {steps}");
    assert!(ended > 5, "no image came back");
}
