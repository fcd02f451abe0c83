//! Inspects what the records only name: short links, big data, the engines' files beside
//! the records, podman's own database, the mount table.
//!
//! It runs after the records were read and counts only if nothing was written since: an
//! inconsistency in between is work in progress and is not reported.

pub(super) mod data;
pub(super) mod engine;
pub(super) mod found;
pub(super) mod links;
pub(crate) mod mountpoints;

use super::snapshot::{Snapshot, moved};
use crate::model::Consistency;
use crate::stores::request::Measure;
use found::Inspection;

/// Looks at some files of every layer and image. Where nothing is measured, or the reading is not
/// consistent, only podman's database is read, which knows the states of its containers.
pub fn inspect(snapshot: &mut Snapshot, measure: Measure) {
    snapshot.inspection = Inspection::default();
    if snapshot.places.read_only {
        return;
    }
    let engine = engine::read(&snapshot.places);
    if snapshot.consistency != Consistency::Consistent || measure != Measure::Everything {
        snapshot.inspection.engine = engine;
        return;
    }
    let seen = &*snapshot;
    let (links, of_images) = rayon::join(|| links::look(seen), || data::faults(seen));
    let links::LinksFound { mut faults, short_names, stamps } = links;
    faults.extend(of_images);
    let found = Inspection { valid: true, faults, short_names, stamps, engine };
    snapshot.inspection = match moved(snapshot) {
        Ok(false) => found,
        _ => Inspection { engine: found.engine, ..Inspection::default() },
    };
}
