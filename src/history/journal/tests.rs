use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::*;
use crate::history::back_offs;
use crate::history::db::tests::kept;
use crate::history::run_record::put;
use crate::history::runs::{self, Command, OutcomeKind, Reason, RunError, TargetKind};
use crate::history::save::apply_waiting;
use crate::history::{Access, schema};
use crate::model::{Filesystem, StoreId, StoreKind};

fn at(seconds: usize) -> Timestamp {
    let begin: Timestamp = "2026-11-21T13:00:00Z".parse().unwrap();
    begin + SignedDuration::from_secs(i64::try_from(seconds).unwrap())
}

fn store() -> StoreId {
    let root = std::ffi::OsString::from("/var/lib/containers/100% storage");
    StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into())
}

fn deletion(number: usize) -> DeletionRow {
    DeletionRow {
        at: at(number),
        kind: TargetKind::Image,
        store: Some(store()),
        id: format!("image {number}"),
        names: vec![format!("quay.io/a/\"b\":{number}")],
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: 1 << 20,
        measured_bytes: None,
        byproduct_bytes: 0,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    }
}

fn back_off(number: usize) -> BackOff {
    BackOff { failures: 2, next_try: at(number + 600), last_error: "in use by \u{1b}".into() }
}

fn start() -> Start {
    Start { run_id: "the run".into(), policy: Some("exact".into()), ..Start::of(Command::Gc, at(0)) }
}

fn end() -> RunEnd {
    let error = RunError { id: "x".into(), step: "remove".into(), message: "no".into() };
    RunEnd {
        usage_after_percent: Some(69.5),
        measured_bytes: Some(-5),
        errors: vec![error],
        filesystems: vec![Filesystem {
            mount: "/var".into(),
            device: "/dev/vda4".into(),
            fstype: "xfs".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 1 << 29,
            available_bytes: 1 << 29,
            inodes: 1000,
            inodes_free: 900,
        }],
        ..RunEnd::of(at(9000), OutcomeKind::NotReached)
    }
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Gone,
    /// What was measured of the deletion before, if it went.
    Measured,
    Refused,
    Event,
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::*;
    prop_oneof![4 => Just(Gone), 4 => Just(Measured), 2 => Just(Refused), 1 => Just(Event)]
}

impl Happens {
    /// Whether it was to be saved.
    fn to(self, journal: &mut Journal) -> bool {
        let number = journal.record.entries.len();
        match self {
            Self::Gone => {
                assert_eq!(journal.gone(deletion(number)), number);
            }
            Self::Measured => {
                let last = journal.record.entries.iter().rposition(|entry| entry.deletion.error.is_none());
                let Some(last) = last else { return false };
                journal.measured(last, Some(77), 5, Some(74.5));
            }
            Self::Refused => {
                let refused = DeletionRow { error: Some("in use".into()), ..deletion(number) };
                journal.failed(refused, Some(back_off(number)));
            }
            Self::Event => {
                let event = Event { reason: "FreeDiskSpaceFailed".into(), message: "too little".into() };
                journal.event(event);
            }
        }
        true
    }
}

/// All that a run leaves in the database.
fn rows(connection: &Connection) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut all = Vec::new();
    for table in ["runs", "deletions", "attempts", "usage", "counters"] {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect())?;
        all.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(all)
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    // One that would not go before, and goes now.
    let tx = connection.transaction().unwrap();
    back_offs::set(&tx, &store(), "image 0", at(0), &back_off(0)).unwrap();
    back_offs::set(&tx, &store(), "image of others", at(0), &back_off(0)).unwrap();
    tx.commit().unwrap();
    connection
}

fn rows_of(states: &[RunRecord]) -> Vec<Vec<Value>> {
    let mut connection = database();
    for state in states {
        let tx = connection.transaction().unwrap();
        put(&tx, state).unwrap();
        tx.commit().unwrap();
    }
    rows(&connection).unwrap()
}

