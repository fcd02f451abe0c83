//! Origin of each image: its manifest compared with its layers and with the blob-info cache.
//!
//! A manifest from a registry names the blobs that were downloaded, which are compressed almost always, and the
//! blob-info cache knows the registry of each. A build, a commit and an import write a manifest of their own, which
//! names the layers by the digests of their uncompressed tars. A docker archive makes podman write a manifest that
//! calls the layers compressed but names them by the uncompressed digests. An OCI archive keeps the manifest that it
//! contains: if that names compressed blobs, only the cache tells it from a pull. The cache is asked about a layer
//! only if it is older than the layer. (Seen with podman 4.3 and 5, buildah, and skopeo: `tests/stores/origins.rs`.)

use std::collections::HashMap;

use rayon::prelude::*;
use serde_json::Value;

use super::blob_cache::{self, BlobLocations, Location};
use super::labels;
use super::lists;
use super::records::{ImageRecord, LayerRecord};
use super::snapshot::Snapshot;
use crate::model::{LayerBlob, Origin, OriginKind};
use crate::stores::oci::{self, Document};

/// Returns the origin of each image of a store and the layers in its manifest, in the order of the records.
pub(super) fn of_images(snapshot: &Snapshot) -> Vec<(Origin, Vec<LayerBlob>)> {
    let locations = blob_cache::read(&snapshot.places);
    let within = snapshot.places.within();
    let tops = labels::tops(&snapshot.places);
    let layers: HashMap<&str, &LayerRecord> =
        snapshot.layers.iter().map(|layer| (layer.id.as_str(), layer)).collect();
    let origins = snapshot.images.par_iter().map(|image| {
        if lists::is_list(image) {
            let evidence = "a manifest list, which only tools on this node create";
            return (Origin::new(OriginKind::Built, evidence), Vec::new());
        }
        let Ok(manifest) = labels::read(&within, &tops, &image.id, labels::MANIFEST) else {
            return (Origin::unreadable("its manifest cannot be read"), Vec::new());
        };
        let Some(manifest) = Manifest::parse(&manifest) else {
            return (Origin::unreadable("its manifest cannot be parsed"), Vec::new());
        };
        let top = image.layer.as_deref().and_then(|id| layers.get(id).copied());
        let mut origin = origin(image, &manifest, top, &locations);
        if origin.kind == OriginKind::Built
            && let Some(config) = &manifest.config
            && labels::read(&within, &tops, &image.id, config).is_ok_and(|config| is_import(&config))
        {
            let evidence = "its configuration says that it was imported from a tar file";
            origin = Origin::new(OriginKind::Loaded, evidence);
        }
        (origin, manifest.layers)
    });
    origins.collect()
}

/// Part of a manifest that shows its origin.
#[derive(Debug, Default)]
struct Manifest {
    /// Its layers, the base first.
    layers: Vec<LayerBlob>,
    /// True if the media type of the top layer is that of a compressed blob.
    is_compressed: bool,
    /// Digest of the configuration.
    config: Option<String>,
}

impl Manifest {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let json: Value = serde_json::from_slice(bytes).ok()?;
        let Some(Document::Manifest { config, layers }) = oci::document(&json) else { return None };
        let top_type = json.get("layers").and_then(Value::as_array).and_then(|layers| layers.last());
        let top_type = top_type.and_then(|layer| layer.get("mediaType")).and_then(Value::as_str);
        Some(Self {
            layers: layers
                .into_iter()
                .map(|layer| LayerBlob {
                    digest: layer.digest,
                    compressed_bytes: layer.size.unwrap_or_default(),
                })
                .collect(),
            is_compressed: top_type.is_some_and(|media| media.ends_with("gzip") || media.ends_with("zstd")),
            config: config.map(|config| config.digest),
        })
    }
}

