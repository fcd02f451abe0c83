//! Inspects files that the records only name: short names, big data, files of the engines, podman's database, the mount
//! tables.
//!
//! The inspection runs after the records were read. Its result counts only if the store was not written to since then:
//! otherwise an inconsistency is work in progress and is not reported.

pub(super) mod data;
pub(super) mod links;
pub(crate) mod mountpoints;

use super::engine;
use super::inspection::Inspection;
use super::snapshot::{Snapshot, moved};
use crate::model::Consistency;
use crate::stores::request::Measure;

/// Inspects some files of every layer and image. If nothing is measured or the records are not consistent, reads only
/// podman's database, which contains the states of podman's containers.
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
    let read = &*snapshot;
    let (links, image_faults) = rayon::join(|| links::look(read), || data::faults(read));
    let links::LinksFound { mut faults, short_names, stamps } = links;
    faults.extend(image_faults);
    let found = Inspection { valid: true, faults, short_names, stamps, engine };
    snapshot.inspection = match moved(snapshot) {
        Ok(false) => found,
        _ => Inspection { engine: found.engine, ..Inspection::default() },
    };
}
