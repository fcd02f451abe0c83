//! Labels of images, from the configuration in their big data.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rayon::prelude::*;
use serde_json::Value;

use super::records::ImageRecord;
use super::snapshot::Snapshot;
use crate::model::Labels;
use crate::stores::containers_storage::places::{RecordKind, StorePlaces};
use crate::stores::oci::{self, Document};
use crate::sys::quiet::Within;

/// Maximum size of a manifest or a configuration. The tools read at most 4 MiB of each (container-libs,
/// `image/internal/iolimits`).
pub(super) const LIMIT_BYTES: u64 = 4 << 20;

/// Maximum size of a document that is parsed in parallel. Parsed JSON takes up to eleven times the memory of its text, so
/// only one longer document is parsed at a time.
const MOST_AT_ONCE: usize = 128 << 10;

/// Held while a long document is parsed.
static LONG_DOCUMENT: Mutex<()> = Mutex::new(());

/// Parses a document. Waits until no other thread parses a long one if this one is long.
fn parsed<T>(document: &[u8], parse: impl FnOnce(&[u8]) -> T) -> T {
    let is_long = document.len() > MOST_AT_ONCE;
    let _guard = is_long.then(|| LONG_DOCUMENT.lock().unwrap_or_else(PoisonError::into_inner));
    parse(document)
}

/// Key of an image's manifest. An image that was pulled by several digests has further manifests with the keys
/// `manifest-<digest>` (container-libs, `storage/storage.go`, `ImageDigestManifestBigDataNamePrefix`).
pub(super) const MANIFEST: &str = "manifest";

/// Returns the file name for the big data with this key (container-libs, `storage/store.go`, `makeBigDataBaseName`).
///
/// A plain key, of lower-case letters, digits and dots, is its own file name. Any other key is encoded. The library's
/// test stops at the first other character, so a key whose only other character is the last one counts as plain.
pub(super) fn file_name(key: &str) -> String {
    let other = key.bytes().position(|byte| !matches!(byte, b'.' | b'0'..=b'9' | b'a'..=b'z'));
    match other {
        Some(position) if position + 1 < key.len() => format!("={}", STANDARD.encode(key)),
        _ => key.to_owned(),
    }
}

