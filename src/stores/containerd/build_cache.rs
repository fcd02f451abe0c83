//! Leases of BuildKit, whose builders store their cache in containerd. Pure.
//!
//! Each cache record is a lease without expiry with the record's id and the label `containerd.io/gc.flat`. Beside it
//! are `<record>-variants` (its blobs in other compressions, without a label) and `<record>-view` (a mount; also with
//! the label `buildkit/lease.temporary`). Records of past builds are leases `ref_<id>` in the namespace
//! `<namespace>_history` (BuildKit's `cache/manager.go`, `cache/refs.go`, `solver/llbsolver/history.go`). The
//! namespace is `buildkit` for buildkitd, `moby` for Docker, or the one configured for buildkitd.

use std::collections::HashSet;

use super::gc;
use super::metadata::{LeaseRecord, Namespace};

const TEMPORARY: &str = "buildkit/lease.temporary";
const HISTORY: &str = "_history";

#[derive(Clone, Debug, Default)]
pub struct CacheLeases<'a> {
    pub all: Vec<&'a LeaseRecord>,
    /// Number of leases that are cache records.
    pub records: usize,
}

#[must_use]
pub fn leases(namespace: &Namespace) -> CacheLeases<'_> {
    let flat = namespace.leases.iter().filter(|lease| is_flat(lease));
    let ids: HashSet<&str> = flat.map(|lease| lease.id.as_str()).collect();
    let is_history = namespace.name.ends_with(HISTORY);
    let all: Vec<_> = namespace
        .leases
        .iter()
        .filter(|lease| {
            let of_record = lease.id.strip_suffix("-variants").is_some_and(|record| ids.contains(record));
            let of_build = is_history && lease.id.starts_with("ref_");
            ids.contains(lease.id.as_str()) || ((of_record || of_build) && gc::is_unlimited(&lease.labels))
        })
        .collect();
    let records = all.iter().filter(|lease| is_flat(lease) && !lease.labels.contains_key(TEMPORARY));
    CacheLeases { records: records.count(), all }
}

fn is_flat(lease: &LeaseRecord) -> bool {
    lease.labels.contains_key(gc::FLAT) && gc::is_unlimited(&lease.labels)
}

/// Returns the namespace of the builder whose past builds are in `namespace`, otherwise `namespace` itself.
#[must_use]
pub fn builder(namespace: &str) -> &str {
    namespace.strip_suffix(HISTORY).unwrap_or(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_of_a_builder_are_recognized() {
        let lease = |id: &str, labels: &[&str]| LeaseRecord {
            id: id.into(),
            labels: labels.iter().map(|label| ((*label).into(), "2026-01-01T00:00:00Z".into())).collect(),
            ..LeaseRecord::default()
        };
        let of = |name: &str| {
            let namespace = Namespace {
                name: name.into(),
                leases: vec![
                    lease("rec", &[gc::FLAT]),
                    lease("rec-variants", &[]),
                    lease("rec-view", &[gc::FLAT, TEMPORARY]),
                    lease("ref_1", &[]),
                    lease("other-variants", &[]),
                    lease("pull", &[gc::FLAT, "containerd.io/gc.expire"]),
                    lease("plain", &[]),
                ],
                ..Namespace::default()
            };
            let found = leases(&namespace);
            (found.all.iter().map(|lease| lease.id.clone()).collect::<Vec<_>>().join(" "), found.records)
        };
        assert_eq!(of("buildkit"), ("rec rec-variants rec-view".into(), 1));
        assert_eq!(of("moby_history").0, "rec rec-variants rec-view ref_1");
        assert_eq!([builder("moby_history"), builder("moby")], ["moby"; 2]);
    }
}
