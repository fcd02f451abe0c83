//! Alerts, dashboard and documentation name only metrics that the program prints, and promtool accepts them.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use layersweep::app::metrics::{DatabaseState, MetricsData, Remembered};
use layersweep::history::counters::{Counter, LastRun};
use layersweep::history::figures::{BigImage, Figures, LeakFigures, PlaceFigures, StoreFigures};
use layersweep::history::runs::{self, OutcomeKind};
use layersweep::model::deletion::outcome::UsageChange;
use layersweep::model::space::Started;
use layersweep::model::{Filesystem, StoreId, StoreKind};
use layersweep::policy::FreeFloor;
use layersweep::policy::Targets;
use layersweep::policy::Thresholds;
use layersweep::policy::forecast::Forecast;
use layersweep::report::metrics::{self, FAMILIES};
use regex::Regex;
use serde_json::Value;
use support::metrics::{Scrape, check};
use support::program::{list, number, text};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

const RULES: &str = "packaging/prometheus/layersweep.rules.yml";
const DASHBOARD: &str = "packaging/grafana/layersweep.json";

/// Returns facts with a value for every metric.
fn everything() -> MetricsData {
    let key = StoreId::new(StoreKind::ContainersStorage, "/store".into(), "overlay".into());
    let artifacts = StoreId::new(StoreKind::ContainersStorage, "/store".into(), "artifacts".into());
    let time = jiff::Timestamp::from_second(1_772_366_400).unwrap();
    let leak = LeakFigures { class: "orphan".into(), verdict: "reclaim".into(), count: 1, bytes: 4096 };
    let figures = Figures {
        mount: "/".into(),
        bytes: [("images".to_owned(), 8192)].into(),
        fair: [("podman".to_owned(), 8192)].into(),
        leaks: vec![leak],
        outside: [("journal".to_owned(), 7)].into(),
        namespaces: [("kube-system".to_owned(), 8192)].into(),
        places: vec![PlaceFigures { kind: "path".into(), name: "/srv".into(), ..PlaceFigures::default() }],
        ..Figures::default()
    };
    MetricsData {
        version: "1.2.3",
        remembered: Remembered {
            stores: vec![
                StoreFigures { key: key.clone(), scanned: time, seconds: 0.5, figures: figures.clone() },
                StoreFigures { key: artifacts, scanned: time, seconds: 0.5, figures },
            ],
            biggest: vec![BigImage { key, id: "i".into(), name: "n".into(), exclusive_bytes: 1 }],
            counters: Some(vec![Counter {
                name: "runs".into(),
                command: "gc".into(),
                label: "reached".into(),
                value: 7,
            }]),
            last_runs: vec![LastRun {
                command: runs::Command::Gc,
                time,
                outcome: Some(OutcomeKind::Reached),
                usage: vec![UsageChange {
                    mount: "/".into(),
                    started: Started { used: true, ..Started::default() },
                    usage_before_percent: Some(75.123),
                    usage_after_percent: Some(70.0),
                    measured_bytes: Some(8),
                }],
                seconds: Some(1.5),
                by_space: true,
                by_age: false,
                deletions: 1,
                wanted_bytes: Some(7),
                measured_bytes: Some(8),
            }],
        },
        filesystems: vec![Some(Filesystem {
            mount: "/".into(),
            device: "/dev/vda1".into(),
            fstype: "ext4".into(),
            capacity_bytes: 100,
            used_bytes: 50,
            available_bytes: 50,
            inodes: 10,
            inodes_free: 5,
        })],
        forecasts: vec![Some(Forecast {
            window: jiff::SignedDuration::from_hours(6),
            rate: 2.0,
            slowest: 1.0,
            fastest: 4.0,
            available_bytes: 50,
        })],
        targets: Targets {
            used: Some(Thresholds { high: 75, low: 70 }),
            free: Some(FreeFloor { start_below: 5, until: 6 }),
            inodes: Some(Thresholds { high: 90, low: 80 }),
        },
        reserve_files: vec![("/var/lib/layersweep/reserve-1".into(), 4096)],
        database: DatabaseState { ok: true, bytes: Some(4096), set_aside: Some(0), waiting: Some(0) },
    }
}

