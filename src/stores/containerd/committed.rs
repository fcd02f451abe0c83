//! Fingerprints of the records of committed snapshots. Pure.

use super::metadata::snapshotter::{BackendSnapshot, Kind};
use super::snapshot::Snapshot;
use super::units::{Unit, What};
use crate::disk::{Fingerprint, Fingerprinter};

/// For each unit a fingerprint of its record, if it is a committed snapshot.
#[must_use]
pub fn fingerprints(snapshot: &Snapshot, units: &[Unit]) -> Vec<Option<Fingerprint>> {
    let of = |unit: &Unit| match unit.what {
        What::Snapshot(backend, entry) => fingerprint(snapshot.backends.get(backend)?.snapshots.get(entry)?),
        // A blob is one file: its evidence is its size.
        _ => None,
    };
    units.iter().map(of).collect()
}

fn fingerprint(snapshot: &BackendSnapshot) -> Option<Fingerprint> {
    if snapshot.kind != Some(Kind::Committed) {
        return None;
    }
    let created = snapshot.created.map(|time| time.to_string());
    let mut all = Fingerprinter::new("containerd snapshot, 1");
    all.bytes(snapshot.key.as_bytes());
    all.number(snapshot.id);
    all.maybe(snapshot.parent.as_deref().map(str::as_bytes));
    all.maybe(created.as_deref().map(str::as_bytes));
    Some(all.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_committed_snapshots_have_one() {
        let base = BackendSnapshot {
            key: "k8s.io/1/sha256:1".into(),
            id: 1,
            kind: Some(Kind::Committed),
            parent: None,
            created: None,
            cached_blob: None,
        };
        for kind in [Some(Kind::Active), Some(Kind::View), None] {
            assert_eq!(fingerprint(&BackendSnapshot { kind, ..base.clone() }), None, "{kind:?}");
        }
        let others = [
            BackendSnapshot { id: 2, ..base.clone() },
            BackendSnapshot { key: "k8s.io/2/sha256:1".into(), ..base.clone() },
            BackendSnapshot { parent: Some("x".into()), ..base.clone() },
            BackendSnapshot { created: "2026-01-01T00:00:00Z".parse().ok(), ..base.clone() },
        ];
        let own = fingerprint(&base);
        assert!(own.is_some() && others.iter().all(|other| fingerprint(other) != own));
    }
}
