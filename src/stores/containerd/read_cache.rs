//! What was read before: in a run that deletes images, every proof asks for all of it again.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stores::bolt::{BoltError, Database, Limits};
use crate::stores::oci::Document;

/// A larger database is not kept.
const MOST_BYTES: usize = 16 << 20;

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ReadCache(Arc<Mutex<Cached>>);

#[derive(Debug, Default)]
struct Cached {
    /// Manifests and indexes by digest. containerd names a blob only when it is whole, and never writes it
    /// again.
    documents: HashMap<String, Arc<Document>>,
    databases: HashMap<PathBuf, CachedDatabase>,
}

#[derive(Debug)]
struct CachedDatabase {
    /// Device and inode number of its file.
    identity: (u64, u64),
    database: Arc<Database>,
}

impl ReadCache {
    fn lock(&self) -> MutexGuard<'_, Cached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn document(&self, digest: &str) -> Option<Arc<Document>> {
        self.lock().documents.get(digest).map(Arc::clone)
    }

    pub(super) fn put_document(&self, digest: &str, document: &Arc<Document>) {
        self.lock().documents.insert(digest.to_owned(), Arc::clone(document));
    }

    /// The newest transaction of the database at `path`, which `file` is.
    pub(super) fn database(&self, path: &Path, file: &File) -> Result<Arc<Database>, BoltError> {
        let facts = file.metadata()?;
        let identity = (facts.dev(), facts.ino());
        let earlier = self.lock().databases.remove(path).filter(|earlier| earlier.identity == identity);
        let limits = Limits::default();
        let database = match earlier {
            Some(CachedDatabase { database, .. }) => Database::read_again(database, file, &limits)?,
            None => Arc::new(Database::read(file, &limits)?),
        };
        if database.memory_bytes() <= MOST_BYTES {
            let cached = CachedDatabase { identity, database: Arc::clone(&database) };
            self.lock().databases.insert(path.to_path_buf(), cached);
        }
        Ok(database)
    }
}