/// A journal that can write nowhere.
fn nowhere() -> Journal {
    let mut directory = StateDirectory::local(std::path::Path::new("/nonexistent"));
    directory.foreign = true;
    Journal::begin(&directory, start())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever states were put before, as JSON from a file or not, twice or in another order: the
    /// rows are those of the last state.
    #[test]
    fn only_the_last_state_counts(
        story in proptest::collection::vec(happens(), 0..30),
        puts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ended in any::<bool>(),
        last_put in any::<prop::sample::Index>(),
    ) {
        let mut journal = nowhere();
        let mut states = vec![journal.record.clone()];
        for happens in story {
            happens.to(&mut journal);
            states.push(journal.record.clone());
        }
        if ended {
            journal.record.end = Some(end());
            states.push(journal.record.clone());
        }
        let last = states.last().unwrap();
        let expected = rows_of(std::slice::from_ref(last));
        let mut sequence: Vec<_> = puts
            .iter()
            .map(|state| {
                let state = state.get(&states);
                serde_json::from_slice::<RunRecord>(&serde_json::to_vec(state).unwrap()).unwrap()
            })
            .collect();
        // Killed after it was put, or not: a later state never comes before it.
        sequence.insert(last_put.index(sequence.len() + 1), last.clone());
        prop_assert_eq!(rows_of(&sequence), expected);
    }

}

proptest! {
    // Each opens a database dozens of times.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The database and the directory for what waits fail and recover at random, the run is killed or ends, and
    /// the next command saves what waits: nothing is missing that could be written anywhere.
    #[test]
    fn killed_anywhere_nothing_is_lost_that_had_a_place(
        story in proptest::collection::vec((happens(), any::<bool>(), any::<bool>()), 1..12),
        ends in any::<Option<bool>>(),
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let directory = StateDirectory::local(dir.path());
        let mut journal = Journal::begin(&directory, start());
        let nowhere = StateDirectory { pending: None, ..directory.clone() };
        journal.queue = Queue::of(&nowhere);
        let (mut saved, mut waits) = (None, false);
        for (happens, database, file) in story {
            journal.directory.unresolved =
                (!database).then(|| (std::io::ErrorKind::PermissionDenied, "not now".into()));
            journal.queue = Queue::of(if file { &directory } else { &nowhere });
            journal.waits = false;
            if happens.to(&mut journal) && (database || file) {
                // A file that cannot be reached stays, and is applied once more.
                (saved, waits) = (Some(journal.record.clone()), if database && !file { waits } else { !database });
            }
        }
        if let Some(database) = ends {
            journal.directory.unresolved =
                (!database).then(|| (std::io::ErrorKind::PermissionDenied, "not now".into()));
            journal.queue = Queue::of(&directory);
            journal.record.end = Some(end());
            let record = journal.record.clone();
            let ended = journal.end(end());
            prop_assert_eq!(ended.kept, database);
            let kept = ended.warnings.iter().all(|warning| matches!(warning, SaveWarning::Kept(_)));
            prop_assert!(kept);
            prop_assert_eq!(ended.warnings.is_empty(), database);
            (saved, waits) = (Some(record), !database);
        } else {
            drop(journal);
        }
        let expected = saved.map(|saved| {
            let mut connection = Connection::open_in_memory().unwrap();
            schema::fill(&mut connection).unwrap();
            let tx = connection.transaction().unwrap();
            put(&tx, &saved).unwrap();
            tx.commit().unwrap();
            rows(&connection).unwrap()
        });
        let expected = expected.unwrap_or_default();

        let mut copy = Records::open(&directory, Access::Read, SHORT).unwrap().records;
        let (ids, warnings) = apply_waiting(&mut copy, &Queue::of(&directory)).unwrap();
        prop_assert_eq!(warnings, []);
        prop_assert_eq!(ids.contains("the run"), waits);
        prop_assert_eq!(&copy.read(rows).unwrap(), &expected, "a reader sees it");

        let mut records = kept(dir.path());
        for _ in 0..2 {
            prop_assert_eq!(catch_up(&mut records, &directory).1, []);
            prop_assert_eq!(&records.read(rows).unwrap(), &expected, "and the next run saves it");
        }
        let left = std::fs::read_dir(directory.pending.as_ref().unwrap()).map_or(0, Iterator::count);
        prop_assert_eq!(left, 0, "no file is left");
    }
}

/// Saves what waits, as the next command does; how many, and what there is to warn of.
fn catch_up(records: &mut Records, directory: &StateDirectory) -> (usize, Vec<SaveWarning>) {
    let mut warnings = Vec::new();
    let ((), saved) =
        save_with_waiting(records, &Queue::of(directory), (&mut Vec::new(), &mut warnings), |_| Ok(()))
            .unwrap();
    (saved, warnings)
}

