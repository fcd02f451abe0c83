//! Reads an artifact store consistently, without changing anything, even access times.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::layout::{self, BLOBS, IndexEntry, LayoutDocument, LayoutDocuments, Reached};
use super::leaks::is_temporary;
use super::{DRIVER, directory};
use crate::disk::TreeScope;
use crate::model::{Consistency, Finding};
use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::snapshot::WriterPatience;
use crate::stores::unit::{self, UnitKind};
use crate::sys::allowance;
use crate::sys::quiet::{self, FileKind, InodeFacts};

const INDEX: &str = "index.json";
const LOCK: &str = "index.lock";

/// Maximum size of the index. An index with 100,000 entries has about 30 MB.
const MOST_INDEX_BYTES: u64 = 256 << 20;

/// Maximum size of a manifest that the libraries read (container-libs, `image/internal/iolimits`).
const MOST_DOCUMENT_BYTES: u64 = 4 << 20;

const PAUSE: Duration = Duration::from_millis(10);

/// An artifact: all entries of the index with the same digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub digest: String,
    /// Names, in the order of the index.
    pub names: Vec<String>,
    pub reach: Reached,
}

impl Artifact {
    /// Returns the id in CRI and podman: the hex digits of the digest.
    #[must_use]
    pub fn id(&self) -> &str {
        layout::split(&self.digest).map_or(&self.digest, |(_, hex)| hex)
    }
}

#[derive(Clone, Debug)]
pub struct Layout {
    /// Directories of the store; the driver is [`DRIVER`].
    pub places: StorePlaces,
    /// The artifacts, in the order of the index.
    pub artifacts: Vec<Artifact>,
    /// Lengths of the existing blobs in bytes, by digest.
    pub blobs: BTreeMap<String, u64>,
    /// All files and directories of the store, each once.
    pub units: Vec<LayoutUnit>,
    /// A process holds the lock exclusively: a pull, an addition or a removal is in progress.
    pub is_locked: bool,
    /// Degree to which the index can be trusted.
    pub consistency: Consistency,
    pub findings: Vec<Finding>,
    signature: Option<LayoutSignature>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactUnit {
    Blob(String),
    /// A temporary file of a pull or an addition.
    Temporary,
    /// Directories, `oci-layout`, the lock file.
    Metadata,
    /// The index, which every deletion rewrites.
    Index,
    Other,
}

/// A unit of an artifact store. Its parts are below [`directory`].
pub type LayoutUnit = unit::Unit<ArtifactUnit>;

impl UnitKind for ArtifactUnit {
    fn tag(&self) -> &'static str {
        match self {
            Self::Blob(_) => "blob",
            Self::Temporary => "artifact-put-blob",
            Self::Metadata => "metadata",
            Self::Index => "records",
            Self::Other => "other",
        }
    }
}

/// Values that change with every write of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LayoutSignature {
    index: Option<InodeFacts>,
    is_locked: bool,
}

/// Returns true if the graphroot of `places` has an artifact store. A directory of that name alone is not enough.
#[must_use]
pub fn exists(places: &StorePlaces) -> bool {
    let (within, top) = (places.within(), directory(&places.graphroot));
    [("oci-layout", FileKind::File), (INDEX, FileKind::File), (BLOBS, FileKind::Directory)]
        .into_iter()
        .any(|(name, kind)| within.facts(&top.join(name)).is_ok_and(|facts| facts.kind == kind))
}

