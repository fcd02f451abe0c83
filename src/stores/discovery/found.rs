//! Stores that were found and read.

use std::path::PathBuf;
use std::time::Instant;

use crate::model::Finding;
use crate::stores::containers_storage::config::UnreadConfig;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::lending::Borrower;
use crate::stores::request::ScanError;
use crate::stores::store::Store;

/// Records of the stores of a request, of one kind or of all, as far as they can be read.
#[derive(Debug)]
pub struct ReadStores {
    /// A store comes after the stores that it takes images from.
    pub(in crate::stores) readings: Vec<Box<dyn Store>>,
    /// For each reading the directories of a store that can be edited.
    pub(in crate::stores) editable: Vec<Option<StorePlaces>>,
    pub(in crate::stores) findings: Vec<Finding>,
    /// Configured paths, whether or not they contain a store.
    pub(in crate::stores) looked: Vec<PathBuf>,
    pub(in crate::stores) unreadable: Option<ScanError>,
    /// Stores that take images from others, but were not requested or could not be read.
    pub(in crate::stores) borrowers: Vec<Borrower>,
    pub(in crate::stores) unread_configs: Vec<UnreadConfig>,
    pub(in crate::stores) layer_stores: Vec<PathBuf>,
    pub(in crate::stores) started: Instant,
}

impl ReadStores {
    pub(super) fn new() -> Self {
        Self {
            readings: Vec::new(),
            editable: Vec::new(),
            findings: Vec::new(),
            looked: Vec::new(),
            unreadable: None,
            borrowers: Vec::new(),
            unread_configs: Vec::new(),
            layer_stores: Vec::new(),
            started: Instant::now(),
        }
    }

    pub(super) fn push(&mut self, store: impl Store + 'static, editable: Option<StorePlaces>) {
        self.readings.push(Box::new(store));
        self.editable.push(editable);
    }

    pub(in crate::stores) fn roots(&self) -> Vec<PathBuf> {
        self.readings.iter().flat_map(|reading| reading.roots().into_iter().take(1)).collect()
    }

    pub(in crate::stores) fn with(mut self, other: Self) -> Self {
        self.readings.extend(other.readings);
        self.editable.extend(other.editable);
        self.findings.extend(other.findings);
        self.looked.extend(other.looked);
        self.unreadable = self.unreadable.or(other.unreadable);
        self.borrowers.extend(other.borrowers);
        self.unread_configs.extend(other.unread_configs);
        self.layer_stores.extend(other.layer_stores);
        self.started = self.started.min(other.started);
        self
    }
}
