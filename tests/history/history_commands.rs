//! `history` and `pin`, in scripts and on a terminal.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;
use std::process::Stdio;

use crate::support;
use jiff::Timestamp;
use layersweep::history::journal::RunRecord;
use layersweep::history::runs::{Command, Event, OutcomeKind, RunEnd, Start};
use layersweep::history::{Caller, Queue, state_directory};
use layersweep::sys::sysroot::Sysroot;
use support::program::{self, Run, layersweep, list, text, texts};
use support::{past, schema};

/// Runs with `--state-dir DIR`.
fn with(dir: &Path, args: &[&str]) -> Run {
    let mut command = program::command();
    command.args(args).arg("--state-dir").arg(dir);
    program::run(&mut command)
}

/// Runs on a terminal with `columns` columns.
fn on_terminal(dir: &Path, columns: usize, lang: &str, args: &str) -> String {
    let program = env!("CARGO_BIN_EXE_layersweep");
    let line = format!("stty cols {columns}; '{program}' {args} --state-dir '{}'", dir.display());
    let mut command = std::process::Command::new("script");
    program::hermetic(&mut command);
    command.env("LANG", lang).args(["-qec", &line, "/dev/null"]);
    program::run(&mut command).expect_code(0).stdout.replace('\r', "")
}

/// Removes the styles that layersweep sets.
fn plain(shown: &str) -> String {
    shown.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "")
}

fn assert_one_error(run: &Run) {
    let mut lines = run.stderr.lines();
    assert!(lines.next().unwrap_or_default().starts_with("error: "), "{run:?}");
    assert!(lines.all(|line| line.starts_with("hint: ")), "{run:?}");
    assert!(run.stdout.is_empty(), "{run:?}");
}

#[test]
fn without_records_there_is_nothing_to_show() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    for (args, kind) in
        [(&["history"][..], "history"), (&["history", "usage"], "history-usage"), (&["pin", "list"], "pins")]
    {
        let run = with(&state, args).expect_code(0);
        assert!(!run.stdout.is_empty(), "{run:?}");
        let document = with(&state, &[args, &["--format", "json"]].concat()).expect_code(0).json();
        assert_eq!(document["kind"], kind);
        assert!(document["database"].is_null());
        schema::assert_fits(kind, &document);
    }
    assert!(!state.exists(), "reading made the state directory");
}

#[test]
fn history_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), Timestamp::now());
    let document = with(dir.path(), &["history", "--format", "json"]).expect_code(0).json();
    schema::assert_fits("history", &document);
    let runs = list(&document, "/runs");
    let commands: Vec<_> = runs.iter().map(|run| text(run, "/command")).collect();
    assert_eq!(commands, ["sweep", "rm", "gc", "gc"]);
    assert!(runs[0]["ended_at"].is_null() && runs[0]["outcome"].is_null());
    assert_eq!(runs[0]["deleted"][0]["error"], "device busy");
    assert_eq!(runs[1]["errors"][0]["step"], "remove");
    assert_eq!(runs[2]["outcome"], "reached");
    let differs: Vec<_> =
        list(&runs[2], "/deleted").iter().map(|deletion| deletion["differs"].as_bool().unwrap()).collect();
    assert_eq!(differs, [false, false, true]);
    assert_eq!(runs[2]["deleted"][2]["names"][0], past::NASTY, "JSON has names as they are");
    assert_eq!(document["quiet"]["scans"], 2780);
    assert_eq!(document["more"], false);

    fn json(dir: &tempfile::TempDir, args: &[&str]) -> serde_json::Value {
        with(dir.path(), &[&["history", "--format", "json"], args].concat()).expect_code(0).json()
    }
    assert_eq!(list(&json(&dir, &["--kind", "leak"]), "/runs").len(), 1);
    assert_eq!(list(&json(&dir, &["--since", "1h"]), "/runs").len(), 2);
    let limited = json(&dir, &["--limit", "3"]);
    assert_eq!((list(&limited, "/runs").len(), &limited["more"]), (3, &true.into()));
    let all = json(&dir, &["--all", "--limit", "0"]);
    assert_eq!(list(&all, "/runs").len(), 2784);
    schema::assert_fits("history", &all);
}

