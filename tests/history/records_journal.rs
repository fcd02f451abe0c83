//! A run's journal with real faults: a full disk, a read-only one, other writers, a damaged database, a database of a
//! newer layersweep, and kills.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use layersweep::history::back_offs;
use layersweep::history::journal::{Journal, Measured};
use layersweep::history::runs::{
    self, Certainty, DeletionRow, OutcomeKind, Reason, RunEnd, RunRow, Start, TargetKind,
};
use layersweep::history::{
    Access, DATABASE, Degraded, Queue, Records, SaveWarning, StateDirectory, apply_waiting, save,
};
use layersweep::model::{BackOff, Consistency};
use support::loopfs::{Fs, LoopFs, MIB};
use support::scan_records::{self, at, image, record_fresh, scan_at, store_key};

/// A state directory on a filesystem that will fail, and a queue on another one.
struct Node {
    place: StateDirectory,
    _elsewhere: tempfile::TempDir,
}

impl Node {
    fn on(filesystem: &Path) -> Self {
        let elsewhere = tempfile::tempdir().unwrap();
        let mut place = StateDirectory::local(&filesystem.join("state"));
        place.pending = Some(elsewhere.path().join("pending"));
        Self { place, _elsewhere: elsewhere }
    }

    fn journal(&self, id: &str) -> Journal {
        journal(&self.place, id)
    }

    /// Returns the runs that `history` shows, with those in the queue.
    fn shown(&self) -> Vec<RunRow> {
        let mut opened = Records::open(&self.place, Access::Read, Duration::ZERO).unwrap();
        apply_waiting(&mut opened.records, &Queue::of(&self.place)).unwrap();
        list(&opened.records)
    }

    /// Returns the runs after the next command that can write.
    fn saved(&self) -> Vec<RunRow> {
        let mut records = scan_records::open(&self.place.dir);
        let saved = scan_at(9000)
            .with_run("zz next", |next| save(&mut records, &Queue::of(&self.place), next).unwrap());
        assert_eq!(saved.warnings, []);
        assert_eq!(self.waiting(), Vec::<PathBuf>::new());
        list(&records).into_iter().filter(|run| run.start.run_id != "zz next").collect()
    }

    /// Returns the files of the queue, without the unfinished file of a killed writer.
    fn waiting(&self) -> Vec<PathBuf> {
        let all = self
            .place
            .pending
            .clone()
            .into_iter()
            .flat_map(|dir| dir.read_dir().into_iter().flatten().map(|file| file.unwrap().path()));
        all.filter(|path| path.extension().is_none_or(|end| end != "unfinished")).collect()
    }

    fn database(&self) -> PathBuf {
        self.place.dir.join(DATABASE)
    }
}

fn list(records: &Records) -> Vec<RunRow> {
    records
        .read(|connection: &rusqlite::Connection| {
            let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            assert_eq!(integrity, "ok");
            Ok(runs::list(connection, &runs::Query { quiet: true, ..Default::default() })?.0)
        })
        .unwrap()
}

fn journal(place: &StateDirectory, id: &str) -> Journal {
    Journal::begin(place, Start { run_id: id.into(), ..Start::of(runs::Command::Gc, at(0)) })
}

fn deletion(number: usize) -> DeletionRow {
    DeletionRow {
        at: at(i64::try_from(number).unwrap()),
        kind: TargetKind::Image,
        store: Some(store_key()),
        id: format!("{number:064x}"),
        names: vec![format!("registry.example.com/team/service:{number}")],
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: 5,
        measured_bytes: None,
        byproduct_bytes: 0,
        others_wrote: false,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    }
}

fn measured() -> Measured {
    Measured { bytes: Some(5), usage_after_percent: Some(70.5), ..Measured::default() }
}

fn delete(journal: &mut Journal, number: usize) {
    let position = journal.deleted(deletion(number));
    assert_eq!(position, number);
    journal.measured(position, measured());
}

/// The same deletion, announced before.
fn announced(journal: &mut Journal, number: usize) {
    journal.begin_deletion(deletion(number));
    let measured =
        DeletionRow { measured_bytes: Some(5), usage_after_percent: Some(70.5), ..deletion(number) };
    journal.deleted(measured);
}

fn reached() -> RunEnd {
    RunEnd::of(at(5000), OutcomeKind::Reached)
}

