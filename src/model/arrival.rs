//! Bytes that images would add to a store if they were pulled. Pure.
//!
//! A layer is there already if an image of the store has the same layers up to it: the tools unpack a layer onto its
//! parent, and unpack it again onto another one. Images that arrive together share alike. For example, with
//! `base, a` in the store, `base, b` adds `b`, and after it `base, b, c` adds `c` alone. A containerd that keeps the
//! compressed blobs beside the unpacked layers takes both.
//!
//! A manifest has the compressed sizes of its layers alone. [`Sizes`] estimates what a layer takes on the disk from the
//! first of these sources that is known:
//!
//! 1. the same layer on this node: on another parent, in another namespace of containerd, or in another store;
//! 2. layers of the same repository with a similar compressed size: a version resembles the one before it. The
//!    nearer the size, the more a layer counts; layers that the image itself has were not replaced, and do not count;
//! 3. the length of the tar, if an annotation has it or the layer is not compressed;
//! 4. all layers of this node with the same compression;
//! 5. usual ratios.
//!
//! An estimate has a lower and an upper end. Between layers of one repository they are near each other. Without such
//! layers they are far apart, since a manifest does not show whether a layer has archives (one byte on the disk for each
//! byte of the download) or small files of text (seven).

use std::collections::{HashMap, HashSet};

use crate::model::text::names::names;

names! {
    /// Compression of a layer's blob.
    #[derive(Default)]
    Compression {
        #[default]
        Gzip = "gzip",
        Zstd = "zstd",
        None = "none",
    }
}

/// A layer as a manifest describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerBlob {
    pub digest: String,
    /// Length of the blob in bytes: compressed, as it is downloaded.
    pub compressed_bytes: u64,
    pub compression: Compression,
    /// Length of its tar, if the manifest has it.
    pub tar_bytes: Option<u64>,
}

impl LayerBlob {
    /// Creates a layer with the compression of its media type. A layer of another type counts as the usual one, gzip.
    #[must_use]
    pub fn new(digest: String, compressed_bytes: u64, media_type: &str) -> Self {
        let compression = if media_type.ends_with("zstd") {
            Compression::Zstd
        } else if media_type.ends_with(".tar") {
            Compression::None
        } else {
            Compression::Gzip
        };
        let tar_bytes = (compression == Compression::None).then_some(compressed_bytes);
        Self { digest, compressed_bytes, compression, tar_bytes }
    }
}

/// A layer of this node with a known blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLayer {
    pub blob: LayerBlob,
    /// Bytes on the disk, unpacked; 0 if they could not be measured.
    pub bytes: u64,
}

/// An image of this node with the sizes of its layers.
#[derive(Clone, Debug, Default)]
pub struct KnownImage {
    pub id: String,
    /// Repositories of its names, in their full form.
    pub repositories: Vec<String>,
    /// Its layers, the base first.
    pub layers: Vec<KnownLayer>,
    /// The runtime has it in the store that the images are pulled into.
    pub is_here: bool,
}

/// Contents of a node that decide how much arrives.
#[derive(Clone, Debug, Default)]
pub struct NodeContents {
    pub images: Vec<KnownImage>,
    /// The store keeps the compressed blob of each layer too.
    pub keeps_blobs: bool,
    /// Digests of blobs that are here, while their layers are not: those of another namespace of containerd. Blobs are
    /// shared, and layers are unpacked again.
    pub blobs: HashSet<String>,
}

/// An image that is to be pulled.
#[derive(Clone, Copy, Debug)]
pub struct WantedLayers<'a> {
    /// Its repository in the full form, if it is known.
    pub repository: Option<&'a str>,
    /// Its layers, the base first; empty if they are unknown.
    pub layers: &'a [LayerBlob],
}