/// A run whose records could not be saved is shown, and a scan saves it.
#[test]
fn unsaved_runs_are_shown_and_saved_later() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    past::ten_days(dir.path(), now);
    let place = state_directory(&Sysroot::live(), Some(dir.path()), &Caller::present());
    let mut record = RunRecord::of(Start { run_id: "waits".into(), ..Start::of(Command::Gc, now) });
    record.events = vec![Event { reason: "FreeDiskSpaceFailed".into(), message: past::NASTY.into() }];
    record.end = Some(RunEnd::of(now, OutcomeKind::NotReached));
    Queue::of(&place).put(&record);
    let files = || std::fs::read_dir(place.pending.as_ref().unwrap()).unwrap().count();

    for scanned in [false, true] {
        let document = with(dir.path(), &["history", "--format", "json"]).expect_code(0).json();
        schema::assert_fits("history", &document);
        let runs = list(&document, "/runs");
        let commands: Vec<_> = runs.iter().map(|run| text(run, "/command")).collect();
        assert_eq!(commands, ["gc", "sweep", "rm", "gc", "gc"], "once");
        assert_eq!(runs[0]["events"][0]["message"], past::NASTY, "JSON has it as it is");
        assert_eq!(runs[0]["unsaved"], !scanned);
        assert_eq!(runs[1]["killed"], true, "another came after the sweep");
        let table = with(dir.path(), &["history"]).expect_code(0).stdout;
        assert_eq!(table.contains("not in the database yet"), !scanned, "{table}");
        assert!(table.contains("  FreeDiskSpaceFailed: evil.example/") && !table.contains('\u{202e}'));
        assert_eq!(files(), usize::from(!scanned), "reading changes nothing");
        if !scanned {
            let empty = dir.path().join("graphroot");
            std::fs::create_dir_all(empty.join("overlay-images")).unwrap();
            std::fs::create_dir_all(empty.join("overlay-layers")).unwrap();
            std::fs::create_dir_all(empty.join("overlay")).unwrap();
            let root = empty.to_str().unwrap();
            let scan = with(dir.path(), &["scan", "--graphroot", root]);
            assert!(scan.stderr.is_empty(), "{scan:?}");
        }
    }
}

#[test]
fn usage_series_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), Timestamp::now());
    fn json(dir: &tempfile::TempDir, args: &[&str]) -> serde_json::Value {
        with(dir.path(), &[&["history", "usage", "--format", "json"], args].concat()).expect_code(0).json()
    }
    let both = json(&dir, &[]);
    schema::assert_fits("history-usage", &both);
    let mounts: Vec<_> =
        list(&both, "/filesystems").iter().map(|filesystem| text(filesystem, "/mount")).collect();
    assert_eq!(mounts, ["/", "/var"]);
    assert_eq!(list(&both, "/runs").len(), 2, "a sweep that deleted nothing is no mark");
    let day = json(&dir, &["--since", "1d", "--filesystem", "/var/lib/containers/storage"]);
    let points = list(&day, "/filesystems/0/points");
    assert!((287..=288).contains(&points.len()), "{}", points.len());
    assert_eq!(points[0]["capacity_bytes"], 100_u64 << 30);

    let table = with(dir.path(), &["history", "usage", "--since", "1h", "--filesystem", "/"]).expect_code(0);
    assert!(table.stdout.lines().count() >= 13 && table.stdout.contains("20.00"), "{table:?}");
    assert!(!table.stdout.contains('┤'), "a chart in a pipe: {table:?}");
    // Flags may come before or after the subcommand.
    let flags = ["--since", "1h", "--state-dir", dir.path().to_str().unwrap()];
    for args in
        [&[&["history"], &flags[..], &["usage"]].concat(), &[&["history", "usage"], &flags[..]].concat()]
    {
        assert_eq!(layersweep(args).expect_code(0).stdout.lines().count(), 30);
    }
    assert_one_error(&with(dir.path(), &["history", "--all", "usage"]).expect_code(2));
    let unknown = with(dir.path(), &["history", "usage", "--filesystem", "relative/path"]).expect_code(2);
    assert_one_error(&unknown);
    assert!(unknown.stderr.contains("/var"), "the hint names what there is: {unknown:?}");
}

#[test]
fn charts_and_tables_fit_the_terminal() {
    if !support::require_program("script") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), Timestamp::now());
    for columns in [80, 120] {
        for lang in ["C.UTF-8", "C"] {
            let shown = on_terminal(dir.path(), columns, lang, "history usage --filesystem /var");
            let shown = plain(&shown);
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{shown}");
            assert!(shown.contains("highest  98."), "the spike of one reading: {shown}");
            assert_eq!(shown.is_ascii(), lang == "C", "{shown}");
            assert_eq!(shown.contains('┤'), lang != "C", "{shown}");
            let history = plain(&on_terminal(dir.path(), columns, lang, "history"));
            assert!(!history.contains('\u{1b}') && !history.contains('\u{202e}'), "{history:?}");
            let rows = history.lines().filter(|line| line.contains(" image ") && !line.contains("failed"));
            assert!(rows.clone().count() >= 6, "{history}");
            assert!(rows.clone().all(|line| line.chars().count() <= columns), "{history}");
            assert_eq!(history.is_ascii(), lang == "C", "{history}");
        }
    }
}

