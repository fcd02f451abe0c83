//! The record files: `layers.json`, `images.json`, `containers.json` and their volatile
//! twins. Pure: bytes in, records and problems out.
//!
//! Each file is one JSON array of objects; a missing or empty file and `null` mean "no
//! records" (container-libs, `storage/{layers,images,containers}.go`). A record that does
//! not make sense is left out and named; a file that breaks off gives what came before.

pub(super) mod lenient;

use std::collections::HashSet;

use jiff::Timestamp;
use serde::de::MapAccess;

use lenient::{Fields, Flag, Length, Members, Object, Skip, Text, Texts, Truth};

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
    /// It was pulled in parts by its table of contents (zstd:chunked, 1.52 and later).
    pub by_toc: bool,
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

/// The fields of a type that are read from a record, by their names.
macro_rules! fields {
    ($type:ident { $($field:ident: $kind:ty = $name:literal),* $(,)? }) => {
        #[derive(Default)]
        struct $type { $($field: $kind),* }

        impl Fields for $type {
            fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, from: &mut A) -> Result<(), A::Error> {
                match name {
                    $($name => self.$field = from.next_value()?,)*
                    _ => {
                        from.next_value::<Skip>()?;
                    }
                }
                Ok(())
            }
        }
    };
}
pub(super) use fields;

fields!(LayerFields {
    id: Text = "id",
    parent: Text = "parent",
    created: Text = "created",
    diff_digest: Text = "diff-digest",
    diff_size: Length = "diff-size",
    toc_digest: Option<Skip> = "toc-digest",
    flags: Option<Object<LayerFlags>> = "flags",
});

fields!(LayerFlags { incomplete: Flag = "incomplete" });

fields!(ImageFields {
    id: Text = "id",
    names: Texts = "names",
    digest: Text = "digest",
    digests: Members<Text> = "big-data-digests",
    layer: Text = "layer",
    mapped_layers: Texts = "mapped-layers",
    created: Text = "created",
    big_data: Texts = "big-data-names",
    sizes: Members<Length> = "big-data-sizes",
});

fields!(ContainerFields {
    id: Text = "id",
    names: Texts = "names",
    image: Text = "image",
    layer: Text = "layer",
    metadata: Text = "metadata",
    created: Text = "created",
});

/// Parses `layers.json`.
#[must_use]
pub fn layers(content: &[u8], volatile: bool) -> Parsed<LayerRecord> {
    parse(content, |layer: LayerFields| {
        let digest = layer.diff_digest.filled();
        Ok(LayerRecord {
            id: lenient::id(layer.id)?,
            parent: layer.parent.filled(),
            created: layer.created.time(),
            // The library sets the size only together with a digest, and leaves a zero out. A
            // partial pull may know neither (-1): the runtimes then count 0.
            diff_size: layer.diff_size.0.or((digest.is_some() || layer.toc_digest.is_some()).then_some(0)),
            diff_id: digest,
            by_toc: layer.toc_digest.is_some(),
            incomplete: layer
                .flags
                .and_then(|flags| flags.0)
                .is_some_and(|flags| flags.incomplete.0 != Truth::No),
            volatile,
        })
    })
}

/// Parses `images.json`.
#[must_use]
pub fn images(content: &[u8]) -> Parsed<ImageRecord> {
    parse(content, |image: ImageFields| {
        let mut digests: Vec<String> = image.digest.filled().into_iter().collect();
        for (name, digest) in image.digests.all("digests")? {
            let is_manifest = name == "manifest" || name.starts_with("manifest-");
            if let (true, Text(Some(digest))) = (is_manifest, digest)
                && !digests.contains(&digest)
            {
                digests.push(digest);
            }
        }
        let sizes = image.sizes.all("sizes")?;
        Ok(ImageRecord {
            id: lenient::id(image.id)?,
            names: image.names.all("names")?,
            digests,
            layer: image.layer.filled(),
            mapped_layers: image.mapped_layers.all("mapped layers")?,
            created: image.created.time(),
            big_data: image
                .big_data
                .all("big data")?
                .into_iter()
                .map(|name| {
                    let size = sizes.get(&name).and_then(|size| size.0);
                    (name, size)
                })
                .collect(),
        })
    })
}

/// Parses `containers.json`.
#[must_use]
pub fn containers(content: &[u8], volatile: bool) -> Parsed<ContainerRecord> {
    parse(content, |container: ContainerFields| {
        Ok(ContainerRecord {
            id: lenient::id(container.id)?,
            names: container.names.all("names")?,
            image: container.image.filled(),
            layer: container.layer.filled(),
            metadata: container.metadata.filled(),
            created: container.created.time(),
            volatile,
        })
    })
}

/// Runs over the array element by element, so that a file which breaks off still gives
/// what came before. Of each element only the fields that are needed are ever held.
fn parse<F: Fields, T>(content: &[u8], mut record: impl FnMut(F) -> Result<T, String>) -> Parsed<T> {
    let mut records = Vec::new();
    let mut problems = Vec::new();
    let mut left_out = 0_usize;
    let mut ordinal = 0_usize;
    let ended = lenient::each_element(content, |element: Option<F>| {
        ordinal += 1;
        match element.ok_or_else(|| "it is not an object".into()).and_then(&mut record) {
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

#[cfg(test)]
mod hostile;
