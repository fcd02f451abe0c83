//! `config`, and commands with a configuration that has mistakes.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use serde_json::Value;

use crate::support;
use support::loopfs::{Fs, LoopFs};
use support::program::{self, Run, list, text};
use support::store;
use support::{schema, small};

const BROKEN: &str = "[images]\nhigh_pecent = 80\nlow_percent = \"x\"\n";

/// Runs the program on a node whose only configuration file has this text.
fn run_with(dir: &std::path::Path, config: &str, words: &[&str]) -> Run {
    let script = "mount -t tmpfs etc /etc/layersweep && printf %s \"$CONFIG\" >/etc/layersweep/layersweep.toml && \
                  exec \"$PROGRAM\" \"$@\"";
    let mut command = std::process::Command::new("unshare");
    program::hermetic(&mut command);
    command.args(["--mount", "sh", "-c", &format!("mkdir -p /etc/layersweep && {script}"), "sh"]).args(words);
    command.env("PROGRAM", env!("CARGO_BIN_EXE_layersweep")).env("CONFIG", config);
    command.env("LAYERSWEEP_STATE_DIR", dir.join("state"));
    program::run(&mut command).expect_no_crash()
}

fn setting<'a>(document: &'a Value, key: &str) -> &'a Value {
    let settings = list(document, "/settings");
    settings.iter().find(|setting| setting["key"] == key).unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn values_are_shown_with_their_origins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(
        &file,
        "[images]\nhigh_percent = 80\n[protect]\nnames = [\"quay.io/*\"]\n\
                [[images.rule]]\nmatch = \"a/*\"\nmax_age = \"1d\"\n[[images.rule]]\nmatch = \"b/*\"\nkeep_newest = 1\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let words = ["config", "show", "--config", file, "--state-dir", "/srv/state"];
    let table = program::layersweep(words).expect_code(0).stdout;
    for row in [
        format!("images.high_percent 80 {file}:2"),
        "images.low_percent 70 default".to_owned(),
        format!("protect.names [\"quay.io/*\"] {file}:4"),
        format!("images.rule {{ match = \"a/*\", max_age = \"24h\" }} {file}:5"),
        format!("images.rule {{ match = \"b/*\", keep_newest = 1 }} {file}:8"),
        "state_dir \"/srv/state\" --state-dir".to_owned(),
        "stores.graphroot (found) default".to_owned(),
    ] {
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(rows.any(|line| line == row), "{row}: {table}");
    }
    let document = program::layersweep([&words[..], &["--format", "json"]].concat()).expect_code(0).json();
    schema::assert_fits("config", &document);
    let high = setting(&document, "images.high_percent");
    assert_eq!((&high["value"], &high["origins"][0]["line"]), (&80.into(), &2.into()), "{high:#}");
    assert!(text(high, "/meaning").contains("start deleting"), "{high:#}");
}

#[test]
fn problems_are_one_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, BROKEN).unwrap();
    let file = file.to_str().unwrap();
    let check = program::layersweep(["config", "check", "--config", file]).expect_code(2);
    let expected = [
        format!("{file}:2: images.high_pecent: unknown key; did you mean images.high_percent?"),
        format!("{file}:3: images.low_percent: \"x\" is not a whole number from 0 to 100"),
    ];
    assert!(check.stdout.lines().eq(&expected), "{check:?}");
    let document = program::layersweep(["config", "check", "--config", file, "--format", "json"]);
    let document = document.expect_code(2).json();
    schema::assert_fits("config", &document);
    assert_eq!(text(&document, "/problems/0/key"), "images.high_pecent");
    std::fs::write(file, "").unwrap();
    let check = program::layersweep(["config", "check", "--config", file]).expect_code(0);
    assert_eq!(check.stdout, format!("The configuration is valid: {file}\n"));
}

#[test]
fn mistake_stops_only_deletion() {
    if !store::require_tools() || !support::require_program("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("storage"));
    let root = store.root().to_str().unwrap();
    for words in [&["images"][..], &["usage"], &["scan"], &["sweep"], &["report"], &["pin", "list"]] {
        let run =
            run_with(dir.path(), BROKEN, &[words, &["-q", "--graphroot", root]].concat()).expect_code(0);
        let warning = "warning: /etc/layersweep/layersweep.toml, line 2, column 1: images.high_pecent: unknown key; \
                       the built-in defaults are used\nhint: did you mean images.high_percent?\n";
        assert!(run.stderr.starts_with(warning), "{words:?}: {run:?}");
    }
    let image = small::name("other");
    for words in [
        &["gc", "-y"][..],
        &["gc", "--dry-run"],
        &["rm", "-y", &image],
        &["sweep", "--delete", "-y"],
        &["pin", "add", "quay.io/*"],
    ] {
        let run = run_with(dir.path(), BROKEN, &[words, &["--graphroot", root]].concat()).expect_code(2);
        assert!(
            run.stderr.starts_with("error: /etc/layersweep/layersweep.toml, line 2"),
            "{words:?}: {run:?}"
        );
    }
}

/// A number of free bytes that one filesystem cannot have does not stop its other targets; a pattern without an image
/// is a warning.
#[test]
fn settings_that_do_nothing_are_reported() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 200 << 20);
    let store = small::still(&loopfs.path().join("root"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(
        &file,
        "images.min_free = \"1TiB\"\nprotect.names = [\"quay.io/[x]*\", \"localhost/small/b:*\"]\n\
         [[images.rule]]\nmatch = \"*\"\nmax_age = \"4m\"\n\
         [[images.rule]]\nmatch = \"localhost/small/*\"\nmax_age = \"30d\"\n",
    )
    .unwrap();
    let run = |words: &[&str]| {
        let mut command = program::command();
        command.args(words).arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        command.arg("--config").arg(&file).arg("--state-dir").arg(dir.path().join("state"));
        program::run(&mut command).expect_no_crash()
    };
    run(&["scan", "-q"]).expect_code(0);
    let planned =
        run(&["gc", "--dry-run", "--via", "direct", "--high", "1", "--low", "0", "--min-age", "0s"]);
    let warning = "warning: protect.names: \"quay.io/[x]*\" matches none of the 5 images of the last scan";
    assert!(planned.stderr.contains(warning) && !planned.stderr.contains("small/b"), "{planned:?}");
    let file = file.display();
    let shadowed = format!(
        "warning: {file}:6: images.rule: \"localhost/small/*\" never decides: \"*\" ({file}:3) matches first"
    );
    assert!(planned.stderr.contains(&format!("{shadowed}\nhint: move it above\n")), "{planned:?}");
    let check = run(&["config", "check"]).expect_code(0).stdout;
    assert!(check.starts_with(&format!("{shadowed}; move it above\n")), "{check}");
    let document = run(&["config", "check", "--format", "json"]).json();
    schema::assert_fits("config", &document);
    assert_eq!((&document["valid"], &document["warnings"][0]["origin"]["line"]), (&true.into(), &6.into()));
    assert!(planned.stdout.contains("1.0 TiB are to be kept free"), "{planned:?}");
    assert!(planned.stdout.contains("localhost/small/other:1"), "the other target applies: {planned:?}");
    let document = run(&["doctor", "--format", "json"]).json();
    let checks = list(&document, "/checks");
    for name in ["patterns", "min-free", "configuration"] {
        let of_name = checks.iter().filter(|check| check["name"] == name && check["status"] != "ok");
        let of_name: Vec<_> = of_name.collect();
        assert_eq!(of_name.len(), 1, "{document:#}");
        assert_eq!(of_name[0]["status"], "warning", "{document:#}");
    }
}