/// A long run while nothing can be written to the database.
#[test]
fn a_run_that_waits_is_one_file_and_tries_the_database_once() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let directory = StateDirectory::local(dir.path());
    let mut journal = Journal::begin(&directory, start());
    journal.directory.unresolved = Some((std::io::ErrorKind::PermissionDenied, "not now".into()));
    for number in 0..200 {
        let position = journal.gone(deletion(number));
        journal.measured(position, Some(5), 0, None);
    }
    assert_eq!(journal.take_degraded().len(), 1, "said once");
    let files: Vec<_> =
        std::fs::read_dir(directory.pending.as_ref().unwrap()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1);
    drop(journal);
    let mut records = kept(dir.path());
    assert_eq!(catch_up(&mut records, &directory), (1, vec![]));
    let (runs, _) = records.read(|from| runs::list(from, &runs::Query::default())).unwrap();
    assert_eq!(runs[0].deletions.len(), 200);
    assert_eq!(runs[0].measured_bytes, Some(1000), "of a run that was killed, what its deletions gave");
}

#[test]
fn a_run_with_nothing_to_do_writes_once_and_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(&dir.path().join("state"));
    let journal = Journal::begin(&directory, start());
    assert!(!directory.dir.exists(), "nothing so far");
    let ended = journal.end(RunEnd::of(at(1), OutcomeKind::NotNeeded));
    assert_eq!(ended, JournalEnd { kept: true, degraded: vec![], warnings: vec![] });
    let records = Records::open(&directory, Access::Read, SHORT).unwrap().records;
    let (runs, _) = records.read(|from| runs::list(from, &runs::Query::default())).unwrap();
    assert_eq!(runs, []);
    assert_eq!(records.read(|from| runs::quiet(from, None)).unwrap().other_runs, 1);
}

#[test]
fn the_run_is_there_while_the_first_deletion_is_under_way_and_killed_once_another_came() {
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    let mut journal = Journal::begin(&directory, start());
    journal.begins(deletion(0));
    let shown = || {
        let records = Records::open(&StateDirectory::local(dir.path()), Access::Read, SHORT).unwrap().records;
        let (runs, _) = records
            .read(|from| runs::list(from, &runs::Query { quiet: true, ..Default::default() }))
            .unwrap();
        runs.into_iter().map(|run| (run.start.command, run.ended.is_some(), run.killed)).collect::<Vec<_>>()
    };
    assert_eq!(shown(), [(Command::Gc, false, false)]);
    let scan = Journal::begin(&directory, Start::of(Command::Scan, at(60)));
    assert!(scan.end(RunEnd::of(at(61), OutcomeKind::Done)).kept);
    assert_eq!(shown()[1], (Command::Gc, false, false), "a scan may run beside it");
    let next = Journal::begin(&directory, Start::of(Command::Rm, at(120)));
    assert!(next.end(RunEnd::of(at(121), OutcomeKind::NotNeeded)).kept);
    assert_eq!(shown()[2], (Command::Gc, false, true));
}

#[test]
fn which_runs_failed() {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    let tx = connection.transaction().unwrap();
    let failed = || runs::last_failed(&tx, Command::Gc).unwrap();
    assert!(!failed(), "there was none");
    let cases = [
        (Command::Gc, Some(OutcomeKind::Failed), true),
        (Command::Gc, Some(OutcomeKind::NotNeeded), false),
        (Command::Gc, Some(OutcomeKind::NotReached), true),
        (Command::Rm, Some(OutcomeKind::Done), true),
        (Command::Gc, None, true),
        (Command::Gc, Some(OutcomeKind::Reached), false),
        (Command::Rm, Some(OutcomeKind::Failed), false),
        (Command::Gc, None, false),
        (Command::Gc, Some(OutcomeKind::Refused), true),
        (Command::Gc, Some(OutcomeKind::Done), false),
    ];
    for (number, (command, outcome, expected)) in cases.into_iter().enumerate() {
        let mut record = RunRecord::of(Start::of(command, at(10 * number)));
        record.end = outcome.map(|outcome| RunEnd::of(at(10 * number + 1), outcome));
        put(&tx, &record).unwrap();
        assert_eq!(failed(), expected, "after number {number}");
    }
    // A run that waited comes late, but was not the last.
    let mut late = RunRecord::of(Start::of(Command::Gc, at(5)));
    late.end = Some(RunEnd::of(at(6), OutcomeKind::Failed));
    put(&tx, &late).unwrap();
    assert!(!failed());
}

