//! Manifest lists: image records without a layer, whose manifest is an index of other images of the store.
//!
//! podman finds a member by its digest among the digests of all images (container-libs,
//! `common/libimage/manifest_list.go`, `LookupInstance`). `instances.json` only says where each was when it was added.

use std::collections::HashSet;
use std::io;

use serde_json::Value;

use super::labels;
use super::places::StorePlaces;
use super::records::ImageRecord;

/// Whether it is a list; what has neither a layer nor `instances.json` is an image without layers.
pub(super) fn is_list(record: &ImageRecord) -> bool {
    record.layer.is_none() && record.big_data.iter().any(|(key, _)| key == "instances.json")
}

/// The digests of a list's members. A manifest that is missing or no index has none, for podman neither.
///
/// # Errors
/// When a manifest is there and cannot be read: then any image may be a member.
pub(super) fn digests(places: &StorePlaces, list: &ImageRecord) -> io::Result<HashSet<String>> {
    let (within, tops) = (places.within(), labels::tops(places));
    let mut digests = HashSet::new();
    for (key, _) in list.big_data.iter().filter(|(key, _)| labels::is_manifest(key)) {
        match labels::read(&within, &tops, &list.id, key) {
            Ok(manifest) => digests.extend(digests_of(&manifest)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(digests)
}

/// Whether an image is a member of the list with these `digests`.
pub(super) fn is_member(digests: &HashSet<String>, image: &ImageRecord) -> bool {
    image.digests.iter().any(|digest| digests.contains(digest))
}

fn digests_of(manifest: &[u8]) -> Vec<String> {
    // Go, which podman is written in, takes what is no UTF-8.
    let index: Value = serde_json::from_str(&String::from_utf8_lossy(manifest)).unwrap_or_default();
    let members = index["manifests"].as_array().into_iter().flatten();
    members.filter_map(|member| member["digest"].as_str()).map(str::to_owned).collect()
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
            (br#"{"manifests":[{"digest":1},{},"sha256:a",{"digest":"sha256:c"}]}"#, 1),
            (b"{\"manifests\":[{\"digest\":\"sha256:a\",\"annotations\":{\"x\":\"\xff\"}}]}", 1),
            (br#"{"config":{"digest":"sha256:a"},"layers":[]}"#, 0),
            (b"[]", 0),
            (b"\0\0", 0),
            (b"", 0),
        ] {
            assert_eq!(digests_of(manifest).len(), expected, "{}", String::from_utf8_lossy(manifest));
        }
    }
}
