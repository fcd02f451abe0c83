//! Leaks: unused or inconsistent objects.

use std::path::PathBuf;

use jiff::Timestamp;

use super::display::short_id;
use super::ids::{NodeIx, StoreIx};
use super::leak_class::{LeakClass, Verdict};

/// Something that nothing uses, or that does not fit together.
#[derive(Clone, Debug)]
pub struct Leak {
    /// What it is taken for.
    pub class: LeakClass,
    /// The store it was found in.
    pub store: StoreIx,
    pub path: PathBuf,
    /// The object's id or name.
    pub id: String,
    /// Newest evidence of its making; `None` where the disk has none.
    pub since: Option<Timestamp>,
    /// What should happen to it.
    pub verdict: Verdict,
    /// What proves it, in words.
    pub evidence: String,
    /// The nodes that it holds directly.
    pub holds: Vec<NodeIx>,
}

impl Leak {
    /// A name for people, who know its class and not its id.
    #[must_use]
    pub fn title(&self) -> String {
        let id = short_id(&self.id);
        format!("{} {id}", self.class)
    }
}
