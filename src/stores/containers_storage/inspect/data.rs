//! Checks the files beside the records: images' big data, and CRI-O's `config.json`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rayon::prelude::*;

use super::found::{DataFault, DataWrong};
use crate::model::Owner;
use crate::stores::containers_storage::owner;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::snapshot::Snapshot;
use crate::sys::quiet::{Kind, Within};

/// How much of a file is looked at for the zeroes that a power cut leaves.
const BEGINNING: usize = 64;

/// The name of the file for big data called `key` (container-libs, `storage/store.go`,
/// `makeBigDataBaseName`): the key itself if it is made of lower-case letters, digits and
/// dots. The test ends at the first other character, so a key where only the last one is
/// another still counts as plain.
pub(in crate::stores::containers_storage) fn file_name(key: &str) -> String {
    let other = key.bytes().position(|byte| !matches!(byte, b'.' | b'0'..=b'9' | b'a'..=b'z'));
    match other {
        Some(at) if at + 1 < key.len() => format!("={}", STANDARD.encode(key)),
        _ => key.to_owned(),
    }
}

/// Looks at the files of every image.
pub(super) fn faults(snapshot: &Snapshot) -> Vec<DataFault> {
    let within = snapshot.places.within();
    let found: Vec<Vec<DataFault>> = snapshot
        .images
        .par_iter()
        .enumerate()
        .map(|(at, image)| {
            let wrong = directory(snapshot, &image.id).map_or_else(
                || without_directory(snapshot, image),
                |directory| of_image(&within, &directory, image),
            );
            wrong.into_iter().map(|(path, what)| DataFault { image: at, path, what }).collect()
        })
        .collect();
    found.into_iter().flatten().collect()
}

/// An image's directory; with a split imagestore it is in one of several places.
pub(in crate::stores::containers_storage) fn directory(snapshot: &Snapshot, id: &str) -> Option<PathBuf> {
    let places = &snapshot.places;
    let mut all = places.areas().map(|area| places.records_dir(area, "images"));
    let has = |directory: &PathBuf| {
        let entries = snapshot.entries(directory);
        let found = entries.binary_search_by(|entry| entry.name.as_os_str().cmp(OsStr::new(id)));
        found.is_ok_and(|at| entries[at].kind == Kind::Directory)
    };
    all.find(has).map(|directory| directory.join(id))
}

fn without_directory(snapshot: &Snapshot, image: &ImageRecord) -> Vec<(PathBuf, DataWrong)> {
    let directory = snapshot.places.records_dir(&snapshot.places.graphroot, "images").join(&image.id);
    let first = image.big_data.first();
    first.map(|(name, _)| (directory, DataWrong::Missing(name.clone()))).into_iter().collect()
}

fn of_image(within: &Within, directory: &Path, image: &ImageRecord) -> Vec<(PathBuf, DataWrong)> {
    let mut wrong = Vec::new();
    // What cannot be looked at is not wrong; the walk that measures it says so.
    for entry in within.list(directory).unwrap_or_default() {
        if entry.kind == Kind::File && entry.name.to_str().is_some_and(|name| name.starts_with(".tmp-")) {
            wrong.push((directory.join(&entry.name), DataWrong::Unfinished));
        }
    }
    for (name, recorded) in &image.big_data {
        let path = directory.join(file_name(name));
        let what = match (within.facts(&path), recorded) {
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => DataWrong::Missing(name.clone()),
            (Err(_), _) => continue,
            (Ok(facts), Some(recorded)) if facts.length != *recorded => {
                DataWrong::Length { name: name.clone(), found: facts.length, recorded: *recorded }
            }
            (Ok(facts), _) if facts.length > 0 && begins_with_zeroes(within, &path) => {
                DataWrong::Zeroes(name.clone())
            }
            _ => continue,
        };
        wrong.push((path, what));
    }
    wrong
}

fn begins_with_zeroes(within: &Within, path: &Path) -> bool {
    use std::os::unix::fs::FileExt;
    let mut beginning = [1; BEGINNING];
    let read = within.open_file(path).and_then(|file| file.read_at(&mut beginning, 0));
    read.is_ok_and(|length| length > 0 && beginning[..length].iter().all(|&byte| byte == 0))
}

/// CRI-O's sandboxes and containers without the file that CRI-O needs to restore them.
pub(super) fn without_config(snapshot: &Snapshot) -> Vec<usize> {
    let within = snapshot.places.within();
    let places = &snapshot.places;
    let all = places.records_dir(&places.graphroot, "containers");
    // CRI-O writes it to both.
    let tops = std::iter::once(&places.graphroot).chain(&places.runroots);
    let tops: Vec<_> = tops.map(|top| places.records_dir(top, "containers")).collect();
    let mut found = Vec::new();
    for (at, record) in snapshot.containers.iter().enumerate() {
        let directory = all.join(&record.id);
        if owner::origin(&within, record, &directory).owner == Owner::CriO {
            let absent = |top: &PathBuf| {
                let config = within.facts(&top.join(&record.id).join("userdata/config.json"));
                config.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
            };
            if tops.iter().all(absent) {
                found.push(at);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn each_file_of_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("manifest", b"{}");
        write("short", b"{");
        write("zeroes", &[0; 100]);
        write("empty", b"");
        write(".tmp-manifest123", b"");
        let image = ImageRecord {
            big_data: [("manifest", 2), ("short", 2), ("zeroes", 100), ("empty", 0), ("gone", 1)]
                .map(|(name, size)| (name.to_owned(), Some(size)))
                .into(),
            ..ImageRecord::default()
        };
        let within = Within::at([dir.path()]);
        let wrong: Vec<_> = of_image(&within, dir.path(), &image).into_iter().map(|(_, what)| what).collect();
        assert_eq!(
            wrong,
            [
                DataWrong::Unfinished,
                DataWrong::Length { name: "short".into(), found: 1, recorded: 2 },
                DataWrong::Zeroes("zeroes".into()),
                DataWrong::Missing("gone".into()),
            ]
        );
    }
}