/// Decides the origin of an image with the top layer `top`.
fn origin(
    image: &ImageRecord,
    manifest: &Manifest,
    top: Option<&LayerRecord>,
    locations: &BlobLocations,
) -> Origin {
    let Some((top_blob, top)) = manifest.layers.last().zip(top) else {
        return Origin::unknown("it has no layer");
    };
    if manifest.layers.iter().all(|blob| !locations.of(&blob.digest).is_empty())
        && let Some(location) = best(image, locations.of(&top_blob.digest))
    {
        return Origin {
            kind: OriginKind::Pulled,
            registry: Some(location.repository.clone()),
            time: Some(location.time),
            evidence: "the blob-info cache knows all its layers".into(),
            is_unreadable: false,
        };
    }
    if top.by_toc {
        return Origin::new(OriginKind::Pulled, "its top layer was downloaded in parts");
    }
    if top.diff_id.as_ref() == Some(&top_blob.digest) {
        return match manifest.is_compressed {
            true => Origin::new(OriginKind::Loaded, "its manifest is that of a docker archive"),
            false => Origin::new(
                OriginKind::Built,
                "its layers are uncompressed, as after a build or commit, and no registry is known to have them",
            ),
        };
    }
    if let Some(error) = &locations.unreadable {
        return Origin::unreadable(format!("the blob-info cache cannot be read: {error}"));
    }
    if locations.is_absent {
        return Origin::new(OriginKind::Loaded, "there is no blob-info cache, so no tool has pulled here");
    }
    match (locations.since(), top.created) {
        (Some(since), Some(created)) if since < created => Origin::new(
            OriginKind::Loaded,
            "the blob-info cache, which is older than its top layer, knows no registry of it",
        ),
        _ => Origin::unknown("no registry of its layers is recorded"),
    }
}

/// Returns the location that a name of the image contains, or else the one of the latest pull.
fn best<'a>(image: &ImageRecord, locations: &'a [Location]) -> Option<&'a Location> {
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
        LayerBlob { digest: digest.into(), compressed_bytes: 1 }
    }

    fn locations(repositories: &[(&str, &str, &str)]) -> BlobLocations {
        let mut found = BlobLocations::default();
        for (digest, repository, time) in repositories {
            let location = Location { repository: (*repository).into(), time: time.parse().unwrap() };
            found.add((*digest).into(), location);
        }
        found
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
            let manifest = Manifest { layers: vec![layer(blob)], is_compressed, config: None };
            let top = LayerRecord {
                diff_id: Some(DIFF_ID.into()),
                created: Some("2026-06-01T00:00:00Z".parse().unwrap()),
                by_toc,
                ..LayerRecord::default()
            };
            let found = origin(&image, &manifest, Some(&top), &locations(cache));
            assert_eq!((found.kind, found.registry.as_deref()), (kind, registry), "{blob} {cache:?}");
        }
    }

    #[test]
    fn absent_and_unreadable_caches_differ() {
        let manifest = Manifest { layers: vec![layer(COMPRESSED)], is_compressed: true, config: None };
        let top = LayerRecord { diff_id: Some(DIFF_ID.into()), ..LayerRecord::default() };
        let absent = BlobLocations { is_absent: true, ..BlobLocations::default() };
        let unreadable = BlobLocations { unreadable: Some("x: damaged".into()), ..BlobLocations::default() };
        for (cache, kind, is_unreadable) in
            [(absent, OriginKind::Loaded, false), (unreadable, OriginKind::Unknown, true)]
        {
            let found = origin(&ImageRecord::default(), &manifest, Some(&top), &cache);
            assert_eq!((found.kind, found.is_unreadable), (kind, is_unreadable), "{cache:?}");
        }
    }

    #[test]
    fn local_layer_on_pulled_base_is_built() {
        let manifest =
            Manifest { layers: vec![layer(COMPRESSED), layer(DIFF_ID)], is_compressed: false, config: None };
        let top = LayerRecord { diff_id: Some(DIFF_ID.into()), ..LayerRecord::default() };
        let base = locations(&[(COMPRESSED, "quay.io/base", "2026-05-01T00:00:00Z")]);
        assert_eq!(origin(&ImageRecord::default(), &manifest, Some(&top), &base).kind, OriginKind::Built);
        let empty = origin(&ImageRecord::default(), &Manifest::default(), None, &base);
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
