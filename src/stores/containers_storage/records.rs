//! Parser for the record files `layers.json`, `images.json`, `containers.json` and the volatile variants of the first
//! and the last. Pure: bytes in, records and problems out.
//!
//! Each file is a JSON array of objects. A missing or empty file and `null` mean "no records" (container-libs,
//! `storage/{layers,images,containers}.go`). An invalid record is skipped and reported. A truncated file yields the
//! records before its end.

pub(super) mod lenient;

use std::collections::HashMap;

use hashbrown::HashSet;
use jiff::Timestamp;
use rayon::prelude::*;

use crate::sys::allowance::{self, Allowance};
use lenient::{Object, Truth};

/// A record of `layers.json` or `volatile-layers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerRecord {
    pub id: String,
    pub parent: Option<String>,
    /// Creation time of the record; `None` for Go's zero time.
    pub created: Option<Timestamp>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// Length of the uncompressed tar in bytes, as the runtimes count it: 0 if a partial pull does not know it, `None`
    /// for layers of containers.
    pub diff_size: Option<u64>,
    /// The layer was pulled in parts, by its table of contents (zstd:chunked, 1.52 and later).
    pub by_toc: bool,
    /// The layer is being created or deleted. Every library deletes such a layer when it next opens the store.
    pub incomplete: bool,
    /// The record is from a `volatile-*.json` file: a container's layer, which does not survive a reboot.
    pub volatile: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    pub id: String,
    /// Names, in the order of the record.
    pub names: Vec<String>,
    /// Names that it had before, and usually those that it has.
    pub former_names: Vec<String>,
    /// Digest of the manifest, and those of further manifests.
    pub digests: Vec<String>,
    /// Id of the top layer; `None` for manifest lists.
    pub layer: Option<String>,
    /// Ids of copies of the top layer for other user namespaces.
    pub mapped_layers: Vec<String>,
    pub created: Option<Timestamp>,
    /// Keys of big data, with the recorded length in bytes.
    pub big_data: Vec<(String, Option<u64>)>,
}

impl ImageRecord {
    pub(crate) fn tops(&self) -> impl Iterator<Item = &String> {
        self.layer.iter().chain(&self.mapped_layers)
    }
}

/// A record of `containers.json` or `volatile-containers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    pub id: String,
    pub names: Vec<String>,
    /// Id of the image; `None` for a container that was created without one.
    pub image: Option<String>,
    pub layer: Option<String>,
    /// Data of the engine that created the container, usually JSON.
    pub metadata: Option<String>,
    pub created: Option<Timestamp>,
    /// The record is from a `volatile-*.json` file, as all records of CRI-O are.
    pub volatile: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// The valid records, in the order of the file.
    pub records: Vec<T>,
    /// The problems, one line each; see [`MOST_PROBLEMS`].
    pub problems: Vec<String>,
    /// Records may be missing from `records`: the file was truncated or contained invalid records.
    pub damaged: bool,
}

/// Maximum number of invalid records of a file that are listed. The others are counted in one more line.
pub const MOST_PROBLEMS: usize = 8;

#[must_use]
pub fn layers(content: &[u8], volatile: bool, allowance: &Allowance) -> Parsed<LayerRecord> {
    parse(
        content,
        allowance,
        |_| allowance::LAYER,
        |layer| {
            let digest = layer.text("diff-digest")?;
            let by_toc = layer.has("toc-digest");
            Ok(LayerRecord {
                id: id(layer)?,
                parent: layer.text("parent")?,
                created: layer.time("created")?,
                // The library sets the size only together with a digest, and omits a size of 0. A partial pull may know
                // neither and writes -1; the runtimes count this as 0.
                diff_size: layer.get("diff-size")?.or((digest.is_some() || by_toc).then_some(0)),
                diff_id: digest,
                by_toc,
                incomplete: layer.object("flags")?.truth("incomplete") != Truth::No,
                volatile,
            })
        },
    )
}

