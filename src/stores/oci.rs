//! Parses the documents of images and artifacts: indexes and manifests, of OCI's or Docker's format. Pure.

use oci_spec::image;
use serde::Deserialize as _;
use serde_json::Value;

/// One entry of an index or manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Digest of the blob.
    pub digest: String,
    /// Its length in bytes, as written there.
    pub size: Option<u64>,
    /// `os/architecture`, of an index's entry that has a platform.
    pub platform: Option<String>,
}

/// A blob that leads to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An index or manifest list.
    Index(Vec<Descriptor>),
    Manifest {
        /// `None` in an artifact's manifest without one.
        config: Option<Descriptor>,
        /// The layers, the base first.
        layers: Vec<Descriptor>,
    },
}

/// Parses an index or manifest; `None` for anything else.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Document> {
    document(&serde_json::from_slice(bytes).ok()?)
}

/// The same of parsed JSON.
///
/// The specification's types refuse a whole document for one odd field: a descriptor without
/// media type or size, an invalid digest, an annotation that is null. Runtimes run images
/// from such documents all the same, so a descriptor that the types refuse is read field by field.
#[must_use]
pub fn document(json: &Value) -> Option<Document> {
    let list = |name: &str| Some(json.get(name)?.as_array()?.iter().filter_map(descriptor).collect());
    if let Some(manifests) = list("manifests") {
        return Some(Document::Index(manifests));
    }
    let config = json.get("config").and_then(descriptor);
    match list("layers").or_else(|| list("blobs")) {
        // Go writes an empty list as `null`.
        None if config.is_none() => json.get("manifests")?.is_null().then(|| Document::Index(Vec::new())),
        layers => Some(Document::Manifest { config, layers: layers.unwrap_or_default() }),
    }
}

fn descriptor(json: &Value) -> Option<Descriptor> {
    image::Descriptor::deserialize(json).map_or_else(|_| odd_descriptor(json), |typed| Some(typed.into()))
}

impl From<image::Descriptor> for Descriptor {
    fn from(one: image::Descriptor) -> Self {
        let platform = |platform: &image::Platform| format!("{}/{}", platform.os(), platform.architecture());
        Self {
            digest: one.digest().to_string(),
            size: Some(one.size()),
            platform: one.platform().as_ref().map(platform),
        }
    }
}

/// The same by the few fields that count, whatever the others are.
fn odd_descriptor(json: &Value) -> Option<Descriptor> {
    let of = |path: &str| json.pointer(path).and_then(Value::as_str);
    Some(Descriptor {
        digest: of("/digest")?.to_owned(),
        size: json.get("size").and_then(Value::as_u64),
        platform: of("/platform/os").zip(of("/platform/architecture")).map(|(os, cpu)| format!("{os}/{cpu}")),
    })
}

#[cfg(test)]
mod tests;
