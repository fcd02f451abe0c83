//! Reads JSON documents of `gc` and `rm`.

use serde_json::Value;

use super::program::{list, number, text, texts};

/// Names of the images that a document reports as deleted, in order.
pub fn deleted(document: &Value) -> Vec<String> {
    list(document, "/deleted").iter().flat_map(|row| texts(row, "/names")).collect()
}

/// Returns the row of a kept image.
#[track_caller]
pub fn kept<'a>(document: &'a Value, name: &str) -> &'a Value {
    let kept = list(document, "/kept").iter().find(|row| texts(row, "/names").iter().any(|n| n == name));
    kept.unwrap_or_else(|| panic!("{name} is not kept: {document:#}"))
}

/// Returns the rule that keeps an image.
#[track_caller]
pub fn rule<'a>(document: &'a Value, name: &str) -> &'a str {
    text(kept(document, name), "/rule")
}

/// Returns the events of a document, or of a run in the history.
pub fn events(document: &Value) -> Vec<&str> {
    list(document, "/events").iter().map(|event| text(event, "/reason")).collect()
}

/// Checks that a run of the history reports the same deletions as its document.
#[track_caller]
pub fn assert_recorded(run: &Value, document: &Value) {
    assert_eq!(run["run_id"], document["run_id"]);
    assert_eq!(run["outcome"], document["outcome"], "{run:#}");
    let done: Vec<_> = list(run, "/deleted").iter().filter(|row| row["error"].is_null()).collect();
    assert_eq!(done.len(), list(document, "/deleted").len(), "{run:#}");
    for (recorded, row) in done.into_iter().zip(list(document, "/deleted")) {
        for field in ["id", "names", "reason", "predicted_bytes", "measured_bytes"] {
            assert_eq!(recorded[field], row[field], "{field}: {recorded:#} {row:#}");
        }
        assert!(number(recorded, "/measured_bytes") > 0, "{recorded:#}");
    }
}

/// Checks that each deletion's measured bytes are within 1 % (at least 64 KiB) of the prediction.
#[track_caller]
pub fn assert_exact(document: &Value) {
    for row in list(document, "/deleted") {
        let predicted = row["predicted_bytes"].as_i64().expect("predicted bytes");
        let measured = row["measured_bytes"].as_i64().expect("measured bytes");
        let off = (measured - predicted).abs();
        assert!(off <= (predicted / 100).max(64 * 1024), "{row:#}");
        assert_eq!(row["differs"], false, "{row:#}");
    }
}
