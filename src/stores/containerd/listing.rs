//! Lists the directories of a containerd root.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use super::metadata::Metadata;
use super::places::{CONTENT, CRI, ContainerdPlaces, OF_SNAPSHOTS, SNAPSHOTTER, TASKS, TMP_MOUNTS, digest};
use super::snapshot::{Backend, BlobFile, IngestDirectory, Snapshot};
use crate::model::Consistency;
use crate::stores::unit::DirectoryListing;
use crate::sys::quiet::{self, DirectoryEntry, FileKind, InodeFacts, Within};

/// Maximum size of a download's reference that is read; references are much shorter.
const REF_BYTES: u64 = 64 << 10;

/// Returns the snapshotters by name: those below the root, those with a configured directory, and those that run
/// beside containerd and have a database. Their databases are not read.
pub fn snapshotters(places: &ContainerdPlaces, root: &[DirectoryEntry]) -> Vec<Backend> {
    let mut found: Vec<_> = directories(places, root)
        .into_iter()
        .map(|(name, directory)| Backend { name, data: directory.clone(), directory, ..Backend::default() })
        .collect();
    for proxy in &places.proxies {
        let Some(data) = &proxy.data else { continue };
        found.retain(|known| known.name != proxy.name && known.directory != proxy.directory);
        found.push(Backend {
            name: proxy.name.clone(),
            directory: proxy.directory.clone(),
            data: data.clone(),
            is_proxy: true,
            ..Backend::default()
        });
    }
    found
}

fn directories(places: &ContainerdPlaces, root: &[DirectoryEntry]) -> Vec<(String, PathBuf)> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for entry in root.iter().filter(|entry| entry.kind == FileKind::Directory) {
        if let Some(name) = entry.name.to_str().and_then(|name| name.strip_prefix(SNAPSHOTTER)) {
            found.insert(name.to_owned(), places.root.join(&entry.name));
        }
    }
    for (name, directory) in &places.snapshotters {
        if quiet::facts(directory).is_ok_and(|facts| facts.kind == FileKind::Directory) {
            // The directory below the root was used before; it gets a name of its own.
            if let Some(before) =
                found.insert(name.clone(), directory.clone()).filter(|path| path != directory)
            {
                found.insert(format!("{name} (unused directory)"), before);
            }
        }
    }
    found.into_iter().collect()
}

impl Snapshot {
    /// Lists everything in the root that is not inside a layer; examines blobs' files only if `examine_blobs` is set.
    ///
    /// # Errors
    /// If the root itself cannot be listed.
    pub(super) fn list(places: &ContainerdPlaces, examine_blobs: bool) -> io::Result<Self> {
        let within = places.within();
        let root = within.list(&places.root)?;
        let mut listed = Self {
            backends: snapshotters(places, &root),
            places: places.clone(),
            within,
            metadata: Metadata::default(),
            listing: DirectoryListing::new(),
            blobs: BTreeMap::new(),
            ingests: Vec::new(),
            documents: HashMap::new(),
            cached_layers: HashMap::new(),
            more_cached_layers: false,
            states: HashMap::new(),
            docker: HashMap::new(),
            unknown_since: HashMap::new(),
            consistency: Consistency::Consistent,
            findings: Vec::new(),
            databases: Vec::new(),
            transactions: Vec::new(),
        };
        for entry in &root {
            let snapshotter = entry.name.to_str().is_some_and(|name| name.starts_with(SNAPSHOTTER));
            if snapshotter && entry.kind == FileKind::Symlink {
                listed.directory(&places.root.join(&entry.name));
            }
        }
        listed.listing.insert(places.root.clone(), root);
        listed.content(&places.root.join(CONTENT), examine_blobs);
        let backends = listed.backends.iter();
        let of_snapshotters = backends.map(|backend| (backend.directory.clone(), backend.data.clone()));
        for (directory, data) in of_snapshotters.collect::<Vec<_>>() {
            if data != directory {
                listed.directory(&directory);
            }
            for entry in listed.directory(&data) {
                let is_of_snapshots = entry.name.to_str().is_some_and(|name| OF_SNAPSHOTS.contains(&name));
                if is_of_snapshots && may_be_directory(&entry) {
                    listed.directory(&data.join(&entry.name));
                }
            }
        }
        for cache in &places.layer_caches {
            for algorithm in listed.directory(cache).into_iter().filter(may_be_directory) {
                let of_algorithm = cache.join(&algorithm.name);
                for prefix in listed.directory(&of_algorithm).into_iter().filter(may_be_directory) {
                    listed.directory(&of_algorithm.join(&prefix.name));
                }
            }
        }
        for (top, below) in [(CRI, ["containers", "sandboxes"].as_slice()), (TMP_MOUNTS, &[]), (TASKS, &[])] {
            for entry in listed.directory(&places.root.join(top)) {
                let known = entry.name.to_str().is_some_and(|name| below.contains(&name)) || top == TASKS;
                if known && may_be_directory(&entry) {
                    listed.directory(&places.root.join(top).join(&entry.name));
                }
            }
        }
        Ok(listed)
    }

