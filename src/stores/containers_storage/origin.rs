//! Origin of each image: its manifest compared with its layers and with the blob-info cache.
//!
//! A manifest from a registry names the blobs that were downloaded, which are compressed almost always, and the
//! blob-info cache knows the registry of each. A build, a commit and an import write a manifest of their own, which
//! names the layers by the digests of their uncompressed tars. A docker archive makes podman write a manifest that
//! calls the layers compressed but names them by the uncompressed digests. An OCI archive keeps the manifest that it
//! contains: if that names compressed blobs, only the cache tells it from a pull. The cache is asked about a layer
//! only if it is older than the layer. (Seen with podman 4.3 and 5, buildah, and skopeo: `tests/stores/origins.rs`.)
//!
//! # Layers of a registry, configuration of an archive
//!
//! An archive of a pulled base with another environment has the base's compressed layers, which the cache knows, and a
//! configuration that no registry has. A pull leaves no record of the configuration: the tools fetch it past the
//! cache, and only a push notes it. The image itself has to show that it was pulled, by one of these facts:
//!
//! * the cache knows its configuration: it was pushed;
//! * one of its names, present or former, contains its digest: only a pull by digest makes such a name;
//! * it came together with its top layer, as the first image with that layer, when the layer was downloaded, and has a
//!   name in the repository that provided the layer, or in one that may be mirrored there.
//!
//! Without them the origin is unknown and the image may be one that was never pulled. That is also the origin of an
//! image that was pulled by a tag when another image had brought all its layers already.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use rayon::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::blob_cache::{self, BlobLocation, BlobLocations};
use super::labels;
use super::lists;
use super::records::{ImageRecord, LayerRecord};
use super::snapshot::Snapshot;
use crate::model::text::reference;
use crate::model::{LayerBlob, Origin, OriginKind};
use crate::stores::oci::{self, Document};

/// Maximum time from the creation of an image's top layer to that of the image's directory in the pull that brings both:
/// the layer is extracted in between, and other pulls may have the locks.
const LONGEST_PULL: SignedDuration = SignedDuration::from_hours(1);

/// Returns the origin of each image of a store, in the order of the records, and the layers in its manifest if
/// `reads_blobs`. `births` are the creation times of the images' directories.
pub(super) fn of_images(
    snapshot: &Snapshot,
    births: &[Option<Timestamp>],
    reads_blobs: bool,
) -> Vec<(Origin, Vec<LayerBlob>)> {
    let locations = blob_cache::read(&snapshot.places);
    let within = snapshot.places.within();
    let tops = labels::tops(&snapshot.places);
    let layers: HashMap<&str, &LayerRecord> =
        snapshot.layers.iter().map(|layer| (layer.id.as_str(), layer)).collect();
    let bringers = bringers(snapshot, &layers, births);
    let origins = snapshot.images.par_iter().enumerate().map(|(position, image)| {
        if lists::is_list(image) {
            let evidence = "a manifest list, which only tools on this node create";
            return (Origin::new(OriginKind::Built, evidence), Vec::new());
        }
        let Ok(manifest) = labels::read(&within, &tops, &image.id, labels::MANIFEST) else {
            return (Origin::doubtful("its manifest cannot be read"), Vec::new());
        };
        let Some(manifest) = LayerManifest::parse(&manifest) else {
            return (Origin::doubtful("its manifest cannot be parsed"), Vec::new());
        };
        let top = image.layer.as_deref().and_then(|id| layers.get(id).copied());
        let has_come_with_top = top.is_some_and(|top| bringers.get(top.id.as_str()) == Some(&position));
        let mut origin = origin(image, &manifest, top, has_come_with_top, &locations);
        if origin.kind == OriginKind::Built
            && let Some(config) = &manifest.config
            && labels::read(&within, &tops, &image.id, config).is_ok_and(|config| is_import(&config))
        {
            let evidence = "its configuration says that it was imported from a tar file";
            origin = Origin::new(OriginKind::Loaded, evidence);
        }
        // The layers of ten thousand images take more memory than their records.
        (origin, if reads_blobs { manifest.layers } else { Vec::new() })
    });
    origins.collect()
}