/// Checks that the run has exactly `deletions` deletions, each with a measurement.
fn assert_whole(act: &RunRow, deletions: usize, ended: bool) {
    assert_eq!(act.ended.is_some(), ended);
    let expected = (0..deletions).map(|number| DeletionRow {
        measured_bytes: Some(5),
        usage_after_percent: Some(70.5),
        ..deletion(number)
    });
    assert_eq!(act.deletions, expected.collect::<Vec<_>>());
}

fn codes(degraded: &[Degraded]) -> Vec<&'static str> {
    degraded.iter().map(Degraded::code).collect()
}

/// Writes until the filesystem is full, and returns the file.
fn fill(filesystem: &Path) -> PathBuf {
    let path = filesystem.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 20, 4096, 512, 1] {
        let block = vec![0x5a; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
    path
}

fn ext4() -> Option<LoopFs> {
    (support::require_root() && Fs::Ext4.require()).then(|| LoopFs::new(Fs::Ext4, 16 * MIB))
}

#[test]
fn full_disk_delays_and_loses_nothing() {
    let Some(disk) = ext4() else { return };
    for had_database in [true, false] {
        let node = Node::on(&disk.path().join(format!("{had_database}")));
        std::fs::create_dir_all(&node.place.dir).unwrap();
        if had_database {
            drop(scan_records::open(&node.place.dir));
        }
        let filler = fill(disk.path());
        let mut journal = node.journal("full");
        journal.begin_deletion(deletion(0));
        let began = Instant::now();
        for number in 0..200 {
            delete(&mut journal, number);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?} for 200", began.elapsed());
        let degraded = journal.take_degraded();
        assert_eq!(codes(&degraded), ["disk-full"], "once, and nothing else: {degraded:?}");
        assert_whole(&node.shown()[0], 200, false);
        let ended = journal.end(reached());
        assert!(!ended.kept && ended.degraded.is_empty(), "{ended:?}");
        assert!(matches!(&ended.warnings[..], [SaveWarning::Kept(_)]), "{ended:?}");
        assert_whole(&node.shown()[0], 200, true);

        std::fs::remove_file(filler).unwrap();
        disk.sync();
        let next = node.journal("next");
        assert!(next.end(RunEnd::of(at(6000), OutcomeKind::NotNeeded)).kept);
        assert_eq!(node.waiting(), Vec::<PathBuf>::new(), "the next run saves it");
        let runs = node.saved();
        assert_eq!(runs.len(), 2);
        let run = runs.iter().find(|run| run.start.run_id == "full").unwrap();
        assert_whole(run, 200, true);
    }
}

/// A run frees space on the disk of its records.
#[test]
fn space_freed_by_run_is_used() {
    let Some(disk) = ext4() else { return };
    let node = Node::on(disk.path());
    drop(scan_records::open(&node.place.dir));
    let filler = fill(disk.path());
    let mut journal = node.journal("full");
    for number in 0..150 {
        delete(&mut journal, number);
    }
    assert!(!node.waiting().is_empty());
    std::fs::remove_file(filler).unwrap();
    disk.sync();
    let ended = journal.end(reached());
    assert!(ended.kept && ended.warnings.is_empty(), "{ended:?}");
    assert_eq!(codes(&ended.degraded), ["disk-full"], "that it waited for a while");
    assert_eq!(node.waiting(), Vec::<PathBuf>::new());
    assert_whole(&node.saved()[0], 150, true);
}

#[test]
fn disk_becoming_read_only_loses_nothing() {
    let Some(mut disk) = ext4() else { return };
    let node = Node::on(disk.path());
    let mut journal = node.journal("read-only");
    for number in 0..5 {
        delete(&mut journal, number);
    }
    assert_eq!(journal.take_degraded(), []);
    disk.remount_with("ro");
    for number in 5..9 {
        delete(&mut journal, number);
    }
    let ended = journal.end(reached());
    assert!(!ended.kept);
    assert_eq!(codes(&ended.degraded), ["read-only"]);
    assert!(matches!(&ended.warnings[..], [SaveWarning::Kept(_)]), "{ended:?}");
    assert_whole(&node.shown()[0], 9, true);
    disk.remount_with("rw");
    assert_whole(&node.saved()[0], 9, true);
}

#[test]
fn run_without_any_place_is_lost_with_warning() {
    let Some(mut disk) = ext4() else { return };
    let place = StateDirectory::local(&disk.path().join("state"));
    disk.remount_with("ro");
    let mut journal = journal(&place, "nowhere");
    delete(&mut journal, 0);
    let ended = journal.end(reached());
    assert!(!ended.kept && matches!(&ended.warnings[..], [SaveWarning::Lost(_)]), "{ended:?}");
    assert_eq!(codes(&ended.degraded), ["read-only"]);
    disk.remount_with("rw");
}

/// Another process: holds layersweep's lock (`layersweep`) or SQLite's (`sqlite`), or journals in a loop.
struct Other(Child);

impl Other {
    fn start(what: &str, dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "history::records_journal::another_process", "--ignored", "--nocapture"])
            .env("LAYERSWEEP_TEST_JOURNAL", what)
            .env("LAYERSWEEP_TEST_STATE_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn holding(what: &str, dir: &Path) -> Self {
        let mut other = Self::start(what, dir);
        let lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("holding")), "it holds it");
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "other tests start it as a process of its own"]
fn another_process() {
    let Some(dir) = std::env::var_os("LAYERSWEEP_TEST_STATE_DIR").map(PathBuf::from) else {
        return;
    };
    fn wait() {
        println!("holding");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    match std::env::var("LAYERSWEEP_TEST_JOURNAL").unwrap().as_str() {
        "layersweep" => {
            let mut records = scan_records::open(&dir);
            let held = records.write(|_| {
                wait();
                Ok(())
            });
            held.unwrap();
        }
        "sqlite" => {
            let foreign = rusqlite::Connection::open(dir.join(DATABASE)).unwrap();
            foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
            wait();
        }
        "once" => {
            let mut journal = journal(&StateDirectory::local(&dir), "once");
            (0..24).for_each(|number| announced(&mut journal, number));
            assert!(journal.end(reached()).kept);
        }
        _ => journal_for_ever(&dir),
    }
}

/// The disk is synchronised at the end of a run, not for each image.
#[test]
fn run_synchronises_records_once() {
    if !support::require_program("strace") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    drop(scan_records::open(&node.place.dir));
    let trace = dir.path().join("trace");
    let status = Command::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "history::records_journal::another_process", "--ignored"])
        .env("LAYERSWEEP_TEST_JOURNAL", "once")
        .env("LAYERSWEEP_TEST_STATE_DIR", &node.place.dir)
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let trace = std::fs::read_to_string(trace).unwrap();
    let syncs: Vec<_> = trace.lines().filter(|line| line.contains("sync")).collect();
    assert!((1..10).contains(&syncs.len()), "{syncs:#?}");
    assert_whole(&node.saved()[0], 24, true);
}

