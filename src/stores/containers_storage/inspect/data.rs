//! Checks the big data of images.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::model::LeakClass;
use crate::stores::containers_storage::inspection::{FaultOf, Inconsistency};
use crate::stores::containers_storage::labels::{
    LIMIT_BYTES, MANIFEST, configuration_of, file_name, is_manifest,
};
use crate::stores::containers_storage::lists;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::stores::leaks::Judgement;
use crate::sys::quiet::{FileKind, Within};

/// Number of bytes at the start of a file that are checked for zeroes, which a power failure leaves.
const BEGINNING: usize = 64;

pub(super) fn faults(snapshot: &Snapshot) -> Vec<Inconsistency> {
    let within = snapshot.places.within();
    let images = snapshot.images.par_iter().enumerate();
    let faults = images.flat_map_iter(|(position, image)| match directory(snapshot, &image.id) {
        Some(directory) => of_image(&within, &directory, position, image),
        None => without_directory(snapshot, position, image),
    });
    faults.collect()
}

/// Returns an image's directory. With a split imagestore, it can be in any area.
pub(crate) fn directory(snapshot: &Snapshot, id: &str) -> Option<PathBuf> {
    let places = &snapshot.places;
    places.areas().find_map(|area| {
        let directory = places.records_dir(area, RecordKind::Images);
        let entries = snapshot.entries(&directory);
        let found = entries.binary_search_by(|entry| entry.name.as_os_str().cmp(OsStr::new(id)));
        let entry = &entries[found.ok()?];
        (entry.kind == FileKind::Directory).then(|| directory.join(id))
    })
}

fn without_directory(snapshot: &Snapshot, position: usize, image: &ImageRecord) -> Vec<Inconsistency> {
    let path = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Images).join(&image.id);
    let judged =
        image.big_data.first().map(|(name, _)| missing(name)).or_else(|| lacks(image).map(never_stored));
    judged.map(|judged| Inconsistency { of: FaultOf::Image(position), path, judged }).into_iter().collect()
}

/// Judges an image whose pull was interrupted before this data was stored.
fn never_stored(data: &str) -> Judgement {
    let fails = if data == MANIFEST { ", and `podman images` of this whole store fails" } else { "" };
    let evidence = format!("the record has no {data}{fails}: {AGAIN}");
    Judgement::of(LeakClass::BrokenImage, evidence)
}

/// Returns the data that every tool needs and that the image's record lacks.
///
/// If a single image lacks its manifest, `podman images` of the whole store fails. An image of Docker's schema 1 can lack
/// the configuration, since the manifest contains it, and a manifest list has no configuration.
pub(crate) fn lacks(image: &ImageRecord) -> Option<&'static str> {
    if !image.big_data.iter().any(|(key, _)| is_manifest(key)) {
        return Some(MANIFEST);
    }
    let has_configuration = image.big_data.iter().any(|(key, _)| key.contains(':') && !is_manifest(key));
    (!has_configuration && !lists::is_list(image)).then_some("configuration")
}

/// Advice for an image with missing or damaged data.
const AGAIN: &str = "remove the containers that use the image, then the image, and pull it again";

fn missing(name: &str) -> Judgement {
    let evidence = format!("the record names {name:?}, which is missing: {AGAIN}");
    Judgement::of(LeakClass::BrokenImage, evidence)
}

fn of_image(within: &Within, directory: &Path, position: usize, image: &ImageRecord) -> Vec<Inconsistency> {
    let mut faults = Vec::new();
    let below = within.below(directory);
    let lacking = lacks(image).filter(|data| *data == MANIFEST || names_configuration(within, directory));
    if let Some(data) = lacking {
        let path = directory.to_path_buf();
        faults.push(Inconsistency { of: FaultOf::Image(position), path, judged: never_stored(data) });
    }
    for (name, recorded) in &image.big_data {
        let file = file_name(name);
        let mut beginning = [1; BEGINNING];
        let read = match &below {
            Ok(below) => below.beginning(Path::new(&file), &mut beginning).map_err(|error| error.kind()),
            Err(error) => Err(error.kind()),
        };
        let judged = match (read, recorded) {
            (Err(io::ErrorKind::NotFound), _) => missing(name),
            (Err(_), _) => continue,
            (Ok((facts, _)), Some(recorded)) if facts.length != *recorded => {
                let evidence =
                    format!("{name:?} has {} bytes, its record says {recorded}: {AGAIN}", facts.length);
                Judgement::of(LeakClass::BrokenImage, evidence)
            }
            // No valid file begins with zeroes.
            (Ok((_, length)), _) if length > 0 && beginning[..length].iter().all(|&byte| byte == 0) => {
                let evidence = format!("{name:?} begins with zeroes, typical after a power failure: {AGAIN}");
                Judgement::of(LeakClass::BrokenImage, evidence)
            }
            _ => continue,
        };
        faults.push(Inconsistency { of: FaultOf::Image(position), path: directory.join(file), judged });
    }
    faults
}

/// Returns true if the image's manifest can be read and names a configuration.
fn names_configuration(within: &Within, directory: &Path) -> bool {
    let manifest = within.read(&directory.join(MANIFEST), LIMIT_BYTES);
    manifest.is_ok_and(|manifest| configuration_of(&manifest).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_manifest_or_configuration_is_found() {
        for (keys, layer, expected) in [
            (&["manifest", "sha256:ab", "signature-ab"][..], true, None),
            (&["manifest-sha256:cd", "sha256:ab"], true, None),
            (&["manifest", "instances.json"], false, None),
            (&["manifest", "signature-ab"], true, Some("configuration")),
            (&["sha256:ab"], true, Some("manifest")),
            (&[], true, Some("manifest")),
        ] {
            let big_data = keys.iter().map(|key| ((*key).to_owned(), None)).collect();
            let layer = layer.then(|| "cd".to_owned());
            let image = ImageRecord { big_data, layer, ..ImageRecord::default() };
            assert_eq!(lacks(&image), expected, "{keys:?}");
        }
    }

    #[test]
    fn short_zeroed_and_missing_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in
            [("manifest", &b"{}"[..]), ("short", b"{"), ("zeroes", &[0; 100]), ("empty", b"")]
        {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let image = ImageRecord {
            big_data: [("manifest", 2), ("short", 2), ("zeroes", 100), ("empty", 0), ("gone", 1)]
                .map(|(name, size)| (name.to_owned(), Some(size)))
                .into(),
            ..ImageRecord::default()
        };
        let within = Within::at([dir.path()]);
        let faults = of_image(&within, dir.path(), 7, &image);
        let expected = [
            "\"short\" has 1 bytes, its record says 2",
            "\"zeroes\" begins with zeroes",
            "\"gone\", which is missing",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:?}");
        for (fault, words) in faults.iter().zip(expected) {
            assert_eq!(
                (fault.of, fault.judged.class),
                (FaultOf::Image(7), LeakClass::BrokenImage),
                "{fault:?}"
            );
            assert!(fault.judged.evidence.contains(words), "{fault:?}");
        }
    }
}