/// Returns for each top layer the position of the image that came with it. Of several images with one top layer this
/// is the oldest, and none if the time of any of them is unknown.
fn bringers<'a>(
    snapshot: &'a Snapshot,
    layers: &HashMap<&str, &LayerRecord>,
    births: &[Option<Timestamp>],
) -> HashMap<&'a str, usize> {
    let mut oldest: HashMap<&str, usize> = HashMap::new();
    for (position, image) in snapshot.images.iter().enumerate() {
        for top in image.tops() {
            let first = oldest.entry(top).or_insert(position);
            // `None` is the smallest.
            if births[position] < births[*first] {
                *first = position;
            }
        }
    }
    oldest.retain(|top, position| {
        let times = births[*position].zip(layers.get(top).and_then(|layer| layer.created));
        times.is_some_and(|(image, layer)| {
            (SignedDuration::ZERO..=LONGEST_PULL).contains(&image.duration_since(layer))
        })
    });
    oldest
}

/// Part of a manifest that shows its origin.
#[derive(Debug, Default)]
struct LayerManifest {
    /// Its layers, the base first.
    layers: Vec<LayerBlob>,
    /// True if the media type of the top layer is that of a compressed blob.
    is_compressed: bool,
    config: Option<String>,
}

/// A manifest as all tools write it. Any other document, and one with a field of another type, is not parsed.
///
/// A scan reads the manifest of every image. Parsing only these fields takes a tenth of the time of parsing the document
/// and its descriptors, which a store with long chains spent most of its scan on.
#[derive(Deserialize)]
struct UsualManifest<'a> {
    #[serde(borrow)]
    config: UsualDescriptor<'a>,
    #[serde(borrow)]
    layers: Vec<UsualDescriptor<'a>>,
    /// Only an index has it.
    manifests: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UsualDescriptor<'a> {
    #[serde(borrow)]
    media_type: Cow<'a, str>,
    #[serde(borrow)]
    digest: Cow<'a, str>,
    size: u64,
}

fn is_of_compressed(media_type: &str) -> bool {
    media_type.ends_with("gzip") || media_type.ends_with("zstd")
}

impl LayerManifest {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let usual =
            serde_json::from_slice(bytes).ok().filter(|usual: &UsualManifest<'_>| usual.manifests.is_none());
        usual.map(Self::from).or_else(|| Self::parse_unusual(bytes))
    }

    fn parse_unusual(bytes: &[u8]) -> Option<Self> {
        let json: Value = serde_json::from_slice(bytes).ok()?;
        let Some(Document::Manifest { config, layers }) = oci::document(&json) else { return None };
        let top_type = json
            .get("layers")
            .and_then(Value::as_array)
            .and_then(|layers| layers.last())
            .and_then(|layer| layer.get("mediaType"))
            .and_then(Value::as_str);
        Some(Self {
            layers: layers
                .into_iter()
                .map(|layer| LayerBlob::new(layer.digest, layer.size.unwrap_or_default(), &layer.media_type))
                .collect(),
            is_compressed: top_type.is_some_and(is_of_compressed),
            config: config.map(|config| config.digest),
        })
    }
}

impl From<UsualManifest<'_>> for LayerManifest {
    fn from(usual: UsualManifest<'_>) -> Self {
        let UsualManifest { config, layers, .. } = usual;
        Self {
            is_compressed: layers.last().is_some_and(|layer| is_of_compressed(&layer.media_type)),
            layers: layers
                .into_iter()
                .map(|layer| LayerBlob::new(layer.digest.into_owned(), layer.size, &layer.media_type))
                .collect(),
            config: Some(config.digest.into_owned()),
        }
    }
}

