use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::*;
use crate::history::back_offs;
use crate::history::db::tests::kept;
use crate::history::run_record::put;
use crate::history::runs::tests::change;
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
        others_wrote: false,
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
    let error =
        RunError { id: "x".into(), step: "remove".into(), message: "no".into(), ..RunError::default() };
    RunEnd {
        usage: vec![change(Some(69.5))],
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

/// An event in the run of a test.
#[derive(Clone, Copy, Debug)]
enum Step {
    Deleted,
    /// The result of the last successful deletion is measured.
    Measured,
    Failed,
    Event,
}

fn steps() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![4 => Just(Deleted), 4 => Just(Measured), 2 => Just(Failed), 1 => Just(Event)]
}

impl Step {
    /// Records the step; returns `false` if there was nothing to record.
    fn apply(self, journal: &mut Journal) -> bool {
        let number = journal.record.entries.len();
        match self {
            Self::Deleted => {
                assert_eq!(journal.deleted(deletion(number)), number);
            }
            Self::Measured => {
                let last = journal.record.entries.iter().rposition(|entry| entry.deletion.error.is_none());
                let Some(last) = last else { return false };
                let measured = Measured {
                    bytes: Some(77),
                    byproduct_bytes: 5,
                    others_wrote: false,
                    usage_after_percent: Some(74.5),
                };
                journal.measured(last, measured);
            }
            Self::Failed => {
                let failed = DeletionRow { error: Some("in use".into()), ..deletion(number) };
                journal.failed(failed, Some(back_off(number)));
            }
            Self::Event => {
                let event = Event { reason: "FreeDiskSpaceFailed".into(), message: "too little".into() };
                journal.event(event);
            }
        }
        true
    }
}

/// All rows that a run leaves in the database.
fn rows(connection: &Connection) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut all = Vec::new();
    for table in ["runs", "deletions", "attempts", "usage", "counters"] {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect())?;
        all.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(all)
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    // An image whose deletion failed before.
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

