//! Parses any YAML and JSON, with limits for nesting, aliases and documents.

use serde_json::Value;

/// All documents of a file that are not empty.
///
/// # Errors
/// What is wrong, in one line. A document that expands to more than a million events by its
/// aliases, or is nested more than 64 deep, is wrong too: those are `serde-saphyr`'s own limits.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    // The kubelet, too, takes what begins like this for JSON (apimachinery, `yaml.ToJSON`). Tabs
    // and escapes of JSON are not all YAML.
    if text.trim_start().starts_with('{') {
        let json: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        if let Ok(documents) = json {
            return Ok(documents);
        }
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| error.to_string().lines().collect::<Vec<_>>().join("; "))
}
