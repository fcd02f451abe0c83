//! Inspects what the records only name: short links, big data, the engines' files beside
//! the records, podman's own database, the mount table.
//!
//! It runs after the records were read and counts only if nothing was written since: an
//! inconsistency in between is work in progress and is not reported.

pub(super) mod data;
pub(super) mod engine;
pub(super) mod found;
pub(super) mod links;
pub(super) mod mountpoints;

use super::snapshot::{Snapshot, moved};
use crate::model::Consistency;
use found::Inspection;

/// The depth of the inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// Only podman's database, which knows the states of its containers: one small file.
    Engine,
    /// Everything: some files of every layer and image.
    Everything,
}

/// Looks closer at a consistent reading; of every other only podman's database is read.
pub fn inspect(snapshot: &mut Snapshot, closeness: Closeness) {
    snapshot.inspection = Inspection::default();
    if snapshot.places.read_only {
        return;
    }
    let engine = engine::read(&snapshot.places);
    if snapshot.consistency != Consistency::Consistent || closeness == Closeness::Engine {
        snapshot.inspection.engine = engine;
        return;
    }
    let (links, short_names) = links::look(snapshot);
    let found = Inspection {
        valid: true,
        links,
        short_names,
        data: data::faults(snapshot),
        without_config: data::without_config(snapshot),
        engine,
    };
    snapshot.inspection = match moved(snapshot) {
        Ok(false) => found,
        _ => Inspection { engine: found.engine, ..Inspection::default() },
    };
}
