//! Record files that are suspiciously empty.
//!
//! To the library a missing or empty file means "no records", and it writes `[]` when the
//! last record goes. A file of no length beside directories of objects is rather what a
//! crash or a full disk leaves; taken at its word, everything would look like a leak.

use std::path::Path;

use super::snapshot::Snapshot;
use super::units::is_id;
use crate::model::{Consistency, Finding};
use crate::sys::quiet::{Entry, Kind, Within};

/// Marks the reading as damaged where records are missing that must have been there.
pub fn doubt(snapshot: &mut Snapshot) {
    let places = snapshot.places.clone();
    let within = places.within();
    let tables = [
        ("layers", snapshot.layers.is_empty(), places.layer_directories(&places.graphroot)),
        ("images", snapshot.images.is_empty(), places.records_dir(&places.graphroot, "images")),
        ("containers", snapshot.containers.is_empty(), places.records_dir(&places.graphroot, "containers")),
    ];
    for (what, no_records, objects) in tables {
        let directory = places.records_dir(&places.graphroot, what);
        let file = directory.join(format!("{what}.json"));
        // Containers of CRI-O are only in the volatile file.
        let volatile = directory.join(format!("volatile-{what}.json"));
        if !no_records || !is_blank(&within, &file) || !is_blank(&within, &volatile) {
            continue;
        }
        let entries = snapshot.entries(&objects).iter();
        let known = |entry: &&Entry| entry.kind == Kind::Directory && entry.name.to_str().is_some_and(is_id);
        let count = entries.filter(known).count();
        if count > 0 {
            snapshot.consistency = Consistency::Damaged;
            snapshot.findings.push(Finding {
                path: file,
                message: format!(
                    "is empty or missing, though {} has {count} objects: what is in use cannot be told",
                    objects.display()
                ),
                incomplete: true,
            });
        }
    }
}

/// Missing, or of no length.
fn is_blank(within: &Within, path: &Path) -> bool {
    within.facts(path).map_or(true, |facts| facts.length == 0)
}