fn origin(
    image: &ImageRecord,
    manifest: &LayerManifest,
    top: Option<&LayerRecord>,
    has_come_with_top: bool,
    locations: &BlobLocations,
) -> Origin {
    let Some((top_blob, top)) = manifest.layers.last().zip(top) else {
        return Origin::unknown("it has no layer");
    };
    let config = manifest.config.as_deref().unwrap_or_default();
    let has_proof = !locations.of(config).is_empty() || is_named_by_digest(image);
    let are_layers_known = manifest.layers.iter().all(|blob| !locations.of(&blob.digest).is_empty());
    let of_top = locations.of(&top_blob.digest);
    // A pull notes the location again, while an archive brings a layer that was pulled, and deleted, earlier.
    let mut downloaded = of_top.iter().filter(|location| was_downloaded_for(location, top));
    if are_layers_known
        && let Some(location) = best(image, of_top)
        && (has_proof || has_come_with_top && downloaded.any(|location| fits(image, &location.repository)))
    {
        return Origin {
            registry: Some(location.repository.clone()),
            time: Some(location.time),
            ..Origin::new(OriginKind::Pulled, "the blob-info cache knows all its layers")
        };
    }
    if top.by_toc && (has_proof || has_come_with_top && all_names(image).any(|name| !is_local(name))) {
        return Origin::new(OriginKind::Pulled, "its top layer was downloaded in parts");
    }
    if top.diff_id.as_ref() == Some(&top_blob.digest) {
        return if manifest.is_compressed {
            Origin::new(OriginKind::Loaded, "its manifest is that of a docker archive")
        } else {
            Origin::new(
                OriginKind::Built,
                "its layers are uncompressed, as after a build or commit, and no registry is known to have them",
            )
        };
    }
    if are_layers_known || top.by_toc {
        return Origin::doubtful("a registry has its layers, but perhaps not its configuration");
    }
    if let Some(error) = &locations.unreadable {
        return Origin::doubtful(format!("the blob-info cache cannot be read: {error}"));
    }
    if locations.is_absent {
        return Origin::doubtful("the blob-info cache, in which the tools note what they pull, is missing");
    }
    match (locations.since(), top.created) {
        (Some(since), Some(created)) if since < created => Origin::new(
            OriginKind::Loaded,
            "the blob-info cache, which is older than its top layer, knows no registry of it",
        ),
        _ => Origin::doubtful(
            "the blob-info cache is not older than its top layer, and knows no registry of it",
        ),
    }
}

/// Returns true if the location was noted by the pull that created the layer, or later.
fn was_downloaded_for(location: &BlobLocation, layer: &LayerRecord) -> bool {
    layer.created.is_some_and(|created| created.duration_since(location.time) <= LONGEST_PULL)
}

/// Present and former names of an image.
fn all_names(image: &ImageRecord) -> impl Iterator<Item = &String> {
    image.names.iter().chain(&image.former_names)
}

/// Returns true if a name, present or former, contains the digest of one of the image's manifests.
fn is_named_by_digest(image: &ImageRecord) -> bool {
    let mut digests = all_names(image).filter_map(|name| name.split_once('@'));
    digests.any(|(_, digest)| image.digests.iter().any(|known| known == digest))
}

/// Returns true if a name, present or former, is in the repository, or in one that a mirror may keep there: a mirror
/// changes the registry and the beginning of the path, and almost always keeps its end.
fn fits(image: &ImageRecord, repository: &str) -> bool {
    let end = repository.rsplit('/').next();
    all_names(image).any(|name| {
        let named = reference::repository(name);
        named == repository || (!is_local(name) && named.rsplit('/').next() == end)
    })
}

/// Returns true for the names that podman gives to images without a registry.
fn is_local(name: &str) -> bool {
    name.starts_with("localhost/")
}

/// Returns the location that a name of the image contains, or else the one of the latest pull.
fn best<'a>(image: &ImageRecord, locations: &'a [BlobLocation]) -> Option<&'a BlobLocation> {
    locations.iter().max_by_key(|location| {
        let is_named = image.names.iter().any(|name| {
            name.strip_prefix(&location.repository).is_some_and(|rest| rest.starts_with([':', '@']))
        });
        (is_named, location.time)
    })
}

