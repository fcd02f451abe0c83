//! Reads JSON documents of `gc` and `rm`.

use serde_json::Value;

use super::program::{list, number, text, texts};

/// The names of what a document says was deleted, in order.
pub fn deleted(document: &Value) -> Vec<String> {
    list(document, "/deleted").iter().flat_map(|one| texts(one, "/names")).collect()
}

/// What a document says of the image of that name, which it keeps.
#[track_caller]
pub fn kept<'a>(document: &'a Value, name: &str) -> &'a Value {
    let kept = list(document, "/kept").iter().find(|one| texts(one, "/names").iter().any(|n| n == name));
    kept.unwrap_or_else(|| panic!("{name} is not kept: {document:#}"))
}

/// The rule that keeps the image of that name.
#[track_caller]
pub fn rule<'a>(document: &'a Value, name: &str) -> &'a str {
    text(kept(document, name), "/rule")
}

/// The events of a document, or of a run in the history.
pub fn events(document: &Value) -> Vec<&str> {
    list(document, "/events").iter().map(|event| text(event, "/reason")).collect()
}

/// A run of the history says of its deletions what its document said.
#[track_caller]
pub fn assert_recorded(run: &Value, document: &Value) {
    assert_eq!(run["run_id"], document["run_id"]);
    assert_eq!(run["outcome"], document["outcome"], "{run:#}");
    let done: Vec<_> = list(run, "/deleted").iter().filter(|one| one["error"].is_null()).collect();
    assert_eq!(done.len(), list(document, "/deleted").len(), "{run:#}");
    for (recorded, told) in done.into_iter().zip(list(document, "/deleted")) {
        for field in ["id", "names", "reason", "predicted_bytes", "measured_bytes"] {
            assert_eq!(recorded[field], told[field], "{field}: {recorded:#} {told:#}");
        }
        assert!(number(recorded, "/measured_bytes") > 0, "{recorded:#}");
    }
}

/// Each deletion's measured bytes are what was predicted, within 1 % (64 KiB at least).
#[track_caller]
pub fn assert_exact(document: &Value) {
    for one in list(document, "/deleted") {
        let predicted = one["predicted_bytes"].as_i64().expect("predicted bytes");
        let measured = one["measured_bytes"].as_i64().expect("measured bytes");
        let off = (measured - predicted).abs();
        assert!(off <= (predicted / 100).max(64 * 1024), "{one:#}");
        assert_eq!(one["differs"], false, "{one:#}");
    }
}
