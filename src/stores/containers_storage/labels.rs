//! The labels of images, from the configuration in their big data.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rayon::prelude::*;
use serde_json::Value;

use super::records::ImageRecord;
use super::snapshot::Snapshot;
use crate::model::{Labels, LabelsOf};
use crate::stores::containers_storage::places::{RecordKind, StorePlaces};
use crate::stores::oci::{self, Document};
use crate::sys::quiet::Within;

/// No manifest and no configuration is longer: the tools take 4 MiB of each
/// (container-libs, `image/internal/iolimits`).
pub(super) const LIMIT_BYTES: u64 = 4 << 20;

/// Parsed, JSON takes up to eleven times its length: only one document that is longer is parsed at once.
const MOST_AT_ONCE: usize = 128 << 10;

static LONG_DOCUMENT: Mutex<()> = Mutex::new(());

/// Parses a document; a long one when no other is being parsed.
fn parsed<T>(document: &[u8], parse: impl FnOnce(&[u8]) -> T) -> T {
    let is_long = document.len() > MOST_AT_ONCE;
    let _turn = is_long.then(|| LONG_DOCUMENT.lock().unwrap_or_else(PoisonError::into_inner));
    parse(document)
}

/// The key of an image's manifest. Beside it stand others, `manifest-` and their digests, for
/// images that were pulled by several digests (container-libs, `storage/storage.go`,
/// `ImageDigestManifestBigDataNamePrefix`).
pub(super) const MANIFEST: &str = "manifest";

/// The name of the file for big data called `key` (container-libs, `storage/store.go`,
/// `makeBigDataBaseName`): the key itself if it is made of lower-case letters, digits and
/// dots. The test ends at the first other character, so a key where only the last one is
/// another still counts as plain.
pub(super) fn file_name(key: &str) -> String {
    let other = key.bytes().position(|byte| !matches!(byte, b'.' | b'0'..=b'9' | b'a'..=b'z'));
    match other {
        Some(at) if at + 1 < key.len() => format!("={}", STANDARD.encode(key)),
        _ => key.to_owned(),
    }
}

/// Whether a key is that of a manifest.
pub(super) fn is_manifest(key: &str) -> bool {
    key.strip_prefix(MANIFEST).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The labels of a store's images, in the order of the records.
pub(super) fn of_images(snapshot: &Snapshot, wanted: &LabelsOf) -> Vec<Labels> {
    let within = snapshot.places.within();
    let tops = tops(&snapshot.places);
    let of = |image: &ImageRecord| {
        if !wanted.covers(&image.id) {
            return Labels::NotRead;
        }
        let read = |key: &str| {
            read(&within, &tops, &image.id, key).map_err(|error| format!("reading its {key}: {error}"))
        };
        of_image(image, &read).unwrap_or_else(Labels::Unknown)
    };
    snapshot.images.par_iter().map(of).collect()
}

/// Where the directories of a store's images are: with a split imagestore in one of several places.
pub(super) fn tops(places: &StorePlaces) -> Vec<PathBuf> {
    places.areas().map(|area| places.records_dir(area, RecordKind::Images)).collect()
}

/// Reads big data of an image.
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

/// What an image's manifest leads to.
enum Leads {
    /// It is a list of other images.
    Nowhere,
    /// To the configuration with this digest.
    To(String),
    /// It has the configuration in itself.
    Inside(String),
}

/// The labels of one image, whose big data `read` gives by key.
fn of_image(image: &ImageRecord, read: &dyn Fn(&str) -> Result<Vec<u8>, String>) -> Result<Labels, String> {
    let keys = || image.big_data.iter().map(|(key, _)| key.as_str());
    let mut configurations = Vec::new();
    let mut labels = Labels::Known(Vec::new());
    let mut manifests = 0_usize;
    for key in keys().filter(|key| is_manifest(key)) {
        manifests += 1;
        match parsed(&read(key)?, leads).ok_or_else(|| format!("cannot parse its {key}"))? {
            Leads::Nowhere => {}
            Leads::To(digest) => configurations.push(digest),
            Leads::Inside(text) => labels = joined(labels, Labels::of_configuration(text.as_bytes())),
        }
    }
    if manifests == 0 {
        // The id of an image is almost always the digest of its configuration.
        let digest = format!("sha256:{}", image.id);
        if !keys().any(|key| key == digest) {
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

/// The digest of the configuration that a manifest names.
pub(super) fn configuration_of(manifest: &[u8]) -> Option<String> {
    match leads(manifest)? {
        Leads::To(digest) => Some(digest),
        Leads::Nowhere | Leads::Inside(_) => None,
    }
}

fn joined(left: Labels, right: Labels) -> Labels {
    match right {
        Labels::Known(more) => left.and(more),
        unknown => unknown,
    }
}

/// Docker's schema 1 has the configuration in the first entry of its history, as a text.
fn leads(manifest: &[u8]) -> Option<Leads> {
    let json: Value = serde_json::from_slice(manifest).ok()?;
    match oci::document(&json) {
        Some(Document::Index(_)) => Some(Leads::Nowhere),
        Some(Document::Manifest { config: Some(config), .. }) => Some(Leads::To(config.digest)),
        _ => {
            let text = json.pointer("/history/0/v1Compatibility").and_then(Value::as_str);
            text.map(|text| Leads::Inside(text.to_owned()))
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
    fn names_of_files() {
        for (key, name) in [
            ("manifest", "manifest"),
            ("instances.json", "instances.json"),
            ("sha256:ab", "=c2hhMjU2OmFi"),
            ("signature-1", "=c2lnbmF0dXJlLTE="),
            // Only the last character is another.
            ("abc-", "abc-"),
            ("", ""),
        ] {
            assert_eq!(file_name(key), name, "{key}");
        }
    }

    #[test]
    fn where_the_configuration_is() {
        let known = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Labels::Known(pairs.collect())
        };
        let config = r#"{"config":{"Labels":{"keep":"yes"}}}"#;
        let other = r#"{"config":{"Labels":{"keep":"no"}}}"#;
        let to = |digest: &str| format!(r#"{{"config":{{"digest":"{digest}"}},"layers":[]}}"#);
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
            let read = |key: &str| {
                let found = data.iter().find(|(one, _)| *one == key);
                found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| format!("no {key}"))
            };
            match (of_image(&image(&keys), &read).unwrap_or_else(Labels::Unknown), expected) {
                (Labels::Unknown(why), Err(words)) => assert!(why.contains(words), "{why}"),
                (labels, expected) => assert_eq!(Ok(labels), expected.map_err(str::to_owned), "{data:?}"),
            }
        }
    }
}