/// Reads the store. `places` has the driver [`DRIVER`].
///
/// # Errors
/// When the store's directory cannot be listed. Any other read error becomes a finding.
pub fn read(places: &StorePlaces, patience: WriterPatience) -> io::Result<Layout> {
    assert_eq!(places.driver, DRIVER);
    let started = Instant::now();
    loop {
        let before = sign(places);
        let mut layout = read_once(places)?;
        let after = sign(places);
        let is_unchanged = matches!((&before, &after), (Ok(before), Ok(after)) if before == after);
        // A lock that cannot be queried counts as held.
        layout.is_locked = [&before, &after].into_iter().any(|signature| match signature {
            Ok(signature) => signature.is_locked,
            Err(_) => true,
        });
        // A held lock is not waited for: a pull holds it from beginning to end, and the index is complete all the time.
        if (is_unchanged && layout.consistency == Consistency::Consistent)
            || started.elapsed() >= patience.unlocked
        {
            if !is_unchanged {
                layout.consistency = layout.consistency.max(Consistency::WriterActive);
            }
            if let Err(error) = &before {
                let message = format!(
                    "cannot query the lock file: {error}; nothing in this store is reported as reclaimable"
                );
                layout.findings.push(Finding::new(directory(&places.graphroot).join(LOCK), message));
            }
            layout.signature = after.ok();
            return Ok(layout);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns true if a process may have written to the store since `layout` was read.
#[must_use]
pub fn moved(layout: &Layout) -> bool {
    let now = sign(&layout.places).ok();
    now.is_none() || now != layout.signature
}

fn sign(places: &StorePlaces) -> io::Result<LayoutSignature> {
    let (within, top) = (places.within(), directory(&places.graphroot));
    let is_locked = match LockFile::open(&within, &top.join(LOCK))? {
        Some(lock) => lock.has_writer()?,
        None => false,
    };
    Ok(LayoutSignature { index: within.facts(&top.join(INDEX)).ok(), is_locked })
}

fn read_once(places: &StorePlaces) -> io::Result<Layout> {
    let mut layout = Layout {
        places: places.clone(),
        artifacts: Vec::new(),
        blobs: BTreeMap::new(),
        units: Vec::new(),
        is_locked: false,
        consistency: Consistency::Consistent,
        findings: Vec::new(),
        signature: None,
    };
    layout.list()?;
    layout.entries();
    if places.allowance.is_exceeded() {
        layout
            .broken(layout.directory(), format!("files or entries of this store were {}", allowance::SPENT));
    }
    Ok(layout)
}

impl Layout {
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        directory(&self.places.graphroot)
    }

    #[must_use]
    pub fn path_of(&self, digest: &str) -> Option<PathBuf> {
        Some(self.directory().join(layout::path_of(digest)?))
    }

    fn broken(&mut self, path: PathBuf, message: String) {
        self.consistency = Consistency::Damaged;
        self.findings.push(Finding::incomplete(path, message));
    }

    /// Adds a file or directory as a unit. All metadata forms a single unit.
    fn add(&mut self, kind: ArtifactUnit, id: &str, below: PathBuf, scope: TreeScope) {
        let path = self.directory().join(&below);
        let part = (0, below, scope);
        if kind == ArtifactUnit::Metadata
            && let Some(unit) = self.units.iter_mut().find(|unit| unit.kind == ArtifactUnit::Metadata)
        {
            unit.parts.push(part);
            return;
        }
        self.units.push(LayoutUnit { kind, id: id.to_owned(), path, parts: vec![part] });
    }

    fn whole(&mut self, kind: ArtifactUnit, id: &OsStr, below: PathBuf) {
        self.add(kind, &id.to_string_lossy(), below, TreeScope::Whole);
    }

    fn metadata(&mut self, below: PathBuf, scope: TreeScope) {
        self.add(ArtifactUnit::Metadata, "store metadata", below, scope);
    }

    fn list(&mut self) -> io::Result<()> {
        let (within, top) = (self.places.within(), self.directory());
        self.metadata(PathBuf::new(), TreeScope::EntryOnly);
        for entry in within.list(&top)? {
            let below = PathBuf::from(&entry.name);
            match (entry.name.to_str(), entry.kind) {
                (Some(BLOBS), FileKind::Directory) => self.algorithms(&within, &below),
                (Some(INDEX), FileKind::File) => self.whole(ArtifactUnit::Index, &entry.name, below),
                (Some("oci-layout" | LOCK), FileKind::File) => self.metadata(below, TreeScope::Whole),
                (Some(name), FileKind::File) if is_temporary(name) => {
                    self.whole(ArtifactUnit::Temporary, &entry.name, below);
                }
                _ => self.whole(ArtifactUnit::Other, &entry.name, below),
            }
        }
        Ok(())
    }

    /// Lists a directory. If that fails, reports it and returns no entries.
    fn listed(&mut self, within: &quiet::Within, below: &Path) -> Vec<quiet::DirectoryEntry> {
        let path = self.directory().join(below);
        within.list(&path).unwrap_or_else(|error| {
            self.broken(path, format!("cannot be listed: {error}"));
            Vec::new()
        })
    }

    fn algorithms(&mut self, within: &quiet::Within, blobs: &Path) {
        self.metadata(blobs.to_path_buf(), TreeScope::EntryOnly);
        for algorithm in self.listed(within, blobs) {
            let below = blobs.join(&algorithm.name);
            let Some(name) = algorithm.name.to_str().filter(|_| algorithm.kind == FileKind::Directory) else {
                self.whole(ArtifactUnit::Other, &algorithm.name, below);
                continue;
            };
            self.metadata(below.clone(), TreeScope::EntryOnly);
            for blob in self.listed(within, &below) {
                let path = below.join(&blob.name);
                let digest = blob
                    .name
                    .to_str()
                    .map(|hex| format!("{name}:{hex}"))
                    .filter(|digest| layout::split(digest).is_some());
                let facts = within.facts(&self.directory().join(&path));
                match (digest, facts) {
                    (Some(digest), Ok(facts)) if facts.kind == FileKind::File => {
                        self.blobs.insert(digest.clone(), facts.length);
                        self.add(ArtifactUnit::Blob(digest.clone()), &digest, path, TreeScope::Whole);
                    }
                    _ => self.whole(ArtifactUnit::Other, &blob.name, path),
                }
            }
        }
    }

    fn entries(&mut self) {
        let path = self.directory().join(INDEX);
        let within = self.places.within();
        let bytes = match within.read_dense(&path, MOST_INDEX_BYTES) {
            Ok(bytes) => bytes,
            // The store is new.
            Err(error) if error.kind() == ErrorKind::NotFound && self.blobs.is_empty() => return,
            Err(error) => return self.broken(path, format!("cannot be read: {error}")),
        };
        let Some(entries) = layout::index(&bytes) else {
            return self.broken(path, "is not the index of an OCI layout; its artifacts are unknown".into());
        };
        let mut documents = LayoutDocuments::new();
        let mut without_digest = 0_usize;
        let mut positions: HashMap<String, usize> = HashMap::new();
        for entry in entries {
            let Some(IndexEntry { digest, name }) = entry else {
                without_digest += 1;
                continue;
            };
            let position = *positions.entry(digest.clone()).or_insert_with(|| {
                let reach = layout::reach(
                    &digest,
                    &mut documents,
                    &|digest| self.document(&within, digest),
                    &self.places.allowance,
                );
                self.artifacts.push(Artifact { digest, names: Vec::new(), reach });
                self.artifacts.len() - 1
            });
            self.artifacts[position].names.extend(name);
        }
        match without_digest {
            0 => {}
            1 => self.broken(path, "has an entry without a digest".into()),
            count => self.broken(path, format!("has {count} entries without a digest")),
        }
    }

    fn document(&self, within: &quiet::Within, digest: &str) -> Option<LayoutDocument> {
        // No library parses a longer blob as a document.
        self.blobs.get(digest).filter(|length| **length <= MOST_DOCUMENT_BYTES)?;
        let document = layout::document(&within.read(&self.path_of(digest)?, MOST_DOCUMENT_BYTES).ok()?)?;
        let texts = document.needs.len() + document.annotations.len();
        self.places.allowance.charge(allowance::TEXT * texts as u64).ok()?;
        Some(document)
    }
}
