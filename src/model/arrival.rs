//! Bytes that images would add to a store if they were pulled. Pure.
//!
//! A layer is there already if an image of the store has the same layers up to it: the tools unpack a layer onto its
//! parent, and unpack it again onto another one. Images that arrive together share alike. For example, with
//! `base, a` in the store, `base, b` adds `b`, and after it `base, b, c` adds `c` alone.
//!
//! A manifest has the compressed sizes of its layers alone. What a layer takes on the disk is estimated from the layers
//! of this store whose compressed sizes are known: the sum of their bytes on the disk by the sum of their compressed
//! bytes. A containerd that keeps the compressed blobs beside the unpacked layers takes both.

use std::collections::{HashMap, HashSet};

use serde::{Serialize, Serializer};

use crate::model::text::display::two_decimals;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBlob {
    pub digest: String,
    /// Length of the blob in bytes: compressed, as it is downloaded.
    pub compressed_bytes: u64,
}

/// A layer of the store with a known blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLayer {
    pub digest: String,
    pub compressed_bytes: u64,
    /// Bytes on the disk, unpacked.
    pub bytes: u64,
}

/// Contents of a store that decide what has to arrive.
#[derive(Clone, Debug, Default)]
pub struct StoreContents {
    /// By image: its layers, the base first.
    pub chains: Vec<Vec<KnownLayer>>,
    /// The store keeps the compressed blob of each layer too.
    pub keeps_blobs: bool,
    /// Digests of blobs that are here, while their layers are not: those of another namespace of containerd. Blobs are
    /// shared, and layers are unpacked again.
    pub blobs: HashSet<String>,
}

/// Bytes on the disk for each compressed byte.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RatioDoc"))]
pub struct Ratio {
    /// Of all layers together.
    #[serde(serialize_with = "rounded")]
    pub mean: f64,
    /// A tenth of the layers, by compressed bytes, have less.
    #[serde(serialize_with = "rounded")]
    pub low: f64,
    /// A tenth of the layers, by compressed bytes, have more.
    #[serde(serialize_with = "rounded")]
    pub high: f64,
    /// Number of layers of the store that it was computed from; 0: a usual ratio is assumed.
    pub layers: usize,
}

impl Ratio {
    /// Usual ratio of gzip for distributions and programs, for a store without layers of known sizes.
    const USUAL: Self = Self { mean: 2.5, low: 1.5, high: 3.5, layers: 0 };

    #[must_use]
    pub fn of(contents: &StoreContents) -> Self {
        let mut seen = HashSet::new();
        let mut layers: Vec<_> = contents
            .chains
            .iter()
            .flatten()
            .filter(|layer| layer.compressed_bytes > 0 && seen.insert(&layer.digest))
            .collect();
        let sum = |field: fn(&KnownLayer) -> u64| {
            layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(field(layer)))
        };
        let (compressed, bytes) = (sum(|layer| layer.compressed_bytes), sum(|layer| layer.bytes));
        if compressed == 0 || bytes == 0 {
            return Self::USUAL;
        }
        layers.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        Self {
            mean: as_float(bytes) / as_float(compressed),
            low: quantile(&layers, compressed / 10),
            high: quantile(&layers, compressed - compressed / 10),
            layers: layers.len(),
        }
    }

    fn bytes(factor: f64, compressed: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // an estimate of bytes is not negative
        let bytes = (as_float(compressed) * factor).round() as u64;
        bytes
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn rounded<S: Serializer>(ratio: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(two_decimals(*ratio))
}

fn ratio(layer: &KnownLayer) -> f64 {
    as_float(layer.bytes) / as_float(layer.compressed_bytes)
}

#[allow(clippy::cast_precision_loss)] // 2^53 bytes are 8 PiB
fn as_float(bytes: u64) -> f64 {
    bytes as f64
}

/// Returns the ratio of the layer at which the sum of the compressed bytes reaches `share`.
fn quantile(sorted: &[&KnownLayer], share: u64) -> f64 {
    let mut sum: u64 = 0;
    for layer in sorted {
        sum = sum.saturating_add(layer.compressed_bytes);
        if sum >= share {
            return ratio(layer);
        }
    }
    sorted.last().map_or(0.0, |layer| ratio(layer))
}

/// Bytes that arrive with one image, after those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    pub layers: usize,
    /// Layers that neither the store nor an image before it has.
    pub new_layers: usize,
    /// Compressed bytes to download.
    pub download_bytes: u64,
    /// Estimate of the bytes on the disk.
    pub disk_bytes: u64,
    /// Estimates with the low and the high ratio.
    pub disk_bytes_low: u64,
    pub disk_bytes_high: u64,
}

impl Arrival {
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            layers: self.layers + other.layers,
            new_layers: self.new_layers + other.new_layers,
            download_bytes: self.download_bytes.saturating_add(other.download_bytes),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
            disk_bytes_low: self.disk_bytes_low.saturating_add(other.disk_bytes_low),
            disk_bytes_high: self.disk_bytes_high.saturating_add(other.disk_bytes_high),
        }
    }
}

/// Parent of a lowest layer.
const BASE: usize = 0;

/// Layers by their parents. Equal layers on equal parents have the same number.
#[derive(Default)]
struct Chains<'a>(HashMap<(usize, &'a str), usize>);

impl<'a> Chains<'a> {
    /// Returns the number of the layer, and true if it is new.
    fn add(&mut self, parent: usize, digest: &'a str) -> (usize, bool) {
        let next = self.0.len() + 1;
        let id = *self.0.entry((parent, digest)).or_insert(next);
        (id, id == next)
    }
}