/// A journal without a place to write to.
fn nowhere() -> Journal {
    let mut directory = StateDirectory::local(std::path::Path::new("/nonexistent"));
    directory.foreign = true;
    Journal::begin(&directory, start())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The rows depend only on the last state, whatever earlier states were written before it, from memory or from
    /// JSON, repeatedly or in another order.
    #[test]
    fn only_the_last_state_counts(
        steps in proptest::collection::vec(steps(), 0..30),
        puts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ended in any::<bool>(),
        last_put in any::<prop::sample::Index>(),
    ) {
        let mut journal = nowhere();
        let mut states = vec![journal.record.clone()];
        for step in steps {
            step.apply(&mut journal);
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
        // The last state may be followed by earlier ones, as when the process was killed before it removed its file.
        sequence.insert(last_put.index(sequence.len() + 1), last.clone());
        prop_assert_eq!(rows_of(&sequence), expected);
    }

}

proptest! {
    // Each case opens a database dozens of times.
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The database and the directory of the queue fail and recover at random, the run ends or is killed, and the next
    /// command saves the queue: every entry that could be written somewhere is in the database.
    #[test]
    fn killed_run_loses_no_saved_entry(
        steps in proptest::collection::vec((steps(), any::<bool>(), any::<bool>()), 1..12),
        ends in any::<Option<bool>>(),
    ) {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let directory = StateDirectory::local(dir.path());
        let mut journal = Journal::begin(&directory, start());
        let nowhere = StateDirectory { pending: None, ..directory.clone() };
        journal.queue = Queue::of(&nowhere);
        let (mut saved, mut waits) = (None, false);
        for (step, database, file) in steps {
            journal.directory.unresolved =
                (!database).then(|| (std::io::ErrorKind::PermissionDenied, "not now".into()));
            journal.queue = Queue::of(if file { &directory } else { &nowhere });
            journal.waits = false;
            if step.apply(&mut journal) && (database || file) {
                // A queue file that cannot be reached stays, and is applied again later.
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

/// Saves the queue, as the next command does. Returns the number of saved runs, and the warnings.
fn catch_up(records: &mut Records, directory: &StateDirectory) -> (usize, Vec<SaveWarning>) {
    let mut warnings = Vec::new();
    let ((), saved) =
        save_with_waiting(records, &Queue::of(directory), (&mut Vec::new(), &mut warnings), |_| Ok(()))
            .unwrap();
    (saved, warnings)
}

/// A long run during which the database cannot be written.
#[test]
fn unsaved_run_uses_one_file_and_one_attempt() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let directory = StateDirectory::local(dir.path());
    let mut journal = Journal::begin(&directory, start());
    journal.directory.unresolved = Some((std::io::ErrorKind::PermissionDenied, "not now".into()));
    for number in 0..200 {
        let position = journal.deleted(deletion(number));
        journal.measured(position, Measured { bytes: Some(5), ..Measured::default() });
    }
    assert_eq!(journal.take_degraded().len(), 1, "reported once");
    let files: Vec<_> =
        std::fs::read_dir(directory.pending.as_ref().unwrap()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1);
    drop(journal);
    let mut records = kept(dir.path());
    assert_eq!(catch_up(&mut records, &directory), (1, vec![]));
    let (runs, _) = records.read(|from| runs::list(from, &runs::Query::default())).unwrap();
    assert_eq!(runs[0].deletions.len(), 200);
    assert_eq!(runs[0].measured_bytes, Some(1000), "a killed run has the sum of its deletions");
}

#[test]
fn run_without_work_writes_once_and_is_quiet() {
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
fn run_is_killed_once_another_has_begun() {
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    let mut journal = Journal::begin(&directory, start());
    journal.begin_deletion(deletion(0));
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
fn last_failed_follows_the_latest_run() {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    let tx = connection.transaction().unwrap();
    assert!(!runs::last_failed(&tx, Command::Gc).unwrap(), "there is no run");
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
        assert_eq!(runs::last_failed(&tx, Command::Gc).unwrap(), expected, "after number {number}");
    }
    // A run that is saved late is not the last one.
    let mut late = RunRecord::of(Start::of(Command::Gc, at(5)));
    late.end = Some(RunEnd::of(at(6), OutcomeKind::Failed));
    put(&tx, &late).unwrap();
    assert!(!runs::last_failed(&tx, Command::Gc).unwrap());
}

fn outcomes(dir: &std::path::Path) -> Vec<(String, runs::Certainty, bool)> {
    let records = Records::open(&StateDirectory::local(dir), Access::Read, SHORT).unwrap().records;
    let (runs, _) =
        records.read(|from| runs::list(from, &runs::Query { quiet: true, ..Default::default() })).unwrap();
    let deletions = runs.into_iter().flat_map(|run| run.deletions);
    deletions.map(|deletion| (deletion.id, deletion.certainty, deletion.error.is_none())).collect()
}

#[test]
fn started_deletion_is_unknown_until_confirmed() {
    use runs::{Certainty, Confirmation};
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    let mut journal = Journal::begin(&directory, start());
    journal.begin_deletion(deletion(0));
    assert_eq!(outcomes(dir.path()), [(id_of(0), Certainty::Unknown, false)]);
    journal.deleted(deletion(0));
    journal.begin_deletion(deletion(1));
    journal.cancelled();
    assert_eq!(outcomes(dir.path()), [(id_of(0), Certainty::Seen, true)]);
    journal.begin_deletion(deletion(2));
    journal.failed(DeletionRow { error: Some("busy".into()), ..deletion(2) }, None);
    for number in [3, 4, 5] {
        journal.begin_deletion(deletion(number));
        journal.unproven("it did not answer");
    }
    journal.begin_deletion(deletion(6));
    drop(journal);
    let so_far = [(id_of(0), Certainty::Seen, true), (id_of(2), Certainty::Seen, false)];
    let unknown = [3, 4, 5, 6].map(|number| (id_of(number), Certainty::Unknown, false));
    assert_eq!(outcomes(dir.path()), [&so_far[..], &unknown].concat());
    let count = |name: &str| -> i64 {
        let connection = Connection::open(dir.path().join(DATABASE)).unwrap();
        let sum = "SELECT coalesce(sum(value), 0) FROM counters WHERE name = ?1";
        connection.query_row(sum, [name], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("deletions"), count("failures")), (1, 1));
    // While the run may still be in progress, its deletions are not examined.
    let confirm = |time: Timestamp, idle: bool| {
        let state = |deletion: &DeletionRow| match &deletion.id {
            id if *id == id_of(3) || *id == id_of(6) => Some(Confirmation::Gone),
            id if *id == id_of(4) => Some(Confirmation::There),
            _ => None,
        };
        kept(dir.path()).write(|tx| runs::confirm(tx, time, || idle, state)).unwrap()
    };
    assert_eq!(confirm(at(100), false), 0);
    assert_eq!(confirm(at(3), true), 0, "an earlier scan confirms nothing");
    assert_eq!(confirm(at(6), true), 2);
    let [_, _, unknown_5, unknown_6] = unknown;
    let confirmed = [(id_of(3), Certainty::Confirmed, true), (id_of(4), Certainty::Confirmed, false)];
    assert_eq!(
        outcomes(dir.path()),
        [&so_far[..], &confirmed, &[unknown_5, unknown_6]].concat(),
        "the last deletion was started while the scan ran"
    );
    assert_eq!((count("deletions"), count("failures")), (2, 2));
}

fn id_of(number: usize) -> String {
    deletion(number).id
}

/// Deletions that are announced together: all are saved before the first starts, and each counts once.
#[test]
fn announced_deletions_are_saved_at_once() {
    use runs::{Certainty, Confirmation};
    let leak = |number| DeletionRow { kind: TargetKind::Leak, ..deletion(number) };
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::begin(&StateDirectory::local(dir.path()), start());
    journal.announce((0..5).map(leak).collect());
    let unknown = |number| (id_of(number), Certainty::Unknown, false);
    assert_eq!(outcomes(dir.path()), [0, 1, 2, 3, 4].map(unknown));
    journal.begin_deletion(leak(0));
    journal.deleted(leak(0));
    // Not in the order in which they were announced.
    journal.begin_deletion(leak(2));
    journal.cancelled();
    journal.withdraw(&leak(3));
    journal.begin_deletion(leak(1));
    let seen = (id_of(0), Certainty::Seen, true);
    assert_eq!(outcomes(dir.path()), [seen.clone(), unknown(1), unknown(4)]);
    drop(journal);
    // The next scan still finds one of them.
    let state =
        |row: &DeletionRow| Some(if row.id == id_of(4) { Confirmation::There } else { Confirmation::Gone });
    kept(dir.path()).write(|tx| runs::confirm(tx, at(100), || true, state)).unwrap();
    assert_eq!(outcomes(dir.path()), [seen, (id_of(1), Certainty::Confirmed, true)]);
}

/// A deletion that several runs started counts once.
#[test]
fn deletion_finished_by_a_later_run_counts_once() {
    use runs::{Certainty, Confirmation};
    let dir = tempfile::tempdir().unwrap();
    let directory = StateDirectory::local(dir.path());
    for (run, is_last) in [("first", false), ("second", false), ("third", true)] {
        let mut journal = Journal::begin(&directory, Start { run_id: run.into(), ..start() });
        journal.begin_deletion(deletion(0));
        if is_last {
            journal.deleted(deletion(0));
        } else {
            journal.unproven("no room came");
        }
        assert!(journal.end(end()).kept);
    }
    let confirm = |tx: &rusqlite::Transaction<'_>| {
        runs::confirm(tx, at(9), || true, |_: &DeletionRow| Some(Confirmation::Gone))
    };
    assert_eq!(kept(dir.path()).write(confirm).unwrap(), 2);
    let (id, first) = (deletion(0).id, Certainty::Confirmed);
    let before = [(id.clone(), first, false), (id.clone(), first, false)];
    let mut all = outcomes(dir.path());
    all.sort_by_key(|deletion| deletion.2);
    assert_eq!(all, [&before[..], &[(id, Certainty::Seen, true)]].concat());
}
