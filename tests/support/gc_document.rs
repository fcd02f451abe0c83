//! What a document of `gc` or `rm` says.

use serde_json::Value;

use super::program::{list, text, texts};

/// The names of what a document says was deleted, in order.
pub fn deleted(document: &Value) -> Vec<String> {
    list(document, "/deleted").iter().flat_map(|one| texts(one, "/names")).collect()
}

/// The rule that keeps the image of that name.
pub fn rule<'a>(document: &'a Value, name: &str) -> &'a str {
    let kept = list(document, "/kept").iter().find(|one| texts(one, "/names").iter().any(|n| n == name));
    text(kept.unwrap_or_else(|| panic!("{name} is not kept: {document:#}")), "/rule")
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