#[test]
fn closed_pipe_exits_0() {
    let dir = tempfile::tempdir().unwrap();
    past::ten_days(dir.path(), Timestamp::now());
    for args in [&["history", "--all", "--limit", "0"][..], &["history", "usage"], &["pin", "list"]] {
        for format in ["table", "json"] {
            let mut command = program::command();
            command.args(args).args(["--format", format, "--state-dir"]).arg(dir.path());
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take()); // closed before the first byte
            let done = child.wait_with_output().unwrap();
            assert_eq!(done.status.code(), Some(0), "{args:?} {done:?}");
            assert!(done.stderr.is_empty(), "{args:?} {done:?}");
        }
    }
}

#[test]
fn pins_are_added_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let added =
        with(&state, &["pin", "add", "docker.io/library/nginx:*", "quay.io/*", "--note", "we need it"]);
    let added = added.expect_code(0);
    assert_eq!(added.stdout, "pinned docker.io/library/nginx:*\npinned quay.io/*\n");
    let again = with(&state, &["pin", "add", "quay.io/*"]).expect_code(0);
    assert!(again.stdout.is_empty() && again.stderr.starts_with("note: "), "{again:?}");
    let note = with(&state, &["pin", "add", "nginx"]).expect_code(0);
    assert!(note.stderr.contains("*/nginx"), "{note:?}");

    let listed = with(&state, &["pin", "list", "--format", "json"]).expect_code(0).json();
    schema::assert_fits("pins", &listed);
    let patterns: Vec<_> = list(&listed, "/pins").iter().map(|pin| text(pin, "/pattern")).collect();
    assert_eq!(patterns, ["docker.io/library/nginx:*", "nginx", "quay.io/*"]);
    assert_eq!(listed["pins"][2]["note"], "we need it", "adding again keeps the note");
    let quiet = with(&state, &["pin", "list", "-q"]).expect_code(0);
    assert_eq!(quiet.stdout.lines().collect::<Vec<_>>(), patterns);

    let missing = with(&state, &["pin", "remove", "quay.io"]).expect_code(1);
    assert_one_error(&missing);
    assert!(missing.stderr.contains("hint: ") && missing.stderr.contains("quay.io/*"), "{missing:?}");
    let half = with(&state, &["pin", "remove", "nginx", "quay.oi/*", "--format", "json"]).expect_code(1);
    assert_eq!(texts(&half.json(), "/removed"), ["nginx"], "what was done is still reported");
    schema::assert_fits("pins", &half.json());
    with(&state, &["pin", "remove", "quay.io/*", "docker.io/library/nginx:*"]).expect_code(0);
    assert_eq!(with(&state, &["pin", "list"]).expect_code(0).stdout, "No pattern is pinned.\n");
}

#[test]
fn bad_patterns_add_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    for bad in ["", "[", "two words", "a\u{1b}[31m"] {
        let run = with(&state, &["pin", "add", "quay.io/good", bad]).expect_code(2);
        assert_one_error(&run);
        assert!(!run.stderr.contains('\u{1b}'), "{run:?}");
        assert!(!state.exists(), "{bad:?} made the state directory");
    }
    let missing = with(&state, &["pin", "remove", "quay.io/good"]).expect_code(1);
    assert_one_error(&missing);
    assert!(!state.exists(), "removing made the state directory");
}

#[test]
fn sysroot_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let sysroot = dir.path().to_str().unwrap();
    for args in [&["pin", "add", "quay.io/*"][..], &["pin", "remove", "quay.io/*"]] {
        let run = layersweep([args, &["--sysroot", sysroot]].concat()).expect_code(2);
        assert_one_error(&run);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    past::ten_days(&make(dir.path().join("var/lib/layersweep")), Timestamp::now());
    for state_dir in
        [None, Some("/var/lib/layersweep".to_owned()), Some(format!("{sysroot}/var/lib/layersweep"))]
    {
        let mut args = vec!["history", "--format", "json", "--sysroot", sysroot];
        args.extend(state_dir.iter().flat_map(|dir| ["--state-dir", dir.as_str()]));
        let found = layersweep(args).expect_code(0).json();
        assert_eq!(list(&found, "/runs").len(), 4);
    }
}

fn make(dir: std::path::PathBuf) -> std::path::PathBuf {
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn impossible_state_directory_exits_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let run = with(&file, &["pin", "add", "quay.io/*"]).expect_code(1);
    assert_one_error(&run);
    assert!(run.stderr.contains(file.to_str().unwrap()), "{run:?}");
}
