//! Promises of the reading commands, compared with the plan of `gc`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::program::{list, number, text};

/// Checks, under a policy that wants every image deleted, that `usage`, `report`, `images` and `explain` promise for
/// each image what the dry run of `gc` plans; returns the plan. `json` runs a command of the node and returns its
/// document.
pub fn assert_kept_by_plan(json: impl Fn(&[&str]) -> Value) -> Value {
    let dry = json(&["gc", "--dry-run"]);
    let planned: u64 =
        list(&dry, "/deleted").iter().map(|deletion| number(deletion, "/predicted_bytes")).sum();
    let goes: BTreeSet<_> = list(&dry, "/deleted").iter().map(|deletion| text(deletion, "/id")).collect();
    let usage = json(&["usage"]);
    let rows: Vec<_> =
        list(&usage, "/filesystems").iter().flat_map(|filesystem| list(filesystem, "/rows")).collect();
    let unused = rows.iter().filter(|row| row["kind"] == "images_unused");
    assert_eq!(unused.map(|row| number(row, "/reclaimable_bytes")).sum::<u64>(), planned, "{usage:#}");
    assert_eq!(usage["gc_refused"], Value::Null);

    let images = json(&["images"]);
    let unused =
        list(&images, "/images").iter().filter(|image| image["in_use"] == false && image["pinned"] == false);
    let out_of_reach =
        unused.filter(|image| !image["out_of_reach"].is_null()).map(|image| text(image, "/id"));
    let out_of_reach: BTreeSet<_> = out_of_reach.collect();
    let kept = list(&dry, "/kept").iter();
    let kept = kept.filter(|image| image["rule"] == "out-of-reach" || image["rule"] == "damaged-store");
    let expected: BTreeSet<_> = kept.map(|image| text(image, "/id")).collect();
    assert_eq!(out_of_reach, expected, "{dry:#}");
    let beyond = rows.iter().filter(|row| row["kind"] == "images_out_of_reach");
    assert_eq!(beyond.map(|row| number(row, "/count")).sum::<u64>(), expected.len() as u64, "{usage:#}");

    let report = json(&["report"]);
    let steps = list(&report, "/verdict/steps").iter();
    let mut steps =
        steps.filter(|step| step["command"].as_str().is_some_and(|command| command.contains(" gc")));
    assert_eq!(number(steps.next().expect("gc is advised"), "/bytes"), planned, "{report:#}");

    for image in list(&images, "/images") {
        let id = text(image, "/id");
        let explained = json(&["explain", id]);
        assert_eq!(explained["fate"]["goes"], goes.contains(id), "{explained:#}");
    }
    dry
}
