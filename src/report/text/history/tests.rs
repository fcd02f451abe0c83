use jiff::tz::TimeZone;

use super::*;
use crate::app::history::{HistoryOrigin, PastRuns};
use crate::history::runs::{
    Certainty, Command, DeletionRow, Event, OutcomeKind, Quiet, Reason, RunError, RunRow, Start, TargetKind,
};
use crate::model::space::Started;
use crate::model::{StoreId, StoreKind};
use crate::report::json;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn row() -> RunRow {
    fn deletion(
        id: &str,
        predicted_bytes: u64,
        measured_bytes: Option<i64>,
        error: Option<&str>,
    ) -> DeletionRow {
        DeletionRow {
            at: time("2026-11-21T13:00:05Z"),
            kind: TargetKind::Image,
            store: None,
            id: id.into(),
            names: vec![],
            layers: Vec::new(),
            reason: Reason::Age,
            predicted_bytes,
            measured_bytes,
            byproduct_bytes: 0,
            others_wrote: false,
            usage_after_percent: Some(79.04),
            error: error.map(str::to_owned),
            certainty: Certainty::Seen,
        }
    }
    RunRow {
        start: Start {
            run_id: "r-12".into(),
            via: Some("direct".into()),
            trigger_space: true,
            trigger_age: true,
            usage: vec![change("/var", [80.5, 79.04], Some(-1024))],
            wanted_bytes: Some(5 << 30),
            ..Start::of(Command::Gc, time("2026-11-21T13:00:00Z"))
        },
        ended: Some(time("2026-11-21T13:01:05Z")),
        outcome: Some(OutcomeKind::NotReached),
        measured_bytes: Some(-1024),
        byproduct_bytes: 0,
        errors: vec![],
        events: vec![],
        killed: false,
        runs: 1,
        quiet: false,
        deletions: vec![
            deletion("aaaaaaaaaaaaaaaa", 1 << 20, Some(1 << 20), None),
            deletion("bbbbbbbbbbbbbbbb", 1 << 30, Some(-4096), None),
            deletion("cccccccccccccccc", 1 << 30, None, Some("in use")),
        ],
    }
}

fn change(mount: &str, [before, after]: [f64; 2], measured_bytes: Option<i64>) -> UsageChange {
    UsageChange {
        mount: mount.into(),
        started: Started::default(),
        usage_before_percent: Some(before),
        usage_after_percent: Some(after),
        measured_bytes,
    }
}

fn shown(runs: Vec<RunRow>, quiet: &Quiet, width: Option<usize>, unicode: bool) -> String {
    let origin = HistoryOrigin {
        database: Some("/db".into()),
        complete: true,
        since: None,
        unsaved: ["waits".to_owned()].into(),
    };
    let past = PastRuns { origin, runs, more: false, quiet: *quiet };
    let screen =
        Screen { width, unicode, truncates: true, notes: true, zone: TimeZone::fixed(jiff::tz::offset(1)) };
    anstream::adapter::strip_str(&history(&json::history(time("2026-11-21T14:00:00Z"), past), &screen))
        .to_string()
}