#[test]
fn every_metric_is_printed_and_well_named() {
    if !support::require_program("promtool") {
        return;
    }
    let printed = metrics::text(&everything());
    check(&printed);
    let scrape = Scrape::read(&printed);
    let names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
    for family in FAMILIES {
        let samples =
            scrape.samples.get(family.name).unwrap_or_else(|| panic!("{} is not there", family.name));
        assert_eq!(scrape.types[family.name], family.kind.as_str());
        for (labels, _) in samples {
            let mut expected: Vec<_> = family.labels.to_vec();
            expected.sort_unstable();
            assert_eq!(labels.keys().map(String::as_str).collect::<Vec<_>>(), expected, "{}", family.name);
        }
    }
    assert_eq!(scrape.types.len(), FAMILIES.len());
    assert_eq!(scrape.one("gc_last_run_usage_before_ratio", &[]), 0.7512);
    // Unknown values are not printed: counters of an unreadable database, or a filesystem that contradicts itself.
    let mut doubtful = everything();
    doubtful.remembered.counters = None;
    doubtful.filesystems[0].as_mut().unwrap().available_bytes = 101;
    let scrape = Scrape::read(&metrics::text(&doubtful));
    assert!(scrape.counters().is_empty());
    assert_eq!(scrape.all("filesystem_avail_bytes", &[]).count(), 0);
}

#[test]
fn documentation_lists_every_metric() {
    let doc = read("docs/metrics.md");
    let row = Regex::new(r"(?m)^\| `(layersweep_\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$").unwrap();
    let documented: Vec<_> =
        row.captures_iter(&doc).map(|row| [1, 2, 3].map(|column| row[column].replace('`', ""))).collect();
    let known = FAMILIES.iter().map(|family| {
        let labels = if family.labels.is_empty() { "-".to_owned() } else { family.labels.join(", ") };
        [family.name.to_owned(), family.kind.as_str().to_owned(), labels]
    });
    assert_eq!(documented, known.collect::<Vec<_>>());
}

/// Returns the names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    Regex::new(r"layersweep_[a-z_]+").unwrap().find_iter(text).map(|name| name.as_str().to_owned()).collect()
}

#[test]
fn no_unknown_metric_is_named() {
    let known: BTreeSet<_> = FAMILIES.iter().map(|family| family.name.to_owned()).collect();
    for path in [RULES, DASHBOARD, "packaging/prometheus/layersweep.rules.test.yml", "docs/metrics.md"] {
        let named = metrics_in(&read(path));
        assert!(named.len() > 5, "{path}");
        assert!(named.is_subset(&known), "{path}: {:?}", named.difference(&known));
    }
}