/// A run that is killed after it announced a deletion has recorded the outcome of the previous one.
#[test]
fn announced_deletion_is_saved_first() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    let mut journal = node.journal("killed");
    for number in 0..40 {
        announced(&mut journal, number);
        assert_eq!(journal.begin_deletion(deletion(number + 1)), Some(Vec::new()), "the keep-list is empty");
        journal.cancelled();
        // Readers use the log with the file, whatever the length of either.
        assert_whole(&node.shown()[0], number + 1, false);
    }
    drop(journal);
    assert_whole(&node.saved()[0], 40, false);
}

#[test]
fn other_writers_delay_deletion_by_a_second() {
    for what in ["layersweep", "sqlite"] {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::on(dir.path());
        drop(scan_records::open(&node.place.dir));
        let mut journal = node.journal("locked");
        delete(&mut journal, 0);
        let other = Other::holding(what, &node.place.dir);
        let began = Instant::now();
        delete(&mut journal, 1);
        assert!(began.elapsed() < Duration::from_secs(2), "{what}: {:?}", began.elapsed());
        let began = Instant::now();
        for number in 2..30 {
            delete(&mut journal, number);
        }
        assert!(began.elapsed() < Duration::from_secs(2), "{what}: {:?} for 28", began.elapsed());
        assert_eq!(codes(&journal.take_degraded()), ["locked"], "{what}");
        assert_whole(&node.shown()[0], 30, false);
        drop(other);
        let ended = journal.end(reached());
        assert!(ended.kept && ended.degraded.is_empty() && ended.warnings.is_empty(), "{what}: {ended:?}");
        assert_whole(&node.saved()[0], 30, true);
    }
}

