//! Promises of the reading commands, compared with the plan of `gc`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::program::{list, number, text};

/// Under a policy that wants every image deleted, `usage`, `report`, `images` and `explain` promise what the dry run
/// of `gc` plans, image by image; returns that plan. `json` runs a command of the node and returns its document.
pub fn assert_kept_by_plan(json: impl Fn(&[&str]) -> Value) -> Value {
    let dry = json(&["gc", "--dry-run"]);
    let planned: u64 = list(&dry, "/deleted").iter().map(|one| number(one, "/predicted_bytes")).sum();
    let goes: BTreeSet<_> = list(&dry, "/deleted").iter().map(|one| text(one, "/id")).collect();
    let by_rule = |rule: &str| -> BTreeSet<_> {
        let kept = list(&dry, "/kept").iter().filter(move |one| one["rule"] == rule);
        kept.map(|one| text(one, "/id")).collect()
    };
    let usage = json(&["usage"]);
    let rows = || list(&usage, "/filesystems").iter().flat_map(|one| list(one, "/rows"));
    let unused = rows().filter(|row| row["kind"] == "images_unused");
    assert_eq!(unused.map(|row| number(row, "/reclaimable_bytes")).sum::<u64>(), planned, "{usage:#}");
    assert_eq!(usage["gc_refused"], Value::Null);

    let images = json(&["images"]);
    let unused =
        list(&images, "/images").iter().filter(|one| one["in_use"] == false && one["pinned"] == false);
    let out_of_reach = unused.filter(|one| !one["out_of_reach"].is_null()).map(|one| text(one, "/id"));
    let out_of_reach: BTreeSet<_> = out_of_reach.collect();
    let mut expected = by_rule("out-of-reach");
    expected.extend(by_rule("damaged-store"));
    assert_eq!(out_of_reach, expected, "{dry:#}");
    let beyond = rows().filter(|row| row["kind"] == "images_out_of_reach");
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
