//! Reads an artifact store consistently and without changing anything, not even access times.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::layout::{self, BLOBS, Document, Documents, IndexEntry, Reach};
use super::leaks::is_temporary;
use super::{DRIVER, directory};
use crate::disk::TreeScope;
use crate::model::{Consistency, Finding};
use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::snapshot::Patience;
use crate::stores::unit::{self, UnitKind};
use crate::sys::allowance;
use crate::sys::quiet::{self, FileKind, InodeFacts};

const INDEX: &str = "index.json";
const LOCK: &str = "index.lock";

/// An index of 100,000 entries has some 30 MB.
const MOST_INDEX_BYTES: u64 = 256 << 20;

/// The libraries read no longer manifest (container-libs, `image/internal/iolimits`).
const MOST_DOCUMENT_BYTES: u64 = 4 << 20;

const PAUSE: Duration = Duration::from_millis(10);

/// An artifact: what all entries with the same digest name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Digest of its manifest or index.
    pub digest: String,
    /// Its names, in the order of the index.
    pub names: Vec<String>,
    /// What it needs.
    pub reach: Reach,
}

impl Artifact {
    /// What CRI and podman call its id: the digest's hex.
    #[must_use]
    pub fn id(&self) -> &str {
        layout::split(&self.digest).map_or(&self.digest, |(_, hex)| hex)
    }
}

/// A store as it was read.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its path; the driver is [`DRIVER`].
    pub places: StorePlaces,
    /// The artifacts, in the order of the index.
    pub artifacts: Vec<Artifact>,
    /// Lengths of the existing blobs, by digest.
    pub blobs: BTreeMap<String, u64>,
    /// Everything in the directory, each entry once.
    pub units: Vec<Unit>,
    /// A process holds the lock exclusively: a pull, an addition or a removal is in progress.
    pub is_locked: bool,
    /// Whether the index is complete.
    pub consistency: Consistency,
    /// What could not be read.
    pub findings: Vec<Finding>,
    signature: Option<Signature>,
}

/// What a unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactUnit {
    /// A blob, by its digest.
    Blob(String),
    /// A temporary file of a pull or an addition.
    Temporary,
    /// Directories, the layout's own file, the lock.
    Metadata,
    /// The index, which every deletion rewrites.
    Index,
    Other,
}

/// A unit of an artifact store. Its parts are below [`directory`].
pub type Unit = unit::Unit<ArtifactUnit>;

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

/// What changes with every write of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    index: Option<InodeFacts>,
    is_locked: bool,
}

/// Whether the graphroot of `places` has an artifact store, and not just something of that name.
#[must_use]
pub fn exists(places: &StorePlaces) -> bool {
    let (within, top) = (places.within(), directory(&places.graphroot));
    let has = |name: &str, kind| within.facts(&top.join(name)).is_ok_and(|facts| facts.kind == kind);
    has("oci-layout", FileKind::File) || has(INDEX, FileKind::File) || has(BLOBS, FileKind::Directory)
}

/// Reads the store; `places` has the driver [`DRIVER`].
///
/// # Errors
/// When its directory cannot be listed. What cannot be read in it is a finding.
pub fn read(places: &StorePlaces, patience: Patience) -> io::Result<Layout> {
    assert_eq!(places.driver, DRIVER);
    let started = Instant::now();
    loop {
        let before = sign(places);
        let mut layout = read_once(places)?;
        let after = sign(places);
        let quiet = before.as_ref().is_ok_and(|before| after.as_ref().is_ok_and(|after| before == after));
        let is_locked = |signed: &io::Result<Signature>| !signed.as_ref().is_ok_and(|it| !it.is_locked);
        layout.is_locked = is_locked(&before) || is_locked(&after);
        // A pull holds the lock for as long as it lasts, and the index is whole all the time.
        if (quiet && layout.consistency == Consistency::Consistent) || started.elapsed() >= patience.unlocked
        {
            if !quiet {
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

/// Whether another process may have written since the reading.
#[must_use]
pub fn moved(layout: &Layout) -> bool {
    let now = sign(&layout.places).ok();
    now.is_none() || now != layout.signature
}

fn sign(places: &StorePlaces) -> io::Result<Signature> {
    let (within, top) = (places.within(), directory(&places.graphroot));
    let is_locked = match LockFile::open(&within, &top.join(LOCK))? {
        Some(lock) => lock.has_writer()?,
        None => false,
    };
    Ok(Signature { index: within.facts(&top.join(INDEX)).ok(), is_locked })
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
    /// The store's directory.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        directory(&self.places.graphroot)
    }

    /// The path of a blob.
    #[must_use]
    pub fn path_of(&self, digest: &str) -> Option<PathBuf> {
        Some(self.directory().join(layout::path_of(digest)?))
    }

    fn broken(&mut self, path: PathBuf, message: String) {
        self.consistency = Consistency::Damaged;
        self.findings.push(Finding::incomplete(path, message));
    }

    fn add(&mut self, what: ArtifactUnit, id: &str, below: PathBuf, scope: TreeScope) {
        let path = self.directory().join(&below);
        let part = (0, below, scope);
        let bookkeeping = matches!(what, ArtifactUnit::Metadata);
        let is_metadata = |unit: &Unit| unit.kind == ArtifactUnit::Metadata;
        let known = if bookkeeping { self.units.iter().position(is_metadata) } else { None };
        match known {
            Some(at) => self.units[at].parts.push(part),
            None => self.units.push(Unit { kind: what, id: id.to_owned(), path, parts: vec![part] }),
        }
    }

    fn whole(&mut self, what: ArtifactUnit, id: &OsStr, below: PathBuf) {
        self.add(what, &id.to_string_lossy(), below, TreeScope::Whole);
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

    /// What cannot be listed is not there for us, and that is said.
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
                let digest = blob.name.to_str().map(|hex| format!("{name}:{hex}"));
                let digest = digest.filter(|digest| layout::split(digest).is_some());
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
            // Nothing was ever added.
            Err(error) if error.kind() == ErrorKind::NotFound && self.blobs.is_empty() => return,
            Err(error) => return self.broken(path, format!("cannot be read: {error}")),
        };
        let Some(entries) = layout::index(&bytes) else {
            return self.broken(path, "is not the index of an OCI layout; its artifacts are unknown".into());
        };
        let mut documents = Documents::new();
        let mut without_digest = 0_usize;
        let mut at: HashMap<String, usize> = HashMap::new();
        for entry in entries {
            let Some(IndexEntry { digest, name }) = entry else {
                without_digest += 1;
                continue;
            };
            let place = *at.entry(digest.clone()).or_insert_with(|| {
                let read = |wanted: &str| self.document(&within, wanted);
                let reach = layout::reach(&digest, &mut documents, &read, &self.places.allowance);
                self.artifacts.push(Artifact { digest, names: Vec::new(), reach });
                self.artifacts.len() - 1
            });
            self.artifacts[place].names.extend(name);
        }
        match without_digest {
            0 => {}
            1 => self.broken(path, "has an entry without a digest".into()),
            count => self.broken(path, format!("has {count} entries without a digest")),
        }
    }

    fn document(&self, within: &quiet::Within, digest: &str) -> Option<Document> {
        // Of what is longer nothing is a document for anybody.
        self.blobs.get(digest).filter(|length| **length <= MOST_DOCUMENT_BYTES)?;
        let document = layout::document(&within.read(&self.path_of(digest)?, MOST_DOCUMENT_BYTES).ok()?)?;
        let texts = document.needs.len() + document.annotations.len();
        self.places.allowance.charge(allowance::TEXT * texts as u64).ok()?;
        Some(document)
    }
}