/// The database is not held: another process may write between any two deletions.
#[test]
fn long_run_blocks_no_writer() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    let mut journal = node.journal("long");
    let mut slowest = Duration::ZERO;
    for number in 0..10 {
        let began = Instant::now();
        delete(&mut journal, number);
        slowest = slowest.max(began.elapsed());
        let began = Instant::now();
        let opened = Records::open(&node.place, Access::Write, Duration::ZERO).unwrap();
        assert!(opened.records.is_kept() && opened.degraded.is_empty(), "{:?}", opened.degraded);
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    println!("the slowest deletion was recorded in {slowest:?}");
    assert!(journal.end(reached()).kept);
}

#[test]
fn damaged_database_is_replaced_during_run() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 3] = [
        ("rubbish", |path| std::fs::write(path, b"rubbish ".repeat(9000)).unwrap()),
        ("the middle", |path| {
            let mut content = std::fs::read(path).unwrap();
            let length = content.len();
            content[4096..length].fill(0xa5);
            std::fs::write(path, content).unwrap();
        }),
        ("removed", |path| std::fs::remove_file(path).unwrap()),
    ];
    for (what, damage) in cases {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::on(dir.path());
        let mut journal = node.journal("damaged");
        for number in 0..5 {
            delete(&mut journal, number);
        }
        damage(&node.database());
        for number in 5..9 {
            delete(&mut journal, number);
        }
        let degraded = journal.take_degraded();
        let expected: &[&str] = if what == "removed" { &[] } else { &["corrupt"] };
        assert_eq!(codes(&degraded), expected, "{what}");
        assert!(journal.end(reached()).kept);
        assert_whole(&node.saved()[0], 9, true);
    }
}

#[test]
fn newer_database_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    let mut journal = node.journal("overtaken");
    delete(&mut journal, 0);
    let newer = rusqlite::Connection::open(node.database()).unwrap();
    let version: i64 = newer.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    newer.pragma_update(None, "user_version", version + 1).unwrap();
    drop(newer);
    let before = std::fs::read(node.database()).unwrap();
    delete(&mut journal, 1);
    delete(&mut journal, 2);
    let ended = journal.end(reached());
    assert!(!ended.kept);
    assert_eq!(codes(&ended.degraded), ["newer-schema"]);
    assert!(matches!(&ended.warnings[..], [SaveWarning::Kept(_)]), "{ended:?}");
    assert!(std::fs::read(node.database()).unwrap() == before);
    assert_eq!(node.waiting().len(), 1);
    // The newer version can apply it.
    let newer = rusqlite::Connection::open(node.database()).unwrap();
    newer.pragma_update(None, "user_version", version).unwrap();
    drop(newer);
    assert_whole(&node.saved()[0], 3, true);
}

/// Journals run after run and prints what was saved.
fn journal_for_ever(dir: &Path) {
    // In a database that others write to as well.
    let place = StateDirectory::local(dir);
    let mut out = std::io::stdout();
    let mut say = |line: String| {
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    for round in 0.. {
        let run = format!("{}-{round}", std::process::id());
        let mut journal = journal(&place, &run);
        journal.begin_deletion(deletion(0));
        for number in 0..7 {
            let position = journal.deleted(deletion(number));
            say(format!("saved {run} {} 0\n", position + 1));
            journal.measured(position, measured());
            say(format!("saved {run} {} 1\n", position + 1));
        }
        let ended = journal.end(reached());
        assert!(ended.warnings.iter().all(|warning| matches!(warning, SaveWarning::Kept(_))), "{ended:?}");
        say(format!("saved {run} 7 2\n"));
    }
}

/// Two processes journal at the same time and are killed again and again, some while the database is locked for both.
#[test]
fn saved_records_survive_every_kill() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node { place: StateDirectory::local(dir.path()), _elsewhere: tempfile::tempdir().unwrap() };
    drop(scan_records::open(dir.path()));
    let mut random = u64::from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos()) | 1;
    println!("seed {random}");
    let mut said_so_far = std::collections::BTreeMap::new();
    for kill in 0..16 {
        let holder = (kill % 4 == 3).then(|| Other::holding("layersweep", dir.path()));
        let mut two = [(); 2].map(|()| Other::start("journal", dir.path()));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let locked = if holder.is_some() { 700 } else { 0 };
        std::thread::sleep(Duration::from_millis(60 + locked + random % 200));
        for other in &mut two {
            other.0.kill().unwrap();
        }
        for other in &mut two {
            let mut said = String::new();
            other.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            for line in said.lines() {
                let Some(line) = line.strip_prefix("saved ") else { continue };
                let words: Vec<_> = line.split(' ').collect();
                let [run, deletions, state] = words[..] else { continue };
                let (deletions, state): (usize, u8) = (deletions.parse().unwrap(), state.parse().unwrap());
                said_so_far.insert(run.to_owned(), (deletions, state));
            }
        }
        drop((holder, two));
        let runs = if kill % 2 == 0 { node.saved() } else { node.shown() };
        for (run, (deletions, state)) in &said_so_far {
            let act =
                runs.iter().find(|act| act.start.run_id == *run).unwrap_or_else(|| panic!("{run} is lost"));
            assert!(act.deletions.len() >= *deletions, "{run} at kill {kill}");
            let measured = act.deletions.iter().filter(|deletion| deletion.measured_bytes == Some(5)).count();
            assert!(measured >= deletions - usize::from(*state == 0), "{run} at kill {kill}: {measured}");
            assert!(*state < 2 || act.ended.is_some(), "{run} at kill {kill}");
        }
    }
    let (ended, runs) = (said_so_far.values().filter(|(_, state)| *state == 2).count(), said_so_far.len());
    println!("{runs} runs, {ended} of them ended");
    assert!(runs > 10 && ended < runs, "{runs} runs, {ended} of them ended: that means nothing");
}