#[test]
fn events_and_unsaved_runs_are_shown() {
    fn event(reason: &str, message: &str) -> Event {
        Event { reason: reason.into(), message: message.into() }
    }
    let run = RunRow {
        start: Start { run_id: "waits".into(), policy: Some("exact".into()), ..row().start },
        byproduct_bytes: 4096,
        events: vec![event("FreeDiskSpaceFailed", "wanted 5 GiB"), event("ImageGCFailed", "\u{1b}[31m")],
        deletions: vec![],
        ..row()
    };
    let killed = RunRow {
        start: Start {
            trigger_age: false,
            trigger_space: false,
            usage: vec![UsageChange {
                usage_after_percent: None,
                measured_bytes: None,
                ..change("/var", [80.5, 0.0], None)
            }],
            wanted_bytes: None,
            ..row().start
        },
        ended: None,
        outcome: None,
        killed: true,
        deletions: vec![],
        ..row()
    };
    let running = RunRow { killed: false, ..killed.clone() };
    let expected = "\
2026-11-21 14:00:00 gc (direct): low threshold not reached in 1m05s, space and age, /var 80.5% -> 79.0% used; wanted 5.0 GiB, freed -1.0 KiB, other leaks freed 4.0 KiB; run waits
  2026-11-21 14:00:00  not in the database yet: the next run that can write saves it; run waits
  2026-11-21 14:00:00  FreeDiskSpaceFailed: wanted 5 GiB; run waits
  2026-11-21 14:00:00  ImageGCFailed: \\u{1b}[31m; run waits
2026-11-21 14:00:00 gc (direct): killed, /var 80.5% used; freed -1.0 KiB; run r-12
2026-11-21 14:00:00 gc (direct): not ended (still running, or killed), /var 80.5% used; freed -1.0 KiB; run r-12
Times are in +01; ids of runs and scans begin with their time in UTC.
";
    assert_eq!(shown(vec![run, killed, running], &Quiet::default(), None, false), expected);
}

#[test]
fn each_disk_of_a_run_is_shown() {
    fn short(change: UsageChange) -> UsageChange {
        UsageChange { started: Started { used: true, ..Started::default() }, ..change }
    }
    let usage = vec![
        change("/", [40.0, 40.1], Some(0)),
        change("/var", [80.5, 69.0], Some(7 << 30)),
        short(change("/data", [92.0, 92.0], Some(0))),
    ];
    fn of_disks(usage: Vec<UsageChange>) -> String {
        let run = RunRow { start: Start { usage, ..row().start }, deletions: vec![], ..row() };
        shown(vec![run], &Quiet::default(), None, true)
    }
    let text = of_disks(usage.clone());
    assert!(text.contains("age, /var 80.5% → 69.0%, /data 92.0% → 92.0% used; wanted"), "{text}");
    let text = of_disks(usage[..1].to_vec());
    assert!(text.contains("age, / 40.0% → 40.1% used; wanted"), "{text}");
    assert!(!of_disks(vec![]).contains(" used;"));
}

#[test]
fn spoiled_measurement_is_unknown() {
    let mut run = row();
    run.deletions.truncate(1);
    run.deletions[0].others_wrote = true;
    let text = shown(vec![run], &Quiet::default(), None, false);
    assert!(text.contains("freed unknown (others were writing); run r-12"), "{text}");
    assert!(text.contains("1.0 MiB  others were writing  79.0%"), "{text}");
}

#[test]
fn deletions_are_listed_below_their_run() {
    let expected = "\
2026-11-21 14:00:00 gc (direct): low threshold not reached in 1m05s, space and age, /var 80.5% -> 79.0% used; wanted 5.0 GiB, freed -1.0 KiB; run r-12
  TIME                 KIND   OBJECT        REASON  PREDICTED  MEASURED   USED  RUN
  2026-11-21 14:00:05  image  aaaaaaaaaaaa  age       1.0 MiB   1.0 MiB  79.0%  r-12
  2026-11-21 14:00:05  image  bbbbbbbbbbbb  age       1.0 GiB  -4.0 KiB  79.0%  r-12  !
  2026-11-21 14:00:05  image  cccccccccccc  age       1.0 GiB         -  79.0%  r-12
  2026-11-21 14:00:05  failed: cccccccccccc: in use; run r-12
! predicted and measured differ by more than the filesystem's own fluctuation
Times are in +01; ids of runs and scans begin with their time in UTC.
";
    assert_eq!(shown(vec![row()], &Quiet::default(), None, false), expected);
    let narrow = shown(vec![row()], &Quiet::default(), Some(72), true);
    let first: Vec<_> = narrow.lines().take(5).collect();
    let expected = [
        "2026-11-21 14:00:00 gc (direct): low threshold not reached in 1m05s,",
        "                    space and age, /var 80.5% → 79.0% used;",
        "                    wanted 5.0 GiB, freed -1.0 KiB; run r-12",
        "  TIME                 KIND   OBJECT        PREDICTED  MEASURED  RUN",
        "  2026-11-21 14:00:05  image  aaaaaaaaaaaa    1.0 MiB   1.0 MiB  12",
    ];
    assert_eq!(first, expected, "{narrow}");
}

#[test]
fn stores_are_named_if_there_are_several() {
    let mut run = row();
    run.deletions.truncate(2);
    for (deletion, root) in run.deletions.iter_mut().zip(["/var/lib/containers/storage", "/srv/store"]) {
        deletion.store = Some(StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".to_owned()));
    }
    let text = shown(vec![run.clone()], &Quiet::default(), None, false);
    assert!(text.contains("  RUN   STORE\n"), "{text}");
    assert!(text.contains("79.0%  r-12  /var/lib/containers/storage\n"), "{text}");
    assert!(text.contains("79.0%  r-12  /srv/store                   !\n"), "{text}");
    run.deletions.truncate(1);
    assert!(!shown(vec![run], &Quiet::default(), None, false).contains("STORE"));
}

#[test]
fn image_that_a_rule_kept_is_named() {
    let kept = RunError {
        id: "aaaaaaaaaaaaaaaa".into(),
        names: vec!["web:1.3".into()],
        rule: Some(Rule::Pinned),
        step: "prove".into(),
        message: "pinned: web:*".into(),
    };
    let run = RunRow {
        start: Start {
            run_id: "r-12".into(),
            via: Some("direct".into()),
            ..Start::of(Command::Rm, row().start.started)
        },
        outcome: Some(OutcomeKind::Refused),
        measured_bytes: None,
        errors: vec![kept],
        deletions: vec![],
        ..row()
    };
    assert_eq!(
        shown(vec![run], &Quiet::default(), None, true),
        "2026-11-21 14:00:00 rm (direct): refused: pinned, after 1m05s; run r-12\n\
         \x20 2026-11-21 14:00:00  kept: web:1.3: pinned: web:*; run r-12\n\
         Times are in +01; ids of runs and scans begin with their time in UTC.\n"
    );
}

#[test]
fn runs_without_deletions_take_a_line() {
    let idle = RunRow {
        start: Start { run_id: "R".into(), ..Start::of(Command::Scan, row().start.started) },
        outcome: Some(OutcomeKind::Done),
        measured_bytes: None,
        deletions: vec![],
        ..row()
    };
    let day = RunRow { runs: 288, ended: Some(time("2026-11-21T22:00:00Z")), ..idle.clone() };
    let killed = RunRow { ended: None, outcome: None, ..idle.clone() };
    let quiet = Quiet {
        scans: 289,
        incomplete_scans: 1,
        other_runs: 1,
        first_at: Some(time("2026-11-20T00:00:00Z")),
        last_at: Some(time("2026-11-21T13:00:00Z")),
    };
    assert_eq!(
        shown(vec![killed, idle, day], &quiet, None, true),
        "2026-11-21 14:00:00 scan: not ended (still running, or killed); run R\n\
         2026-11-21 14:00:00 scan: done in 1m05s; run R\n\
         2026-11-21 14:00:00 scan: 288 runs until 23:00:00, done\n\
         289 scans (1 incomplete) and 1 run with nothing to do, 2026-11-20 01:00:00 to 2026-11-21 14:00:00\n\
         Times are in +01; ids of runs and scans begin with their time in UTC.\n"
    );
    assert_eq!(
        shown(vec![], &quiet, None, true),
        "Nothing was deleted and nothing failed.\n\
         289 scans (1 incomplete) and 1 run with nothing to do, 2026-11-20 01:00:00 to 2026-11-21 14:00:00 (--all lists them)\n\
         Times are in +01; ids of runs and scans begin with their time in UTC.\n"
    );
}

#[test]
fn durations_have_at_most_two_units() {
    let from = time("2026-11-21T13:00:00Z");
    for (to, expected) in [
        ("2026-11-21T13:00:00.04Z", "0.0 s"),
        ("2026-11-21T13:00:59.5Z", "59.5 s"),
        ("2026-11-21T13:01:05Z", "1m05s"),
        ("2026-11-21T15:30:05Z", "2h30m"),
        ("2026-11-21T12:00:00Z", "0.0 s"),
    ] {
        assert_eq!(length(from, time(to)), expected);
    }
}