/// Returns true for the configuration of an image that `podman import` or `docker import` made.
fn is_import(config: &[u8]) -> bool {
    let json: Value = serde_json::from_slice(config).unwrap_or_default();
    let last = json["history"].as_array().and_then(|history| history.last());
    let comment = last.and_then(|step| step["comment"].as_str()).unwrap_or_default();
    comment.to_ascii_lowercase().starts_with("imported from")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPRESSED: &str = "sha256:c1";
    const DIFF_ID: &str = "sha256:d1";

    fn layer(digest: &str) -> LayerBlob {
        LayerBlob::new(digest.into(), 1, "application/vnd.oci.image.layer.v1.tar+gzip")
    }

    fn locations(repositories: &[(&str, &str, &str)]) -> BlobLocations {
        let mut found = BlobLocations::default();
        for (digest, repository, time) in repositories {
            let location = BlobLocation { repository: (*repository).into(), time: time.parse().unwrap() };
            found.add((*digest).into(), location);
        }
        found
    }

    #[test]
    fn both_ways_of_parsing_agree() {
        let layers =
            r#""layers":[{"mediaType":"x.tar+gzip","digest":"sha256:a","size":5,"annotations":null}]"#;
        let config = r#""config":{"mediaType":"c","digest":"sha256:c","size":2}"#;
        for (text, is_usual) in [
            (format!("{{{config},{layers}}}"), true),
            (format!(r#"{{"manifests":null,{config},{layers},"schemaVersion":2}}"#), true),
            (format!(r#"{{{config},"layers":[]}}"#), true),
            (format!(r#"{{{config},"layers":null}}"#), false),
            (format!("{{{layers}}}"), false),
            (format!(r#"{{"manifests":[],{config},{layers}}}"#), false),
            (format!(r#"{{{config},"layers":[{{"digest":"sha256:a"}}]}}"#), false),
        ] {
            let usual = serde_json::from_slice::<UsualManifest<'_>>(text.as_bytes());
            assert_eq!(usual.is_ok_and(|usual| usual.manifests.is_none()), is_usual, "{text}");
            let [parsed, expected] =
                [LayerManifest::parse, LayerManifest::parse_unusual].map(|parse| parse(text.as_bytes()));
            assert_eq!(format!("{parsed:?}"), format!("{expected:?}"), "{text}");
        }
    }

    #[test]
    fn manifest_and_cache_show_origin() {
        let image = ImageRecord { names: vec!["quay.io/team/app:1".into()], ..ImageRecord::default() };
        let early = ("sha256:other", "quay.io/x", "2026-01-01T00:00:00Z");
        let late = ("sha256:other", "quay.io/x", "2026-09-01T00:00:00Z");
        let pulled = (COMPRESSED, "mirror.example/app", "2026-05-02T00:00:00Z");
        let named = (COMPRESSED, "quay.io/team/app", "2026-05-01T00:00:00Z");
        let plain = (DIFF_ID, "quay.io/team/app", "2026-05-01T00:00:00Z");
        for (blob, is_compressed, by_toc, cache, kind, registry) in [
            (COMPRESSED, true, false, &[pulled, named][..], OriginKind::Pulled, Some("quay.io/team/app")),
            (COMPRESSED, true, false, &[pulled], OriginKind::Pulled, Some("mirror.example/app")),
            (COMPRESSED, true, true, &[early], OriginKind::Pulled, None),
            (COMPRESSED, true, false, &[early], OriginKind::Loaded, None),
            (COMPRESSED, true, false, &[late], OriginKind::Unknown, None),
            // An empty cache, as a push of nothing leaves it.
            (COMPRESSED, true, false, &[], OriginKind::Unknown, None),
            // A registry can serve uncompressed layers.
            (DIFF_ID, false, false, &[plain], OriginKind::Pulled, Some("quay.io/team/app")),
            // Built here, perhaps pushed: the registry has the compressed blob.
            (DIFF_ID, false, false, &[named], OriginKind::Built, None),
            (DIFF_ID, false, false, &[], OriginKind::Built, None),
            (DIFF_ID, true, false, &[early], OriginKind::Loaded, None),
        ] {
            let manifest = LayerManifest { layers: vec![layer(blob)], is_compressed, config: None };
            let top = LayerRecord {
                diff_id: Some(DIFF_ID.into()),
                created: Some("2026-05-01T00:30:00Z".parse().unwrap()),
                by_toc,
                ..LayerRecord::default()
            };
            let found = origin(&image, &manifest, Some(&top), true, &locations(cache));
            assert_eq!((found.kind, found.registry.as_deref()), (kind, registry), "{blob} {cache:?}");
        }
    }

    #[test]
    fn absent_and_unreadable_caches_differ() {
        let manifest = LayerManifest { layers: vec![layer(COMPRESSED)], is_compressed: true, config: None };
        let top = LayerRecord { diff_id: Some(DIFF_ID.into()), ..LayerRecord::default() };
        let absent = BlobLocations { is_absent: true, ..BlobLocations::default() };
        let unreadable = BlobLocations { unreadable: Some("x: damaged".into()), ..BlobLocations::default() };
        for (cache, words) in [(absent, "is missing"), (unreadable, "x: damaged")] {
            let found = origin(&ImageRecord::default(), &manifest, Some(&top), true, &cache);
            assert_eq!((found.kind, found.is_doubtful), (OriginKind::Unknown, true), "{cache:?}");
            assert!(found.evidence.contains(words), "{found:?}");
        }
    }

    /// Layers of a registry prove nothing about the configuration.
    #[test]
    fn configuration_of_archive_is_not_pulled() {
        let base = (COMPRESSED, "quay.io/team/base", "2026-05-01T00:00:00Z");
        let earlier = (COMPRESSED, "quay.io/team/base", "2026-04-30T00:00:00Z");
        let pushed = ("sha256:cfg", "quay.io/team/other", "2026-07-01T00:00:00Z");
        let by_digest = "quay.io/team/app@sha256:m1";
        for (name, former, cache, has_come_with_top, is_pulled) in [
            ("localhost/local/app:1", "", &[base][..], false, false),
            ("quay.io/team/base:custom", "", &[base], false, false),
            ("localhost/base:1", "", &[base], true, false),
            ("quay.io/team/app:1", "", &[base], true, false),
            ("quay.io/team/base:1", "", &[base], true, true),
            // The layer was pulled and deleted earlier; the archive brought it again.
            ("quay.io/team/base:1", "", &[earlier], true, false),
            ("docker.io/team/base:1", "", &[base], true, true),
            // Another image has its tag now.
            ("", "quay.io/team/base:1", &[base], true, true),
            ("localhost/local/app:1", "", &[base, pushed], false, true),
            (by_digest, "", &[base], false, true),
            ("", by_digest, &[base], false, true),
            ("quay.io/team/app@sha256:m2", "", &[base], false, false),
        ] {
            for by_toc in [false, true] {
                let texts = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_owned()] };
                let image = ImageRecord {
                    names: texts(name),
                    former_names: texts(former),
                    digests: texts("sha256:m1"),
                    ..ImageRecord::default()
                };
                let manifest = LayerManifest {
                    layers: vec![layer(COMPRESSED)],
                    is_compressed: true,
                    config: Some("sha256:cfg".into()),
                };
                let top = LayerRecord {
                    diff_id: Some(DIFF_ID.into()),
                    created: Some("2026-05-01T00:30:00Z".parse().unwrap()),
                    by_toc,
                    ..LayerRecord::default()
                };
                let found = origin(&image, &manifest, Some(&top), has_come_with_top, &locations(cache));
                // Only a registry sends a layer in parts. The cache does not note it.
                let is_pulled = is_pulled || by_toc && has_come_with_top && !name.starts_with("localhost");
                assert_eq!(found.kind == OriginKind::Pulled, is_pulled, "{name} {former} {by_toc}");
                assert_eq!(found.is_doubtful, !is_pulled, "{name} {former} {by_toc}");
            }
        }
    }

    #[test]
    fn oldest_image_came_with_its_top_layer() {
        let second = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        for (births, expected) in [
            ([Some(7), Some(9)], Some(0)),
            ([Some(9), Some(7)], Some(1)),
            ([Some(9), None], None),
            // The image that brought the layer was deleted.
            ([Some(4000), Some(4001)], None),
            // The clock was set back in between.
            ([Some(-1), Some(9)], None),
        ] {
            let root = crate::sys::root::Root::for_tests(std::path::Path::new(""));
            let image = ImageRecord { layer: Some("top".into()), ..ImageRecord::default() };
            let top = LayerRecord { id: "top".into(), created: Some(second(0)), ..LayerRecord::default() };
            let places = super::super::places::StorePlaces::for_tests(root);
            let images = vec![image.clone(), image];
            let snapshot = Snapshot::for_tests(places, vec![top.clone()], images, vec![], Default::default());
            let layers = HashMap::from([("top", &top)]);
            let births = births.map(|birth| birth.map(second));
            let found = bringers(&snapshot, &layers, &births).get("top").copied();
            assert_eq!(found, expected, "{births:?}");
        }
    }

    #[test]
    fn local_layer_on_pulled_base_is_built() {
        let manifest = LayerManifest {
            layers: vec![layer(COMPRESSED), layer(DIFF_ID)],
            is_compressed: false,
            config: None,
        };
        let top = LayerRecord { diff_id: Some(DIFF_ID.into()), ..LayerRecord::default() };
        let base = locations(&[(COMPRESSED, "quay.io/base", "2026-05-01T00:00:00Z")]);
        assert_eq!(
            origin(&ImageRecord::default(), &manifest, Some(&top), true, &base).kind,
            OriginKind::Built
        );
        let empty = origin(&ImageRecord::default(), &LayerManifest::default(), None, true, &base);
        assert_eq!(empty.kind, OriginKind::Unknown);
    }

    #[test]
    fn imports_are_recognised_by_comment() {
        for (config, expected) in [
            (r#"{"history":[{"comment":"FROM x"},{"comment":"imported from tarball"}]}"#, true),
            (r#"{"history":[{"comment":"Imported from -"}]}"#, true),
            (r#"{"history":[{"comment":"imported from tarball"},{"comment":"FROM x"}]}"#, false),
            (r#"{"history":null}"#, false),
            ("[", false),
        ] {
            assert_eq!(is_import(config.as_bytes()), expected, "{config}");
        }
    }
}