    /// Lists a directory; a missing one is empty.
    fn directory(&mut self, path: &Path) -> Vec<DirectoryEntry> {
        let entries = match self.within.list(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                self.finding(path, format!("listing it: {error}; its contents are not counted"), true);
                if quiet::is_symlink(&error) {
                    self.consistency = Consistency::Damaged;
                }
                return Vec::new();
            }
        };
        self.listing.insert(path.to_path_buf(), entries.clone());
        entries
    }

    fn content(&mut self, content: &Path, examine_blobs: bool) {
        self.directory(content);
        let blobs = content.join("blobs");
        for algorithm in self.directory(&blobs) {
            if !may_be_directory(&algorithm) {
                continue;
            }
            let directory = blobs.join(&algorithm.name);
            let files = self.directory(&directory);
            let Ok(open) = self.within.below(&directory) else { continue };
            for file in files {
                let names = algorithm.name.to_str().zip(file.name.to_str());
                let Some(digest) = names.and_then(|(algorithm, name)| digest(algorithm, name)) else {
                    continue;
                };
                if !examine_blobs {
                    self.blobs.extend((file.kind == FileKind::File).then_some((digest, None)));
                } else if let Some(found) = blob(open.entry(&file.name)) {
                    self.blobs.insert(digest, Some(found));
                }
            }
        }
        let ingest = content.join("ingest");
        for entry in self.directory(&ingest) {
            if entry.kind == FileKind::Directory {
                self.ingests.push(ingest_directory(&self.within, &ingest, &entry));
            }
        }
    }
}

/// Returns true if listing the entry makes sense. A symlink is not followed; listing it reports it.
fn may_be_directory(entry: &DirectoryEntry) -> bool {
    matches!(entry.kind, FileKind::Directory | FileKind::Symlink)
}

/// Examines a blob's file; returns `None` if it does not exist.
pub fn blob_file(within: &Within, path: &Path) -> Option<BlobFile> {
    blob(within.facts(path))
}

fn blob(facts: io::Result<InodeFacts>) -> Option<BlobFile> {
    let facts = facts.ok().filter(|facts| facts.kind == FileKind::File)?;
    Some(BlobFile { length: facts.length, modified: facts.modified })
}

fn ingest_directory(within: &Within, ingest: &Path, entry: &DirectoryEntry) -> IngestDirectory {
    let path = ingest.join(&entry.name);
    let backend_ref = within.read(&path.join("ref"), REF_BYTES).ok();
    let facts = within.facts(&path.join("data")).or_else(|_| within.facts(&path)).ok();
    IngestDirectory {
        name: entry.name.to_string_lossy().into_owned(),
        backend_ref: backend_ref.map(|text| String::from_utf8_lossy(&text).into_owned()),
        modified: facts.and_then(|facts| facts.modified),
    }
}