#[must_use]
pub fn images(content: &[u8], allowance: &Allowance) -> Parsed<ImageRecord> {
    parse(content, allowance, image_weight, |image| {
        let mut digests: Vec<String> = image.text("digest")?.into_iter().collect();
        let mut more: Vec<(String, String)> = image.members("big-data-digests")?;
        more.retain(|(key, _)| key == "manifest" || key.starts_with("manifest-"));
        // The library writes them in no particular order.
        more.sort();
        for (_, digest) in more {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        let sizes: HashMap<String, u64> = image.members("big-data-sizes")?.into_iter().collect();
        let keys = image.texts("big-data-names")?.into_iter();
        Ok(ImageRecord {
            id: id(image)?,
            names: image.texts("names")?,
            former_names: image.texts("names-history")?,
            digests,
            layer: image.text("layer")?,
            mapped_layers: image.texts("mapped-layers")?,
            created: image.time("created")?,
            big_data: keys.map(|key| (key.clone(), sizes.get(&key).copied())).collect(),
        })
    })
}

fn image_weight(image: &ImageRecord) -> u64 {
    let texts = [&image.names, &image.former_names, &image.digests, &image.mapped_layers].map(Vec::len);
    let texts = texts.iter().sum::<usize>() + image.big_data.len();
    allowance::IMAGE + allowance::TEXT * texts as u64
}

#[must_use]
pub fn containers(content: &[u8], volatile: bool, allowance: &Allowance) -> Parsed<ContainerRecord> {
    parse(content, allowance, container_weight, |container| {
        Ok(ContainerRecord {
            id: id(container)?,
            names: container.texts("names")?,
            image: container.text("image")?,
            layer: container.text("layer")?,
            metadata: container.text("metadata")?,
            created: container.time("created")?,
            volatile,
        })
    })
}

fn container_weight(container: &ContainerRecord) -> u64 {
    allowance::CONTAINER + allowance::TEXT * container.names.len() as u64
}

/// Returns the record's id. It must be a valid file name, so that a path built from it stays in its directory.
fn id(record: &Object<'_>) -> Result<String, String> {
    let id = record.text("id")?.ok_or("it has no id")?;
    let is_name = id.len() <= 255 && id != "." && id != ".." && !id.contains(['/', '\0']);
    if !is_name {
        let beginning: String = id.chars().take(255).collect();
        return Err(format!("its id {beginning:?} cannot be a directory name"));
    }
    Ok(id)
}

/// Parses the array in batches, so that a truncated file still yields the records before its end. Only the fields that
/// `record` reads are kept in memory.
fn parse<T: Send>(
    content: &[u8],
    allowance: &Allowance,
    weight: impl Fn(&T) -> u64 + Sync,
    record: impl Fn(&Object<'_>) -> Result<T, String> + Sync,
) -> Parsed<T> {
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut invalid = 0_usize;
    let mut over_allowance = 0_usize;
    let mut ordinal = 0_usize;
    let result = lenient::each_batch(content, |elements| {
        let parsed = elements.par_iter().map(|element| {
            let record = record(&lenient::object(element)?)?;
            Ok::<_, String>(allowance.charge(weight(&record)).is_ok().then_some(record))
        });
        for parsed in parsed.collect::<Vec<_>>() {
            ordinal += 1;
            match parsed {
                Ok(Some(record)) => records.push(record),
                Ok(None) => over_allowance += 1,
                Err(problem) => {
                    invalid += 1;
                    if invalid <= MOST_PROBLEMS {
                        problems.push(format!("record {ordinal} is ignored: {problem}"));
                    }
                }
            }
        }
    });
    if invalid > MOST_PROBLEMS {
        problems.push(format!("{} more records are ignored", invalid - MOST_PROBLEMS));
    }
    if over_allowance > 0 {
        problems.push(format!("{over_allowance} records are {}", allowance::SPENT));
    }
    let mut damaged = invalid + over_allowance > 0;
    if let Err(problem) = result {
        damaged = true;
        problems.push(format!("{problem}; {} records before that are used", records.len()));
    }
    Parsed { records, problems, damaged }
}

/// Removes and returns records whose id is that of an earlier record.
pub fn drop_repeated<T>(records: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Vec<T> {
    let mut seen = HashSet::with_capacity(records.len());
    let are_first: Vec<bool> = records.iter().map(|record| seen.insert(id(record))).collect();
    drop(seen);
    if are_first.iter().all(|is_first| *is_first) {
        return Vec::new();
    }
    let (first, repeated): (Vec<_>, Vec<_>) =
        std::mem::take(records).into_iter().zip(are_first).partition(|(_, is_first)| *is_first);
    records.extend(first.into_iter().map(|(record, _)| record));
    repeated.into_iter().map(|(record, _)| record).collect()
}

/// Removes and returns records of one file whose id is that of a later record.
pub fn drop_superseded<T>(records: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Vec<T> {
    records.reverse();
    let superseded = drop_repeated(records, id);
    records.reverse();
    superseded
}

/// Returns true for the ids of layers, images and containers: 64 lower-case hex digits.
pub(crate) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod hostile;
