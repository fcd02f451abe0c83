//! Resolves an image name's target to the manifest, configuration and layers for this node. Pure; the caller provides
//! the documents.

use std::collections::HashMap;

use crate::stores::oci::{Descriptor, Document};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pub index: bool,
    /// Digest of this node's manifest.
    pub manifest: Option<String>,
    /// Configuration, whose digest is the image's id in CRI.
    pub config: Option<Descriptor>,
    /// Layers, the base first.
    pub layers: Vec<Descriptor>,
    /// Sum of the lengths that CRI counts as the image's size: the blobs that the manifest lists, the manifest, and
    /// the index if there is one.
    pub listed_bytes: Option<u64>,
    /// Blobs without which CRI cannot read the image: target, manifest, configuration.
    pub missing: Vec<String>,
}

/// Follows `target` to the manifest of this node's platform.
///
/// `document` returns a blob's content if its file exists and can be parsed, `exists` whether a blob's file exists,
/// and `unpacked` whether the layers of a configuration were unpacked here. Of several platforms, unpacked ones are
/// preferred, then `platform`, then the first one.
pub fn resolve(
    target: (&str, Option<u64>),
    platform: &str,
    document: &dyn Fn(&str) -> Option<Document>,
    exists: &dyn Fn(&str) -> bool,
    unpacked: &dyn Fn(&str) -> bool,
) -> Resolved {
    let (target, target_size) = target;
    let (index, manifest, manifest_size, sum) = match document(target) {
        None | Some(Document::Manifest { config: None, .. }) => {
            return Resolved { missing: vec![target.to_owned()], ..Resolved::default() };
        }
        Some(Document::Manifest { config: Some(config), layers }) => {
            (false, (target.to_owned(), config, layers), target_size, Some(0))
        }
        Some(Document::Index(children)) => {
            // An index may name the same large manifest many times, each time for another platform.
            let mut of_digest: HashMap<&str, Option<(Descriptor, Vec<Descriptor>)>> = HashMap::new();
            for child in &children {
                of_digest.entry(&child.digest).or_insert_with(|| match document(&child.digest)? {
                    Document::Manifest { config, layers } => Some((config?, layers)),
                    Document::Index(_) => None,
                });
            }
            let best = children
                .iter()
                .enumerate()
                .filter_map(|(position, child)| {
                    Some((position, child, &of_digest[&*child.digest].as_ref()?.0))
                })
                .max_by_key(|(position, child, config)| {
                    let known = child.platform.as_deref() != Some("unknown/unknown");
                    let fits = child.platform.as_deref() == Some(platform);
                    // `max_by_key` returns the last of several equal elements, but the first one in an index is the
                    // best.
                    let preferred = std::cmp::Reverse(*position);
                    (exists(&config.digest), unpacked(&config.digest), known, fits, preferred)
                });
            let best = best.map(|(_, child, _)| child);
            let chosen = best.and_then(|child| Some((child, of_digest.remove(&*child.digest)??)));
            let Some((child, (config, layers))) = chosen else {
                let missing = children
                    .iter()
                    .find(|child| child.platform.as_deref() == Some(platform))
                    .or(children.first())
                    .map(|child| child.digest.clone());
                return Resolved {
                    index: true,
                    missing: missing.into_iter().collect(),
                    ..Resolved::default()
                };
            };
            (true, (child.digest.clone(), config, layers), child.size, target_size)
        }
    };
    let (manifest, config, layers) = manifest;
    let mut sizes = layers.iter().map(|layer| layer.size).chain([config.size, manifest_size, sum]);
    let listed_bytes = sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?));
    let missing = if exists(&config.digest) { Vec::new() } else { vec![config.digest.clone()] };
    Resolved { index, manifest: Some(manifest), config: Some(config), layers, listed_bytes, missing }
}

#[cfg(test)]
mod tests;