names! {
    /// Source of an estimate, the most certain first.
    SizeSource {
        /// The same layer on this node.
        Layer = "layer",
        /// Layers of the same repository on this node.
        Repository = "repository",
        /// Length of the tar in the manifest.
        Manifest = "manifest",
        /// Mean of this node's layers with the same compression.
        Node = "node",
        /// Usual ratio of files in images.
        Usual = "usual",
    }
}

/// Bytes on the disk with the ends of their spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    pub low: u64,
    pub middle: u64,
    pub high: u64,
}

impl Estimate {
    #[must_use]
    pub fn exact(bytes: u64) -> Self {
        Self { low: bytes, middle: bytes, high: bytes }
    }

    #[must_use]
    fn plus(self, other: Self) -> Self {
        Self {
            low: self.low.saturating_add(other.low),
            middle: self.middle.saturating_add(other.middle),
            high: self.high.saturating_add(other.high),
        }
    }

    /// Returns the sum over images. The lower ends are what arrives at least, so they add up. The errors above cancel out in
    /// part, as independent errors do (the root of the sum of squares), but at most by half: images that come together
    /// resemble each other.
    #[must_use]
    pub fn of_images(images: &[Self]) -> Self {
        let middle = images.iter().fold(0, |sum: u64, image| sum.saturating_add(image.middle));
        let above = images.iter().map(|image| image.high.saturating_sub(image.middle));
        Self {
            low: images.iter().fold(0, |sum: u64, image| sum.saturating_add(image.low)),
            middle,
            high: middle.saturating_add(joint_error(above)),
        }
    }
}

fn joint_error(errors: impl Iterator<Item = u64>) -> u64 {
    let (sum, squares) =
        errors.map(as_float).fold((0.0, 0.0), |(sum, squares), error| (sum + error, squares + error * error));
    as_bytes(f64::max(sum / 2.0, squares.sqrt()))
}

/// Bytes on the disk for each byte of a blob.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    low: f64,
    middle: f64,
    high: f64,
}

impl Ratio {
    /// Ratios of the files in Debian's packages, libraries, sources and archives: 1.0 of archives, 2.5 of programs, 4 of
    /// scripts, 7 of small sources.
    fn usual(compression: Compression) -> Self {
        match compression {
            Compression::Gzip => Self { low: 1.0, middle: 2.7, high: 7.0 },
            Compression::Zstd => Self { low: 1.0, middle: 3.0, high: 8.0 },
            // Each file of a tar takes 512 bytes or more besides its data; each on a disk fills its last block.
            Compression::None => Self { low: 0.9, middle: 1.05, high: 2.5 },
        }
    }

    fn of(self, bytes: u64) -> Estimate {
        let [low, middle, high] =
            [self.low, self.middle, self.high].map(|ratio| as_bytes(as_float(bytes) * ratio));
        Estimate { low, middle, high }
    }
}

fn as_bytes(number: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // an estimate is not negative, and saturates
    let bytes = number.round() as u64;
    bytes
}

#[allow(clippy::cast_precision_loss)] // 2^53 bytes are 8 PiB
fn as_float(bytes: u64) -> f64 {
    bytes as f64
}

/// Sizes of the layers of this node.
#[derive(Debug, Default)]
pub struct Sizes<'a> {
    /// Bytes on the disk by the digest of the blob.
    layers: HashMap<&'a str, u64>,
    repositories: HashMap<&'a str, Vec<&'a KnownLayer>>,
    /// Ratios of all layers.
    node: HashMap<Compression, Ratio>,
}

impl<'a> Sizes<'a> {
    /// Size of a blob below which the directories of its layer take more than its files.
    const SMALL: u64 = 64 << 10;
    /// Bytes of a layer's own directories and records.
    const DIRECTORIES: u64 = 24 << 10;
    /// Error between layers of one repository and of similar size.
    const ERROR: f64 = 0.25;
    /// Sizes are similar up to this factor.
    const SIMILAR: f64 = 2.0;

