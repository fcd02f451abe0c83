//! Leaks: unused or inconsistent objects.

use std::path::PathBuf;

use jiff::Timestamp;

use super::ids::{NodeIx, StoreIx};
use super::leak_class::{LeakClass, Verdict};
use crate::model::text::display::short_id;

#[derive(Clone, Debug)]
pub struct Leak {
    /// Its class according to the evidence.
    pub class: LeakClass,
    pub store: StoreIx,
    pub path: PathBuf,
    /// Id or name of the object.
    pub id: String,
    /// Newest evidence for its creation time; `None` if the disk has none.
    pub since: Option<Timestamp>,
    /// Recommended treatment, according to the evidence.
    pub verdict: Verdict,
    /// Proof, in words.
    pub evidence: String,
    pub holds: Vec<NodeIx>,
}

impl Leak {
    /// Returns a title for people, who know its class and not its id.
    #[must_use]
    pub fn title(&self) -> String {
        let id = short_id(&self.id);
        format!("{} {id}", self.class)
    }
}
