//! Parses the documents of images and artifacts: indexes and manifests in OCI's and Docker's formats. Pure.

use oci_spec::image;
use serde::Deserialize as _;
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub digest: String,
    /// Length in bytes, according to the document.
    pub size: Option<u64>,
    /// Media type; empty without one.
    pub media_type: String,
    /// `os/architecture`, for an entry of an index with a platform.
    pub platform: Option<String>,
}

/// A blob that refers to other blobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Index(Vec<Descriptor>),
    Manifest {
        /// `None` for an artifact's manifest without a config.
        config: Option<Descriptor>,
        /// Layers, the base first.
        layers: Vec<Descriptor>,
    },
}

/// Parses an index or manifest; `None` for anything else.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Document> {
    document(&serde_json::from_slice(bytes).ok()?)
}

/// Same as [`parse`], for parsed JSON.
///
/// The specification's types refuse a whole document for one unusual field: a descriptor without media type or size,
/// an invalid digest, an annotation that is null. Runtimes run images from such documents all the same, so a
/// descriptor that the types refuse is read field by field.
#[must_use]
pub fn document(json: &Value) -> Option<Document> {
    if let Some(manifests) = descriptors(json, "manifests") {
        return Some(Document::Index(manifests));
    }
    let config = json.get("config").and_then(descriptor);
    match descriptors(json, "layers").or_else(|| descriptors(json, "blobs")) {
        // Go writes an empty list as `null`.
        None if config.is_none() => json.get("manifests")?.is_null().then(|| Document::Index(Vec::new())),
        layers => Some(Document::Manifest { config, layers: layers.unwrap_or_default() }),
    }
}

fn descriptors(json: &Value, name: &str) -> Option<Vec<Descriptor>> {
    Some(json.get(name)?.as_array()?.iter().filter_map(descriptor).collect())
}

fn descriptor(json: &Value) -> Option<Descriptor> {
    image::Descriptor::deserialize(json).map_or_else(|_| odd_descriptor(json), |typed| Some(typed.into()))
}

impl From<image::Descriptor> for Descriptor {
    fn from(descriptor: image::Descriptor) -> Self {
        let platform = descriptor.platform().as_ref();
        Self {
            digest: descriptor.digest().to_string(),
            size: Some(descriptor.size()),
            media_type: descriptor.media_type().to_string(),
            platform: platform.map(|platform| format!("{}/{}", platform.os(), platform.architecture())),
        }
    }
}

/// Reads only the fields that are needed, whatever the others contain.
fn odd_descriptor(json: &Value) -> Option<Descriptor> {
    let platform = text(json, "/platform/os").zip(text(json, "/platform/architecture"));
    Some(Descriptor {
        digest: text(json, "/digest")?.to_owned(),
        size: json.get("size").and_then(Value::as_u64),
        media_type: text(json, "/mediaType").unwrap_or_default().to_owned(),
        platform: platform.map(|(os, cpu)| format!("{os}/{cpu}")),
    })
}

fn text<'a>(json: &'a Value, pointer: &str) -> Option<&'a str> {
    json.pointer(pointer).and_then(Value::as_str)
}
#[cfg(test)]
mod tests;
