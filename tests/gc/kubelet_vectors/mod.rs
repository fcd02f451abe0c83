//! The rows of `fixtures/kubelet-gc.json` (behaviour of the kubelet) against policy `kubelet`, and those of
//! `fixtures/exact-gc.json` and `fixtures/exact-containers.json` (where layersweep differs on purpose) against policy
//! `exact`.
//!
//! The variable `LAYERSWEEP_VECTORS` names another file of rows instead of the first. A row of an area, with a field
//! or an operation that is unknown here, fails.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

#[macro_use]
mod rows;
mod container_rows;
mod containers;
mod eviction;
mod exact;
mod kubelet;
mod model;
mod settings;

use std::path::{Path, PathBuf};

use rows::{Decides, Row};

/// Areas of the kubelet's container collection, which layersweep does not imitate: policy `exact` alone collects
/// containers.
const CONTAINER_AREAS: [&str; 5] = [
    "container_gc.containers",
    "container_gc.policy",
    "container_gc.sandboxes",
    "container_gc.pod_logs",
    "container_gc.log_symlinks",
];

/// Results of the rows of a file.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

#[test]
fn policy_kubelet_matches_kubelet() {
    let file =
        std::env::var_os("LAYERSWEEP_VECTORS").map_or_else(|| fixture("kubelet-gc.json"), PathBuf::from);
    let tally = run_file(&file);
    println!("{}: {} rows pass", file.display(), tally.passed);
    assert!(tally.failed.is_empty(), "{}", tally.failed.join("\n"));
    assert!(tally.passed > 0, "{} has no row that could be run", file.display());
}

#[test]
fn policy_exact_differs_for_images_on_purpose() {
    let tally = run_file(&fixture("exact-gc.json"));
    assert!(tally.failed.is_empty(), "{}", tally.failed.join("\n"));
    // Every deliberate difference in image collection has a row.
    let text = std::fs::read_to_string(fixture("exact-gc.json")).unwrap();
    for id in ["012", "024", "056", "062", "063", "066", "067", "082", "083", "084", "086", "089"] {
        assert!(text.contains(&format!("\"IG-{id}-exact")), "IG-{id} has no row");
    }
    println!("{} rows pass", tally.passed);
}

#[test]
fn policy_exact_differs_for_containers_on_purpose() {
    let tally = run_file(&fixture("exact-containers.json"));
    assert!(tally.failed.is_empty(), "{}", tally.failed.join("\n"));
    let text = std::fs::read_to_string(fixture("exact-containers.json")).unwrap();
    for id in ["CG-009", "CG-021", "CG-029", "LS-005"] {
        assert!(text.contains(&format!("\"{id}-exact")), "{id} has no row");
    }
    println!("{} rows pass", tally.passed);
}

/// Each planted mistake must fail its row, which shows that the runner can find mistakes.
#[test]
fn planted_mistakes_are_found() {
    let text = std::fs::read_to_string(fixture("kubelet-gc.json")).unwrap();
    for (row, from, to) in [
        ("IG-001", r#""last_used_ms":10000000"#, r#""last_used_ms":10000001"#),
        ("IG-020", r#""deleted":["image-0"]"#, r#""deleted":[]"#),
        ("IG-020", r#""remaining":["image-1"]"#, r#""remaining":["image-0"]"#),
        ("IG-028", r#""freed_bytes":1024"#, r#""freed_bytes":1023"#),
        ("IG-061", r#""error":"not_enough_freed""#, r#""error":null"#),
        ("IG-061", r#""events":["FreeDiskSpaceFailed"]"#, r#""events":[]"#),
        ("IG-061", r#""amount_to_free":149"#, r#""amount_to_free":150"#),
        ("IG-067", r#""attempted":["stuck","ok"]"#, r#""attempted":["ok"]"#),
        ("IG-080", r#""age":1"#, r#""age":0"#),
        ("IG-050", r#""do":"garbage_collect""#, r#""do":"collect_garbage""#),
        ("IG-050", r#""capacity_bytes""#, r#""size_bytes""#),
        ("IG-050", r#""events""#, r#""happenings""#),
        ("IG-050", r#""area":"image_gc.garbage_collect""#, r#""area":"image_gc.magic""#),
        ("LP-002", r#""events_at_run":[]"#, r#""events_at_run":[1]"#),
        ("LP-004", r#""loop_started":true"#, r#""loop_started":false"#),
        ("LP-005", r#""image_detect_ms":300000"#, r#""image_detect_ms":1"#),
        ("PV-007", r#""error":null"#, r#""error":"low_above_high""#),
        ("CV-007", r#""errors":[]"#, r#""errors":["low_not_below_high"]"#),
        ("LP-006", r#"[1,3,4]"#, r#"[1,3]"#),
        ("EV-005", r#""order":[]"#, r#""order":["images"]"#),
        ("EV-011", r#""pod_evicted":true"#, r#""pod_evicted":false"#),
        ("EV-012", r#""pressure_condition":false"#, r#""pressure_condition":true"#),
    ] {
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = file["vectors"].as_array().unwrap();
        let sound = rows.iter().find(|other| other["id"] == row).unwrap().to_string();
        let changed = sound.replacen(from, to, 1);
        assert_ne!(sound, changed, "{row} has no {from}");
        let mut tally = Tally::default();
        run_row(Decides::Kubelet, &serde_json::from_str(&sound).unwrap(), &mut tally);
        assert!(tally.failed.is_empty(), "{:?}", tally.failed);
        run_row(Decides::Kubelet, &serde_json::from_str(&changed).unwrap(), &mut tally);
        assert_eq!(tally.failed.len(), 1, "{row} with {to} passes");
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn run_file(path: &Path) -> Tally {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: rows::File =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(file.schema_version, 1, "{}", path.display());
    let mut tally = Tally::default();
    for row in &file.vectors {
        run_row(file.decides, row, &mut tally);
    }
    tally
}

fn run_row(decides: Decides, row: &serde_json::Value, tally: &mut Tally) {
    fn text(row: &serde_json::Value, key: &str) -> String {
        row.get(key).and_then(|value| value.as_str()).unwrap_or("?").to_owned()
    }
    let (id, area) = (text(row, "id"), text(row, "area"));
    if matches!(decides, Decides::Kubelet) && CONTAINER_AREAS.contains(&area.as_str()) {
        return;
    }
    let result = match Row::parse(&area, row) {
        Err(error) => Err(error),
        Ok(Row::Images(row)) => match decides {
            Decides::Kubelet => kubelet::run(&row),
            Decides::Exact => exact::run(&row),
        },
        Ok(Row::Loop(row)) => settings::image_loop(&row),
        Ok(Row::Switch(row)) => settings::switch(&row),
        Ok(Row::PolicyValidation(row)) => settings::policy(&row),
        Ok(Row::ConfigValidation(row)) => settings::config(&row),
        Ok(Row::Containers(row)) => containers::containers(&row),
        Ok(Row::Sandboxes(row)) => containers::sandboxes(&row),
        Ok(Row::PodLogs(row)) => containers::pod_logs(&row),
        Ok(Row::LogSymlinks(row)) => containers::link(&row),
        Ok(Row::ContainerLoop(row)) => containers::container_loop(&row),
        Ok(Row::Eviction(row)) => containers::eviction(&row),
    };
    match result {
        Ok(()) => tally.passed += 1,
        Err(error) => tally.failed.push(format!("{id} ({}): {error}", text(row, "title"))),
    }
}

/// Returns an error unless `found` is `expected`.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, expected: &T, found: &T) -> Result<(), String> {
    if expected == found { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}")) }
}