pub(super) fn is_manifest(key: &str) -> bool {
    key.strip_prefix(MANIFEST).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns the labels of a store's images, in the order of the records. With `only`, reads those of this image alone.
pub(super) fn of_images(snapshot: &Snapshot, only: Option<&str>) -> Vec<Labels> {
    let within = snapshot.places.within();
    let tops = tops(&snapshot.places);
    let labels = snapshot.images.par_iter().map(|image| {
        if only.is_some_and(|only| only != image.id) {
            return Labels::NotRead;
        }
        let labels = of_image(image, &|key| {
            read(&within, &tops, &image.id, key).map_err(|error| format!("reading its {key}: {error}"))
        });
        labels.unwrap_or_else(Labels::Unknown)
    });
    labels.collect()
}

/// Returns the directories that contain a directory for each image. With a split imagestore there are several, and an
/// image is in one of them.
pub(super) fn tops(places: &StorePlaces) -> Vec<PathBuf> {
    places.areas().map(|area| places.records_dir(area, RecordKind::Images)).collect()
}

pub(super) fn read(within: &Within, tops: &[PathBuf], id: &str, key: &str) -> io::Result<Vec<u8>> {
    let mut last = None;
    for top in tops {
        match within.read(&top.join(id).join(file_name(key)), LIMIT_BYTES) {
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound && last.is_some() => {}
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

enum ImageConfiguration {
    /// The manifest is a list of other images.
    None,
    /// Digest of the configuration, which is also its key.
    Digest(String),
    /// The configuration itself, contained in the manifest.
    Inline(String),
}

/// Returns the labels of an image. `read` reads big data by key.
fn of_image(image: &ImageRecord, read: &dyn Fn(&str) -> Result<Vec<u8>, String>) -> Result<Labels, String> {
    let mut configurations = Vec::new();
    let mut labels = Labels::Known(Vec::new());
    let mut manifests = 0_usize;
    for (key, _) in image.big_data.iter().filter(|(key, _)| is_manifest(key)) {
        manifests += 1;
        match parsed(&read(key)?, configuration).ok_or_else(|| format!("cannot parse its {key}"))? {
            ImageConfiguration::None => {}
            ImageConfiguration::Digest(digest) => configurations.push(digest),
            ImageConfiguration::Inline(text) => {
                labels = joined(labels, Labels::of_configuration(text.as_bytes()));
            }
        }
    }
    if manifests == 0 {
        // The id of an image is almost always the digest of its configuration.
        let digest = format!("sha256:{}", image.id);
        if !image.big_data.iter().any(|(key, _)| *key == digest) {
            return Err("it has no manifest".into());
        }
        configurations.push(digest);
    }
    configurations.sort();
    configurations.dedup();
    for digest in configurations {
        labels = joined(labels, parsed(&read(&digest)?, Labels::of_configuration));
    }
    Ok(labels)
}

/// Returns the digest of the configuration that a manifest names.
pub(super) fn configuration_of(manifest: &[u8]) -> Option<String> {
    match configuration(manifest)? {
        ImageConfiguration::Digest(digest) => Some(digest),
        ImageConfiguration::None | ImageConfiguration::Inline(_) => None,
    }
}

fn joined(left: Labels, right: Labels) -> Labels {
    match right {
        Labels::Known(more) => left.and(more),
        unknown => unknown,
    }
}

/// Parses a manifest. Docker's schema 1 contains the configuration as a string, in the first entry of its history.
fn configuration(manifest: &[u8]) -> Option<ImageConfiguration> {
    let json: Value = serde_json::from_slice(manifest).ok()?;
    match oci::document(&json) {
        Some(Document::Index(_)) => Some(ImageConfiguration::None),
        Some(Document::Manifest { config: Some(config), .. }) => {
            Some(ImageConfiguration::Digest(config.digest))
        }
        _ => {
            let text = json.pointer("/history/0/v1Compatibility").and_then(Value::as_str);
            text.map(|text| ImageConfiguration::Inline(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(keys: &[&str]) -> ImageRecord {
        let big_data = keys.iter().map(|key| ((*key).to_owned(), None)).collect();
        ImageRecord { id: "ab".into(), big_data, ..ImageRecord::default() }
    }

    #[test]
    fn special_keys_are_encoded_as_file_names() {
        for (key, name) in [
            ("manifest", "manifest"),
            ("instances.json", "instances.json"),
            ("sha256:ab", "=c2hhMjU2OmFi"),
            ("signature-1", "=c2lnbmF0dXJlLTE="),
            // Only the last character is not plain.
            ("abc-", "abc-"),
            ("", ""),
        ] {
            assert_eq!(file_name(key), name, "{key}");
        }
    }

    #[test]
    fn labels_come_from_every_configuration() {
        fn known(pairs: &[(&str, &str)]) -> Labels {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Labels::Known(pairs.collect())
        }
        fn to(digest: &str) -> String {
            format!(r#"{{"config":{{"digest":"{digest}"}},"layers":[]}}"#)
        }
        let config = r#"{"config":{"Labels":{"keep":"yes"}}}"#;
        let other = r#"{"config":{"Labels":{"keep":"no"}}}"#;
        let schema1 = r#"{"history":[{"v1Compatibility":"{\"config\":{\"Labels\":{\"old\":\"1\"}}}"}]}"#;
        let to_ab = to("sha256:ab");
        let to_cd = to("sha256:cd");
        let yes = &[("keep", "yes")][..];
        for (data, expected) in [
            (&[("manifest", &*to_ab), ("sha256:ab", config)][..], Ok(known(yes))),
            (&[("manifest-sha256:0", &*to_cd), ("sha256:cd", config)], Ok(known(yes))),
            (
                &[
                    ("manifest", &*to_ab),
                    ("manifest-sha256:0", &*to_cd),
                    ("sha256:ab", config),
                    ("sha256:cd", other),
                ],
                Ok(known(&[("keep", "no"), ("keep", "yes")])),
            ),
            (&[("sha256:ab", config)], Ok(known(yes))),
            (&[("manifest", schema1)], Ok(known(&[("old", "1")]))),
            (&[("manifest", r#"{"manifests":[]}"#), ("instances.json", "[]")], Ok(known(&[]))),
            (&[("manifest", r#"{"manifests":null}"#), ("instances.json", "{}")], Ok(known(&[]))),
            (&[("manifest", &*to_ab)], Err("sha256:ab")),
            (&[("manifest", "{}"), ("sha256:ab", config)], Err("cannot parse its manifest")),
            (&[("manifest", "{\"config\""), ("sha256:ab", config)], Err("cannot parse its manifest")),
            (&[("manifest", &*to_ab), ("sha256:ab", "\0\0")], Err("not JSON")),
            (&[("manifests", "{}")], Err("it has no manifest")),
            (&[], Err("it has no manifest")),
        ] {
            let keys: Vec<_> = data.iter().map(|(key, _)| *key).collect();
            let labels = of_image(&image(&keys), &|wanted| {
                let found = data.iter().find(|(key, _)| *key == wanted);
                found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| format!("no {wanted}"))
            });
            match (labels.unwrap_or_else(Labels::Unknown), expected) {
                (Labels::Unknown(why), Err(words)) => assert!(why.contains(words), "{why}"),
                (labels, expected) => assert_eq!(Ok(labels), expected.map_err(str::to_owned), "{data:?}"),
            }
        }
    }
}
