//! The record files: `layers.json`, `images.json`, `containers.json` and their volatile
//! twins. Pure: bytes in, records and problems out.
//!
//! Each file is one JSON array of objects; a missing or empty file and `null` mean "no
//! records" (container-libs, `storage/{layers,images,containers}.go`). A record that does
//! not make sense is left out and named; a file that breaks off gives what came before.

mod lenient;

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

/// A record of `layers.json` or `volatile-layers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerRecord {
    /// Layer id.
    pub id: String,
    /// Parent layer id.
    pub parent: Option<String>,
    /// When the record was made; `None` for Go's zero time.
    pub created: Option<Timestamp>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// Length of the uncompressed tar in bytes as the runtimes count it: 0 where a partial
    /// pull does not know it, absent for containers' layers.
    pub diff_size: Option<u64>,
    /// The layer is being made or being deleted; every library deletes it on sight.
    pub incomplete: bool,
    /// From a `volatile-*.json` file: a container's layer, gone after a reboot.
    pub volatile: bool,
}

/// A record of `images.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// Image id.
    pub id: String,
    /// Names, in the order of the record.
    pub names: Vec<String>,
    /// The manifest's digest, and those of further manifests.
    pub digests: Vec<String>,
    /// The top layer; absent for manifest lists.
    pub layer: Option<String>,
    /// Twins of the top layer for other user namespaces.
    pub mapped_layers: Vec<String>,
    /// When the record was made.
    pub created: Option<Timestamp>,
    /// Big data by name, with the recorded length in bytes.
    pub big_data: Vec<(String, Option<u64>)>,
}

/// A record of `containers.json` or `volatile-containers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Container id.
    pub id: String,
    /// Names.
    pub names: Vec<String>,
    /// Image id; absent for a container made from scratch.
    pub image: Option<String>,
    /// Its writable layer.
    pub layer: Option<String>,
    /// The engine's own text, usually JSON.
    pub metadata: Option<String>,
    /// When the record was made.
    pub created: Option<Timestamp>,
    /// From a `volatile-*.json` file. CRI-O's containers are only there.
    pub volatile: bool,
}

/// What one record file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The records that make sense, in file order.
    pub records: Vec<T>,
    /// What does not, one line each; at most [`MOST_PROBLEMS`].
    pub problems: Vec<String>,
    /// Records may be missing from `records`: the file broke off or held nonsense.
    pub damaged: bool,
}

/// Problems listed for one file; the rest is counted in a last line.
pub const MOST_PROBLEMS: usize = 8;

/// Parses `layers.json`.
#[must_use]
pub fn layers(content: &[u8], volatile: bool) -> Parsed<LayerRecord> {
    parse(content, |object| {
        let digest = lenient::text(object, "diff-digest");
        Ok(LayerRecord {
            id: lenient::id(object)?,
            parent: lenient::text(object, "parent"),
            created: lenient::time(object, "created"),
            // The library sets the size only together with a digest, and leaves a zero out. A
            // partial pull may know neither (-1): the runtimes then count 0.
            diff_size: lenient::length(object, "diff-size")
                .or((digest.is_some() || object.get("toc-digest").is_some()).then_some(0)),
            diff_id: digest,
            incomplete: object
                .get("flags")
                .and_then(|flags| flags.get("incomplete"))
                .is_some_and(|flag| flag != &Value::Bool(false) && !flag.is_null()),
            volatile,
        })
    })
}

/// Parses `images.json`.
#[must_use]
pub fn images(content: &[u8]) -> Parsed<ImageRecord> {
    parse(content, |object| {
        let mut digests: Vec<String> = lenient::text(object, "digest").into_iter().collect();
        if let Some(Value::Object(all)) = object.get("big-data-digests") {
            for (name, digest) in all {
                let is_manifest = name == "manifest" || name.starts_with("manifest-");
                if let (true, Value::String(digest)) = (is_manifest, digest)
                    && !digests.contains(digest)
                {
                    digests.push(digest.clone());
                }
            }
        }
        let sizes = object.get("big-data-sizes");
        Ok(ImageRecord {
            id: lenient::id(object)?,
            names: lenient::texts(object, "names"),
            digests,
            layer: lenient::text(object, "layer"),
            mapped_layers: lenient::texts(object, "mapped-layers"),
            created: lenient::time(object, "created"),
            big_data: lenient::texts(object, "big-data-names")
                .into_iter()
                .map(|name| {
                    let size = sizes.and_then(|all| all.get(&name)).and_then(Value::as_u64);
                    (name, size)
                })
                .collect(),
        })
    })
}

/// Parses `containers.json`.
#[must_use]
pub fn containers(content: &[u8], volatile: bool) -> Parsed<ContainerRecord> {
    parse(content, |object| {
        Ok(ContainerRecord {
            id: lenient::id(object)?,
            names: lenient::texts(object, "names"),
            image: lenient::text(object, "image"),
            layer: lenient::text(object, "layer"),
            metadata: lenient::text(object, "metadata"),
            created: lenient::time(object, "created"),
            volatile,
        })
    })
}

/// Runs over the array element by element, so that a file which breaks off still gives
/// what came before, and only one element at a time is held as a generic value.
fn parse<T>(content: &[u8], mut record: impl FnMut(&Value) -> Result<T, String>) -> Parsed<T> {
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut left_out = 0_usize;
    let mut ordinal = 0_usize;
    let ended = lenient::each_element(content, |element| {
        ordinal += 1;
        match record(&element) {
            Ok(made) => records.push(made),
            Err(problem) => {
                left_out += 1;
                if left_out <= MOST_PROBLEMS {
                    problems.push(format!("record {ordinal} is left out: {problem}"));
                }
            }
        }
    });
    if left_out > MOST_PROBLEMS {
        problems.push(format!("{} more records are left out", left_out - MOST_PROBLEMS));
    }
    let mut damaged = left_out > 0;
    if let Err(problem) = ended {
        damaged = true;
        problems.push(format!("{problem}; {} records before that are used", records.len()));
    }
    Parsed { records, problems, damaged }
}

/// Drops records whose id came before. The library, too, keeps the first.
pub fn drop_repeated<T>(records: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut repeated = Vec::new();
    records.retain(|record| {
        let fresh = seen.insert(id(record).to_owned());
        if !fresh {
            repeated.push(id(record).to_owned());
        }
        fresh
    });
    repeated
}

#[cfg(test)]
mod tests;