fn outcomes(dir: &std::path::Path) -> Vec<(String, runs::Certainty, bool)> {
    let records = Records::open(&StateDirectory::local(dir), Access::Read, SHORT).unwrap().records;
    let (runs, _) =
        records.read(|from| runs::list(from, &runs::Query { quiet: true, ..Default::default() })).unwrap();
    let deletions = runs.into_iter().flat_map(|run| run.deletions);
    deletions.map(|one| (one.id, one.certainty, one.error.is_none())).collect()
}

#[test]
fn what_was_begun_is_unknown_until_somebody_says_what_came_of_it() {
    use runs::{Certainty, Confirmation};
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    let id = |number: usize| deletion(number).id;
    let mut journal = Journal::begin(&directory, start());
    journal.begins(deletion(0));
    assert_eq!(outcomes(dir.path()), [(id(0), Certainty::Unknown, false)]);
    journal.gone(deletion(0));
    journal.begins(deletion(1));
    journal.spared();
    assert_eq!(outcomes(dir.path()), [(id(0), Certainty::Seen, true)]);
    journal.begins(deletion(2));
    journal.failed(DeletionRow { error: Some("busy".into()), ..deletion(2) }, None);
    for number in [3, 4, 5] {
        journal.begins(deletion(number));
        journal.unproven("it did not answer");
    }
    journal.begins(deletion(6));
    drop(journal);
    let unknown = |number| (id(number), Certainty::Unknown, false);
    let so_far = [(id(0), Certainty::Seen, true), (id(2), Certainty::Seen, false)];
    let all = |rest: [_; 4]| [&so_far[..], &rest].concat();
    assert_eq!(outcomes(dir.path()), all([unknown(3), unknown(4), unknown(5), unknown(6)]));
    let counted = |name: &str| -> i64 {
        let connection = Connection::open(dir.path().join(DATABASE)).unwrap();
        let sum = "SELECT coalesce(sum(value), 0) FROM counters WHERE name = ?1";
        connection.query_row(sum, [name], |row| row.get(0)).unwrap()
    };
    assert_eq!((counted("deletions"), counted("failures")), (1, 1));
    // The run may be under way: only what is certain to be over is looked at.
    let confirm = |at: Timestamp, idle: bool| {
        let mut records = kept(dir.path());
        let fate = |one: &DeletionRow| match one.id {
            ref one if *one == id(3) => Some(Confirmation::Gone),
            ref one if *one == id(4) => Some(Confirmation::There),
            ref one if *one == id(6) => Some(Confirmation::Gone),
            _ => None,
        };
        records.write(|tx| runs::confirm(tx, at, || idle, fate)).unwrap()
    };
    assert_eq!(confirm(at(100), false), 0);
    assert_eq!(confirm(at(3), true), 0, "a scan from before tells nothing");
    assert_eq!(confirm(at(6), true), 2);
    let confirmed = |number, gone| (id(number), Certainty::Confirmed, gone);
    assert_eq!(
        outcomes(dir.path()),
        all([confirmed(3, true), confirmed(4, false), unknown(5), unknown(6)]),
        "the last was begun when the scan ran"
    );
    assert_eq!((counted("deletions"), counted("failures")), (2, 2));
}

/// Begun by one run and deleted by a later one, it is one deletion.
#[test]
fn what_a_later_run_has_deleted_counts_once() {
    use runs::{Certainty, Confirmation};
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    for (run, is_last) in [("first", false), ("second", false), ("third", true)] {
        let mut journal = Journal::begin(&directory, Start { run_id: run.into(), ..start() });
        journal.begins(deletion(0));
        match is_last {
            true => drop(journal.gone(deletion(0))),
            false => journal.unproven("no room came"),
        }
        assert!(journal.end(end()).kept);
    }
    let gone = |_: &DeletionRow| Some(Confirmation::Gone);
    assert_eq!(kept(dir.path()).write(|tx| runs::confirm(tx, at(9), || true, gone)).unwrap(), 2);
    let (id, first) = (deletion(0).id, Certainty::Confirmed);
    let before = [(id.clone(), first, false), (id.clone(), first, false)];
    let mut all = outcomes(dir.path());
    all.sort_by_key(|one| one.2);
    assert_eq!(all, [&before[..], &[(id, Certainty::Seen, true)]].concat());
}
