//! Manifest lists: image records without a layer, whose manifest is an index of other images in the store.
//!
//! podman looks a member up by its digest among the digests of all images (container-libs,
//! `common/libimage/manifest_list.go`, `LookupInstance`). `instances.json` is not used for that: it only contains the
//! reference of each member at the time when it was added.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::PathBuf;

use super::labels;
use super::places::{RecordKind, StorePlaces};
use super::records::ImageRecord;
use crate::model::{ImageIx, ManifestList};
use crate::sys::allowance::{self, Allowance};

/// Returns true for a manifest list. A record with neither a layer nor `instances.json` is an image without layers.
pub(crate) fn is_list(record: &ImageRecord) -> bool {
    record.layer.is_none() && record.big_data.iter().any(|(key, _)| key == "instances.json")
}

/// Returns the digests of a list's members. A list without a manifest has no members, for podman as well.
///
/// # Errors
/// When an existing manifest cannot be read. Then any image may be a member.
pub(crate) fn digests(places: &StorePlaces, list: &ImageRecord) -> io::Result<HashSet<String>> {
    let (within, tops) = (places.within(), labels::tops(places));
    let mut digests = HashSet::new();
    for (key, _) in list.big_data.iter().filter(|(key, _)| labels::is_manifest(key)) {
        match labels::read(&within, &tops, &list.id, key) {
            Ok(manifest) => {
                let found = digests_of(&manifest);
                // Each digest is looked up among all images.
                places.allowance.charge(allowance::IMAGE * found.len() as u64)?;
                digests.extend(found);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(digests)
}

pub(crate) fn manifest(places: &StorePlaces, list: &ImageRecord) -> PathBuf {
    places.records_dir(&places.graphroot, RecordKind::Images).join(&list.id).join("manifest")
}

pub(crate) fn is_member(digests: &HashSet<String>, image: &ImageRecord) -> bool {
    image.digests.iter().any(|digest| digests.contains(digest))
}

/// Returns every quoted digest in a manifest, regardless of its key.
///
/// The manifest is not parsed as JSON: podman is written in Go, whose parser ignores the case of keys and accepts much
/// that other JSON parsers reject.
fn digests_of(manifest: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(manifest);
    let mut digests: Vec<_> = text.split('"').filter(|quoted| is_digest(quoted)).map(str::to_owned).collect();
    digests.sort_unstable();
    digests.dedup();
    digests
}

/// Adds to each list the members of its members: a member may be a list itself. Charges `allowance` for each.
///
/// # Errors
/// When the allowance is exceeded.
pub(super) fn add_members_of_members(lists: &mut [ManifestList], allowance: &Allowance) -> io::Result<()> {
    let direct: HashMap<ImageIx, Vec<ImageIx>> =
        lists.iter().map(|list| (list.image, list.members.clone())).collect();
    for list in lists {
        let mut members: BTreeSet<ImageIx> = list.members.iter().copied().collect();
        let mut next = list.members.clone();
        while let Some(member) = next.pop() {
            let inner = direct.get(&member).map_or(&[][..], Vec::as_slice);
            allowance.charge(allowance::REACHED * inner.len() as u64)?;
            next.extend(inner.iter().filter(|member| members.insert(**member)));
        }
        list.members = members.into_iter().collect();
    }
    Ok(())
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_members_are_members() {
        fn list(image: usize, members: &[usize]) -> ManifestList {
            ManifestList { image: image.into(), members: members.iter().map(|ix| (*ix).into()).collect() }
        }
        let mut lists = [list(9, &[1, 8]), list(8, &[2, 7]), list(7, &[3, 9]), list(6, &[4])];
        add_members_of_members(&mut lists, &Allowance::default()).unwrap();
        let all = [1, 2, 3, 7, 8, 9];
        assert_eq!(lists, [list(9, &all), list(8, &all), list(7, &all), list(6, &[4])]);
    }

    #[test]
    fn digests_are_found_in_invalid_json() {
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
