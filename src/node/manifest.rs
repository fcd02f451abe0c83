//! Images that a manifest of pods names. Pure: bytes in, references out.
//!
//! The kubelet reads one Pod or one list of pods from each file. This parser accepts everything that looks like a
//! pod, in every document and at any depth (an item of a list, a template): a false match only keeps an image.

use serde_json::Value;

use super::yaml;

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// References of images, sorted and without repetitions.
    pub(super) images: Vec<String>,
    /// Every value of a key `name`: of pods, but also of containers and volumes.
    pub(super) names: Vec<String>,
    /// The parse error. The documents before it are included.
    pub(super) problem: Option<String>,
}

/// Parses a manifest, YAML or JSON.
pub(super) fn read(bytes: &[u8]) -> Manifest {
    let text = match std::str::from_utf8(bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)) {
        Ok(text) => text,
        Err(error) => {
            let problem = Some(format!("not valid UTF-8 at byte {} on", error.valid_up_to()));
            return Manifest { problem, ..Manifest::default() };
        }
    };
    let (documents, problem) = yaml::until_error(text);
    let mut manifest = Manifest { problem, ..Manifest::default() };
    documents.iter().for_each(|document| collect(document, &mut manifest));
    manifest.images.sort();
    manifest.images.dedup();
    manifest
}

/// Returns the message of the finding about a file with a parse error.
pub(super) fn unparsed(problem: &str) -> String {
    format!("neither YAML nor JSON: {problem}; images that it names from there on are not protected")
}

/// Collects the images of containers and of image volumes (`volumes[].image.reference`). The parser has limited the
/// depth of the recursion.
fn collect(value: &Value, manifest: &mut Manifest) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, manifest)),
        Value::Object(members) => {
            for (key, member) in members {
                let items = member.as_array().map_or(&[][..], Vec::as_slice);
                if CONTAINERS.contains(&key.as_str()) {
                    add_all(items.iter().filter_map(|item| item.get("image")), &mut manifest.images);
                } else if key == "volumes" {
                    let references = items.iter().filter_map(|item| item.pointer("/image/reference"));
                    add_all(references, &mut manifest.images);
                } else if key == "name" {
                    add_all([member].into_iter(), &mut manifest.names);
                }
                collect(member, manifest);
            }
        }
        _ => {}
    }
}

fn add_all<'a>(values: impl Iterator<Item = &'a Value>, texts: &mut Vec<String>) {
    let found = values.filter_map(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    texts.extend(found.map(str::to_owned));
}

#[cfg(test)]
mod tests;