fn tries(records: &Records) -> Vec<(String, u32)> {
    let all = records.read(back_offs::load).unwrap();
    let mut all: Vec<_> = all.into_iter().map(|((_, id), attempt)| (id, attempt.failures)).collect();
    all.sort();
    all
}

/// Failed attempts are remembered until the image is deleted, is gone, or is pulled again.
#[test]
fn attempts_are_deleted_with_image() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    let ids: Vec<_> = (0..4).map(|number| image(number, 0).id.to_string()).collect();
    let mut journal = node.journal("one");
    for id in &ids {
        let attempt = BackOff { failures: 1, next_try: at(400), last_error: "in use".into() };
        let refused = DeletionRow { id: id.clone(), error: Some("in use".into()), ..deletion(100) };
        journal.failed(refused, Some(attempt));
    }
    assert!(journal.end(RunEnd::of(at(200), OutcomeKind::Failed)).kept);
    let mut records = scan_records::open(&node.place.dir);
    let known = records.read(back_offs::load).unwrap();
    assert_eq!(known[&(store_key(), ids[2].clone())].last_error, "in use");
    let runs = list(&records);
    assert_eq!(runs[0].deletions[1].error.as_deref(), Some("in use"));

    // The store is unknown yet, and a scan that waited since before the run is not late.
    let mut seen = scan_at(50);
    seen.images = (0..4).map(|number| image(number, 0)).collect();
    record_fresh(&mut records, seen);
    assert_eq!(tries(&records).len(), 4);
    // An incomplete listing proves nothing; with a complete one, one image is gone, and one was pulled again.
    let mut seen = scan_at(250);
    seen.stores[0].consistency = Consistency::WriterActive;
    record_fresh(&mut records, seen);
    assert_eq!(tries(&records).len(), 4);
    let mut seen = scan_at(300);
    seen.images = vec![image(0, 0), image(1, 270), image(2, 0)];
    record_fresh(&mut records, seen);
    let mut expected = [(ids[0].clone(), 1), (ids[2].clone(), 1)];
    expected.sort();
    assert_eq!(tries(&records), expected);
    drop(records);
    let mut journal = node.journal("two");
    let again = BackOff { failures: 2, next_try: at(2000), last_error: "in use".into() };
    let refused = DeletionRow { id: ids[0].clone(), error: Some("in use".into()), ..deletion(400) };
    journal.failed(refused, Some(again));
    journal.deleted(DeletionRow { id: ids[2].clone(), ..deletion(401) });
    assert!(journal.end(RunEnd::of(at(500), OutcomeKind::Reached)).kept);
    let mut records = scan_records::open(&node.place.dir);
    assert_eq!(tries(&records), [(ids[0].clone(), 2)]);
    // No deletion was tried for months.
    let mut seen = scan_at(86_400 * 40);
    seen.images = vec![image(0, 0)];
    record_fresh(&mut records, seen);
    assert_eq!(tries(&records), []);
}