    #[must_use]
    pub fn of(contents: &'a NodeContents) -> Self {
        let mut sizes = Self::default();
        let mut by_compression: HashMap<Compression, Vec<&KnownLayer>> = HashMap::new();
        for image in &contents.images {
            for layer in &image.layers {
                if layer.bytes == 0 {
                    continue;
                }
                let is_new = sizes.layers.insert(&layer.blob.digest, layer.bytes).is_none();
                if layer.blob.compressed_bytes < Self::SMALL {
                    continue;
                }
                for repository in &image.repositories {
                    sizes.repositories.entry(repository).or_default().push(layer);
                }
                if is_new {
                    by_compression.entry(layer.blob.compression).or_default().push(layer);
                }
            }
        }
        for (compression, layers) in by_compression {
            sizes.node.insert(compression, Self::node_ratio(compression, layers));
        }
        sizes
    }

    /// Returns the mean ratio of all layers. Its ends are those of nine tenths of the bytes, but never nearer than the
    /// usual ones: a layer of another repository may have other content than all that are here.
    fn node_ratio(compression: Compression, mut layers: Vec<&KnownLayer>) -> Ratio {
        let usual = Ratio::usual(compression);
        let compressed: f64 = layers.iter().map(|layer| as_float(layer.blob.compressed_bytes)).sum();
        let bytes: f64 = layers.iter().map(|layer| as_float(layer.bytes)).sum();
        layers.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        Ratio {
            low: quantile(&layers, compressed * 0.05).min(usual.low),
            middle: bytes / compressed,
            high: quantile(&layers, compressed * 0.95).max(usual.high),
        }
    }

    /// Estimates the bytes on the disk of a layer that is unpacked.
    fn estimate(&self, image: WantedLayers<'_>, layer: &LayerBlob) -> (Estimate, SizeSource) {
        let compressed_bytes = layer.compressed_bytes;
        if let Some(bytes) = self.layers.get(layer.digest.as_str()) {
            return (Estimate::exact(*bytes), SizeSource::Layer);
        }
        if compressed_bytes < Self::SMALL {
            let middle = Self::DIRECTORIES + compressed_bytes * 4;
            let high = middle + Self::SMALL + compressed_bytes * 12;
            return (Estimate { low: compressed_bytes.min(4096), middle, high }, SizeSource::Usual);
        }
        if let Some(ratio) = self.of_repository(image, layer) {
            return (ratio.of(compressed_bytes), SizeSource::Repository);
        }
        if let Some(tar_bytes) = layer.tar_bytes {
            let ratio = Ratio::usual(Compression::None);
            return (ratio.of(tar_bytes).plus(Self::of_small_files(tar_bytes)), SizeSource::Manifest);
        }
        let (ratio, source) = match self.node.get(&layer.compression) {
            Some(ratio) => (*ratio, SizeSource::Node),
            None => (Ratio::usual(layer.compression), SizeSource::Usual),
        };
        (ratio.of(compressed_bytes).plus(Self::of_small_files(compressed_bytes)), source)
    }

    /// Returns what a small layer may take above the upper ratio: it may have nothing but small files, each of which
    /// fills a block (18 bytes for each byte of time zones and headers of less than 1 KiB). A large one has others, too.
    fn of_small_files(bytes: u64) -> Estimate {
        Estimate { high: bytes.saturating_mul(18).min(4 << 20), ..Estimate::default() }
    }

