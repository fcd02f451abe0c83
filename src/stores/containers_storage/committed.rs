//! Fingerprints of the records of finished layers. Pure.
//!
//! A finished layer has a digest or a length of its tar; both are written when its content
//! is complete, and containers' layers have neither (container-libs, `storage/layers.go`).

use std::collections::HashSet;

use super::records::LayerRecord;
use super::snapshot::Snapshot;
use super::units::{Unit, What};
use crate::disk::{Fingerprint, Fingerprinter};

/// For each unit a fingerprint of its record, if it is a layer that is no longer written to.
#[must_use]
pub fn fingerprints(snapshot: &Snapshot, units: &[Unit]) -> Vec<Option<Fingerprint>> {
    let writable: HashSet<&str> =
        snapshot.containers.iter().filter_map(|container| container.layer.as_deref()).collect();
    let of = |unit: &Unit| match unit.what {
        What::Layer(at) => {
            let layer = snapshot.layers.get(at)?;
            (is_finished(layer) && !writable.contains(layer.id.as_str())).then(|| fingerprint(layer))
        }
        _ => None,
    };
    units.iter().map(of).collect()
}

fn is_finished(layer: &LayerRecord) -> bool {
    !layer.incomplete && !layer.volatile && (layer.diff_id.is_some() || layer.diff_size.is_some())
}

fn fingerprint(layer: &LayerRecord) -> Fingerprint {
    let created = layer.created.map(|time| time.to_string());
    let size = layer.diff_size.map(|size| size.to_le_bytes());
    let mut all = Fingerprinter::new("containers/storage layer, 1");
    all.bytes(layer.id.as_bytes());
    all.maybe(layer.parent.as_deref().map(str::as_bytes));
    all.maybe(created.as_deref().map(str::as_bytes));
    all.maybe(layer.diff_id.as_deref().map(str::as_bytes));
    all.maybe(size.as_ref().map(<[u8; 8]>::as_slice));
    all.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_finished_layers() {
        let base = LayerRecord { id: "a".into(), diff_id: Some("sha256:1".into()), ..LayerRecord::default() };
        let cases = [
            ("committed", base.clone(), true),
            ("a partial pull", LayerRecord { diff_id: None, diff_size: Some(0), ..base.clone() }, true),
            ("a container's", LayerRecord { diff_id: None, ..base.clone() }, false),
            ("being made or deleted", LayerRecord { incomplete: true, ..base.clone() }, false),
            ("volatile", LayerRecord { volatile: true, ..base.clone() }, false),
        ];
        for (what, layer, finished) in cases {
            assert_eq!(is_finished(&layer), finished, "{what}");
        }
        let others = [
            LayerRecord { id: "b".into(), ..base.clone() },
            LayerRecord { parent: Some("sha256:1".into()), diff_id: None, ..base.clone() },
            LayerRecord { diff_size: Some(5), ..base.clone() },
            LayerRecord { created: "2026-01-01T00:00:00Z".parse().ok(), ..base.clone() },
        ];
        assert_eq!(fingerprint(&base), fingerprint(&base.clone()));
        assert!(others.iter().all(|other| fingerprint(other) != fingerprint(&base)));
    }
}
