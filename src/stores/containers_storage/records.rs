//! The record files: `layers.json`, `images.json`, `containers.json` and their volatile
//! mapped layers. Pure: bytes in, records and problems out.
//!
//! Each file is one JSON array of objects; a missing or empty file and `null` mean "no
//! records" (container-libs, `storage/{layers,images,containers}.go`). An invalid record
//! is skipped and reported; a truncated file gives the records before the end.

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
    /// When the record was created; `None` for Go's zero time.
    pub created: Option<Timestamp>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// Length of the uncompressed tar in bytes as the runtimes count it: 0 where a partial
    /// pull does not know it, absent for containers' layers.
    pub diff_size: Option<u64>,
    /// It was pulled in parts by its table of contents (zstd:chunked, 1.52 and later).
    pub by_toc: bool,
    /// The layer is being created or deleted; every library deletes it when it next opens the store.
    pub incomplete: bool,
    /// From a `volatile-*.json` file: a container's layer, gone after a reboot.
    pub volatile: bool,
}

/// A record of `images.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    pub id: String,
    /// Names, in the order of the record.
    pub names: Vec<String>,
    /// The manifest's digest, and those of further manifests.
    pub digests: Vec<String>,
    /// The top layer; absent for manifest lists.
    pub layer: Option<String>,
    /// Twins of the top layer for other user namespaces.
    pub mapped_layers: Vec<String>,
    /// When the record was created.
    pub created: Option<Timestamp>,
    /// Big data by name, with the recorded length in bytes.
    pub big_data: Vec<(String, Option<u64>)>,
}

impl ImageRecord {
    /// Its top layer and the twins of that.
    pub(crate) fn tops(&self) -> impl Iterator<Item = &String> {
        self.layer.iter().chain(&self.mapped_layers)
    }
}

/// A record of `containers.json` or `volatile-containers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    pub id: String,
    pub names: Vec<String>,
    /// Image id; absent for a container made from scratch.
    pub image: Option<String>,
    pub layer: Option<String>,
    /// The engine's own text, usually JSON.
    pub metadata: Option<String>,
    /// When the record was created.
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
    /// Records may be missing from `records`: the file was interrupted or held nonsense.
    pub damaged: bool,
}

/// Problems listed for one file; the rest is counted in a last line.
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
                // The library sets the size only together with a digest, and leaves a zero out. A
                // partial pull may know neither (-1): the runtimes then count 0.
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
    let weight = |image: &ImageRecord| {
        let texts =
            image.names.len() + image.digests.len() + image.mapped_layers.len() + image.big_data.len();
        allowance::IMAGE + allowance::TEXT * texts as u64
    };
    parse(content, allowance, weight, |image| {
        let mut digests: Vec<String> = image.text("digest")?.into_iter().collect();
        let mut more: Vec<(String, String)> = image.members("big-data-digests")?;
        more.retain(|(name, _)| name == "manifest" || name.starts_with("manifest-"));
        // The same order, whatever the library wrote them in.
        more.sort();
        for (_, digest) in more {
            if !digests.contains(&digest) {
                digests.push(digest);
            }
        }
        let sizes: HashMap<String, u64> = image.members("big-data-sizes")?.into_iter().collect();
        let names = image.texts("big-data-names")?.into_iter();
        Ok(ImageRecord {
            id: id(image)?,
            names: image.texts("names")?,
            digests,
            layer: image.text("layer")?,
            mapped_layers: image.texts("mapped-layers")?,
            created: image.time("created")?,
            big_data: names.map(|name| (name.clone(), sizes.get(&name).copied())).collect(),
        })
    })
}

#[must_use]
pub fn containers(content: &[u8], volatile: bool, allowance: &Allowance) -> Parsed<ContainerRecord> {
    let weight =
        |container: &ContainerRecord| allowance::CONTAINER + allowance::TEXT * container.names.len() as u64;
    parse(content, allowance, weight, |container| {
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

/// The record's id: any text that can be a file name, so that no id leads elsewhere.
fn id(record: &Object<'_>) -> Result<String, String> {
    let id = record.text("id")?.ok_or("it has no id")?;
    let is_name = id.len() <= 255 && id != "." && id != ".." && !id.contains(['/', '\0']);
    let beginning = || id.chars().take(255).collect::<String>();
    if is_name { Ok(id) } else { Err(format!("its id {:?} cannot be a directory name", beginning())) }
}

/// Runs over the array some elements at a time, so that a file which breaks off still gives
/// what came before. Of each element only the fields that are needed are ever held.
fn parse<T: Send>(
    content: &[u8],
    allowance: &Allowance,
    weight: impl Fn(&T) -> u64 + Sync,
    record: impl Fn(&Object<'_>) -> Result<T, String> + Sync,
) -> Parsed<T> {
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut left_out = 0_usize;
    let mut beyond = 0_usize;
    let mut ordinal = 0_usize;
    let ended = lenient::each_batch(content, |elements| {
        let made = elements.par_iter().map(|element| {
            let record = record(&lenient::object(element)?)?;
            Ok::<_, String>(allowance.charge(weight(&record)).is_ok().then_some(record))
        });
        for made in made.collect::<Vec<_>>() {
            ordinal += 1;
            match made {
                Ok(Some(made)) => records.push(made),
                Ok(None) => beyond += 1,
                Err(problem) => {
                    left_out += 1;
                    if left_out <= MOST_PROBLEMS {
                        problems.push(format!("record {ordinal} is ignored: {problem}"));
                    }
                }
            }
        }
    });
    if left_out > MOST_PROBLEMS {
        problems.push(format!("{} more records are ignored", left_out - MOST_PROBLEMS));
    }
    if beyond > 0 {
        problems.push(format!("{beyond} records are {}", allowance::SPENT));
    }
    let mut damaged = left_out + beyond > 0;
    if let Err(problem) = ended {
        damaged = true;
        problems.push(format!("{problem}; {} records before that are used", records.len()));
    }
    Parsed { records, problems, damaged }
}

/// Drops records whose id came before. The library, too, keeps the first.
pub fn drop_repeated<T>(records: &mut Vec<T>, id: impl Fn(&T) -> &str) -> Vec<String> {
    let mut seen = HashSet::with_capacity(records.len());
    let fresh: Vec<bool> = records.iter().map(|record| seen.insert(id(record))).collect();
    drop(seen);
    let mut fresh = fresh.into_iter();
    let mut repeated = Vec::new();
    records.retain(|record| {
        let stays = fresh.next().unwrap_or(true);
        if !stays {
            repeated.push(id(record).to_owned());
        }
        stays
    });
    repeated
}

/// Ids of layers, images and containers are 64 lower-case hex digits.
pub(crate) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod hostile;