    /// Returns the ratio of the repository's layers of similar size, each weighted by the square of its nearness. `None`
    /// without such layers.
    fn of_repository(&self, image: WantedLayers<'_>, layer: &LayerBlob) -> Option<Ratio> {
        /// Distance at which sizes are as good as equal.
        const NEAR: f64 = 0.05;
        let (mut low, mut high, mut sum, mut weights) = (f64::INFINITY, 0.0, 0.0, 0.0);
        let layers = self.repositories.get(image.repository?)?.iter();
        let others =
            layers.filter(|known| image.layers.iter().all(|wanted| wanted.digest != known.blob.digest));
        for known in others.filter(|known| known.blob.compression == layer.compression) {
            let factor = as_float(layer.compressed_bytes) / as_float(known.blob.compressed_bytes);
            let distance = factor.ln().abs();
            if distance <= Self::SIMILAR.ln() {
                let weight = (NEAR + distance).powi(-2);
                low = f64::min(low, ratio(known));
                high = f64::max(high, ratio(known));
                sum += ratio(known) * weight;
                weights += weight;
            }
        }
        let error = 1.0 + Self::ERROR;
        (weights > 0.0).then(|| Ratio { low: low / error, middle: sum / weights, high: high * error })
    }
}

fn ratio(layer: &KnownLayer) -> f64 {
    as_float(layer.bytes) / as_float(layer.blob.compressed_bytes)
}