/// Computes what each image of `wanted` adds, in this order.
#[must_use]
pub fn arrivals(contents: &StoreContents, ratio: &Ratio, wanted: &[Vec<LayerBlob>]) -> Vec<Arrival> {
    let mut chains = Chains::default();
    let mut blobs: HashSet<&str> = contents.blobs.iter().map(String::as_str).collect();
    for chain in &contents.chains {
        let mut parent = BASE;
        for layer in chain {
            blobs.insert(&layer.digest);
            parent = chains.add(parent, &layer.digest).0;
        }
    }
    let mut arrivals = Vec::with_capacity(wanted.len());
    for image in wanted {
        let mut arrival = Arrival { layers: image.len(), ..Arrival::default() };
        let mut parent = BASE;
        for layer in image {
            let is_new_blob = blobs.insert(&layer.digest);
            let downloaded = if is_new_blob { layer.compressed_bytes } else { 0 };
            arrival.download_bytes = arrival.download_bytes.saturating_add(downloaded);
            let kept = if contents.keeps_blobs { downloaded } else { 0 };
            let (layer_id, is_new) = chains.add(parent, &layer.digest);
            parent = layer_id;
            arrival.new_layers += usize::from(is_new);
            let unpacked = if is_new { layer.compressed_bytes } else { 0 };
            for (bytes, factor) in [
                (&mut arrival.disk_bytes, ratio.mean),
                (&mut arrival.disk_bytes_low, ratio.low),
                (&mut arrival.disk_bytes_high, ratio.high),
            ] {
                *bytes = bytes.saturating_add(kept).saturating_add(Ratio::bytes(factor, unpacked));
            }
        }
        arrivals.push(arrival);
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(digest: &str, compressed_bytes: u64, bytes: u64) -> KnownLayer {
        KnownLayer { digest: digest.into(), compressed_bytes, bytes }
    }

    fn layers(digests: &str) -> Vec<LayerBlob> {
        let layers = digests.chars().map(|digest| LayerBlob { digest: digest.into(), compressed_bytes: 100 });
        layers.collect()
    }

    #[test]
    fn layers_count_once_on_the_same_parent() {
        let chains = vec![vec![known("b", 100, 200), known("a", 100, 200)]];
        let contents = StoreContents { chains, ..StoreContents::default() };
        let ratio = Ratio::of(&contents);
        assert_eq!((ratio.mean, ratio.layers), (2.0, 2));
        for (wanted, downloads, on_disk) in [
            (&["ba"][..], &[0][..], &[0][..]),
            (&["bac"], &[100], &[200]),
            (&["bx", "bxy", "bx"], &[100, 100, 0], &[200, 200, 0]),
            // Unpacked again onto another parent; the blob is not downloaded again where the store keeps it.
            (&["ab"], &[0], &[400]),
            (&["", "c"], &[0, 100], &[0, 200]),
        ] {
            let images: Vec<_> = wanted.iter().map(|image| layers(image)).collect();
            let found = arrivals(&contents, &ratio, &images);
            let found_downloads: Vec<_> = found.iter().map(|arrival| arrival.download_bytes).collect();
            let found_on_disk: Vec<_> = found.iter().map(|arrival| arrival.disk_bytes).collect();
            assert_eq!((&found_downloads[..], &found_on_disk[..]), (downloads, on_disk), "{wanted:?}");
        }
    }

    #[test]
    fn kept_blobs_are_added_once() {
        let contents = StoreContents {
            chains: vec![vec![known("b", 100, 300)]],
            keeps_blobs: true,
            ..StoreContents::default()
        };
        let found = arrivals(&contents, &Ratio::of(&contents), &[layers("bc"), layers("cb")]);
        assert_eq!(found[0].disk_bytes, 100 + 300);
        assert_eq!(found[1].disk_bytes, 600, "both are unpacked again, but their blobs are there");
    }

    #[test]
    fn blobs_of_another_namespace_are_unpacked_again() {
        let contents = StoreContents {
            keeps_blobs: true,
            blobs: HashSet::from(["b".into()]),
            ..StoreContents::default()
        };
        let found = arrivals(&contents, &Ratio::of(&contents), &[layers("bc")]);
        assert_eq!((found[0].new_layers, found[0].download_bytes, found[0].disk_bytes), (2, 100, 100 + 500));
    }

    /// Sizes come from manifests of strangers.
    #[test]
    fn sums_of_huge_sizes_saturate() {
        let huge = |digest: &str| LayerBlob { digest: digest.into(), compressed_bytes: u64::MAX };
        let chains = vec![vec![known("b", u64::MAX, u64::MAX), known("c", u64::MAX, u64::MAX)]];
        let contents = StoreContents { chains, keeps_blobs: true, ..StoreContents::default() };
        let ratio = Ratio::of(&contents);
        let found = arrivals(&contents, &ratio, &[vec![huge("x"), huge("y")]]);
        assert_eq!((found[0].download_bytes, found[0].disk_bytes), (u64::MAX, u64::MAX));
        assert_eq!(found[0].clone().plus(&found[0]).disk_bytes_high, u64::MAX);
    }

    #[test]
    fn ratio_has_a_spread() {
        let chain = (0..10).map(|n| known(&n.to_string(), 100, 100 * (n + 1))).collect();
        let ratio = Ratio::of(&StoreContents { chains: vec![chain], ..StoreContents::default() });
        assert_eq!((ratio.mean, ratio.low, ratio.high), (5.5, 1.0, 9.0));
        assert_eq!(Ratio::of(&StoreContents::default()), Ratio::USUAL);
        let empty = StoreContents { chains: vec![vec![known("a", 0, 0)]], ..StoreContents::default() };
        assert_eq!(Ratio::of(&empty), Ratio::USUAL);
    }
}
