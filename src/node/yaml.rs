//! Parser of YAML and JSON with limits for nesting, aliases and documents.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

/// Returns all documents of a file that are not empty.
///
/// # Errors
/// The parse error in one line. A document that expands to more than a million events by its aliases, or is nested
/// more than 64 levels deep, is an error too; these limits are the defaults of `serde-saphyr`.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, String> {
    match until_error(text) {
        (documents, None) => Ok(documents),
        (_, Some(error)) => Err(error),
    }
}

/// Returns the documents before the first error, and that error. The kubelet itself reads only the first document.
pub(super) fn until_error(text: &str) -> (Vec<Value>, Option<String>) {
    // The kubelet, too, parses a text with this beginning as JSON (apimachinery, `yaml.ToJSON`). Some tabs and
    // escapes of JSON are not valid YAML.
    if text.trim_start().starts_with('{') {
        let json: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        if let Ok(documents) = json {
            return (documents, None);
        }
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        // As in the kubelet's parser (goyaml).
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    let mut bytes = text.as_bytes();
    let mut documents = Vec::new();
    for document in serde_saphyr::read_with_options(&mut bytes, options) {
        match document {
            Ok(document) => documents.push(document),
            Err(error) => {
                return (documents, Some(error.to_string().lines().collect::<Vec<_>>().join("; ")));
            }
        }
    }
    (documents, None)
}