/// Returns the ratio of the layer at which the sum of the compressed bytes reaches `share`.
fn quantile(sorted: &[&KnownLayer], share: f64) -> f64 {
    let mut sum = 0.0;
    for layer in sorted {
        sum += as_float(layer.blob.compressed_bytes);
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
    /// Bytes on the disk.
    pub disk: Estimate,
    /// Compressed bytes of the new layers by the source of their estimates, in the order of [`SizeSource::ALL`].
    pub sources: [u64; SizeSource::ALL.len()],
}

impl Arrival {
    #[must_use]
    pub fn total(images: &[&Self]) -> Self {
        let mut total = Self::default();
        for image in images {
            total.layers = total.layers.saturating_add(image.layers);
            total.new_layers = total.new_layers.saturating_add(image.new_layers);
            total.download_bytes = total.download_bytes.saturating_add(image.download_bytes);
            for (sum, bytes) in total.sources.iter_mut().zip(image.sources) {
                *sum = sum.saturating_add(bytes);
            }
        }
        let disks: Vec<_> = images.iter().map(|image| image.disk).collect();
        Self { disk: Estimate::of_images(&disks), ..total }
    }
}

/// Parent of a lowest layer.
const BASE: usize = 0;
/// Bytes of an image's own files: manifest, configuration, records.
const IMAGE_BYTES: u64 = 20 << 10;

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

/// Computes what each image of `wanted` adds, in this order, after the images with the ids `gone` were deleted.
#[must_use]
pub fn arrivals(
    contents: &NodeContents,
    sizes: &Sizes<'_>,
    wanted: &[WantedLayers<'_>],
    gone: &HashSet<&str>,
) -> Vec<Arrival> {
    let mut chains = Chains::default();
    let mut blobs: HashSet<&str> = contents.blobs.iter().map(String::as_str).collect();
    for image in contents.images.iter().filter(|image| image.is_here && !gone.contains(image.id.as_str())) {
        let mut parent = BASE;
        for layer in &image.layers {
            blobs.insert(&layer.blob.digest);
            parent = chains.add(parent, &layer.blob.digest).0;
        }
    }
    let mut arrivals = Vec::with_capacity(wanted.len());
    for image in wanted {
        let mut arrival = Arrival { layers: image.layers.len(), ..Arrival::default() };
        let mut parent = BASE;
        for layer in image.layers {
            let is_new_blob = blobs.insert(&layer.digest);
            let downloaded = if is_new_blob { layer.compressed_bytes } else { 0 };
            arrival.download_bytes = arrival.download_bytes.saturating_add(downloaded);
            if contents.keeps_blobs {
                arrival.disk = arrival.disk.plus(Estimate::exact(downloaded));
            }
            let (layer_id, is_new) = chains.add(parent, &layer.digest);
            parent = layer_id;
            if is_new {
                let (unpacked, source) = sizes.estimate(*image, layer);
                arrival.new_layers += 1;
                arrival.disk = arrival.disk.plus(unpacked);
                let sum = &mut arrival.sources[source as usize];
                *sum = sum.saturating_add(layer.compressed_bytes);
            }
        }
        if arrival.new_layers > 0 {
            arrival.disk = arrival.disk.plus(Estimate::exact(IMAGE_BYTES));
        }
        arrivals.push(arrival);
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blob(digest: &str, compressed_bytes: u64) -> LayerBlob {
        LayerBlob::new(digest.into(), compressed_bytes, "application/vnd.oci.image.layer.v1.tar+gzip")
    }

    fn known(digest: &str, compressed_bytes: u64, bytes: u64) -> KnownLayer {
        KnownLayer { blob: blob(digest, compressed_bytes), bytes }
    }

    fn image(repository: &str, layers: &[KnownLayer]) -> KnownImage {
        KnownImage {
            id: repository.into(),
            repositories: vec![repository.into()],
            layers: layers.to_vec(),
            is_here: true,
        }
    }

    fn contents(images: Vec<KnownImage>) -> NodeContents {
        NodeContents { images, ..NodeContents::default() }
    }

    fn layers(digests: &str) -> Vec<LayerBlob> {
        digests.chars().map(|digest| blob(&digest.to_string(), MIB)).collect()
    }

    fn arriving(contents: &NodeContents, wanted: &[Vec<LayerBlob>]) -> Vec<Arrival> {
        let wanted: Vec<_> = wanted.iter().map(|layers| WantedLayers { repository: None, layers }).collect();
        arrivals(contents, &Sizes::of(contents), &wanted, &HashSet::new())
    }

    #[test]
    fn layers_count_once_on_the_same_parent() {
        let here = contents(vec![image("i", &[known("b", MIB, 2 * MIB), known("a", MIB, 2 * MIB)])]);
        for (wanted, downloads, on_disk) in [
            (&["ba"][..], &[0][..], &[0][..]),
            (&["bac"], &[1], &[2]),
            (&["bx", "bxy", "bx"], &[1, 1, 0], &[2, 2, 0]),
            // Unpacked again onto another parent; the blob is not downloaded again where the store keeps it.
            (&["ab"], &[0], &[4]),
            (&["", "c"], &[0, 1], &[0, 2]),
        ] {
            let images: Vec<_> = wanted.iter().map(|image| layers(image)).collect();
            let found = arriving(&here, &images);
            let found_downloads: Vec<_> = found.iter().map(|arrival| arrival.download_bytes / MIB).collect();
            let found_on_disk: Vec<_> = found.iter().map(|arrival| arrival.disk.middle / MIB).collect();
            assert_eq!((&found_downloads[..], &found_on_disk[..]), (downloads, on_disk), "{wanted:?}");
        }
        let sizes = Sizes::of(&here);
        let wanted = layers("ba");
        let wanted = [WantedLayers { repository: None, layers: &wanted }];
        let gone = arrivals(&here, &sizes, &wanted, &HashSet::from(["i"]));
        assert_eq!(gone[0].disk, Estimate::exact(4 * MIB + IMAGE_BYTES), "their sizes are still known");
    }

    #[test]
    fn kept_blobs_are_added_once() {
        let here =
            NodeContents { keeps_blobs: true, ..contents(vec![image("i", &[known("b", MIB, 3 * MIB)])]) };
        let found = arriving(&here, &[layers("bc"), layers("cb")]);
        assert_eq!(found[0].disk.middle, (1 + 3) * MIB + IMAGE_BYTES);
        assert_eq!(
            found[1].disk.middle,
            6 * MIB + IMAGE_BYTES,
            "both are unpacked again, but their blobs are there"
        );
    }

    /// Their blobs are shared, and their sizes are known.
    #[test]
    fn layers_of_another_namespace_are_unpacked_again() {
        let elsewhere = KnownImage { is_here: false, ..image("i", &[known("b", MIB, 5 * MIB)]) };
        let here = NodeContents {
            keeps_blobs: true,
            blobs: HashSet::from(["b".into()]),
            ..contents(vec![elsewhere])
        };
        let found = arriving(&here, &[layers("b")]);
        assert_eq!((found[0].new_layers, found[0].download_bytes), (1, 0));
        assert_eq!(found[0].disk, Estimate::exact(5 * MIB + IMAGE_BYTES));
    }

    #[test]
    fn nearest_layer_of_the_repository_decides() {
        let here = contents(vec![
            image("r/app", &[known("base", 30 * MIB, 90 * MIB), known("jpg", 10 * MIB, 10 * MIB)]),
            image("r/other", &[known("text", 10 * MIB, 50 * MIB)]),
        ]);
        let sizes = Sizes::of(&here);
        let estimate =
            |repository, layer: &LayerBlob| sizes.estimate(WantedLayers { repository, layers: &[] }, layer);
        let (app, source) = estimate(Some("r/app"), &blob("new", 11 * MIB));
        assert_eq!(source, SizeSource::Repository);
        assert_eq!(app.middle, 11 * MIB);
        assert!(app.low < 9 * MIB && app.high > 13 * MIB && app.high < 14 * MIB, "{app:?}");
        // A new layer beside one of similar size that was not replaced.
        let own = [blob("jpg", 10 * MIB), blob("new", 11 * MIB)];
        let beside = WantedLayers { repository: Some("r/app"), layers: &own };
        assert_eq!(sizes.estimate(beside, &own[1]).1, SizeSource::Node);
        let (other, _) = estimate(Some("r/other"), &blob("new", 11 * MIB));
        assert_eq!(other.middle, 55 * MIB);
        // None of the repository's layers resembles it.
        let (large, source) = estimate(Some("r/app"), &blob("new", 100 * MIB));
        assert_eq!((large.middle, source), (300 * MIB, SizeSource::Node));
        assert_eq!((large.low, large.high), (100 * MIB, 704 * MIB));
        // An annotation has the length of its tar.
        let tar = LayerBlob { tar_bytes: Some(100 * MIB), ..blob("new", 11 * MIB) };
        assert_eq!(estimate(None, &tar).1, SizeSource::Manifest);
        let zstd = LayerBlob::new("new".into(), 10 * MIB, "application/vnd.oci.image.layer.v1.tar+zstd");
        assert_eq!((estimate(None, &zstd).0.middle, estimate(None, &zstd).1), (30 * MIB, SizeSource::Usual));
    }

    /// Sizes come from manifests of strangers.
    #[test]
    fn sums_of_huge_sizes_saturate() {
        let huge = |digest: &str| blob(digest, u64::MAX);
        let known = |digest: &str| known(digest, u64::MAX, u64::MAX);
        let here =
            NodeContents { keeps_blobs: true, ..contents(vec![image("r", &[known("b"), known("c")])]) };
        let wanted = [huge("x"), huge("y")];
        for repository in [None, Some("r")] {
            let wanted = [WantedLayers { repository, layers: &wanted }];
            let found = arrivals(&here, &Sizes::of(&here), &wanted, &HashSet::new());
            assert_eq!((found[0].download_bytes, found[0].disk.high), (u64::MAX, u64::MAX));
            assert_eq!(Arrival::total(&[&found[0], &found[0]]).disk.high, u64::MAX);
        }
    }

    #[test]
    fn errors_above_cancel_out_in_part() {
        let image = Estimate { low: 80, middle: 100, high: 160 };
        assert_eq!(Estimate::of_images(&[image]), image);
        let four = Estimate::of_images(&[image; 4]);
        assert_eq!(four, Estimate { low: 320, middle: 400, high: 520 });
        assert_eq!(Estimate::of_images(&[image; 100]), Estimate { low: 8000, middle: 10_000, high: 13_000 });
        assert_eq!(Estimate::of_images(&[]), Estimate::default());
    }
}
