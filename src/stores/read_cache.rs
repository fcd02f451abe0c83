//! Knowledge of earlier readings: a run that deletes images reads every store again for every proof.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stores::bolt::{BoltDatabase, BoltError, Limits};
use crate::stores::oci::Document;

/// Maximum memory of a database that is cached.
const MOST_BYTES: usize = 16 << 20;

/// Databases and documents that were read, and stores that could not be read in time. All clones share them.
#[derive(Clone, Debug, Default)]
pub struct ReadCache(Arc<Mutex<EarlierReads>>);

#[derive(Debug, Default)]
struct EarlierReads {
    /// Manifests and indexes by digest. containerd gives a blob its name only when it is complete, and never changes
    /// it afterwards.
    documents: HashMap<String, Arc<Document>>,
    databases: HashMap<PathBuf, CachedDatabase>,
    /// Roots of the stores whose last reading timed out because of a writer. They are read with short timeouts until a
    /// reading succeeds: there can be thousands of them, and a process can hold a lock for hours.
    busy: HashSet<PathBuf>,
}

#[derive(Debug)]
struct CachedDatabase {
    /// Device and inode number of its file.
    identity: (u64, u64),
    database: Arc<BoltDatabase>,
}

impl ReadCache {
    fn lock(&self) -> MutexGuard<'_, EarlierReads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_busy(&self, store: &Path) -> bool {
        self.lock().busy.contains(store)
    }

    pub(super) fn note_busy(&self, store: &Path, is_busy: bool) {
        let busy = &mut self.lock().busy;
        if is_busy {
            busy.insert(store.to_path_buf())
        } else {
            busy.remove(store)
        };
    }

    pub(super) fn document(&self, digest: &str) -> Option<Arc<Document>> {
        self.lock().documents.get(digest).map(Arc::clone)
    }

    pub(super) fn put_document(&self, digest: &str, document: &Arc<Document>) {
        self.lock().documents.insert(digest.to_owned(), Arc::clone(document));
    }

    /// Returns the newest transaction of the database at `path`, which is open as `file`.
    pub(super) fn database(&self, path: &Path, file: &File) -> Result<Arc<BoltDatabase>, BoltError> {
        let facts = file.metadata()?;
        let identity = (facts.dev(), facts.ino());
        let earlier = self.lock().databases.remove(path).filter(|earlier| earlier.identity == identity);
        let limits = Limits::default();
        let database = match earlier {
            Some(CachedDatabase { database, .. }) => BoltDatabase::read_again(database, file, &limits)?,
            None => Arc::new(BoltDatabase::read(file, &limits)?),
        };
        if database.memory_bytes() <= MOST_BYTES {
            let cached = CachedDatabase { identity, database: Arc::clone(&database) };
            self.lock().databases.insert(path.to_path_buf(), cached);
        }
        Ok(database)
    }
}