fn promtool(args: &[&str], dir: &Path) -> String {
    let output = Command::new("promtool").args(args).current_dir(dir).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn every_alert_is_tested_and_explained() {
    if !support::require_program("promtool") {
        return;
    }
    let dir = root().join("packaging/prometheus");
    promtool(&["check", "rules", "layersweep.rules.yml"], &dir);
    promtool(&["test", "rules", "layersweep.rules.test.yml"], &dir);
    let (rules, tests, doc) =
        (read(RULES), read("packaging/prometheus/layersweep.rules.test.yml"), read("docs/metrics.md"));
    let alerts: Vec<_> = Regex::new(r"- alert: (\w+)")
        .unwrap()
        .captures_iter(&rules)
        .map(|found| found[1].to_owned())
        .collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for (alert_ix, alert) in alerts.iter().enumerate() {
        assert!(tests.contains(&format!("- name: {alert}\n")), "{alert} has no test");
        assert!(doc.contains(&format!("\n### {alert}\n")), "{alert} is not in docs/metrics.md");
        let rule = rules.split("- alert: ").nth(alert_ix + 1).unwrap();
        for part in ["severity: ", "summary: ", "description: ", "remedy: "] {
            assert!(rule.contains(part), "{alert} lacks {part}");
        }
        assert!(rule.contains(&format!("runbook: docs/metrics.md#{}\n", alert.to_lowercase())), "{alert}");
    }
    for record in
        Regex::new(r"- record: (\S+)").unwrap().captures_iter(&rules).map(|found| found[1].to_owned())
    {
        assert!(tests.contains(&format!("- expr: {record}\n")), "{record} has no test");
        assert!(doc.contains(&format!("| `{record}` |")), "{record} is not in docs/metrics.md");
    }
    let headings = doc.lines().filter(|line| line.starts_with("### Layersweep")).count();
    assert_eq!(headings, alerts.len(), "an explained alert does not exist");
    // A rule that never fires is as good as untested: the tests of every alert fail with such rules.
    let never = alerts.iter().fold(rules, |rules, alert| {
        let head = format!("- alert: {alert}\n        expr: ");
        assert!(rules.contains(&head), "{alert}");
        rules.replace(&head, &format!("{head}vector(0) > 1 and "))
    });
    let never = never.replace("vector(0) > 1 and |\n", "|\n          vector(0) > 1 and on ()\n");
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("layersweep.rules.yml"), never).unwrap();
    std::fs::write(scratch.path().join("t.yml"), tests).unwrap();
    let mut promtool = Command::new("promtool");
    let output = promtool.args(["test", "rules", "t.yml"]).current_dir(scratch.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for alert in &alerts {
        assert!(said.contains(&format!(r#"alertname=\"{alert}\""#)), "{alert}: {said}");
    }
}

/// The rules contain no address of a page; the documented command sets it for every alert.
#[test]
fn documented_command_sets_runbook_url() {
    if !support::require_program("promtool") {
        return;
    }
    let (rules, doc) = (read(RULES), read("docs/metrics.md"));
    assert!(!rules.contains("runbook_url") && !rules.contains("://"));
    let command = doc.lines().find(|line| line.starts_with("sed ")).unwrap();
    let mut sh = Command::new("sh");
    let output = sh.args(["-c", command]).current_dir(root().join("packaging/prometheus")).output().unwrap();
    let changed = String::from_utf8(output.stdout).unwrap();
    let alerts = rules.matches("- alert: ").count();
    assert_eq!(changed.matches("runbook_url: https://wiki.example/layersweep/metrics.md#").count(), alerts);
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("rules.yml"), changed).unwrap();
    promtool(&["check", "rules", "rules.yml"], scratch.path());
}

#[test]
fn dashboard_is_consistent() {
    if !support::require_program("promtool") {
        return;
    }
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let variables: BTreeMap<_, _> = list(&dashboard, "/templating/list")
        .iter()
        .map(|variable| (text(variable, "/name"), text(variable, "/type")))
        .collect();
    assert_eq!(variables, [("datasource", "datasource"), ("node", "query"), ("store", "query")].into());
    let panels = list(&dashboard, "/panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| number(panel, "/id")).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    let mut places: Vec<PathBuf> = Vec::new();
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    let mut add_rule = |expr: &str| {
        // Grafana replaces these variables.
        let expr = expr.replace("$node", ".*").replace("$store", ".*");
        assert!(!expr.contains('$'), "{expr}");
        let expr = serde_json::to_string(&expr).unwrap();
        rules += &format!(
            "      - record: dashboard:x:y\n        labels: {{n: \"{}\"}}\n        expr: {expr}\n",
            rules.len()
        );
    };
    for panel in panels {
        let title = text(panel, "/title");
        assert!(["timeseries", "stat", "table"].contains(&text(panel, "/type")), "{title} needs a plugin");
        assert!(!text(panel, "/description").is_empty(), "{title}");
        let place = ["x", "y", "w", "h"].map(|side| number(panel, &format!("/gridPos/{side}")));
        assert!(place[0] + place[2] <= 24, "{title}");
        places.push(format!("{}/{}", place[0], place[1]).into());
        for part in [panel].into_iter().chain(list(panel, "/targets")) {
            assert_eq!(text(part, "/datasource/uid"), "${datasource}", "{title}");
        }
        let refs: BTreeSet<_> = list(panel, "/targets").iter().map(|target| text(target, "/refId")).collect();
        assert_eq!(refs.len(), list(panel, "/targets").len(), "{title}");
        list(panel, "/targets").iter().for_each(|target| add_rule(text(target, "/expr")));
    }
    places.sort();
    places.dedup();
    assert_eq!(places.len(), panels.len(), "panels overlap");
    for annotation in list(&dashboard, "/annotations/list") {
        add_rule(text(annotation, "/expr"));
    }
    let variables = list(&dashboard, "/templating/list").iter();
    for variable in variables.filter(|variable| variable["type"] == "query") {
        let query = text(variable, "/query/query");
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", "));
        add_rule(inner.unwrap_or_else(|| panic!("{query}")).0);
    }
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("rules.yml"), rules).unwrap();
    promtool(&["check", "rules", "--lint=none", "rules.yml"], scratch.path());
}
