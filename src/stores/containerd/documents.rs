//! Manifests that were read before: in a run that deletes images, every proof asks for all of them again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::content::Document;
use super::snapshot::BlobFile;

/// By digest, with what the file was then. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Documents(Arc<Mutex<HashMap<String, CachedDocument>>>);

type CachedDocument = (BlobFile, Arc<Document>);

impl Documents {
    pub(super) fn get(&self, digest: &str, file: BlobFile) -> Option<Arc<Document>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(digest).filter(|(known, _)| *known == file).map(|(_, document)| Arc::clone(document))
    }

    pub(super) fn put(&self, digest: &str, file: BlobFile, document: &Arc<Document>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(digest.to_owned(), (file, Arc::clone(document)));
    }
}
