//! Checks the files beside the records: images' big data, and CRI-O's `config.json`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::found::{Fault, FaultOf};
use crate::model::LeakClass;
use crate::stores::containers_storage::labels::{
    LIMIT_BYTES, MANIFEST, configuration_of, file_name, is_manifest,
};
use crate::stores::containers_storage::lists;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::stores::leaks::Judgement;
use crate::sys::quiet::{Below, FileKind, Within};

/// How much of a file is looked at for the zeroes that a power cut leaves.
const BEGINNING: usize = 64;

/// Looks at the files of every image.
pub(super) fn faults(snapshot: &Snapshot) -> Vec<Fault> {
    let within = snapshot.places.within();
    let images = snapshot.images.par_iter().enumerate();
    let found = images.flat_map_iter(|(at, image)| match directory(snapshot, &image.id) {
        Some(directory) => of_image(&within, &directory, at, image),
        None => without_directory(snapshot, at, image),
    });
    found.collect()
}

/// An image's directory; with a split imagestore it is in one of several places.
pub(crate) fn directory(snapshot: &Snapshot, id: &str) -> Option<PathBuf> {
    let places = &snapshot.places;
    let mut all = places.areas().map(|area| places.records_dir(area, RecordKind::Images));
    let has = |directory: &PathBuf| {
        let entries = snapshot.entries(directory);
        let found = entries.binary_search_by(|entry| entry.name.as_os_str().cmp(OsStr::new(id)));
        found.is_ok_and(|at| entries[at].kind == FileKind::Directory)
    };
    all.find(has).map(|directory| directory.join(id))
}

fn without_directory(snapshot: &Snapshot, at: usize, image: &ImageRecord) -> Vec<Fault> {
    let path = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Images).join(&image.id);
    let judged =
        image.big_data.first().map(|(name, _)| missing(name)).or_else(|| lacks(image).map(never_stored));
    judged.map(|judged| Fault { of: FaultOf::Image(at), path, judged }).into_iter().collect()
}

/// The writer of the image died before it stored this.
fn never_stored(what: &str) -> Judgement {
    let fails = if what == MANIFEST { ", and `podman images` of this whole store fails" } else { "" };
    let evidence = format!("the record has no {what}{fails}: {AGAIN}");
    Judgement::of(LeakClass::BrokenImage, evidence)
}

/// Data that every tool needs of an image and that its record does not list: without a manifest `podman images` of the whole store
/// fails. Docker's schema 1 has the configuration in the manifest, and a manifest list has none.
pub(crate) fn lacks(image: &ImageRecord) -> Option<&'static str> {
    let has = |is_it: fn(&str) -> bool| image.big_data.iter().any(|(key, _)| is_it(key));
    if !has(is_manifest) {
        return Some(MANIFEST);
    }
    let has_configuration = has(|key| key.contains(':') && !is_manifest(key)) || lists::is_list(image);
    (!has_configuration).then_some("configuration")
}

const AGAIN: &str = "remove the image and pull it again";

fn missing(name: &str) -> Judgement {
    let evidence = format!("the record names {name:?}, which is missing: {AGAIN}");
    Judgement::of(LeakClass::BrokenImage, evidence)
}

fn of_image(within: &Within, directory: &Path, at: usize, image: &ImageRecord) -> Vec<Fault> {
    let mut wrong = Vec::new();
    let below = within.below(directory);
    let configuration = || {
        let manifest = within.read(&directory.join(MANIFEST), LIMIT_BYTES).ok()?;
        configuration_of(&manifest)
    };
    let lacking = lacks(image).filter(|what| *what == MANIFEST || configuration().is_some());
    if let Some(what) = lacking {
        let path = directory.to_path_buf();
        wrong.push(Fault { of: FaultOf::Image(at), path, judged: never_stored(what) });
    }
    for (name, recorded) in &image.big_data {
        let file = file_name(name);
        let size = |evidence| Judgement::of(LeakClass::BrokenImage, evidence);
        let mut beginning = [1; BEGINNING];
        let mut look = |below: &Below| below.beginning(Path::new(&file), &mut beginning);
        let looked = below.as_ref().map_err(io::Error::kind);
        let looked = looked.and_then(|below| look(below).map_err(|error| error.kind()));
        let judged = match (looked, recorded) {
            (Err(io::ErrorKind::NotFound), _) => missing(name),
            (Err(_), _) => continue,
            (Ok((facts, _)), Some(recorded)) if facts.length != *recorded => {
                size(format!("{name:?} has {} bytes, its record says {recorded}: {AGAIN}", facts.length))
            }
            // What none of these files begins with.
            (Ok((_, read)), _) if read > 0 && beginning[..read].iter().all(|&byte| byte == 0) => {
                size(format!("{name:?} begins with zeroes, typical after a power failure: {AGAIN}"))
            }
            _ => continue,
        };
        wrong.push(Fault { of: FaultOf::Image(at), path: directory.join(file), judged });
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_record_lacks() {
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
    fn each_file_of_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("manifest", b"{}");
        write("short", b"{");
        write("zeroes", &[0; 100]);
        write("empty", b"");
        let image = ImageRecord {
            big_data: [("manifest", 2), ("short", 2), ("zeroes", 100), ("empty", 0), ("gone", 1)]
                .map(|(name, size)| (name.to_owned(), Some(size)))
                .into(),
            ..ImageRecord::default()
        };
        let within = Within::at([dir.path()]);
        let wrong = of_image(&within, dir.path(), 7, &image);
        let expected = [
            "\"short\" has 1 bytes, its record says 2",
            "\"zeroes\" begins with zeroes",
            "\"gone\", which is missing",
        ];
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        for (fault, words) in wrong.iter().zip(expected) {
            assert_eq!(
                (fault.of, fault.judged.class),
                (FaultOf::Image(7), LeakClass::BrokenImage),
                "{fault:?}"
            );
            assert!(fault.judged.evidence.contains(words), "{fault:?}");
        }
    }
}
