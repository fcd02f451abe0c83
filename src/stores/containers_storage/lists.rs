//! Manifest lists: image records without a layer, whose manifest is an index of other images of the store.
//!
//! podman finds a member by its digest among the digests of all images (container-libs,
//! `common/libimage/manifest_list.go`, `LookupInstance`). `instances.json` only says where each was when it was added.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use super::labels;
use super::places::{RecordKind, StorePlaces};
use super::records::ImageRecord;
use crate::sys::allowance;

/// Whether it is a list; what has neither a layer nor `instances.json` is an image without layers.
pub(crate) fn is_list(record: &ImageRecord) -> bool {
    record.layer.is_none() && record.big_data.iter().any(|(key, _)| key == "instances.json")
}

/// The digests of a list's members. Without a manifest it has none, for podman neither.
///
/// # Errors
/// When a manifest is there and cannot be read: then any image may be a member.
pub(crate) fn digests(places: &StorePlaces, list: &ImageRecord) -> io::Result<HashSet<String>> {
    let (within, tops) = (places.within(), labels::tops(places));
    let mut digests = HashSet::new();
    for (key, _) in list.big_data.iter().filter(|(key, _)| labels::is_manifest(key)) {
        match labels::read(&within, &tops, &list.id, key) {
            Ok(manifest) => {
                let found = digests_of(&manifest);
                // Each is looked for among the images.
                places.allowance.charge(allowance::IMAGE * found.len() as u64)?;
                digests.extend(found);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(digests)
}

/// Where its manifest is, for messages.
pub(crate) fn manifest(places: &StorePlaces, list: &ImageRecord) -> PathBuf {
    places.records_dir(&places.graphroot, RecordKind::Images).join(&list.id).join("manifest")
}

/// Whether an image is a member of the list with these `digests`.
pub(crate) fn is_member(digests: &HashSet<String>, image: &ImageRecord) -> bool {
    image.digests.iter().any(|digest| digests.contains(digest))
}

/// Each digest in quotes, whatever it is of. Go, in which podman is written, reads keys in any case and much that others
/// take for no JSON.
fn digests_of(manifest: &[u8]) -> Vec<String> {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_digest =
        |text: &&str| text.split_once(':').is_some_and(|(algorithm, of)| !algorithm.is_empty() && is_hex(of));
    let mut found: Vec<_> =
        String::from_utf8_lossy(manifest).split('"').filter(is_digest).map(str::to_owned).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_an_index() {
        for (manifest, expected) in [
            (&br#"{"schemaVersion":2,"manifests":[{"digest":"sha256:a"},{"digest":"sha256:b"}]}"#[..], 2),
            // podman writes an empty list as null.
            (br#"{"schemaVersion":2,"manifests":null}"#, 0),
            (br#"{"Manifests":[{"Digest":"sha256:a","x":1e999,"y":"\ud800"},{"digest":1},{}]}"#, 1),
            (b"{\"manifests\":[{\"digest\":\"sha256:a\",\"annotations\":{\"x\":\"\xff\"}}]}", 1),
            // Cut short.
            (br#"{"manifests":[{"digest":"sha256:a"},{"dig"#, 1),
            (b"\0\0", 0),
            (b"", 0),
        ] {
            assert_eq!(digests_of(manifest).len(), expected, "{}", String::from_utf8_lossy(manifest));
        }
    }
}
